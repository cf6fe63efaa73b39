"""The entries that a bookie has not answered: runs of consecutive entries that were sent to it.

Entries of one slot are counted by rank, the number of entries below that the slot stores: the entries sent to it are
then one run, also in a striped ledger. A run is (first rank, rank after the last); runs ascend and do not touch. They
are tuples, replaced as a whole: a bookie that answers in order has one run, and one that answers every second request
has as many as the limits of a writer let it owe.
"""

from __future__ import annotations

import bisect
import functools

import numpy as np

from bkspark.wire.framing import equal_step

Runs = tuple[tuple[int, int], ...]


class Stripe:
    """The entries that one slot of an ensemble stores, in order: ids to ranks and back."""

    def __init__(self, slot: int, ensemble_size: int, write_quorum: int) -> None:
        self.is_whole = write_quorum == ensemble_size
        """Whether the slot stores every entry: ranks are ids then. Constant."""
        self._size = ensemble_size
        self._quorum = write_quorum
        self._residues = [entry for entry in range(ensemble_size) if (slot - entry) % ensemble_size < write_quorum]
        self._below = np.searchsorted(self._residues, np.arange(ensemble_size))
        self._is_stored = np.isin(np.arange(ensemble_size), self._residues)

    def rank(self, entry_id: int) -> int:
        """Return how many entries below this one the slot stores.

        >>> [Stripe(0, 3, write_quorum=2).rank(entry) for entry in range(6)]  # it stores 0, 2, 3, 5
        [0, 1, 1, 2, 3, 3]
        """
        if self.is_whole:
            return entry_id
        return entry_id // self._size * self._quorum + self._below.item(entry_id % self._size)

    def entry(self, rank: int) -> int:
        """Return the id of the entry of this rank."""
        if self.is_whole:
            return rank
        return rank // self._quorum * self._size + self._residues[rank % self._quorum]

    def part(self, first_entry: int, begin: int, end: int) -> tuple[int, np.ndarray]:
        """Return the entries among `first_entry` + [begin, end) that the slot stores.

        Returns:
            The rank of the first of them, and where they are, counted from `first_entry` on.
        """
        if self.is_whole:
            return first_entry + begin, np.arange(begin, end)
        ids = np.arange(first_entry + begin, first_entry + end)
        return self.rank(first_entry + begin), np.flatnonzero(self._is_stored[ids % self._size]) + begin

    def run(self, entry_ids: np.ndarray) -> tuple[int, int] | None:
        """Return (first rank, after the last) of ascending entries that are all that the slot stores in their range.

        None otherwise. Ids that the slot does not store count as stored: no bookie answers for them.
        """
        first, end = self.rank(entry_ids.item(0)), self.rank(entry_ids.item(-1) + 1)
        is_whole = end - first == len(entry_ids) and bool((entry_ids[1:] > entry_ids[:-1]).all())
        return (first, end) if is_whole else None

    def ranks(self, entry_ids: np.ndarray) -> np.ndarray:
        """Return the ranks of those of the entries that the slot stores."""
        if self.is_whole:
            return entry_ids
        residues = entry_ids % self._size
        stored = self._is_stored[residues]
        return entry_ids[stored] // self._size * self._quorum + self._below[residues[stored]]


@functools.lru_cache(maxsize=4096)
def stripe(slot: int, ensemble_size: int, write_quorum: int) -> Stripe:
    """Return the stripe of a slot."""
    return Stripe(slot, ensemble_size, write_quorum)


def consecutive(entry_ids: np.ndarray) -> tuple[int, int] | None:
    """Return (first, after the last) of consecutive entries, at least one; None if they are not consecutive."""
    return (entry_ids.item(0), entry_ids.item(-1) + 1) if equal_step(entry_ids) == 1 else None


def with_sent(runs: Runs, first: int, end: int) -> Runs:
    """Return the runs with ranks [first, end) added, which are above all of them."""
    if runs and runs[-1][1] == first:
        return (*runs[:-1], (runs[-1][0], end))
    return (*runs, (first, end))


def without_answered(runs: Runs, ranks: np.ndarray) -> tuple[Runs, int]:
    """Return the runs without these ranks, and how many of these were owed: an entry that is answered twice counts
    once."""
    if not len(ranks):
        return runs, 0
    if equal_step(ranks) == 1:
        return without_run(runs, ranks.item(0), ranks.item(-1) + 1)
    ranks = np.unique(ranks)
    starts = np.flatnonzero(np.append(True, np.diff(ranks) != 1))
    ends = np.append(starts[1:], len(ranks)) - 1
    owed = 0
    for first, last in zip(ranks[starts].tolist(), ranks[ends].tolist()):
        runs, count = without_run(runs, first, last + 1)
        owed += count
    return runs, owed


def without_run(runs: Runs, first: int, end: int) -> tuple[Runs, int]:
    """`without_answered` of ranks [first, end)."""
    if not runs:
        return runs, 0
    begin, stop = runs[0]
    if first == begin and end <= stop:
        # The case of a bookie that answers in order.
        return (((end, stop), *runs[1:]) if end < stop else runs[1:]), end - first
    low = bisect.bisect_right(runs, first, key=_stop_of)
    high = bisect.bisect_left(runs, end, key=_begin_of)
    touched = runs[low:high]
    if not touched:
        return runs, 0
    left = ((touched[0][0], first),) if touched[0][0] < first else ()
    right = ((end, touched[-1][1]),) if touched[-1][1] > end else ()
    owed = sum(min(stop, end) - max(begin, first) for begin, stop in touched)
    return (*runs[:low], *left, *right, *runs[high:]), owed


def _begin_of(run: tuple[int, int]) -> int:
    return run[0]


def _stop_of(run: tuple[int, int]) -> int:
    return run[1]
