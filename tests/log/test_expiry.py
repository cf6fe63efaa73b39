"""Which ledgers of a log expire, to the entry and the millisecond: ledgers in the metadata store alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import MetadataError, NoSuchLog
from bkspark.log import expiry
from bkspark.log.consumer_nodes import Consumer
from bkspark.log.expiry import Expiry, ExpiryTimer, first_by_bytes
from bkspark.log.formats import SegmentFacts, SegmentOwner, own_metadata
from bkspark.log.positions import Position
from bkspark.log.retention import Retention, cutoff_ms
from bkspark.log.store import LogStore
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Operation
from bkspark.metadata.uri import MetadataUri
from tests.log.paged_logs import snapshot_of

URI = "zk://127.0.0.1:2181/ledgers"
METADATA = LedgerMetadata(1, 1, 1, (Fragment(0, ("127.0.0.1:3181",)),), custom_metadata=own_metadata("x"))
WRITER = "a" * 16


class World:
    """A log `x` with a clock, and an expiry of it; `deleted` collects the ledgers that were deleted."""

    def __init__(self) -> None:
        self.server = MemoryStore()
        self.client = Client(URI, tree=self.server.session())
        self.ledgers = LedgerStore(self.server.session(), MetadataUri.parse(URI))
        self.store = LogStore(self.server.session(), "/ledgers", lambda: self.now_ms)
        self.now_ms = 0
        self.deleted: list[int] = []
        self.expiry = Expiry(self.client, self.store, "x", self.delete)

    async def delete(self, ledger_id: int) -> None:
        self.deleted.append(ledger_id)

    async def publish(self, now_ms: int) -> int:
        """Publish a closed ledger of ten entries and 100 bytes at a time; return its id."""
        self.now_ms = now_ms
        ledger_id, _ = await self.ledgers.create(METADATA)
        await self.close(ledger_id)
        await self.store.attempts.add("x", ledger_id, SegmentOwner("job", "j1"))
        await self.store.append_ledgers("x", [SegmentFacts(ledger_id, 9, 100)])
        return ledger_id

    async def close(self, ledger_id: int) -> None:
        stored = await self.ledgers.read(ledger_id)
        await self.ledgers.write(ledger_id, stored.metadata.closed(9, 100), stored.version)

    async def open(self) -> int:
        """Let a writer open the log; return its ledger."""
        ledger_id, _ = await self.ledgers.create(METADATA)
        await self.store.attempts.add("x", ledger_id, SegmentOwner("writer", WRITER))
        await self.store.open_writer("x", ledger_id, WRITER, [])
        return ledger_id

    async def expire_at(self, now_ms: int) -> list[int]:
        """Expire at a time; return the ledgers that this deleted."""
        self.now_ms, self.server.now_ms = now_ms, now_ms
        before = len(self.deleted)
        count = await self.expiry.now()
        assert count == len(self.deleted) - before
        return self.deleted[before:]


def in_world(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    async def inside() -> None:
        world = World()
        await BookieRegistry(world.server.session(), MetadataUri.parse(URI)).initialize_cluster()
        await world.store.create("x")
        try:
            await test(world)
        finally:
            await world.client.close()

    def call() -> None:
        asyncio.run(inside())

    return call


@in_world
async def test_ledger_expires_when_the_next_one_is_the_first_with_an_entry_that_is_not_old(world: World) -> None:
    first, second, _ = [await world.publish(at) for at in (1000, 2000, 3000)]
    assert await world.expire_at(10_000) == []  # no limit is set
    await world.store.set_retention("x", Retention(500, None))
    assert await world.expire_at(1500) == []  # its entries are 500 ms old, and no older
    assert await world.expire_at(1501) == [first]
    assert await world.expire_at(2500) == []
    assert await world.expire_at(2501) == [second]
    assert await world.expire_at(100_000) == []  # the newest ledger stays


@in_world
async def test_clock_that_is_ahead_removes_nothing_that_is_not_old(world: World) -> None:
    """An entry is old, and a registration has ended, if the process's clock and the metadata store's both say so."""
    ids = [await world.publish(at) for at in (1000, 2000, 3000)]
    await world.store.set_retention("x", Retention(500, None))
    for own_ms, stores_ms, expired in ((10**12, 1500, 0), (1500, 10**12, 0), (10**12, 1501, 1)):
        world.now_ms, world.server.now_ms = own_ms, stores_ms
        assert await world.expiry.now() == expired
    assert world.deleted == ids[:1]
    world.server.now_ms = 5000
    await world.store.consumers.register("x", "etl", Position(1, ids[1], 0), 10_000)
    await world.store.set_retention("x", Retention(None, 1))
    for own_ms, stores_ms, expired in ((10**12, 14_999, 0), (14_999, 10**12, 0), (10**12, 15_000, 1)):
        world.now_ms, world.server.now_ms = own_ms, stores_ms
        assert await world.expiry.now() == expired


@in_world
async def test_as_many_ledgers_stay_as_hold_the_bytes_that_are_kept(world: World) -> None:
    ids = [await world.publish(1000) for _ in range(5)]
    for kept, expired in ((500, []), (401, []), (400, ids[:1]), (200, ids[1:3]), (101, []), (100, ids[3:4]), (1, [])):
        await world.store.set_retention("x", Retention(None, kept))
        assert await world.expire_at(2000) == expired


@in_world
async def test_ledger_goes_by_whichever_limit_removes_more(world: World) -> None:
    ids = [await world.publish(at) for at in (1000, 2000, 3000, 4000)]
    await world.store.set_retention("x", Retention(5000, 200))
    assert await world.expire_at(4000) == ids[:2]
    await world.store.set_retention("x", Retention(100, 1000))
    assert await world.expire_at(3999) == ids[2:3]


@pytest.mark.parametrize(("entry_id", "expired"), [(0, 0), (9, 0), (10, 1)])
def test_ledger_is_needed_until_a_registered_reader_has_read_its_last_entry(entry_id: int, expired: int) -> None:
    @in_world
    async def test(world: World) -> None:
        ids = [await world.publish(at) for at in (1000, 2000)]
        await world.store.set_retention("x", Retention(1, None))
        await world.store.consumers.register("x", "etl", Position(0, ids[0], entry_id), 10_000)
        assert await world.expire_at(9_999) == ids[:expired]
        # It is registered for 10 s, and no longer.
        assert await world.expire_at(10_000) == ids[expired:1]

    test()


@in_world
async def test_reader_needs_no_ledger_whose_entries_were_all_truncated_since(world: World) -> None:
    """It has not moved its registration since; the log's start is the end of that ledger."""
    ids = [await world.publish(at) for at in (1000, 2000)]
    await world.store.set_retention("x", Retention(1, None))
    await world.store.consumers.register("x", "etl", Position(0, ids[0], 3), 100_000)
    await world.store.truncate("x", Position(0, ids[0], 9), at_ledger_end=False, closed=())
    assert await world.expire_at(10_000) == []
    await world.store.truncate("x", Position(0, ids[0], 10), at_ledger_end=False, closed=())
    assert await world.expire_at(10_000) == ids[:1]


