"""Defects of one ledger storage, or of entry logs per ledger, as `planted` has those of what all storages share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bookie_service.formats import key_value_index as index_format
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from bookie_service.storage.ledgers.db import DbLedgerStorage
from bookie_service.storage.ledgers.read_ahead import ReadAheadCache
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import EntryLogAppender
from bookie_service.storage.logs.log_writer import EntryLogWriter
from tests.crash.simulated_key_values import SimulatedKeyValues
from tests.planting import Plant, changed, replaced


def unordered_positions() -> Plant:
    def make(old: Any) -> Any:
        def append(self: BaseLedgerStorage, half: Any, addresses: np.ndarray) -> np.ndarray:
            return np.sort(old(self, half, addresses))

        return append

    return changed(BaseLedgerStorage, "_append", make)


def unsynced_store() -> Plant:
    return replaced(SimulatedKeyValues, "sync", lambda self: None)


def commit_before_sync() -> Plant:
    def make(old: Any) -> Any:
        def commit_early(self: KeyValueIndex, number: int) -> None:
            data = index_format.encode_commit(number)
            if self._layout.stores > 1:
                commit = replace(self._layout, number=number, is_being_created=False)
                data = index_format.encode_store_commit(commit)
            self._files.replace(self._commit_path, data)
            old(self, number)

        return commit_early

    return changed(KeyValueIndex, "_commit", make)


def overwritten_blocks() -> Plant:
    def make(old: Any) -> Any:
        def merged(self: KeyValueIndex, blocks: Any) -> Any:
            found, self._key_values = self._key_values, _Nothing()
            try:
                return old(self, blocks)
            finally:
                self._key_values = found

        return merged

    return changed(KeyValueIndex, "_merged", make)


class _Nothing:
    """A store without a key."""

    def get(self, keys: Any) -> list[None]:
        return [None] * len(keys)


def headers_left_out() -> Plant:
    def make(old: Any) -> Any:
        def hold(self: KeyValueIndex, updates: Any) -> None:
            # Those with positions bring their header, the others do not.
            old(self, [update for update in updates if len(update.entry_ids)])

        return hold

    return changed(KeyValueIndex, "hold", make)


def unchecked_commit() -> Plant:
    def make(old: Any) -> Any:
        def decode(data: bytes) -> Any:
            found = old(data)
            return None if found is None else replace(found, number=0)

        return decode

    return changed(index_format, "decode_store_commit", make)


def stale_read_ahead() -> Plant:
    return replaced(ReadAheadCache, "forget", lambda self, ledger_ids: None)


def read_ahead_in_front() -> Plant:
    def make(old: Any) -> Any:
        def read_run(self: Any, ledger: Any, first_entry: int, count_max: int, bytes_max: int, source: Any) -> Any:
            if isinstance(self, DbLedgerStorage):
                found = self._read_ahead.find(ledger.ledger_id, first_entry, count_max, bytes_max)
                if found is not None:
                    return found
            return old(self, ledger, first_entry, count_max, bytes_max, source)

        return read_run

    return changed(BaseLedgerStorage, "_read_run", make)


def only_last_log_synced() -> Plant:
    def sync_all(self: EntryLogAppender) -> None:
        for log in list(self._unsynced.values())[-1:]:
            log.sync()

    return replaced(EntryLogAppender, "sync_all", sync_all)


def unsynced_seal() -> Plant:
    def seal(self: EntryLogWriter, *, may_lack_map: bool = False) -> None:
        """Neither map nor sync."""

    return replaced(EntryLogWriter, "seal", seal)


def active_logs_settled() -> Plant:
    return changed(EntryLogs, "rotate_appended", lambda old: lambda self, *except_for: old(self, set()))


def ledgers_in_one_anothers_log() -> Plant:
    def make(old: Any) -> Any:
        def append(self: EntryLogAppender, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
            positions = old(self, memory, addresses, sizes)
            # Scattered by ledger as they were written, not as they were given.
            return positions if not self._options.log_per_ledger else positions[np.argsort(positions)]

        return append

    return changed(EntryLogAppender, "append", make)


def logs_settled_without_an_index() -> Plant:
    """Logs count as rotated although the index has not got their positions, for want of space."""

    def sync_index(self: BaseLedgerStorage) -> None:
        self.index.sync(self._are_names_durable)
        self._are_names_durable = True
        self._appender.rotate()

    return replaced(BaseLedgerStorage, "_sync_index", sync_index)
