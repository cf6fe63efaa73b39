"""A clock and timers for parts of a bookie that are given both: time passes only when a test says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class SteppedTimers:
    """A clock, and what is called when it comes to a time."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        heapq.heappush(self._timers, (self.now_s + seconds, next(self._count), callback))
        return None

    def clock(self) -> float:
        return self.now_s

    @property
    def planned(self) -> int:
        """How many calls are planned."""
        return len(self._timers)

    def call_next(self) -> None:
        """Let time pass until the next call, and make it. A call that is late leaves the clock as it is."""
        at_s, _, callback = heapq.heappop(self._timers)
        self.now_s = max(self.now_s, at_s)
        callback()

    def run(self, seconds: float) -> None:
        """Let this time pass."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self.call_next()
        self.now_s = end_s
