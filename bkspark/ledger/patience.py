"""Patience: retries of temporary failures, with pauses that double, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bkspark.errors import BookKeeperError
from bkspark.ledger.metadata_steps import may_pass

PATIENCE_S = 60.0
"""How long a follower continues by default while the metadata store or too many bookies are unreachable."""
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0


class Patience:
    """Limits how long an operation is retried: `limit_s` after the first failure, by `now`, a clock in seconds.

    The parts of one call share it, so that no part begins to wait when another has given up.
    """

    def __init__(self, limit_s: float, now: Callable[[], float]) -> None:
        self.limit_s = limit_s
        self._is_over = False
        """Whether one part has given up: then no part waits any more. Set once, by `exhaust`."""
        self._now = now
        self._since: float | None = None
        """When the first failure since the last success happened; None if there was none."""
        self._pause_s = PAUSE_S_MIN
        """The next pause. Doubled by each failure up to PAUSE_S_MAX; a success resets it."""

    def exhaust(self) -> None:
        """End the patience: the next failure is raised at once."""
        self._is_over = True

    def succeeded(self) -> None:
        """Record a success: `limit_s` counts again from the next failure."""
        self._since = None
        self._pause_s = PAUSE_S_MIN

    async def bear(self, error: BookKeeperError) -> None:
        """Wait for a pause, then return to try again. Raise `error` at once if it is permanent or the time is over."""
        now = self._now()
        if self._since is None:
            self._since = now
        if self._is_over or not may_pass(error) or now - self._since >= self.limit_s:
            raise error
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
