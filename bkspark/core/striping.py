"""Striping: which bookies of an ensemble store which entries: round robin by entry id.

Slots are positions in an ensemble, 0 to E - 1. Sets of slots are bit masks (bit i is slot i), so that whole ranges of
entries are one array; E is at most 64 where they are used.
"""

from __future__ import annotations

import functools

import numpy as np

ENSEMBLE_SIZE_MAX = 64


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the Qw slots that store one entry, in preference order.

    Source: BookKeeper protocol.md, "Write quorums": item i is (entry_id + i) mod E.

    >>> write_set(3, 4, write_quorum=3)
    (3, 0, 1)
    """
    return _of_residue(entry_id % ensemble_size, ensemble_size, write_quorum)


def write_set_masks(entry_ids: np.ndarray, ensemble_size: int, write_quorum: int) -> np.ndarray:
    """Return the write sets of many entries as a uint64 array of slot masks."""
    return _masks_by_residue(ensemble_size, write_quorum)[entry_ids % ensemble_size]


@functools.lru_cache(maxsize=4096)
def _of_residue(residue: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    return tuple((residue + i) % ensemble_size for i in range(write_quorum))


@functools.lru_cache(maxsize=256)
def _masks_by_residue(ensemble_size: int, write_quorum: int) -> np.ndarray:
    masks = [mask_of(write_set(residue, ensemble_size, write_quorum)) for residue in range(ensemble_size)]
    return np.array(masks, np.uint64)


def mask_of(slots: tuple[int, ...]) -> int:
    """Return the bit mask of slots."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


class Stripe:
    """The entries that one slot of an ensemble stores, in order: ids to ranks and back."""

    def __init__(self, slot: int, ensemble_size: int, write_quorum: int) -> None:
        self.is_whole = write_quorum == ensemble_size
        """Whether the slot stores every entry: ranks are ids then. Constant."""
        self._size = ensemble_size
        """E of the ledger. Constant."""
        self._quorum = write_quorum
        """Qw of the ledger. Constant."""
        self._residues = [entry for entry in range(ensemble_size) if (slot - entry) % ensemble_size < write_quorum]
        """The ids below `_size` that the slot stores; the others repeat them. Constant."""
        self._below = np.searchsorted(self._residues, np.arange(ensemble_size))
        """How many of these are below each residue. Constant."""
        self._is_stored = np.isin(np.arange(ensemble_size), self._residues)
        """Whether the slot stores each residue. Constant."""

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
        """Return the entries in [first_entry + begin, first_entry + end) that the slot stores.

        Returns:
            The rank of the first of them, and their offsets from `first_entry`.
        """
        if self.is_whole:
            return first_entry + begin, np.arange(begin, end)
        ids = np.arange(first_entry + begin, first_entry + end)
        return self.rank(first_entry + begin), np.flatnonzero(self._is_stored[ids % self._size]) + begin

    def run(self, entry_ids: np.ndarray) -> tuple[int, int] | None:
        """Return (first rank, rank after the last) if the entries ascend and are all that the slot stores in their
        range.

        Otherwise return None. The entries must be stored by the slot: no bookie answers for others.
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
