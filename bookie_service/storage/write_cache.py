"""Entries that are journaled but not yet in an entry log: two halves of fixed memory, one filling, one being flushed.

A half is one block of memory that holds items `i32 length, entry` in order of arrival, exactly as journal and entry
log hold them, so the same bytes serve as the body of a journal record, as the source of reads and of the entry log.
Beside it, per ledger, two growing arrays: entry ids, ascending, and the item's address in the block. Entries that
arrive out of order (a recovery writes again what is there already) go to a small dict; they are rare.

Bytes in a half do not change from `append` until `clear`.
"""

from __future__ import annotations

import numpy as np

from bkspark.wire.framing import LENGTH_BYTES, equal_step, gather_i32
from bookie_service.storage.items import Items, contiguous_spans

NOT_HELD = -1
INDEX_BYTES_PER_ENTRY = 16
_LATE_BYTES_PER_ENTRY = 150
_LEDGER_BYTES = 600


class LedgerWrites:
    """Where one half holds the entries of one ledger."""

    __slots__ = ("_addresses", "_count", "_entries", "_late", "last_entry")

    def __init__(self) -> None:
        self._entries = np.empty(4, np.int64)
        self._addresses = np.empty(4, np.int64)
        self._count = 0
        self._late: dict[int, int] = {}
        self.last_entry = NOT_HELD
        """Highest entry id held here."""

    def append(self, entries: np.ndarray, addresses: np.ndarray) -> int:
        """Note where entries lie; the newer address of an id wins. Return the bytes of memory that it costs."""
        ascending = len(entries) == 1 or bool((entries[1:] > entries[:-1]).all())
        if not ascending or entries.item(0) <= self.last_entry:
            self._late.update(zip(entries.tolist(), addresses.tolist()))
            self.last_entry = max(self.last_entry, int(entries.max()))
            return len(entries) * _LATE_BYTES_PER_ENTRY
        end = self._count + len(entries)
        if end > len(self._entries):
            self._entries = _grown(self._entries, self._count, end)
            self._addresses = _grown(self._addresses, self._count, end)
        self._entries[self._count : end] = entries
        self._addresses[self._count : end] = addresses
        self._count = end
        self.last_entry = int(entries[-1])
        return len(entries) * INDEX_BYTES_PER_ENTRY

    def append_one(self, entry_id: int, address: int) -> int:
        """`append` of one entry: numbers are cheaper to handle than arrays of one."""
        if entry_id <= self.last_entry:
            self._late[entry_id] = address
            return _LATE_BYTES_PER_ENTRY
        at = self._count
        if at == len(self._entries):
            self._entries = _grown(self._entries, at, at + 1)
            self._addresses = _grown(self._addresses, at, at + 1)
        self._entries[at] = self.last_entry = entry_id
        self._addresses[at] = address
        self._count = at + 1
        return INDEX_BYTES_PER_ENTRY

    def run(self, first_entry: int, count_max: int) -> np.ndarray:
        """Return the addresses of first_entry, first_entry + 1, ... as far as held, at most `count_max`."""
        late = self._late.get(first_entry)
        if late is not None:
            return np.array([late], np.int64)
        start = int(self._entries[: self._count].searchsorted(first_entry))
        entries = self._entries[start : min(self._count, start + count_max)]
        if not len(entries) or entries[0] != first_entry:
            return entries[:0]
        consecutive = entries - first_entry == np.arange(len(entries))
        length = len(entries) if consecutive[-1] else int(np.argmin(consecutive))
        if self._late:
            # Stop before an id that was written again.
            length = next((i for i in range(length) if first_entry + i in self._late), length)
        return self._addresses[start : start + length]

    def address(self, entry_id: int) -> int | None:
        """`run` of one entry: numbers are cheaper to handle than arrays of one."""
        late = self._late.get(entry_id)
        if late is not None:
            return late
        at = int(self._entries[: self._count].searchsorted(entry_id))
        if at == self._count or self._entries.item(at) != entry_id:
            return None
        return self._addresses.item(at)

    def gap(self, first_entry: int, count_max: int) -> int:
        """Return how many ids from `first_entry` on lie before the next one held here, at most `count_max`."""
        start = int(self._entries[: self._count].searchsorted(first_entry))
        following = [int(self._entries[start])] if start < self._count else []
        following += [entry_id for entry_id in self._late if entry_id >= first_entry]
        return min(min(following, default=first_entry + count_max) - first_entry, count_max)

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (entry ids, addresses) of everything held, ids ascending and unique."""
        entries, addresses = self._entries[: self._count], self._addresses[: self._count]
        if not self._late:
            return entries, addresses
        late = np.array(sorted(self._late.items()), np.int64)
        kept = ~np.isin(entries, late[:, 0])
        entries = np.concatenate([entries[kept], late[:, 0]])
        order = np.argsort(entries, kind="stable")
        return entries[order], np.concatenate([addresses[kept], late[:, 1]])[order]


def _grown(array: np.ndarray, count: int, needed: int) -> np.ndarray:
    larger = np.empty(max(needed, 2 * len(array)), array.dtype)
    larger[:count] = array[:count]
    return larger


class CacheHalf:
    """One block of memory and where everything in it lies."""

    def __init__(self, capacity_bytes: int) -> None:
        # Untouched pages of an empty array cost nothing until they are written.
        self.memory = np.empty(capacity_bytes, np.uint8)
        self.used = 0
        self.ledgers: dict[int, LedgerWrites] = {}
        self._index_bytes = 0

    @property
    def room(self) -> int:
        """Bytes of items that still fit; memory for finding them counts too."""
        return len(self.memory) - self.used - self._index_bytes

    def place(self, octets: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Copy the items octets[starts[i]:][:sizes[i]] into the block and return their addresses. They must fit."""
        begin = self.used
        count, size = len(sizes), int(sizes[0])
        if count == 1:
            return np.array([self.place_one(octets, starts.item(), size)])
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

    def place_one(self, octets: np.ndarray, start: int, size: int) -> int:
        """Copy the item octets[start:][:size] into the block and return its address. It must fit."""
        begin = self.used
        self.used += size
        self.memory[begin : self.used] = octets[start : start + size]
        return begin

    def insert(self, ledger_id: int, entry_ids: np.ndarray, addresses: np.ndarray) -> None:
        """Note that entries of one ledger lie at `addresses`, as `place` returned them."""
        self._index_bytes += self._writes(ledger_id).append(entry_ids, addresses)

    def insert_one(self, ledger_id: int, entry_id: int, address: int) -> None:
        """Note that an entry lies at `address`, as `place_one` returned it."""
        self._index_bytes += self._writes(ledger_id).append_one(entry_id, address)

    def _writes(self, ledger_id: int) -> LedgerWrites:
        writes = self.ledgers.get(ledger_id)
        if writes is None:
            writes = self.ledgers[ledger_id] = LedgerWrites()
            self._index_bytes += _LEDGER_BYTES
        return writes

    def lengths(self, addresses: np.ndarray) -> np.ndarray:
        """Return the entry length of each item, int64."""
        return gather_i32(self.memory, addresses).astype(np.int64)

    def read(self, ledger_id: int, first_entry: int, count_max: int, bytes_max: int) -> Items | None:
        """Return a run of consecutive entries from `first_entry` on; None when that one is not here.

        At least one entry, then as many as `bytes_max` bytes of items allow. Lent: valid until `clear`.
        """
        writes = self.ledgers.get(ledger_id)
        if writes is None:
            return None
        if count_max == 1:
            return self._read_one(writes, first_entry)
        # No item is smaller than its length word and two ids.
        addresses = writes.run(first_entry, min(count_max, bytes_max // (LENGTH_BYTES + 16) + 1))
        if not len(addresses):
            return None
        sizes = self.lengths(addresses) + LENGTH_BYTES
        taken = max(1, int(np.cumsum(sizes).searchsorted(bytes_max, side="right")))
        is_full = taken < len(sizes)
        addresses, sizes = addresses[:taken], sizes[:taken]
        spans = [self.memory[start:end].data for start, end in contiguous_spans(addresses, sizes)]
        return Items(first_entry, spans[0] if len(spans) == 1 else b"".join(spans), sizes, is_full)

    def _read_one(self, writes: LedgerWrites, entry_id: int) -> Items | None:
        address = writes.address(entry_id)
        if address is None:
            return None
        size = LENGTH_BYTES + int.from_bytes(self.memory[address : address + LENGTH_BYTES].tobytes(), "big")
        return Items(entry_id, self.memory[address : address + size].data, np.array([size]))

    def gap(self, ledger_id: int, first_entry: int, count_max: int) -> int:
        """Return how many entries from `first_entry` on lie before the next one held here, at most `count_max`."""
        writes = self.ledgers.get(ledger_id)
        return count_max if writes is None else writes.gap(first_entry, count_max)

    def clear(self) -> None:
        """Forget everything; nobody may hold a view of the memory any more."""
        self.used = 0
        self._index_bytes = 0
        self.ledgers = {}
