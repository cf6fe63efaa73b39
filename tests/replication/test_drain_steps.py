"""When a drain tries a ledger again that cannot be moved, and what is left of it; in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment, LedgerState
from bkspark.errors import MetadataFormat, NotEnoughBookies
from bkspark.metadata.bookie_plans import DRAIN
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.paths import ledger_path
from bkspark.metadata.uri import LedgerManager, MetadataUri
from bookie_service.replication.drain import FAILURES_MAX, PAUSE_S, DrainCancelled, DrainProgress
from tests.ledger.in_process import URI
from tests.replication.drains import OtherProcess, drain_of
from tests.replication.paused_workers import EMPTY, OPTIONS, play, register
from tests.replication.worker_parts import ALSO_LOST, CLOSED, LOST, OPENED, SPARE, Bench


def test_drain_that_cannot_move_a_ledger_waits_longer_each_time_and_leaves_it_unlocked() -> None:
    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        drain = await drain_of(bench)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(NotEnoughBookies):
            async with asyncio.timeout(3600):
                await drain.run()
        pauses_s = sum(2**number for number in range(FAILURES_MAX - 1))
        took_s = asyncio.get_running_loop().time() - began_s
        assert pauses_s <= took_s <= pauses_s + FAILURES_MAX * PAUSE_S + 1
        assert await bench.cluster.store.locked() == set()
        assert (await bench.metadata(ledger_id)).last_fragment.bookies == (LOST,)

    play(test)


def test_drain_moves_a_ledger_as_soon_as_there_is_a_bookie_for_it() -> None:
    async def test(bench: Bench) -> None:
        ledger_id, _ = await bench.cluster.context.ledgers.create(EMPTY)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(0.5)
        await register(bench, SPARE)
        async with asyncio.timeout(3600):
            assert await running == 1
        assert await bench.cluster.store.locked() == set()
        assert (await bench.metadata(ledger_id)).last_fragment.bookies == (SPARE,)

    play(test)


class SlowStore(MemoryTree):
    """A session that takes long to list nodes."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)

    async def children(self, path: str) -> list[str]:
        await asyncio.sleep(3.0)
        return await super().children(path)


def test_continued_drain_shows_what_was_stored_until_it_has_read_what_is_left() -> None:
    """It showed `5 of 5 ledgers` while it read the metadata."""

    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        shown: list[DrainProgress] = []
        earlier = {"ledgers": 5, "ledgers_left": 2, "bytes": 900, "bytes_left": 300, "bytes_per_s": 7}
        drain = await drain_of(bench, shown.append, **earlier, seconds_left=42, copied_bytes=600)
        await register(bench, SPARE)
        assert await drain.run() == 1
        assert shown[0] == DrainProgress(5, 2, 900, 300)
        assert (shown[-1].ledgers, shown[-1].ledgers_left, shown[-1].seconds_left) == (5, 0, 0)

    play(test, SlowStore)


@pytest.mark.parametrize("closes_open", [False, True])
def test_open_ledger_is_closed_only_if_allowed_and_when_its_writer_was_silent_for_the_grace_period(
    closes_open: bool,
) -> None:
    grace_s = OPTIONS.repair.grace_s

    async def test(bench: Bench) -> None:
        ledgers = bench.cluster.context.ledgers
        ledger_id, stored = await ledgers.create(OPENED)
        await register(bench, SPARE)
        shown: list[DrainProgress] = []
        drain = await drain_of(bench, shown.append, closes_open=closes_open)
        running = asyncio.ensure_future(drain.run())
        await asyncio.sleep(0.8 * grace_s)
        # The writer lives: it has gone on with a new fragment, in which the bookie is, too.
        grown = replace(OPENED, fragments=(Fragment(0, (ALSO_LOST,)), Fragment(5, (LOST,))))
        await ledgers.write(ledger_id, grown, stored.version)
        await asyncio.sleep(0.8 * grace_s)
        assert (await bench.metadata(ledger_id)).state is LedgerState.OPEN
        assert shown[-1].waiting == (ledger_id,)
        await asyncio.sleep(0.8 * grace_s)
        assert ((await bench.metadata(ledger_id)).state is LedgerState.OPEN) == (not closes_open)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)


def test_drain_follows_the_rate_of_its_plan_and_ends_with_the_plan() -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(OPENED)
        await register(bench, SPARE)
        drain = await drain_of(bench)
        running = asyncio.ensure_future(drain.run())
        await asyncio.sleep(2)
        assert drain._budget.rate.bytes_per_s == OPTIONS.repair.bytes_per_s
        plans = bench.cluster.plans()
        await plans.update(LOST, DRAIN, lambda plan: replace(plan, bytes_per_s=7_000))
        await asyncio.sleep(2)
        assert drain._budget.rate.bytes_per_s == 7_000
        await plans.end(LOST)
        with pytest.raises(DrainCancelled):
            async with asyncio.timeout(10):
                await running

    play(test)


def test_drain_moves_what_it_can_and_ends_with_the_error_of_metadata_that_cannot_be_read() -> None:
    async def test(bench: Bench) -> None:
        ledgers = bench.cluster.context.ledgers
        bad, _ = await ledgers.create(EMPTY)
        good, _ = await ledgers.create(EMPTY)
        path = MetadataUri.parse(URI).root + ledger_path(bad, LedgerManager.HIERARCHICAL)
        await bench.cluster.tree.set(path, b"damaged", -1)
        await register(bench, SPARE)
        with pytest.raises(MetadataFormat, match=f"ledger {bad}"):
            await (await drain_of(bench)).run()
        assert (await bench.metadata(good)).last_fragment.bookies == (SPARE,)

    play(test)


def test_time_left_counts_what_another_process_has_moved_and_its_rate() -> None:
    """Each process showed the time that it alone would need for what was left when it began: up to twice too much."""

    async def test(bench: Bench) -> None:
        assert isinstance(bench.cluster.tree, MemoryTree)
        other, ledgers = OtherProcess(bench.cluster.tree.store), bench.cluster.context.ledgers
        created = [await ledgers.create(CLOSED) for _ in range(4)]
        for ledger_id, _ in created:
            assert await other.locks.lock(ledger_id, "another")
        await register(bench, SPARE)
        shown: list[DrainProgress] = []
        running = asyncio.ensure_future((await drain_of(bench, shown.append)).run())
        await asyncio.sleep(1.5)
        assert (shown[-1].ledgers_left, shown[-1].bytes_left, shown[-1].seconds_left) == (4, 280, None)
        await other.report(0, 7, times=4)
        assert (shown[-1].bytes_per_s, shown[-1].seconds_left) == (7, 280 // 7)
        await other.report(2, 7, times=3)
        assert (shown[-1].ledgers_left, shown[-1].bytes_left, shown[-1].seconds_left) == (2, 140, 140 // 7)
        # This process finds that these two no longer name the bookie: they are not counted twice.
        for ledger_id, stored in created[:2]:
            await ledgers.write(ledger_id, replace(CLOSED, fragments=(Fragment(0, (SPARE,)),)), stored.version)
            await other.locks.unlock(ledger_id)
        await other.report(2, 7, times=4)
        assert (shown[-1].ledgers_left, shown[-1].bytes_left, shown[-1].seconds_left) == (2, 140, 140 // 7)
        # It was killed: nothing is copied any more.
        await asyncio.sleep(20)
        assert (shown[-1].bytes_per_s, shown[-1].seconds_left) == (0, None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)
