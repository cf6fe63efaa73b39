"""WriterLimits: the options that the cores of a writer use, with times in nanoseconds of the clock of their events."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bkspark.core.writer_options import WriterOptions


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """The part of `WriterOptions` that cores use. Names and meanings are the same, except for:

    slow_lag_entries, slow_lag_bytes: at most half of the lag at which callers must wait, so that a bookie on trial is
        left out again before it holds callers back.
    hold_up_entries, hold_up_bytes: at most half of what may be unacknowledged, so that a full window shows which bookie
        holds it up.
    """

    add_timeout_ns: int
    replacement_retry_ns: int
    refusal_pause_ns_min: int
    refusal_pause_ns_max: int
    slow_lag_entries: int
    slow_lag_bytes: int
    slow_lag_ns: int
    hold_up_entries: int
    hold_up_bytes: int
    hold_back_ns_max: int
    probe_pause_ns_min: int
    probe_pause_ns_max: int
    trial_ns: int
    delay_ensemble_change: bool
    ensemble_change_delay_ns_max: int

    @staticmethod
    @functools.lru_cache(maxsize=16)
    def of(options: WriterOptions) -> WriterLimits:
        """Return the limits of writers with these options, which all writers of a client share."""
        return WriterLimits(
            add_timeout_ns=nanoseconds(options.add_timeout_s),
            replacement_retry_ns=nanoseconds(options.replacement_retry_s),
            refusal_pause_ns_min=nanoseconds(options.refusal_pause_s_min),
            refusal_pause_ns_max=nanoseconds(options.refusal_pause_s_max),
            slow_lag_entries=min(options.slow_lag_entries, max(1, options.lag_entries_max // 2)),
            slow_lag_bytes=min(options.slow_lag_bytes, max(1, options.lag_bytes_max // 2)),
            slow_lag_ns=nanoseconds(options.slow_lag_s),
            hold_up_entries=min(options.slow_lag_entries, max(1, options.pending_entries_max // 2)),
            hold_up_bytes=min(options.slow_lag_bytes, max(1, options.pending_bytes_max // 2)),
            hold_back_ns_max=nanoseconds(options.hold_back_s_max),
            probe_pause_ns_min=nanoseconds(options.probe_pause_s_min),
            probe_pause_ns_max=nanoseconds(options.probe_pause_s_max),
            trial_ns=nanoseconds(options.trial_s),
            delay_ensemble_change=options.delay_ensemble_change,
            ensemble_change_delay_ns_max=nanoseconds(options.ensemble_change_delay_s_max),
        )


def nanoseconds(seconds: float) -> int:
    """Return a time as cores count it.

    >>> nanoseconds(0.005)
    5000000
    """
    return round(seconds * 1_000_000_000)
