"""The world in which commits are simulated: a metadata server, ledgers without bookies, and processes that die.

Everything above is the product's: Log, LogStore, AttemptStore, HeadStore, EpochCommitter, SharedLedger. A process dies
at one of its calls, before or after it took effect, and makes no call any more; connections are lost in the same way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import ClientClosed, LedgerFenced, MetadataError, NoSuchLedger
from bkspark.log import Log
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import ANY_VERSION, Check, Operation, Stat

NAME = "x"
ROOT = "/ledgers"
TURN_SHARE = 0.5
"""Share of all calls before which another process has a turn."""
STALL_SHARE, STALL_TURNS_MAX = 0.2, 80
"""Share of new ledgers that are registered late, and the turns of others meanwhile: a vacuum has time to find them."""


class Killed(BaseException):
    """The process ends here; no code of it that touches the world runs any more."""


class Process:
    """One process: how far its calls get. `calls_left` None: it lives for ever; `losses`: connections still to lose."""

    def __init__(self, world: World, calls_left: int | None = None, losses: int = 0) -> None:
        self.world = world
        self.calls_left = calls_left
        self.losses = losses
        self.is_dead = False
        self.tree = SimulatedTree(self)
        self.log = Log(cast(Client, SimulatedClient(self)), NAME)

    async def call(self) -> bool:
        """Let others have their turn; return whether the process dies right after this call.

        Raises:
            Killed: it dies before the call, or is dead.
        """
        chance = self.world.chance
        if chance.random() < TURN_SHARE:
            await asyncio.sleep(0)
        if self.is_dead:
            raise Killed
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                self.is_dead = True
                self.world.count("kill")
                if chance.random() < 0.5:
                    raise Killed
        return self.is_dead

    def loses(self) -> str | None:
        """Return when the connection is lost at this write: `before` or `after` it takes effect, or not at all."""
        chance = self.world.chance
        if self.losses and chance.random() < 0.15:
            self.losses -= 1
            when = chance.choice(("before", "after"))
            self.world.count(f"lost {when}")
            return when
        return None


class SimulatedTree(MemoryTree):
    """A process's session with the metadata server."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.server, session_id=1, timeout_s=10.0)
        self._process = process

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await self._process.call()
        return await super().get(path)

    async def exists(self, path: str) -> Stat | None:
        await self._process.call()
        return await super().exists(path)

    async def children(self, path: str) -> list[str]:
        await self._process.call()
        return await super().children(path)

    async def create(self, path: str, data: bytes = b"", **options: Any) -> tuple[str, Stat]:
        created = await self._write(lambda: super(SimulatedTree, self).create(path, data, **options))
        return cast(tuple[str, Stat], created)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._write(lambda: super(SimulatedTree, self).delete(path, version))

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await self._write(lambda: super(SimulatedTree, self).transaction(operations))

    async def _write(self, write: Any) -> Any:
        dies = await self._process.call()
        lost = self._process.loses()
        if lost == "before":
            raise MetadataError("the connection to the metadata store was lost")
        result = await write()
        if dies:
            raise Killed
        if lost == "after":
            raise MetadataError("the connection to the metadata store was lost")
        return result


@dataclass(slots=True)
class SimulatedLedger:
    """What the bookies hold of a ledger. `creator`: who made it, for ledgers that were never registered."""

    ledger_id: int
    creator: Process
    custom_metadata: Mapping[str, bytes]
    entries: list[bytes] = field(default_factory=list)
    is_fenced: bool = False
    last_entry: int | None = None

    @property
    def is_closed(self) -> bool:
        return self.last_entry is not None

    @property
    def path(self) -> str:
        """The node of its metadata, whose version alone matters here."""
        return f"{ROOT}/{self.ledger_id}"

    @property
    def length(self) -> int:
        return sum(map(len, self.entries))

    def close(self) -> SimpleNamespace:
        if self.last_entry is None:
            self.last_entry = len(self.entries) - 1
        return SimpleNamespace(last_entry=self.last_entry, length=self.length, is_closed=True)


