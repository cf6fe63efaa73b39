"""What an auditor does when it is elected, loses the election, or must wait; in virtual time, without bookies."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import SessionExpired
from bkspark.metadata.bookie_plans import MAINTENANCE, BookiePlan
from bkspark.wall_clock import wall_clock_ms
from tests.replication.auditors import DELAY_S, World, play
from tests.replication.worker_parts import ALSO_LOST, LOST


def test_auditor_that_is_elected_again_gives_lost_bookies_the_whole_delay() -> None:
    """While another process was the auditor, it did not see them come and go."""

    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        other = await world.process(lost_bookie_delay_s=DELAY_S)
        assert await one.auditor.refresh() == DELAY_S
        assert await other.auditor.refresh() is None
        world.expire(one)
        assert await one.auditor.refresh() is None
        await asyncio.sleep(60)
        await other.client.close()
        assert await one.auditor.refresh() == DELAY_S
        await asyncio.sleep(DELAY_S)
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


@pytest.mark.parametrize("why", ["another is elected", "autorecovery is disabled"])
def test_auditor_that_must_not_audit_ends_its_check_of_ledgers(why: str) -> None:
    async def test(world: World) -> None:
        one = await world.process(ledger_check_interval_s=3600.0, lost_bookie_delay_s=DELAY_S)
        other = await world.process()
        await one.auditor.refresh()
        one.tree.hangs = True
        assert await other.auditor.refresh() is None
        assert one.auditor._checking is not None
        await asyncio.sleep(1)
        checking = one.auditor._checking
        assert not checking.done()
        if why == "another is elected":
            world.expire(one)
        else:
            await one.cluster.store.set_enabled(False)
        await one.auditor.refresh()
        await asyncio.wait([checking], timeout=1)
        assert checking.cancelled()

    play(test)


def test_audit_ends_with_the_election() -> None:
    """The next auditor may know that the bookie has come back."""

    async def test(world: World) -> None:
        one = await world.process()
        other = await world.process()
        assert await one.auditor.refresh() is None
        assert await one.listed() == [world.ledger_id]
        work = await one.cluster.store.find(world.ledger_id)
        assert work is not None
        await one.cluster.store.finish(work)
        await other.auditor.refresh()
        world.expire(one)
        with pytest.raises(SessionExpired, match="not the auditor any more"):
            await one.auditor.audit([LOST], one.auditor.check_elected)
        assert await one.listed() == []

    play(test)


def test_check_of_ledgers_that_ends_after_the_election_is_not_noted() -> None:
    """The next auditor would not check for a week what this one may have missed."""

    async def test(world: World) -> None:
        one, other = await world.process(), await world.process()
        await one.auditor.refresh()
        await other.auditor.refresh()
        world.expire(one)
        with pytest.raises(SessionExpired, match="not the auditor any more"):
            await one.auditor.check_ledgers()
        assert await other.cluster.store.all_checked_ms() is None

    play(test)


def test_auditor_looks_again_when_the_first_maintenance_ends() -> None:
    async def test(world: World) -> None:
        one = await world.process()
        plans, now_ms = one.cluster.plans(), wall_clock_ms()
        await plans.prepare()
        for bookie, hours in ((LOST, 1), (ALSO_LOST, 2)):
            await plans.set(BookiePlan(bookie, MAINTENANCE, "an operator", now_ms, now_ms + hours * 3_600_000))
        wait_s = await one.auditor.refresh()
        assert wait_s is not None
        assert 0 < wait_s <= 3600
        assert await one.listed() == [], "the bookie will be back"
        await plans.end(LOST)
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


def test_delay_that_is_written_again_asks_for_an_audit_now_and_an_old_one_does_not() -> None:
    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        for waited_s in range(3):
            assert await one.auditor.refresh() == DELAY_S - waited_s
            await asyncio.sleep(1)
        assert await one.listed() == []
        await one.cluster.store.set_lost_bookie_recovery_delay_s(int(DELAY_S))
        await one.auditor.refresh()
        assert await one.listed() == [world.ledger_id]

    play(test)


def test_auditor_that_ends_watches_nothing_any_more() -> None:
    async def test(world: World) -> None:
        one = await world.process(lost_bookie_delay_s=DELAY_S)
        await one.cluster.context.watcher.replacements()
        before = len(world.store.watched)
        running = asyncio.ensure_future(one.auditor.run())
        await asyncio.sleep(1)
        assert len(world.store.watched) > before
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(world.store.watched) == before

    play(test)