class StallingTree(MemoryTree):
    """A session that stalls before its first transaction, until `then` has run."""

    def __init__(self, server: MemoryStore, then: Callable[[], Awaitable[object]]) -> None:
        super().__init__(server, 1 << 40, 10.0)
        self._then: Callable[[], Awaitable[object]] | None = then

    async def transaction(self, operations: Sequence[Operation]) -> None:
        then, self._then = self._then, None
        if then is not None:
            await then()
        await super().transaction(operations)


@pytest.mark.parametrize("renews", [True, False])
def test_reader_that_renews_its_registration_just_before_a_removal_keeps_its_ledgers(renews: bool) -> None:
    @in_world
    async def test(world: World) -> None:
        ids = [await world.publish(at) for at in (1000, 2000)]
        await world.store.set_retention("x", Retention(1, None))
        consumers = world.store.consumers
        for name in ("etl", "another"):
            await consumers.register("x", name, Position(0, ids[0], 0 if name == "etl" else 10), 10_000)

        async def before() -> None:
            """The reader that is needed renews, or one that does not matter moves."""
            for each in await consumers.all("x"):
                if each.name == ("etl" if renews else "another"):
                    await consumers.advance("x", each, each.position)

        stalling = LogStore(StallingTree(world.server, before), "/ledgers", lambda: world.now_ms)
        world.expiry = Expiry(world.client, stalling, "x", world.delete)
        assert await world.expire_at(10_000) == ([] if renews else ids[:1])

    test()


