"""WriterOptions: limits and time-outs of a writer, and when a bookie is too slow for it."""

from __future__ import annotations

from dataclasses import dataclass

from bkspark.options import COUNT_MAX, DAY_S, bounded, check

_BYTES_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Limits and time-outs of one writer; bytes, entries and seconds.

    In flight:
        pending_entries_max, pending_bytes_max: what may be unacknowledged before `submit` waits.
        lag_entries_max, lag_bytes_max: how far the slowest bookie may lag if Qa < Qw lets the others go ahead. A
            bookie that refuses load (TOOMANYREQUESTS) is retried meanwhile, and has not failed. If Qa others are
            enough, callers wait for it for at most `hold_back_s_max`. The default and one more piece stay below the
            10,000 adds that an Apache bookie queues; it refuses more.

    Time-outs:
        add_timeout_s: how long a bookie may take to answer an add before it has failed.
        close_timeout_s: how long `close` may take.
        force_timeout_s: how long a bookie may take to sync what it acknowledged (relaxed durability).
        replacement_retry_s: pause before another search if no replacement was found.

    Bookies that refuse load, or are slow:
        refusal_pause_s_min, refusal_pause_s_max: pauses before adds that a bookie refused are sent again; they double.
        slow_lag_entries, slow_lag_bytes: a bookie lags when it owes answers for this much that is acknowledged already,
            and in any case for half of `lag_entries_max` and `lag_bytes_max`.
        slow_lag_s: it is replaced when it has lagged at every tick for this time. A bookie that Qa needs is, too, if
            its oldest answer is due for longer than `add_timeout_s` at every tick, and another one is ahead of it by
            this much, or half of what may be unacknowledged.
        hold_back_s_max: it is left out when it lags behind the acknowledgements by more than this.
        probe_pause_s_min, probe_pause_s_max: pauses before a bookie that is left out is probed; they double.
        trial_s: how long a bookie that came back is on trial.
        delay_ensemble_change: Apache's delayEnsembleChange: a bookie that fails is replaced only when too few are left.
        ensemble_change_delay_s_max: how long such a change is delayed at most.

    Readers:
        explicit_lac_interval_s: how long readers wait at most for the last entries of a burst of adds; 0: until the
            next add, or the close. If adds come more often, it costs nothing.

    Raises:
        ConfigurationError: a value is out of bounds.
    """

    pending_entries_max: int = bounded(8_192, 1, COUNT_MAX)
    pending_bytes_max: int = bounded(16 * 1024 * 1024, 1, _BYTES_MAX, "bytes")
    lag_entries_max: int = bounded(8_192, 1, COUNT_MAX)
    lag_bytes_max: int = bounded(64 * 1024 * 1024, 1, _BYTES_MAX, "bytes")
    close_timeout_s: float = bounded(30.0, 0.001, DAY_S, "seconds")
    force_timeout_s: float = bounded(60.0, 0.001, DAY_S, "seconds")
    explicit_lac_interval_s: float = bounded(0.0, 0.0, DAY_S, "seconds")
    add_timeout_s: float = bounded(5.0, 0.001, DAY_S, "seconds")
    replacement_retry_s: float = bounded(1.0, 0.001, DAY_S, "seconds")
    refusal_pause_s_min: float = bounded(0.005, 0.001, DAY_S, "seconds")
    refusal_pause_s_max: float = bounded(0.5, 0.001, DAY_S, "seconds")
    slow_lag_entries: int = bounded(4_096, 1, COUNT_MAX)
    slow_lag_bytes: int = bounded(32 * 1024 * 1024, 1, _BYTES_MAX, "bytes")
    slow_lag_s: float = bounded(5.0, 0.001, DAY_S, "seconds")
    hold_back_s_max: float = bounded(2.0, 0.001, DAY_S, "seconds")
    probe_pause_s_min: float = bounded(1.0, 0.001, DAY_S, "seconds")
    probe_pause_s_max: float = bounded(10.0, 0.001, DAY_S, "seconds")
    trial_s: float = bounded(2.0, 0.001, DAY_S, "seconds")
    delay_ensemble_change: bool = False
    ensemble_change_delay_s_max: float = bounded(30.0, 0.0, DAY_S, "seconds")

    def __post_init__(self) -> None:
        check(self)
