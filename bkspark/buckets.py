"""A token bucket: room for events that grows with time up to a bound. The caller passes the times."""

from __future__ import annotations


class Bucket:
    """Room for events. It begins at `burst` and grows by `per_s` a second, up to `burst`."""

    __slots__ = ("_burst", "_per_s", "_room", "_since")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._room = burst
        """Room at `_since`; below 0 after more was taken than there was."""
        self._since = now
        """When `_room` was last changed."""

    def has_room(self, now: float) -> bool:
        """Return whether one more event fits."""
        return self._grown(now) >= 1.0

    def is_full(self, now: float) -> bool:
        """Return whether there is as much room as at the beginning."""
        return self._grown(now) >= self._burst

    def take(self, events: float) -> None:
        """Take room. More may be taken than there is; the difference must grow again first."""
        self._room -= events

    def _grown(self, now: float) -> float:
        self._room = min(self._burst, self._room + (now - self._since) * self._per_s)
        self._since = now
        return self._room
