"""The index with one file per ledger, for `SortedLedgerStorage` and `InterleavedLedgerStorage`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from bkspark.errors import ConfigurationError, StorageDamaged
from bkspark.options import COUNT_MAX, bounded, check
from bookie_service.formats.index import POSITION_BYTES, LedgerHeader
from bookie_service.storage import ledger_id_sets
from bookie_service.storage.index.index import (
    ENTRIES_END,
    AllReadable,
    Extent,
    IndexPaths,
    IndexReader,
    LedgerUpdate,
    StoredLedger,
)
from bookie_service.storage.index.index_file import count_positions, has_positions
from bookie_service.storage.index.index_moves import NO_DOUBT, DoubtCallbacks, IndexMoves
from bookie_service.storage.index.index_pages import IndexPages
from bookie_service.storage.index.index_syncs import IndexSyncs
from bookie_service.storage.index.index_writer import IndexWriter
from bookie_service.storage.index.ledger_headers import LedgerHeadersWriter
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.background import with_pauses
from bookie_service.storage.io.disk_threads import DiskWork, InTurn
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import (
    FileSystem,
    LocalFiles,
    is_disk_failure,
    is_out_of_space,
    refuses_writes,
)


@dataclass(frozen=True, slots=True)
class PageOptions:
    """How much of the index is kept in memory: `pages_max` full pages of `page_bytes`, or more pages that are not full.

    files_synced_singly_max: if more files have changed, the whole file system is synced instead.
    """

    page_bytes: int = bounded(8192, POSITION_BYTES, 1024 * 1024, "bytes")
    pages_max: int = bounded(8192, 1, 1 << 30)
    files_synced_singly_max: int = bounded(128, 0, COUNT_MAX)

    def __post_init__(self) -> None:
        check(self)
        if self.page_bytes % POSITION_BYTES:
            raise ConfigurationError(
                f"pageSize {self.page_bytes} must be a multiple of {POSITION_BYTES}, a position's size"
            )


class PerLedgerIndex(AllReadable):
    """A `LedgerIndex` over index files. The interface says which thread may call which method."""

    def __init__(
        self,
        files: LocalFiles,
        directories: Sequence[str],
        options: PageOptions,
        open_files_max: int,
        in_doubt: DoubtCallbacks = NO_DOUBT,
        *,
        disks: DiskWork | None = None,
        places: FilePlaces | None = None,
    ) -> None:
        """`directories`: the `current` directories of all ledger directories, in configured order.

        `disks`: syncs the files of each directory; None: one directory after the other. `places`: see `PlacedFile`.

        Raises:
            StorageDamaged: a file of the whole bookie is unreadable; or headers of ledgers are lost, and there is no
                `in_doubt.begin_all`.
        """
        self._files = files
        self._known = IndexManifestWriter(files, directories, places=places)
        self._paths = IndexPaths(directories, self._known.moved())
        self._fileless = LedgerHeadersWriter(files, directories, self._known, places=places)
        self._pages = IndexPages(options.page_bytes, options.pages_max * options.page_bytes)
        self._file_systems = [_file_system(files, directory) for directory in directories]
        moves = IndexMoves(files, self._paths, self._pages, self._fileless, in_doubt)
        singly_max = options.files_synced_singly_max
        self._syncs = IndexSyncs(files, self._paths, disks or InTurn(), self._file_systems, singly_max)
        self._writer = IndexWriter(files, self._paths, self._pages, self._known, self._fileless, moves, self._syncs)
        self._paths.may_have = self._may_have_file
        self._reader = IndexReader(files, self._paths, self._pages, self._fileless, open_files_max)
        self.positions = self._reader.positions
        """This, page_in_memory and last_entry are methods of the reader: one call less for each read."""
        self.page_in_memory = self._reader.page_in_memory
        self.last_entry = self._reader.last_entry
        self.notices = _notices(self._known)
        if not self._known.is_complete:
            self._learn_files(in_doubt.begin_all)
        self._settle_fileless(in_doubt.begin_all)

    def _learn_files(self, doubt_all: Callable[[], None] | None) -> None:
        """Record all index files. Put all ledgers in doubt if a disk hides some, or does not make them durable.

        Raises:
            OSError: that disk is the only one. A start without it would serve nothing, and a later one may find all.
        """

        def doubt(error: OSError) -> None:
            if doubt_all is None or len(self._file_systems) == 1:
                raise error
            self.notices.append(
                f"{error.filename} cannot be read or synced ({error.strerror}), and the record of index files is "
                "incomplete: it is unknown which ledgers had files there, so all ledgers go into limbo"
            )
            doubt_all()

        hidden = self._paths.hidden(self._files)
        for error in hidden.values():
            doubt(error)
        try:
            if self._paths.has_any(self._files, skips_failing=True):
                self._writer.learn_files(hidden, doubt)
        except OSError as error:
            # The files are durable, and their record is written with the next one. Reads do not need the record.
            if not is_out_of_space(error):
                raise

    def _settle_fileless(self, doubt_all: Callable[[], None] | None) -> None:
        """Put all ledgers in doubt if headers are lost; drop the headers of ledgers that have a file."""
        if self._fileless.damage:
            if doubt_all is None:
                raise StorageDamaged(self._fileless.damage)
            self.notices.append(
                f"{self._fileless.damage}. Fences of ledgers without entries may be lost: all ledgers go into limbo"
            )
            doubt_all()
        try:
            self._fileless.settle(self._known.all()[0])
        except OSError as error:
            # The next change writes it. A start that comes before finds the same state again.
            if not refuses_writes(error):
                raise

    def _may_have_file(self, ledger_id: int) -> bool:
        # In this order, because a ledger is recorded before its positions count as synced.
        is_written = self._writer.has_unsynced_positions(ledger_id)
        return is_written or self._known.least_bytes(ledger_id) > 0 or not self._known.is_complete

    def header(self, ledger_id: int) -> LedgerHeader | None:
        return self._writer.pending_header(ledger_id) or self._reader.header(ledger_id)

    def stored(self, ledger_id: int) -> StoredLedger:
        pending = self._writer.pending_header(ledger_id)
        if pending is not None:
            return StoredLedger(pending, self.last_entry(ledger_id), not self.lost(ledger_id))
        # In this order, because a file that grows meanwhile is not too short.
        return self._reader.stored(ledger_id, self._known.least_bytes(ledger_id))

    def extents(self, ledger_id: int, first_entry: int = 0, end_entry: int = ENTRIES_END) -> Iterator[Extent]:
        return self._reader.extents(ledger_id, first_entry, end_entry)

    def view(self, open_files_max: int) -> IndexReader:
        return IndexReader(self._files, self._paths, self._pages, self._fileless, open_files_max, keeps_pages=False)

    def ledger_ids(self) -> np.ndarray:
        # In this order, because a ledger that gets its first entry has a file before its header is dropped here.
        fileless = self._fileless.ledger_ids()
        # Files of a disk that does not list them are recorded, unless the journals still have their contents.
        found = self._paths.ledgers(self._files, skips_failing=self._known.is_complete)
        filed = ledger_id_sets.union(found, self._known.all()[0])
        return ledger_id_sets.union(fileless, filed)

    def holding_entries(self, ledger_ids: np.ndarray) -> np.ndarray:
        known, file_bytes = self._known.all()
        holding = ledger_id_sets.union(
            known.compress(has_positions(file_bytes)), self._writer.unsynced_with_positions()
        )
        return ledger_id_sets.common(ledger_ids, holding)

    def counts(self) -> tuple[int, int]:
        _, file_bytes = self._known.all()
        return len(self._fileless) + int(np.count_nonzero(file_bytes)), count_positions(file_bytes)

    def has(self, ledger_id: int) -> bool:
        return self._fileless.has(ledger_id) or self._paths.size(self._files, ledger_id) is not None

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        # A recorded file that is missing is lost. `lost` reports it.
        is_noted = self._known.are_noted(ledger_ids)
        return np.array(
            [
                not noted and self._writer.pending_header(ledger_id) is None and self._is_absent(ledger_id)
                for ledger_id, noted in zip(ledger_ids.tolist(), is_noted.tolist())
            ],
            bool,
        )

    def _is_absent(self, ledger_id: int) -> bool:
        try:
            return not self.has(ledger_id)
        except OSError as error:
            if not is_disk_failure(error):
                raise
            # It is unknown. A read of the ledger reports the error.
            return False

    def lost(self, ledger_id: int) -> str:
        least_bytes = self._known.least_bytes(ledger_id)
        if not least_bytes:
            return ""
        size = self._paths.size(self._files, ledger_id)
        if size is not None and size >= least_bytes:
            return ""
        path = self._paths.path(ledger_id)
        if size is None:
            return f"{path}: the index file of ledger {ledger_id} is missing"
        return f"{path} offset {size}: the index file was truncated here, it had {least_bytes} bytes at least"

    def all_lost(self) -> list[int]:
        ledger_ids, file_bytes = self._known.all()
        return [
            ledger_id
            for ledger_id, least_bytes in with_pauses(zip(ledger_ids.tolist(), file_bytes.tolist()))
            if self._seen_bytes(ledger_id) < least_bytes
        ]

    def _seen_bytes(self, ledger_id: int) -> int:
        """Return the length of a ledger's file; 0: there is none, or its disk hides it."""
        try:
            return self._paths.size(self._files, ledger_id) or 0
        except OSError as error:
            if not is_disk_failure(error):
                raise
            return 0

    def accept(self, ledger_ids: Collection[int]) -> None:
        self._writer.note_sizes(ledger_ids)

    def disown(self, ledger_ids: Collection[int]) -> None:
        self._known.note(dict.fromkeys(ledger_ids, 0))

    @property
    def pages_bytes(self) -> int:
        """Memory that positions take now, in bytes."""
        return self._pages.bytes

    @property
    def is_clean(self) -> bool:
        return self._writer.is_clean

    def goes_on_without(self, ledger_id: int, error: OSError) -> bool:
        # A file that cannot be read when it is written moves to another disk.
        return True

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        self._writer.hold(updates)

    def sync(self, names_are_durable: bool = True) -> None:
        self._writer.sync(names_are_durable)

    def remove(self, ledger_id: int) -> None:
        self._reader.forget(ledger_id)
        self._fileless.remove(ledger_id)
        # The file itself is removed later, because a file system may let that wait for its disk.
        self._paths.removed.add(ledger_id)

    def finish_removal(self, ledger_ids: Collection[int]) -> None:
        # The removal is recorded. If a disk refuses to remove a file, a later pass tries again.
        for ledger_id in ledger_ids:
            self._paths.finish_removal(self._files, ledger_id)

    def sync_removed(self, ledger_ids: Collection[int]) -> Collection[Future[None]]:
        self.finish_removal(ledger_ids)
        syncs = self._syncs.sync_names({self._paths.directories(ledger_id)[-1] for ledger_id in ledger_ids})
        try:
            self._fileless.write([])
        except OSError as error:
            if not refuses_writes(error):
                raise
        return syncs

    def forget_removed(self, ledger_ids: Collection[int]) -> None:
        """Do nothing: no read steps over a file that is gone."""

    def keep_records(self) -> None:
        self._known.keep()
        self._fileless.keep()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        for file_system in self._file_systems:
            if file_system is not None:
                file_system.close()


def _file_system(files: LocalFiles, directory: str) -> FileSystem | None:
    """Return the file system of a directory. None: single files are synced, because this is safe on a failing disk."""
    try:
        return files.open_file_system(directory)
    except OSError as error:
        if not is_disk_failure(error):
            raise
        return None


def _notices(known: IndexManifestWriter) -> list[str]:
    if known.damaged_at is not None:
        what = f"{known.path} offset {known.damaged_at}: torn by a crash, or damaged"
    elif known.is_lost:
        what = f"{known.path} was deleted, or its last version was"
    else:
        return []
    return [f"{what}. The existing index files were recorded again; one that was lost before is not noticed"]
