"""Items: a run of consecutive stored entries of one ledger, as journal, entry log and batch-read replies hold them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Items:
    """`buffer` is items `i32 length, entry` back to back; item i is entry `first_entry + i` and has sizes[i] bytes."""

    first_entry: int
    buffer: bytes | memoryview
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def end_entry(self) -> int:
        """The entry id after the last one here."""
        return self.first_entry + len(self.sizes)
