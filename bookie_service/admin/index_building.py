"""Builds a new index from positions that were found in entry logs, beside the old index, and then replaces the old one.

Positions come in the order of the logs. If an entry has several positions, the last one counts, unless the old index
has a position that leads to the entry: if an entry was written more than once, only the index certainly knows the
newest copy.

A crash at any moment leaves either the old index or the new one: files and directories are made durable under temporary
names, and then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.admin.store_swap import REBUILT_NAME, REPLACED_NAME, remove_tree, remove_unfinished
from bookie_service.formats import index as index_format
from bookie_service.formats import key_value_index
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import IndexPaths, IndexReader, LedgerUpdate
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.index.manifest import IndexManifest, IndexManifestWriter
from bookie_service.storage.index.split_index import SplitIndex
from bookie_service.storage.index.split_layout import SplitLayout, find_layout
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.interface import IndexView
from bookie_service.storage.logs.entry_log import StoredLogs
from bookie_service.storage.logs.log_reader import EntryLogReader
from bookie_service.storage.logs.log_scan import stored_positions

SUFFIX = ".rebuilt"
_LOGS_OPEN_MAX = 64
FILES_OPEN_MAX = 16
_FILES_SYNCED_SINGLY_MAX = 128
_READ_BYTES = 1
_UNSYNCED_BYTES_MAX = 16 * 1024 * 1024
"""How many bytes of positions and headers a store gets before it is synced: until then it keeps them in memory."""
_HEADER_BYTES = 256
"""What a header takes in memory, about."""
PAGE_BYTES = 8192

HeaderOf = Callable[[int, LedgerHeader | None], LedgerHeader]
"""Called with a ledger id and its header in the old index (None: there is no header); returns the new header."""


class IndexBuilder(Protocol):
    """Collects positions, then replaces the old index with them."""

    def hold(self, ledger_id: int, entry_ids: np.ndarray, positions: np.ndarray) -> None:
        """Add positions of a ledger. Entry ids ascend, and each occurs once."""

    def finish(self, ledger_ids: Sequence[int], header_of: HeaderOf) -> int:
        """Build the index of these ledgers and of all ledgers with positions; return how many entries they have.

        Raises:
            OSError: a file could not be read or written. The old index is unchanged, except for ledgers that are done.
        """


class _Logs:
    """Checks whether a position leads to its entry."""

    def __init__(self, files: LocalFiles, directories: Sequence[str]) -> None:
        self._reader = EntryLogReader(StoredLogs(files, directories), _LOGS_OPEN_MAX)

    def leads_to(self, ledger_id: int, entry_id: int, position: int) -> bool:
        try:
            self._reader.read(ledger_id, entry_id, np.array([position], np.int64), _READ_BYTES)
        except (StorageDamaged, OSError):
            return False
        return True

    def preferred(self, ledger_id: int, entry_ids: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return for each entry the old position if it leads to the entry or is the only one, otherwise the new one."""
        chosen = np.where(new == 0, old, new)
        for row in np.flatnonzero((old != 0) & (new != 0) & (old != new)).tolist():
            if self.leads_to(ledger_id, int(entry_ids[row]), int(old[row])):
                chosen[row] = old[row]
        return chosen

    def close(self) -> None:
        self._reader.close()


