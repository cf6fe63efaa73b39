"""Reads of single entries that came together: those of one ledger are read together, and answered as arrays.

Responses need no order. So the requests are sorted by ledger, and those that one look cannot answer follow the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.security.authorization import READ
from bkspark.wire.flags import LAST_ENTRY
from bkspark.wire.status import Status
from bookie_service.engine.reads import Pieces, ReadClient, Reading, View, answer_in_pieces, failed
from bookie_service.engine.responses import ReadResponseEncoder
from bookie_service.engine.turns import Turn
from bookie_service.metrics.requests import READ_ENTRY
from bookie_service.storage.io.byte_source import Fetched, FileRange

_ROWS_PER_LOOK = 8192
"""Requests that are divided by ledgers at once: dividing all of them in each turn would cost more than the turn."""
_LEDGERS_PER_LOOK = 8
"""Ledgers that are looked up at once; absent ones are answered together, at the price of a few."""
_ABSENT_COST = 1 / 16
"""The cost of an answer for an absent ledger, in requests."""


@dataclass(slots=True)
class SingleReads(Reading):
    """Single reads that came together, from `row` on. The arrays are its own: it changes their order."""

    operation: ClassVar[int] = READ_ENTRY
    needed: ClassVar[int] = READ

    client: ReadClient
    encoder: ReadResponseEncoder
    """Encodes the responses to all of them; `ledger_ids` and `entry_ids` are aligned with it."""
    ledger_ids: np.ndarray
    """The ledger of each."""
    entry_ids: np.ndarray
    """The entry of each."""
    row: int = 0
    _ends: list[int] = field(default_factory=list)
    """Ends of runs of one ledger, for some requests from `row` on; `_run` is the next run."""
    _run: int = 0
    """The next run of `_ends`."""
    _odd_end: int = 0
    """Up to here requests are read alone."""
    _absent: list[bool] = field(default_factory=list)
    """Whether the ledger is absent, for some runs from `_absent_from` on."""
    _absent_from: int = 0
    """The run that `_absent` begins with."""
    _was_absent: bool = False
    """Whether the last ledger was absent: then the next ones are looked up together."""

    def __len__(self) -> int:
        return len(self.entry_ids) - self.row

    def ledgers(self) -> np.ndarray:
        return self.ledger_ids[self.row :]

    def keep(self, count: int) -> None:
        rows = slice(self.row, self.row + count)
        self.ledger_ids, self.entry_ids = self.ledger_ids[rows].copy(), self.entry_ids[rows].copy()
        self.encoder = self.encoder.take(rows)
        self._odd_end = max(0, self._odd_end - self.row)
        self.row = 0
        self._ends = []

    def refuse(self, status: int) -> None:
        self.refuse_behind(0, status)

    def refuse_behind(self, count: int, status: int) -> None:
        first = self.row + count
        refusal = self._refusal(first, len(self.entry_ids), status)
        self.encoder, self.ledger_ids, self.entry_ids = (
            self.encoder.take(slice(0, first)),
            self.ledger_ids[:first],
            self.entry_ids[:first],
        )
        self._ends = []
        if refusal:
            self.client.send((refusal,))

    def refuse_next(self, status: int) -> None:
        self.row += 1
        self.client.send((self._refusal(self.row - 1, self.row, status),))

    def _refusal(self, first: int, end: int, status: int) -> bytes:
        """Return the responses to the requests [first, end), for which there is no entry."""
        ledger_ids, entry_ids = self.ledger_ids[first:end], self.entry_ids[first:end]
        return self.encoder.not_found(first, status, ledger_ids, entry_ids) if len(ledger_ids) else b""

    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        # A ledger that was absent a turn ago may exist now.
        self._absent = []
        return answer_in_pieces(self, turn, lambda parts: self._answer_some(view, fetched, turn, parts))

    def _answer_some(self, view: View, fetched: Fetched | None, turn: Turn, parts: Pieces) -> None:
        """Add responses to `parts`: of about `replies_bytes_max` bytes, or what the turn has time for.

        Raises:
            NotCached: the next entry is not in memory.
        """
        room = view.options.replies_bytes_max
        while len(self) and room > 0 and not turn.is_over:
            absent = self._count_absent(view) if self._was_absent else 0
            if absent:
                self._answer_missing(self._ends[self._run + absent - 1] - self.row, Status.ENOLEDGER, parts)
                turn.spend(absent * _ABSENT_COST)
                continue
            if len(self) == 1 or self.row < self._odd_end or self._run_end() == self.row + 1:
                parts.append(self._read_one(view, fetched))
                self.row += 1
                room -= len(parts[-1])
            else:
                room -= self._answer_run(view, self._run_end(), room, fetched, parts)
            turn.spend()

    def _run_end(self) -> int:
        """Return the end of the run of one ledger that the next request is in."""
        ends = self._ends
        if not ends or self.row >= ends[-1]:
            ends = self._ends = self._divide(slice(self.row, self.row + _ROWS_PER_LOOK))
            self._run, self._absent = 0, []
        while ends[self._run] <= self.row:
            self._run += 1
        return ends[self._run]

    def _divide(self, rows: slice) -> list[int]:
        """Sort some requests by ledger; return where each one ends."""
        ledger_ids = self.ledger_ids[rows]
        breaks = np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1])
        if len(breaks) > 1 and self.row >= self._odd_end:
            self._arrange(np.argsort(ledger_ids, kind="stable"))
            breaks = np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1])
        return [*(breaks + self.row + 1).tolist(), self.row + len(ledger_ids)]

    def _arrange(self, order: np.ndarray) -> None:
        """Put the next requests into another order."""
        rows = slice(self.row, self.row + len(order))
        for ids in (self.ledger_ids, self.entry_ids):
            ids[rows] = ids[rows][order]
        self.encoder.arrange(self.row, order)

    def _count_absent(self, view: View) -> int:
        """Return how many runs from the next one on belong to absent ledgers."""
        self._run_end()
        at = self._run - self._absent_from
        if not 0 <= at < len(self._absent):
            at, self._absent_from = 0, self._run
            starts = [self.row, *self._ends[self._run : -1][: _LEDGERS_PER_LOOK - 1]]
            self._absent = view.absent(self.ledger_ids[starts]).tolist()
        count = 0
        while at + count < len(self._absent) and self._absent[at + count]:
            count += 1
        return count

    def _answer_run(self, view: View, end: int, bytes_max: int, fetched: Fetched | None, parts: Pieces) -> int:
        """Answer requests of one ledger, up to `end`, as far as one look finds entries; return the responses' bytes.

        Raises:
            NotCached: nothing that they need is in memory.
        """
        ledger_id = self.ledger_ids.item(self.row)
        try:
            ledger = view.ledger(ledger_id)
            self._was_absent = ledger is None
            if ledger is None:
                return self._answer_missing(end - self.row, view.absence(ledger_id, None), parts)
            lac = view.known_lac(ledger, fetched) if self.encoder.wants_lac else None
            found = view.read_each(ledger, self.entry_ids[self.row : end], bytes_max, fetched)
        except (StorageDamaged, OSError) as error:
            return self._answer_missing(end - self.row, failed(error), parts)
        order = found.order(end - self.row)
        if order is not None:
            self._arrange(order)
        sent = 0
        for _, entries in found.pieces:
            parts.append(self.encoder.found(self.row, ledger_id, entries, lac))
            self.row += len(entries)
            sent += len(parts[-1])
        sent += self._answer_missing(len(found.missing), view.absence(ledger_id, ledger), parts)
        self._odd_end = self.row + len(found.odd)
        return sent

    def _answer_missing(self, count: int, status: int, parts: Pieces) -> int:
        """Answer the next `count` requests, for which there is no entry; return the responses' bytes."""
        refusal = self._refusal(self.row, self.row + count, status)
        if refusal:
            parts.append(refusal)
        self.row += count
        return len(refusal)

    def _read_one(self, view: View, fetched: Fetched | None) -> bytes | memoryview:
        """Return the response to the next request.

        Raises:
            NotCached: the entry, or other data of the response, is not in memory.
        """
        row = self.row
        ledger_id, entry_id = self.ledger_ids.item(row), self.entry_ids.item(row)
        try:
            ledger = view.ledger(ledger_id)
            stored_id = entry_id
            if ledger is not None and entry_id == LAST_ENTRY:
                stored_id = view.last_entry(ledger)
            lac = view.known_lac(ledger, fetched) if ledger is not None and self.encoder.wants_lac else None
            pieces = view.read(ledger, stored_id, 1, 0, fetched)
        except (StorageDamaged, OSError) as error:
            return self._refusal(row, row + 1, failed(error))
        self._was_absent = ledger is None
        if not pieces:
            return self._refusal(row, row + 1, view.absence(ledger_id, ledger))
        return self.encoder.found(row, ledger_id, pieces[0].placed(entry_id), lac)
