"""Bucket: room for events that grows with time, up to a bound; the times are the caller's."""

from __future__ import annotations


class Bucket:
    """Room for events, which grows by `per_s` up to `burst`, and is `burst` at first."""

    __slots__ = ("_burst", "_per_s", "_room", "_since")

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._room = burst
        """Room at `_since`."""
        self._since = now
        """When `_room` was last changed."""

    def has_room(self, now: float) -> bool:
        """Return whether one more event fits."""
        return self._grown(now) >= 1.0

    def is_full(self, now: float) -> bool:
        """Return whether the room is what it was at first."""
        return self._grown(now) >= self._burst

    def take(self, events: float) -> None:
        """Take room; what is taken in excess is missing later."""
        self._room -= events

    def _grown(self, now: float) -> float:
        self._room = min(self._burst, self._room + (now - self._since) * self._per_s)
        self._since = now
        return self._room
