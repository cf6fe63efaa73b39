"""The index in an embedded key-value store, for `DbLedgerStorage`. The format is in `formats.key_value_index`.

One store holds all ledgers, or those of one ledger directory (`split_index`). A flush is made durable by one sync of
each store, however many ledgers it changes. A sync that is late (`disk_threads`) continues while flushes put more into
the store's memory.
Each commit has a number, which is kept in the store and in a file beside it. So a store that was set back to an older
state is refused; checksums cannot detect that.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bookie_service.formats import key_value_index as index_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.formats.kept_changes import KeptChanges
from bookie_service.formats.key_value_index import ENTRIES_PER_BLOCK, StoreCommit
from bookie_service.storage.index.index import ENTRIES_END, AllReadable, Extent, LedgerUpdate, StoredLedger
from bookie_service.storage.io.background import with_pauses
from bookie_service.storage.io.byte_source import WAITING, ByteSource
from bookie_service.storage.io.disk_threads import DiskStalled, DiskWork, InTurn
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, is_out_of_space
from bookie_service.storage.io.kept_key_values import KeptKeyValues
from bookie_service.storage.io.key_values import KeyValueOptions, KeyValues

_BLOCKS_PER_GET = 32
_PUTS_PER_WRITE = 1024
"""How many keys, of at most 2 KiB, one call sets: it holds Python's lock for about 2 ms."""
_IDS_AT_ONCE = 4096
"""To make or to free a list of a million ids at once would hold Python's lock for 30 ms."""
_REMOVED_RUN_MIN, _REMOVED_GAP_MAX = 1000, 4
"""The store is rewritten without removed ledgers where at least `_REMOVED_RUN_MIN` of them follow each other, and no
two neighbours differ by more than `_REMOVED_GAP_MAX`."""
_KEPT_BYTES_MAX = 128 * 1024 * 1024
"""How much memory is used for what one of several stores does not take, because its disk is full or late."""
ONE_STORE = StoreCommit(0)
"""How a bookie begins that has one store for all ledgers."""
REMEDY = (
    "entries that were acknowledged would not be found, so this bookie does not start; run `bkspark bookie "
    "--rebuild-index`, which rebuilds it from the entry logs, or start a bookie with a new id and empty directories "
    "and let autorecovery copy the ledgers"
)


