"""The record of index files that must exist (`formats.index_files`), so that the loss of a file is noticed.

Without it, a lost file would look like a ledger that never was here. The index writer records files that it made
durable; garbage collection records files that may be removed. Memory: 16 bytes per ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.formats import index_files as file_format
from bookie_service.storage import ledger_id_sets
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles
from bookie_service.storage.io.placed_file import PlacedFile
from bookie_service.storage.io.placed_log import PlacedLog

RECENT_MAX = 8192
"""How many rows the dictionary may have before they are merged into the arrays."""
ROWS_BESIDE = 4096
"""The file is rewritten when this many of its rows are obsolete, and at least as many as there are ledgers."""


class IndexManifest:
    """What is recorded of the index files. Changed by one thread at a time, read by any."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        directories: Sequence[str],
        *,
        places: FilePlaces | None = None,
        recent_max: int = RECENT_MAX,
    ) -> None:
        """Read the file.

        Args:
            directories: the `current` directories of all ledger directories.
            places: see `PlacedFile`.
            recent_max: how many rows the dictionary may have before they are merged into the arrays.

        Raises:
            StorageDamaged: a later version wrote the file.
            OSError: it cannot be read.
        """
        try:
            self._file = PlacedFile(files, directories, file_format.FILE_NAME, file_format.generation, places)
            data = self._file.data or b""
            ledger_ids, rows, end = file_format.decode(data)
            self._version = file_format.version(data)
        except ValueError as error:
            raise StorageDamaged(f"{file_format.FILE_NAME} in {', '.join(directories)}: {error}") from error
        self._directories = directories
        self._recent_max = recent_max
        self.damaged_at = None if end == len(data) else end
        """The offset of bytes that are not a record. Rows may be missing then, or if there is no file. None: none."""
        self.is_lost = self._file.is_lost
        """Whether the file, or its last version, was deleted. Constant."""
        self.is_complete = end == len(data) > 0 and not self.is_lost
        """Whether the file records every index file: it exists, and is neither damaged nor lost."""
        self.headers = file_format.headers_of(ledger_ids, rows)
        """(generation, least bytes) of the file with the headers of ledgers without entries; None: there may be no such
        file. Changed by `note_headers` and `forget_headers`."""
        is_ledger = ledger_ids >= 0
        self._rows = _last_rows(ledger_ids[is_ledger], rows[is_ledger])
        """(ledger ids, rows), ascending, without the changes in `_recent`. Replaced as a whole by `_learn`."""
        self._recent: dict[int, int] = {}
        """Rows that changed after `_rows`, by ledger id; at most `_recent_max`."""

    @property
    def path(self) -> str:
        return self._file.path

    def least_bytes(self, ledger_id: int) -> int:
        """Return the least length of a ledger's index file; 0: there may be no file."""
        return self._row(ledger_id) & file_format.SIZE_MASK

    def place(self, ledger_id: int) -> int:
        """Return the number of the directory of a ledger's index file."""
        place = (self._row(ledger_id) >> file_format.PLACE_BITS) - 1
        return place if 0 <= place < len(self._directories) else ledger_id % len(self._directories)

    def _row(self, ledger_id: int) -> int:
        """Return the encoded size and place of a ledger's index file; 0: unknown."""
        recent = self._recent.get(ledger_id)
        if recent is not None:
            return recent
        ledger_ids, rows = self._rows
        at = int(ledger_ids.searchsorted(ledger_id))
        return rows.item(at) if at < len(ledger_ids) and ledger_ids.item(at) == ledger_id else 0

    def are_noted(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return which ledgers must have an index file, bool each."""
        # In this order, because the recent rows may be merged into the others meanwhile.
        recent, noted = self._recent, self._rows[0]
        at = np.minimum(noted.searchsorted(ledger_ids), max(0, len(noted) - 1))
        found = noted[at] == ledger_ids if len(noted) else np.zeros(len(ledger_ids), bool)
        for row, ledger_id in enumerate(ledger_ids.tolist()):
            size = recent.get(ledger_id)
            if size is not None:
                found[row] = size > 0
        return found

    def all(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (ledger ids, least bytes of each) for all files that must exist: int64, ascending."""
        ledger_ids, rows = self._all_rows()
        return ledger_ids, file_format.sizes_of(rows)

    def moved(self) -> dict[int, int]:
        """Return the directories of the index files that are not in their usual one."""
        ledger_ids, rows = self._all_rows()
        places = file_format.places_of(rows)
        is_moved = (places >= 0) & (places < len(self._directories))
        return dict(zip(ledger_ids[is_moved].tolist(), places[is_moved].tolist()))

    def _all_rows(self) -> tuple[np.ndarray, np.ndarray]:
        recent = dict(self._recent)
        ledger_ids, rows = self._rows
        if not recent:
            return ledger_ids, rows
        changed = np.array(list(recent.items()), np.int64).reshape(-1, 2)
        return _last_rows(np.concatenate([ledger_ids, changed[:, 0]]), np.concatenate([rows, changed[:, 1]]))

    def _learn(self, changes: Mapping[int, int]) -> None:
        self._recent.update(changes)
        if len(self._recent) > self._recent_max:
            # In this order: a concurrent reader checks the recent rows first.
            self._rows = self._all_rows()
            self._recent = {}


class IndexManifestWriter(IndexManifest):
    """Records durably what is known of the index files."""

    def __init__(
        self,
        files: LocalFiles,
        directories: Sequence[str],
        *,
        places: FilePlaces | None = None,
        recent_max: int = RECENT_MAX,
        rows_beside: int = ROWS_BESIDE,
    ) -> None:
        """`rows_beside`: how many obsolete rows the file may have before it is rewritten."""
        super().__init__(files, directories, places=places, recent_max=recent_max)
        self._rows_beside = rows_beside
        self._files = files
        self._waiting: dict[int, int] = {}
        """Changed rows that are not durable, by ledger id. Emptied by `_write`."""
        self._rows_written = len(self._rows[0])
        """How many rows the file has, obsolete ones included."""
        self._log = PlacedLog(files, self._file, is_whole=self.is_complete)

    def note(self, changes: Mapping[int, int], moved: Mapping[int, int] | None = None) -> None:
        """Set the least bytes of ledgers' files. Durable on return.

        `moved`: for files that are not in their usual directory, the number of their directory.

        Raises:
            OSError: the changes are not durable yet; the next call writes them again.
        """
        moved = moved or {}
        rows = {each: file_format.with_place(size, moved.get(each)) for each, size in changes.items()}
        rows = {ledger_id: row for ledger_id, row in rows.items() if row != self._row(ledger_id)}
        self._waiting.update(rows)
        self._learn(rows)
        if self._waiting or not self.is_complete:
            self._write()

    def note_headers(self, generation: int, least_bytes: int) -> None:
        """Record the generation and the least bytes of the file with headers of ledgers without entries. Durable on
        return.

        Raises:
            OSError: as `note`.
        """
        if self.headers != (generation, least_bytes):
            self.headers = (generation, least_bytes)
            self._waiting[file_format.headers_row(generation)] = least_bytes
        if self._waiting:
            self._write()

    def forget_headers(self) -> None:
        """Record durably that this file has no header. Earlier versions of the bookie then accept the manifest again.

        Raises:
            OSError: it is not recorded, and earlier versions refuse the directories.
        """
        headers, self.headers = self.headers, None
        try:
            self._write()
        except OSError:
            self.headers = headers
            raise

    def keep(self) -> None:
        """Write the record to another directory if its disk fails. Raises OSError if it stays where it is."""
        if self._file.is_out_of_reach(self._files):
            self._write()

    def _write(self) -> None:
        names_headers = self.headers is not None
        changed = np.array(list(self._waiting.items()), np.int64).reshape(-1, 2)
        ledgers = len(self._rows[0]) + len(self._recent)
        is_replaced = self._log.write(
            file_format.encode_rows(changed[:, 0], changed[:, 1]),
            self._encode,
            is_replaced=self._rows_written > 2 * ledgers + self._rows_beside
            or not len(changed)
            or not file_format.may_append(self._version, names_headers=names_headers),
        )
        if is_replaced:
            self._rows_written, self._version = ledgers, file_format.version_of(names_headers=names_headers)
        else:
            self._rows_written += len(changed)
        self._waiting.clear()
        self.is_complete = True

    def _encode(self, generation: int) -> bytes:
        ledger_ids, rows = self._all_rows()
        if self.headers is not None:
            ledger_ids = np.append(ledger_ids, file_format.headers_row(self.headers[0]))
            rows = np.append(rows, self.headers[1])
        return file_format.encode(generation, ledger_ids, rows, names_headers=self.headers is not None)


def _last_rows(ledger_ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last row of each ledger, ascending, without rows of 0 bytes."""
    last = ledger_id_sets.last_of_each(ledger_ids)
    last = last.compress(rows.take(last) > 0)
    return ledger_ids.take(last), rows.take(last)
