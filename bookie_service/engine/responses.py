"""What the engine sends: bytes, encoded by the network in the protocol of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bkspark.wire.placed_entries import PlacedEntries

Parts = Sequence[bytes | memoryview]
"""Bytes that are sent back to back."""


class ReadResponseEncoder(Protocol):
    """Encodes the responses to single reads that came together; a row is a read."""

    @property
    def wants_lac(self) -> bool:
        """Whether `found` takes the LACs that the bookie knows."""

    def found(
        self, row: int, ledger_ids: np.ndarray, entries: PlacedEntries, lacs: np.ndarray | None
    ) -> bytes | memoryview:
        """Return the responses to the reads from `row` on, one for each entry, in order.

        Args:
            ledger_ids: one for each entry, or one for all.
            entries: the entries, with the ids that were requested.
            lacs: the LACs of the ledgers, one for each entry, or one for all; None: not known, or not wanted.
        """

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        """Return the responses to the reads from `row` on, which requested these entries, without an entry."""

    def take(self, rows: slice) -> ReadResponseEncoder:
        """Return the encoder for some of the reads."""

    def arrange(self, row: int, order: np.ndarray) -> None:
        """Put the reads from `row` on into another order: order[i] says which of them is the i-th."""


class AddResponseEncoder(Protocol):
    """Encodes the responses to adds that came together; a row is an add."""

    def added(
        self,
        statuses: int | np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        last_synced: np.ndarray | None,
    ) -> bytes:
        """Return the responses to all adds; one status applies to all. `last_synced`: LastAddSynced of each add."""

    def take(self, rows: slice | np.ndarray) -> AddResponseEncoder:
        """Return the encoder for some of the adds."""
