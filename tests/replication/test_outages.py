"""A drain, and the copying from a stopped bookie, go on after an outage of the metadata store; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.errors import MetadataError, SessionExpired
from bookie_service.replication.operations import move_away
from bookie_service.replication.outages import CALM_S, OUTAGE_S_MAX, REGISTERED_S_MAX, through_outages
from tests.replication.drains import drain_of
from tests.replication.paused_workers import EMPTY, OPTIONS, AwayTree, play, register
from tests.replication.worker_parts import LOST, SPARE, Bench


def away(bench: Bench) -> AwayTree:
    assert isinstance(bench.cluster.tree, AwayTree)
    return bench.cluster.tree


async def restarted(bench: Bench, seconds: float) -> None:
    """Let the store be away. Then all sessions and registrations have expired; bookies register again later."""
    tree = away(bench)
    tree.is_away = True
    await asyncio.sleep(seconds)
    tree.store.expire(tree)
    tree.is_away = False
    await asyncio.sleep(10)


def test_drain_goes_on_when_the_metadata_store_was_away_and_all_sessions_have_expired() -> None:
    """It ended with an error when ZooKeeper was restarted; bookies were said not to run."""

    async def test(bench: Bench) -> None:
        ids = [(await bench.cluster.context.ledgers.create(EMPTY))[0] for _ in range(3)]
        drain = await drain_of(bench)
        running = asyncio.ensure_future(drain.run())
        await asyncio.sleep(0.5)
        await restarted(bench, 120)
        await register(bench, LOST, read_only=True)
        await register(bench, SPARE)
        async with asyncio.timeout(60):
            assert await running == len(ids)
        for ledger_id in ids:
            assert (await bench.metadata(ledger_id)).last_fragment.bookies == (SPARE,)
        assert await bench.cluster.store.locked() == set()

    play(test, AwayTree)


def test_drain_ends_with_the_error_of_an_outage_that_is_too_long() -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        drain = await drain_of(bench)
        running, began_s = asyncio.ensure_future(drain.run()), asyncio.get_running_loop().time()
        await asyncio.sleep(0.5)
        away(bench).is_away = True
        with pytest.raises(MetadataError, match="does not answer"):
            async with asyncio.timeout(2 * OUTAGE_S_MAX):
                await running
        assert OUTAGE_S_MAX <= asyncio.get_running_loop().time() - began_s <= OUTAGE_S_MAX + 5

    play(test, AwayTree)


def test_copying_from_a_stopped_bookie_goes_on_when_the_metadata_store_was_away() -> None:
    async def test(bench: Bench) -> None:
        ids = [(await bench.cluster.context.ledgers.create(EMPTY))[0] for _ in range(3)]
        said: list[str] = []
        running = asyncio.ensure_future(move_away(bench.cluster, LOST, OPTIONS, said.append))
        await asyncio.sleep(0.1)
        away(bench).is_away = True
        await asyncio.sleep(120)
        away(bench).is_away = False
        await register(bench, SPARE)
        async with asyncio.timeout(60):
            assert await running == len(ids)
        assert sum("waits for the metadata store" in line for line in said) == 1

    play(test, AwayTree)


def play_work(work: Callable[[], Awaitable[None]]) -> list[str]:
    """Do work through outages; return what was said."""
    said: list[str] = []

    async def test(bench: Bench) -> None:
        await through_outages(bench.cluster.context.registry, work, said.append)

    play(test)
    return said


def test_each_outage_after_a_calm_time_has_the_whole_limit() -> None:
    outages = 0

    async def work() -> None:
        nonlocal outages
        outages += 1
        await asyncio.sleep(CALM_S)
        if outages <= 2 * OUTAGE_S_MAX / CALM_S:
            raise SessionExpired("the session expired")

    said = play_work(work)
    assert sum("waits" in line for line in said) == outages - 1


def test_errors_that_are_answers_of_the_store_are_raised_at_once() -> None:
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        error = MetadataError("no such cluster")
        error.is_outage = False
        raise error

    with pytest.raises(MetadataError, match="no such cluster"):
        play_work(work)
    assert tries == 1


def test_bookies_that_do_not_come_back_after_an_outage_delay_the_work_only_for_a_while() -> None:
    async def test(bench: Bench) -> None:
        await register(bench, SPARE)
        registry, loop = bench.cluster.context.registry, asyncio.get_running_loop()
        ends: list[float] = []

        async def work() -> None:
            ends.append(loop.time())
            if len(ends) == 1:
                await registry.unregister(SPARE)
                raise SessionExpired("the session expired")

        await through_outages(registry, work, lambda _: None)
        assert REGISTERED_S_MAX <= ends[1] - ends[0] <= REGISTERED_S_MAX + 5

    play(test)
