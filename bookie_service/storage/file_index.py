"""The index as a file per ledger, for `SortedLedgerStorage` and `InterleavedLedgerStorage`."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import numpy as np

from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.files import LocalFiles
from bookie_service.storage.index import IndexPaths, IndexReader, IndexWriter, LedgerUpdate


class FileIndex:
    """A `LedgerIndex` over index files; which thread may call what stands there."""

    def __init__(self, files: LocalFiles, directories: Sequence[str], open_files_max: int) -> None:
        """`directories`: the `current` directories of all ledger directories, in configured order."""
        self._files = files
        self._paths = IndexPaths(directories)
        self._writer = IndexWriter(files, self._paths)
        self._reader = self.view(open_files_max)

    def header(self, ledger_id: int) -> LedgerHeader | None:
        return self._reader.header(ledger_id)

    def positions(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
        return self._reader.positions(ledger_id, first_entry, count)

    def last_entry(self, ledger_id: int) -> int:
        return self._reader.last_entry(ledger_id)

    def view(self, open_files_max: int) -> IndexReader:
        return IndexReader(self._files, self._paths, open_files_max)

    def ledger_ids(self) -> np.ndarray:
        return self._paths.ledgers(self._files)

    def has(self, ledger_id: int) -> bool:
        return self._files.exists(self._paths.path(ledger_id))

    def store(self, updates: Sequence[LedgerUpdate], names_are_durable: bool = True) -> None:
        self._writer.store(updates, names_are_durable)

    def remove(self, ledger_id: int) -> None:
        self._reader.forget(ledger_id)
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(self._paths.path(ledger_id))

    def sync_removed(self, ledger_ids: Collection[int]) -> None:
        for directory in sorted({self._paths.directories(ledger_id)[-1] for ledger_id in ledger_ids}):
            self._files.sync_directory(directory)

    def close(self) -> None:
        self._reader.close()
