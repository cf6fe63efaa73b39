"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """A clock in seconds, which goes as it is set."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
