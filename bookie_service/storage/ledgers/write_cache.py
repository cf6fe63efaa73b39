"""Entries that are journaled but not in an entry log yet: two halves of fixed memory, one active, one being flushed.

A half is one block of memory. It holds items `i32 length, entry` in order of arrival, exactly as journal and entry log
hold them, so the same bytes are the body of a journal record and the source of reads and of the entry log. In addition
it has, for each ledger, growing arrays of ascending entry ids and of the items' addresses in the block. There is one
pair of arrays, and a few more if entries arrive out of order (a repair, or a recovery that writes existing entries
again).

Bytes in a half do not change from `append` until `clear`.
"""

from __future__ import annotations

import struct

import numpy as np

from bkspark.wire.framing import LENGTH_BYTES, equal_step, gather_i32
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bookie_service.storage.io.framed_entries import FramedEntries, contiguous_spans

NOT_HELD = -1
_LENGTH = struct.Struct(">i")
INDEX_BYTES_PER_ENTRY = 16
_RUN_BYTES = 400
_MERGED_MAX = 64 * 1024
"""Runs are not merged into a longer run than this, which takes about a millisecond."""
_LOOK_MAX = 1024
"""How many ids are compared at once if entries came out of order."""
_LEDGER_BYTES = 600
_HEADER_BYTES = 1024
"""Memory that a changed header takes until it is flushed, including its ledger."""


class _Run:
    """Entries of one ledger with ascending ids, and the address of each."""

    __slots__ = ("_addresses", "_entries", "count", "last")

    def __init__(self) -> None:
        self._entries = np.empty(4, np.int64)
        """The entry ids, ascending, with room at the end."""
        self._addresses = np.empty(4, np.int64)
        """The address of each entry, with room at the end."""
        self.count = 0
        """The number of entries."""
        self.last = NOT_HELD
        """The highest entry id; NOT_HELD: there is no entry."""

    @property
    def entries(self) -> np.ndarray:
        return self._entries[: self.count]

    @property
    def addresses(self) -> np.ndarray:
        return self._addresses[: self.count]

    def append(self, entries: np.ndarray, addresses: np.ndarray) -> None:
        """Add entries, which are ascending and above `last`."""
        end = self.count + len(entries)
        if end > len(self._entries):
            self._entries = _grown(self._entries, self.count, end)
            self._addresses = _grown(self._addresses, self.count, end)
        self._entries[self.count : end] = entries
        self._addresses[self.count : end] = addresses
        self.count = end
        self.last = entries.item(-1)

    def append_single(self, entry_id: int, address: int) -> None:
        """Do as `append` for one entry, because numbers are cheaper than arrays of one element."""
        at = self.count
        if at == len(self._entries):
            self._entries = _grown(self._entries, at, at + 1)
            self._addresses = _grown(self._addresses, at, at + 1)
        self._entries[at] = self.last = entry_id
        self._addresses[at] = address
        self.count = at + 1

    def address(self, entry_id: int) -> int:
        """Return the address of one entry, or NOT_HELD."""
        at = int(self._entries[: self.count].searchsorted(entry_id))
        if at == self.count or self._entries.item(at) != entry_id:
            return NOT_HELD
        return self._addresses.item(at)

    def addresses_of(self, entry_ids: np.ndarray) -> np.ndarray:
        """Return the address of each entry, or NOT_HELD."""
        if not self.count:
            return np.full(len(entry_ids), NOT_HELD)
        at = np.minimum(self.entries.searchsorted(entry_ids), self.count - 1)
        return np.where(self._entries[at] == entry_ids, self._addresses[at], NOT_HELD)

    def find(self, entry_id: int) -> int:
        """Return the index of the first entry whose id is not below `entry_id`."""
        return int(self.entries.searchsorted(entry_id))


