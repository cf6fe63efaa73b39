"""What a repair asks of bookies and what it sends them, request by request (docs/autorecovery.md, A1 to A5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.entries import EntryBatch
from bkspark.errors import MetadataVersion
from bkspark.ledger.bookies import PlacementOptions
from bkspark.metadata.bookie_plans import DRAIN, BookiePlan
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from bkspark.wire.status import Status
from bookie_service.replication import repair_run
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.drain import Drain, progress_of
from bookie_service.replication.drain_sharing import reports_of
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from bookie_service.replication.worker import ReplicationWorker
from tests.ledger.holders import PATIENT, Holder, adds_of, flags_of, register, with_bookies
from tests.ledger.hostile import URI, Asked, HostileBookie, World, reply, sealed
from tests.planting import changed
from tests.polling import until
from tests.replication.listed_copies import listing

GONE, ALSO_GONE = "127.0.0.1:1", "127.0.0.1:2"
"""Bookies that are lost: nothing listens on these ports."""
PASSWORD = b"secret"


class Source(Holder):
    """A holder that answers batch reads with as many entries as it is asked for."""

    def __call__(self, asked: Asked) -> bytes | None:
        if asked.opcode != v2.BATCH_READ or asked.entry_id not in self.held:
            return super().__call__(asked)
        entries = []
        for entry_id in range(asked.entry_id, asked.entry_id + asked.entries_max):
            if entry_id not in self.held:
                break
            entry = sealed(asked.ledger_id, entry_id, length=10 * (entry_id + 1))
            entries.append(len(entry).to_bytes(4, "big") + entry)
        return reply(asked, body=b"".join(entries))


class Protected(Source):
    """A source of entries whose digests depend on a password."""

    def __call__(self, asked: Asked) -> bytes | None:
        if asked.opcode == v2.ADD:
            return super().__call__(asked)
        batch = EntryBatch.of([b"x" * 10], asked.ledger_id, asked.entry_id)
        entry = bytes(EntryDigest(DigestType.MAC, PASSWORD).seal(batch, asked.entry_id - 1, 0).buffer[4:])
        is_batch = asked.opcode == v2.BATCH_READ
        return reply(asked, body=len(entry).to_bytes(4, "big") + entry if is_batch else entry)


def closed(write_quorum: int, entries: int, *bookies: str) -> LedgerMetadata:
    return LedgerMetadata(
        len(bookies),
        write_quorum,
        1,
        (Fragment(0, bookies),),
        state=LedgerState.CLOSED,
        last_entry=entries - 1,
        length=10 * entries,
    )


async def listed(
    world: World, metadata: LedgerMetadata, missing: Collection[str], tree: MemoryTree | None = None, **options: float
) -> tuple[int, ReplicationWorker]:
    """Return a ledger on the list, and a worker with these options."""
    session = world.store.session() if tree is None else tree
    placement = PlacementOptions(quarantine_failures=1)
    repaired = await RepairedCluster.of(world.client(net=PATIENT, tree=session, placement=placement))
    ledger_id = await world.ledger(metadata=metadata)
    await repaired.store.mark(ledger_id, missing, 0)
    return ledger_id, repaired.worker("a worker", AutoRecoveryOptions(repair=RepairOptions(**options)))  # type: ignore[arg-type]


async def bookies_of(world: World, ledger_id: int) -> tuple[str, ...]:
    return (await world.ledgers.read(ledger_id)).metadata.last_fragment.bookies


def sent_to(bookie: HostileBookie) -> list[int]:
    """Return the entries that a bookie got, ascending."""
    return sorted(add.entry_id for add in adds_of(bookie))


def refuses_for_its_load(asked: Asked) -> int | None:
    return Status.ETOOMANYREQUESTS if asked.opcode == v2.READ else None


def test_bookie_that_is_too_busy_to_be_checked_is_not_replaced() -> None:
    """It serves, so it has its copies as far as anyone knows, and must not get more work."""

    async def test(world: World, whole: HostileBookie, busy: HostileBookie, spare: HostileBookie) -> None:
        for bookie in (whole, busy, spare):
            await register(world, bookie)
        ledger_id, worker = await listed(world, closed(2, 3, whole.id, busy.id), [busy.id])
        assert not await worker.repair(ledger_id)
        (postponed,) = worker.report().postponements
        assert "too many requests" in postponed.error
        assert await bookies_of(world, ledger_id) == (whole.id, busy.id)
        assert sent_to(spare) == sent_to(busy) == []

    with_bookies(Source(range(3)), Source(range(3), refuse=refuses_for_its_load), Source())(test)


def test_registered_bookie_that_cannot_be_reached_is_replaced() -> None:
    """An extra copy does no harm."""

    async def test(world: World, whole: HostileBookie, spare: HostileBookie) -> None:
        for bookie in (whole, spare):
            await register(world, bookie)
        silent = BookieRegistry(world.store.session(), MetadataUri.parse(URI))
        await silent.register(GONE, BookieAddress("127.0.0.1", 1))
        ledger_id, worker = await listed(world, closed(2, 3, whole.id, GONE), [GONE])
        assert await worker.repair(ledger_id)
        assert await bookies_of(world, ledger_id) == (whole.id, spare.id)
        assert sent_to(spare) == [0, 1, 2]

    with_bookies(Source(range(3)), Source())(test)


def test_copies_are_read_with_the_password_of_the_metadata_and_sent_as_those_of_a_recovery() -> None:
    """docs/protocol.md §7.4: added with the recovery flag, so that a fenced bookie takes them, and byte for byte."""

    async def test(world: World, whole: HostileBookie, spare: HostileBookie) -> None:
        for bookie in (whole, spare):
            await register(world, bookie)
        metadata = replace(closed(2, 3, whole.id, GONE), digest=DigestType.MAC, password=PASSWORD)
        ledger_id, worker = await listed(world, metadata, [GONE])
        assert await worker.repair(ledger_id)
        assert await bookies_of(world, ledger_id) == (whole.id, spare.id)
        assert [flags_of(add) & v2.RECOVERY_ADD for add in adds_of(spare)] == [v2.RECOVERY_ADD] * 3
        assert {add.body[4:24] for add in adds_of(spare)} == {master_key(PASSWORD)}
        assert (worker.repaired, worker.copied_bytes) == (1, bytes_sent_to(spare))
        assert worker.copied_sizes.count(0) == 3
        assert worker._context.pool.reserve_connection(ledger_id) == 1, "that of the copies is free again"

    with_bookies(Protected(range(3)), Source())(test)


def test_bookies_that_serve_are_read_before_those_that_are_not_registered() -> None:
    async def test(world: World, left: HostileBookie, whole: HostileBookie, spare: HostileBookie) -> None:
        for bookie in (whole, spare):
            await register(world, bookie)
        ledger_id, worker = await listed(world, closed(3, 3, left.id, whole.id, GONE), [GONE])
        assert await worker.repair(ledger_id)
        assert sent_to(spare) == [0, 1, 2]
        assert left.asked == []

    with_bookies(Source(range(3)), Source(range(3)), Source())(test)


def test_bookie_that_refused_its_copies_is_avoided_by_the_whole_process() -> None:
    """bookieErrorThresholdPerInterval: as often as one that fails a writer."""

    async def test(world: World, whole: HostileBookie, refusing: HostileBookie) -> None:
        for bookie in (whole, refusing):
            await register(world, bookie)
        ledger_id, worker = await listed(world, closed(2, 3, whole.id, GONE), [GONE])
        assert not await worker.repair(ledger_id)
        assert await bookies_of(world, ledger_id) == (whole.id, GONE)
        assert refusing.id in (await worker._context.watcher.replacements()).topology.avoided

    with_bookies(Source(range(3)), Source(refuse=lambda asked: Status.EIO))(test)


def test_each_new_bookie_gets_the_entries_of_its_own_slot_alone() -> None:
    """docs/protocol.md §5.2: entry e of a striped ledger is on the Qw bookies from slot e mod E on."""

    async def test(world: World, one: HostileBookie, three: HostileBookie, *spares: HostileBookie) -> None:
        for bookie in (one, three, *spares):
            await register(world, bookie)
        metadata = closed(2, 12, GONE, one.id, ALSO_GONE, three.id)
        ledger_id, worker = await listed(world, metadata, [GONE, ALSO_GONE])
        assert await worker.repair(ledger_id)
        named = await bookies_of(world, ledger_id)
        sent = {bookie.id: sent_to(bookie) for bookie in spares}
        assert sent[named[0]] == [0, 3, 4, 7, 8, 11]
        assert sent[named[2]] == [1, 2, 5, 6, 9, 10]

    held = [Source(entry for entry in range(12) if entry % 4 in mine) for mine in ((0, 1), (2, 3))]
    with_bookies(*held, Source(), Source())(test)


def test_entries_that_no_new_bookie_needs_are_not_read() -> None:
    async def test(
        world: World, one: HostileBookie, two: HostileBookie, three: HostileBookie, new: HostileBookie
    ) -> None:
        for bookie in (one, two, three, new):
            await register(world, bookie)
        ledger_id, worker = await listed(world, closed(2, 12, GONE, one.id, two.id, three.id), [GONE])
        assert await worker.repair(ledger_id)
        assert sent_to(new) == [0, 3, 4, 7, 8, 11]
        read = [asked.entry_id for bookie in (one, two, three) for asked in bookie.asked]
        assert {entry_id % 4 for entry_id in read} == {0, 3}

    held = [Source(entry for entry in range(12) if entry % 4 in mine) for mine in ((0, 1), (1, 2), (2, 3))]
    with_bookies(*held, Source())(test)


def test_bookie_that_lacks_one_entry_gets_this_one_alone() -> None:
    """docs/autorecovery.md: the worker asks which entries it has and copies missing entries to it."""

    async def test(world: World, whole: HostileBookie, lacking: HostileBookie) -> None:
        for bookie in (whole, lacking):
            await register(world, bookie)
        ledger_id, worker = await listed(world, closed(2, 24, whole.id, lacking.id), [lacking.id])
        assert await worker.repair(ledger_id)
        assert sent_to(lacking) == [20]
        assert sent_to(whole) == []
        assert min(asked.entry_id for asked in whole.asked) >= 8, "reads without a missing entry are left out"
        assert await bookies_of(world, ledger_id) == (whole.id, lacking.id)

    with_bookies(Source(range(24)), Source({*range(24)} - {20}))(test)


def test_least_memory_for_copies_is_still_a_byte_for_each_read() -> None:
    """A read of 0 bytes may be one without a limit for other bookies."""

    async def test(world: World, whole: HostileBookie, new: HostileBookie) -> None:
        for bookie in (whole, new):
            await register(world, bookie)
        metadata = closed(2, 3, whole.id, GONE)
        ledger_id, worker = await listed(world, metadata, [GONE], copies_in_flight_bytes=1)
        assert await worker.repair(ledger_id)
        assert sent_to(new) == [0, 1, 2]
        assert min(asked.bytes_max for asked in whole.asked if asked.opcode == v2.BATCH_READ) >= 1

    with_bookies(Source(range(3)), Source())(test)


class Counting(MemoryTree):
    """A session that counts the writes which met another version."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.lost = 0

    async def set(self, path: str, data: bytes, version: int) -> int:
        try:
            return await super().set(path, data, version)
        except MetadataVersion:
            self.lost += 1
            raise


