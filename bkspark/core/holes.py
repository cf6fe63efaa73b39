"""What bookies' own lists of a ledger's entries say: which entries one bookie lacks, and which no bookie has. PURE.

The cost depends on the number of runs in the lists, not on the number of entries in the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        ends = np.clip(listed.ends, fragment.first_entry, end)
        return wanted - _count(starts, ends, stored, size)

    if fragment.first_entry >= end_entry or not (count := missing_below(end_entry)):
        return 0, None
    # Binary search for the lowest end below which an entry is missing: the first missing entry is directly before it.
    low, high = fragment.first_entry, end_entry
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if missing_below(middle) else (middle, high)
    return count, high - 1


def held_parts(
    lists: Sequence[EntryRuns], first_entry: int, end_entry: int, gap_entries_min: int
) -> list[tuple[int, int]]:
    """Return the parts [first, end) of [first_entry, end_entry) that are left without the gaps in which no list has an
    entry. Gaps of less than `gap_entries_min` entries stay in the parts.

    >>> lists = [EntryRuns(np.array([0, 900]), np.array([3, 5])), EntryRuns(np.array([7]), np.array([3]))]
    >>> held_parts(lists, 2, 5000, 100)
    [(2, 10), (900, 905)]
    """
    starts = np.concatenate([np.clip(each.starts, first_entry, end_entry) for each in lists])
    ends = np.concatenate([np.clip(each.ends, first_entry, end_entry) for each in lists])
    order = np.argsort(starts)
    order = order[ends[order] > starts[order]]
    starts, ends = starts[order], ends[order]
    if not len(starts):
        return []
    reached = np.maximum.accumulate(ends)
    begins = np.append(True, starts[1:] - reached[:-1] >= gap_entries_min)
    last = np.append(np.flatnonzero(begins[1:]), len(starts) - 1)
    return list(zip(starts[begins].tolist(), reached[last].tolist()))


def _count(starts: np.ndarray, ends: np.ndarray, residues: np.ndarray, size: int) -> int:
    """Return how many ids in the runs [starts[i], ends[i]) have one of the given residues modulo `size`."""
    # In this form no sum is above the highest id.
    below = [(bounds[:, None] - residues - 1) // size + 1 for bounds in (starts, ends)]
    return int((below[1] - below[0]).sum())
