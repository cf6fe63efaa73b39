"""When an auditor audits or checks again, and what it may have missed meanwhile; in virtual time, without bookies."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.errors import MetadataError, MetadataFormat
from bkspark.metadata.bookie_plans import MAINTENANCE, BookiePlan
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.cookies import Cookie
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.repair_reports import RepairReports
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from bkspark.wall_clock import wall_clock_ms
from bookie_service.replication.ledger_check import LedgerCheck
from bookie_service.replication.lost_bookies import LostBookies
from bookie_service.replication.options import AutoRecoveryOptions, RepairOptions
from bookie_service.replication.unexpected_errors import UnexpectedErrors
from bookie_service.replication.worker import REPORT_S, ReplicationWorker
from tests.ledger.in_process import URI
from tests.replication.auditors import DELAY_S, ROOT, Process, World, play
from tests.replication.worker_parts import ALSO_LOST, CLOSED, LOST, OPENED, SPARE

HOUR_S = 3600.0


# ---- lost bookies ----


def test_maintenance_that_is_over_protects_a_bookie_no_longer() -> None:
    async def test(world: World) -> None:
        one = await world.process()
        now_ms = wall_clock_ms()
        await one.cluster.plans().set(BookiePlan(LOST, MAINTENANCE, "an operator", now_ms - 2000, now_ms - 1000))
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


def test_next_auditor_knows_which_lost_bookies_were_on_one_host() -> None:
    """ "The host is the failure domain": a host that restarts may have had the auditor as well, and bookies whose ids
    name no host. The auditor that follows copied all their data at once."""

    async def test(world: World) -> None:
        first = await world.process(lost_bookie_delay_s=DELAY_S)
        second = await world.process(lost_bookie_delay_s=DELAY_S)
        await world.store.session().delete(f"{ROOT}/cookies/{LOST}")
        sessions = {}
        for bookie in ("north-1", "north-2", "south-1"):
            sessions[bookie] = world.store.session()
            await sessions[bookie].create(f"{ROOT}/cookies/{bookie}", b"4\n")
            registry = BookieRegistry(sessions[bookie], MetadataUri.parse(URI))
            await registry.register(bookie, BookieAddress(bookie[:5], 1))
        assert await first.auditor.refresh() is None
        assert await second.auditor.refresh() is None
        world.expire(first)
        for bookie in ("north-1", "north-2"):
            await sessions[bookie].close()
        assert await second.auditor.refresh() == DELAY_S
        assert await second.listed() == []

    play(test)


def test_all_lost_bookies_are_audited_again_at_intervals() -> None:
    """Ledgers may name them since, or have been removed from the list by other programs."""

    async def test(world: World) -> None:
        one = await world.process(bookie_check_interval_s=HOUR_S)
        assert await one.auditor.refresh() == HOUR_S
        work = await one.cluster.store.find(world.ledger_id)
        assert work is not None
        await one.cluster.store.finish(work)
        await asyncio.sleep(HOUR_S / 2)
        assert await one.auditor.refresh() == HOUR_S / 2
        assert await one.listed() == [], "it is not due, and nothing has changed"
        await asyncio.sleep(HOUR_S / 2)
        assert await one.auditor.refresh() == HOUR_S
        assert await one.listed() == [world.ledger_id]

    play(test)


def test_longer_delay_and_one_that_was_removed_ask_for_no_audit() -> None:
    """With Apache's auditor, too, only 0 or the old value does."""

    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        assert await one.auditor.refresh() == DELAY_S
        await one.cluster.store.set_lost_bookie_recovery_delay_s(int(2 * DELAY_S))
        assert await one.auditor.refresh() == 2 * DELAY_S
        await one.tree.delete(f"{ROOT}/underreplication/lostBookieRecoveryDelay")
        assert await one.auditor.refresh() == DELAY_S
        await one.cluster.store.set_lost_bookie_recovery_delay_s(int(DELAY_S))
        assert await one.auditor.refresh() == DELAY_S
        assert await one.listed() == []
        await one.cluster.store.set_lost_bookie_recovery_delay_s(0)
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


