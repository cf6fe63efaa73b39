"""Deferred adds until they are durable, and when the sync cursors count them. Decisions only.

A deferred add is answered before it is durable. If it is journaled, it is durable when the journal reports it. If it
bypasses the journal, it is durable after a flush that advances the marks: then entry log and index have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.ids import NO_ENTRY
from bookie_service.engine.sync_cursor import RANGES_MAX, EntryRange, SyncCursor, SyncCursors, ranges_of


@dataclass(frozen=True, slots=True)
class TakenAdds:
    """Deferred adds that came together: the cursor of each ledger, and the ranges of entries that were accepted."""

    ledgers: Mapping[int, tuple[SyncCursor, Sequence[EntryRange]]]

    def last_synced(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return the LastAddSynced of the ledger of each add, int64; -1 if no add of the ledger was accepted."""
        if len(self.ledgers) == 1 and bool((ledger_ids == ledger_ids[0]).all()):
            cursor, _ = next(iter(self.ledgers.values()))
            return np.full(len(ledger_ids), cursor.last_synced, np.int64)
        found = np.full(len(ledger_ids), NO_ENTRY, np.int64)
        for ledger_id, (cursor, _) in self.ledgers.items():
            found[ledger_ids == ledger_id] = cursor.last_synced
        return found

    def count(self) -> None:
        """Count these adds in the cursors, because they are durable."""
        for cursor, runs in self.ledgers.values():
            cursor.on_synced(runs)


class Deferrals:
    """The deferred adds of a bookie that are not durable yet."""

    def __init__(self, journals: int) -> None:
        self._cursors = SyncCursors()
        self.waiting: list[deque[tuple[int, TakenAdds]]] = [deque() for _ in range(journals)]
        """Journaled adds that are not durable yet, by journal, with their sequences. Only this class changes it."""
        self._unflushed: dict[int, tuple[SyncCursor, list[EntryRange]]] = {}
        """Adds that bypass the journal, by ledger, which no flush covers yet."""
        self._flushing: dict[int, tuple[SyncCursor, list[EntryRange]]] = {}
        """Adds that bypass the journal, by ledger, which the running flush covers."""

    def take(self, ledgers: Sequence[tuple[int, np.ndarray, int]]) -> TakenAdds:
        """Track accepted adds. Each ledger has (ledger id, entry ids, LAC in the newest of the entries)."""
        taken: dict[int, tuple[SyncCursor, Sequence[EntryRange]]] = {}
        for ledger_id, entry_ids, lac in ledgers:
            cursor = self._cursors.of(ledger_id)
            runs = ranges_of(entry_ids)
            cursor.on_taken(runs)
            # An entry can confirm only entries before it.
            cursor.on_confirmed(min(lac, runs[-1][1] - 1))
            taken[ledger_id] = (cursor, runs)
        return TakenAdds(taken)

    def journaled(self, index: int, sequence: int, taken: TakenAdds) -> None:
        """Note that the adds are durable once the journal has made `sequence` durable."""
        self.waiting[index].append((sequence, taken))

    def on_durable(self, index: int, sequence: int) -> None:
        """Count the adds up to `sequence`, which a journal has made durable."""
        waiting = self.waiting[index]
        while waiting and waiting[0][0] <= sequence:
            waiting.popleft()[1].count()

    def bypassed(self, taken: TakenAdds) -> None:
        """Note adds that are only in the write cache. At most RANGES_MAX ranges of each ledger are tracked."""
        for ledger_id, (cursor, runs) in taken.ledgers.items():
            # The cursor of a ledger may have been forgotten; a new one counts from here on.
            _, held = self._unflushed.get(ledger_id, (cursor, []))
            self._unflushed[ledger_id] = (cursor, held)
            _extend(held, runs)

    def is_unflushed(self, ledger_id: int) -> bool:
        """Return whether adds of a ledger are only in the write cache, and no flush that covers them has begun."""
        return ledger_id in self._unflushed

    def is_flushing(self, ledger_id: int) -> bool:
        """Return whether the running flush makes adds of a ledger durable."""
        return ledger_id in self._flushing

    def on_flush_begun(self) -> None:
        """Note that a flush which advances the marks has begun. It covers everything that was accepted before.

        If the last flush failed to advance the marks, this one also covers what that one did.
        """
        for ledger_id, (cursor, runs) in self._unflushed.items():
            _, held = self._flushing.get(ledger_id, (cursor, []))
            self._flushing[ledger_id] = (cursor, held)
            _extend(held, runs)
        self._unflushed = {}

    def on_flush_done(self, is_lost: Callable[[int], bool]) -> None:
        """Count the adds of the flush, which is complete: entry log and index have them, unless `is_lost(ledger_id)`:
        the disk of the index failed."""
        for ledger_id, (cursor, runs) in self._flushing.items():
            if not is_lost(ledger_id):
                cursor.on_synced(runs)
        self._flushing = {}


def _extend(held: list[EntryRange], runs: Sequence[EntryRange]) -> None:
    """Append ranges of entries, as far as there is room."""
    for first, last in runs:
        if held and held[-1][1] == first - 1:
            held[-1] = (held[-1][0], last)
        elif len(held) < RANGES_MAX:
            held.append((first, last))