class LedgerWrites:
    """Where one half holds the entries of one ledger. If an id came twice, the newer address counts.

    Addresses grow in order of arrival. Entries mostly arrive in order, and there is one run. Other entries go to the
    first run that they continue, or to a new one. Before a new run begins, the last two are merged if the last one has
    grown to half of the one before. So there are few runs, and no entry is copied often. Long runs are not merged,
    because this happens on the event loop.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs = [_Run()]
        """The runs, at least one."""

    def append(self, entries: np.ndarray, addresses: np.ndarray) -> int:
        """Record the addresses of entries; return how many bytes of memory this costs."""
        if len(entries) > 1 and not bool((entries[1:] > entries[:-1]).all()):
            entries, addresses = _newest(entries, addresses)
        run, cost = self._continued(entries.item(0))
        run.append(entries, addresses)
        return cost + len(entries) * INDEX_BYTES_PER_ENTRY

    def append_single(self, entry_id: int, address: int) -> int:
        """Do as `append` for one entry."""
        run, cost = self._runs[0], 0
        if run.last >= entry_id:
            run, cost = self._continued(entry_id)
        run.append_single(entry_id, address)
        return cost + INDEX_BYTES_PER_ENTRY

    def _continued(self, entry_id: int) -> tuple[_Run, int]:
        """Return a run that entries from `entry_id` on continue, and the bytes that a new run costs."""
        for run in self._runs:
            if run.last < entry_id:
                return run, 0
        runs = self._runs
        while len(runs) > 1 and runs[-2].count <= min(2 * runs[-1].count, _MERGED_MAX - runs[-1].count):
            merged = _Run()
            merged.append(*_newest_of(runs.pop(), runs.pop()))
            runs.append(merged)
        runs.append(_Run())
        return runs[-1], _RUN_BYTES

    def run(self, first_entry: int, count_max: int) -> np.ndarray:
        """Return the addresses of first_entry, first_entry + 1, ... as far as held, at most `count_max`.

        If entries came out of order, the result may end earlier, but not before the first entry.
        """
        if len(self._runs) == 1:
            (run,) = self._runs
            start = run.find(first_entry)
            entries, addresses = run.entries[start : start + count_max], run.addresses[start : start + count_max]
        else:
            end_entry = first_entry + min(count_max, _LOOK_MAX)
            spans = [(run, slice(*run.entries.searchsorted((first_entry, end_entry)))) for run in self._runs]
            entries, addresses = _newest(
                np.concatenate([run.entries[span] for run, span in spans]),
                np.concatenate([run.addresses[span] for run, span in spans]),
            )
        if not len(entries):
            return addresses
        consecutive = entries - first_entry == np.arange(len(entries))
        length = len(entries) if consecutive[-1] else int(np.argmin(consecutive))
        return addresses[:length]

    def address(self, entry_id: int) -> int | None:
        """Return the address of one entry, or None, because numbers are cheaper than arrays of one element."""
        newest = NOT_HELD
        for run in self._runs:
            newest = max(newest, run.address(entry_id))
        return None if newest == NOT_HELD else newest

    def addresses_of(self, entry_ids: np.ndarray) -> np.ndarray:
        """Return the address of each entry, or NOT_HELD."""
        newest = self._runs[0].addresses_of(entry_ids)
        for run in self._runs[1:]:
            np.maximum(newest, run.addresses_of(entry_ids), out=newest)
        return newest

    def gap(self, first_entry: int, count_max: int) -> int:
        """Return how many ids from `first_entry` on are not held before the next one that is, at most `count_max`."""
        end = first_entry + count_max
        for run in self._runs:
            at = run.find(first_entry)
            if at < run.count:
                end = min(end, run.entries.item(at))
        return end - first_entry

    def ids(self) -> list[np.ndarray]:
        """Return ascending arrays that together contain all held ids. The arrays never change."""
        return [run.entries for run in self._runs if run.count]

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (entry ids, addresses) of all entries; ids ascend and are unique."""
        if len(self._runs) == 1:
            return self._runs[0].entries, self._runs[0].addresses
        return _newest_of(*self._runs)


def _newest_of(*runs: _Run) -> tuple[np.ndarray, np.ndarray]:
    return _newest(np.concatenate([run.entries for run in runs]), np.concatenate([run.addresses for run in runs]))


