"""What one bookie must hold of a ledger, according to the ledger's metadata. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What one bookie holds of a fragment: entry n is on the `write_quorum` bookies from slot n mod E on."""

    first_entry: int
    end_entry: int
    slot: int
    ensemble_size: int
    """E, the number of slots of the fragment."""
    write_quorum: int

    def includes(self, entry_ids: np.ndarray) -> np.ndarray:
        """Return which entries of the fragment are on the bookie, bool each."""
        is_its: np.ndarray = (self.slot - entry_ids) % self.ensemble_size < self.write_quorum
        return is_its

    @property
    def count(self) -> int:
        """The number of entries on the bookie."""
        size = self.ensemble_size
        cycles, rest = divmod(max(0, self.end_entry - self.first_entry), size)
        in_rest = sum((self.slot - self.first_entry - at) % size < self.write_quorum for at in range(rest))
        return cycles * min(size, self.write_quorum) + in_rest


@dataclass(frozen=True, slots=True)
class LedgerShare:
    """What one bookie must hold of a ledger, as far as it does not change any more.

    parts: one for each fragment that receives no more entries: for all fragments of a closed ledger, and for all except
        the last of an open ledger.
    """

    parts: tuple[HeldShare, ...]
    is_closed: bool = True
    """Whether the ledger is closed, so that `parts` are all."""
    is_deleted: bool = False
    """Whether the ledger has no metadata any more: then nothing must be held of it."""


def is_elsewhere(is_closed: bool, ensembles: Iterable[Sequence[str]], bookie_id: str) -> bool:
    """Return whether the metadata prove that this bookie has no part in a ledger."""
    return is_closed and all(bookie_id not in ensemble for ensemble in ensembles)
