"""When a drain begins, goes on and gives up, what it counts, and which plans may begin; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bkspark.core.copies import CopyEstimate
from bkspark.core.metadata import Fragment
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataAccessDenied, MetadataError, MetadataFormat
from bkspark.metadata.bookie_plans import DRAIN, MAINTENANCE, BookiePlan, BookiePlans
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import ANY_VERSION, Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wall_clock import wall_clock_ms
from bookie_service.admin import drain_command
from bookie_service.replication import drain_plans
from bookie_service.replication.drain import (
    FAILURES_MAX,
    FOLLOWED_S_MAX,
    Drain,
    DrainCancelled,
    DrainPreview,
    DrainProgress,
    preview_of,
    progress_of,
    seconds_left,
)
from bookie_service.replication.drain_ledgers import LedgersLeft
from tests.ledger.in_process import URI
from tests.replication.drains import drain_of
from tests.replication.paused_workers import EMPTY, OPTIONS, play, register
from tests.replication.worker_parts import ALSO_LOST, CLOSED, LOST, OPENED, SPARE, Bench

ROOT = MetadataUri.parse(URI).root
LONG_S = 7.0 * FAILURES_MAX


async def bookies_of(bench: Bench, ledger_id: int) -> tuple[str, ...]:
    return (await bench.metadata(ledger_id)).last_fragment.bookies


async def ended(running: asyncio.Future[int]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def with_writable_bookie(bench: Bench) -> asyncio.Future[int]:
    """Return the running drain of a bookie that stays writable."""
    for bookie in (LOST, SPARE):
        await register(bench, bookie)
    await bench.cluster.plans().prepare()
    await bench.cluster.plans().set(BookiePlan(LOST, DRAIN, "an operator", 0))
    return asyncio.ensure_future(Drain(bench.cluster, LOST, "a process", OPTIONS, lambda _: None).run())


# ---- the drain ----


def test_drain_copies_nothing_until_the_bookie_is_read_only() -> None:
    """Until then writers go on with it, and new ledgers name it."""

    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        running = await with_writable_bookie(bench)
        await asyncio.sleep(5)
        assert await bookies_of(bench, ledger_id) == (LOST,)
        await register(bench, LOST, read_only=True)
        await bench.cluster.tree.delete(f"{ROOT}/available/{LOST}")
        async with asyncio.timeout(60):
            assert await running == 1
        assert await bookies_of(bench, ledger_id) == (SPARE,)

    play(test)


def test_drain_gives_up_if_the_bookie_does_not_follow_its_plan() -> None:
    """Apache's bookies do not."""

    async def test(bench: Bench) -> None:
        running = await with_writable_bookie(bench)
        await asyncio.sleep(FOLLOWED_S_MAX - 0.5)
        assert not running.done()
        await asyncio.sleep(1)
        with pytest.raises(BookKeeperError, match="is still writable after 20 s"):
            running.result()

    play(test)


def test_drain_that_is_cancelled_while_the_bookie_becomes_read_only_ends() -> None:
    async def test(bench: Bench) -> None:
        running = await with_writable_bookie(bench)
        await asyncio.sleep(5)
        await bench.cluster.plans().end(LOST)
        await asyncio.sleep(1)
        with pytest.raises(DrainCancelled):
            running.result()

    play(test)


def test_plan_of_another_kind_is_not_that_of_a_drain() -> None:
    async def test(bench: Bench) -> None:
        drain = await drain_of(bench)
        await bench.cluster.plans().set(BookiePlan(LOST, MAINTENANCE, "an operator", 0))
        with pytest.raises(DrainCancelled):
            await drain.run()

    play(test)


def test_rate_of_the_plan_counts_from_the_first_copy_on() -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(OPENED)
        drain = await drain_of(bench)
        await bench.cluster.plans().update(LOST, DRAIN, lambda plan: replace(plan, bytes_per_s=7_000))
        running = asyncio.ensure_future(drain.run())
        await asyncio.sleep(0.5)
        assert drain._budget.rate.bytes_per_s == 7_000
        await ended(running)

    play(test)


def test_pause_of_a_ledger_that_cannot_be_moved_is_a_minute_at_most() -> None:
    async def test(bench: Bench) -> None:
        ledgers = bench.cluster.context.ledgers
        blocked, _ = await ledgers.create(EMPTY)
        await ledgers.create(OPENED)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(130)
        await register(bench, SPARE)
        await asyncio.sleep(61)
        assert await bookies_of(bench, blocked) == (SPARE,)
        await ended(running)

    play(test)