def test_request_for_an_audit_counts_for_bookies_that_were_audited_before() -> None:
    lost = LostBookies()
    assert lost.decide({"a", "b"}, {"b"}, 0, 0, str).audit == {"a"}
    lost.on_audited({"a"})
    assert not lost.decide({"a", "b"}, {"b"}, 1, 0, str).audit
    lost.end_delay()
    assert lost.decide({"a", "b"}, {"b"}, 2, 60, str).audit == {"a"}


def test_ledger_whose_first_fragment_alone_names_a_lost_bookie_is_listed() -> None:
    async def test(world: World) -> None:
        one = await world.process()
        registry = one.cluster.context.registry
        await registry.register(SPARE, BookieAddress("10.0.0.2", 3181))
        moved = replace(CLOSED, fragments=(Fragment(0, (LOST,)), Fragment(5, (SPARE,))))
        ledger_id, _ = await one.cluster.context.ledgers.create(moved)
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id, ledger_id]

    play(test)


def test_bookie_that_joins_while_the_lists_are_read_is_not_lost() -> None:
    """It has its cookie before its registration, so the cookies are read first."""

    async def test(world: World) -> None:
        one = await world.process()
        joining = BookieRegistry(world.store.session(), MetadataUri.parse(URI))

        async def joins() -> None:
            await joining.write_cookie(Cookie(SPARE, ("/j",), ("/l",)), None)
            await joining.register(SPARE, BookieAddress("10.0.0.2", 3181))

        one.tree.before_cookies = joins
        known, registered = await one.auditor._bookies()
        assert known - registered == {LOST}

    play(test)


def test_change_that_comes_during_an_audit_is_looked_at_after_it() -> None:
    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        await one.auditor.refresh()

        async def requests_an_audit() -> None:
            await one.cluster.store.set_lost_bookie_recovery_delay_s(0)

        one.tree.before_cookies = requests_an_audit
        running = asyncio.ensure_future(one.auditor.run())
        await asyncio.sleep(1)
        assert await one.listed() == [world.ledger_id]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)


# ---- the check of all ledgers ----


def test_check_of_ledgers_is_due_after_an_interval_or_if_the_last_one_is_in_the_future() -> None:
    """A clock that was set back must not end all checks."""

    async def test(world: World) -> None:
        one = await world.process(ledger_check_interval_s=HOUR_S, lost_bookie_delay_s=2 * HOUR_S)
        await one.cluster.store.set_all_checked_ms(wall_clock_ms() - 1_000_000)
        wait_s = await one.auditor.refresh()
        assert wait_s is not None
        assert HOUR_S - 1010 <= wait_s <= HOUR_S - 1000
        assert one.auditor._checking is None
        await one.cluster.store.set_all_checked_ms(wall_clock_ms() + 86_400_000)
        await one.auditor.refresh()
        assert one.auditor._checking is not None

    play(test)


def test_check_of_ledgers_is_not_begun_twice_and_its_failure_is_that_of_the_auditor() -> None:
    async def test(world: World) -> None:
        one = await world.process(ledger_check_interval_s=HOUR_S, lost_bookie_delay_s=2 * HOUR_S)
        one.tree.hangs = True
        await one.auditor.refresh()
        await asyncio.sleep(1)
        checking = one.auditor._checking
        assert checking is not None
        await one.auditor.refresh()
        assert one.auditor._checking is checking
        assert not checking.done()
        checking.cancel()
        one.auditor._checking = asyncio.ensure_future(_fails())
        await asyncio.sleep(1)
        with pytest.raises(MetadataError, match="away"):
            await one.auditor.refresh()

    play(test)


async def _fails() -> None:
    raise MetadataError("the store is away")


