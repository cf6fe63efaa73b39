"""About how many ledgers and entries a bookie stores. Counting takes time, so it is done on a thread, and seldom."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from bkspark.errors import StorageDamaged

logger = logging.getLogger(__name__)

_INTERVAL_S = 5.0
_COST_SHARE = 0.005
"""Counting takes at most this share of the time."""


class StoredCounts:
    """The last counts. For one event loop."""

    def __init__(self, count: Callable[[], tuple[int, int]], clock_s: Callable[[], float] = time.monotonic) -> None:
        """`count()` returns (ledgers, entries). It is called on a thread."""
        self._count = count
        self._clock_s = clock_s
        self._due_s = 0.0
        """When the counts are next due, by `clock_s`."""
        self._counting = asyncio.Lock()
        """Held while a thread counts: one count at a time."""
        self.ledgers = self.entries = 0
        """How many ledgers and entries the last count found."""

    async def refresh(self) -> None:
        """Count again if that is due."""
        async with self._counting:
            began = self._clock_s()
            if began < self._due_s:
                return
            try:
                self.ledgers, self.entries = await asyncio.to_thread(self._count)
            except (OSError, StorageDamaged) as error:
                # The other metrics, which may tell why, must not be missing.
                logger.warning("stored ledgers and entries are not counted, the last counts stay: %s", error)
            finally:
                now = self._clock_s()
                self._due_s = now + max(_INTERVAL_S, (now - began) / _COST_SHARE)
