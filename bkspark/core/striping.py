"""Which bookies of an ensemble store which entries: round robin by entry id.

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
