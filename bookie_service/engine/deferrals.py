"""Deferred adds on their way to the disk: which are accepted, and when the sync cursors count them. Decisions only.

A deferred add is answered before it is durable. Either it is journaled, and is durable when the journal reports it; or
it bypasses the journal, and is durable after a flush that moves the marks: then entry log and index have it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.ids import NO_ENTRY
from bookie_service.engine.sync_cursor import RANGES_MAX, EntryRange, SyncCursor, SyncCursors, ranges_of


@dataclass(frozen=True, slots=True)
class TakenAdds:
    """Deferred adds that came together: for each ledger, its cursor and the runs of entries that were accepted."""

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
        """Count these adds in the cursors: they are durable."""
        for cursor, runs in self.ledgers.values():
            cursor.on_synced(runs)


class Deferrals:
    """The deferred adds of a bookie that are not durable yet."""

    def __init__(self, journals: int) -> None:
        self._cursors = SyncCursors()
        self.waiting: list[deque[tuple[int, TakenAdds]]] = [deque() for _ in range(journals)]
        """Adds whose records are not durable yet, by journal, with their sequence number. For this class to change."""
        self._unflushed: dict[int, tuple[SyncCursor, list[EntryRange]]] = {}
        """Adds that bypass the journal, by ledger: accepted since the start of the last flush that moves the marks."""
        self._flushing: dict[int, tuple[SyncCursor, list[EntryRange]]] = {}
        """Those that the current flush covers."""

    def take(self, ledgers: Sequence[tuple[int, np.ndarray, int]]) -> TakenAdds:
        """Track adds that were accepted: (ledger id, entry ids, LAC in the newest of them) of each ledger."""
        taken: dict[int, tuple[SyncCursor, Sequence[EntryRange]]] = {}
        for ledger_id, entry_ids, lac in ledgers:
            cursor = self._cursors.of(ledger_id)
            runs = ranges_of(entry_ids)
            cursor.on_taken(runs)
            # An entry confirms only entries before it.
            cursor.on_confirmed(min(lac, runs[-1][1] - 1))
            taken[ledger_id] = (cursor, runs)
        return TakenAdds(taken)

    def journaled(self, index: int, sequence: int, taken: TakenAdds) -> None:
        """The adds are durable once a journal has made `sequence` so."""
        self.waiting[index].append((sequence, taken))

    def on_durable(self, index: int, sequence: int) -> None:
        """A journal has made everything up to `sequence` durable."""
        waiting = self.waiting[index]
        while waiting and waiting[0][0] <= sequence:
            waiting.popleft()[1].count()

    def bypassed(self, taken: TakenAdds) -> None:
        """The adds are in the write cache alone. Only the first RANGES_MAX runs of a ledger are tracked."""
        for ledger_id, (cursor, runs) in taken.ledgers.items():
            # A forgotten cursor is replaced by a new one, which counts from here on.
            _, held = self._unflushed.get(ledger_id, (cursor, []))
            self._unflushed[ledger_id] = (cursor, held)
            _extend(held, runs)

    def is_unflushed(self, ledger_id: int) -> bool:
        """Whether adds of a ledger are in the write cache alone, and no flush has begun that makes them durable."""
        return ledger_id in self._unflushed

    def is_flushing(self, ledger_id: int) -> bool:
        """Whether the flush that runs makes adds of a ledger durable."""
        return ledger_id in self._flushing

    def on_flush_begun(self) -> None:
        """A flush that moves the marks has begun; it covers everything accepted before.

        If the last one did not move them after all, this one also covers what that did.
        """
        for ledger_id, (cursor, runs) in self._unflushed.items():
            _, held = self._flushing.get(ledger_id, (cursor, []))
            self._flushing[ledger_id] = (cursor, held)
            _extend(held, runs)
        self._unflushed = {}

    def on_flush_done(self) -> None:
        """The flush is complete: its adds are durable in entry log and index."""
        for cursor, runs in self._flushing.values():
            cursor.on_synced(runs)
        self._flushing = {}


def _extend(held: list[EntryRange], runs: Sequence[EntryRange]) -> None:
    """Add runs of entries, as far as there is room."""
    for first, last in runs:
        if held and held[-1][1] == first - 1:
            held[-1] = (held[-1][0], last)
        elif len(held) < RANGES_MAX:
            held.append((first, last))