class KeyValueView:
    """An `IndexView` over a key-value store. Many threads may read it."""

    def __init__(self, path: str, key_values: KeyValues) -> None:
        """`path`: the path of the store, for messages."""
        self.path = path
        self._key_values = key_values

    def header(self, ledger_id: int) -> LedgerHeader | None:
        value = self._key_values.get([index_format.header_key(ledger_id)])[0]
        if value is None:
            return None
        try:
            header = index_format.decode_stored_header(value, ledger_id)
        except ValueError as error:
            raise StorageDamaged(f"{self.path}: ledger {ledger_id}: {error}", ledger_id=ledger_id) from error
        if header is None:
            raise StorageDamaged(f"{self.path}: ledger {ledger_id}: its header fails its checksum", ledger_id=ledger_id)
        return header

    def positions(self, ledger_id: int, first_entry: int, count: int, source: ByteSource = WAITING) -> np.ndarray:
        first_block, last_block = first_entry // ENTRIES_PER_BLOCK, (first_entry + count - 1) // ENTRIES_PER_BLOCK
        blocks = range(first_block, last_block + 1)
        values = self._key_values.get([index_format.block_key(ledger_id, block) for block in blocks])
        found = np.zeros(len(blocks) * ENTRIES_PER_BLOCK, np.int64)
        for row, value in enumerate(values):
            if value is not None:
                stored = index_format.decode_block(value)
                found[row * ENTRIES_PER_BLOCK :][: len(stored)] = stored
        skipped = first_entry - first_block * ENTRIES_PER_BLOCK
        found = found[skipped : skipped + count]
        if count and not found[-1]:
            found = found[: max(0, self.last_entry(ledger_id) + 1 - first_entry)]
        return found

    def last_entry(self, ledger_id: int) -> int:
        # To look for the last key of a removed ledger would step over all removed ledgers before it, 1 us each.
        return self._last_held(ledger_id) if self.has(ledger_id) else NO_ENTRY

    def _last_held(self, ledger_id: int) -> int:
        """Return the last entry of a ledger that has a header."""
        last = self._key_values.last(*index_format.blocks_of(ledger_id))
        if last is None:
            return NO_ENTRY
        key, value = last
        # A block ends with an entry that is held.
        return index_format.block_number(key) * ENTRIES_PER_BLOCK + len(index_format.decode_block(value)) - 1

    def ledger_ids(self) -> np.ndarray:
        keys = self._key_values.keys(*index_format.HEADERS)
        pieces = [np.empty(0, np.int64)]
        while some := list(itertools.islice(keys, _IDS_AT_ONCE)):
            pieces.append(index_format.ledger_ids(some))
        return np.concatenate(pieces)

    def holding_entries(self, ledger_ids: np.ndarray) -> np.ndarray:
        pieces = [np.empty(0, np.int64)]
        for first in range(0, len(ledger_ids), _IDS_AT_ONCE):
            some = with_pauses(ledger_ids[first : first + _IDS_AT_ONCE].tolist())
            pieces.append(np.array([each for each in some if self.last_entry(each) != NO_ENTRY], np.int64))
        return np.concatenate(pieces)

    def counts(self) -> tuple[int, int]:
        ledgers = sum(1 for _ in self._key_values.keys(*index_format.HEADERS))
        # The last block of a ledger is half full on average.
        blocks = max(0, self._key_values.key_count() - ledgers - 1)
        return ledgers, index_format.ENTRIES_PER_BLOCK * max(0, 2 * blocks - min(ledgers, blocks)) // 2

    def has(self, ledger_id: int) -> bool:
        return self._key_values.get([index_format.header_key(ledger_id)])[0] is not None

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        values = self._key_values.get([index_format.header_key(ledger_id) for ledger_id in ledger_ids.tolist()])
        return np.array([value is None for value in values], bool)

    def extents(self, ledger_id: int, first_entry: int = 0, end_entry: int = ENTRIES_END) -> Iterator[Extent]:
        first_block, end_block = first_entry // ENTRIES_PER_BLOCK, -(-end_entry // ENTRIES_PER_BLOCK)
        first, end = index_format.block_key(ledger_id, first_block), index_format.block_key(ledger_id, end_block)
        keys = self._key_values.keys(first, end)
        while some := list(itertools.islice(keys, _BLOCKS_PER_GET)):
            for key, value in zip(some, self._key_values.get(some)):
                if value is not None:
                    at, positions = index_format.block_number(key) * ENTRIES_PER_BLOCK, index_format.decode_block(value)
                    skipped = max(0, first_entry - at)
                    positions = positions[skipped : end_entry - at]
                    if positions.any():
                        yield at + skipped, positions

    def close(self) -> None:
        """Do nothing: the store belongs to its owner."""

    def close_store(self) -> None:
        """Close the store itself."""
        self._key_values.close()


def open_view(
    files: ReadOnlyFiles,
    directory: str,
    layout: StoreCommit | None = None,
    saved: KeptChanges | None = None,
    check_saved: Callable[[], None] = lambda: None,
) -> KeyValueView:
    """Return a view of the index in a `current` directory, for reading. `close_store` closes it.

    `layout`: which one of how many stores it must be; None: any. `saved`: what the store may lack, as another directory
    has it. `check_saved`: called if the store lacks it; may raise StorageDamaged.

    Raises:
        StorageDamaged: the store is damaged, has lost durable data, or is another one.
    """
    path = os.path.join(directory, index_format.DIRECTORY_NAME)
    commit = read_commit(files, os.path.join(directory, index_format.COMMIT_NAME))
    reached = 0 if commit is None else commit.number
    key_values = files.open_key_values(path, KeyValueOptions())
    try:
        stored = _check_commit(key_values, reached, path, layout)
        is_lacking = saved is not None and stored <= saved.number
        if is_lacking:
            check_saved()
    except BaseException:
        key_values.close()
        raise
    if not is_lacking:
        return KeyValueView(path, key_values)
    kept = KeptKeyValues(key_values, path, _KEPT_BYTES_MAX, index_format.LEDGER_KEY_BYTES)
    kept.begin(stored, saved)
    return KeyValueView(path, kept)


