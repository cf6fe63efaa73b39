"""The present rate of copying, for estimates of the time that is left."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
"""The rate is that of about this time. A piece of a copy takes a few seconds if the rate is limited."""
_STEP_S = 0.5
"""Looks that come sooner after the last one are not kept."""


class RecentRate:
    """How fast a total has grown in the last `WINDOW_S` seconds.

    What was before is forgotten. So the rate is 0 after a longer pause, of the copies or of the process, until the
    total grows again.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        """Times and totals, the oldest first."""

    def update(self, now_s: float, total: int) -> int:
        """Take the total at a time that never decreases; return the rate in units per second, 0 if it is unknown."""
        seen = self._seen
        while seen and seen[0][0] < now_s - WINDOW_S:
            seen.popleft()
        if not seen or now_s >= seen[-1][0] + _STEP_S:
            seen.append((now_s, total))
        first_s, first = seen[0]
        return max(0, int((total - first) / (now_s - first_s))) if now_s > first_s else 0
