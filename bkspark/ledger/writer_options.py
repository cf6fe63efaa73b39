"""Options of a writer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Limits of one writer: what may be in flight before `submit` waits.

    `lag_entries_max` and `lag_bytes_max` bound how far the slowest bookie may lag when Qa < Qw lets the others go
    ahead; a bookie that refuses load (TOOMANYREQUESTS) is retried meanwhile, and fails nothing. Callers wait for it for
    at most `WriterLimits.hold_back_ns_max` if Qa others are enough. With a piece on top it stays below the 10,000 adds
    that an Apache bookie queues at most; it refuses what is above.
    `force_timeout_s`: how long a bookie may take to sync what it acknowledged (relaxed durability).

    `explicit_lac_interval_s`: how long after the last add of a burst readers may have to wait for its entries at most;
    0: until the next add, or the close. Between adds that come sooner it costs nothing.
    """

    pending_entries_max: int = 8_192
    pending_bytes_max: int = 16 * 1024 * 1024
    lag_entries_max: int = 8_192
    lag_bytes_max: int = 64 * 1024 * 1024
    close_timeout_s: float = 30.0
    force_timeout_s: float = 60.0
    explicit_lac_interval_s: float = 0.0