class KeyValueIndex(AllReadable, KeyValueView):
    """A `LedgerIndex` over a key-value store. The interface says which thread may call which method."""

    def __init__(
        self,
        files: LocalFiles,
        directory: str,
        options: KeyValueOptions,
        *,
        disks: DiskWork | None = None,
        name: str = index_format.DIRECTORY_NAME,
        commits_before: int = 0,
        may_be_new: bool = True,
        layout: StoreCommit = ONE_STORE,
        saved: KeptChanges | None = None,
    ) -> None:
        """Open the store, or create it.

        `directory`: the `current` directory that contains the store, under `name`.
        `disks`: syncs the store; None: the caller's thread does.
        `commits_before`: how many commits the store had that this one will replace.
        `may_be_new`: there may be no store yet; False: there are entries, so a store that is missing is lost.
        `layout`: which one of how many stores it is; the commit number does not matter.
        `saved`: what the store may lack, as another directory has it, if it is one of several.

        Raises:
            StorageDamaged: the store is damaged, or has lost durable data.
        """
        self._files = files
        self._commit_path = os.path.join(directory, f"{name}{index_format.COMMIT_SUFFIX}")
        path = os.path.join(directory, name)
        commit = read_commit(files, self._commit_path)
        if commit is not None and (commit.stores, commit.home) != (layout.stores, layout.home):
            raise StorageDamaged(
                f"{self._commit_path}: it is of store {commit.home} of {commit.stores}, but this must be store "
                f"{layout.home} of {layout.stores}; {REMEDY}"
            )
        self.is_being_created = commit is not None and commit.is_being_created
        """Whether no store of the bookie had rows when this one was opened. Constant."""
        reached = 0 if commit is None else commit.number
        if not files.is_directory(path):
            if reached or not may_be_new:
                raise StorageDamaged(f"{path}: the key-value store is missing; {REMEDY}")
            files.make_directory(path)
        # A process that was killed may have created it without making its name durable.
        files.sync_directory(directory)
        self._store = store = files.open_key_values(path, options)
        """The store itself. Constant."""
        self._kept = (
            KeptKeyValues(store, path, _KEPT_BYTES_MAX, index_format.LEDGER_KEY_BYTES) if layout.stores > 1 else None
        )
        """`_store`, with what its disk does not take; None: the only store takes everything, or flushes wait."""
        super().__init__(path, self._kept or store)
        self._layout = layout
        """Which one of how many stores this is. Constant."""
        self._disks = disks or InTurn()
        self._is_clean = True
        """Whether everything that was held is durable, except what is kept. Changed by `hold` and `end_sync`."""
        self._syncing: Future[None] | None = None
        """The sync that was begun last, until its result was taken; None: there is none."""
        self._newer_bytes_max = options.write_buffer_bytes // 2
        """How much may be written until a sync begins, and again during the sync. With more, the store would write its
        memory out itself. Constant."""
        self._newer_bytes = 0
        """How much was written since the last sync began. Changed by `hold` and `sync`."""
        self._is_full = False
        """Whether the last sync found no space. Changed by `end_sync`."""
        self._lacks_removals = False
        """Whether the last sync of removals found no space, or failed. Changed by `sync_removal`."""
        self._unsynced: tuple[set[int], set[int]] = set(), set()
        """Ledgers that may have rows that are not durable: those held since the last sync began, and those before."""
        self._holding: set[int] = set()
        """The ledgers of a running `hold`. A sync that it begins does not cover the rows that it writes later."""
        try:
            check = None if self.is_being_created else layout
            stored = _check_commit(store, reached, path, check)
            self._commit_number = max(commits_before, stored, 0 if saved is None else saved.number)
            """The number of the last commit, in the store and, once that is durable, in the file beside it. `sync`
            increments it."""
            self._saved_number = self._commit_number
            """The number in the file of another directory that has what this store lacks, if there is one."""
            if self._kept is not None:
                self._kept.begin(self._commit_number, saved if saved is not None and stored <= saved.number else None)
        except BaseException:
            self.close_store()
            raise

    def view(self, open_files_max: int) -> KeyValueView:
        return KeyValueView(self.path, self._key_values)

    def page_in_memory(self, ledger_id: int, first_entry: int, last_entry: int) -> None:
        """Return None, because the store keeps its own cache."""

    notices: Sequence[str] = ()
    """Lines for the operator about what the start found."""

    def stored(self, ledger_id: int) -> StoredLedger:
        header = self.header(ledger_id)
        return StoredLedger(header, NO_ENTRY if header is None else self._last_held(ledger_id), is_whole=True)

    def lost(self, ledger_id: int) -> str:
        # A store that lacks anything is not opened.
        return ""

    def all_lost(self) -> list[int]:
        return []

    def accept(self, ledger_ids: Collection[int]) -> None:
        """Do nothing: there are no records of single ledgers."""

    def disown(self, ledger_ids: Collection[int]) -> None:
        """Do nothing: there are no records of single ledgers."""

    def goes_on_without(self, ledger_id: int, error: OSError) -> bool:
        # A write would not read what it replaces.
        return False

    @property
    def is_clean(self) -> bool:
        return self._is_clean and (self._kept is None or not (self._kept.keeps_any or self._kept.is_saved))

    @property
    def takes_no_more(self) -> bool:
        """Whether the disk does not take what is held, so that more would stay in memory. For any thread."""
        return self._is_full or (self._kept is not None and self._kept.is_refused)

    @property
    def needs_saved(self) -> bool:
        """Whether the file of another directory that has what this store lacks, if there is one, still counts."""
        return self._kept is not None and self._kept.is_saved

    @property
    def changes(self) -> int:
        """A number that is another one after each change of one of several stores."""
        return 0 if self._kept is None else self._kept.changes

    def saved(self) -> KeptChanges:
        """Return what this one of several stores may lack after a crash. `needs_saved` until a later sync has ended."""
        assert self._kept is not None
        number, removed, puts = self._kept.saved()
        puts.pop(index_format.COMMIT_KEY, None)
        self._saved_number = number
        return KeptChanges(self._layout.stores, self._layout.home, number, 0, removed, puts)

    @property
    def unsynced(self) -> set[int]:
        """The ledgers that may have rows that are not durable, if this is one of several stores."""
        return self._unsynced[0] | self._unsynced[1]

    def hold(self, updates: Iterable[LedgerUpdate]) -> None:
        updates = list(updates)
        if self._kept is not None:
            self._holding = {update.ledger_id for update in updates}
            self._unsynced[0].update(self._holding)
        blocks = (block for update in updates for block in _blocks(update))
        headers = (
            (index_format.header_key(update.ledger_id), index_format.encode_header(update.header))
            for update in updates
            if update.header is not None
        )
        while some_headers := list(itertools.islice(headers, _PUTS_PER_WRITE)):
            self._put(some_headers)
        while some_blocks := list(itertools.islice(blocks, _PUTS_PER_WRITE)):
            self._put(self._merged(some_blocks))
        self._holding = set()

    def _put(self, puts: Sequence[tuple[bytes, bytes]]) -> None:
        """Write keys and values to the store's memory, after making room there. If there is no room, keep them."""
        size = sum(len(key) + len(value) for key, value in puts)
        has_room = not self._newer_bytes or self._newer_bytes + size <= self._newer_bytes_max
        if not has_room and not self._make_room():
            assert self._kept is not None
            self._kept.keep(puts)
            return
        try:
            self._write(puts, size)
        except OSError as error:
            # Too much is kept. No sync comes before these changes are held, and only a sync finds that there is space.
            if self._kept is None or not is_out_of_space(error) or not self._make_room():
                raise
            self._write(puts, size)

    def _write(self, puts: Sequence[tuple[bytes, bytes]], size: int) -> None:
        # Each time, because a sync between a refused write and the next one does not have these changes.
        self._newer_bytes += size
        self._is_clean = False
        self._key_values.write(puts)

    def _make_room(self) -> bool:
        """Begin a sync, before the memory of the store is full. If an earlier one goes on, wait for its end.

        A store that writes full memory out itself makes the next writes, and with them all readers, wait for its disk.

        Return False if this is one of several stores, and its disk is late or full: the others do not wait for it.

        Raises:
            OSError: the earlier sync failed.
        """
        if self._syncing is not None:
            if self._kept is None:
                self._disks.wait_for_any([self._layout.home])
            elif self._is_late:
                return False
            try:
                self.end_sync()
            except OSError as error:
                if self._kept is None or not is_out_of_space(error):
                    raise
                return False
        self._begin_sync()
        return True

    @property
    def _is_late(self) -> bool:
        return self._syncing is not None and not self._syncing.done() and not self._disks.waits

    def sync(self, names_are_durable: bool = True) -> None:
        """Make everything that was held durable.

        Raises:
            DiskStalled: the disk is late, in this sync or an earlier one.
            OSError: the sync failed.
        """
        self.end_sync()
        # Whatever a process left that was killed: the contents of an opened store are durable.
        if self.is_clean:
            return
        self._begin_sync()
        self.end_sync()

    def _begin_sync(self) -> None:
        """Begin to make everything that was held durable. Return when it is durable, or the disk is late."""
        work = self.begin_sync()
        if work is not None:
            self.is_syncing(self._disks.run({self._layout.home: work})[self._layout.home])

    def begin_sync(self) -> Callable[[], None] | None:
        """Return the work that makes durable what was held, for the thread of the disk; None: nothing was held.

        The caller must give the future of the work to `is_syncing`. There must be no earlier sync.
        """
        if self.is_clean:
            return None
        self._commit_number += 1
        self._newer_bytes = 0
        held, before = self._unsynced
        self._unsynced = set(self._holding), before | held
        return partial(self._commit, self._commit_number)

    def is_syncing(self, sync: Future[None]) -> None:
        """Note that the work of `begin_sync` was given to the thread of the disk."""
        self._syncing = sync

    def _commit(self, number: int) -> None:
        """Make the store durable, with the number of the commit. On the thread of its disk."""
        # Never kept in memory: the file beside the store must not name a commit that the store lacks.
        mark = index_format.COMMIT_KEY, index_format.encode_stored_commit(replace(self._layout, number=number))
        if self._kept is None:
            self._store.write([mark])
        else:
            while self._kept.give(self._newer_bytes_max) or not self._kept.give_rest(number, mark):
                self._store.sync()
        self._store.sync()
        self._files.replace(self._commit_path, _encode(self._layout, number))

    def end_sync(self) -> None:
        """Take the result of the sync that was begun last; wait for it if the bookie waits for every disk, as at its
        end. Raises as `sync`."""
        if self._syncing is None:
            return
        if self._disks.waits:
            self._disks.settle()
        if not self._syncing.done():
            raise DiskStalled(f"{self.path}: its disk has not finished a sync yet")
        ended, self._syncing = self._syncing, None
        error = ended.exception()
        self._is_full = error is not None and is_out_of_space(error)
        ended.result()
        self._unsynced = self._unsynced[0], set()
        self._is_clean = not self._newer_bytes
        if self._kept is not None and self._commit_number > self._saved_number:
            # The commit has all of it.
            self._kept.is_saved = False

    def finish_creation(self) -> None:
        """Record durably that all stores were created, so that this one may get rows. Raises OSError."""
        # First in the store itself: if the file beside it is lost, it must not pass for the only store.
        self._commit(self._commit_number)

    def _merged(self, blocks: Sequence[tuple[bytes, np.ndarray, np.ndarray]]) -> list[tuple[bytes, bytes]]:
        """Return the keys and values that set positions[i] at slots[i] of each (key, slots, positions)."""
        partial = [key for key, slots, _ in blocks if len(slots) < ENTRIES_PER_BLOCK]
        stored = dict(zip(partial, self._key_values.get(partial))) if partial else {}
        puts = []
        for key, slots, positions in blocks:
            block = np.zeros(ENTRIES_PER_BLOCK, np.int64)
            before = stored.get(key)
            if before is not None:
                held = index_format.decode_block(before)
                block[: len(held)] = held
            block[slots] = positions
            puts.append((key, index_format.encode_block(block)))
        return puts

    def remove(self, ledger_id: int) -> None:
        header = index_format.header_key(ledger_id)
        self._key_values.write([], [(header, header + b"\0"), index_format.blocks_of(ledger_id)])

    def finish_removal(self, ledger_ids: Collection[int]) -> None:
        """Do nothing: `remove` did everything."""

    def sync_removed(self, ledger_ids: Collection[int]) -> Collection[Future[None]]:
        return self._disks.run({self._layout.home: self.sync_removal}).values() if ledger_ids else ()

    def sync_removal(self) -> None:
        """Make removals durable if there is space for it. On the thread of the disk."""
        self._lacks_removals = True
        try:
            self._key_values.sync()
            self._lacks_removals = self._kept is not None and self._kept.keeps_any
        except OSError as error:
            # Without space a crash would restore the ledgers, and the next pass would drop them again. Entry logs must
            # be removed nevertheless, because that frees space.
            if not is_out_of_space(error):
                raise

    def may_come_back(self, ledger_ids: Collection[int]) -> Collection[int]:
        return ledger_ids if self._lacks_removals else ()

    def forget_removed(self, ledger_ids: Collection[int]) -> None:
        for first, last in _removed_runs(ledger_ids):
            ranges = [(index_format.header_key(first), index_format.header_key(last + 1))]
            ranges.append((index_format.blocks_of(first)[0], index_format.blocks_of(last)[1]))
            self._key_values.forget_removed(ranges)

    def keep_records(self) -> None:
        """Do nothing: the store cannot go to another directory."""

    def close(self) -> None:
        self.close_store()


