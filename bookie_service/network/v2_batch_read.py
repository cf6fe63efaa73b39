"""Batch reads: consecutive entries of one ledger, as many as the limits of count and bytes allow, in one response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bkspark.errors import StorageDamaged
from bkspark.security.authorization import READ
from bkspark.wire import v2
from bkspark.wire.status import Status
from bookie_service.engine.reads import ReadClient, Reading, View, failed
from bookie_service.engine.turns import Turn
from bookie_service.formats.journal import BODY_BYTES_MAX
from bookie_service.metrics.requests import READ_ENTRY
from bookie_service.storage.io.byte_source import Fetched, FileRange, NotCached
from bookie_service.storage.io.framed_entries import FramedEntries


@dataclass(slots=True)
class BatchRead(Reading):
    """One batch read."""

    operation: ClassVar[int] = READ_ENTRY
    needed: ClassVar[int] = READ

    client: ReadClient
    ledger_id: int
    first_entry: int
    request_id: int
    """The client's number, which the response repeats."""
    count_max: int
    """The most entries of the response; 0 or less: any number."""
    bytes_max: int
    """About the most bytes of the response, which has one entry at least if the bookie has the first one."""
    is_answered: bool = False
    """Whether the response was sent. Set once."""

    def __len__(self) -> int:
        return 0 if self.is_answered else 1

    def ledgers(self) -> int:
        return self.ledger_id

    def refuse(self, status: int) -> None:
        self.is_answered = True
        self.client.send((self._head(status),))

    def _head(self, status: int, items_bytes: int = 0) -> bytes:
        """Return the bytes of the response before its entries."""
        return v2.encode_batch_reply_head(
            self.ledger_id, self.first_entry, self.request_id, v2.code_of(status), items_bytes
        )

    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        """Answer with the first entry, and with as many of the next ones as the limits allow."""
        try:
            status, pieces = self._read(view, fetched)
        except NotCached as miss:
            return miss.place
        self.is_answered = True
        buffers = [items.buffer for items in pieces]
        self.client.send([self._head(status, sum(map(len, buffers))), *buffers])
        return None

    def _read(self, view: View, fetched: Fetched | None) -> tuple[Status, list[FramedEntries]]:
        first_entry, count_max = self.first_entry, self.count_max
        room = min(self.bytes_max, view.options.batch_bytes_max) - v2.BATCH_ACCOUNT_BYTES
        try:
            ledger = view.ledger(self.ledger_id)
            if ledger is not None and first_entry == v2.LAST_ENTRY:
                first_entry, count_max = view.last_entry(ledger), 1
            if count_max <= 0:
                count_max = BODY_BYTES_MAX
            pieces = view.read(ledger, first_entry, count_max, room, fetched)
        except (StorageDamaged, OSError) as error:
            return failed(error), []
        if pieces:
            return Status.EOK, pieces
        return view.absence(self.ledger_id, ledger), []
