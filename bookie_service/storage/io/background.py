"""Loops on other threads than the event loop's, which let the event loop run again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")

_WORK_S = 0.001
_PAUSE_S = 0.00005
"""Long enough for a thread that waits for the interpreter to wake up and to take it."""


def with_pauses(
    items: Iterable[_T],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[_T]:
    """Yield items, and pause for a moment after each millisecond of work.

    For loops that open, read or look at many files. Such a thread gives the interpreter back at each call of the
    system, and has taken it again before another thread wakes up. Python lets a waiting thread go first only if the
    interpreter was not given back for a whole switch interval, so the event loop waited up to 60 ms.
    """
    began = clock()
    for item in items:
        yield item
        if clock() - began >= _WORK_S:
            pause(_PAUSE_S)
            began = clock()
