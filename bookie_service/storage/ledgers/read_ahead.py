"""The read-ahead cache of `DbLedgerStorage`: entries that follow requested ones, kept for the next request.

It holds runs of items as they were read, and evicts the runs unused for longest. A flush makes older runs of its
ledgers stale, so they are dropped when it ends. A run that was read while a flush ended is not kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from bkspark.options import BYTES_MAX, COUNT_MAX, bounded, check
from bookie_service.metrics.histograms import Histograms
from bookie_service.storage.io.framed_entries import FramedEntries

_RUN_BYTES = 400
"""Memory that a run takes in addition to its bytes and sizes."""


@dataclass(frozen=True, slots=True)
class ReadAheadOptions:
    """What `DbLedgerStorage` reads ahead at a miss. `cache_bytes` 0: nothing.

    batch_bytes: how much at once; 0 or less: a 16th of the cache.
    """

    cache_bytes: int = bounded(64 * 1024 * 1024, 0, BYTES_MAX, "bytes")
    batch_entries: int = bounded(100, 1, COUNT_MAX)
    """How many entries at once."""
    batch_bytes: int = bounded(-1, -1, BYTES_MAX, "bytes")

    def __post_init__(self) -> None:
        check(self)


class ReadAheadCache:
    """Runs of entries in limited memory. For any thread."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` 0: nothing is kept."""
        self._bytes_max = bytes_max
        self._runs: OrderedDict[tuple[int, int], FramedEntries] = OrderedDict()
        """Runs by (ledger id, first entry id); the run unused for longest comes first."""
        self._first_entries: dict[int, np.ndarray] = {}
        """The first entry ids of each ledger's runs, ascending."""
        self._lock = threading.Lock()
        self.used = 0
        """Memory that the runs take, in bytes."""
        self.hits = self.lookups = 0
        """How many look-ups found something, and how many there were. They only grow."""
        self.sizes = Histograms(2)
        """Numbers of entries, and of bytes, of the runs that were read ahead."""
        self.epoch = 0
        """Counts events that make runs stale. Save it before a read, and pass it to `keep`."""

    def find(self, ledger_id: int, first_entry: int, count_max: int, bytes_max: int) -> FramedEntries | None:
        """Return entries from `first_entry` on, as far as one run holds them; None: no run holds that entry.

        Returns at least one entry, and then as many as `count_max` and `bytes_max` bytes of items allow.
        """
        with self._lock:
            self.lookups += 1
            starts = self._first_entries.get(ledger_id)
            row = -1 if starts is None else int(starts.searchsorted(first_entry, side="right")) - 1
            if starts is None or row < 0:
                return None
            key = (ledger_id, int(starts[row]))
            run = self._runs[key]
            if run.end_entry <= first_entry:
                return None
            self._runs.move_to_end(key)
            self.hits += 1
        return part_of(run, first_entry, count_max, bytes_max)

    def pass_by(self) -> None:
        """Count a miss for a read that is too long to be looked up here."""
        with self._lock:
            self.lookups += 1

    def keep(self, ledger_id: int, run: FramedEntries, epoch: int) -> None:
        """Keep a run that was read when `epoch` had this value."""
        cost = _cost(run)
        with self._lock:
            key = (ledger_id, run.first_entry)
            self.sizes.record(0, len(run))
            self.sizes.record(1, len(run.buffer))
            if epoch != self.epoch or cost > self._bytes_max:
                return
            if key in self._runs:
                self._drop(key)
            self._runs[key] = run.owned()
            self.used += cost
            starts = self._first_entries.get(ledger_id)
            if starts is None:
                starts = np.empty(0, np.int64)
            self._first_entries[ledger_id] = np.insert(starts, starts.searchsorted(run.first_entry), run.first_entry)
            while self.used > self._bytes_max:
                self._drop(next(iter(self._runs)))

    def forget(self, ledger_ids: set[int]) -> None:
        """Drop all runs of ledgers, including those that are being read."""
        with self._lock:
            self.epoch += 1
            for ledger_id in ledger_ids & self._first_entries.keys():
                for first_entry in self._first_entries[ledger_id].tolist():
                    self._drop((ledger_id, first_entry))

    def _drop(self, key: tuple[int, int]) -> None:
        ledger_id, first_entry = key
        self.used -= _cost(self._runs.pop(key))
        starts = self._first_entries[ledger_id]
        left = starts[starts != first_entry]
        if len(left):
            self._first_entries[ledger_id] = left
        else:
            del self._first_entries[ledger_id]


def part_of(run: FramedEntries, first_entry: int, count_max: int, bytes_max: int) -> FramedEntries:
    """Return entries of a run from `first_entry`, which it holds, on: at least one, and as many as the limits allow."""
    row = first_entry - run.first_entry
    ends = np.cumsum(run.sizes)
    begin = int(ends[row] - run.sizes[row])
    count = int(ends[row:].searchsorted(begin + bytes_max, side="right"))
    count = max(1, min(count, count_max))
    end = int(ends[row + count - 1])
    is_full = count < count_max and (row + count < len(run) or run.is_full)
    return FramedEntries(first_entry, memoryview(run.buffer)[begin:end], run.sizes[row : row + count], is_full)


def _cost(run: FramedEntries) -> int:
    return len(run.buffer) + run.sizes.nbytes + _RUN_BYTES
