"""Waiting in tests: a condition and a deadline, never a sleep that hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.01, 0.25

T = TypeVar("T")


def pause_s(waited_s: float, look_s: float) -> float:
    """Return how long to wait until the next look at a condition, after `waited_s` in all and a look of `look_s`.

    Many a condition asks a server or starts a process, and others work meanwhile: looks take at most a tenth of the
    time. After a long wait a few milliseconds more do not matter.
    """
    return min(max(_PAUSE_MIN_S, 9 * look_s, min(waited_s / 100, 0.05)), _PAUSE_MAX_S)


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = 120.0) -> T:
    """Return the first true value of `condition`.

    Raises:
        AssertionError: it stays false for `seconds`; the message says `what` was waited for.
    """
    began_s = looking_s = time.monotonic()
    while not (value := condition()):
        now_s = time.monotonic()
        assert now_s < began_s + seconds, f"waited {seconds:g} s for {what}"
        time.sleep(pause_s(now_s - began_s, now_s - looking_s))
        looking_s = time.monotonic()
    return value


async def until(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """`wait_until` on an event loop, which goes on meanwhile."""
    began_s = looking_s = time.monotonic()
    while not condition():
        now_s = time.monotonic()
        assert now_s < began_s + seconds, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(pause_s(now_s - began_s, now_s - looking_s))
        looking_s = time.monotonic()
