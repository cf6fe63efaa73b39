"""READ_LAC: the explicit LAC of a ledger, and its last entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.security.authorization import READ
from bkspark.wire import v3, v3_lacs
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.status import Status
from bookie_service.engine.reads import ABSENT_COST, Pieces, ReadClient, Reading, View, answer_in_pieces, failed
from bookie_service.engine.turns import Turn
from bookie_service.metrics.requests import READ_LAC
from bookie_service.storage.io.byte_source import Fetched, FileRange
from bookie_service.storage.ledgers.interface import Ledger

_LEDGERS_PER_LOOK = 8


@dataclass(slots=True)
class LacReads(Reading):
    """READ_LAC requests that came together, from `row` on. `txn_ids`, `ledger_ids`: int64, one per request."""

    operation: ClassVar[int] = READ_LAC
    needed: ClassVar[int] = READ

    client: ReadClient
    txn_ids: np.ndarray
    ledger_ids: np.ndarray
    row: int = 0

    def __len__(self) -> int:
        return len(self.ledger_ids) - self.row

    def ledgers(self) -> np.ndarray:
        return self.ledger_ids[self.row :]

    def keep(self, count: int) -> None:
        rows = slice(self.row, self.row + count)
        self.txn_ids, self.ledger_ids = self.txn_ids[rows].copy(), self.ledger_ids[rows].copy()
        self.row = 0

    def arrange(self, order: np.ndarray) -> None:
        assert len(order) == len(self)
        rows = self.row + order
        self.txn_ids, self.ledger_ids, self.row = self.txn_ids[rows], self.ledger_ids[rows], 0

    def refuse(self, status: int) -> None:
        self.refuse_beyond(0, status)

    def refuse_beyond(self, count: int, status: int) -> None:
        first = self.row + count
        refusal = self._refusal(first, len(self.ledger_ids), status)
        self.txn_ids, self.ledger_ids = self.txn_ids[:first], self.ledger_ids[:first]
        if refusal:
            self.client.send((refusal,))

    def refuse_next(self, status: int) -> None:
        self.row += 1
        self.client.send((self._refusal(self.row - 1, self.row, status),))

    def _refusal(self, first: int, end: int, status: int) -> bytes:
        """Return the responses to requests [first, end). An absent ledger gets ENOENTRY, as from Apache's bookies."""
        self.failures += end - first
        is_absent = status in (Status.ENOENTRY, Status.ENOLEDGER)
        code = v3.StatusCode.ENOENTRY if is_absent else v3.code_of(status)
        return v3_lacs.encode_lac_failures(self.txn_ids[first:end], code, self.ledger_ids[first:end])

    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        return answer_in_pieces(self, turn, lambda parts: self._answer_some(view, fetched, turn, parts))

    def _answer_some(self, view: View, fetched: Fetched | None, turn: Turn, parts: Pieces) -> None:
        """Add responses to `parts`, about `replies_bytes_max` bytes or as many as the turn has time for.

        Raises:
            NotCached: the last entry of the next request's ledger is not in memory.
        """
        room = view.options.replies_bytes_max
        while len(self) and room > 0 and not turn.is_over:
            absent = view.absent(self.ledger_ids[self.row : self.row + _LEDGERS_PER_LOOK])
            count = len(absent) if absent.all() else int(np.argmin(absent))
            if count:
                parts.append(self._refusal(self.row, self.row + count, Status.ENOLEDGER))
                turn.spend(count * ABSENT_COST)
            else:
                parts.append(self._answer(view, fetched))
                count = 1
                turn.spend()
            self.row += count
            room -= len(parts[-1])

    def _answer(self, view: View, fetched: Fetched | None) -> bytes:
        """Return the response to the next request: the explicit LAC, and the last entry."""
        row = slice(self.row, self.row + 1)
        ledger_id = self.ledger_ids.item(self.row)
        packet, entry = b"", None
        status: int = Status.EOK
        try:
            ledger = view.ledger(ledger_id)
            packet = b"" if ledger is None else ledger.explicit_lac
            entry = self._last_entry(view, ledger, fetched)
            if entry is None:
                status = view.absence(ledger_id, ledger)
        except (StorageDamaged, OSError) as error:
            status = failed(error)
        if entry is None and not (packet and status in (Status.ENOENTRY, Status.ENOLEDGER)):
            return self._refusal(row.start, row.stop, status)
        return v3_lacs.encode_lac(self.txn_ids.item(self.row), ledger_id, packet, entry)

    @staticmethod
    def _last_entry(view: View, ledger: Ledger | None, fetched: Fetched | None) -> bytes | None:
        """Return the last entry that is held; None: there is no entry. Raises NotCached."""
        pieces = [] if ledger is None else view.read(ledger, view.last_entry(ledger), 1, 0, fetched)
        return bytes(memoryview(pieces[0].buffer)[LENGTH_BYTES : pieces[0].sizes.item(0)]) if pieces else None