class PerLedgerIndexBuilder:
    """Builds index files."""

    def __init__(self, files: LocalFiles, directories: Sequence[str]) -> None:
        """Remove files that an interrupted run left.

        `directories`: the `current` directories of all ledger directories.
        """
        self._files = files
        self._directories = directories
        known = IndexManifest(files, directories)
        self._paths = IndexPaths(directories, known.moved())
        self._fileless = LedgerHeaders(files, directories, known.headers)
        self._built: set[int] = set()
        """Ledgers whose file was begun in this run."""
        for path in self._paths.leftovers(files, SUFFIX):
            files.remove(path)

    def hold(self, ledger_id: int, entry_ids: np.ndarray, positions: np.ndarray) -> None:
        with contextlib.closing(self._opened(ledger_id)) as file:
            for first, run in _runs(entry_ids, positions):
                file.write_positions(first, run)

    def _opened(self, ledger_id: int) -> IndexFile:
        path = self._paths.path(ledger_id) + SUFFIX
        if ledger_id in self._built:
            return IndexFile(self._files.open(path))
        self._files.make_directory(os.path.dirname(path))
        file = IndexFile(self._files.create(path))
        # The final header is written last. This one only determines where positions go.
        file.create(LedgerHeader(ledger_id, 0, False, index_format.UNKNOWN_KEY))
        self._built.add(ledger_id)
        return file

    def finish(self, ledger_ids: Sequence[int], header_of: HeaderOf) -> int:
        logs = _Logs(self._files, self._directories)
        pages = IndexPages(PAGE_BYTES, PAGE_BYTES)
        old = IndexReader(self._files, self._paths, pages, self._fileless, FILES_OPEN_MAX, keeps_pages=False)
        entries = 0
        try:
            for ledger_id in sorted({*ledger_ids, *self._built}):
                with contextlib.closing(self._opened(ledger_id)) as file:
                    self._take_over(ledger_id, file, old, logs)
                    file.create(header_of(ledger_id, _readable_header(old, ledger_id)))
                    entries += _count(file)
        finally:
            old.close()
            logs.close()
        paths = {ledger_id: self._paths.path(ledger_id) for ledger_id in sorted(self._built)}
        self._make_durable([path + SUFFIX for path in paths.values()], ())
        for path in paths.values():
            self._files.rename(path + SUFFIX, path)
        self._make_durable((), sorted({os.path.dirname(path) for path in paths.values()}))
        known = IndexManifestWriter(self._files, self._directories)
        sizes = {ledger_id: self._files.file_size(path) or 0 for ledger_id, path in paths.items()}
        known.note(
            {ledger_id: max(size, known.least_bytes(ledger_id)) for ledger_id, size in sizes.items()}, self._paths.moved
        )
        return entries

    def _take_over(self, ledger_id: int, file: IndexFile, old: IndexReader, logs: _Logs) -> None:
        """Write those positions of the old file that count."""
        with contextlib.suppress(StorageDamaged):  # the layout of its positions is unknown
            for first, positions in old.extents(ledger_id):
                ids = first + np.arange(len(positions))
                new = np.zeros(len(positions), np.int64)
                built = file.positions(first, len(positions))
                new[: len(built)] = built
                chosen = logs.preferred(ledger_id, ids, positions, new)
                changed = np.flatnonzero(chosen != new)
                for at, run in _runs(ids[changed], chosen[changed]):
                    file.write_positions(at, run)

    def _make_durable(self, paths: Sequence[str], directories: Sequence[str]) -> None:
        systems = [self._files.open_file_system(directory) for directory in self._directories]
        try:
            if len(paths) + len(directories) > _FILES_SYNCED_SINGLY_MAX and None not in systems:
                for system in systems:
                    assert system is not None
                    system.sync()
                return
        finally:
            for system in systems:
                if system is not None:
                    system.close()
        for path in paths:
            with contextlib.closing(self._files.open(path)) as file:
                file.sync_data()
        for directory in directories:
            self._files.sync_directory(directory)


