"""A writer's core and fanout on real channels without sockets: a test makes the connections and the answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pipeline import WriterStart
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.writer import WriterCore
from bkspark.errors import (
    BookKeeperError,
)
from bkspark.ledger.driver import Driver, Work
from bkspark.ledger.fanout import Fanout
from bkspark.ledger.ownership import Ownership
from bkspark.net.channel import BookieChannel
from bkspark.net.connection import BookieConnection
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import v2, v3
from bkspark.wire.digest import SealedEntries
from tests.ledger.hostile import Asked, reply
from tests.net.v3_peer import response
from tests.simulation.virtual_loop import run_in_virtual_time

LEDGER = 5
SILENT_S = 30.0
FORCE_S = 7.0


class _NoSocket:
    def setsockopt(self, *_: object) -> None:
        """Take an option that has no effect here."""


class Wire(asyncio.Transport):
    """Keeps what a connection sent; `unsent_bytes` of it wait."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unsent_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _NoSocket() if name == "socket" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        """End the connection: the channel knows."""


def entries(first_entry: int, count: int = 1) -> SealedEntries:
    """Return entries that are one byte each, their id."""
    octets = memoryview(bytes(range(first_entry, first_entry + count)))
    return SealedEntries.framed(octets, np.arange(count + 1), first_entry)


def receive(channel: BookieConnection, data: bytes) -> None:
    """Let bytes come on a connection."""
    channel.get_buffer(-1)[: len(data)] = data
    channel.buffer_updated(len(data))


def answer(channel: BookieConnection, *entry_ids: int, status: int = 0) -> None:
    """Let a bookie answer adds by V2."""
    receive(channel, b"".join(reply(Asked(v2.ADD, LEDGER, entry_id, b""), status) for entry_id in entry_ids))


async def settled() -> None:
    """Return when everything that can happen without time has happened; the loop's time is virtual."""
    await asyncio.sleep(0.001)


class FannedWriter:
    """The writer of a ledger of bookies a, b, ..., which performs its effects as `WriterRun` does."""

    def __init__(
        self,
        quorums: tuple[int, int, int] = (3, 3, 2),
        ownership: Ownership | None = None,
        relaxed: RelaxedDurability | None = None,
    ) -> None:
        ensemble = tuple("abcde"[: quorums[0]])
        start = WriterStart(LEDGER, LedgerMetadata(*quorums, (Fragment(0, ensemble),)), 0)
        self.core = WriterCore(start, random.Random(1), relaxed=relaxed)
        self.fanout = Fanout(self.core, self, self._connect, ownership, FORCE_S)
        self.asked: list[str] = []
        """The bookies to which connections were asked for, in order."""
        self.done: list[effects.WriterEffect] = []
        self._driver = Driver[effects.WriterEffect](self.perform)
        self._wanted: dict[str, asyncio.Future[BookieConnection]] = {}

    # ---- what the fanout needs ----

    def perform(self, todo: Sequence[effects.WriterEffect]) -> None:
        for effect in todo:
            self.done.append(effect)
            match effect:
                case effects.SendAdds():
                    self.fanout.send(effect)
                case effects.Force():
                    self.spawn(self.fanout.force(effect))
                case effects.Fail():
                    self.fanout.close()

    def spawn(self, work: Work[effects.WriterEffect]) -> asyncio.Task[None]:
        return self._driver.spawn(work)

    def now_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)

    async def _connect(self, bookie: str) -> BookieConnection:
        self.asked.append(bookie)
        self._wanted[bookie] = asyncio.get_running_loop().create_future()
        return await self._wanted[bookie]

    # ---- what tests do ----

    def add(self, count: int = 1) -> None:
        self.perform(self.core.add(entries(self.core.pending.next_entry, count), count, self.now_ns()))

    async def connected(self, bookie: str, channel: BookieConnection | None = None) -> tuple[BookieConnection, Wire]:
        """Make the connection to a bookie that was asked for; return it when it is in use."""
        await settled()
        channel, wire = channel or BookieChannel(bookie, 1 << 20, SILENT_S), Wire()
        channel.connection_made(wire)
        self._wanted.pop(bookie).set_result(channel)
        await settled()
        return channel, wire

    async def refused(self, bookie: str, error: BookKeeperError) -> None:
        """Let the connection to a bookie that was asked for fail."""
        await settled()
        self._wanted.pop(bookie).set_exception(error)
        await settled()

    def change_to(self, *writable: str) -> None:
        """Let the core find these bookies, and store the ensemble that it chooses."""
        self.perform(self.core.on_writable_bookies(writable))
        last = self.done[-1]
        if isinstance(last, effects.WriteMetadata):
            self.perform(self.core.on_metadata_written(last.metadata, last.expected_version + 1))

    @property
    def failed(self) -> list[str]:
        """The bookies for which the core looked for another one."""
        return [bookie for effect in self.done if isinstance(effect, effects.FindBookies) for bookie in effect.failed]


def play(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine in virtual time."""

    async def call() -> None:
        try:
            await test()
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    run_in_virtual_time(call())


async def forcing(silent_s: float = SILENT_S) -> tuple[FannedWriter, dict[str, tuple[BookieV3Channel, Wire]]]:
    """Return a writer of relaxed durability that has forces under way, to bookies that acknowledged an entry.

    Bookie a has synced it before. `silent_s`: how long their other answers may take.
    """
    writer = FannedWriter(relaxed=RelaxedDurability(force_interval_s=0))
    writer.add()
    await settled()
    found = {
        bookie: await writer.connected(bookie, BookieV3Channel(bookie, 1 << 20, silent_s, v3.TxnIds()))
        for bookie in "abc"
    }
    for number, bookie in enumerate("abc"):
        synced = 0 if bookie == "a" else None
        ids, statuses = np.array([0]), np.array([0])
        writer.perform(writer.core.on_add_replies(number, bookie, ids, statuses, writer.now_ns(), synced))
    for _, wire in found.values():
        wire.sent = b""
    writer.perform(writer.core.sync())
    await settled()
    return writer, found


def answer_force(channel: BookieV3Channel, wire: Wire, status: int = 0) -> None:
    request = v3.decode_request(wire.sent[4:])
    assert request.forceLedgerRequest.ledgerId == LEDGER
    inner = {"ledgerId": LEDGER, "status": status}
    receive(channel, v3.encode_message(response(request, status, forceLedgerResponse=inner)))


def confirmed(writer: FannedWriter) -> list[int]:
    return [effect.last_entry for effect in writer.done if isinstance(effect, effects.Confirm)]
