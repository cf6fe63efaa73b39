"""Changes of the index on their way to the disk: held in memory, evicted to files when that is full, synced together.

What is held is not durable, and neither is what was evicted: until `sync` returns, the journal must keep both, so the
mark stays where it was. Positions may be taken as soon as the entry log bytes they point to are durable, not before:
from then on any of them may reach the disk at any moment.

A file that is new gets its header with its first positions. A header that changes goes to one slot, is synced, then
goes to the other (`formats.index` says why). Few changed files are synced one by one; above `files_synced_singly_max`
of them one sync of the whole file system is cheaper by far: of 100,000 files here, 0.8 s instead of 40.

What is durable is noted in `index_files` before `sync` returns, so that a file that is lost later is noticed.

The writer keeps no file open between two calls: a ledger that is dropped and comes back is another file of that name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from bookie_service.formats import index as index_format
from bookie_service.formats.index import POSITION_BYTES, POSITIONS_AT, SLOT_BYTES, LedgerHeader
from bookie_service.storage.files import File, FileSystem, LocalFiles, SyncFailed
from bookie_service.storage.index import IndexPaths, LedgerUpdate
from bookie_service.storage.index_files import IndexFilesWriter
from bookie_service.storage.index_pages import IndexPages, Page, PageKey


class IndexWriter:
    """Holds and writes changes. For one thread at a time; `pending_header` and `is_clean` for any."""

    def __init__(
        self,
        files: LocalFiles,
        paths: IndexPaths,
        pages: IndexPages,
        known: IndexFilesWriter,
        file_systems: Sequence[FileSystem],
        files_synced_singly_max: int,
    ) -> None:
        """`known`: where it is noted which files there are.

        `file_systems`: those of the index files; empty: files are always synced one by one.
        """
        self._files = files
        self._paths = paths
        self._pages = pages
        self._known = known
        self._file_systems = file_systems
        self._files_synced_singly_max = files_synced_singly_max
        self._headers: dict[int, LedgerHeader] = {}
        self._unsynced: dict[int, int] = {}
        """Ledgers of which something is not durable, and how long each one's file is at least since."""
        self._new_names: set[str] = set()
        """Directories with names in them that are not durable."""

    @property
    def is_clean(self) -> bool:
        """True when all that was held is durable."""
        return not self._unsynced

    def pending_header(self, ledger_id: int) -> LedgerHeader | None:
        """Return a ledger's header when its file may lack it."""
        return self._headers.get(ledger_id)

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        """Take headers and positions; readers see the positions from now on.

        Raises:
            OSError: memory is full, and nothing could be evicted to a file; some updates are held.
        """
        for update in updates:
            if update.header is None and not len(update.entry_ids):
                continue
            self._unsynced.setdefault(update.ledger_id, POSITIONS_AT)
            if update.header is not None:
                self._headers[update.ledger_id] = update.header
            if len(update.entry_ids):
                self._hold_positions(update)
            if self._pages.is_full:
                self._make_room()

    def sync(self, names_are_durable: bool = True) -> None:
        """Make everything that was held durable.

        Args:
            names_are_durable: False: a process that was killed may have created any of the files and directories, and
                a power cut may take their names again.

        Raises:
            SyncFailed: what is durable is unknown, and the index must not be used any more.
            OSError: a write failed; everything that is not durable counts as held still.
        """
        if self.is_clean:
            return
        rewritten = self._write_all()
        names = set(self._new_names)
        if not names_are_durable:
            for ledger_id in self._unsynced:
                names.update(self._paths.directories(ledger_id))
        self._make_durable(self._unsynced, names)
        for header in rewritten:
            with contextlib.closing(self._files.open(self._paths.path(header.ledger_id))) as file:
                file.write([index_format.encode_slot(header)], SLOT_BYTES)
        self._make_durable([header.ledger_id for header in rewritten], ())
        self._known.note({ledger_id: self._size(ledger_id, end) for ledger_id, end in self._unsynced.items()})
        for header in rewritten:
            del self._headers[header.ledger_id]
        self._unsynced.clear()
        self._new_names.clear()

    def learn_files(self) -> None:
        """Note all index files that there are, made durable before; what was noted of others stays.

        Raises:
            SyncFailed, OSError: as `sync`.
        """
        ledger_ids = self._paths.ledgers(self._files).tolist()
        self._make_durable(ledger_ids, {name for each in ledger_ids for name in self._paths.directories(each)})
        self._known.note({ledger_id: self.file_size(ledger_id) for ledger_id in ledger_ids})

    def file_size(self, ledger_id: int) -> int:
        """Return how long a ledger's file is, 0 when there is none."""
        try:
            file = self._files.open(self._paths.path(ledger_id))
        except FileNotFoundError:
            return 0
        with contextlib.closing(file):
            return file.size()

    def _size(self, ledger_id: int, end: int) -> int:
        """Return how long a durable file is at least that was written up to `end`."""
        least = self._known.least_bytes(ledger_id)
        # Of a file that nothing is noted of, or nothing any more, all that there is counts.
        return max(least, end) if least else max(end, self.file_size(ledger_id))

    def _hold_positions(self, update: LedgerUpdate) -> None:
        entry_ids, each = update.entry_ids, self._pages.positions_per_page
        breaks: list[int] = []
        if entry_ids[0] // each != entry_ids[-1] // each:
            breaks = (np.flatnonzero(np.diff(entry_ids // each)) + 1).tolist()
        for start, end in itertools.pairwise([0, *breaks, len(entry_ids)]):
            number = int(entry_ids[start]) // each
            slots = entry_ids[start:end] - number * each
            load = partial(self._load, update.ledger_id, number)
            self._pages.change(update.ledger_id, number, slots, update.positions[start:end], load)

    def _load(self, ledger_id: int, number: int) -> np.ndarray:
        """Return what a ledger's file holds of a page."""
        each = self._pages.positions_per_page
        try:
            file = self._files.open(self._paths.path(ledger_id))
        except FileNotFoundError:
            return np.empty(0, np.int64)
        with contextlib.closing(file):
            data = file.read(each * POSITION_BYTES, index_format.position_at(number * each))
        # After a crash the file may end inside a position: that one was not durable, so replay brings it back.
        return np.frombuffer(data, ">i8", len(data) // POSITION_BYTES).astype(np.int64)

    def _make_room(self) -> None:
        victims = sorted(self._pages.make_room(), key=lambda item: item[0])
        for ledger_id, pages in _by_ledger(victims):
            file, _ = self._open(ledger_id)
            with contextlib.closing(file):
                self._write_pages(ledger_id, file, pages)
            self._pages.evict(key for key, _ in pages)

    def _write_all(self) -> list[LedgerHeader]:
        """Write all that is held to files; return the headers of which the second slot is to be written."""
        dirty = dict(_by_ledger(self._pages.dirty()))
        rewritten = []
        for ledger_id in sorted({*dirty, *self._headers}):
            file, is_new = self._open(ledger_id)
            with contextlib.closing(file):
                header = self._headers.get(ledger_id)
                if header is not None and not is_new:
                    file.write([index_format.encode_slot(header)], 0)
                    rewritten.append(header)
                pages = dirty.get(ledger_id, [])
                self._write_pages(ledger_id, file, pages)
            self._pages.written(key for key, _ in pages)
        return rewritten

    def _write_pages(self, ledger_id: int, file: File, pages: Sequence[tuple[PageKey, Page]]) -> None:
        each = self._pages.positions_per_page
        for (_, number), page in pages:
            at = index_format.position_at(number * each + page.dirty_first)
            end = at + file.write([page.dirty.astype(">i8").tobytes()], at)
            self._unsynced[ledger_id] = max(end, self._unsynced.get(ledger_id, 0))

    def _open(self, ledger_id: int) -> tuple[File, bool]:
        """Return a ledger's file, and whether it is new: then both its slots hold the header."""
        path = self._paths.path(ledger_id)
        try:
            return self._files.open(path), False
        except FileNotFoundError:
            header = self._headers.get(ledger_id)
            assert header is not None, f"ledger {ledger_id} has entries but neither index file nor key"
        _, *directories = self._paths.directories(ledger_id)
        for directory in directories:
            if not self._files.is_directory(directory):
                self._files.create_directory(directory)
                self._new_names.add(os.path.dirname(directory))
        self._new_names.add(os.path.dirname(path))
        file = self._files.create(path)
        try:
            # While the file is not durable, the journal holds the header: both slots may be written at once.
            slot = index_format.encode_slot(header)
            file.write([slot, slot], 0)
        except BaseException:
            file.close()
            raise
        del self._headers[ledger_id]
        return file, True

    def _make_durable(self, ledger_ids: Collection[int], directories: Collection[str]) -> None:
        if self._file_systems and len(ledger_ids) + len(directories) > self._files_synced_singly_max:
            for file_system in self._file_systems:
                with _syncing():
                    file_system.sync()
            return
        for ledger_id in sorted(ledger_ids):
            with contextlib.closing(self._files.open(self._paths.path(ledger_id))) as file, _syncing():
                file.sync_data()
        for directory in sorted(directories):
            self._files.sync_directory(directory)


@contextlib.contextmanager
def _syncing() -> Iterator[None]:
    """Make a failed sync final: pages that were written count as clean, so nothing would write them again."""
    try:
        yield
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, error.filename) from error


def _by_ledger(pages: Sequence[tuple[PageKey, Page]]) -> list[tuple[int, list[tuple[PageKey, Page]]]]:
    """Return (ledger id, its pages) of pages that are ordered by ledger."""
    return [(ledger_id, list(group)) for ledger_id, group in itertools.groupby(pages, key=lambda item: item[0][0])]
