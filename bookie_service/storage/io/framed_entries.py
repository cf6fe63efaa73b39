"""Stored entries in the form `i32 length, entry`, which journal, entry logs and batch-read responses have in common."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.placed_entries import PlacedEntries


@dataclass(frozen=True, slots=True)
class FramedEntries:
    """Consecutive entries of one ledger: item i of `buffer` is entry `first_entry + i` and has sizes[i] bytes.

    `buffer` may be lent (`byte_source`): to keep items beyond the next read, keep `owned()`. `is_full`: the next entry
    is also here, but exceeds the number of requested bytes.
    """

    first_entry: int
    buffer: bytes | memoryview
    sizes: np.ndarray
    is_full: bool = False

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def end_entry(self) -> int:
        """The id of the last entry, plus one."""
        return self.first_entry + len(self.sizes)

    def placed(self, first_entry: int) -> PlacedEntries:
        """Return the entries without their length words, with ids from `first_entry` on."""
        starts = np.cumsum(self.sizes) - self.sizes + LENGTH_BYTES
        ids = np.arange(first_entry, first_entry + len(self.sizes))
        return PlacedEntries(ids, memoryview(self.buffer), starts, self.sizes - LENGTH_BYTES)

    def owned(self) -> FramedEntries:
        """Return the same items, copied into memory of their own."""
        return FramedEntries(self.first_entry, bytes(self.buffer), self.sizes, self.is_full)


def contiguous_spans(starts: np.ndarray, sizes: np.ndarray) -> list[tuple[int, int]]:
    """Return (start, end) of the fewest spans that contain, in this order, the pieces starts[i] of sizes[i] bytes."""
    ends = starts + sizes
    gaps = ends[:-1] != starts[1:]
    if not gaps.any():
        return [(int(starts[0]), int(ends[-1]))]
    breaks = np.flatnonzero(gaps)
    first_of = np.concatenate([[0], breaks + 1])
    last_of = np.concatenate([breaks, [len(ends) - 1]])
    return list(zip(starts[first_of].tolist(), ends[last_of].tolist()))


def rows_by_ledger(ledger_ids: np.ndarray) -> list[tuple[int, slice | np.ndarray]]:
    """Return (ledger id, its rows in order) for each ledger. Rows index arrays of the same length."""
    first = int(ledger_ids[0])
    if (ledger_ids == first).all():
        return [(first, slice(None))]
    order = np.argsort(ledger_ids, kind="stable")
    ordered = ledger_ids[order]
    bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    return [(int(ordered[start]), order[start:end]) for start, end in itertools.pairwise(bounds)]


def ledger_sums(ledger_ids: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (ledger ids ascending, sum of the sizes of each)."""
    ids, places = np.unique(ledger_ids, return_inverse=True)
    sums = np.zeros(len(ids), np.int64)
    np.add.at(sums, places.ravel(), sizes)
    return ids, sums
