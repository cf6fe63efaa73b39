"""Calls that are made a limited number at a time."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.errors import NoSuchLog
from bkspark.tasks import each_of


def test_results_are_in_the_order_of_the_items_and_few_calls_run_at_a_time() -> None:
    running: list[int] = []
    most: list[int] = []

    async def call(number: int) -> int:
        running.append(number)
        most.append(len(running))
        for _ in range(7 - number):
            await asyncio.sleep(0)
        running.remove(number)
        return number * 10

    assert asyncio.run(each_of(call, range(7), 3)) == [0, 10, 20, 30, 40, 50, 60]
    assert max(most) == 3


def test_error_is_raised_when_the_calls_that_began_with_the_failed_one_have_ended() -> None:
    ended: list[int] = []

    async def call(number: int) -> None:
        if number == 1:
            raise NoSuchLog("gone")
        await asyncio.sleep(0)
        ended.append(number)

    with pytest.raises(NoSuchLog, match="gone"):
        asyncio.run(each_of(call, range(9), 3))
    assert ended == [0, 2]


def test_error_that_a_call_returns_is_a_result() -> None:
    errors = [NoSuchLog("a"), NoSuchLog("b")]

    async def call(number: int) -> NoSuchLog:
        return errors[number]

    assert asyncio.run(each_of(call, range(2), 1)) == errors
