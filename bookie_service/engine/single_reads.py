"""Reads of single entries that came together. Those of several ledgers are read together and answered as arrays.

Responses need no order. So the requests are sorted by ledger, and requests that one look cannot answer are moved after
the others. When a look at several ledgers fails, it is repeated for each ledger: an error concerns one ledger only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.security.authorization import READ
from bkspark.wire.flags import LAST_ENTRY
from bkspark.wire.status import Status
from bookie_service.engine.reads import ABSENT_COST, Pieces, ReadClient, Reading, View, answer_in_pieces, failed
from bookie_service.engine.responses import ReadResponseEncoder
from bookie_service.engine.turns import Turn
from bookie_service.metrics.requests import READ_ENTRY
from bookie_service.storage.io.byte_source import Fetched, FileRange, NotCached
from bookie_service.storage.ledgers.interface import Ledger, LookResult

logger = logging.getLogger(__name__)

_ROWS_PER_LOOK = 8192
"""Requests that are sorted by ledger at once: sorting all of them in each turn would cost more than the turn."""
_LEDGERS_PER_LOOK = 16
"""Ledgers that are looked up together. Absent ones are answered together, at the price of a few requests."""


@dataclass(slots=True)
class SingleReads(Reading):
    """Single reads that came together, from `row` on. The arrays belong to this object, which changes their order."""

    operation: ClassVar[int] = READ_ENTRY
    needed: ClassVar[int] = READ

    client: ReadClient
    encoder: ReadResponseEncoder
    """Encodes the responses to all requests; its rows are those of `ledger_ids` and `entry_ids`."""
    ledger_ids: np.ndarray
    """The ledger of each request."""
    entry_ids: np.ndarray
    """The entry of each request."""
    row: int = 0
    """The next request. Requests before it are answered. `keep` resets it to 0."""
    _ends: list[int] = field(default_factory=list)
    """Where the runs of requests to one ledger end, for some requests from `row` on. Empty: not divided yet."""
    _run: int = 0
    """The next run in `_ends`."""
    _odd_end: int = 0
    """Requests before this row are read one by one: a look found that it cannot answer them together."""
    _apart_end: int = 0
    """Before this row each look covers one ledger, because a look at several failed."""
    _absent: list[bool] = field(default_factory=list)
    """Whether the ledger of a run is absent, for some runs from `_absent_from` on. Emptied by `proceed`."""
    _absent_from: int = 0
    """The run that `_absent` begins with."""
    _was_absent: bool = False
    """Whether the last ledger was absent. If so, the next ledgers are looked up together."""

    def __len__(self) -> int:
        return len(self.entry_ids) - self.row

    def ledgers(self) -> np.ndarray:
        return self.ledger_ids[self.row :]

    def keep(self, count: int) -> None:
        rows = slice(self.row, self.row + count)
        self.ledger_ids, self.entry_ids = self.ledger_ids[rows].copy(), self.entry_ids[rows].copy()
        self.encoder = self.encoder.take(rows)
        self._odd_end = max(0, self._odd_end - self.row)
        self._apart_end = max(0, self._apart_end - self.row)
        self.row = 0
        self._ends = []

    def refuse(self, status: int) -> None:
        self.refuse_beyond(0, status)

    def refuse_beyond(self, count: int, status: int) -> None:
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
        # A ledger that was absent in an earlier turn may exist now.
        self._absent = []
        return answer_in_pieces(self, turn, lambda parts: self._answer_some(view, fetched, turn, parts))

    def _answer_some(self, view: View, fetched: Fetched | None, turn: Turn, parts: Pieces) -> None:
        """Add responses to `parts`, about `replies_bytes_max` bytes or as many as the turn has time for.

        Raises:
            NotCached: the next entry is not in memory.
        """
        room = view.options.replies_bytes_max
        while len(self) and room > 0 and not turn.is_over:
            absent = self._count_absent(view) if self._was_absent else 0
            if absent:
                self._answer_missing(self._ends[self._run + absent - 1] - self.row, Status.ENOLEDGER, parts)
                turn.spend(absent * ABSENT_COST)
                continue
            # One request alone takes 11 us in V2, and 16 if it is answered as a run.
            if len(self) == 1 or self.row < self._odd_end:
                room -= self._answer_one(view, fetched, parts)
                turn.spend()
            else:
                ledgers, sent = self._answer_runs(view, room, fetched, parts)
                room -= sent
                turn.spend(ledgers)

    def _run_end(self) -> int:
        """Return the end of the run of one ledger that contains the next request."""
        ends = self._ends
        if not ends or self.row >= ends[-1]:
            ends = self._ends = self._divide(slice(self.row, self.row + _ROWS_PER_LOOK))
            self._run, self._absent = 0, []
        while ends[self._run] <= self.row:
            self._run += 1
        return ends[self._run]

    def _divide(self, rows: slice) -> list[int]:
        """Sort some requests by ledger; return where the run of each ledger ends."""
        ledger_ids = self.ledger_ids[rows]
        breaks = np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1])
        if len(breaks) > 1 and self.row >= self._odd_end:
            self.arrange(np.argsort(ledger_ids, kind="stable"))
            breaks = np.flatnonzero(ledger_ids[1:] != ledger_ids[:-1])
        return [*(breaks + self.row + 1).tolist(), self.row + len(ledger_ids)]

    def arrange(self, order: np.ndarray) -> None:
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

    def _answer_runs(self, view: View, bytes_max: int, fetched: Fetched | None, parts: Pieces) -> tuple[int, int]:
        """Answer requests of the next ledgers, as far as one look finds entries.

        Returns:
            (how many ledgers were looked at, bytes of the responses).

        Raises:
            NotCached: nothing that the requests need is in memory.
        """
        end = self._run_end()
        ledger_id = self.ledger_ids.item(self.row)
        try:
            ledgers, lacs = self._next_ledgers(view, fetched)
        except (StorageDamaged, OSError) as error:
            return 1, self._answer_missing(end - self.row, failed(error), parts)
        self._was_absent = not ledgers
        if not ledgers:
            return 1, self._answer_missing(end - self.row, view.absence(ledger_id, None), parts)
        ends = self._ends[self._run : self._run + len(ledgers)]
        if ends[-1] == self.row + 1:
            return 1, self._answer_one(view, fetched, parts)
        begin, within = self.row, [end - self.row for end in ends]
        try:
            found = view.read_each(ledgers, within, self.entry_ids[begin : ends[-1]], bytes_max, fetched)
        except NotCached:
            raise
        except Exception as error:
            if len(ledgers) > 1:
                if not isinstance(error, (StorageDamaged, OSError)):
                    # Each ledger by itself may be answered, and then nothing else would show the defect.
                    logger.exception("a look at %d ledgers failed: this is a defect", len(ledgers))
                self._apart_end = ends[-1]
                return 0, 0
            if not isinstance(error, (StorageDamaged, OSError)):
                raise
            return 1, self._answer_missing(end - begin, failed(error), parts)
        return len(ledgers), self._answer_found(view, ledgers, within, lacs, found, parts)

    def _next_ledgers(self, view: View, fetched: Fetched | None) -> tuple[list[Ledger], list[int]]:
        """Return the ledgers of the next runs, up to the first that is absent or fails, and their LACs if wanted.

        Raises:
            StorageDamaged, OSError, NotCached: for the first ledger.
        """
        ledgers: list[Ledger] = []
        lacs: list[int] = []
        most = 1 if self.row < self._apart_end else _LEDGERS_PER_LOOK
        at = self.row
        for end in self._ends[self._run : self._run + most]:
            try:
                ledger = view.ledger(self.ledger_ids.item(at))
                if ledger is None:
                    break
                if self.encoder.wants_lac:
                    lacs.append(view.known_lac(ledger, fetched))
            except Exception:
                # A later look meets this ledger as its first one, and reports the error.
                if not ledgers:
                    raise
                break
            ledgers.append(ledger)
            at = end
        return ledgers, lacs

    def _answer_found(
        self, view: View, ledgers: list[Ledger], ends: list[int], lacs: list[int], found: LookResult, parts: Pieces
    ) -> int:
        """Answer the requests that a look decided, and move the others after them; return the bytes of the responses.

        `ends`: where the requests of each ledger end, relative to `row`.
        """
        begin, end = self.row, self.row + ends[-1]
        order = found.order(end - begin)
        if order is not None:
            self.arrange(order)
        lac_of_each = np.repeat(np.array(lacs), np.diff(ends, prepend=0)) if lacs else None
        sent = 0
        for rows, entries in found.pieces:
            some = slice(self.row, self.row + len(entries))
            ledger_ids, some_lacs = self.ledger_ids[some], None if lac_of_each is None else lac_of_each[rows]
            if len(ledgers) == 1:
                # V3 encodes ten responses in 54 us then, instead of 63. V2 does not differ.
                ledger_ids, some_lacs = ledger_ids[:1], None if some_lacs is None else some_lacs[:1]
            parts.append(self.encoder.found(self.row, ledger_ids, entries, some_lacs))
            self.row = some.stop
            sent += len(parts[-1])
        by_id = {ledger.ledger_id: ledger for ledger in ledgers}
        missing_end = self.row + len(found.missing)
        while self.row < missing_end:
            ledger_id = self.ledger_ids.item(self.row)
            same = self.ledger_ids[self.row : missing_end] == ledger_id
            count = len(same) if same.all() else int(np.argmin(same))
            sent += self._answer_missing(count, view.absence(ledger_id, by_id[ledger_id]), parts)
        self._odd_end = self.row + len(found.odd)
        if self.row < end and len(ledgers) > 1:
            # The remaining requests are in another order now.
            left = self.ledger_ids[self.row : end]
            breaks = np.flatnonzero(left[1:] != left[:-1]) + self.row + 1
            self._ends = [*breaks.tolist(), end, *self._ends[self._run + len(ledgers) :]]
            self._run, self._absent = 0, []
        return sent

    def _answer_missing(self, count: int, status: int, parts: Pieces) -> int:
        """Answer the next `count` requests, for which there is no entry; return the responses' bytes."""
        refusal = self._refusal(self.row, self.row + count, status)
        if refusal:
            parts.append(refusal)
        self.row += count
        return len(refusal)

    def _answer_one(self, view: View, fetched: Fetched | None, parts: Pieces) -> int:
        """Answer the next request; return the response's bytes.

        Raises:
            NotCached: the entry, or other data of the response, is not in memory.
        """
        parts.append(self._read_one(view, fetched))
        self.row += 1
        return len(parts[-1])

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
        entries = pieces[0].placed(entry_id)
        lacs = None if lac is None else np.array((lac,))
        return self.encoder.found(row, self.ledger_ids[row : row + 1], entries, lacs)