def _removed_runs(ledger_ids: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the (first, last) id of each long run of removed ledgers. A read beside a run would step over all of it."""
    ids = np.sort(np.fromiter(ledger_ids, np.int64, len(ledger_ids)))
    breaks = np.flatnonzero(np.diff(ids) > _REMOVED_GAP_MAX) + 1
    for start, end in itertools.pairwise([0, *breaks.tolist(), len(ids)]):
        if end - start >= _REMOVED_RUN_MIN:
            yield int(ids[start]), int(ids[end - 1])


def _blocks(update: LedgerUpdate) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
    """Yield (key, slots in the block, positions) of each block that an update touches."""
    if not len(update.entry_ids):
        return
    blocks, slots = np.divmod(update.entry_ids, ENTRIES_PER_BLOCK)
    breaks = np.flatnonzero(np.diff(blocks)) + 1
    for start, end in itertools.pairwise([0, *breaks.tolist(), len(blocks)]):
        key = index_format.block_key(update.ledger_id, int(blocks[start]))
        yield key, slots[start:end], update.positions[start:end]


def _check_commit(key_values: KeyValues, reached: int, path: str, layout: StoreCommit | None) -> int:
    """Return the store's commit number. Raises StorageDamaged if it is lower than a durable one, or it is not the store
    of `layout`; None: it may be any."""
    value = key_values.get([index_format.COMMIT_KEY])[0]
    try:
        found = index_format.decode_stored_commit(value) if value is not None else ONE_STORE
    except ValueError as error:
        raise StorageDamaged(f"{path}: {error}") from error
    number = 0 if value is None else found.number
    if layout is not None and (found.stores, found.home) != (layout.stores, layout.home):
        raise StorageDamaged(
            f"{path}: this is key-value store {found.home} of {found.stores}, but what {index_format.COMMIT_NAME} of "
            f"the ledger directories says makes it store {layout.home} of {layout.stores}: a file or a store is "
            f"missing, damaged or exchanged; {REMEDY}"
        )
    if number < reached:
        raise StorageDamaged(
            f"{path}: the key-value store is at commit {number}, but {index_format.COMMIT_NAME} beside it says that "
            f"{reached} was durable; {REMEDY}"
        )
    return number


def read_commit(files: ReadOnlyFiles, path: str) -> StoreCommit | None:
    """Return what the file beside a store says; None: there is none, or it is unreadable.

    Raises:
        StorageDamaged: a later version of the bookie wrote it.
    """
    if not files.exists(path):
        return None
    try:
        return index_format.decode_store_commit(files.read_all(path))
    except ValueError as error:
        raise StorageDamaged(f"{path}: {error}") from error


def _encode(layout: StoreCommit, number: int) -> bytes:
    if layout.stores == 1:
        return index_format.encode_commit(number)
    return index_format.encode_store_commit(replace(layout, number=number, is_being_created=False))
