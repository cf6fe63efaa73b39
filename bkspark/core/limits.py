"""WriterLimits: how long a writer waits for bookies, and when one is too slow."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Time-outs of a writer, in nanoseconds of its events' clock, and its limits for slow bookies.

    A bookie lags when it owes answers for `slow_lag_entries` entries, or `slow_lag_bytes`, that are acknowledged
    already; it is replaced when it has done so at every tick for `slow_lag_ns`. It is left out when it lags by more
    than `hold_back_ns_max` after the acknowledgements. A bookie that is left out is probed after `probe_pause_ns_min`,
    then after pauses that double up to `probe_pause_ns_max`; when it is back it is on trial for `trial_ns`.
    `delay_ensemble_change` is Apache's delayEnsembleChange.
    """

    add_timeout_ns: int = 5_000_000_000
    replacement_retry_ns: int = 1_000_000_000
    refusal_pause_ns_min: int = 5_000_000
    refusal_pause_ns_max: int = 500_000_000
    slow_lag_entries: int = 4096
    slow_lag_bytes: int = 32 * 1024 * 1024
    slow_lag_ns: int = 5_000_000_000
    hold_back_ns_max: int = 2_000_000_000
    probe_pause_ns_min: int = 1_000_000_000
    probe_pause_ns_max: int = 10_000_000_000
    trial_ns: int = 2_000_000_000
    delay_ensemble_change: bool = False
    ensemble_change_delay_ns_max: int = 30_000_000_000

    def within(self, lag_entries_max: int, lag_bytes_max: int) -> WriterLimits:
        """Return these limits for a writer whose callers wait when a bookie owes this much.

        A bookie lags at half of that at most: one that is on trial is left out again before it holds callers back.
        """
        return replace(
            self,
            slow_lag_entries=min(self.slow_lag_entries, max(1, lag_entries_max // 2)),
            slow_lag_bytes=min(self.slow_lag_bytes, max(1, lag_bytes_max // 2)),
        )
