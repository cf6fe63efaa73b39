"""How fast compaction copies: one limit for all copies that run at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bookie_service.engine.pacing import pause_s


class CollectionStopped(Exception):
    """The collector was asked to stop."""


@dataclass(frozen=True, slots=True)
class PaceLimit:
    """Entries, or bytes, that may be copied a second; 0: no limit."""

    per_s: int
    counts_bytes: bool
    """Whether `per_s` is a number of bytes."""


class CompactionPace:
    """Called with (entries, bytes) after each piece of work: waits as the limit requires. For any thread."""

    def __init__(
        self,
        limit: Callable[[], PaceLimit],
        stopping: threading.Event,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit()` is called each time, because an operator may change it. `stopping`: set to end the work."""
        self._clock_s = clock_s
        self._limit = limit
        self._stopping = stopping
        self._lock = threading.Lock()
        self._paced_by = limit()
        """The limit that `_began` and `_done` belong to. With a new limit, counting begins again."""
        self._began = clock_s()
        """When counting began."""
        self._done = 0
        """How many entries or bytes were copied since `_began`."""

    def __call__(self, entries: int, size: int) -> None:
        """Wait as the limit requires. Raises CollectionStopped if the collector must stop."""
        if self._stopping.wait(self.pause_s(entries, size)):
            raise CollectionStopped

    def pause_s(self, entries: int, size: int) -> float:
        """Count copied entries and bytes; return how long the copier must wait, in seconds."""
        with self._lock:
            limit, now = self._limit(), self._clock_s()
            if limit != self._paced_by:
                # What was copied before does not count against another rate.
                self._done, self._began, self._paced_by = 0, now, limit
            self._done += size if limit.counts_bytes else entries
            return pause_s(self._done, limit.per_s, now - self._began)
