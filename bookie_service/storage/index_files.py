"""Which index files there must be (`formats.index_files`), so that a lost one is noticed and not taken for absence.

The index writer notes what it made durable, garbage collection what may go. Kept in memory at 16 bytes a ledger.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.formats import index_files as file_format
from bookie_service.storage.files import LocalFiles, ReadOnlyFiles

_RECENT_MAX = 8192
"""Rows in the dictionary before they are merged into the arrays."""
_ROWS_BESIDE = 4096
"""The file is written anew when it has so many rows, and as many as there are ledgers, that say nothing any more."""


class IndexFiles:
    """What is known of the index files. Changed by one thread at a time, asked by any."""

    def __init__(self, files: ReadOnlyFiles, directory: str) -> None:
        """`directory`: the `current` directory that the file lies in.

        Raises:
            StorageDamaged: a later version wrote the file.
        """
        self.path = os.path.join(directory, file_format.FILE_NAME)
        data = files.read_all(self.path) if files.exists(self.path) else b""
        try:
            ledger_ids, file_bytes, end = file_format.decode(data)
        except ValueError as error:
            raise StorageDamaged(f"{self.path}: {error}") from error
        self.damaged_at = None if end == len(data) else end
        """Where something stands that is no record; then, or when nothing stands at all, rows may be missing."""
        self.is_complete = end == len(data) > 0
        self._rows = _last_rows(ledger_ids, file_bytes)
        self._recent: dict[int, int] = {}

    def least_bytes(self, ledger_id: int) -> int:
        """Return how long a ledger's index file must be at least; 0: there may be none."""
        recent = self._recent.get(ledger_id)
        if recent is not None:
            return recent
        ledger_ids, file_bytes = self._rows
        row = int(ledger_ids.searchsorted(ledger_id))
        return int(file_bytes[row]) if row < len(ledger_ids) and ledger_ids[row] == ledger_id else 0

    def are_noted(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return of which ledgers there must be an index file, bool."""
        # In this order, as the recent ones may be merged into the rows meanwhile.
        recent, noted = self._recent, self._rows[0]
        at = np.minimum(noted.searchsorted(ledger_ids), max(0, len(noted) - 1))
        found = noted[at] == ledger_ids if len(noted) else np.zeros(len(ledger_ids), bool)
        for row, ledger_id in enumerate(ledger_ids.tolist()):
            size = recent.get(ledger_id)
            if size is not None:
                found[row] = size > 0
        return found

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (ledger ids, bytes of each), int64, ascending: every file that there must be."""
        recent = dict(self._recent)
        ledger_ids, file_bytes = self._rows
        changed = np.array(list(recent.items()), np.int64).reshape(-1, 2)
        return _last_rows(np.concatenate([ledger_ids, changed[:, 0]]), np.concatenate([file_bytes, changed[:, 1]]))

    def _learn(self, changes: Mapping[int, int]) -> None:
        self._recent.update(changes)
        if len(self._recent) > _RECENT_MAX:
            # In this order: who asks meanwhile looks at the recent ones first.
            self._rows = self.all()
            self._recent = {}


class IndexFilesWriter(IndexFiles):
    """Notes durably what is known of the index files."""

    def __init__(self, files: LocalFiles, directory: str) -> None:
        super().__init__(files, directory)
        self._files = files
        self._waiting: dict[int, int] = {}
        """Changes that are not durable."""
        self._rows_written = len(self._rows[0])
        self._end = 0
        """Where the next record goes; 0: the file has to be written anew."""
        if self.is_complete:
            # A process that was killed may have written the end without making it durable.
            with contextlib.closing(files.open(self.path)) as file:
                file.sync_data()
                self._end = file.size()

    def note(self, changes: Mapping[int, int]) -> None:
        """Set the least bytes of ledgers' files; durable on return.

        Raises:
            OSError: they are not durable; they are written with the next ones.
        """
        changes = {ledger_id: size for ledger_id, size in changes.items() if size != self.least_bytes(ledger_id)}
        self._waiting.update(changes)
        self._learn(changes)
        if self._waiting or not self.is_complete:
            self._write()
            self._waiting.clear()
            self.is_complete = True

    def _write(self) -> None:
        ledgers = len(self._rows[0]) + len(self._recent)
        if not self._end or self._rows_written > 2 * ledgers + _ROWS_BESIDE:
            rows = self.all()
            data = file_format.HEAD + file_format.encode_rows(*rows)
            self._end = 0
            self._files.replace(self.path, data)
            self._end, self._rows_written = len(data), len(rows[0])
            return
        changed = np.array(list(self._waiting.items()), np.int64)
        record = file_format.encode_rows(changed[:, 0], changed[:, 1])
        with contextlib.closing(self._files.open(self.path)) as file:
            file.write([record], self._end)
            file.sync_data()
        self._end += len(record)
        self._rows_written += len(changed)


def _last_rows(ledger_ids: np.ndarray, file_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last row of each ledger, ascending, without those of 0 bytes."""
    found, last = np.unique(ledger_ids[::-1], return_index=True)
    sizes = file_bytes[::-1][last]
    return found[sizes > 0], sizes[sizes > 0]
