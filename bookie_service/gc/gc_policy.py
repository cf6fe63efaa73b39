"""What garbage collection may delete. Pure functions of facts that the collector gathers. When in doubt, data is kept.

A ledger is dropped after one of two proofs:

* deleted: it was on this bookie *before* the listing of all ledgers began; the complete listing lacks it; a direct read
  says that it does not exist (B8); and all of this was already true in an earlier pass, at least an interval ago;
* over-replicated: it is closed, no ensemble of it names this bookie, and no process is repairing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.options import YEARS_S, bounded, check, required
from bookie_service.storage.disks import DiskRoom

BRAKE_LEDGERS_MIN = 20
"""Up to this many ledgers may vanish at once, whatever share they are, unless the listing is empty."""
BRAKE_PASSES = 12
"""A ledger that the brake keeps is dropped when it was missing in this many consecutive passes."""


@dataclass(frozen=True, slots=True)
class CompactionLevel:
    """Logs whose share of live bytes is below `threshold` are rewritten every `interval_s`.

    seconds_max: no further log is begun after this time; 0 or less: there is no limit.
    """

    threshold: float = required(-1.0, 1.0)
    interval_s: float = required(-1.0, YEARS_S, "seconds")
    seconds_max: float = bounded(0.0, 0.0, YEARS_S, "seconds")

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_on(self) -> bool:
        """False if the threshold or the interval is 0 or less."""
        return self.threshold > 0 and self.interval_s > 0


OFF = CompactionLevel(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class LogUsage:
    """`live_bytes`: how many of the `log_bytes` of entry log `log_id` belong to ledgers that still exist."""

    log_id: int
    log_bytes: int
    live_bytes: int

    @property
    def share(self) -> float:
        return self.live_bytes / max(1, self.log_bytes)


class UnlistedLedgers:
    """The bookie's ledgers that a listing of all ledgers lacks. Memory grows only with the bookie's own ledgers.

    The listing must begin after `own`, ascending, was taken.
    """

    def __init__(self, own: np.ndarray) -> None:
        self._own = own
        self._is_listed = np.zeros(len(own), bool)
        self.listed_count = 0
        """How many ledgers were listed so far."""

    def note(self, page: np.ndarray) -> None:
        """Take a part of the listing, ascending. The cost depends on the part, and on the own ledgers in its range."""
        if not len(page):
            return
        self.listed_count += len(page)
        begin, end = self._own.searchsorted(page[0]), self._own.searchsorted(page[-1], side="right")
        self._is_listed[begin:end] |= is_in(self._own[begin:end], page)

    def ledger_ids(self) -> np.ndarray:
        """Return the bookie's ledgers that no part of the listing had, ascending."""
        return self._own.compress(~self._is_listed)


