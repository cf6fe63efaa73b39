"""Waiting in tests: a condition and a deadline, never a sleep that hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.01, 0.25
_WAITED_SHARE = 0.05
"""A pause is this share of the time that was waited: a long wait looks seldom and ends a little later."""
_LOOKS_MAX = 1 / 3
"""Looking itself takes no more than this share of a wait: other tests need the processor."""

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = 120.0) -> T:
    """Return the first true value of `condition`.

    Raises:
        AssertionError: it stays false for `seconds`; the message says `what` was waited for.
    """
    began_s = looked_s = time.monotonic()
    while not (value := condition()):
        time.sleep(_pause_s(began_s, looked_s, what, seconds))
        looked_s = time.monotonic()
    return value


async def until(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """`wait_until` on an event loop, which goes on meanwhile."""
    began_s = looked_s = time.monotonic()
    while not condition():
        await asyncio.sleep(_pause_s(began_s, looked_s, what, seconds))
        looked_s = time.monotonic()


def _pause_s(began_s: float, looked_s: float, what: str, seconds: float) -> float:
    """Return how long to wait before the next look; the last one began at `looked_s`."""
    now_s = time.monotonic()
    waited_s = now_s - began_s
    assert waited_s < seconds, f"waited {seconds:g} s for {what}"
    pause_s = min(max(_WAITED_SHARE * waited_s, _PAUSE_S_MIN), _PAUSE_S_MAX)
    return max(pause_s, (now_s - looked_s) * (1 / _LOOKS_MAX - 1))
