"""What the engine sends: bytes, encoded by the network in the protocol of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

Parts = Sequence[bytes | memoryview]
"""Bytes that are sent back to back."""


class ReadResponseEncoder(Protocol):
    """Encodes the responses to single reads that came together; a row is a read."""

    @property
    def wants_lac(self) -> bool:
        """Whether `found` takes the LAC that the bookie knows."""

    def found(
        self, row: int, ledger_id: int, first_entry: int, items: bytes | memoryview, sizes: np.ndarray, lac: int | None
    ) -> bytes | memoryview:
        """Return the responses to the reads from `row` on, which asked for `first_entry`, first_entry + 1, ...

        Args:
            items: `i32 length, entry` each; item i has sizes[i] bytes.
            lac: None: it is not known, or not wanted.
        """

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        """Return the responses to the reads from `row` on, which requested these entries, without an entry."""

    def take(self, rows: slice) -> ReadResponseEncoder:
        """Return the encoder for some of the reads."""


class AddResponseEncoder(Protocol):
    """Encodes the responses to adds that came together; a row is an add."""

    def added(
        self,
        statuses: int | np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        last_synced: np.ndarray | None,
    ) -> bytes:
        """Return the responses to all adds. One status counts for all; `last_synced`: LastAddSynced of each."""

    def take(self, rows: slice | np.ndarray) -> AddResponseEncoder:
        """Return the encoder for some of the adds."""