def test_repair_after_a_recovery_goes_on_from_the_metadata_that_the_recovery_wrote() -> None:
    """Compare-and-set resolves conflicts with other writers. Where there are none, it loses none."""

    async def test(world: World, whole: HostileBookie, new: HostileBookie) -> None:
        for bookie in (whole, new):
            await register(world, bookie)
        tree = Counting(world.store)
        opened = LedgerMetadata(2, 2, 2, (Fragment(0, (whole.id, GONE)),))
        ledger_id, worker = await listed(world, opened, [GONE], tree, grace_s=0.0)
        assert await worker.repair(ledger_id)
        stored = (await world.ledgers.read(ledger_id)).metadata
        assert (stored.is_closed, stored.last_fragment.bookies) == (True, (whole.id, new.id))
        assert tree.lost == 0

    with_bookies(Source(), Source())(test)


HOLES_MAX = 3


@pytest.mark.parametrize("lists", [True, False], ids=["by its list", "by reads"])
@pytest.mark.parametrize("lacking", [HOLES_MAX, HOLES_MAX + 1])
def test_bookie_that_lacks_more_entries_than_are_kept_in_memory_gets_all_again(lacking: int, lists: bool) -> None:
    async def test(world: World, whole: HostileBookie, other: HostileBookie) -> None:
        for bookie in (whole, other):
            await register(world, bookie)
        ledger_id, worker = await listed(world, closed(2, 8, whole.id, other.id), [other.id])
        assert await worker.repair(ledger_id)
        assert sent_to(other) == (missing if lacking == HOLES_MAX else [*range(8)])

    missing = [1, 2, 5, 7][:lacking]
    held = {*range(8)} - {*missing}
    with changed(repair_run, "HOLES_MAX", lambda _: HOLES_MAX):
        with_bookies(Source(range(8)), listing(Source(held), held if lists else None))(test)


