"""Reads many entries of some ledgers at once, with any ids: it looks once at each place where entries may be.

Apache's clients read entry by entry, and spread the reads over the ensemble. So a bookie sees every third id, and reads
of many ledgers come together. A look takes a few steps for each ledger and for each part of an entry log; all other
work is done for all entries at once. Entries that are not simple (the index misplaces them, or their size was guessed
wrong) are left to `LedgerStorage.read`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.wire.framing import LENGTH_BYTES, items_at
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bkspark.wire.placed_entries import PlacedEntries
from bookie_service.formats.entry_log import OFFSET_BITS
from bookie_service.storage.io.byte_source import CachedSource, NotCached
from bookie_service.storage.ledgers.interface import Ledger, LedgerIndex, LookResult
from bookie_service.storage.ledgers.write_cache import NOT_HELD, MemTable
from bookie_service.storage.logs.log_reader import ITEM_HEAD, EntryLogReader

SPAN_IDS_MAX = 8192
"""The largest distance between the lowest and the highest entry of one ledger in one look into the index."""
_STEP_BYTES_MAX = 16 * 1024
"""Entries that begin further apart are read by two calls, because copying the bytes in between would take longer."""
_GUESS_BYTES_MIN = 4096
_SPAN_BYTES_MAX = 1024 * 1024
_SPANS_MAX = 32
"""How many calls one look may make. Each takes some microseconds, and a turn has 200."""


class Look:
    """The reads of one look, and what it found. `rows`, ascending, are those that are not decided yet."""

    def __init__(
        self, ledgers: Sequence[Ledger], ends: Sequence[int], entry_ids: np.ndarray, bytes_max: int, item_bytes: int
    ) -> None:
        """`item_bytes`: the probable length of an item if the next position does not tell. Others: see `read_each`."""
        self.found = LookResult()
        """The result of the look."""
        self.unheld: list[int] = []
        """Ledgers some of whose entries the index lacks."""
        self._entry_ids = entry_ids
        self._room = bytes_max
        """How many bytes may still be read."""
        self._item_bytes = max(item_bytes, _GUESS_BYTES_MIN)
        self._ids = [ledger.ledger_id for ledger in ledgers]
        self._bounds = np.array([0, *ends])
        """Where the entries of each ledger begin and end: those of ledger i are [_bounds[i], _bounds[i + 1]).
        Constant."""
        self._ledger_ids = self._of_each(self._ids)
        self.rows = np.arange(len(entry_ids))
        """Numbers of the entries that are not decided yet, ascending. Reduced by each step."""
        self._leave_odd(self._of_each([ledger.last_entry for ledger in ledgers]))

    def _of_each(self, numbers: Sequence[int]) -> np.ndarray:
        """Return the number of each entry's ledger."""
        return np.repeat(np.array(numbers), self._bounds[1:] - self._bounds[:-1])

    def _leave_odd(self, last_entries: np.ndarray) -> None:
        """Note ids that no entry has, and ids above the last entry."""
        ids = self._entry_ids
        is_above = ids > last_entries
        if int(ids.min()) < 0 or is_above.any():
            self.found.odd = np.flatnonzero(ids < 0)
            self.found.missing = np.flatnonzero(is_above)
            self.rows = np.flatnonzero((ids >= 0) & ~is_above)

    @property
    def goes_on(self) -> bool:
        """Whether there are undecided entries, and room."""
        return bool(len(self.rows)) and self._room > 0

    def _parts(self) -> list[tuple[int, int, int]]:
        """Return (ledger id, begin, end): the part of `rows` that belongs to each ledger, unless it is empty."""
        bounds = self._bounds if len(self.rows) == len(self._entry_ids) else self.rows.searchsorted(self._bounds)
        edges = bounds.tolist()
        return [part for part in zip(self._ids, edges, edges[1:]) if part[1] < part[2]]

    def in_half(self, half: MemTable) -> None:
        """Look into a half of the write cache."""
        parts = [part for part in self._parts() if part[0] in half.ledgers]
        if not parts:
            return
        ids = self._entry_ids[self.rows]
        addresses = np.full(len(ids), NOT_HELD)
        for ledger_id, begin, end in parts:
            addresses[begin:end] = half.ledgers[ledger_id].addresses_of(ids[begin:end])
        held = np.flatnonzero(addresses != NOT_HELD)
        if len(held):
            self._take(held, half.memory.data, addresses[held] + LENGTH_BYTES, half.lengths(addresses[held]))

    def _take(self, held: np.ndarray, octets: memoryview, starts: np.ndarray, sizes: np.ndarray) -> None:
        """Take the entries with numbers `held` in `rows`, as far as there is room."""
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

    def in_index(self, index: LedgerIndex, source: CachedSource) -> tuple[np.ndarray, np.ndarray]:
        """Look up the positions that are in memory. The others are left to another look.

        Returns:
            The positions of the held ones of `rows`, and the probable length of each item.

        Raises:
            NotCached: nothing was found.
        """
        ids = self._entry_ids[self.rows]
        parts = self._parts()
        begins = [begin for _, begin, _ in parts]
        lows, highs = (each.reduceat(ids, begins).tolist() for each in (np.minimum, np.maximum))
        at, after, is_near = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64), np.ones(len(ids), bool)
        for (ledger_id, begin, end), low, high in zip(parts, lows, highs):
            try:
                first, positions = _positions(index, ledger_id, low, high, source)
            except NotCached:
                if self.found.is_empty and not begin:
                    raise
                is_near[begin:] = False
                break
            slots = ids[begin:end] - first
            if high - first > len(positions) - 2:
                is_near[begin:end] = slots <= len(positions) - 2
                slots = np.minimum(slots, len(positions) - 2)
            at[begin:end], after[begin:end] = positions[slots], positions[slots + 1]
        held = at != 0
        if not (held & is_near).all():
            missing = self.rows[is_near & ~held]
            self.found.missing = np.concatenate([self.found.missing, missing])
            self.unheld = np.unique(self._ledger_ids[missing]).tolist()
            held &= is_near
            self.rows, at, after = self.rows[held], at[held], after[held]
        return at, np.where((after > at) & (after - at <= _STEP_BYTES_MAX), after - at, self._item_bytes)

    def in_logs(self, reader: EntryLogReader, at: np.ndarray, likely: np.ndarray, source: CachedSource) -> None:
        """Look into entry logs for `rows`. The arguments are what `in_index` returned.

        Raises:
            NotCached: nothing was found.
        """
        if not len(at):
            return
        order = np.argsort(at, kind="stable")
        at, likely, rows = at[order], likely[order], self.rows[order]
        starts, ends = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        """Where each item begins in the source's memory, and where the bytes read with it end; 0, 0: not read."""
        done = 0
        for span in _spans(at, likely, self._room)[:_SPANS_MAX]:
            first = at.item(span.start)
            try:
                place = reader.load(first, at.item(span.stop - 1) - first + likely.item(span.stop - 1), source)
            except NotCached:
                if self.found.is_empty and not done:
                    raise
                break
            except (StorageDamaged, OSError):
                place = (0, 0)
            if place is None:
                # There is no room for more. An item that does not fit by itself is read alone.
                done = done or 1
                break
            starts[span] = at[span] + (place[0] - first)
            ends[span] = place[1]
            done = span.stop
        self._check(rows[:done], starts[:done], ends[:done], source.memory)

    def _check(self, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray, memory: memoryview) -> None:
        """Take the items that are whole and have the right ids. The others are odd."""
        fits = starts + ITEM_HEAD.itemsize <= ends
        heads = items_at(memory, ITEM_HEAD)[np.where(fits, starts, 0)]
        sizes = heads["length"].astype(np.int64)
        is_right = (
            fits
            & (sizes >= ENTRY_BYTES_MIN)
            & (sizes <= ends - LENGTH_BYTES - starts)
            & (heads["ledger"] == self._ledger_ids[rows])
            & (heads["entry"] == self._entry_ids[rows])
        )
        if not is_right.all():
            self.found.odd = np.concatenate([self.found.odd, rows[~is_right]])
            rows, starts, sizes = rows[is_right], starts[is_right], sizes[is_right]
        if len(rows):
            # In the order of the requests: responses whose numbers have the same encoded length are then adjacent.
            order = np.argsort(rows)
            rows = rows[order]
            entries = PlacedEntries(self._entry_ids[rows], memory, starts[order] + LENGTH_BYTES, sizes[order])
            self.found.pieces.append((rows, entries))


