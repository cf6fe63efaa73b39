"""Encodes the responses to adds and single reads (`engine.responses`) in V2 and V3.

A V2 response repeats the ids of its request. A V3 response names its request by the txnId. `V3Responses` keeps one
txnId per request, in the order of the requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bkspark.wire import v2, v3, v3_reads
from bkspark.wire.placed_entries import PlacedEntries
from bkspark.wire.v3_patterns import number
from bkspark.wire.v3_single_read import encode_single_read_response


def txn_id_array(txn_id: int) -> np.ndarray:
    """Return a txnId as an int64 array of one element; from 2**63 on, as the negative number with the same bits."""
    return np.array([txn_id], np.uint64).view(np.int64)


class V2Responses:
    """Responses to requests in V2."""

    wants_lac = False

    def added(
        self,
        statuses: int | np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        last_synced: np.ndarray | None,
    ) -> bytes:
        return v2.encode_replies(v2.ADD, statuses, ledger_ids, entry_ids)

    def found(
        self, row: int, ledger_ids: np.ndarray, entries: PlacedEntries, lacs: np.ndarray | None
    ) -> bytes | memoryview:
        return v2.encode_read_replies(ledger_ids, entries)

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        return v2.encode_replies(v2.READ, v2.code_of(status), ledger_ids, entry_ids)

    def take(self, rows: slice | np.ndarray) -> V2Responses:
        return self

    def arrange(self, row: int, order: np.ndarray) -> None:
        """Do nothing: a response names its request by the ids."""


V2_RESPONSES = V2Responses()


@dataclass(frozen=True, slots=True)
class V3Responses:
    """Responses to requests in V3. `txn_ids`: int64, one per request."""

    txn_ids: np.ndarray
    wants_lac: bool = True
    """Whether responses with entries carry the ledger's LAC; those to fencing reads do not."""

    def added(
        self,
        statuses: int | np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        last_synced: np.ndarray | None,
    ) -> bytes:
        codes = np.broadcast_to(v3.codes_of(statuses), self.txn_ids.shape)
        return v3.encode_add_responses(self.txn_ids, codes, ledger_ids, entry_ids, last_synced)

    def found(
        self, row: int, ledger_ids: np.ndarray, entries: PlacedEntries, lacs: np.ndarray | None
    ) -> bytes | memoryview:
        return v3_reads.encode_read_responses(self.txn_ids[row : row + len(entries)], ledger_ids, entries, lacs)

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        txn_ids = self.txn_ids[row : row + len(entry_ids)]
        return v3_reads.encode_read_failures(txn_ids, v3.code_of(status), ledger_ids, entry_ids)

    def take(self, rows: slice | np.ndarray) -> V3Responses:
        # A copy, because the selected rows may wait and outlive the others.
        return V3Responses(self.txn_ids[rows].copy(), self.wants_lac)

    def arrange(self, row: int, order: np.ndarray) -> None:
        rows = slice(row, row + len(order))
        self.txn_ids[rows] = self.txn_ids[rows][order]


@dataclass(frozen=True, slots=True)
class V3SingleRead:
    """The response to one read in V3. `txn_id`: that of the request."""

    txn_id: bytes
    wants_lac: bool
    """As in `V3Responses`."""

    def found(self, row: int, ledger_ids: np.ndarray, entries: PlacedEntries, lacs: np.ndarray | None) -> bytes:
        start = entries.starts.item(0)
        entry = entries.octets[start : start + entries.sizes.item(0)]
        return encode_single_read_response(
            self.txn_id, ledger_ids.item(0), entries.entry_ids.item(0), entry, None if lacs is None else lacs.item(0)
        )

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        txn_ids = txn_id_array(number(self.txn_id))
        return v3_reads.encode_read_failures(txn_ids, v3.code_of(status), ledger_ids, entry_ids)

    def take(self, rows: slice | np.ndarray) -> V3SingleRead:
        return self

    def arrange(self, row: int, order: np.ndarray) -> None:
        """Do nothing: there is only one request."""
