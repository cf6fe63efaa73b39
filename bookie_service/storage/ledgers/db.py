"""`DbLedgerStorage`: positions in an embedded key-value store, and a cache of its own for reading.

It differs from the two storages with index files in three ways: the index costs one sync, however many ledgers a flush
changes; a ledger costs no file; consecutive single reads are answered from memory. Entry logs are written as by
`SortedLedgerStorage`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from bookie_service.formats import index_files, key_value_index
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.manifest import IndexManifest
from bookie_service.storage.index.split_index import SplitIndex
from bookie_service.storage.index.split_layout import find_layout
from bookie_service.storage.io.byte_source import ByteSource
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles, refuses_writes
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.ledgers.base import BaseLedgerStorage, StoreOptions
from bookie_service.storage.ledgers.interface import Flush, Ledger
from bookie_service.storage.ledgers.read_ahead import ReadAheadCache, part_of


class DbLedgerStorage(BaseLedgerStorage):
    """Each flush goes to the entry log sorted by (ledger, entry), and its positions go to the key-value store."""

    def __init__(
        self, files: LocalFiles, directories: Sequence[str], options: StoreOptions, places: FilePlaces | None = None
    ) -> None:
        """Raises StorageDamaged if the key-value store is damaged, or has lost durable data."""
        super().__init__(files, directories, options, places)
        ahead = options.read_ahead
        self._ahead_entries = ahead.batch_entries if ahead.cache_bytes else 0
        """How many entries, and bytes (`_ahead_bytes`), a miss reads ahead; 0: none. Constant."""
        self._ahead_bytes = ahead.batch_bytes if ahead.batch_bytes > 0 else ahead.cache_bytes // 16
        self._read_ahead = self.read_ahead = ReadAheadCache(ahead.cache_bytes)

    def _open_index(
        self, files: LocalFiles, directories: Sequence[str], options: StoreOptions
    ) -> KeyValueIndex | SplitIndex:
        def may_be_new() -> bool:
            # The stores are durable before this class creates the first log.
            return not self.logs.rotated() or self._had_index_files(files, directories)

        split = find_layout(files, directories, may_be_new)
        index: KeyValueIndex | SplitIndex
        if split is None:
            has_store = files.is_directory(os.path.join(directories[0], key_value_index.DIRECTORY_NAME))
            index = KeyValueIndex(
                files, directories[0], options.key_values, disks=self.disks, may_be_new=has_store or may_be_new()
            )
        else:
            index = SplitIndex(
                files,
                directories,
                options.key_values,
                split,
                disks=self.disks,
                places=self._places,
                begin_doubt=self.limbo.begin,
            )
        self._forget_index_files(files, directories)
        return index

    @property
    def is_clean(self) -> bool:
        # Another flush is needed to find that a disk takes changes again, and to give it what another directory has.
        return super().is_clean and self.index.is_clean

    def _had_index_files(self, files: LocalFiles, directories: Sequence[str]) -> bool:
        """Return whether another class wrote the logs, and certainly recorded that all their ledgers were deleted."""
        record = IndexManifest(files, directories, places=self._places)
        return record.is_complete and not len(record.all()[0])

    def _forget_index_files(self, files: LocalFiles, directories: Sequence[str]) -> None:
        """Remove the record of index files, because it says nothing of the logs that this class writes."""
        for directory in directories:
            path = os.path.join(directory, index_files.FILE_NAME)
            try:
                if not files.exists(path):
                    continue
                if self._places is not None:
                    # Before the file is removed, because one that has a place and is gone counts as lost.
                    self._places.forget(index_files.FILE_NAME)
                files.remove(path)
                files.sync_directory(directory)
            except OSError as error:
                if not refuses_writes(error):
                    raise

    def _log_order(self, addresses: np.ndarray) -> slice:
        return slice(None)

    def _read_stored(
        self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int, source: ByteSource
    ) -> FramedEntries | None:
        if count_max >= self._ahead_entries:
            self._read_ahead.pass_by()
            return super()._read_stored(ledger, first_entry, count_max, bytes_max, source)
        found = self._read_ahead.find(ledger.ledger_id, first_entry, count_max, bytes_max)
        if found is not None:
            return found
        epoch = self._read_ahead.epoch
        # The run may contain entries that a half holds again. Until the flush ends, they are found in the half first.
        run = super()._read_stored(ledger, first_entry, self._ahead_entries, max(bytes_max, self._ahead_bytes), source)
        if run is None:
            return None
        self._read_ahead.keep(ledger.ledger_id, run.owned(), epoch)
        return part_of(run, first_entry, count_max, bytes_max)

    def end_flush(self, flush: Flush) -> None:
        self._read_ahead.forget(set(flush.half.ledgers))
        super().end_flush(flush)

    def drop(self, ledger_ids: Sequence[int]) -> list[int]:
        dropped = super().drop(ledger_ids)
        self._read_ahead.forget(set(dropped))
        return dropped