def test_drain_looks_again_for_ledgers_that_name_the_bookie_when_it_has_moved_those_it_knew() -> None:
    """A writer with old information may name the bookie once more."""

    async def test(bench: Bench) -> None:
        ledgers = bench.cluster.context.ledgers
        first, _ = await ledgers.create(EMPTY)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(0.5)
        later, _ = await ledgers.create(EMPTY)
        await register(bench, SPARE)
        async with asyncio.timeout(60):
            assert await running == 2
        assert await bookies_of(bench, first) == await bookies_of(bench, later) == (SPARE,)

    play(test)


def test_drain_goes_on_while_any_ledger_waits_for_its_writer_though_others_have_failed() -> None:
    """It ends with the error of what remains, when nothing else is left to do."""

    async def test(bench: Bench) -> None:
        ledgers = bench.cluster.context.ledgers
        blocked, _ = await ledgers.create(EMPTY)
        waiting, _ = await ledgers.create(OPENED)
        shown: list[DrainProgress] = []
        running = asyncio.ensure_future((await drain_of(bench, shown.append)).run())
        await asyncio.sleep(LONG_S)
        assert not running.done()
        assert (list(shown[-1].blocked), shown[-1].waiting) == ([str(blocked)], (waiting,))
        await ended(running)

    play(test)


def test_ledger_that_failed_and_then_waits_for_its_writer_is_not_blocked_any_more() -> None:
    async def test(bench: Bench) -> None:
        ledgers = bench.cluster.context.ledgers
        both = replace(OPENED, fragments=(Fragment(0, (LOST,)), Fragment(5, (LOST,))))
        ledger_id, stored = await ledgers.create(both)
        shown: list[DrainProgress] = []
        running = asyncio.ensure_future((await drain_of(bench, shown.append)).run())
        await asyncio.sleep(1.5)
        assert (list(shown[-1].blocked), shown[-1].waiting) == ([str(ledger_id)], ())
        moved = replace(both, fragments=(Fragment(0, (ALSO_LOST,)), Fragment(5, (LOST,))))
        await ledgers.write(ledger_id, moved, stored.version)
        await asyncio.sleep(LONG_S)
        assert (shown[-1].blocked, shown[-1].waiting) == ({}, (ledger_id,))
        await ended(running)

    play(test)


class LedgerReads(MemoryTree):
    """A session in which something happens at the second reading of a ledger's metadata: after that of the survey."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.reads = 0

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path.startswith(f"{ROOT}/00"):
            self.reads += 1
            if self.reads == 2:
                self.happens()
        return await super().get(path)

    def happens(self) -> None:
        raise NotImplementedError


class Replaced(LedgerReads):
    """A session that another one replaces."""

    @property
    def session_id(self) -> int:
        return super().session_id + (self.reads >= 2)

    def happens(self) -> None:
        """The number of the session follows the reads."""


class Refusing(LedgerReads):
    """A session whose store refuses a read once."""

    def happens(self) -> None:
        raise MetadataAccessDenied("the store refuses the read")


def test_drain_that_lost_its_lock_with_its_session_changes_nothing() -> None:
    """Another process may have the lock by then."""

    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        await register(bench, SPARE)
        shown: list[DrainProgress] = []
        running = asyncio.ensure_future((await drain_of(bench, shown.append)).run())
        await asyncio.sleep(1.5)
        assert "ended with its session" in shown[-1].blocked[str(ledger_id)]
        assert await bookies_of(bench, ledger_id) == (LOST,)
        await ended(running)

    play(test, Replaced)


def test_refusal_of_the_store_ends_a_drain() -> None:
    """Nothing is known of any ledger then, and waiting does not help, unlike in an outage (`test_outages`)."""

    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        await register(bench, SPARE)
        with pytest.raises(MetadataAccessDenied, match="refuses"):
            await (await drain_of(bench)).run()

    play(test, Refusing)


class Damaged(LedgerReads):
    """A session in which the metadata of a ledger are damaged once."""

    def happens(self) -> None:
        raise MetadataFormat("the metadata are damaged")


def test_ledger_whose_metadata_are_damaged_meanwhile_is_blocked_and_no_defect_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        await register(bench, SPARE)
        drain = await drain_of(bench)
        running = asyncio.ensure_future(drain.run())
        await asyncio.sleep(0.3)
        assert drain.progress().blocked == {str(ledger_id): "the metadata are damaged"}
        async with asyncio.timeout(60):
            assert await running == 1

    play(test, Damaged)
    assert not [record for record in caplog.records if record.exc_info]


class Defective(LedgerReads):
    """A session with a defect of ours."""

    def happens(self) -> None:
        raise ValueError("a defect")


def test_defect_blocks_one_ledger_and_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        await register(bench, SPARE)
        async with asyncio.timeout(60):
            assert await (await drain_of(bench)).run() == 1

    play(test, Defective)
    assert [record.exc_info is not None for record in caplog.records if record.exc_info] == [True]


class UnlockFails(MemoryTree):
    """A session whose first lock cannot be removed."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        self.failures = 0

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        if "underreplication/locks" in path and not self.failures:
            self.failures += 1
            raise MetadataError("the store is away")
        await super().delete(path, version)


