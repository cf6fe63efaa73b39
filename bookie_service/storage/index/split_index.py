"""The index of `DbLedgerStorage` with one key-value store for each ledger directory.

Everything of a ledger is in one store: that of its *home*, which is directory number (ledger id mod number of
directories). So each change of a ledger is one batch of one store.

A home is *closed* when its disk fails, until the next start. Nothing certain can be said of its ledgers then: requests
for them get errors, they are not listed, and nothing that they may need is removed. Before the marks may advance,
ledgers that had changes there that are not durable go into limbo. The other homes continue.

A home *takes no more* while its disk is full or late. What it does not take stays in memory (`kept_key_values`), and is
written to another directory (`kept_files`). So flushes continue, and the marks advance. The bookie refuses adds to its
ledgers meanwhile, which limits the memory. Only if no other directory takes the file, the marks wait.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bookie_service.formats import key_value_index as index_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import ENTRIES_END, Extent, LedgerUpdate, StoredLedger
from bookie_service.storage.index.kept_files import KeptFiles
from bookie_service.storage.index.key_value_index import ONE_STORE, REMEDY, KeyValueIndex, KeyValueView, open_view
from bookie_service.storage.index.split_layout import SplitLayout, begin_creation, find_layout
from bookie_service.storage.io.byte_source import WAITING, ByteSource
from bookie_service.storage.io.disk_threads import DiskStalled, DiskWork, InTurn
from bookie_service.storage.io.file_places import FilePlaces, RecordedPlaces
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, is_disk_failure, is_out_of_space
from bookie_service.storage.io.key_values import KeyValueOptions

logger = logging.getLogger(__name__)

_WRITE_BUFFER_MIN = 8 * 1024 * 1024
"""The least memory table of a store, unless all stores together may have less: half of it is more than one write."""
_OPEN_FILES_MIN = 16


class SplitView:
    """An `IndexView` over the stores of all homes. Many threads may read it."""

    def __init__(
        self, paths: Sequence[str], homes: Mapping[int, KeyValueView], closed: Mapping[int, OSError] | None = None
    ) -> None:
        """`paths`: where each home has its store. `homes`: the stores that are open, by number. `closed`: why homes are
        closed; others may be added."""
        self._paths = paths
        self._views = homes
        """The open stores, by home. Constant."""
        self._closed = {} if closed is None else closed
        """Why homes are closed. `SplitIndex` adds some."""

    def _home(self, ledger_id: int) -> KeyValueView:
        """Return the store of a ledger. Raises OSError if it is closed."""
        home = ledger_id % len(self._paths)
        if home in self._closed:
            raise self._unreadable(home)
        return self._views[home]

    def _unreadable(self, home: int) -> OSError:
        why = self._closed[home]
        return OSError(
            errno.EIO, f"the index of these ledgers cannot be read, because its disk failed: {why}", self._paths[home]
        )

    def header(self, ledger_id: int) -> LedgerHeader | None:
        return self._home(ledger_id).header(ledger_id)

    def positions(self, ledger_id: int, first_entry: int, count: int, source: ByteSource = WAITING) -> np.ndarray:
        return self._home(ledger_id).positions(ledger_id, first_entry, count, source)

    def last_entry(self, ledger_id: int) -> int:
        return self._home(ledger_id).last_entry(ledger_id)

    def extents(self, ledger_id: int, first_entry: int = 0, end_entry: int = ENTRIES_END) -> Iterator[Extent]:
        return self._home(ledger_id).extents(ledger_id, first_entry, end_entry)

    def has(self, ledger_id: int) -> bool:
        return self._home(ledger_id).has(ledger_id)

    def ledger_ids(self) -> np.ndarray:
        return np.sort(np.concatenate([np.empty(0, np.int64), *(view.ledger_ids() for view in self._views.values())]))

    def close(self) -> None:
        """Do nothing: the stores belong to their owner."""

    def close_store(self) -> None:
        """Close the stores themselves."""
        for view in self._views.values():
            view.close_store()


def open_index_view(files: ReadOnlyFiles, journal: str, directories: Sequence[str]) -> KeyValueView | SplitView:
    """Return a view of the whole index, for reading. `close_store` closes it.

    `journal`, `directories`: the `current` directories of the first journal and of all ledgers.

    Raises:
        StorageDamaged: a store is damaged or lost, or has lost durable data.
        OSError: a disk fails.
    """
    layout = find_layout(files, directories)
    for error in () if layout is None else layout.hidden.values():
        raise error
    paths = _paths(directories[:1] if layout is None else directories)
    kept = KeptFiles(files, () if layout is None else directories, RecordedPlaces(files, journal))
    for error in kept.unreadable.values():
        raise error
    homes: dict[int, KeyValueView] = {}
    try:
        for home, path in enumerate(paths):
            if not files.is_directory(path):
                raise StorageDamaged(f"{path}: the key-value store is missing; {REMEDY}")
            commit = ONE_STORE if layout is None else layout.commit(home)
            check = partial(kept.check_recorded, home)
            homes[home] = open_view(files, directories[home], commit, kept.found.get(home), check)
    except BaseException:
        for view in homes.values():
            view.close_store()
        raise
    return homes[0] if layout is None else SplitView(paths, homes)


class SplitIndex(SplitView):
    """A `LedgerIndex` over one store for each home. The interface says which thread may call which method."""

    def __init__(
        self,
        files: LocalFiles,
        directories: Sequence[str],
        options: KeyValueOptions,
        layout: SplitLayout,
        *,
        disks: DiskWork | None = None,
        places: FilePlaces | None = None,
        begin_doubt: Callable[[Collection[int]], None],
        name: str = index_format.DIRECTORY_NAME,
    ) -> None:
        """Open the stores, or create them.

        `directories`: the `current` directories of all ledger directories. `options`: of all stores together.
        `disks`: syncs the stores; None: the caller's thread does. `places`: the record of where files are; None:
        nothing is written to another directory. `begin_doubt`: puts ledgers into limbo, durably. `name`: of each store.

        Raises:
            StorageDamaged: a store is damaged or missing, or has lost durable data.
            OSError: no store can be read, or the stores cannot be created.
        """
        self._files = files
        self._directories = directories
        self._disks = disks or InTurn()
        self._begin_doubt = begin_doubt
        self._homes: dict[int, KeyValueIndex] = {}
        """The stores that could be opened, by home. Constant."""
        self._failed = dict(layout.hidden)
        """Why homes are closed. `_close` adds some."""
        super().__init__([os.path.join(directory, name) for directory in directories], self._homes, self._failed)
        self.has_hidden = bool(self._closed)
        """Whether a home is closed. Set by `_close`."""
        # New stores under another name lack nothing.
        kept_in = directories if name == index_format.DIRECTORY_NAME else ()
        self._kept_files = KeptFiles(files, kept_in, places)
        """What homes do not take, in other directories."""
        self._saved_changes: dict[int, tuple[int, ...]] = {}
        """`changes` of each home, and the closed homes, when its file was last written."""
        self._closing = threading.Lock()
        """Held while a home is closed."""
        self._doubtful: set[int] = set()
        """Ledgers that go into limbo before the marks may advance."""
        self._doubted: set[int] = set()
        """Closed homes whose ledgers with changes that were not durable are in limbo or in `_doubtful`."""
        if layout.is_being_created:
            begin_creation(files, directories, layout, name)
        for home, error in self._kept_files.unreadable.items():
            # Its store may lack something.
            self._close(home, error)
        try:
            self._open(share_of(options, layout.stores), layout, name)
        except BaseException:
            self.close()
            raise

    def _open(self, options: KeyValueOptions, layout: SplitLayout, name: str) -> None:
        for home, directory in enumerate(self._directories):
            if home in self._closed:
                continue
            try:
                self._homes[home] = KeyValueIndex(
                    self._files,
                    directory,
                    options,
                    disks=self._disks,
                    name=name,
                    may_be_new=layout.is_being_created,
                    layout=layout.commit(home),
                    saved=self._kept_files.found.pop(home, None),
                )
            except OSError as error:
                if layout.is_being_created or not is_disk_failure(error):
                    raise
                self._close(home, error)
        if not self._homes:
            raise next(iter(self._closed.values()))
        for home, index in self._homes.items():
            if index.needs_saved:
                self._kept_files.check_recorded(home)
            elif self._kept_files.has(home):
                self._kept_files.remove(self._files, self._disks, home)
        self._kept_files.remove_unfinished(self._files, self._disks)
        # Also of stores whose creation a crash interrupted in this step.
        for index in self._homes.values():
            if index.is_being_created:
                index.finish_creation()

    is_divided = True
    """See `LedgerIndex`."""

    notices: Sequence[str] = ()
    """Lines for the operator about what the start found."""

    # ---- closed homes ----

    def is_hidden(self, ledger_id: int) -> bool:
        return ledger_id % len(self._paths) in self._closed

    def hidden(self, ledger_ids: np.ndarray) -> np.ndarray:
        return np.isin(ledger_ids % len(self._paths), list(self._closed))

    def _close(self, home: int, error: Exception) -> None:
        """Note that the disk of a home fails. For any thread."""
        with self._closing:
            if home not in self._closed:
                self._failed[home] = OSError(errno.EIO, str(error))
                self.has_hidden = True
                logger.error(
                    "%s: its disk fails: requests for ledgers with id mod %d = %d get errors until the next start with "
                    "this disk, and the bookie continues with the other ledgers: %s",
                    self._paths[home],
                    len(self._paths),
                    home,
                    error,
                )

    @contextlib.contextmanager
    def _closing_failed(self, home: int) -> Iterator[None]:
        """Close a home if its disk fails. Other errors are raised."""
        try:
            yield
        except (OSError, StorageDamaged) as error:
            failure = self._failure(home, error)
            if failure is None:
                raise
            self._close(home, failure)

    @contextlib.contextmanager
    def _passing_over(self, home: int) -> Iterator[None]:
        """Let a failed read leave the answer unknown. The home stays open, because all else of it may be readable."""
        try:
            yield
        except (OSError, StorageDamaged) as error:
            if self._failure(home, error) is None:
                raise

    def _failure(self, home: int, error: Exception) -> Exception | None:
        """Return why the disk of a home fails, or its directory has vanished; None: an error has another cause."""
        if is_disk_failure(error):
            return error
        if isinstance(error, StorageDamaged):
            try:
                self._files.exists(self._directories[home])
            except OSError as found:
                # What the store says, that it is damaged, and the remedy, would be wrong.
                return found if is_disk_failure(found) else None
        return None

    def _doubt_closed(self) -> None:
        """Put the ledgers of closed homes that had changes which are not durable into limbo, durably.

        Raises:
            OSError: they are not in limbo, and the marks must not advance.
        """
        for home in self._closed.keys() - self._doubted:
            if home in self._homes:
                self._doubtful |= self._homes[home].unsynced
            self._doubted.add(home)
        if self._doubtful:
            self._begin_doubt(self._doubtful)
            self._doubtful.clear()

    # ---- reading ----

    def last_entry(self, ledger_id: int) -> int:
        # When replay creates a ledger again whose index cannot be read, it holds no entry. It goes into limbo.
        return NO_ENTRY if self.is_hidden(ledger_id) else super().last_entry(ledger_id)

    def view(self, open_files_max: int) -> SplitView:
        return SplitView(self._paths, self._homes, self._failed)

    def page_in_memory(self, ledger_id: int, first_entry: int, last_entry: int) -> None:
        """Return None, because the stores keep their own caches."""

    def stored(self, ledger_id: int) -> StoredLedger:
        home = self._home(ledger_id)
        assert isinstance(home, KeyValueIndex)
        return home.stored(ledger_id)

    def _open_homes(self) -> list[tuple[int, KeyValueIndex]]:
        return [(home, index) for home, index in self._homes.items() if home not in self._closed]

    def ledger_ids(self) -> np.ndarray:
        """Return the ids of the ledgers of all homes that are not closed, ascending.

        A home whose list cannot be read is closed: a ledger that is not listed counts as deleted.
        """
        found = [np.empty(0, np.int64)]
        for home, index in self._open_homes():
            with self._closing_failed(home):
                found.append(index.ledger_ids())
        return np.sort(np.concatenate(found))

    def holding_entries(self, ledger_ids: np.ndarray) -> np.ndarray:
        found = [ledger_ids[self.hidden(ledger_ids)]]
        for home, index in self._open_homes():
            some = ledger_ids[ledger_ids % len(self._paths) == home]
            holding = some
            with self._passing_over(home):
                holding = index.holding_entries(some)
            found.append(holding)
        return np.unique(np.concatenate(found))

    def counts(self) -> tuple[int, int]:
        ledgers = entries = 0
        for home, index in self._open_homes():
            with self._passing_over(home):
                of_home = index.counts()
                ledgers, entries = ledgers + of_home[0], entries + of_home[1]
        return ledgers, entries

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        found = np.zeros(len(ledger_ids), bool)
        for home, index in self._open_homes():
            rows = np.flatnonzero(ledger_ids % len(self._paths) == home)
            if len(rows):
                with self._passing_over(home):
                    found[rows] = index.absent(ledger_ids[rows])
        return found

    def lost(self, ledger_id: int) -> str:
        # A store that lacks anything is not opened.
        return ""

    def all_lost(self) -> list[int]:
        return []

    # ---- writing ----

    @property
    def is_clean(self) -> bool:
        return all(index.is_clean for _, index in self._open_homes())

    @property
    def has_full(self) -> bool:
        return any(index.takes_no_more for _, index in self._open_homes())

    @property
    def problems(self) -> Sequence[str]:
        found = []
        for home, path in enumerate(self._paths):
            which = f"ledgers with id mod {len(self._paths)} = {home}"
            if home in self._closed:
                found.append(
                    f"{path}: its disk fails, and requests for {which} get errors until a start with this disk"
                )
            elif self._homes[home].takes_no_more:
                found.append(
                    f"{path}: its disk is full or late, and adds to {which} are refused until it takes changes"
                )
        return tuple(found)

    def is_full(self, ledger_id: int) -> bool:
        home = ledger_id % len(self._paths)
        return home not in self._closed and self._homes[home].takes_no_more

    def accept(self, ledger_ids: Collection[int]) -> None:
        """Do nothing: there are no records of single ledgers."""

    def disown(self, ledger_ids: Collection[int]) -> None:
        """Do nothing: there are no records of single ledgers."""

    def goes_on_without(self, ledger_id: int, error: OSError) -> bool:
        self._close(ledger_id % len(self._paths), error)
        return True

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        by_home: dict[int, list[LedgerUpdate]] = {}
        for update in updates:
            by_home.setdefault(update.ledger_id % len(self._paths), []).append(update)
        for home, some in by_home.items():
            if home not in self._closed:
                with self._closing_failed(home):
                    self._homes[home].hold(some)
            if home in self._closed:
                # One without content changes nothing, so nothing is lost.
                self._doubtful.update(each.ledger_id for each in some if each.header or len(each.entry_ids))
        self._doubt_closed()

    def sync(self, names_are_durable: bool = True) -> None:
        """Make everything that was held durable, in all homes at the same time.

        Raises:
            DiskStalled: a home is late or full. The others are durable.
            OSError: a home is full, and the bookie waits for every disk; or a sync failed.
        """
        left: dict[int, OSError] = {}
        """Why homes are not durable."""
        work = {}
        for home, index in self._open_homes():
            with self._noting_left(home, left):
                index.end_sync()
            # If an earlier sync found no space, this one tries again.
            if not isinstance(left.get(home), DiskStalled) and (begun := index.begin_sync()) is not None:
                work[home] = begun
        for home, future in self._disks.run(work).items():
            self._homes[home].is_syncing(future)
            left.pop(home, None)
            with self._noting_left(home, left):
                self._homes[home].end_sync()
        for home in list(left):
            if self._save(home, left):
                del left[home]
        for home, index in self._open_homes():
            if home not in left and not index.needs_saved and self._kept_files.has(home):
                self._kept_files.remove(self._files, self._disks, home)
        self._doubt_closed()
        for error in left.values():
            if isinstance(error, DiskStalled) or self._disks.waits:
                raise error
            raise DiskStalled(error.errno, f"the index in this ledger directory has no space: {error}", error.filename)

    def _save(self, home: int, left: Collection[int]) -> bool:
        """Make durable in another directory what a home does not take; return whether one took it."""
        index = self._homes[home]
        changes = index.changes
        if index.needs_saved and self._saved_changes.get(home) == (changes, *sorted(self._closed)):
            return True
        is_saved = self._kept_files.save(self._files, self._disks, index.saved(), {*left, *self._closed})
        if is_saved:
            self._saved_changes[home] = changes, *sorted(self._closed)
        return is_saved

    @contextlib.contextmanager
    def _noting_left(self, home: int, left: dict[int, OSError]) -> Iterator[None]:
        """Note the error of a home whose disk is late or full. Close a home whose disk fails."""
        try:
            with self._closing_failed(home):
                yield
        except OSError as error:
            if not isinstance(error, DiskStalled) and not is_out_of_space(error):
                raise
            left[home] = error

    def remove(self, ledger_id: int) -> None:
        home = ledger_id % len(self._paths)
        if home not in self._closed:
            with self._closing_failed(home):
                self._homes[home].remove(ledger_id)
        if home in self._closed:
            raise self._unreadable(home)

    def finish_removal(self, ledger_ids: Collection[int]) -> None:
        """Do nothing: `remove` did everything."""

    def sync_removed(self, ledger_ids: Collection[int]) -> Collection[Future[None]]:
        concerned = {ledger_id % len(self._paths) for ledger_id in ledger_ids}
        homes = [home for home, _ in self._open_homes() if home in concerned]
        return self._disks.run({home: partial(self._sync_removal, home) for home in homes}).values()

    def _sync_removal(self, home: int) -> None:
        # If the disk fails, the ledgers may come back with it. Their entry logs are kept until then.
        with self._closing_failed(home):
            self._homes[home].sync_removal()

    def may_come_back(self, ledger_ids: Collection[int]) -> Collection[int]:
        lacking = [home for home, index in self._homes.items() if index.may_come_back((home,))]
        return [each for each in ledger_ids if self.is_hidden(each) or each % len(self._paths) in lacking]

    def forget_removed(self, ledger_ids: Collection[int]) -> None:
        for home, index in self._open_homes():
            with self._closing_failed(home):
                index.forget_removed([each for each in ledger_ids if each % len(self._paths) == home])

    def keep_records(self) -> None:
        """Do nothing: the stores cannot go to other directories."""

    def close(self) -> None:
        for home, index in self._homes.items():
            # What a failing disk does not take is in limbo, or in the journal.
            with self._closing_failed(home):
                index.close()


def share_of(options: KeyValueOptions, stores: int) -> KeyValueOptions:
    """Return the options of one of several stores, from those of all together."""
    least = min(options.write_buffer_bytes, _WRITE_BUFFER_MIN)
    return replace(
        options,
        cache_bytes=max(1, options.cache_bytes // stores),
        write_buffer_bytes=max(least, options.write_buffer_bytes // stores),
        open_files_max=max(min(options.open_files_max, _OPEN_FILES_MIN), options.open_files_max // stores),
    )


def _paths(directories: Sequence[str]) -> list[str]:
    return [os.path.join(directory, index_format.DIRECTORY_NAME) for directory in directories]