def test_check_of_one_ledger_tells_what_is_not_known_from_what_is_missing() -> None:
    async def test(world: World) -> None:
        one = await world.process()
        ledgers, context = one.cluster.context.ledgers, one.cluster.context
        opened, _ = await ledgers.create(OPENED)

        def check(*, blames_silent: bool) -> LedgerCheck:
            return LedgerCheck(context, 1.0, blames_silent=blames_silent, unexpected=UnexpectedErrors())

        assert await check(blames_silent=True).check(999) is None
        silent = await check(blames_silent=True).check(world.ledger_id)
        assert silent is not None
        assert (silent.bookies, silent.copies, silent.entries) == ((LOST,), 10, 10)
        spared = await check(blames_silent=False).check(world.ledger_id)
        assert spared is not None
        assert (spared.bookies, spared.error) == ((), None)
        growing = await check(blames_silent=True).check(opened)
        assert growing is not None
        assert (growing.bookies, growing.error) == ((), None), "no bookie says how far it goes"
        await one.tree.set(f"{ROOT}/00/0000/L{opened:04d}", b"?", -1)
        unreadable = await check(blames_silent=True).check(opened)
        assert unreadable is not None
        assert isinstance(unreadable.error, MetadataFormat)

        one.tree.is_away = True
        with pytest.raises(MetadataError, match="away"):
            await check(blames_silent=True).check(world.ledger_id)

    play(test)


# ---- the worker ----


async def worker_of(world: World, **options: float) -> tuple[Process, ReplicationWorker]:
    one = await world.process()
    return one, one.cluster.worker("a worker", AutoRecoveryOptions(repair=RepairOptions(**options)))  # type: ignore[arg-type]


async def listed_open(one: Process, metadata: LedgerMetadata = OPENED) -> int:
    ledger_id, _ = await one.cluster.context.ledgers.create(metadata)
    await one.cluster.store.mark(ledger_id, [LOST], 0)
    return ledger_id


async def state_after(one: Process, worker: ReplicationWorker, ledger_id: int) -> LedgerState:
    await worker.repair(ledger_id)
    return (await one.cluster.context.ledgers.read(ledger_id)).metadata.state


def test_grace_of_an_open_ledger_is_over_however_often_it_is_looked_at() -> None:
    """docs/protocol.md §7.3: the last fragment waits for openLedgerRereplicationGracePeriod."""

    async def test(world: World) -> None:
        one, worker = await worker_of(world, grace_s=HOUR_S)
        ledger_id = await listed_open(one)
        for _ in range(2):
            assert await state_after(one, worker, ledger_id) is LedgerState.OPEN
            await asyncio.sleep(HOUR_S / 2)
        assert await state_after(one, worker, ledger_id) is LedgerState.IN_RECOVERY

    play(test)


def test_grace_of_a_changed_fragment_begins_with_the_change_and_ends_an_hour_later() -> None:
    async def test(world: World) -> None:
        one, worker = await worker_of(world, grace_s=HOUR_S)
        ledger_id = await listed_open(one)
        assert await state_after(one, worker, ledger_id) is LedgerState.OPEN
        await asyncio.sleep(HOUR_S / 2)
        ledgers = one.cluster.context.ledgers
        stored = await ledgers.read(ledger_id)
        await ledgers.write(ledger_id, stored.metadata.with_ensemble(0, (ALSO_LOST,)), stored.version)
        await one.cluster.store.mark(ledger_id, [ALSO_LOST], 0)
        for _ in range(2):
            assert await state_after(one, worker, ledger_id) is LedgerState.OPEN
            await asyncio.sleep(HOUR_S / 2)
        assert await state_after(one, worker, ledger_id) is LedgerState.IN_RECOVERY

    play(test)


def test_open_ledger_is_recovered_at_once_without_a_grace() -> None:
    async def test(world: World) -> None:
        one, worker = await worker_of(world, grace_s=0.0)
        assert await state_after(one, worker, await listed_open(one)) is LedgerState.IN_RECOVERY

    play(test)


def test_deleted_ledger_leaves_the_list() -> None:
    async def test(world: World) -> None:
        one, worker = await worker_of(world)
        ledger_id = await listed_open(one)
        await one.cluster.context.ledgers.delete(ledger_id)
        assert await worker.repair(ledger_id)
        assert await one.listed() == []

    play(test)


def test_failures_are_counted_as_far_as_the_pause_depends_on_them() -> None:
    """Otherwise the pause was too large for a number after a thousand failures, and the worker ended."""

    async def test(world: World) -> None:
        one, worker = await worker_of(world)
        await one.cluster.store.mark(world.ledger_id, [LOST], 0)
        for _ in range(20):
            assert not await worker.repair(world.ledger_id)
        (postponed,) = worker.report().postponements
        assert postponed.failures == 16
        assert worker.failures == 20

    play(test)