def test_lock_that_cannot_be_removed_ends_no_drain() -> None:
    """It ends with the session."""

    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        await register(bench, SPARE)
        assert await (await drain_of(bench)).run() == 1
        assert await bookies_of(bench, ledger_id) == (SPARE,)
        assert isinstance(bench.cluster.tree, UnlockFails)
        assert bench.cluster.tree.failures == 1

    play(test, UnlockFails)


class Hanging(LedgerReads):
    """A session in which the metadata of ledgers are not answered after the survey."""

    surveyed = 0

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path.startswith(f"{ROOT}/00"):
            self.surveyed += 1
            if self.surveyed > LEDGERS:
                await asyncio.get_running_loop().create_future()
        return await MemoryTree.get(self, path)


LEDGERS = 7


def test_drain_moves_as_many_ledgers_at_once_as_it_may() -> None:
    """docs/autorecovery.md: a few ledgers at a time, each under its lock."""

    async def test(bench: Bench) -> None:
        for _ in range(LEDGERS):
            await bench.cluster.context.ledgers.create(EMPTY)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(2)
        assert len(await bench.cluster.store.locked()) == OPTIONS.repair.ledgers_at_once
        await ended(running)

    play(test, Hanging)


class CancelledAtLast(MemoryTree):
    """A session in which an operator cancels the drain when the last ledger is moved."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)

    async def set(self, path: str, data: bytes, version: int) -> int:
        stored = await super().set(path, data, version)
        if path.startswith(f"{ROOT}/00"):
            await BookiePlans(self.store.session(), MetadataUri.parse(URI)).end(LOST)
        return stored


def test_drain_that_is_cancelled_when_all_is_moved_is_complete() -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        await register(bench, SPARE)
        assert await (await drain_of(bench)).run() == 1

    play(test, CancelledAtLast)


# ---- what is left ----


WAITING = CopyEstimate(1, 10, 0, True)


def left(*shares: int | CopyEstimate) -> LedgersLeft:
    """Return ledgers of some sizes in bytes."""
    each = [CopyEstimate(1, 10, share, False) if isinstance(share, int) else share for share in shares]
    return LedgersLeft(dict(enumerate(each)))


def test_time_left_is_that_of_what_can_be_copied_now() -> None:
    assert seconds_left(left(70, WAITING), 0, 7) == 10
    assert seconds_left(left(WAITING), 0, 7) is None, "only its writer can end this"
    assert seconds_left(left(70), 140, 7) == 0, "others have moved more than is known to be left"
    assert seconds_left(left(70), 0, 0) is None
    assert seconds_left(left(), 0, 0) == 0


def test_truth_values_in_stored_progress_are_not_numbers() -> None:
    """Anyone who may write to the metadata store can write a plan."""
    stored = {"ledgers": True, "bytes": 7, "waiting": [True, 3]}
    assert progress_of(BookiePlan(LOST, DRAIN, "amy@host", 0, progress=stored)) == DrainProgress(bytes=7, waiting=(3,))


def test_preview_counts_the_bookie_itself_neither_as_a_spare_nor_as_a_target() -> None:
    async def test(bench: Bench) -> None:
        ledgers = bench.cluster.context.ledgers
        await register(bench, LOST)
        await ledgers.create(CLOSED)
        damaged, _ = await ledgers.create(OPENED)
        await ledgers.create(replace(CLOSED, fragments=(Fragment(0, (SPARE,)),)))
        alone = await preview_of(bench.cluster, LOST)
        assert alone == DrainPreview(2, 2, CLOSED.length, growing=1, without_spare=2, targets=())
        await register(bench, SPARE)
        assert await preview_of(bench.cluster, LOST) == replace(alone, without_spare=0, targets=(SPARE,))
        # They were left out, and the drain that ends with their error looked possible.
        await bench.cluster.tree.set(f"{ROOT}/00/0000/L{damaged:04d}", b"?", -1)
        preview = await preview_of(bench.cluster, LOST)
        assert (preview.ledgers, preview.unreadable, preview.is_possible) == (1, 1, False)
        assert "1 ledgers have metadata that cannot be read" in drain_command.shown(LOST, preview)

    play(test)


# ---- plans ----


def played(test: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a test with a cluster whose operators have plans."""

    async def prepared(bench: Bench) -> None:
        await bench.cluster.plans().prepare()
        await test(bench)

    play(prepared)


