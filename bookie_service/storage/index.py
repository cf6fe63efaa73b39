"""The index on disk, per ledger one file of header and positions (`formats.index`): where it lies, how it is read.

What was changed and is not written yet is in memory (`index_pages`); `index_writer` takes changes and writes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bookie_service.formats import index as index_format
from bookie_service.formats.index import POSITION_BYTES, POSITIONS_AT, SLOT_BYTES, LedgerHeader
from bookie_service.storage.files import LocalFiles
from bookie_service.storage.index_pages import IndexPages, overlaid
from bookie_service.storage.open_files import OpenFiles

_SCAN_POSITIONS = 1024
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class LedgerUpdate:
    """What a checkpoint writes for one ledger: a header if it changed, and positions of ascending entry ids."""

    ledger_id: int
    header: LedgerHeader | None
    entry_ids: np.ndarray
    positions: np.ndarray


class IndexPaths:
    """Where the index file of a ledger lies: in the directory number ledger id mod their count."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories

    def path(self, ledger_id: int) -> str:
        directory = self._directories[ledger_id % len(self._directories)]
        return os.path.join(directory, *index_format.relative_path(ledger_id))

    def directories(self, ledger_id: int) -> tuple[str, str, str]:
        """Return the directories that hold the names on the way to a ledger's file, outermost first."""
        innermost = os.path.dirname(self.path(ledger_id))
        outer = os.path.dirname(innermost)
        return os.path.dirname(outer), outer, innermost

    def ledgers(self, files: LocalFiles) -> np.ndarray:
        """Return the ids of all ledgers that have an index file, int64, ascending."""
        return np.array(sorted(self._each_ledger(files)), np.int64)

    def has_any(self, files: LocalFiles) -> bool:
        """Return whether any ledger has an index file."""
        return next(self._each_ledger(files), None) is not None

    def _each_ledger(self, files: LocalFiles) -> Iterator[int]:
        for top in self._directories:
            for middle in _hex_directories(files, top):
                for inner in _hex_directories(files, middle):
                    found = map(index_format.parse_file_name, files.names(inner))
                    yield from (ledger_id for ledger_id in found if ledger_id is not None)


class IndexReader:
    """Reads headers and positions, in memory first. For one thread."""

    def __init__(
        self, files: LocalFiles, paths: IndexPaths, pages: IndexPages, open_files_max: int, keeps_pages: bool = True
    ) -> None:
        """`keeps_pages`: what is read stays in memory for the next time; not so for those who read everything once."""
        self._paths = paths
        self._pages = pages
        self._open = OpenFiles(files, open_files_max)
        self._keeps_pages = keeps_pages

    def header(self, ledger_id: int) -> LedgerHeader | None:
        """Return the header in a ledger's file, None when the ledger has none.

        Raises:
            StorageDamaged: there is a file, but its header is unreadable.
        """
        path = self._paths.path(ledger_id)
        try:
            data = self._open.get(path).read(2 * SLOT_BYTES, 0)
        except FileNotFoundError:
            return None
        try:
            header = index_format.decode_header(data, ledger_id)
        except ValueError as error:
            raise StorageDamaged(f"{path}: {error}", ledger_id=ledger_id) from error
        if header is None:
            raise StorageDamaged(
                f"{path} offset 0: both headers are unreadable; stop the bookie, and restore the file or remove it: "
                "then the ledger is in limbo until it is recovered or repaired",
                ledger_id=ledger_id,
            )
        return header

    def file_size(self, ledger_id: int) -> int | None:
        """Return how long a ledger's file is, None when there is none."""
        try:
            return self._open.get(self._paths.path(ledger_id)).size()
        except FileNotFoundError:
            return None

    def positions(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
        """Return positions of `first_entry`, ... as int64, 0 where not held; shorter when nothing is held behind."""
        each = self._pages.positions_per_page
        first_page, end_page = first_entry // each, (first_entry + count - 1) // each + 1
        changes = self._pages.changes
        found = self._pages.find(ledger_id, first_page, end_page)
        stored = np.empty(0, np.int64)
        if len(found) < end_page - first_page:
            stored = self._stored(ledger_id, first_page * each, (end_page - first_page) * each)
            if self._keeps_pages:
                self._keep(ledger_id, first_page, stored, changes)
        skipped = first_entry - first_page * each
        return overlaid(stored, found, first_page, each)[skipped : skipped + count]

    def _keep(self, ledger_id: int, first_page: int, stored: np.ndarray, changes: int) -> None:
        """Keep the pages of which a file holds anything."""
        each = self._pages.positions_per_page
        for first in range(0, len(stored), each):
            self._pages.keep(ledger_id, first_page + first // each, stored[first : first + each].copy(), changes)

    def _stored(self, ledger_id: int, first_entry: int, count: int) -> np.ndarray:
        """Return positions as the file has them; shorter when it ends before, or within a position."""
        try:
            file = self._open.get(self._paths.path(ledger_id))
        except FileNotFoundError:
            return np.empty(0, np.int64)
        data = file.read(count * POSITION_BYTES, index_format.position_at(first_entry))
        return np.frombuffer(data, ">i8", len(data) // POSITION_BYTES).astype(np.int64)

    def last_entry(self, ledger_id: int) -> int:
        """Return the highest entry id with a position in a ledger's file, NO_ENTRY when there is none."""
        try:
            file = self._open.get(self._paths.path(ledger_id))
        except FileNotFoundError:
            return NO_ENTRY
        end = max(0, (file.size() - POSITIONS_AT) // POSITION_BYTES)
        while end > 0:
            # A crash can leave a file longer than what was written into it: zeros at the end are no entries.
            first = max(0, end - _SCAN_POSITIONS)
            held = np.flatnonzero(self._stored(ledger_id, first, end - first))
            if len(held):
                return first + int(held[-1])
            end = first
        return NO_ENTRY

    def forget(self, ledger_id: int) -> None:
        """Let go of a ledger whose file is about to be removed."""
        path = self._paths.path(ledger_id)
        try:
            size = self._open.get(path).size()
        except FileNotFoundError:
            return
        self._pages.forget(ledger_id, size // POSITION_BYTES // self._pages.positions_per_page + 1)
        self._open.forget(path)

    def close(self) -> None:
        self._open.close()


def _hex_directories(files: LocalFiles, directory: str) -> list[str]:
    names = [name for name in files.names(directory) if 0 < len(name) <= 2 and set(name) <= _HEX]
    return [path for name in names if files.is_directory(path := os.path.join(directory, name))]