def _newest(entries: np.ndarray, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries with ascending ids, each with its highest address."""
    # A stable sort merges parts that are already in order, the usual case, in a single pass.
    order = np.argsort(entries, kind="stable")
    entries, addresses = entries[order], addresses[order]
    begins = np.flatnonzero(np.append(len(entries) > 0, entries[1:] != entries[:-1]))
    if len(begins) == len(entries):
        return entries, addresses
    return entries[begins], np.maximum.reduceat(addresses, begins)


def _grown(array: np.ndarray, count: int, needed: int) -> np.ndarray:
    larger = np.empty(max(needed, 2 * len(array)), array.dtype)
    larger[:count] = array[:count]
    return larger


class MemTable:
    """One half of the write cache: a block of memory, and the addresses of everything in it."""

    def __init__(self, capacity_bytes: int) -> None:
        self.memory = np.empty(capacity_bytes, np.uint8)
        """The items, back to back in order of arrival. Its size is constant; unused pages cost nothing."""
        self.used = 0
        """How many bytes of `memory` are used. `clear` resets it to 0."""
        self.ledgers: dict[int, LedgerWrites] = {}
        """Where the entries of each ledger are. Emptied by `clear`."""
        self._index_bytes = 0
        """Memory of `ledgers` and changed headers. Counted, so that small entries cannot exceed the limit."""

    @property
    def room(self) -> int:
        """Bytes of items that still fit, after memory for look-ups and headers is deducted. It may be below 0."""
        return len(self.memory) - self.used - self._index_bytes

    def place(self, octets: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Copy the items octets[starts[i]:][:sizes[i]], which must fit, into the block; return their addresses."""
        begin = self.used
        count, size = len(sizes), int(sizes[0])
        if bool((sizes == size).all()):
            self.used += count * size
            addresses = np.arange(begin, self.used, size)
            step = equal_step(starts)
            if step > 0:
                rows = np.ndarray((count, size), np.uint8, octets, int(starts[0]), (step, 1))
                self.memory[begin : self.used].reshape(count, size)[...] = rows
                return addresses
        else:
            ends = np.cumsum(sizes) + begin
            self.used = int(ends[-1])
            addresses = ends - sizes
        at = begin
        for start, end in contiguous_spans(starts, sizes):
            self.memory[at : at + end - start] = octets[start:end]
            at += end - start
        return addresses

    def insert(self, ledger_id: int, entry_ids: np.ndarray, addresses: np.ndarray) -> None:
        """Record the addresses of entries of one ledger, which `place` returned."""
        writes = self._writes(ledger_id)  # first, because it counts, too
        self._index_bytes += writes.append(entry_ids, addresses)

    def add_single(self, ledger_id: int, entry_id: int, octets: np.ndarray, at: int, size: int) -> memoryview:
        """Copy one entry, octets[at:][:size], which must fit, into the block as an item, and record its address.

        Returns:
            The item: its length word, then the entry.
        """
        begin = self.used
        end = self.used = begin + LENGTH_BYTES + size
        item = self.memory[begin:end].data
        _LENGTH.pack_into(item, 0, size)
        item[LENGTH_BYTES:] = octets[at : at + size].data
        writes = self.ledgers.get(ledger_id)
        if writes is None:
            writes = self._writes(ledger_id)
        self._index_bytes += writes.append_single(entry_id, begin)
        return item

    def note_header(self) -> None:
        """Count the memory of a header that is flushed together with this half. It need not fit."""
        self._index_bytes += _HEADER_BYTES

    def _writes(self, ledger_id: int) -> LedgerWrites:
        writes = self.ledgers.get(ledger_id)
        if writes is None:
            writes = self.ledgers[ledger_id] = LedgerWrites()
            self._index_bytes += _LEDGER_BYTES
        return writes

    def lengths(self, addresses: np.ndarray) -> np.ndarray:
        """Return the length of each item's entry, int64."""
        return gather_i32(self.memory, addresses).astype(np.int64)

    def read(self, ledger_id: int, first_entry: int, count_max: int, bytes_max: int) -> FramedEntries | None:
        """Return consecutive entries from `first_entry` on; None: that entry is not here.

        Returns at least one entry, and then as many as `bytes_max` bytes of items allow. Lent: valid until `clear`.
        """
        writes = self.ledgers.get(ledger_id)
        if writes is None:
            return None
        if count_max == 1:
            return self._read_one(writes, first_entry)
        # No item is smaller than its length word and its two ids.
        addresses = writes.run(first_entry, min(count_max, bytes_max // (LENGTH_BYTES + ENTRY_BYTES_MIN) + 1))
        if not len(addresses):
            return None
        sizes = self.lengths(addresses) + LENGTH_BYTES
        taken = max(1, int(np.cumsum(sizes).searchsorted(bytes_max, side="right")))
        is_full = taken < len(sizes)
        addresses, sizes = addresses[:taken], sizes[:taken]
        spans = [self.memory[start:end].data for start, end in contiguous_spans(addresses, sizes)]
        return FramedEntries(first_entry, spans[0] if len(spans) == 1 else b"".join(spans), sizes, is_full)

    def addresses_of(self, ledger_id: int, entry_ids: np.ndarray) -> np.ndarray | None:
        """Return the address of each entry's item, or NOT_HELD; None: no entry of the ledger is here."""
        writes = self.ledgers.get(ledger_id)
        return None if writes is None else writes.addresses_of(entry_ids)

    def _read_one(self, writes: LedgerWrites, entry_id: int) -> FramedEntries | None:
        address = writes.address(entry_id)
        if address is None:
            return None
        size = LENGTH_BYTES + int.from_bytes(self.memory[address : address + LENGTH_BYTES].tobytes(), "big")
        return FramedEntries(entry_id, self.memory[address : address + size].data, np.array([size]))

    def gap(self, ledger_id: int, first_entry: int, count_max: int) -> int:
        """Return how many ids from `first_entry` on are not held before the next one that is, at most `count_max`."""
        writes = self.ledgers.get(ledger_id)
        return count_max if writes is None else writes.gap(first_entry, count_max)

    def clear(self, *, keeps_memory: bool = True) -> None:
        """Drop everything. Views of the memory must not be in use, unless not `keeps_memory`: then it is replaced."""
        if not keeps_memory:
            self.memory = np.empty(len(self.memory), np.uint8)
        self.used = 0
        self._index_bytes = 0
        self.ledgers = {}
