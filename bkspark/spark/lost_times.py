"""Reads by time of logs that have no entries of that time: not any more, or not yet. What is reported then."""

from __future__ import annotations

import logging

from bkspark.errors import ConfigurationError, DataLoss
from bkspark.log.positions import BEGINNING, EARLIEST
from bkspark.log.snapshot import LogSnapshot
from bkspark.spark.option_values import time_shown
from bkspark.spark.options import SourceOptions
from bkspark.wall_clock import wall_clock_ms

_log = logging.getLogger(__name__)


def check_times(options: SourceOptions, snapshot: LogSnapshot, until_ms: int) -> None:
    """Report that a log has lost all entries from before the time at which a read is to end, if it has.

    A read that begins at a time gets a warning: the log may never have had entries between the two times, as the times
    of lost entries are not known.

    Args:
        until_ms: what `endingTimestamp` means, in ms since 1970.

    Raises:
        DataLoss: the log was to be read from its beginning (failOnDataLoss).
    """
    first = snapshot.head.times.first
    if snapshot.start == BEGINNING or first is None or until_ms > first.ms:
        return
    begins_at_a_time = options.starting_timestamp is not None
    if not begins_at_a_time and options.offset_of(snapshot.name, "startingOffsets") not in (None, EARLIEST):
        return  # a position that the log still has: nothing after it is lost
    lost = (
        f"log {snapshot.name} was truncated, expired or overwritten, and has no entries from before "
        f"{time_shown(until_ms)}"
    )
    if begins_at_a_time or not options.fail_on_data_loss:
        _log.warning("%s: none are read", lost)
        return
    raise DataLoss(
        f"option 'endingTimestamp': {lost}: use a time after {time_shown(first.ms)}, or allow the loss "
        "(failOnDataLoss=false)"
    )


CLOCKS_DIFFER_MS = 10_000
"""How far the clock of the program that named a time may be ahead of this one."""


def check_has_begun(log: str, since_ms: int, now_ms: int) -> None:
    """Raise ConfigurationError if a stream is to begin at a time in the future that no entry of a log has reached: it
    would return what enters the log before that time, too."""
    if since_ms > now_ms + CLOCKS_DIFFER_MS:
        raise ConfigurationError(
            f"option 'startingTimestamp' is {time_shown(since_ms)}, which is in the future, and log {log} has no "
            "entry of that time: a stream would return earlier entries, too; use a time up to now, or "
            "startingOffsets=latest"
        )


def reference_ms(options: SourceOptions) -> int:
    """Return the present time, to which the relative times of the options refer, in ms since 1970.

    Raises:
        ConfigurationError: by it, `startingTimestamp` is not before `endingTimestamp`. The options themselves refuse
            this where both are relative, or neither.
    """
    now_ms = wall_clock_ms()
    since, until = options.starting_timestamp, options.ending_timestamp
    if since is not None and until is not None:
        since_ms, until_ms = (moment if moment >= 0 else now_ms + moment for moment in (since, until))
        if since_ms >= until_ms:
            raise ConfigurationError(
                f"option 'startingTimestamp' is {time_shown(since_ms)} now, which is not before 'endingTimestamp', "
                f"{time_shown(until_ms)}, so nothing would be read: use a time before that"
            )
    return now_ms
