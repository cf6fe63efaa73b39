"""Where the index of a ledger is on disk, and how it is read: one file of header and positions (`formats.index`).

A ledger without entries has no file: one file has the headers of all such ledgers (`ledger_headers`). Changes that are
not written yet are in memory (`index_pages`); `index_writer` takes changes and writes them.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bookie_service.formats import index as index_format
from bookie_service.formats.index import STORED_ENTRY_ID_MAX, LedgerHeader
from bookie_service.formats.index_files import PLACES_MAX
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.index.index_pages import IndexPages, overlaid
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.io.background import with_pauses
from bookie_service.storage.io.byte_source import WAITING, ByteSource
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, is_disk_failure, refuses_writes
from bookie_service.storage.io.open_files import OpenFiles

ENTRIES_END = STORED_ENTRY_ID_MAX + 1
"""No entry that can be stored has this id or a higher one."""
EXTENT_ENTRIES = 8192
"""The maximum number of positions in an extent."""
Extent = tuple[int, np.ndarray]
"""(entry id, positions of that entry and the following ones)."""

_SCAN_POSITIONS = 1024
_IDS_AT_ONCE = 8192
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class LedgerUpdate:
    """What a checkpoint writes for one ledger: its header, if it changed, and positions of ascending entry ids."""

    ledger_id: int
    header: LedgerHeader | None
    entry_ids: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """What an index has of one ledger.

    header: None: the index does not have the ledger.
    last_entry: the highest entry id with a position; NO_ENTRY: there is no position.
    is_whole: False: durable data of the ledger is missing; `LedgerIndex.lost` says which.
    """

    header: LedgerHeader | None
    last_entry: int
    is_whole: bool


class AllReadable:
    """The part of an index that is not divided by disks: every ledger can be looked up, and changed."""

    is_divided = has_hidden = has_full = False
    problems: Sequence[str] = ()
    """See `LedgerIndex`."""

    def is_hidden(self, ledger_id: int) -> bool:
        return False

    def hidden(self, ledger_ids: np.ndarray) -> np.ndarray:
        return np.zeros(len(ledger_ids), bool)

    def is_full(self, ledger_id: int) -> bool:
        return False

    def may_come_back(self, ledger_ids: Collection[int]) -> Collection[int]:
        return ()


class IndexPaths:
    """Locates index files: in directory number (ledger id mod number of directories), or where the file was moved.

    One thread moves files; any thread may look paths up. A path is right until the file moves. A caller that does not
    find a file looks it up again.
    """

    def __init__(self, directories: Sequence[str], moved: Mapping[int, int] | None = None) -> None:
        """`moved`: for each ledger whose file is not in its usual directory, the number of its directory."""
        self._directories = directories
        self.moved = dict(moved or {})
        """For each ledger whose file is not in its usual directory, the number of its directory. Changed by `move`."""
        self.moves = 0
        """How often a file was moved. Incremented before `path` returns the new place."""
        self.removed: set[int] = set()
        """Ledgers that are removed, but whose files still exist. Readers do not see these files."""
        self.may_have: Callable[[int], bool] = lambda ledger_id: True
        """Whether a file that its disk hides may have something of a ledger that neither memory nor a journal has. Set
        once, by the owner."""

    def place(self, ledger_id: int) -> int:
        """Return the number of the directory that has, or will have, a ledger's file."""
        return self.moved.get(ledger_id, ledger_id % len(self._directories))

    def path(self, ledger_id: int) -> str:
        place = self.moved.get(ledger_id, ledger_id % len(self._directories))
        return os.path.join(self._directories[place], *index_format.relative_path(ledger_id))

    def path_in(self, place: int, ledger_id: int) -> str:
        """Return the path that a ledger's file has in directory number `place`."""
        return os.path.join(self._directories[place], *index_format.relative_path(ledger_id))

    def places(self) -> range:
        """Return the numbers of the directories that files may move to."""
        return range(min(len(self._directories), PLACES_MAX))

    def all_paths(self, ledger_id: int) -> list[str]:
        """Return the path of a ledger's file, and the paths where a moved file may have been left."""
        if ledger_id not in self.moved:
            return [self.path(ledger_id)]
        return [self.path_in(place, ledger_id) for place in range(len(self._directories))]

    def counts(self, path: str) -> bool:
        """Return whether an index file is the one that counts for its ledger: it is in the right directory."""
        ledger_id = index_format.parse_file_name(os.path.basename(path))
        return ledger_id is not None and self.path(ledger_id) == path

    def place_of(self, directory: str) -> int:
        """Return the number of the directory that is, or contains, `directory`."""
        inside = os.path.join(directory, "")
        within = (inside.startswith(os.path.join(each, "")) for each in self._directories)
        return next(place for place, is_within in enumerate(within) if is_within)

    def move(self, ledger_id: int, place: int) -> None:
        """Record that a ledger's file is now in directory number `place`."""
        self.moves += 1
        if place == ledger_id % len(self._directories):
            self.moved.pop(ledger_id, None)
        else:
            self.moved[ledger_id] = place

    def finish_removal(self, files: LocalFiles, ledger_id: int) -> None:
        """Remove the file of a removed ledger; do nothing for other ledgers. For the thread that writes the index.

        If the disk refuses it, the ledger exists again.
        """
        if ledger_id not in self.removed:
            return
        for path in self.all_paths(ledger_id):
            try:
                files.remove(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                if not refuses_writes(error):
                    raise
        self.moved.pop(ledger_id, None)
        self.removed.discard(ledger_id)

    def size(self, files: ReadOnlyFiles, ledger_id: int) -> int | None:
        """Return the length of a ledger's file; None: there is no file that counts.

        Raises:
            OSError: the disk fails, and there may be a file that counts.
        """
        if ledger_id in self.removed:
            return None
        while True:
            moves = self.moves
            try:
                size = files.file_size(self.path(ledger_id))
            except OSError as error:
                if not is_disk_failure(error) or self.may_have(ledger_id):
                    raise
                size = None
            if size is not None or moves == self.moves:
                return size

    def open(self, files: ReadOnlyFiles, ledger_id: int) -> IndexFile:
        """Open a ledger's file.

        Raises:
            FileNotFoundError: there is no file that counts.
            OSError: the disk fails, and there may be a file that counts.
        """
        path = self.path(ledger_id)
        try:
            return IndexFile(files.open(path))
        except OSError as error:
            if not is_disk_failure(error) or self.may_have(ledger_id):
                raise
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error

    def directories(self, ledger_id: int) -> tuple[str, str, str]:
        """Return the directories that contain the names in the path of a ledger's file, outermost first."""
        return names_on_the_way(self.path(ledger_id))

    def places_of_all(self, files: ReadOnlyFiles, *, skips_failing: bool = False) -> Iterator[tuple[int, int]]:
        """Yield (number of the directory, ledger id) for every existing index file, valid or not.

        `skips_failing`: leave out files whose disk does not list them; False: raise its OSError.
        """
        for place in range(len(self._directories)):
            try:
                for ledger_id, _, _ in self._files_in(files, place):
                    yield place, ledger_id
            except OSError as error:
                if not skips_failing or not is_disk_failure(error):
                    raise

    def _files_in(self, files: ReadOnlyFiles, place: int) -> Iterator[tuple[int, str, str]]:
        """Yield (ledger id, directory, name) for every index file of one ledger directory. Raises OSError."""
        for inner in with_pauses(innermost_directories(files, self._directories[place])):
            for name in files.names(inner):
                ledger_id = index_format.parse_file_name(name)
                if ledger_id is not None:
                    yield ledger_id, inner, name

    def hidden(self, files: ReadOnlyFiles) -> dict[int, OSError]:
        """Return the errors of disks that do not list all their index files, or do not open one of them, by the number
        of the directory."""
        found: dict[int, OSError] = {}
        for place in range(len(self._directories)):
            path = ""
            try:
                for _, inner, name in self._files_in(files, place):
                    path = path or os.path.join(inner, name)
                if path:
                    files.open(path).close()
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                found[place] = error
        return found

    def ledgers(self, files: ReadOnlyFiles, *, skips_failing: bool = False) -> np.ndarray:
        """Return the ids of all ledgers that have an index file, int64, ascending. See `places_of_all`."""
        # Sorting a list, or letting one array grow to a million ids, would hold the interpreter's lock for long.
        ids = self._each_ledger(files, skips_failing)
        pieces = [np.empty(0, np.int64)]
        while len(piece := np.fromiter(itertools.islice(ids, _IDS_AT_ONCE), np.int64)):
            pieces.append(piece)
        return np.sort(np.concatenate(pieces))

    def has_any(self, files: ReadOnlyFiles, *, skips_failing: bool = False) -> bool:
        """Return whether any ledger has an index file. See `places_of_all`."""
        return next(self.places_of_all(files, skips_failing=skips_failing), None) is not None

    def leftovers(self, files: ReadOnlyFiles, suffix: str) -> list[str]:
        """Return the paths of files that have an index file's name and `suffix`."""
        return [
            os.path.join(inner, name)
            for directory in self._directories
            for inner in innermost_directories(files, directory)
            for name in files.names(inner)
            if name.endswith(suffix) and index_format.parse_file_name(name.removesuffix(suffix)) is not None
        ]

    def _each_ledger(self, files: ReadOnlyFiles, skips_failing: bool) -> Iterator[int]:
        # A moved file may have been left at its old place, and an unfinished copy at its new place.
        count, moved, removed = len(self._directories), self.moved, self.removed
        for place, ledger_id in self.places_of_all(files, skips_failing=skips_failing):
            if moved.get(ledger_id, ledger_id % count) == place and ledger_id not in removed:
                yield ledger_id


class IndexReader:
    """Reads headers and positions, in memory first. For one thread."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        paths: IndexPaths,
        pages: IndexPages,
        fileless: LedgerHeaders,
        open_files_max: int,
        keeps_pages: bool = True,
    ) -> None:
        """`keeps_pages`: pages that are read stay in memory for the next read; False for callers that read everything
        once."""
        self._paths = paths
        self._pages = pages
        self._fileless = fileless
        """The headers of ledgers without an index file."""
        self._open: OpenFiles[int, IndexFile] = OpenFiles(partial(paths.open, files), open_files_max)
        self._keeps_pages = keeps_pages
        self._moves = paths.moves
        """`IndexPaths.moves` when files were last opened. After another move they are opened again."""

    def header(self, ledger_id: int) -> LedgerHeader | None:
        """Return a ledger's header; None: there is none.

        Raises:
            StorageDamaged: there is a file, but its header is unreadable.
        """
        # In this order, because a ledger that gets its first entry has a file before its header is dropped here.
        kept = self._fileless.header(ledger_id)
        try:
            file = self._file(ledger_id)
            return file.header(ledger_id) if kept is None else _header_of(file, ledger_id, kept)
        except FileNotFoundError:
            return kept

    def stored(self, ledger_id: int, least_bytes: int) -> StoredLedger:
        """Return what the index has of a ledger, from a single look at its file.

        Args:
            least_bytes: the length that the file had before the call. A shorter file is not whole.

        Raises:
            StorageDamaged: as `header`.
        """
        kept = self._fileless.header(ledger_id) if self._fileless.table.ledger_ids.size else None
        try:
            file = self._file(ledger_id)
        except FileNotFoundError:
            return StoredLedger(kept, NO_ENTRY, not least_bytes)
        header = file.header(ledger_id) if kept is None else _header_of(file, ledger_id, kept)
        file_bytes = file.file.size()
        has_layout = kept is None or file.layout is not None
        last_entry = self._last_entry(ledger_id, file, file_bytes) if has_layout else NO_ENTRY
        return StoredLedger(header, last_entry, file_bytes >= least_bytes)

    def _file(self, ledger_id: int) -> IndexFile:
        """Return a ledger's open file. Raises FileNotFoundError if there is none."""
        if ledger_id in self._paths.removed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._paths.path(ledger_id))
        while True:
            moves = self._paths.moves
            if moves != self._moves:
                # If a file moves away and back, there is a different file under the old path.
                self._open.close()
                self._moves = moves
            try:
                return self._open.get(ledger_id)
            except FileNotFoundError:
                # The file may have moved just now. The old file is removed only after readers know the new place.
                if moves == self._paths.moves:
                    raise

    def positions(
        self,
        ledger_id: int,
        first_entry: int,
        count: int,
        source: ByteSource = WAITING,
        *,
        may_keep_pages: bool = True,
    ) -> np.ndarray:
        """Return the positions of `first_entry`, ... as int64; 0: not held. Shorter if no later entry is held.

        Raises:
            NotCached: `source` does not wait, and pages are not in memory.
        """
        each = self._pages.positions_per_page
        first_page, end_page = first_entry // each, (first_entry + count - 1) // each + 1
        changes = self._pages.changes
        found = self._pages.find(ledger_id, first_page, end_page)
        stored = np.empty(0, np.int64)
        if len(found) < end_page - first_page:
            stored = self._stored(ledger_id, first_page * each, (end_page - first_page) * each, source)
            if self._keeps_pages and may_keep_pages:
                # The pages that have positions in the file.
                for number, first in enumerate(range(0, len(stored), each), first_page):
                    self._pages.keep(ledger_id, number, stored[first : first + each].copy(), changes)
        skipped = first_entry - first_page * each
        if found:
            stored = overlaid(stored, found, first_page, each)
        return stored[skipped : skipped + count]

    def page_in_memory(self, ledger_id: int, first_entry: int, last_entry: int) -> tuple[int, np.ndarray] | None:
        """See `LedgerIndex.page_in_memory`."""
        number, slot = divmod(first_entry, self._pages.positions_per_page)
        if last_entry >= first_entry - slot + self._pages.positions_per_page:
            return None
        positions = self._pages.page(ledger_id, number)
        return None if positions is None else (first_entry - slot, positions)

    def _stored(self, ledger_id: int, first_entry: int, count: int, source: ByteSource) -> np.ndarray:
        """Return positions as the file has them; shorter when it ends before, or within a position."""
        try:
            return self._file(ledger_id).positions(first_entry, count, source)
        except FileNotFoundError:
            return np.empty(0, np.int64)

    def last_entry(self, ledger_id: int) -> int:
        """Return the highest entry id with a position in a ledger's file, NO_ENTRY when there is none."""
        try:
            file = self._file(ledger_id)
            return self._last_entry(ledger_id, file, file.file.size())
        except (FileNotFoundError, StorageDamaged):
            # When a ledger with an unreadable header is created again, the bookie holds no entry of it.
            return NO_ENTRY
        except OSError as error:
            if not is_disk_failure(error):
                raise
            # The same holds for a ledger in limbo whose file is hidden by its disk.
            return NO_ENTRY

    def _last_entry(self, ledger_id: int, file: IndexFile, file_bytes: int) -> int:
        """Return `last_entry` of an open file of this length. Raises StorageDamaged: its layout is unknown."""
        each, changes = self._pages.positions_per_page, self._pages.changes
        end = file.end_entry(file_bytes)
        while end > 0:
            # A crash can leave a file longer than the bytes written to it: zeros at the end are not entries.
            page = (end - 1) // each
            positions = file.positions(page * each, end - page * each)
            held = np.flatnonzero(positions)
            if len(held):
                if self._keeps_pages:
                    # The next read, or the next flush of the ledger, usually needs this page.
                    self._pages.keep(ledger_id, page, positions, changes)
                return page * each + int(held[-1])
            end = last_data_end(file, page * each)
        return NO_ENTRY

    def extents(self, ledger_id: int, first_entry: int = 0, end_entry: int = ENTRIES_END) -> Iterator[Extent]:
        """See `IndexView.extents`: visits the pages in memory, and those that the file has data for."""
        each = self._pages.positions_per_page
        first_page, end_page = first_entry // each, -(-end_entry // each)
        # Every position that is held at the start is on one of these pages, or in the file by the time it is read.
        in_memory = self._pages.numbers(ledger_id, first_page, end_page)
        pages_min, pages_max = max(1, _SCAN_POSITIONS // each), max(1, EXTENT_ENTRIES // each)
        page, pages = first_page, pages_min
        while (page_at := self._next_page(ledger_id, page, end_page, in_memory)) is not None:
            page = min(page_at + pages, end_page)
            first = max(first_entry, page_at * each)
            positions = self.positions(ledger_id, first, min(end_entry, page * each) - first, may_keep_pages=False)
            held = np.flatnonzero(positions)
            # Few large reads where entries are close together, small reads where they are far apart.
            pages = min(pages_max, 2 * pages) if 2 * len(held) >= len(positions) else pages_min
            if len(held):
                yield first + int(held[0]), positions[held[0] : held[-1] + 1]

    def _next_page(self, ledger_id: int, page: int, end_page: int, in_memory: Sequence[int]) -> int | None:
        """Return the first of the pages [page, end_page) that memory has, or the file has data for."""
        each = self._pages.positions_per_page
        at = bisect.bisect_left(in_memory, page)
        found = in_memory[at] if at < len(in_memory) else end_page
        with contextlib.suppress(FileNotFoundError):
            entry_id = self._file(ledger_id).next_data(page * each)
            if entry_id is not None:
                found = min(found, entry_id // each)
        return found if found < end_page else None

    def forget(self, ledger_id: int) -> None:
        """Drop a ledger whose file is about to be removed."""
        self._pages.forget(ledger_id)
        self._open.forget(ledger_id)

    def close(self) -> None:
        self._open.close()


def _header_of(file: IndexFile, ledger_id: int, kept: LedgerHeader) -> LedgerHeader:
    """Return the header of a ledger that has two: in its file, and `kept` in the file of ledgers without entries."""
    # The file is being created, or a crash left it: it may have an earlier header, a later one or none.
    try:
        return index_format.merged(file.header(ledger_id), kept)
    except StorageDamaged:
        return kept


def names_on_the_way(path: str) -> tuple[str, str, str]:
    """Return the directories that hold the names in the path of an index file, outermost first."""
    innermost = os.path.dirname(path)
    outer = os.path.dirname(innermost)
    return os.path.dirname(outer), outer, innermost


def last_data_end(file: IndexFile, end_entry: int) -> int:
    """Return the entry below `end_entry` up to which a file may have positions: a hole follows it."""

    def has_data(entry_id: int) -> bool:
        found = file.next_data(entry_id)
        return found is not None and found < end_entry

    if not end_entry or not has_data(0):
        return 0
    low, high = 0, end_entry
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if has_data(middle) else (low, middle)
    return high


def innermost_directories(files: ReadOnlyFiles, directory: str) -> Iterator[str]:
    """Yield the directories below a ledger directory's `current` that hold index files."""
    for middle in _hex_directories(files, directory):
        yield from _hex_directories(files, middle)


def _hex_directories(files: ReadOnlyFiles, directory: str) -> list[str]:
    names = [name for name in files.names(directory) if 0 < len(name) <= 2 and set(name) <= _HEX]
    return [path for name in names if files.is_directory(path := os.path.join(directory, name))]