def test_bookie_that_does_not_run_is_not_drained() -> None:
    """A drain has the bookie itself as a source."""

    async def test(bench: Bench) -> None:
        await register(bench, SPARE)
        await bench.cluster.tree.create(f"{ROOT}/cookies/{LOST}", b"4\n", make_parents=True)
        with pytest.raises(ConfigurationError, match="does not run: start it"):
            await drain_plans.begin(bench.cluster, LOST, "amy@host")
        with pytest.raises(ConfigurationError, match="there is no bookie b:1"):
            await drain_plans.begin(bench.cluster, "b:1", "amy@host")
        assert await bench.cluster.plans().find(LOST) is None

    played(test)


def test_only_writable_bookie_is_not_made_read_only_by_a_drain() -> None:
    """docs/operations.md: a drain does not start if no other bookie accepts writes."""

    async def test(bench: Bench) -> None:
        await register(bench, LOST)
        await register(bench, SPARE, read_only=True)
        with pytest.raises(ConfigurationError, match="no other bookie"):
            await drain_plans.begin(bench.cluster, LOST, "amy@host")
        assert await bench.cluster.plans().find(LOST) is None

    played(test)


@pytest.mark.parametrize("is_over", [True, False])
def test_drain_cannot_begin_until_another_plan_is_over(is_over: bool) -> None:
    async def test(bench: Bench) -> None:
        for bookie in (LOST, SPARE):
            await register(bench, bookie)
        now_ms = wall_clock_ms()
        until_ms = now_ms + (-1000 if is_over else 3_600_000)
        await bench.cluster.plans().set(BookiePlan(LOST, MAINTENANCE, "amy@host", now_ms - 2000, until_ms))
        if is_over:
            assert (await drain_plans.begin(bench.cluster, LOST, "bob@host")).is_new
        else:
            with pytest.raises(ConfigurationError, match="has a plan, maintenance by amy@host"):
                await drain_plans.begin(bench.cluster, LOST, "bob@host")
        plan = await bench.cluster.plans().find(LOST)
        assert plan is not None
        assert plan.kind == (DRAIN if is_over else MAINTENANCE)

    played(test)


def test_drain_that_is_begun_again_keeps_its_rate_unless_another_is_given() -> None:
    async def test(bench: Bench) -> None:
        for bookie in (LOST, SPARE):
            await register(bench, bookie)
        for given, rate in ((7_000, 7_000), (0, 7_000), (9_000, 9_000)):
            assert (
                await drain_plans.begin(bench.cluster, LOST, "amy@host", bytes_per_s=given)
            ).plan.bytes_per_s == rate
            assert (await drain_plans.running(bench.cluster, LOST)).bytes_per_s == rate
        assert (await drain_plans.set_rate(bench.cluster, LOST, 11)).bytes_per_s == 11
        await drain_plans.cancel(bench.cluster, LOST)
        for no_longer in (
            drain_plans.running(bench.cluster, LOST),
            drain_plans.set_rate(bench.cluster, LOST, 12),
            drain_plans.cancel(bench.cluster, LOST),
        ):
            with pytest.raises(ConfigurationError, match="is not being drained"):
                await no_longer

    played(test)
