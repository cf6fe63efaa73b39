"""Reads of single entries that came together: consecutive entries are read together, and answered as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.wire.flags import LAST_ENTRY
from bkspark.wire.status import Status
from bookie_service.engine.reads import Pieces, ReadClient, Reading, View, answer_in_pieces, failed
from bookie_service.engine.responses import ReadResponseEncoder
from bookie_service.engine.turns import Turn
from bookie_service.storage.io.byte_source import Fetched, FileRange

_ROWS_PER_LOOK = 8192
"""Requests that are divided into runs at once: dividing all of them in each turn would cost more than the turn."""
_LEDGERS_PER_LOOK = 8
"""Ledgers that are looked up at once; absent ones are answered together, at the price of a few."""
_RUNS_PER_CHECK = 4
"""Runs that are read before the next check whether the turn is over."""
_ABSENT_COST = 1 / 16
"""The cost of an answer for an absent ledger, in requests."""


@dataclass(slots=True)
class SingleReads(Reading):
    """Single reads that came together, from `row` on."""

    client: ReadClient
    encoder: ReadResponseEncoder
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    row: int = 0
    _ends: list[int] = field(default_factory=list)
    """Ends of runs of consecutive entries, for some requests from `row` on; `_run` is the next run."""
    _run: int = 0
    _absent: list[bool] = field(default_factory=list)
    """Whether the ledger is absent, for some runs from `_absent_from` on."""
    _absent_from: int = 0
    _was_absent: bool = False
    """Whether the last ledger was absent: then the next ones are looked up together."""

    def __len__(self) -> int:
        return len(self.entry_ids) - self.row

    def keep(self, count: int) -> None:
        rows = slice(self.row, self.row + count)
        self.ledger_ids, self.entry_ids = self.ledger_ids[rows].copy(), self.entry_ids[rows].copy()
        self.encoder = self.encoder.take(rows)
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
                self._answer_absent(self._ends[self._run + absent - 1] - self.row, parts)
                turn.spend(absent * _ABSENT_COST)
                continue
            end = len(self.entry_ids)
            for _ in range(_RUNS_PER_CHECK):
                reply, count = self._read_run(view, self._run_end() - self.row, room, fetched)
                parts.append(reply)
                room -= len(reply)
                self.row += count
                turn.spend()
                if self.row == end or room <= 0 or self._was_absent:
                    break

    def _run_end(self) -> int:
        """Return the end of the run of consecutive entries that the next request is in."""
        ends = self._ends
        if not ends or self.row >= ends[-1]:
            rows = slice(self.row, self.row + _ROWS_PER_LOOK)
            ledger_ids, entry_ids = self.ledger_ids[rows], self.entry_ids[rows]
            breaks = np.flatnonzero((np.diff(ledger_ids) != 0) | (np.diff(entry_ids) != 1) | (entry_ids[:-1] < 0))
            ends = self._ends = [*(breaks + self.row + 1).tolist(), self.row + len(ledger_ids)]
            self._run, self._absent = 0, []
        while ends[self._run] <= self.row:
            self._run += 1
        return ends[self._run]

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

    def _answer_absent(self, count: int, parts: Pieces) -> None:
        """Answer the next `count` requests, whose ledgers are absent."""
        parts.append(self._refusal(self.row, self.row + count, Status.ENOLEDGER))
        self.row += count

    def _read_run(
        self, view: View, count_max: int, bytes_max: int, fetched: Fetched | None
    ) -> tuple[bytes | memoryview, int]:
        """Return (responses to the next reads of consecutive entries, how many), at least one.

        Raises:
            NotCached: the first entry, or other data of the answer, is not in memory.
        """
        row = self.row
        ledger_id, first_entry = self.ledger_ids.item(row), self.entry_ids.item(row)
        try:
            ledger = view.ledger(ledger_id)
            stored_id = first_entry
            if ledger is not None and first_entry == LAST_ENTRY:
                stored_id = view.last_entry(ledger)
            lac = view.known_lac(ledger, fetched) if ledger is not None and self.encoder.wants_lac else None
            pieces = view.read(ledger, stored_id, count_max, bytes_max, fetched)
        except (StorageDamaged, OSError) as error:
            return self._refusal(row, row + 1, failed(error)), 1
        self._was_absent = ledger is None
        if not pieces:
            return self._refusal(row, row + 1, view.absence(ledger_id, ledger)), 1
        replies = []
        for items in pieces:
            past = items.first_entry - stored_id
            replies.append(
                self.encoder.found(row + past, ledger_id, first_entry + past, items.buffer, items.sizes, lac)
            )
        return b"".join(replies) if len(replies) > 1 else replies[0], sum(map(len, pieces))
