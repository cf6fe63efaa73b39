"""Moves index files out of a directory that takes no writes, because its disk is full or fails.

The new file is a copy of the old file and of memory. Positions that memory evicted before they were durable are in
doubt, and so is an unreadable file as a whole. Such a ledger is in limbo before readers see the copy. The copy is
synced together with everything else that the index writer wrote. Then `manifest` records its place, and only then the
old file is removed. After an earlier crash the old file counts, and replay restores the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from bkspark.errors import StorageDamaged
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import ENTRIES_END, Extent, IndexPaths, IndexReader, names_on_the_way
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.index.ledger_headers import LedgerHeaders
from bookie_service.storage.io.files import File, LocalFiles, is_out_of_space, refuses_writes


@dataclass(frozen=True, slots=True)
class DoubtCallbacks:
    """What a storage does for its index when entries of ledgers may be lost.

    begin: puts ledgers into limbo, durably. None: index files do not move to another directory.
    begin_all: records durably that every ledger of the bookie must go into limbo before anything is served. None: the
        index raises its error instead.
    header_of: returns the header of a ledger as memory knows it, or None.
    """

    begin: Callable[[Collection[int]], None] | None = None
    begin_all: Callable[[], None] | None = None
    header_of: Callable[[int], LedgerHeader | None] = lambda _: None


NO_DOUBT = DoubtCallbacks()
"""For an index without a storage."""


class IndexMoves:
    """Copies index files to other directories. For one thread at a time: the index writer's."""

    def __init__(
        self,
        files: LocalFiles,
        paths: IndexPaths,
        pages: IndexPages,
        fileless: LedgerHeaders,
        in_doubt: DoubtCallbacks,
    ) -> None:
        self._files = files
        self._paths = paths
        self._pages = pages
        self._fileless = fileless
        """The headers of ledgers without an index file."""
        self._doubt = in_doubt.begin
        self._header_of = in_doubt.header_of
        """As `DoubtCallbacks.header_of`."""
        self._refusing: set[int] = set()
        """Numbers of directories whose disks take no writes. Emptied by `noted`, and by `refusal` for lack of space."""
        self._no_space: OSError | None = None
        """The last refusal for lack of space since `_refusing` was empty; None: there was none."""
        self._left_at: list[str] = []
        """Old files of moved ledgers. Removed by `noted`, when the moves are durable."""

    def can_move(self, ledger_id: int) -> bool:
        """Return whether a directory has not refused writes. The ledger's own directory counts as refusing from now."""
        self._refusing.add(self._paths.place(ledger_id))
        return self._doubt is not None and not self._refusing.issuperset(self._paths.places())

    def move(
        self, ledger_id: int, header: LedgerHeader | None, new_names: set[str], *, in_doubt: bool
    ) -> IndexFile | None:
        """Copy a ledger's file to another directory; return the copy, which is open and not durable.

        Returns None if no directory takes it.

        Args:
            header: the ledger's header; None: the one in the file or in memory.
            new_names: receives the directories that contain names which are not durable.
            in_doubt: the old file may have lost positions that memory does not have.
        """
        header = header or self.header(ledger_id)
        if header is None:
            return None
        for place in self._paths.places():
            if place not in self._refusing:
                try:
                    return self._copy(place, header, new_names, in_doubt=in_doubt)
                except OSError as error:
                    if not refuses_writes(error):
                        raise
                    self._refusing.add(place)
                    self._no_space = error if is_out_of_space(error) else self._no_space
        return None

    def refusal(self, error: OSError) -> OSError:
        """Return the error to raise if no directory takes a file whose disk failed with `error`.

        If another directory takes it when it has space, the error is a lack of space, and the caller tries again.
        """
        no_space, self._no_space = self._no_space, None
        if no_space is None:
            return error
        self._refusing.clear()
        return no_space

    def find(self) -> None:
        """Find the places of all index files, because some are not recorded. A ledger with two files goes into limbo.

        If there are two files, the one at the recorded place counts. It is the right one after a crash that tore the
        last record.
        """
        places: dict[int, list[int]] = {}
        for place, ledger_id in self._paths.places_of_all(self._files, skips_failing=True):
            places.setdefault(ledger_id, []).append(place)
        doubtful = [ledger_id for ledger_id, some in places.items() if len(some) > 1]
        if doubtful and self._doubt is not None:
            self._doubt(doubtful)
        for ledger_id, some in places.items():
            if self._paths.place(ledger_id) not in some:
                self._paths.move(ledger_id, some[0])

    def noted(self) -> None:
        """Remove the old files, because the places of the new ones are durable."""
        for path in self._left_at:
            # Usually the disk refuses that, too. A file that does not count does no harm there.
            with contextlib.suppress(OSError):
                self._files.remove(path)
        self._left_at.clear()
        self._refusing.clear()
        self._no_space = None

    def refused_by(self, place: int) -> None:
        """Record that a directory takes no writes now."""
        self._refusing.add(place)

    def header(self, ledger_id: int) -> LedgerHeader | None:
        """Return a ledger's header from its file or, if that cannot be read, from what else is known of it."""
        stored = None
        with self._reader() as reader, contextlib.suppress(OSError, StorageDamaged):
            stored = reader.header(ledger_id)
        return stored or self._header_of(ledger_id) or self._fileless.header(ledger_id)

    def _copy(self, place: int, header: LedgerHeader, new_names: set[str], *, in_doubt: bool) -> IndexFile:
        ledger_id = header.ledger_id
        path = self._paths.path_in(place, ledger_id)
        file = IndexFile(self._create(path, new_names))
        try:
            file.create(header)
            if not self._copy_positions(ledger_id, file) or in_doubt:
                assert self._doubt is not None, "can_move says so"
                self._doubt([ledger_id])
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                self._files.remove(path)
            raise
        self._left_at.append(self._paths.path(ledger_id))
        self._paths.move(ledger_id, place)
        return file

    def _create(self, path: str, new_names: set[str]) -> File:
        top, middle, innermost = names_on_the_way(path)
        for parent, directory in ((top, middle), (middle, innermost)):
            if not self._files.is_directory(directory):
                self._files.create_directory(directory)
                new_names.add(parent)
        new_names.add(innermost)
        # An attempt before a crash may have left a file here, which does not count.
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)
        return self._files.create(path)

    def _copy_positions(self, ledger_id: int, file: IndexFile) -> bool:
        """Copy all readable positions; return whether all positions could be read."""
        with self._reader() as reader:
            try:
                for extent in reader.extents(ledger_id):
                    file.write_positions(*extent)
                return True
            except StorageDamaged:
                pass
            except OSError as error:
                if error.filename == file.file.path:
                    raise
        for extent in self._in_memory(ledger_id):
            file.write_positions(*extent)
        return False

    def _in_memory(self, ledger_id: int) -> Iterator[Extent]:
        each = self._pages.positions_per_page
        for number in self._pages.numbers(ledger_id, 0, ENTRIES_END):
            for positions in self._pages.find(ledger_id, number, number + 1).values():
                yield number * each, positions

    @contextlib.contextmanager
    def _reader(self) -> Iterator[IndexReader]:
        reader = IndexReader(self._files, self._paths, self._pages, self._fileless, 1, keeps_pages=False)
        try:
            yield reader
        finally:
            reader.close()