def is_in(ledger_ids: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Return which ledgers are in an ascending array, bool each. The cost depends on the ledgers, not on the array."""
    if not len(ascending):
        return np.zeros(len(ledger_ids), bool)
    at = np.minimum(ascending.searchsorted(ledger_ids), len(ascending) - 1)
    found: np.ndarray = ascending.take(at) == ledger_ids
    return found


def brake(own_count: int, missing_count: int, share_max: float, *, is_listing_empty: bool) -> str | None:
    """Return why nothing may be dropped yet; None: it may (Z10: metadata lost or restored).

    own_count, missing_count: only ledgers with entries. Any client can make a bookie know ledgers without entries.
    """
    if not missing_count or share_max >= 1:
        return None
    if is_listing_empty:
        return (
            f"the metadata store lists no ledger at all, and this bookie has {own_count} with entries; no ledger is "
            "dropped until the store lists some. If all were deleted on purpose, restart this bookie once with "
            "gcDeletedShareMax=1; if not, restore the metadata"
        )
    if missing_count <= BRAKE_LEDGERS_MIN or missing_count <= share_max * own_count:
        return None
    return (
        f"{missing_count} of {own_count} ledgers of this bookie with entries are not in the metadata store, more than "
        f"gcDeletedShareMax={share_max:g} of them. Each is dropped when it has been missing in {BRAKE_PASSES} passes "
        "in a row. If metadata are lost, restore them first. To drop ledgers now that were deleted on purpose, "
        "restart this bookie once with gcDeletedShareMax=1"
    )


class MissingLedgers:
    """Which ledgers were missing in earlier passes, how often, and since when they are proven to be deleted.

    The caller passes the times, in seconds of a clock that never goes back.
    """

    def __init__(self, interval_s: float) -> None:
        """`interval_s`: passes that follow sooner count as one pass."""
        self._interval_s = interval_s
        self._ids = np.empty(0, np.int64)
        """Missing ledgers, ascending. `note` and `forget` replace all four arrays together."""
        self._passes = np.empty(0, np.int64)
        """How many consecutive passes each ledger was missing in."""
        self._counted_s = np.empty(0)
        """When the last of these passes was counted."""
        self._proven_s = np.empty(0)
        """Since when each ledger is proven to be deleted; infinity: it is not proven."""

    def note(self, missing: np.ndarray, now_s: float) -> None:
        """Record the ledgers that a pass found missing, ascending. A ledger that exists again begins at zero."""
        is_known = is_in(missing, self._ids)
        rows = self._ids.searchsorted(missing.compress(is_known))
        passes, counted_s = np.ones(len(missing), np.int64), np.full(len(missing), now_s)
        proven_s = np.full(len(missing), np.inf)
        counts = now_s - self._counted_s.take(rows) >= self._interval_s
        passes[is_known] = self._passes.take(rows) + counts
        counted_s[is_known] = np.where(counts, now_s, self._counted_s.take(rows))
        proven_s[is_known] = self._proven_s.take(rows)
        self._ids, self._passes, self._counted_s, self._proven_s = missing, passes, counted_s, proven_s

    def missing_for(self, passes: int) -> np.ndarray:
        """Return the ledgers that were missing in this many consecutive passes, ascending."""
        return self._ids.compress(self._passes >= passes)

    def note_proven(self, ledger_ids: np.ndarray, now_s: float) -> None:
        """Record ledgers that were proven to be deleted, ascending. The time of the first proof counts."""
        rows = is_in(self._ids, ledger_ids)
        self._proven_s[rows] = np.minimum(self._proven_s[rows], now_s)

    def proven_before(self, now_s: float) -> np.ndarray:
        """Return the ledgers that were proven to be deleted at least an interval ago, ascending."""
        return self._ids.compress(now_s - self._proven_s >= self._interval_s)

    def forget(self, ledger_ids: np.ndarray) -> None:
        """Forget ledgers, ascending, because they exist after all."""
        self.note(self._ids.compress(~is_in(self._ids, ledger_ids)), -np.inf)


def usage(log_id: int, log_bytes: int, ledger_ids: np.ndarray, ledger_bytes: np.ndarray, held: np.ndarray) -> LogUsage:
    """Return a log's usage. `held`: the ledgers that still exist, ascending, listed after the log was rotated."""
    return LogUsage(log_id, log_bytes, int(ledger_bytes[is_in(ledger_ids, held)].sum()))


def dead_logs(usages: Sequence[LogUsage]) -> list[int]:
    """Return the logs without a live byte."""
    return [each.log_id for each in usages if not each.live_bytes]


def logs_to_compact(usages: Sequence[LogUsage], threshold: float) -> list[int]:
    """Return the logs that are worth rewriting, those with the best ratio of freed to copied bytes first."""
    chosen = [each for each in usages if each.live_bytes > 0 and each.share < threshold]
    return [each.log_id for each in sorted(chosen, key=lambda each: each.share)]


def due_level(
    minor: CompactionLevel, major: CompactionLevel, since_minor_s: float, since_major_s: float
) -> CompactionLevel:
    """Return the compaction that is due, or `OFF`. A major compaction also counts as a minor one."""
    if major.is_on and since_major_s >= major.interval_s:
        return major
    if minor.is_on and since_minor_s >= minor.interval_s:
        return minor
    return OFF


def forced_level(minor: CompactionLevel, major: CompactionLevel, *, without_interval: bool) -> CompactionLevel:
    """Return the compaction that a request runs.

    without_interval: a level that only its interval turns off counts as on (forceAllowCompaction).
    """
    for level in (major, minor):
        if level.is_on or (without_interval and level.threshold > 0):
            return level
    return OFF


def level_with_room(
    level: CompactionLevel, minor: CompactionLevel, room: DiskRoom, *, when_full: bool
) -> CompactionLevel:
    """Return the compaction that the disks have room for. A new log is written before the old one is removed.

    A minor compaction copies least for what it frees. On full disks there is no compaction, except with `when_full`.
    """
    if room is DiskRoom.ENOUGH or when_full:
        return level
    if room is DiskRoom.FULL or not minor.threshold > 0:
        return OFF
    return minor if level.threshold > minor.threshold else level
