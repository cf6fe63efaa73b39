"""Changes of the index on their way to disk: held in memory, evicted to files when memory is full, and synced together.

Held changes are not durable, and evicted ones are not either. The journal must keep both until `sync` returns, so the
mark does not move before. Positions may be added only when the entry log bytes that they point to are durable, because
from then on any position may reach the disk at any moment.

A ledger without positions has no file; its header goes to the file of `ledger_headers`. A new file gets its header with
its first positions. Once the file is durable and recorded, the header is dropped from the other file. A changed header
is written to one slot, synced, and then written to the other slot (`formats.index` says why). A few changed files are
synced one by one. Above `files_synced_singly_max` files, one sync of the whole file system is far cheaper: 0.8 s
instead of 40 s for 100,000 files.

A file stays open from its first write until it is synced. If the system cannot write the file to disk meanwhile, it may
report the error only to processes that have the file open. This applies to files that are synced one by one; the sync
of a file system reports the errors of all its files.

Durable files are recorded in `manifest` before `sync` returns, so that a later loss is noticed.

If the disk of a file takes no writes, the file moves to another directory (`index_moves`), with its pending changes.

No file stays open after a sync: a ledger that is dropped and comes back has a different file of the same name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from bookie_service.formats.index import LAYOUT, LedgerHeader
from bookie_service.storage import ledger_id_sets
from bookie_service.storage.index.index import IndexPaths, LedgerUpdate
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.index.index_moves import IndexMoves
from bookie_service.storage.index.index_pages import IndexPages, Page, PageKey
from bookie_service.storage.index.index_syncs import IndexSyncs, SyncRefusals, is_of_disk, syncing
from bookie_service.storage.index.ledger_headers import LedgerHeadersWriter
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.io.files import LocalFiles, SyncFailed, is_disk_failure


class IndexWriter:
    """Holds and writes changes. For one thread at a time; `pending_header` and `is_clean` are for any thread."""

    def __init__(
        self,
        files: LocalFiles,
        paths: IndexPaths,
        pages: IndexPages,
        known: IndexManifestWriter,
        fileless: LedgerHeadersWriter,
        moves: IndexMoves,
        syncs: IndexSyncs,
    ) -> None:
        """`known`: records which files exist. `fileless`: the headers of ledgers without a file."""
        self._files = files
        self._paths = paths
        self._pages = pages
        self._known = known
        self._fileless = fileless
        self._moves = moves
        self._syncs = syncs
        self._headers: dict[int, LedgerHeader] = {}
        """Changed headers that are not durable, except those in new files. Filled by `hold`, emptied by `sync`."""
        self.pending_header = self._headers.get
        """Returns a ledger's header if its file may lack it, else None. Constant."""
        self._unsynced: dict[int, int] = {}
        """How far positions were written to each file whose changes are not durable, by ledger id."""
        self._written: dict[int, IndexFile] = {}
        """Open files that were written to and not synced since, by ledger id."""
        self._evicted: set[int] = set()
        """Ledgers with positions that are neither in memory nor durable. Emptied by `sync`."""
        self._new_names: set[str] = set()
        """Directories that contain names which are not durable. Emptied by a sync."""

    @property
    def is_clean(self) -> bool:
        """True if all held changes are durable."""
        return not self._unsynced and not self._headers

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        """Add headers and positions. Readers see the positions from now on.

        Raises:
            OSError: memory is full, and a page could not be evicted to its file; some of the updates are held.
        """
        for update in updates:
            if update.header is None and not len(update.entry_ids):
                continue
            # A ledger that was removed and is created again must not get its old file.
            self._paths.finish_removal(self._files, update.ledger_id)
            self._unsynced.setdefault(update.ledger_id, 0)
            if update.header is not None:
                self._headers[update.ledger_id] = update.header
            if len(update.entry_ids):
                self._need_file(update.ledger_id)
                self._moving(update.ledger_id, partial(self._hold_positions, update))
            if self._pages.is_full:
                self._make_room()

    def sync(self, names_are_durable: bool = True) -> None:
        """Make all held changes durable.

        Args:
            names_are_durable: False: a process that was killed may have created any of the files and directories, and a
                power failure may still remove their names.

        Raises:
            SyncFailed: what is durable is unknown, and the index must not be used any more.
            DiskStalled: a disk is late, in this sync or an earlier one. All changes still count as held.
            OSError: a write failed. All changes that are not durable still count as held.
        """
        if self.is_clean:
            return
        self._make_durable((), ())
        dirty = dict(_by_ledger(self._pages.dirty()))
        fileless = self._without_files(dirty)
        rewritten, pages = self._write_all(dirty, fileless)
        names = set(self._new_names)
        if not names_are_durable:
            for ledger_id in self._unsynced:
                names.update(self._paths.directories(ledger_id))
        self._make_durable(self._unsynced, names)
        self._new_names.clear()
        # Only now, because a file that moves takes from memory what a failed sync may have lost.
        self._pages.written(pages)
        self._evicted.clear()
        for header in rewritten:
            self._moving(header.ledger_id, partial(self._write, header.ledger_id, header, 1, ()))
        # With the names of files that moved since.
        self._make_durable([header.ledger_id for header in rewritten], set(self._new_names))
        sizes = {ledger_id: self._size(ledger_id, end) for ledger_id, end in self._unsynced.items()}
        self._syncs.record(self._paths.place_of(self._known.path), partial(self._note, sizes, list(fileless.values())))
        for header in (*rewritten, *fileless.values()):
            self._headers.pop(header.ledger_id, None)
        self._unsynced.clear()
        self._new_names.clear()

    def _note(self, sizes: Mapping[int, int], fileless: Sequence[LedgerHeader]) -> None:
        """Record durable files, and headers of ledgers without a file."""
        self._known.note(sizes, self._paths.moved)
        self._moves.noted()
        self._fileless.write(fileless, sizes)

    def learn_files(self, hidden: Collection[int], doubt: Callable[[OSError], None]) -> None:
        """Record all existing index files, which must be durable; records of other files stay.

        Files in the directories with the numbers `hidden` are left out, and so are those of a directory whose disk does
        not make them durable: `doubt(error)` is called before anything is recorded.

        A file is not recorded if its ledger also has its header elsewhere. A crash may have left that file without a
        header, and the journal has its contents.

        Raises:
            SyncFailed, OSError: as `sync`.
        """
        self._moves.find()
        by_place: dict[int, list[int]] = {}
        found = self._paths.ledgers(self._files, skips_failing=True)
        for ledger_id in ledger_id_sets.without(found, self._fileless.ledger_ids()).tolist():
            by_place.setdefault(self._paths.place(ledger_id), []).append(ledger_id)
        durable: list[int] = []
        for ledger_ids in (ledgers for place, ledgers in by_place.items() if place not in hidden):
            try:
                self._make_durable(ledger_ids, {name for each in ledger_ids for name in self._paths.directories(each)})
                durable += ledger_ids
            except SyncFailed as error:
                if not is_disk_failure(error):
                    raise
                doubt(error)
        self.note_sizes(durable)

    def note_sizes(self, ledger_ids: Iterable[int]) -> None:
        """Record the lengths and places of ledgers' files."""
        self._known.note({ledger_id: self.file_size(ledger_id) for ledger_id in ledger_ids}, self._paths.moved)
        self._moves.noted()

    def file_size(self, ledger_id: int) -> int:
        """Return the length of a ledger's file; 0: there is no file."""
        try:
            file = self._paths.open(self._files, ledger_id)
        except FileNotFoundError:
            return 0
        with contextlib.closing(file):
            return file.file.size()

    def has_unsynced_positions(self, ledger_id: int) -> bool:
        """Return whether positions of a ledger were written to its file and are not durable. For any thread."""
        return self._unsynced.get(ledger_id, 0) > 0

    def unsynced_with_positions(self) -> np.ndarray:
        """Return the ledgers whose files have positions that are not durable. For any thread."""
        return np.array([each for each, end in list(self._unsynced.items()) if end], np.int64)

    def close(self) -> None:
        """Close the open files. Changes that are not synced are not durable."""
        for file in self._written.values():
            file.close()
        self._written.clear()

    def _size(self, ledger_id: int, end: int) -> int:
        """Return the least length that a durable file has if it was written up to `end`."""
        is_moved = self._known.place(ledger_id) != self._paths.place(ledger_id)
        least = 0 if is_moved else self._known.least_bytes(ledger_id)
        if least:
            return max(least, end)
        # The manifest has no (or no current) length of the file, so its actual length counts.
        try:
            return max(end, self.file_size(ledger_id))
        except OSError as error:
            if not is_of_disk(error):
                raise
            # It was synced just now, with its header and what was written.
            return max(end, LAYOUT.positions_at)

    def _need_file(self, ledger_id: int) -> None:
        """Hold the header of a ledger that gets its first position, because its file is created with a header."""
        if ledger_id not in self._headers and self._fileless.has(ledger_id):
            # The eviction of a page may have created the file since, with a later header.
            header = self._moves.header(ledger_id)
            if header is not None:
                self._headers[ledger_id] = header

    def _without_files(self, with_positions: Collection[int]) -> dict[int, LedgerHeader]:
        """Return the changed headers of ledgers that have neither positions nor a file, and need none."""
        found = {
            ledger_id: header
            for ledger_id, header in self._headers.items()
            if ledger_id not in with_positions and not self._has_file(ledger_id)
        }
        for ledger_id in found:
            self._unsynced.pop(ledger_id, None)
        return found

    def _has_file(self, ledger_id: int) -> bool:
        """Return whether a ledger has a file, or had one that is lost. A crash may have left it, unrecorded."""
        if self._known.least_bytes(ledger_id):
            return True
        try:
            return self._paths.size(self._files, ledger_id) is not None
        except OSError as error:
            if not is_of_disk(error):
                raise
            # A file that its disk hides is not recorded, so the journal has its contents.
            return False

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
        """Return a page of a ledger's file, as the file has it."""
        each = self._pages.positions_per_page
        try:
            file = self._written.get(ledger_id) or self._paths.open(self._files, ledger_id)
        except FileNotFoundError:
            return np.empty(0, np.int64)
        try:
            # A file without a layout is created again before anything is written to it.
            return file.positions(number * each, each) if file.layout is not None else np.empty(0, np.int64)
        finally:
            if ledger_id not in self._written:
                file.close()

    def _make_room(self) -> None:
        victims = sorted(self._pages.make_room(), key=lambda item: item[0])
        for ledger_id, pages in _by_ledger(victims):
            self._moving(ledger_id, partial(self._write, ledger_id, None, 0, pages))
            self._evicted.add(ledger_id)
            self._pages.evict(key for key, _ in pages)

    def _write_all(
        self, dirty: Mapping[int, Sequence[tuple[PageKey, Page]]], fileless: Collection[int]
    ) -> tuple[list[LedgerHeader], list[PageKey]]:
        """Write all held changes to files, except those of ledgers that need none.

        Returns (headers whose second slot must be written, keys of the written pages).
        """
        rewritten = []
        for ledger_id in sorted({*dirty, *self._headers}.difference(fileless)):
            pages = dirty.get(ledger_id, [])
            header = self._headers.get(ledger_id)
            self._moving(ledger_id, partial(self._write, ledger_id, header, 0, pages))
            # A file that was just created or moved has its header in both slots.
            if header is not None and ledger_id in self._headers:
                rewritten.append(header)
        return rewritten, [key for pages in dirty.values() for key, _ in pages]

    def _write(
        self, ledger_id: int, header: LedgerHeader | None, slot: int, pages: Sequence[tuple[PageKey, Page]]
    ) -> None:
        """Write a header, if given, to one slot of a ledger's file, and pages."""
        with self._writing(ledger_id) as file:
            if header is not None and ledger_id in self._headers:
                file.write_slot(header, slot)
            self._write_pages(ledger_id, file, pages)

    def _write_pages(self, ledger_id: int, file: IndexFile, pages: Sequence[tuple[PageKey, Page]]) -> None:
        each = self._pages.positions_per_page
        for (_, number), page in pages:
            end = file.write_positions(number * each + page.dirty_first, page.dirty)
            self._unsynced[ledger_id] = max(end, self._unsynced.get(ledger_id, 0))

    def _moving(self, ledger_id: int, work: Callable[[], None]) -> None:
        """Do some work on a ledger's file. If the disk refuses it, move the file and do the work again."""
        while True:
            try:
                work()
                return
            except OSError as error:
                if not is_of_disk(error):
                    raise
                self._move(ledger_id, error)

    def _move(self, ledger_id: int, error: OSError) -> None:
        """Move a ledger's file to another directory, because its disk refuses writes with `error`.

        Raises:
            OSError: no other directory takes the file. A lack of space if one takes it later, otherwise `error`.
        """
        if not self._moves.can_move(ledger_id):
            raise self._moves.refusal(error)
        old = self._written.pop(ledger_id, None)
        is_synced = False
        if old is not None:
            try:
                with contextlib.closing(old), syncing():
                    old.file.sync_data()
                is_synced = not isinstance(error, SyncFailed)
            except SyncFailed as failure:
                error = failure
        in_doubt = ledger_id in self._evicted and not is_synced
        file = self._moves.move(ledger_id, self._headers.get(ledger_id), self._new_names, in_doubt=in_doubt)
        if file is None:
            raise self._moves.refusal(error)
        self._evicted.discard(ledger_id)
        self._written[ledger_id] = file
        self._headers.pop(ledger_id, None)
        self._unsynced[ledger_id] = file.file.size()

    @contextlib.contextmanager
    def _writing(self, ledger_id: int) -> Iterator[IndexFile]:
        """Yield a ledger's file, which is created if it is missing. If there is room, it stays open until the sync."""
        file = self._written.get(ledger_id) or self._existing_or_new(ledger_id)
        is_kept = ledger_id in self._written or len(self._written) < self._syncs.files_synced_singly_max
        if is_kept:
            self._written[ledger_id] = file
        try:
            yield file
            if not is_kept and not self._syncs.syncs_file_systems:
                with syncing():
                    file.file.sync_data()
        finally:
            # There are too many files to sync them one by one. The sync of the file system reports the errors of a file
            # that is not kept open.
            if not is_kept:
                file.close()

    def _existing_or_new(self, ledger_id: int) -> IndexFile:
        """Return a ledger's file. A new file gets the pending header."""
        try:
            file = self._paths.open(self._files, ledger_id)
        except FileNotFoundError as missing:
            return self._new(ledger_id, missing)
        try:
            if file.layout is None:
                # A crash interrupted its creation, and the journal has the header and all entries; or the header is
                # lost.
                file.create(self._waiting_header(ledger_id))
                del self._headers[ledger_id]
        except BaseException:
            file.close()
            raise
        return file

    def _waiting_header(self, ledger_id: int) -> LedgerHeader:
        header = self._headers.get(ledger_id)
        assert header is not None, f"ledger {ledger_id} has entries but neither index file nor key"
        return header

    def _new(self, ledger_id: int, missing: FileNotFoundError) -> IndexFile:
        """Create a ledger's file. `missing`: the error of opening it.

        Raises:
            OSError: its disk fails to open a file that a crash left before the file counted. The file moves then.
        """
        header = self._waiting_header(ledger_id)
        path = self._paths.path(ledger_id)
        _, *directories = self._paths.directories(ledger_id)
        for directory in directories:
            if not self._files.is_directory(directory):
                self._files.create_directory(directory)
                self._new_names.add(os.path.dirname(directory))
        self._new_names.add(os.path.dirname(path))
        try:
            created = self._files.create(path)
        except FileExistsError:
            # `IndexPaths.open` reports a file that does not count as missing if its disk fails.
            if missing.__cause__ is None:
                raise
            raise missing.__cause__ from None
        file = IndexFile(created)
        try:
            file.create(header)
        except BaseException:
            file.close()
            raise
        del self._headers[ledger_id]
        return file

    def _make_durable(self, ledger_ids: Collection[int], directories: Collection[str]) -> None:
        """Sync the files of ledgers, and the names in directories. A file whose disk refuses the sync moves, and is
        synced at its new place.

        Raises:
            SyncFailed: it is unknown what is durable, and no other disk takes the file.
        """
        # This includes the results of earlier syncs that were late.
        failed = self._failed(self._syncs.sync(self._written, ledger_ids, directories), ledger_ids)
        while failed:
            for ledger_id, error in failed.items():
                self._move(ledger_id, error)
            failed = self._failed(self._syncs.sync(self._written, failed, set(self._new_names)), failed)

    def _failed(self, refusals: SyncRefusals, ledger_ids: Collection[int]) -> dict[int, SyncFailed]:
        """Return the ledgers whose files a disk did not make durable, with the errors."""
        failed = dict(refusals.ledgers)
        for place, error in refusals.places.items():
            self._moves.refused_by(place)
            self._new_names = {each for each in self._new_names if self._paths.place_of(each) != place}
            there = (each for each in {*ledger_ids, *self._unsynced} if self._paths.place(each) == place)
            failed |= dict.fromkeys(there, error)
        return failed


def _by_ledger(pages: Sequence[tuple[PageKey, Page]]) -> list[tuple[int, list[tuple[PageKey, Page]]]]:
    """Return (ledger id, its pages) for pages that are ordered by ledger."""
    return [(ledger_id, list(group)) for ledger_id, group in itertools.groupby(pages, key=lambda item: item[0][0])]
