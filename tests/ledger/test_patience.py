"""How long a follower bears temporary failures, and the pauses between its tries; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.errors import BookKeeperError, NoSuchLedger, ReadFailed
from bkspark.ledger.patience import PAUSE_S_MAX, PAUSE_S_MIN, Patience
from tests.simulation.virtual_loop import run_in_virtual_time

PASSING = ReadFailed("too few bookies answered")


def play(test: Callable[[], Awaitable[None]]) -> None:
    run_in_virtual_time(test())


def patience(limit_s: float) -> Patience:
    return Patience(limit_s, asyncio.get_running_loop().time)


async def borne(waits: Patience, error: BookKeeperError = PASSING) -> float:
    """Bear a failure; return how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await waits.bear(error)
    return round(loop.time() - began, 6)


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    async def test() -> None:
        waits = patience(3600.0)
        doubling = [PAUSE_S_MIN, 2 * PAUSE_S_MIN, 4 * PAUSE_S_MIN, 8 * PAUSE_S_MIN, 16 * PAUSE_S_MIN]
        assert [await borne(waits) for _ in range(7)] == [*doubling, PAUSE_S_MAX, PAUSE_S_MAX]
        waits.succeeded()
        assert [await borne(waits) for _ in range(2)] == doubling[:2]

    play(test)


def test_limit_counts_from_the_first_failure_since_the_last_success() -> None:
    async def test() -> None:
        waits = patience(10.0)
        await asyncio.sleep(100.0)
        await borne(waits)
        await asyncio.sleep(9.0)
        await borne(waits)
        waits.succeeded()
        await asyncio.sleep(9.0)
        await borne(waits)
        await asyncio.sleep(10.0)
        with pytest.raises(ReadFailed) as raised:
            await waits.bear(PASSING)
        assert raised.value is PASSING

    play(test)


def test_permanent_error_and_every_error_after_the_end_are_raised_at_once() -> None:
    async def test() -> None:
        waits = patience(10.0)
        with pytest.raises(NoSuchLedger):
            await waits.bear(NoSuchLedger("it was deleted"))
        await borne(waits)
        waits.exhaust()
        began = asyncio.get_running_loop().time()
        with pytest.raises(ReadFailed):
            await waits.bear(PASSING)
        assert asyncio.get_running_loop().time() == began
        with pytest.raises(ReadFailed):
            await patience(0.0).bear(PASSING)

    play(test)