def _positions(index: LedgerIndex, ledger_id: int, low: int, high: int, source: CachedSource) -> tuple[int, np.ndarray]:
    """Return (an id, the positions from it on), at least two positions. 0: not held.

    They end after `high`, because the next position tells how long an item is. If that is too far from `low`, they end
    earlier. Raises NotCached.
    """
    count = min(high - low + 2, SPAN_IDS_MAX)
    first, positions = index.page_in_memory(ledger_id, low, high) or (
        low,
        index.positions(ledger_id, low, count, source),
    )
    lacking = low + count - first - len(positions)
    return first, np.append(positions, np.zeros(lacking, np.int64)) if lacking > 0 else positions


def _spans(at: np.ndarray, likely: np.ndarray, bytes_max: int) -> Sequence[slice]:
    """Return parts of ascending positions, each read by one call, for about `bytes_max` bytes of items."""
    ends = np.cumsum(likely)
    count = max(1, int(ends.searchsorted(bytes_max, side="right")))
    at = at[:count]
    steps = at[1:] - at[:-1]
    apart = (steps > _STEP_BYTES_MAX) | (at[1:] >> OFFSET_BITS != at[:-1] >> OFFSET_BITS)
    starts = [0, *(np.flatnonzero(apart) + 1).tolist()]
    spans = []
    for start, end in zip(starts, [*starts[1:], len(at)]):
        while start < end:
            fits = end
            if at.item(end - 1) - at.item(start) > _SPAN_BYTES_MAX:
                fits = start + int(at[start:end].searchsorted(at[start] + _SPAN_BYTES_MAX, side="right"))
            spans.append(slice(start, fits))
            start = fits
    return spans
