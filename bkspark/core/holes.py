"""Finds entries that a bookie must have and that its own list of a ledger's entries lacks. PURE.

The cost depends on the number of runs in the list, not on the number of entries in the ledger.
"""

from __future__ import annotations

import numpy as np

from bkspark.core.metadata import Fragment
from bkspark.core.striping import write_set
from bkspark.wire.entry_lists import EntryRuns


def holes(
    listed: EntryRuns, fragment: Fragment, end_entry: int, slot: int, write_quorum: int
) -> tuple[int, int | None]:
    """Return how many of a slot's entries in [first entry of the fragment, end_entry) the list lacks, and the first of
    them, None if there is none.

    >>> runs = EntryRuns(np.array([0, 7]), np.array([3, 10]))
    >>> holes(runs, Fragment(0, ("a", "b")), 10, 0, 2)
    (4, 3)
    """
    size = len(fragment.bookies)
    stored = np.array([residue for residue in range(size) if slot in write_set(residue, size, write_quorum)])

    def missing_below(end: int) -> int:
        wanted = _count(np.array([fragment.first_entry]), np.array([end]), stored, size)
        starts = np.clip(listed.starts, fragment.first_entry, end)
        ends = np.clip(listed.starts + listed.sizes, fragment.first_entry, end)
        return wanted - _count(starts, ends, stored, size)

    if fragment.first_entry >= end_entry or not (count := missing_below(end_entry)):
        return 0, None
    # Binary search for the lowest end below which an entry is missing: the first missing entry is directly before it.
    low, high = fragment.first_entry, end_entry
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if missing_below(middle) else (middle, high)
    return count, high - 1


def _count(starts: np.ndarray, ends: np.ndarray, residues: np.ndarray, size: int) -> int:
    """Return how many ids in the runs [starts[i], ends[i]) have one of the given residues modulo `size`."""
    below = [(bounds[:, None] - residues + size - 1) // size for bounds in (starts, ends)]
    return int((below[1] - below[0]).sum())
