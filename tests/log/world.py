"""A log on the metadata tree in memory, and sessions of that tree that misbehave as asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bkspark.errors import MetadataError, NoSuchNode
from bkspark.log.formats import LogHead, PendingLedger, Publisher, SegmentFacts, SegmentOwner
from bkspark.log.publication import AppendOutcome
from bkspark.log.store import LogStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import ANY_VERSION, Callback, Check, Operation, Stat

JOB = SegmentOwner("job", "j1", partition=3, attempt=2)


def closed(*ids: int) -> list[SegmentFacts]:
    """Return closed ledgers of ten entries."""
    return [SegmentFacts(ledger_id, 9, 1_000) for ledger_id in ids]


def slice_of(ledger_id: int, first_entry: int, last_entry: int) -> SegmentFacts:
    return SegmentFacts(ledger_id, last_entry, 10 * (last_entry + 1 - first_entry), first_entry)


def everything(pending: PendingLedger, head: LogHead) -> bool:
    return True


class World:
    """A metadata server with the log `x`, once `create` has run; `deleted` collects the ledgers that were deleted."""

    def __init__(self) -> None:
        self.server = MemoryStore()
        self.store = self.another_store()
        self.deleted: list[int] = []

    def another_store(self, root: str = "/ledgers") -> LogStore:
        return LogStore(self.server.session(), root)

    async def delete(self, ledger_id: int) -> None:
        self.deleted.append(ledger_id)

    async def vacuum(self, created_before_ms: int = 0) -> list[int]:
        """Vacuum the log; return the ledgers that this deleted."""
        before = len(self.deleted)
        await self.store.attempts.vacuum("x", self.delete, created_before_ms=created_before_ms)
        return self.deleted[before:]

    async def stage(self, *ids: int, owner: SegmentOwner = JOB) -> None:
        for ledger_id in ids:
            await self.store.attempts.add("x", ledger_id, owner)

    async def publish(self, *ids: int, publisher: Publisher | None = None) -> AppendOutcome:
        await self.stage(*ids)
        return await self.store.append_ledgers("x", closed(*ids), publisher=publisher)

    async def ids(self) -> list[int]:
        """Return the ids of the log's ledgers."""
        return [ledger.ledger_id for ledger in await (await self.store.snapshot("x")).ledgers()]

    async def pending(self) -> list[int]:
        return [pending.ledger_id for pending in await self.store.attempts.pending("x")]

    async def nodes(self, folder: str) -> list[str]:
        return await self.server.session().children(f"/bkspark/logs/x/{folder}")


def in_world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a coroutine that takes a world in which the log `x` exists."""

    async def run() -> None:
        world = World()
        await world.store.create("x")
        await test(world)

    def call() -> None:
        asyncio.run(run())

    call.__doc__ = test.__doc__
    return call


class RacingTree(MemoryTree):
    """A session whose first transaction takes effect and loses its answer, and then another client makes changes."""

    def __init__(self, server: MemoryStore, then: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server, session_id=1_000, timeout_s=10.0)
        self._then: Callable[[], Awaitable[object]] | None = then

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await super().transaction(operations)
        if self._then is not None:
            then, self._then = self._then, None
            await then()
            raise MetadataError("the connection to the metadata store was lost")


class PrecededTree(MemoryTree):
    """A session during which another process does something once. Subclasses say when, by `_act`."""

    def __init__(self, server: MemoryStore, first: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server, session_id=1_006, timeout_s=10.0)
        self._first: Callable[[], Awaitable[object]] | None = first

    @property
    def has_acted(self) -> bool:
        return self._first is None

    async def _act(self) -> None:
        if self._first is not None:
            first, self._first = self._first, None
            await first()


class PrecededTransaction(PrecededTree):
    """The other process comes before the next transaction."""

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await self._act()
        await super().transaction(operations)


class CountingTree(MemoryTree):
    """A session that remembers which nodes were read."""

    def __init__(self, server: MemoryStore) -> None:
        super().__init__(server, session_id=1_001, timeout_s=10.0)
        self.reads: list[str] = []

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self.reads.append(path)
        return await super().get(path)


class TurningTree(MemoryTree):
    """A session each of whose calls lets all others take a step first."""

    def __init__(self, server: MemoryStore) -> None:
        super().__init__(server, session_id=1_002, timeout_s=10.0)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await asyncio.sleep(0)
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        await asyncio.sleep(0)
        return await super().children(path)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await asyncio.sleep(0)
        await super().delete(path, version)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await asyncio.sleep(0)
        await super().transaction(operations)


class FailingTree(MemoryTree):
    """A session that fails the next reads of one node: `failures` of them."""

    def __init__(self, server: MemoryStore, path: str) -> None:
        super().__init__(server, session_id=1_003, timeout_s=10.0)
        self.failures = 0
        self._path = path

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path == self._path and self.failures:
            self.failures -= 1
            raise MetadataError("the connection to the metadata store was lost")
        return await super().get(path)


class OutageTree(FailingTree):
    """A session that loses its connection once, at a change of one node: `begins` changes of it succeed before.

    The change takes effect or not (`takes_effect`); then others act (`then`), and neither its answer nor the next
    `lasts` reads of the node arrive.
    """

    def __init__(self, server: MemoryStore, path: str, lasts: int) -> None:
        super().__init__(server, path)
        self.begins: int | None = None
        self.takes_effect = True
        self.then: Callable[[], Awaitable[object]] | None = None
        self._lasts = lasts

    async def transaction(self, operations: Sequence[Operation]) -> None:
        changed = [operation.path for operation in operations if not isinstance(operation, Check)]
        if self.begins is None or self._path not in changed:
            await super().transaction(operations)
            return
        is_now = self.begins == 0
        if self.takes_effect or not is_now:
            await super().transaction(operations)
        self.begins = None if is_now else self.begins - 1
        if is_now:
            if self.then is not None:
                await self.then()
            self.failures = self._lasts
            raise MetadataError("the connection to the metadata store was lost")


class LaggingTree(MemoryTree):
    """A session with a server that lags: what lies below `hidden` is not there until this session writes something."""

    def __init__(self, server: MemoryStore, hidden: str) -> None:
        super().__init__(server, session_id=1_004, timeout_s=10.0)
        self._hidden: str | None = hidden

    def _hides(self, path: str) -> bool:
        return self._hidden is not None and path.startswith(self._hidden)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if self._hides(path):
            raise NoSuchNode(f"metadata node {path} does not exist")
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        return [] if self._hides(path) else await super().children(path)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        self._hidden = None
        await super().transaction(operations)


class WatchingTree(MemoryTree):
    """A session that fails the next watches of one node (`failures`), or lets others act before it sets one (`before`)
    or after the server has read the node for it (`after_read`)."""

    def __init__(self, server: MemoryStore, path: str) -> None:
        super().__init__(server, session_id=1_005, timeout_s=10.0)
        self.failures = 0
        self.before: Callable[[], Awaitable[object]] | None = None
        self.after_read: Callable[[], Awaitable[object]] | None = None
        self._path = path

    async def get(self, path: str) -> tuple[bytes, Stat]:
        found = await super().get(path)
        if path == self._path and self.after_read is not None:
            then, self.after_read = self.after_read, None
            await then()
        return found

    async def watch(self, path: str, callback: Callback) -> Callback:
        if path == self._path and self.before is not None:
            before, self.before = self.before, None
            await before()
        if path == self._path and self.failures:
            self.failures -= 1
            raise MetadataError("the connection to the metadata store was lost")
        return await super().watch(path, callback)
