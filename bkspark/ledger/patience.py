"""Patience: retries of temporary failures, with pauses that double, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bkspark.errors import BookKeeperError
from bkspark.ledger.metadata_steps import may_pass

PATIENCE_S = 60.0
"""How long a follower continues while the metadata store or too many bookies are unreachable; the same for a writer."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0


class Patience:
    """How long an operation may fail before it is given up: `limit_s`, by `now`, a clock in seconds.

    Several parts of one call share it, so that no part begins to wait when another has given up.
    """

    def __init__(self, limit_s: float, now: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self._is_over = False
        """Whether one part has given up; then no part waits any more. Set once."""
        self._now = now
        self._since: float | None = None
        """When the failures that are still going on began; None after a success."""
        self._pause_s = PAUSE_S_MIN
        """How long the next pause is: doubled by each failure, back to the least by a success."""

    def exhaust(self) -> None:
        """Use up the time: the next failure is the last."""
        self._is_over = True

    def succeeded(self) -> None:
        """Record a success: the time begins again with the next failure."""
        self._since = None
        self._pause_s = PAUSE_S_MIN

    async def bear(self, error: BookKeeperError) -> None:
        """Return after a pause when it is time to try again; raise `error` if it is permanent, or the time is over."""
        now = self._now()
        if self._since is None:
            self._since = now
        if self._is_over or not may_pass(error) or now - self._since >= self.limit_s:
            raise error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
