"""Transactions: which messages of transactions a reader may see, from the markers in the topic itself. PURE.

A transaction's messages are entries like others; after them, in the same partition, comes a marker that commits or
aborts it. As a broker does (isolation READ_COMMITTED), a reader sees nothing at or after the first message of a
transaction that is open, and no message of one that was aborted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bkspark.pulsar import entries as fields
from bkspark.pulsar.entries import TXN_ABORT, TXN_COMMIT, Entries
from bkspark.pulsar.metadata import EntryPosition

TxnId = tuple[int, int]
"""Most and least significant bits, as signed numbers."""


@dataclass(frozen=True, slots=True)
class UnreadEntry:
    """An entry that a scan could not look at."""

    place: EntryPosition
    """Its ledger and entry id."""
    is_lost: bool
    """Whether bookies do not have it; otherwise it is malformed."""


class Transactions:
    """What a scan of a partition's entries, in order, has found."""

    def __init__(self) -> None:
        self.aborted: dict[TxnId, EntryPosition] = {}
        """Aborted transactions, and the positions of their markers."""
        self._open: dict[TxnId, EntryPosition] = {}
        """The first entry of each open transaction."""
        self._unread: UnreadEntry | None = None
        """The last entry that the scan could not look at; None if there is none."""

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

    def pass_over(self, entry: UnreadEntry) -> None:
        """Take note of an entry that follows those taken before, and cannot be read."""
        self._unread = entry

    def forget_before(self, place: EntryPosition) -> None:
        """Forget transactions that a reader from `place` on does not need."""
        self.aborted = {txn: at for txn, at in self.aborted.items() if at >= place}

    @property
    def stop(self) -> EntryPosition | None:
        """The first message of the oldest open transaction; None if no transaction is open."""
        return min(self._open.values(), default=None)

    @property
    def unread_after_stop(self) -> UnreadEntry | None:
        """The last entry after `stop` that the scan could not look at. It may be the marker that ended the open
        transaction: then no other one comes."""
        stop, unread = self.stop, self._unread
        return None if stop is None or unread is None or unread.place < stop else unread


def transaction_ids(entries: Entries, rows: np.ndarray) -> list[TxnId]:
    """Return the transactions of some entries that have one."""
    most = entries.metadata.value(fields.TXN_MOST)[rows].tolist()
    least = entries.metadata.value(fields.TXN_LEAST)[rows].tolist()
    return list(zip(most, least))
