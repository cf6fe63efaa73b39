"""Waiting in tests: a condition and a deadline, never a sleep that hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

_INTERVAL_S = 0.01

T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str, seconds: float = 120.0) -> T:
    """Return the first true value of `condition`.

    Raises:
        AssertionError: it stays false for `seconds`; the message says `what` was waited for.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(_INTERVAL_S)
    return value


async def until(condition: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    """`wait_until` on an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(_INTERVAL_S)