def test_worker_uses_the_rate_of_an_operator_until_it_is_taken_back() -> None:
    async def test(world: World) -> None:
        one, worker = await worker_of(world, bytes_per_s=1000)
        reports = RepairReports(one.tree, MetadataUri.parse(URI))
        running = asyncio.ensure_future(worker.run())
        for rate, expected in ((5, 5), (-1, -1), (None, 1000)):
            await reports.set_bytes_per_s(rate)
            await asyncio.sleep(2 * REPORT_S)
            assert worker.report().bytes_per_s == expected
        # A rate that cannot be read ended the reports, and left the rate of before in force.
        await reports.set_bytes_per_s(7)
        await asyncio.sleep(2 * REPORT_S)
        await one.tree.set(f"{ROOT}/underreplication/replicationRateByBytes", b"fast", -1)
        await asyncio.sleep(2 * REPORT_S)
        assert [each.bytes_per_s for each in await reports.all()] == [1000]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)


def test_worker_repairs_as_many_ledgers_at_once_as_it_may() -> None:
    """docs/autorecovery.md: a worker takes a few ledgers at a time, each under its lock."""

    async def test(world: World) -> None:
        one, worker = await worker_of(world, ledgers_at_once=2)
        for _ in range(5):
            await listed_open(one)
        one.tree.hangs = True
        running = asyncio.ensure_future(worker.repair_listed())
        await asyncio.sleep(1)
        assert len(await one.cluster.store.locked()) == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)


def test_worker_watches_the_list_once_however_long_it_runs() -> None:
    async def test(world: World) -> None:
        _, worker = await worker_of(world, pause_s=1.0)
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0.5)
        watches = len(world.store.watched)
        await asyncio.sleep(10)
        assert len(world.store.watched) == watches
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)


def test_ledger_that_another_worker_took_off_the_list_is_not_counted_as_repaired() -> None:
    async def test(world: World) -> None:
        one, worker = await worker_of(world)
        assert await one.listed() == []
        assert not await worker.repair(world.ledger_id)
        assert (worker.repaired, worker.failures, await one.cluster.store.locked()) == (0, 0, set())

    play(test)


def test_auditor_whose_store_failed_gives_lost_bookies_the_whole_delay_again() -> None:
    """It did not see them come and go."""

    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        switch = UnderreplicationStore(world.store.session(), MetadataUri.parse(URI))
        running = asyncio.ensure_future(one.auditor.run())
        await asyncio.sleep(DELAY_S / 2)
        one.tree.is_away = True
        await switch.set_enabled(False)
        await switch.set_enabled(True)
        await asyncio.sleep(1)
        one.tree.is_away = False
        await asyncio.sleep(DELAY_S * 3 / 4)
        assert await one.listed() == []
        await asyncio.sleep(DELAY_S / 2)
        assert await one.listed() == [world.ledger_id]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)


def test_ledger_that_another_worker_has_locked_is_left_alone() -> None:
    async def test(world: World) -> None:
        one, worker = await worker_of(world)
        await one.cluster.store.mark(world.ledger_id, [LOST], 0)
        other = UnderreplicationStore(world.store.session(), MetadataUri.parse(URI))
        assert await other.lock(world.ledger_id, "another")
        assert not await worker.repair(world.ledger_id)
        assert worker.failures == 0

    play(test)


def test_check_of_ledgers_ends_with_its_auditor() -> None:
    async def test(world: World) -> None:
        one = await world.process(ledger_check_interval_s=HOUR_S, lost_bookie_delay_s=2 * HOUR_S)
        one.tree.hangs = True
        running = asyncio.ensure_future(one.auditor.run())
        await asyncio.sleep(1)
        checking = one.auditor._checking
        assert checking is not None
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.wait([checking], timeout=1)
        assert checking.cancelled()

    play(test)


def test_ledger_whose_metadata_cannot_be_read_hides_no_other_from_an_audit() -> None:
    """docs/autorecovery.md: it is named in the log, and all others are repaired."""

    async def test(world: World) -> None:
        one = await world.process()
        other, _ = await one.cluster.context.ledgers.create(CLOSED)
        await one.tree.set(f"{ROOT}/00/0000/L{world.ledger_id:04d}", b"?", -1)
        await one.auditor.refresh()
        assert await one.listed() == [other]

    play(test)