class KeyValueIndexBuilder:
    """Builds the index of `DbLedgerStorage`: in new stores if an old one is damaged or missing, otherwise in the old
    ones."""

    def __init__(
        self,
        files: LocalFiles,
        directories: Sequence[str],
        options: KeyValueOptions,
        *,
        from_scratch: bool,
        begin_swap: Callable[[], None],
        places: FilePlaces,
    ) -> None:
        """`directories`: the `current` directories of all ledger directories. If there are several, new stores are made
        in each. `begin_swap` is called when they are complete, and must make them count (`StoreSwap`). `places`: the
        record of which files with what old stores lack count.

        Raises:
            StorageDamaged: without `from_scratch`: an old store is damaged or missing.
            OSError: a disk fails.
        """
        self._files = files
        self._directory = directory = directories[0]
        self._from_scratch = from_scratch
        self._begin_swap = begin_swap
        self._is_split = 1 < len(directories) <= key_value_index.STORES_MAX
        """Whether new stores are made in each directory. Constant."""
        self._logs = _Logs(files, directories)
        self._built: set[int] = set()
        """Ledgers whose positions were written in this run."""
        self._unsynced_bytes = 0
        """How many bytes were written since the last sync. Raised and reset by `_put`."""
        self._index: KeyValueIndex | SplitIndex
        if from_scratch:
            # A run that was interrupted left it.
            remove_unfinished(files, directories)
        if from_scratch and self._is_split:
            layout = SplitLayout(len(directories), {}, is_being_created=True)
            self._index = _split_index(files, directories, options, layout, None, REBUILT_NAME)
        elif from_scratch:
            commit = os.path.join(directory, key_value_index.COMMIT_NAME)
            reached = key_value_index.decode_commit(files.read_all(commit)) if files.exists(commit) else None
            self._index = KeyValueIndex(files, directory, options, name=REBUILT_NAME, commits_before=reached or 0)
        elif (found := find_layout(files, directories)) is not None:
            self._index = _split_index(files, directories, options, found, places)
        else:
            self._index = KeyValueIndex(files, directory, options)

    def hold(self, ledger_id: int, entry_ids: np.ndarray, positions: np.ndarray) -> None:
        self._built.add(ledger_id)
        if not self._from_scratch:
            old = stored_positions(self._index, ledger_id, entry_ids)
            positions = self._logs.preferred(ledger_id, entry_ids, old, positions)
            changed = positions != old
            entry_ids, positions = entry_ids[changed], positions[changed]
        if len(entry_ids):
            self._put(LedgerUpdate(ledger_id, None, entry_ids, positions))

    def _put(self, update: LedgerUpdate) -> None:
        self._index.hold([update])
        self._unsynced_bytes += update.positions.nbytes + _HEADER_BYTES
        if self._unsynced_bytes >= _UNSYNCED_BYTES_MAX:
            # A new store does not count yet, and the ledgers of an old one are in limbo.
            self._index.sync()
            self._unsynced_bytes = 0

    def finish(self, ledger_ids: Sequence[int], header_of: HeaderOf) -> int:
        entries = 0
        for ledger_id in sorted({*ledger_ids, *self._built}):
            nothing = np.empty(0, np.int64)
            header = header_of(ledger_id, _readable_header(self._index, ledger_id))
            self._put(LedgerUpdate(ledger_id, header, nothing, nothing))
            entries += sum(int(np.count_nonzero(positions)) for _, positions in self._index.extents(ledger_id))
        self._index.sync()
        self.close()
        if self._index.has_hidden:
            raise OSError(errno.EIO, "a disk failed while the index was built: run it again", self._directory)
        if self._from_scratch:
            self._begin_swap() if self._is_split else self._replace()
        return entries

    def _replace(self) -> None:
        """Replace the old store by the new one. The old one is kept under another name."""
        self._remove_commit()
        path = os.path.join(self._directory, key_value_index.DIRECTORY_NAME)
        if self._files.is_directory(path):
            replaced = os.path.join(self._directory, REPLACED_NAME)
            remove_tree(self._files, replaced)
            self._files.rename(path, replaced)
            self._files.sync_directory(self._directory)
        self._files.rename(os.path.join(self._directory, REBUILT_NAME), path)
        self._files.sync_directory(self._directory)

    def _remove_commit(self) -> None:
        """Remove the new store's own commit count. At its final place, the old store's count remains valid."""
        path = os.path.join(self._directory, REBUILT_NAME + key_value_index.COMMIT_SUFFIX)
        if self._files.exists(path):
            self._files.remove(path)
            self._files.sync_directory(self._directory)

    def close(self) -> None:
        self._logs.close()
        self._index.close()


def _split_index(
    files: LocalFiles,
    directories: Sequence[str],
    options: KeyValueOptions,
    layout: SplitLayout,
    places: FilePlaces | None,
    name: str = key_value_index.DIRECTORY_NAME,
) -> SplitIndex:
    """Open or create one store for each directory. Raises OSError if a disk fails."""

    def begin_doubt(ledger_ids: Collection[int]) -> None:
        raise OSError(errno.EIO, f"a disk failed with the index of {len(ledger_ids)} ledgers", directories[0])

    for error in layout.hidden.values():
        raise error
    index = SplitIndex(files, directories, options, layout, places=places, begin_doubt=begin_doubt, name=name)
    if index.has_hidden:
        index.close()
        raise OSError(errno.EIO, "the disk of a key-value store fails", directories[0])
    return index


def _readable_header(index: IndexView, ledger_id: int) -> LedgerHeader | None:
    try:
        return index.header(ledger_id)
    except StorageDamaged:
        return None


def _count(file: IndexFile) -> int:
    """Return how many entries have a position in an index file."""
    count, at = 0, file.next_data(0)
    while at is not None:
        positions = file.positions(at, PAGE_BYTES)
        count += int(np.count_nonzero(positions))
        at = file.next_data(at + len(positions)) if len(positions) else None
    return count


def _runs(entry_ids: np.ndarray, positions: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first entry id, positions) of each run of consecutive ids."""
    if len(entry_ids):
        for rows in np.split(np.arange(len(entry_ids)), np.flatnonzero(np.diff(entry_ids) > 1) + 1):
            yield int(entry_ids[rows[0]]), positions[rows]
