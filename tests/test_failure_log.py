"""Failures that repeat are counted: a line at once, one a minute, and one when it works again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

import pytest

from bkspark.errors import MetadataError, SessionExpired
from bkspark.failure_log import MINUTE_S, FailureCounts, RepeatedFailure
from tests.simulation.virtual_loop import run_in_virtual_time


def test_first_failure_of_a_cause_needs_a_line_and_later_ones_are_counted() -> None:
    counts = FailureCounts[int](causes_max=10)
    assert counts.note("a", 1, 0.0)
    assert not counts.note("a", 2, 1.0)
    assert counts.note("b", 3, 2.0)
    assert counts.due(MINUTE_S - 0.1) == []
    ((cause, known),) = counts.due(MINUTE_S)
    assert (cause, known.count, known.last, known.since_s) == ("a", 1, 2, 0.0)


def test_cause_without_a_failure_for_a_minute_needs_a_line_at_once_when_it_returns() -> None:
    counts = FailureCounts[int](causes_max=10)
    counts.note("a", 1, 0.0)
    assert counts.due(MINUTE_S) == []
    assert counts.note("a", 2, MINUTE_S)


def test_causes_above_the_limit_are_counted_as_one() -> None:
    counts = FailureCounts[int](causes_max=2)
    assert [counts.note(number, number, 0.0) for number in range(100)] == [True] * 3 + [False] * 97
    ((_, known),) = counts.due(MINUTE_S)
    assert (known.count, known.last) == (97, 99)


def lines_of(
    caplog: pytest.LogCaptureFixture, act: Callable[[RepeatedFailure], Coroutine[None, None, None]]
) -> list[str]:
    """Return the lines that failures write in virtual time."""
    caplog.set_level(logging.INFO)

    async def run() -> None:
        await act(RepeatedFailure(logging.getLogger("tests"), "it cannot work", "it works again"))

    run_in_virtual_time(run())
    return caplog.messages


def test_failure_that_repeats_has_a_line_a_minute_and_one_when_it_works(caplog: pytest.LogCaptureFixture) -> None:
    async def act(failure: RepeatedFailure) -> None:
        for _ in range(61):
            failure.failed(MetadataError("away"))
            await asyncio.sleep(1)
        failure.worked()
        failure.worked()

    assert lines_of(caplog, act) == [
        "it cannot work: away",
        "it cannot work: away; 60 failures since the last line",
        "it works again",
    ]


def test_failures_of_two_types_that_alternate_have_their_own_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Each of them had a line whenever it followed the other."""

    async def act(failure: RepeatedFailure) -> None:
        for _ in range(30):
            failure.failed(MetadataError("away"))
            failure.failed(SessionExpired("expired"))
            await asyncio.sleep(1)

    assert lines_of(caplog, act) == ["it cannot work: away", "it cannot work: expired"]