class SimulatedWriter:
    """The writer of a ledger: adds arrive one after the other, later than they were sent."""

    def __init__(self, process: Process, ledger: SimulatedLedger) -> None:
        self._process = process
        self._ledger = ledger
        self._tail: asyncio.Task[int] | None = None
        self._is_abandoned = False

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    @property
    def last_entry(self) -> int:
        return len(self._ledger.entries) - 1

    @property
    def length(self) -> int:
        return self._ledger.length

    async def submit(self, batch: EntryBatch) -> asyncio.Future[int]:
        self._tail = asyncio.ensure_future(self._add(list(batch), self._tail))
        self._tail.add_done_callback(_observed)
        return self._tail

    async def append_many(self, entries: Sequence[bytes]) -> int:
        return await (await self.submit(EntryBatch.of(entries)))

    async def _add(self, entries: list[bytes], before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await before
        for entry in entries:
            dies = await self._process.call()
            if self._is_abandoned:
                raise ClientClosed("the writer went away")
            if self._ledger.is_fenced or self._ledger.is_closed:
                raise LedgerFenced(f"ledger {self.ledger_id} is fenced", ledger_id=self.ledger_id)
            self._ledger.entries.append(entry)
            if dies:
                raise Killed
        return self.last_entry

    async def close(self) -> SimpleNamespace:
        if self._tail is not None:
            await self._tail
        dies = await self._process.call()
        if self._ledger.is_fenced or self.ledger_id not in self._process.world.ledgers:
            raise LedgerFenced(f"ledger {self.ledger_id} was closed by another client", ledger_id=self.ledger_id)
        closed = await self._process.world.close(self._ledger)
        if dies:
            raise Killed
        return closed

    def abandon(self) -> None:
        self._is_abandoned = True


def _observed(task: asyncio.Task[int]) -> None:
    if not task.cancelled():
        task.exception()


class SimulatedClient:
    """The ledger client of a process, as far as logs use it: every call on an existing ledger must say whose it is."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.uri = SimpleNamespace(root=ROOT)

    async def context(self) -> SimpleNamespace:
        return SimpleNamespace(ledgers=self)

    async def manager(self) -> None:
        """The cluster exists, whatever its layout."""

    async def tree(self) -> SimulatedTree:
        return self._process.tree

    async def create(
        self,
        *,
        metadata: Mapping[str, bytes],
        ensemble: int,
        write_quorum: int,
        ack_quorum: int,
        ledger_type: str,
    ) -> SimulatedWriter:
        dies = await self._process.call()
        world = self._process.world
        ledger = SimulatedLedger(world.next_ledger, self._process, metadata)
        world.next_ledger += 1
        world.ledgers[ledger.ledger_id] = ledger
        await world.tree.create(ledger.path, make_parents=True)
        if dies:
            raise Killed
        if world.chance.random() < STALL_SHARE:
            world.count("stall")
            for _ in range(world.chance.randrange(STALL_TURNS_MAX)):
                await asyncio.sleep(0)
        return SimulatedWriter(self._process, ledger)

    async def metadata(self, ledger_id: int, *, having: Mapping[str, bytes]) -> SimulatedLedger:
        await self._process.call()
        return self._find(ledger_id, having)

    async def recover(self, ledger_id: int, *, having: Mapping[str, bytes]) -> SimpleNamespace:
        dies = await self._process.call()
        ledger = self._find(ledger_id, having)
        ledger.is_fenced = ledger.is_fenced or not ledger.is_closed
        closed = await self._process.world.close(ledger)
        if dies:
            raise Killed
        return closed

    async def delete(self, ledger_id: int, *, having: Mapping[str, bytes]) -> None:
        """Delete the metadata. The bookies collect the ledger, and its fence with it: they take a late writer's
        entries."""
        dies = await self._process.call()
        ledger = self._find(ledger_id, having)
        self._process.world.ledgers.pop(ledger_id)
        await self._process.world.tree.delete(ledger.path)
        ledger.is_fenced = False
        ledger.last_entry = None
        if dies:
            raise Killed

    async def pages(self) -> AsyncIterator[np.ndarray]:
        await self._process.call()
        yield np.array(sorted(self._process.world.ledgers), np.int64)

    async def read(self, ledger_id: int) -> SimpleNamespace:
        """Metadata as a vacuum looks at them."""
        await self._process.call()
        return SimpleNamespace(metadata=self._find(ledger_id, {}), ctime_ms=0)

    async def as_created(self, ledger_id: int) -> Check:
        return Check(f"{ROOT}/{ledger_id}", 0)

    def _find(self, ledger_id: int, having: Mapping[str, bytes]) -> SimulatedLedger:
        """Return a ledger that has this custom metadata."""
        ledger = self._process.world.ledgers.get(ledger_id)
        if ledger is None or not having.items() <= ledger.custom_metadata.items():
            raise NoSuchLedger(f"ledger {ledger_id} does not exist", ledger_id=ledger_id)
        return ledger


class World:
    """One metadata server, the ledgers that exist, and what struck."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = MemoryStore()
        self.tree = self.server.session()
        self.ledgers: dict[int, SimulatedLedger] = {}
        self.next_ledger = 0
        self.struck: dict[str, int] = {}

    async def close(self, ledger: SimulatedLedger) -> SimpleNamespace:
        """Close a ledger, if it is not closed; return its closed metadata."""
        if not ledger.is_closed:
            await self.tree.set(ledger.path, b"", ANY_VERSION)
        return ledger.close()

    def count(self, event: str) -> None:
        self.struck[event] = self.struck.get(event, 0) + 1