async def drain_of(
    world: World, leaving: HostileBookie, *metadata: LedgerMetadata, ledgers_at_once: int = 1
) -> tuple[RepairedCluster, Drain]:
    """Return the drain of a bookie that is read-only already, and has these ledgers."""
    repaired = await RepairedCluster.of(world.client(net=PATIENT))
    host, port = leaving.id.split(":")
    await repaired.context.registry.register(leaving.id, BookieAddress(host, int(port)), read_only=True)
    for each in metadata:
        await world.ledger(metadata=each)
    await repaired.plans().prepare()
    await repaired.plans().set(BookiePlan(leaving.id, DRAIN, "an operator", 0))
    options = AutoRecoveryOptions(repair=RepairOptions(ledgers_at_once=ledgers_at_once))
    return repaired, Drain(repaired, leaving.id, "a process", options, lambda _: None)


@contextlib.asynccontextmanager
async def running(drain: Drain) -> AsyncIterator[None]:
    task = asyncio.ensure_future(drain.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def bytes_sent_to(bookie: HostileBookie) -> int:
    """Return how many bytes the adds have that a bookie got."""
    return sum(4 + len(add.body) for add in adds_of(bookie))


def test_last_report_of_a_drain_says_that_nothing_is_copied_any_more() -> None:
    """Other processes that drain the bookie add its rate to theirs."""

    async def test(world: World, leaving: HostileBookie, spare: HostileBookie) -> None:
        await register(world, spare)
        repaired, drain = await drain_of(world, leaving, closed(1, 5, leaving.id))
        assert await drain.run() == 1
        assert sent_to(spare) == [0, 1, 2, 3, 4]
        plan = await repaired.plans().find(leaving.id)
        assert plan is not None
        (report,) = reports_of(plan.progress, "another process").values()
        assert (report.ledgers, report.bytes, report.bytes_per_s) == (1, 50, 0)
        assert progress_of(plan).copied_bytes == bytes_sent_to(spare) > 50

    with_bookies(Source(range(5)), Source())(test)


def test_copies_that_are_not_acknowledged_yet_count_as_copied_and_no_more_than_the_ledger_has() -> None:
    """Frames have more bytes than the entries. What is left of other ledgers stays what it is."""

    async def test(world: World, leaving: HostileBookie, slow: HostileBookie) -> None:
        await register(world, slow)
        ledgers = [closed(1, 5, leaving.id)] * 2
        _, drain = await drain_of(world, leaving, *ledgers)
        async with running(drain):
            await until(lambda: len(adds_of(slow)) == 5, "the first ledger to be copied")
            progress, report = drain.progress(), drain._own_report()
            assert (progress.ledgers_left, progress.bytes_left) == (2, 50)
            assert progress.copied_bytes == bytes_sent_to(slow) > 100
            assert (report.ledgers, report.bytes) == (0, 50)

    with_bookies(Source(range(5)), Source(hears=lambda asked: asked.opcode != v2.ADD))(test)


def test_ledger_of_which_a_part_was_moved_counts_with_the_rest() -> None:
    """An entry that no bookie has keeps its fragment where it is."""

    async def test(world: World, leaving: HostileBookie, spare: HostileBookie) -> None:
        await register(world, spare)
        whole = closed(1, 10, leaving.id)
        parts = replace(whole, fragments=(Fragment(0, (leaving.id,)), Fragment(5, (leaving.id,))))
        _, drain = await drain_of(world, leaving, parts)
        async with running(drain):
            await until(lambda: bool(drain.progress().blocked), "the ledger to be tried")
            progress, report = drain.progress(), drain._own_report()
            assert (progress.bytes, progress.bytes_left) == (100, 50)
            assert (report.ledgers, report.bytes) == (0, 50)
            assert progress.copied_bytes == bytes_sent_to(spare), "of the attempt that has ended, once"
            assert sent_to(spare) == [5, 6, 7, 8, 9]

    with_bookies(Source(range(5, 10)), Source())(test)
