"""Defects of work for several ledger directories at once. See `planted`."""

from __future__ import annotations

from typing import Any

from bookie_service.storage.index.index_syncs import IndexSyncs
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from bookie_service.storage.logs.log_appender import EntryLogAppender
from tests.planting import Plant, changed


def mark_moved_while_late() -> Plant:
    """The mark moves although a directory has not synced its part of the index."""

    def make(old: Any) -> Any:
        def write_flush(self: BaseLedgerStorage, flush: Any, **named: Any) -> None:
            advances_checkpoint = flush.advances_checkpoint
            old(self, flush, **named)
            flush.advances_checkpoint = advances_checkpoint

        return write_flush

    return changed(BaseLedgerStorage, "write_flush", make)


def late_sync_forgotten() -> Plant:
    """What a late directory has to sync counts as durable, and is not looked at again."""

    def make(old: Any) -> Any:
        def refusals(self: IndexSyncs) -> Any:
            self._late = {place: future for place, future in self._late.items() if future.done()}
            return old(self)

        return refusals

    return changed(IndexSyncs, "refusals", make)


def one_directory_not_synced() -> Plant:
    """The entry logs in the second directory are not synced."""

    def make(old: Any) -> Any:
        def sync_all(self: EntryLogAppender) -> None:
            if self._directory is None or not self._directory.startswith("/ledgers1"):
                old(self)

        return sync_all

    return changed(EntryLogAppender, "sync_all", make)
