"""The sync cursor of a ledger with relaxed durability: which of its deferred adds are durable here. Decisions only.

LastAddSynced is an entry id. No entry up to it can be lost: each is durable here, or durable on Qa bookies according to
the LAC of a later add. It advances with each sync of accepted adds, and with each LAC. Entries that are synced after a
gap are kept as ranges above it.

A bookie begins at -1 after each start, and the next LAC moves the cursor up. So it never claims an entry that a crash
destroyed.

Invariants: ranges ascend, and neither touch each other nor the cursor; there are at most RANGES_MAX, and at most
CURSORS_MAX cursors. Ranges beyond these limits are forgotten and reported as not synced, which is always safe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from bkspark.ids import NO_ENTRY

RANGES_MAX = 256
RUNS_MAX = 16
"""How many runs of one batch of adds are tracked, the first ones. Adds of a striped ledger have gaps."""
CURSORS_MAX = 16 * 1024

EntryRange = tuple[int, int]
"""First and last of consecutive entry ids."""


class SyncCursor:
    """The synced entries of one ledger."""

    __slots__ = ("_ranges", "last_synced")

    def __init__(self) -> None:
        self.last_synced = NO_ENTRY
        """All entries up to it are synced. Never decreases."""
        self._ranges: list[EntryRange] = []
        """Synced ranges above `last_synced` and a gap, ascending; at most RANGES_MAX."""

    @property
    def ranges(self) -> Sequence[EntryRange]:
        """Ranges that are synced after a gap, ascending."""
        return tuple(self._ranges)

    def on_confirmed(self, lac: int) -> None:
        """Advance to a LAC that came with an add: everything up to it is durable on Qa bookies."""
        if lac > self.last_synced:
            self.last_synced = lac
            self._close_gap()

    def on_synced(self, runs: Sequence[EntryRange]) -> None:
        """Count accepted entries, which are durable now."""
        for first, last in runs:
            if first <= self.last_synced + 1:
                if last > self.last_synced:
                    self.last_synced = last
                    self._close_gap()
            else:
                self._insert(first, last)

    def on_taken(self, runs: Sequence[EntryRange]) -> None:
        """Note accepted entries, which may have come before: until they are synced, an earlier copy does not count."""
        for first, last in runs:
            if first > self.last_synced and not self._ranges:
                continue
            kept = [(low, min(high, first - 1)) for low, high in self._ranges if low < first]
            kept += [(max(low, last + 1), high) for low, high in self._ranges if high > last]
            if first <= self.last_synced:
                if last < self.last_synced:
                    kept.insert(0, (last + 1, self.last_synced))
                self.last_synced = first - 1
            self._ranges = sorted(set(kept))[:RANGES_MAX]

    def _close_gap(self) -> None:
        """Absorb ranges that the cursor has reached."""
        ranges = self._ranges
        while ranges and ranges[0][0] <= self.last_synced + 1:
            self.last_synced = max(self.last_synced, ranges.pop(0)[1])

    def _insert(self, first: int, last: int) -> None:
        """Add a range, joined with those that it touches; forget the highest range if there are too many."""
        ranges = self._ranges
        start = bisect_left(ranges, first - 1, key=_last_of)
        end = start
        while end < len(ranges) and ranges[end][0] <= last + 1:
            first, last = min(first, ranges[end][0]), max(last, ranges[end][1])
            end += 1
        ranges[start:end] = [(first, last)]
        del ranges[RANGES_MAX:]


class SyncCursors:
    """The cursors of a bookie's ledgers. If there are too many, those unused for longest are forgotten."""

    def __init__(self, cursors_max: int = CURSORS_MAX) -> None:
        self._cursors: OrderedDict[int, SyncCursor] = OrderedDict()
        """Cursors by ledger id; the one unused for longest comes first."""
        self._cursors_max = cursors_max
        """The ledgers of which cursors are kept, at most."""

    def of(self, ledger_id: int) -> SyncCursor:
        """Return the cursor of a ledger that has accepted deferred adds."""
        cursor = self._cursors.get(ledger_id)
        if cursor is None:
            cursor = self._cursors[ledger_id] = SyncCursor()
            if len(self._cursors) > self._cursors_max:
                self._cursors.popitem(last=False)
        else:
            self._cursors.move_to_end(ledger_id)
        return cursor

    def __len__(self) -> int:
        return len(self._cursors)


def ranges_of(entry_ids: np.ndarray) -> list[EntryRange]:
    """Return entry ids, in order of arrival, as ranges of consecutive ids: at most the first RUNS_MAX."""
    breaks = np.flatnonzero(np.diff(entry_ids) != 1)[:RUNS_MAX]
    firsts = entry_ids[np.concatenate(([0], breaks + 1))]
    lasts = entry_ids[np.append(breaks, len(entry_ids) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist()))[:RUNS_MAX]


def _last_of(run: EntryRange) -> int:
    return run[1]
