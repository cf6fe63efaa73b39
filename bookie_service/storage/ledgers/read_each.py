"""Reads many entries of one ledger at once, whatever their ids: one look at each place where entries may be.

Apache's clients read entry by entry and spread the reads over the ensemble, so a bookie sees every third id. What is
not simple (an entry that the index misplaces, one whose size was guessed wrong) is left to `LedgerStorage.read`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.placed_entries import PlacedEntries
from bookie_service.formats.entry_log import OFFSET_BITS
from bookie_service.storage.io.byte_source import ByteSource, NotCached
from bookie_service.storage.ledgers.interface import LookResult
from bookie_service.storage.ledgers.write_cache import NOT_HELD, MemTable
from bookie_service.storage.logs.log_reader import EntryLogReader

SPAN_IDS_MAX = 8192
"""Ids between the lowest and the highest entry of one look into the index."""
_STEP_BYTES_MAX = 16 * 1024
"""Entries that begin further apart are read by two calls: to copy the bytes between them would take longer."""
_GUESS_BYTES_MIN = 4096
_SPAN_BYTES_MAX = 1024 * 1024
_SPANS_MAX = 16
"""Calls of one look: each takes some microseconds, and a turn has 200."""


class Look:
    """One look for some entries of a ledger, for about `bytes_max` bytes of items: a little more, and at least one."""

    def __init__(self, ledger_id: int, entry_ids: np.ndarray, bytes_max: int, item_bytes: int) -> None:
        """`item_bytes`: how long an item probably is where the next position does not tell."""
        self.found = LookResult()
        self._ledger_id = ledger_id
        self._entry_ids = entry_ids
        self._room = bytes_max
        """Bytes that may still be read."""
        self._item_bytes = max(item_bytes, _GUESS_BYTES_MIN)
        self.rows = np.arange(len(entry_ids))
        """The entries that were not found yet."""

    @property
    def entry_ids(self) -> np.ndarray:
        """The ids of those entries."""
        return self._entry_ids[self.rows]

    @property
    def goes_on(self) -> bool:
        """Whether there are such entries, and room."""
        return bool(len(self.rows)) and self._room > 0

    def leave_odd(self, last_entry: int) -> None:
        """Note the ids that no entry has, and those above the last entry."""
        ids = self._entry_ids
        if int(ids.min()) < 0 or int(ids.max()) > last_entry:
            self.found.odd = np.flatnonzero(ids < 0)
            self.found.missing = np.flatnonzero(ids > last_entry)
            self.rows = np.flatnonzero((ids >= 0) & (ids <= last_entry))

    def in_half(self, half: MemTable) -> None:
        """Look in a half of the write cache."""
        addresses = half.addresses_of(self._ledger_id, self.entry_ids)
        if addresses is None:
            return
        held = np.flatnonzero(addresses != NOT_HELD)
        if len(held):
            starts = addresses[held] + LENGTH_BYTES
            self._take(held, half.memory.data, starts, half.lengths(addresses[held]))

    def _take(self, held: np.ndarray, octets: memoryview, starts: np.ndarray, sizes: np.ndarray) -> None:
        """Keep entries, which are numbers `held` of `rows`, as far as there is room."""
        ends = np.cumsum(sizes + LENGTH_BYTES)
        taken = max(1, int(ends.searchsorted(self._room, side="right")))
        self._room -= int(ends[min(taken, len(ends)) - 1])
        if taken < len(held):
            self._room = 0
        rows = self.rows[held[:taken]]
        self.found.pieces.append((rows, PlacedEntries(self._entry_ids[rows], octets, starts[:taken], sizes[:taken])))
        is_left = np.ones(len(self.rows), bool)
        is_left[held] = False
        self.rows = self.rows[is_left]

    def index_span(self) -> tuple[int, int]:
        """Return (first id, number of ids) of what the index is to be asked for: one more than the entries, as the next
        position tells how long an item is."""
        ids = self.entry_ids
        first = int(ids.min())
        return first, min(int(ids.max()) - first + 2, SPAN_IDS_MAX)

    def in_logs(self, reader: EntryLogReader, first_entry: int, positions: np.ndarray, source: ByteSource) -> bool:
        """Look in entry logs, where `positions` says: of `first_entry` and the following ids, 0 where not held.

        Returns:
            Whether some are not held.

        Raises:
            NotCached: `source` does not wait, and nothing was found.
        """
        ids = self.entry_ids - first_entry
        near = np.flatnonzero(ids < SPAN_IDS_MAX - 1)
        at, after = positions[ids[near]], positions[ids[near] + 1]
        held = at != 0
        if not held.all():
            self.found.missing = np.concatenate([self.found.missing, self.rows[near[~held]]])
            near, at, after = near[held], at[held], after[held]
        if len(near):
            likely = np.where((after > at) & (after - at <= _STEP_BYTES_MAX), after - at, self._item_bytes)
            self._read_spans(reader, near, at, likely, source)
        return not held.all()

    def _read_spans(
        self, reader: EntryLogReader, near: np.ndarray, at: np.ndarray, likely: np.ndarray, source: ByteSource
    ) -> None:
        order = np.argsort(at, kind="stable")
        near, at, likely = near[order], at[order], likely[order]
        rows, ids = self.rows[near], self.entry_ids[near]
        odd: list[np.ndarray] = []
        for span in _spans(at, likely, self._room)[:_SPANS_MAX]:
            try:
                is_right, entries = reader.read_each(
                    self._ledger_id, ids[span], at[span], int(likely[span.stop - 1]), source
                )
            except NotCached:
                if not self.found.pieces and not odd:
                    raise
                break
            except (StorageDamaged, OSError):
                odd.append(rows[span])
                continue
            if len(entries):
                self.found.pieces.append((rows[span][is_right], entries))
            odd.append(rows[span][~is_right])
        self.found.odd = np.concatenate([self.found.odd, *odd])


def _spans(at: np.ndarray, likely: np.ndarray, bytes_max: int) -> Sequence[slice]:
    """Return pieces of ascending positions that one call reads each, for about `bytes_max` bytes of items."""
    ends = np.cumsum(likely)
    count = max(1, int(ends.searchsorted(bytes_max, side="right")))
    at = at[:count]
    steps = at[1:] - at[:-1]
    apart = (steps > _STEP_BYTES_MAX) | (at[1:] >> OFFSET_BITS != at[:-1] >> OFFSET_BITS)
    starts = [0, *(np.flatnonzero(apart) + 1).tolist()]
    spans = []
    for start, end in zip(starts, [*starts[1:], len(at)]):
        while start < end:
            fits = int(at[start:end].searchsorted(at[start] + _SPAN_BYTES_MAX, side="right"))
            spans.append(slice(start, start + max(1, fits)))
            start += max(1, fits)
    return spans
