"""How adds and single reads are answered, in the protocol in which they were asked. Statuses come as V2's.

V2 repeats what was asked; V3 tells answers apart by the requests' numbers (txnIds), which `V3Answers` keeps, a row per
request, in the order of the requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bkspark.wire import v2, v3, v3_reads
from bkspark.wire.v2 import Status

_V3_STATUSES = np.full(int(max(Status)) + 1, int(v3.Status.EIO), np.int64)
for _status in Status:
    _V3_STATUSES[_status] = v3.Status[_status.name]


def v3_status(status: int) -> int:
    """Return what V3 sends for a V2 status."""
    return int(_V3_STATUSES[status])


def txn_id_array(txn_id: int) -> np.ndarray:
    """Return a txnId as int64 array of one; above 2**63 as the negative number with the same bits."""
    return np.array([txn_id], np.uint64).view(np.int64)


class ReadAnswers(Protocol):
    """Answers to single reads that came together."""

    wants_lac: bool
    """Whether `found` is to be told the LAC that the bookie knows."""

    def found(
        self, row: int, ledger_id: int, first_entry: int, items: bytes | memoryview, sizes: np.ndarray, lac: int | None
    ) -> bytes | memoryview:
        """Return the answers to the reads from `row` on, which asked for `first_entry`, first_entry + 1, ...

        Args:
            items: `i32 length, entry` each; item i has sizes[i] bytes.
            lac: None: it is not known, or not wanted.
        """

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        """Return the answers to the reads from `row` on, which asked for these and come to nothing."""

    def take(self, rows: slice) -> ReadAnswers:
        """Return the answers of some of the reads."""


class Answers(ReadAnswers, Protocol):
    """Answers to adds as well."""

    def added(
        self,
        statuses: int | np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        last_synced: np.ndarray | None,
    ) -> bytes:
        """Return the answers to all adds; one status may stand for all. `last_synced`: LastAddSynced, of each."""

    def take(self, rows: slice | np.ndarray) -> Answers: ...


class V2Answers:
    """Of requests in V2. Its peers cannot take EUNKNOWNLEDGERSTATE: EIO is sent for it, which is as uncertain."""

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
        self, row: int, ledger_id: int, first_entry: int, items: bytes | memoryview, sizes: np.ndarray, lac: int | None
    ) -> bytes | memoryview:
        return v2.encode_read_replies(ledger_id, first_entry, items, sizes)

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        return v2.encode_replies(v2.READ, v2_status(status), ledger_ids, entry_ids)

    def take(self, rows: slice | np.ndarray) -> V2Answers:
        return self


V2_ANSWERS = V2Answers()


def v2_status(status: int) -> int:
    """Return what V2 sends for a status."""
    return Status.EIO if status == Status.EUNKNOWNLEDGERSTATE else status


@dataclass(frozen=True, slots=True)
class V3Answers:
    """Of requests in V3; `txn_ids`: int64, one per request."""

    txn_ids: np.ndarray
    wants_lac: bool = True

    def added(
        self,
        statuses: int | np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        last_synced: np.ndarray | None,
    ) -> bytes:
        codes = np.broadcast_to(_V3_STATUSES[statuses], self.txn_ids.shape)
        return v3.encode_add_responses(self.txn_ids, codes, ledger_ids, entry_ids, last_synced)

    def found(
        self, row: int, ledger_id: int, first_entry: int, items: bytes | memoryview, sizes: np.ndarray, lac: int | None
    ) -> bytes | memoryview:
        txn_ids = self.txn_ids[row : row + len(sizes)]
        return v3_reads.encode_read_responses(txn_ids, ledger_id, first_entry, items, sizes, lac)

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        txn_ids = self.txn_ids[row : row + len(entry_ids)]
        return v3_reads.encode_read_failures(txn_ids, v3_status(status), ledger_ids, entry_ids)

    def take(self, rows: slice | np.ndarray) -> V3Answers:
        # A copy, as what is taken may wait, and outlive the rest.
        return V3Answers(self.txn_ids[rows].copy(), self.wants_lac)
