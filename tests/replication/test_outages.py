"""A drain, and the copying from a stopped bookie, go on after an outage of the metadata store; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from bkspark.errors import MetadataError, SessionExpired
from bkspark.ledger import Cluster
from bookie_service.replication.cluster_commands import ClusterCommands
from bookie_service.replication.drain import DrainCancelled
from bookie_service.replication.operations import move_away
from bookie_service.replication.outages import OUTAGE_S_MAX, REGISTERED_S_MAX, RETRY_S, through_outages
from tests.ledger.in_process import URI
from tests.replication.drains import drain_of
from tests.replication.paused_workers import EMPTY, OPTIONS, AwayTree, play, register
from tests.replication.worker_parts import LOST, SPARE, Bench

WAITS = f"waits for the metadata store, up to {OUTAGE_S_MAX:g} s: the session expired"
GOES_ON = "is tried again: the metadata store answers"


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


def test_drain_waits_for_its_bookie_as_long_as_for_the_metadata_store() -> None:
    """A bookie that registered again after more than a minute was said not to run."""

    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(0.5)
        await restarted(bench, 20)
        await asyncio.sleep(2 * REGISTERED_S_MAX)
        await register(bench, LOST, read_only=True)
        await register(bench, SPARE)
        async with asyncio.timeout(2 * REGISTERED_S_MAX):
            assert await running == 1

    play(test, AwayTree)


def test_drain_waits_for_its_bookie_after_an_outage_that_meets_its_first_look() -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        drain = await drain_of(bench)
        away(bench).is_away = True
        running = asyncio.ensure_future(drain.run())
        await restarted(bench, 5)
        await register(bench, SPARE)
        await register(bench, LOST, read_only=True)
        async with asyncio.timeout(60):
            assert await running == 1

    play(test, AwayTree)


def test_drain_whose_bookie_does_not_come_back_after_an_outage_ends_at_the_limit() -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(0.5)
        await restarted(bench, 20)
        with pytest.raises(MetadataError, match=f"after an outage .* bookie {LOST}"):
            async with asyncio.timeout(OUTAGE_S_MAX + 2 * REGISTERED_S_MAX):
                await running

    play(test, AwayTree)


def test_drain_can_be_cancelled_while_its_bookie_is_not_registered_again() -> None:
    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        running = asyncio.ensure_future((await drain_of(bench)).run())
        await asyncio.sleep(0.5)
        await restarted(bench, 20)
        await bench.cluster.plans().end(LOST)
        with pytest.raises(DrainCancelled):
            async with asyncio.timeout(2 * REGISTERED_S_MAX):
                await running

    play(test, AwayTree)


def test_drain_by_http_says_once_that_it_waits_and_once_that_it_goes_on() -> None:
    """The operation showed its last count for ten minutes: only the log had these lines."""

    async def test(bench: Bench) -> None:
        await bench.cluster.context.ledgers.create(EMPTY)
        await drain_of(bench)
        said: list[str] = []
        commands = ClusterCommands(URI, "a bookie", OPTIONS, Cluster(URI, tree=bench.cluster.tree))
        running = asyncio.ensure_future(commands.drain(LOST, said.append, closes_open=False))
        await asyncio.sleep(0.5)
        away(bench).is_away = True
        await asyncio.sleep(120)
        away(bench).is_away = False
        await register(bench, SPARE)
        async with asyncio.timeout(60):
            assert await running == 1
        which = f"the drain of bookie {LOST}"
        waits = f"{which} waits for the metadata store, up to {OUTAGE_S_MAX:g} s: the store does not answer"
        assert [line for line in said if line.startswith(which)] == [waits, f"{which} {GOES_ON}"]

    play(test, AwayTree)


def test_copying_from_a_bookie_that_serves_is_refused_and_not_waited_for() -> None:
    async def test(bench: Bench) -> None:
        await register(bench, LOST)
        with pytest.raises(MetadataError, match="is serving: stop it first") as refused:
            await move_away(bench.cluster, LOST, OPTIONS, lambda _: None)
        assert not refused.value.is_outage

    play(test)


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
        which = f"the copying from {LOST}"
        (waits, goes_on) = [line for line in said if line.startswith(which)]
        assert waits.startswith(f"{which} waits for the metadata store")
        assert goes_on == f"{which} {GOES_ON}"

    play(test, AwayTree)


def play_work(work: Callable[[], Awaitable[None]], done: Callable[[], int] = lambda: 0) -> list[str]:
    """Do work through outages; return what was said, also if an outage was too long."""
    said: list[str] = []

    async def test(bench: Bench) -> None:
        with contextlib.suppress(SessionExpired):
            await through_outages(bench.cluster.context.registry, work, done, said.append)

    play(test)
    return said


def test_each_outage_after_work_was_done_has_the_whole_limit() -> None:
    outages = 0

    async def work() -> None:
        nonlocal outages
        await asyncio.sleep(OUTAGE_S_MAX / 4)
        outages += 1
        if outages <= 8:
            raise SessionExpired("the session expired")

    assert play_work(work, lambda: outages) == [WAITS, GOES_ON] * 8
    assert outages == 9


@pytest.mark.parametrize("try_s", [0.0, 61.0])
def test_work_that_gets_nothing_done_ends_at_the_limit_however_long_a_try_takes(try_s: float) -> None:
    """Tries of more than a minute were repeated for ever, and short ones said each second that the work goes on."""
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(try_s)
        raise SessionExpired("the session expired")

    assert play_work(work) == [WAITS, GOES_ON]
    assert OUTAGE_S_MAX <= (tries - 1) * (try_s + RETRY_S) <= OUTAGE_S_MAX + try_s + RETRY_S


def test_errors_that_are_answers_of_the_store_are_raised_at_once() -> None:
    tries = 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        raise MetadataError.answer("no such cluster")

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

        await through_outages(registry, work, lambda: 0, lambda _: None)
        assert REGISTERED_S_MAX <= ends[1] - ends[0] <= REGISTERED_S_MAX + 5

    play(test)