@in_world
async def test_ledger_of_a_writer_expires_once_its_metadata_say_that_it_is_closed(world: World) -> None:
    """The head says that it is open until the writer records its end."""
    ledger_id = await world.open()
    other = await world.publish(1000)
    await world.publish(2000)
    await world.store.set_retention("x", Retention(None, 1))
    assert await world.expire_at(9_000) == []
    await world.close(ledger_id)
    assert await world.expire_at(9_000) == [ledger_id, other]


@in_world
async def test_expiry_that_finds_the_first_ledger_needed_changes_nothing(world: World) -> None:
    ids = [await world.publish(at) for at in (1000, 2000)]
    await world.store.set_retention("x", Retention(1, None))
    await world.store.consumers.register("x", "etl", Position(0, ids[0], 0), 1 << 40)
    before = await world.server.session().get("/bkspark/logs/x")
    assert await world.expire_at(10_000) == []
    assert await world.server.session().get("/bkspark/logs/x") == before


@in_world
async def test_open_ledger_that_was_deleted_by_itself_keeps_no_other(world: World) -> None:
    ledger_id = await world.open()
    other = await world.publish(1000)
    await world.publish(2000)
    await world.store.set_retention("x", Retention(None, 1))
    await world.client.delete(ledger_id)
    assert await world.expire_at(9_000) == [ledger_id, other]


@in_world
async def test_expiry_of_a_log_that_is_gone_says_so(world: World) -> None:
    with pytest.raises(NoSuchLog):
        await Expiry(world.client, world.store, "y", world.delete).now()


# ---- the timer ----


def test_expiries_that_a_process_begins_for_a_log_are_a_minute_apart() -> None:
    """docs/architecture.md: at most once a minute for each process and log."""
    assert expiry.INTERVAL_S == 60.0


@pytest.mark.parametrize(("interval_s", "tries"), [(3600.0, 1), (0.0, 3)])
def test_writers_process_tries_again_after_an_interval_alone(
    monkeypatch: pytest.MonkeyPatch, interval_s: float, tries: int
) -> None:
    monkeypatch.setattr(expiry, "INTERVAL_S", interval_s)
    made: list[Expiry] = []

    @in_world
    async def test(world: World) -> None:
        async def make() -> Expiry:
            made.append(world.expiry)
            return world.expiry

        timer = ExpiryTimer(make)
        for _ in range(3):
            await timer.tick()

    test()
    assert len(made) == tries


@in_world
async def test_failure_of_an_expiry_does_not_reach_the_writer(world: World) -> None:
    tries: list[int] = []

    async def unreachable() -> Expiry:
        tries.append(1)
        raise MetadataError("the metadata store is away")

    timer = ExpiryTimer(unreachable)
    await timer.tick()
    await timer.tick()  # it was tried, though it failed
    assert len(tries) == 1


# ---- the limits ----


def test_limit_of_bytes_is_reached_by_exactly_that_many() -> None:
    def first(octets: int | None) -> int:
        return asyncio.run(first_by_bytes(snapshot_of([10, 10, 10], octets)))

    assert [first(octets) for octets in (1, 10, 11, 20, 21, 30, 31, None)] == [2, 2, 1, 1, 0, 0, 0, 0]


def test_limit_of_age_is_never_before_the_epoch() -> None:
    assert [cutoff_ms(age_ms, 100) for age_ms in (None, 1, 100, 101)] == [None, 99, 0, 0]


def test_registration_ends_at_its_last_millisecond() -> None:
    consumer = Consumer("etl", Position(0, 1, 2), 50, "r", written_ms=100)
    assert [consumer.is_expired(now_ms) for now_ms in (149, 150, 151)] == [False, True, True]
