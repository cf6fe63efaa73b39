"""The time of day, for what people and other processes read. Time-outs and pauses use a clock that never goes back."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Return ms since the epoch."""
    return time.time_ns() // 1_000_000
