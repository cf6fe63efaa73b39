"""A bookie follows what operators plan for it: at its start, at each change, and to the end of the plan's time."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import replace

import pytest

from bkspark.metadata.bookie_plans import DRAIN, BookiePlan, DamagedPlan
from bookie_service.cluster.plan_follower import PlanFollower
from tests.bookie.plans import ID, PLAN, START_MS, Bench, run


def test_plan_that_is_there_at_the_start_is_followed_before_the_start_ends() -> None:
    async def test(bench: Bench) -> None:
        await bench.plans.set(PLAN)
        await bench.follower.start()
        assert bench.seen == [(0.0, PLAN)]
        await asyncio.sleep(600)
        assert bench.seen == [(0.0, PLAN)], "it is followed once"

    run(test)


def test_change_is_followed_at_once_and_so_is_its_end() -> None:
    async def test(bench: Bench) -> None:
        await bench.follower.start()
        await asyncio.sleep(5)
        await bench.plans.set(PLAN)
        await asyncio.sleep(5)
        drain = replace(PLAN, kind=DRAIN)
        await bench.plans.set(drain)
        await asyncio.sleep(5)
        await bench.plans.end(ID)
        await asyncio.sleep(5)
        assert bench.seen == [(5.0, PLAN), (10.0, drain), (15.0, None)]

    run(test)


def test_missed_change_lasts_for_a_minute_at_most() -> None:
    async def test(bench: Bench) -> None:
        await bench.follower.start()
        await asyncio.sleep(1)
        bench.store.lose_watches()
        await bench.plans.set(PLAN)
        await asyncio.sleep(58)
        assert bench.seen == []
        await asyncio.sleep(3)
        assert bench.seen == [(60.0, PLAN)]

    run(test)


def test_plan_ends_when_its_time_is_over() -> None:
    async def test(bench: Bench) -> None:
        timed = replace(PLAN, until_ms=START_MS + 90_500)
        await bench.plans.set(timed)
        await bench.follower.start()
        await asyncio.sleep(200)
        assert bench.seen == [(0.0, timed), (90.5, None)]
        over = replace(PLAN, until_ms=START_MS + 100_000)
        await bench.plans.set(over)
        await asyncio.sleep(100)
        assert len(bench.seen) == 2, "a plan whose time is over is none"

    run(test)


def test_store_that_fails_leaves_the_last_plan_in_force_up_to_its_end() -> None:
    async def test(bench: Bench) -> None:
        timed = replace(PLAN, until_ms=START_MS + 30_000)
        await bench.plans.set(timed)
        await bench.follower.start()
        await asyncio.sleep(1)
        bench.tree.fails = True
        await bench.plans.end(ID)
        await asyncio.sleep(28)
        assert bench.seen == [(0.0, timed)]
        await asyncio.sleep(2)
        assert [plan for _, plan in bench.seen] == [timed, None]

    run(test)


def test_store_that_fails_is_asked_every_second_until_it_answers() -> None:
    async def test(bench: Bench) -> None:
        bench.tree.fails = True
        await bench.follower.start()
        await asyncio.sleep(10)
        await bench.plans.set(PLAN)
        bench.tree.fails = False
        await asyncio.sleep(2)
        unknown = DamagedPlan(ID, "the plan for this bookie is not known yet: the metadata store does not answer")
        assert [plan for _, plan in bench.seen] == [unknown, PLAN]
        # The watch was made, too.
        await bench.plans.end(ID)
        await asyncio.sleep(0.5)
        assert [plan for _, plan in bench.seen] == [unknown, PLAN, None]

    run(test)


def test_store_that_fails_for_long_has_a_line_a_minute_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Each attempt had a line: as many as there are seconds, on each bookie."""
    caplog.set_level(logging.INFO)

    async def test(bench: Bench) -> None:
        bench.tree.fails = True
        await bench.follower.start()
        await asyncio.sleep(301)
        bench.tree.fails = False
        await asyncio.sleep(2)

    run(test)
    why = "the plan for this bookie cannot be followed, the last one stays: the metadata store does not answer"
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("bookie_service")]
    assert lines[0] == why
    assert len(lines) == 7
    assert all(re.fullmatch(f"{re.escape(why)}; [0-9]+ failures since the last line", line) for line in lines[1:-1])
    assert lines[-1] == "the plan for this bookie is followed again"


def test_plan_that_cannot_be_read_is_left_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        await bench.plans.set(PLAN)
        path = f"/ledgers/underreplication/plans/{ID}"
        await bench.follower.start()
        await asyncio.sleep(1)
        await bench.store.session().set(path, b"{", -1)
        reads = bench.tree.reads
        await asyncio.sleep(50)
        assert bench.seen == [(0.0, PLAN)]
        assert bench.tree.reads - reads < 5, "it is not asked for every second"
        assert "the last one stays" in caplog.text
        await bench.plans.end(ID)
        await asyncio.sleep(1)
        assert [plan for _, plan in bench.seen] == [PLAN, None]

    run(test)


def test_plan_that_cannot_be_read_at_the_start_is_followed_as_such_until_it_changes() -> None:
    """Before it started, the bookie may have been drained or maintained: it must not take adds as if it had no plan."""

    async def test(bench: Bench) -> None:
        await bench.plans.set(PLAN)
        await bench.store.session().set(f"/ledgers/underreplication/plans/{ID}", b"{", -1)
        await bench.follower.start()
        ((at_s, plan),) = bench.seen
        assert isinstance(plan, DamagedPlan)
        assert (at_s, plan.bookie) == (0.0, ID)
        assert f"`bkspark cluster plans --end {ID}` removes it" in plan.problem
        await asyncio.sleep(150)
        assert len(bench.seen) == 1, "it is followed once"
        await bench.plans.end(ID)
        await asyncio.sleep(1)
        assert bench.seen[1:] == [(150.0, None)]

    run(test)


@pytest.mark.parametrize(("error", "pause_s"), [(OSError("no space"), 1), (RuntimeError("a defect"), 60)], ids=str)
def test_plan_that_the_bookie_could_not_follow_is_tried_again(error: Exception, pause_s: float) -> None:
    """The status of a bookie is written to its disks, which may be full. A defect does not end the following."""

    async def test(bench: Bench) -> None:
        await bench.follower.start()
        bench.error = error
        await bench.plans.set(PLAN)
        await asyncio.sleep(3)
        assert bench.seen == []
        bench.error = None
        await asyncio.sleep(pause_s + 0.5)
        assert [plan for _, plan in bench.seen] == [PLAN]

    run(test)


def test_follower_that_stopped_follows_nothing_and_watches_nothing() -> None:
    async def test(bench: Bench) -> None:
        await bench.follower.start()
        await asyncio.sleep(1)
        await bench.follower.stop()
        await bench.plans.set(PLAN)
        await asyncio.sleep(100)
        assert bench.seen == []
        assert bench.store.watched == []

    run(test)


def test_follower_that_was_not_started_can_be_stopped() -> None:
    async def test(bench: Bench) -> None:
        assert bench.seen == []

    run(test)


def test_time_of_a_plan_is_the_time_of_day() -> None:
    async def test(bench: Bench) -> None:
        now = int(time.time() * 1000)
        seen: list[BookiePlan | DamagedPlan | None] = []
        for until_ms, expected in ((now - 60_000, 0), (now + 3_600_000, 1)):
            await bench.plans.set(replace(PLAN, until_ms=until_ms))
            follower = PlanFollower(bench.plans, ID, seen.append)
            await follower.start()
            assert len(seen) == expected
            await follower.stop()

    run(test)
