"""What a drain shows and stores of its progress, alone and beside other processes; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from bkspark.core.metadata import Fragment
from bkspark.metadata.bookie_plans import DRAIN, BookiePlan
from bkspark.metadata.memory import MemoryTree
from bookie_service.replication.drain import REPORTED_MAX, Drain, DrainProgress, progress_of
from tests.replication.drains import OtherProcess, drain_of
from tests.replication.paused_workers import EMPTY, play, register
from tests.replication.worker_parts import CLOSED, LOST, OPENED, SPARE, Bench

SIZE = CLOSED.length


class Shared:
    """A drain beside another process that has the locks of some ledgers."""

    def __init__(self, bench: Bench, shown: list[DrainProgress], drain: Drain, ledger_ids: list[int]) -> None:
        assert isinstance(bench.cluster.tree, MemoryTree)
        self.bench = bench
        self.shown = shown
        self.drain = drain
        self.ledger_ids = ledger_ids
        self.other = OtherProcess(bench.cluster.tree.store)

    @property
    def last(self) -> DrainProgress:
        return self.shown[-1]


def shared(test: Callable[[Shared], Awaitable[None]], ledgers: int, **stored: object) -> None:
    """Run a test while a drain runs: another process has the locks of all its ledgers."""

    async def play_in(bench: Bench) -> None:
        created = [(await bench.cluster.context.ledgers.create(CLOSED))[0] for _ in range(ledgers)]
        await register(bench, SPARE)
        shown: list[DrainProgress] = []
        one = Shared(bench, shown, await drain_of(bench, shown.append, **stored), created)
        for ledger_id in created:
            assert await one.other.locks.lock(ledger_id, "another")
        running = asyncio.ensure_future(one.drain.run())
        try:
            await test(one)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    play(play_in)


def test_what_another_process_moves_from_the_beginning_on_is_counted() -> None:
    """Also if it does so before this one has shown anything."""

    async def test(one: Shared) -> None:
        await asyncio.sleep(0.5)
        await one.other.report(2, 0, times=2)
        assert (one.last.ledgers, one.last.ledgers_left) == (4, 2)
        assert (one.last.bytes, one.last.bytes_left) == (4 * SIZE, 2 * SIZE)

    before = {"ledgers": 0, "bytes": 0, "bytes_per_s": 0, "at_ms": 0}
    shared(test, 4, processes={"another": before})


def test_one_ledger_is_left_until_this_process_has_seen_that_none_is() -> None:
    async def test(one: Shared) -> None:
        await asyncio.sleep(1.5)
        await one.other.report(0, 0, times=2)
        await one.other.report(9, 0, times=2)
        assert (one.last.ledgers, one.last.ledgers_left) == (2, 1)
        assert (one.last.bytes, one.last.bytes_left) == (2 * SIZE, 0)

    shared(test, 2)


def test_ledger_that_was_deleted_does_not_count_as_moved() -> None:
    async def test(one: Shared) -> None:
        await asyncio.sleep(1.5)
        await one.other.report(0, 0, times=2)
        await one.other.report(2, 0, times=2)
        assert one.last.ledgers_left == 2
        deleted = one.ledger_ids[0]
        await one.bench.cluster.context.ledgers.delete(deleted)
        await one.other.locks.unlock(deleted)
        await one.other.report(2, 0, times=2)
        assert (one.last.ledgers, one.last.ledgers_left, one.drain.moved) == (4, 1, 0)

    shared(test, 4)


def test_list_that_is_read_again_contains_nothing_that_others_have_moved() -> None:
    """A report counts ledgers of the last list alone."""

    async def test(one: Shared) -> None:
        await asyncio.sleep(1.5)
        await one.other.report(0, 0, times=2)
        await one.other.report(3, 0, times=2)
        ledgers = one.bench.cluster.context.ledgers
        later, _ = await ledgers.create(CLOSED)
        assert await one.other.locks.lock(later, "another")
        (first,) = one.ledger_ids
        stored = await ledgers.read(first)
        await ledgers.write(first, replace(CLOSED, fragments=(Fragment(0, (SPARE,)),)), stored.version)
        await one.other.locks.unlock(first)
        await one.other.report(3, 0, times=4)
        assert (one.last.ledgers_left, one.last.bytes_left) == (1, SIZE)

    shared(test, 1)


@pytest.mark.parametrize("metadata", [EMPTY, OPENED], ids=["blocked", "waiting"])
def test_progress_names_some_of_the_ledgers_that_are_not_moved(metadata: object) -> None:
    async def test(bench: Bench) -> None:
        created = [(await bench.cluster.context.ledgers.create(metadata))[0] for _ in range(REPORTED_MAX + 5)]  # type: ignore[arg-type]
        shown: list[DrainProgress] = []
        running = asyncio.ensure_future((await drain_of(bench, shown.append)).run())
        await asyncio.sleep(1.2)
        named = [str(ledger_id) for ledger_id in created[:REPORTED_MAX]]
        assert list(shown[-1].blocked) == (named if metadata is EMPTY else [])
        assert [str(ledger_id) for ledger_id in shown[-1].waiting] == (named if metadata is OPENED else [])
        assert shown[-1].ledgers_left == REPORTED_MAX + 5
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(test)


def test_total_does_not_fall_while_ledgers_are_moved_and_the_plan_has_the_end() -> None:
    async def test(bench: Bench) -> None:
        assert isinstance(bench.cluster.tree, MemoryTree)
        other = OtherProcess(bench.cluster.tree.store)
        first, _ = await bench.cluster.context.ledgers.create(EMPTY)
        await bench.cluster.context.ledgers.create(EMPTY)
        assert await other.locks.lock(first, "another")
        await register(bench, SPARE)
        shown: list[DrainProgress] = []
        running = asyncio.ensure_future((await drain_of(bench, shown.append)).run())
        await asyncio.sleep(3)
        assert (shown[-1].ledgers, shown[-1].ledgers_left) == (2, 1)
        await other.locks.unlock(first)
        async with asyncio.timeout(60):
            assert await running == 2
        plan = await bench.cluster.plans().find(LOST)
        assert plan is not None
        assert (progress_of(plan).ledgers, progress_of(plan).ledgers_left) == (2, 0)

    play(test)


def test_stored_progress_that_is_not_of_its_form_counts_as_not_reported() -> None:
    """Anyone who may write to the metadata store can write a plan."""
    stored = {"ledgers": -1, "bytes": 1 << 63, "bytes_left": (1 << 63) - 1, "blocked": {"7": 7, "8": "no spare"}}
    expected = DrainProgress(bytes_left=(1 << 63) - 1, blocked={"8": "no spare"})
    assert progress_of(BookiePlan(LOST, DRAIN, "amy@host", 0, progress=stored)) == expected
