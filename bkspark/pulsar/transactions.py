"""Transactions: which messages of transactions a reader may see, from the markers in the topic itself. PURE.

A transaction's messages are entries like others; after them, in the same partition, comes a marker that commits or
aborts it. As a broker does (isolation READ_COMMITTED), a reader sees nothing at or after the first message of a
transaction that is open, and no message of one that was aborted.
"""

from __future__ import annotations

import numpy as np

from bkspark.pulsar import entries as fields
from bkspark.pulsar.entries import TXN_ABORT, TXN_COMMIT, Entries
from bkspark.pulsar.metadata import EntryPosition

TxnId = tuple[int, int]
"""Most and least significant bits, as signed numbers."""


class Transactions:
    """What a scan of a partition's entries, in order, has found."""

    def __init__(self) -> None:
        self.aborted: dict[TxnId, EntryPosition] = {}
        """Aborted transactions, and the positions of their markers."""
        self._open: dict[TxnId, EntryPosition] = {}
        """The first entry of each open transaction."""

    def take(self, entries: Entries) -> None:
        """Take the next entries, which follow those taken before."""
        rows = np.flatnonzero(entries.has_transaction)
        if not len(rows):
            return
        kinds = np.where(entries.is_marker, entries.metadata.int32(fields.MARKER), 0)[rows].tolist()
        ids = transaction_ids(entries, rows)
        places = zip(entries.ledger_ids[rows].tolist(), entries.entry_ids[rows].tolist())
        for kind, txn, place in zip(kinds, ids, places):
            if kind == 0:
                self._open.setdefault(txn, EntryPosition(*place))
            elif kind in (TXN_COMMIT, TXN_ABORT):
                self._open.pop(txn, None)
                if kind == TXN_ABORT:
                    self.aborted[txn] = EntryPosition(*place)

    def forget_before(self, place: EntryPosition) -> None:
        """Forget transactions that a reader from `place` on does not need."""
        self.aborted = {txn: at for txn, at in self.aborted.items() if at >= place}

    @property
    def stop(self) -> EntryPosition | None:
        """The first message of the oldest open transaction; None if no transaction is open."""
        return min(self._open.values(), default=None)


def transaction_ids(entries: Entries, rows: np.ndarray) -> list[TxnId]:
    """Return the transactions of some entries that have one."""
    most = entries.metadata.value(fields.TXN_MOST)[rows].tolist()
    least = entries.metadata.value(fields.TXN_LEAST)[rows].tolist()
    return list(zip(most, least))
