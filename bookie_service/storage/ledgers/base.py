"""The common part of all ledger storages: a write cache before entry logs and index.

An entry is in the half of the cache that is filled, or in the half that is being flushed, or in an entry log with its
position in the index. It leaves a half only after it is durable in the log. Lookups use this order, so an entry that
was added is found at every moment.

The event loop calls all methods except those that take the lock `writing`: `write_flush`, on the checkpoint thread, for
one flush at a time, and `move` and `seal_logs`, on the collector's thread. So a position never changes during a flush.

A flush makes entries durable in the entry log. The index may hold their positions in memory until a flush that advances
the marks syncs it. Until then the journal keeps the entries, and after a crash replay finds them again.

A ledger is dropped only when none of its entries is in a half, or flushed and not yet before the marks. So its journal
records are before the marks, and neither a flush nor replay can bring it back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.options import BYTES_MAX, COUNT_MAX, bounded, check
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bookie_service.formats import index as index_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.disks import DiskLimits
from bookie_service.storage.index.index import LedgerUpdate, StoredLedger
from bookie_service.storage.index.index_file import rebuild_remedy
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io.background import with_pauses
from bookie_service.storage.io.byte_source import WAITING, ByteSource, CachedSource, NotCached
from bookie_service.storage.io.disk_threads import DiskStalled
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import (
    LocalFiles,
    is_disk_failure,
    is_out_of_space,
    may_be_repeated,
    refuses_writes,
)
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.ledgers.interface import Flush, Ledger, LedgerIndex, Located, LookResult
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.read_ahead import ReadAheadOptions
from bookie_service.storage.ledgers.read_each import Look
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.ledgers.tombstones import Tombstones
from bookie_service.storage.ledgers.write_cache import MemTable
from bookie_service.storage.ledgers.write_turns import between_flushes
from bookie_service.storage.ledgers.write_watch import WriteWatch
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import AppendOptions
from bookie_service.storage.logs.log_appenders import flush_appender
from bookie_service.storage.logs.log_reader import EntryLogReader

logger = logging.getLogger(__name__)

_POSITIONS_PER_LOOKUP = 8192
LEDGERS_MAX = 16 * 1024
"""How many ledgers are kept in memory, without those whose changes are not before the marks yet."""
_LEDGERS_LOOKED_AT = 8
"""When another ledger comes, this many of the oldest are checked for one that can be dropped."""
REMOVALS_AT_ONCE = 256
"""How many index files are removed while a flush waits."""
_UNMARKED_LEDGERS_MAX, _WAITING_LEDGERS_MAX = 64 * 1024, 256 * 1024
"""If the latter, of about 1 KiB, stay in memory because a disk keeps the marks back, no new ones begin."""
UNMARKED_BYTES_MAX = 256 * 1024 * 1024
"""At most this many bytes are flushed without advancing the marks, because replay has to read them again."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The storage, and sizes in bytes. `cache_half_bytes`: the size of each of the two halves of the write cache.

    read_ahead, key_values: used only by `DbLedgerStorage`.
    """

    storage_class: StorageClass = StorageClass.SORTED
    cache_half_bytes: int = bounded(64 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    append: AppendOptions = field(default_factory=AppendOptions)
    open_files_max: int = bounded(20_000, 1, COUNT_MAX)
    """Index files that stay open."""
    pages: PageOptions = field(default_factory=PageOptions)
    read_ahead: ReadAheadOptions = field(default_factory=ReadAheadOptions)
    key_values: KeyValueOptions = field(default_factory=KeyValueOptions)
    disks: DiskLimits = field(default_factory=DiskLimits)

    def __post_init__(self) -> None:
        check(self)

    @property
    def reader_files_max(self) -> int:
        """How many files the reader of entry logs, and that of the index, each keep open. Writers need few."""
        return max(1, self.open_files_max // 2)


class BaseLedgerStorage(ABC):
    """A `LedgerStorage`, except for the order in which entries go to the log. The interface states the guarantees of
    each method."""

    def __init__(
        self, files: LocalFiles, directories: Sequence[str], options: StoreOptions, places: FilePlaces | None = None
    ) -> None:
        """`directories`: the `current` directories of all ledger directories, in configured order. `places`: the record
        of where the files of the whole bookie are."""
        self._places = places
        self.logs = EntryLogs(files, directories, options.disks, reserves=options.append.reserves)
        self.tombstones = Tombstones(files, directories, places)
        self.disks = files.disk_work(directories)
        self._appender = flush_appender(self.logs, options.append, directories, self.disks)
        self.limbo = Limbo(files, directories, places)
        self._reader = EntryLogReader(self.logs, options.reader_files_max)
        self._item_bytes = LENGTH_BYTES + ENTRY_BYTES_MIN
        """The probable length of an item: the mean of those last read."""
        self.active = MemTable(options.cache_half_bytes)
        """The half of the write cache that takes entries. There are two halves in all: the other is `_idle` or
        `_flushing`. Changed by `begin_flush`."""
        self._idle: MemTable | None = MemTable(options.cache_half_bytes)
        """The half that is empty; None while it is flushed."""
        self._flushing: MemTable | None = None
        """The half that is being flushed; None: no flush runs."""
        self._ledgers: OrderedDict[int, Ledger] = OrderedDict()
        """Ledgers in memory, the one unused for longest first; at most LEDGERS_MAX beside those that must stay."""
        self._changed: set[int] = set()
        """Ledgers whose headers have changed since the last flush began. Emptied by `begin_flush`."""
        self._index_lacks_positions = False
        """Whether a flush wrote entries whose positions the index lacks, because its disk was full."""
        self._are_names_durable = True
        """False from replay on, until the index is synced for the first time."""
        self._unmarked: set[int] = set()
        """Ledgers of all flushes since the marks last advanced, including the current flush. Emptied by `end_flush`."""
        self._unmarked_bytes = 0
        """How many bytes those flushes wrote."""
        self._marks_wait = False
        """Whether the last flush that was to advance the marks could not."""
        self.watch = WriteWatch()
        self.writing = threading.Lock()
        """Held by a thread that changes entry logs or the index."""
        # Last, because what it finds may put ledgers into limbo.
        self.index = self._open_index(files, directories, options)
        if places is not None:
            places.settle()

    @abstractmethod
    def _open_index(self, files: LocalFiles, directories: Sequence[str], options: StoreOptions) -> LedgerIndex:
        """Return the index of this storage. Raises StorageDamaged if it is not whole."""

    # ---- ledgers ----

    def ledger(self, ledger_id: int) -> Ledger | None:
        if self.index.has_hidden and self.index.is_hidden(ledger_id):
            # Even if it is in memory: what it gets would not reach the index.
            self.index.header(ledger_id)
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            self._ledgers.move_to_end(ledger_id)
        elif ledger_id >= 0:
            stored = self._stored(ledger_id)
            if stored is not None and stored.header is not None:
                ledger = self._remember(stored.header, stored.last_entry)
        return ledger

    def absent(self, ledger_ids: np.ndarray) -> np.ndarray:
        known = (self._ledgers, self.limbo)
        is_absent = np.array([not any(each in some for some in known) for each in ledger_ids.tolist()], bool)
        rows = np.flatnonzero(is_absent & (ledger_ids >= 0))
        if len(rows):
            is_absent[rows] = self.index.absent(ledger_ids[rows])
        return is_absent

    def _stored(self, ledger_id: int) -> StoredLedger | None:
        """Return what the index has of a ledger. A ledger that has lost something is in limbo from then on."""
        try:
            stored = self.index.stored(ledger_id)
        except StorageDamaged:
            if self._is_whole(ledger_id):
                raise
            return None
        if not stored.is_whole:
            self._is_whole(ledger_id)
        return stored

    def _is_whole(self, ledger_id: int) -> bool:
        """Return False if durable data of a ledger is lost; the ledger is in limbo then."""
        if len(self.limbo.ledger_ids) and ledger_id in self.limbo:
            return False
        lost = self.index.lost(ledger_id)
        if lost:
            self.limbo.begin([ledger_id])
            logger.error(
                "%s. Entries, a fence, or everything that was known of the ledger may be lost: until it is recovered "
                "or repaired, the bookie gives no certain answer about missing entries. %s",
                lost,
                rebuild_remedy(ledger_id),
            )
        return not lost

    def _remember(self, header: LedgerHeader, last_entry: int) -> Ledger:
        """Keep a ledger in memory. If there are too many, drop one or two others."""
        ledger = Ledger(
            header.ledger_id,
            header.generation,
            header.fenced,
            header.master_key,
            header.explicit_lac,
            last_entry,
        )
        self._ledgers[header.ledger_id] = ledger
        for _ in range(_LEDGERS_LOOKED_AT):
            if len(self._ledgers) <= LEDGERS_MAX:
                break
            oldest = next(iter(self._ledgers))
            if self._is_settled(oldest) and oldest != header.ledger_id:
                del self._ledgers[oldest]
            else:
                self._ledgers.move_to_end(oldest)
        return ledger

    @property
    def takes_new_ledgers(self) -> bool:
        return not (self._marks_wait and self.index.is_divided) or len(self._unmarked) < _WAITING_LEDGERS_MAX

    def known_header(self, ledger_id: int) -> LedgerHeader | None:
        """Return a ledger's header as known in memory, or None. For any thread."""
        ledger = self._ledgers.get(ledger_id)
        return None if ledger is None else ledger.header

    def create_ledger(self, ledger_id: int, master_key: bytes) -> Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._remember(LedgerHeader(ledger_id, 0, False, master_key), self.index.last_entry(ledger_id))
        ledger.master_key = master_key
        self._note_changed(ledger_id)
        return ledger

    def _note_changed(self, ledger_id: int) -> None:
        """Let the next flush write a ledger's header. Until then the header takes room in the active half."""
        if ledger_id not in self._changed:
            self._changed.add(ledger_id)
            self.active.note_header()

    def fence(self, ledger: Ledger) -> None:
        ledger.fenced = True
        self._note_changed(ledger.ledger_id)

    def advance_lac(self, ledger: Ledger, packet: bytes) -> bool:
        ledger_id, lac = index_format.decode_lac(packet)
        if ledger_id != ledger.ledger_id:
            raise ValueError(f"an explicit LAC packet of ledger {ledger_id} for ledger {ledger.ledger_id}")
        if ledger.explicit_lac and lac <= index_format.decode_lac(ledger.explicit_lac)[1]:
            return False
        ledger.explicit_lac = packet
        self._note_changed(ledger.ledger_id)
        return True

    # ---- entries ----

    def insert(self, ledger: Ledger, entry_ids: np.ndarray, addresses: np.ndarray) -> None:
        self.active.insert(ledger.ledger_id, entry_ids, addresses)
        ledger.last_entry = max(ledger.last_entry, int(entry_ids.max()))

    def add_single(self, ledger: Ledger, entry_id: int, octets: np.ndarray, at: int, size: int) -> memoryview:
        ledger.last_entry = max(ledger.last_entry, entry_id)
        return self.active.add_single(ledger.ledger_id, entry_id, octets, at, size)

    def read(
        self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int, source: ByteSource = WAITING
    ) -> list[FramedEntries]:
        pieces: list[FramedEntries] = []
        bytes_max = max(0, bytes_max)
        while count_max > 0 and bytes_max >= 0:
            try:
                items = self._read_run(ledger, first_entry, count_max, bytes_max, source)
            except (StorageDamaged, OSError, NotCached):
                if not pieces:
                    raise
                break
            if items is None or (pieces and int(items.sizes[0]) > bytes_max):
                break
            pieces.append(items if source.lends else items.owned())
            count = len(items.sizes)
            first_entry = items.first_entry + count
            count_max -= count
            bytes_max -= len(items.buffer)
            if items.is_full:
                break
        return pieces

    def _read_run(
        self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int, source: ByteSource
    ) -> FramedEntries | None:
        """Return consecutive entries in one place, at least `first_entry`; None: that entry is not held."""
        if first_entry > ledger.last_entry:
            return None
        for half in (self.active, self._flushing):
            if half is None or ledger.ledger_id not in half.ledgers:
                continue
            items = half.read(ledger.ledger_id, first_entry, count_max, bytes_max)
            if items is not None:
                return items
            # A run found in a later place must end before an entry that is held again here.
            count_max = half.gap(ledger.ledger_id, first_entry, count_max)
        return self._read_stored(ledger, first_entry, count_max, bytes_max, source)

    def _read_stored(
        self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int, source: ByteSource
    ) -> FramedEntries | None:
        """Return adjacent entries of an entry log, at least `first_entry`; None: no position is held."""
        # Later entries are assumed to be as large as those before them. If they are smaller, another run follows.
        likely = bytes_max // self._item_bytes + 2
        count = min(count_max, likely, ledger.last_entry - first_entry + 1, _POSITIONS_PER_LOOKUP)
        positions = self.index.positions(ledger.ledger_id, first_entry, count, source)
        if not len(positions) or not positions.item(0):
            self._is_whole(ledger.ledger_id)
            return None
        items = self._reader.read(ledger.ledger_id, first_entry, positions, bytes_max, source)
        self._item_bytes = max(LENGTH_BYTES + ENTRY_BYTES_MIN, len(items.buffer) // len(items.sizes))
        return items

    def read_each(
        self,
        ledgers: Sequence[Ledger],
        ends: Sequence[int],
        entry_ids: np.ndarray,
        bytes_max: int,
        source: CachedSource,
    ) -> LookResult:
        look = Look(ledgers, ends, entry_ids, bytes_max, self._item_bytes)
        for half in (self.active, self._flushing):
            if half is not None and look.goes_on:
                look.in_half(half)
        if look.goes_on:
            at, likely = look.in_index(self.index, source)
            for ledger_id in look.unheld:
                self._is_whole(ledger_id)
            look.in_logs(self._reader, at, likely, source)
        if look.found.pieces:
            self._item_bytes = LENGTH_BYTES + int(look.found.pieces[-1][1].sizes.mean())
        return look.found

    def locate(self, ledger: Ledger, first_entry: int, count_max: int, bytes_max: int) -> Located | None:
        count = min(count_max, ledger.last_entry - first_entry + 1, _POSITIONS_PER_LOOKUP)
        for half in (self.active, self._flushing):
            if half is not None and count > 0:
                # None if it begins with an entry that is held again here, or ends before one.
                count = half.gap(ledger.ledger_id, first_entry, count)
        if count <= 0:
            return None
        positions = self.index.positions(ledger.ledger_id, first_entry, count)
        return self._reader.locate(positions, bytes_max) if len(positions) else None

    def waiting_entries(self, ledger: Ledger) -> list[np.ndarray]:
        halves = [half for half in (self.active, self._flushing) if half is not None]
        held = [half.ledgers[ledger.ledger_id] for half in halves if ledger.ledger_id in half.ledgers]
        return [ids for writes in held for ids in writes.ids()]

    # ---- flushing ----

    @property
    def is_clean(self) -> bool:
        return not self.active.used and not self._changed and not self._unmarked

    def begin_flush(self, *, advances_checkpoint: bool = True) -> Flush | None:
        if self._idle is None:
            return None
        self._flushing, self.active, self._idle = self.active, self._idle, None
        headers = []
        for ledger_id in sorted(self._changed):
            ledger = self._ledgers[ledger_id]
            ledger.generation += 1
            headers.append(ledger.header)
        self._unmarked.update(self._flushing.ledgers, self._changed)
        self.watch.note(self._flushing.ledgers, self._changed)
        self._unmarked_bytes += self._flushing.used
        self._changed.clear()
        is_much = len(self._unmarked) > _UNMARKED_LEDGERS_MAX or self._unmarked_bytes > UNMARKED_BYTES_MAX
        return Flush(self._flushing, headers, advances_checkpoint or is_much)

    def write_flush(self, flush: Flush, *, names_are_durable: bool = True) -> None:
        with self.writing:
            self._are_names_durable = self._are_names_durable and names_are_durable
            if not flush.is_held:
                self._write_flush(flush)
            self._appender.seal_idle()
            if flush.advances_checkpoint:
                try:
                    self._sync_index()
                except DiskStalled:
                    # The flush made room, like one that need not advance. The next flush syncs what this one could not.
                    flush.advances_checkpoint, self._marks_wait = False, True

    def _sync_index(self) -> None:
        """Make the index durable. If it covers everything that was appended, all logs are rotated except those that are
        still appended to."""
        self.index.sync(self._are_names_durable)
        self._are_names_durable = True
        if not self._index_lacks_positions:
            self._appender.rotate()

    def _write_flush(self, flush: Flush) -> None:
        half = flush.half
        ledger_ids = sorted(half.ledgers)
        held = [half.ledgers[ledger_id].sorted() for ledger_id in ledger_ids]
        positions: list[np.ndarray] = []
        if held:
            if flush.positions is None:
                # Until the index has the positions, which may have to wait for space, no other record of the log
                # exists.
                self._index_lacks_positions = True
                flush.positions = self._append(half, np.concatenate([at for _, at in held]))
            positions = np.split(flush.positions, np.cumsum([len(at) for _, at in held])[:-1])
        headers = {header.ledger_id: header for header in flush.headers}
        updates = [
            LedgerUpdate(ledger_id, headers.pop(ledger_id, None), entry_ids, at)
            for ledger_id, (entry_ids, _), at in zip(ledger_ids, held, positions)
        ]
        nothing = np.empty(0, np.int64)
        updates += [LedgerUpdate(ledger_id, header, nothing, nothing) for ledger_id, header in headers.items()]
        self.index.hold(updates)
        self._index_lacks_positions = False
        flush.is_held = True

    def _append(self, half: MemTable, addresses: np.ndarray) -> np.ndarray:
        """Write items of a half to entry logs, durably; return their positions in the order of the addresses."""
        order = self._log_order(addresses)
        ordered = addresses[order]
        positions = np.empty(len(addresses), np.int64)
        positions[order] = self._appender.write(half.memory, ordered, half.lengths(ordered) + LENGTH_BYTES)
        return positions

    @abstractmethod
    def _log_order(self, addresses: np.ndarray) -> np.ndarray | slice:
        """Return the order in which items go to the log. The addresses are ordered by (ledger, entry)."""

    def end_flush(self, flush: Flush) -> None:
        flush.half.clear(keeps_memory=not self._appender.is_late)
        self._idle, self._flushing = flush.half, None
        if flush.advances_checkpoint:
            self._unmarked.clear()
            self._unmarked_bytes, self._marks_wait = 0, False

    # ---- dropping and moving ----

    def in_doubt(self, ledger_ids: np.ndarray) -> np.ndarray:
        is_hidden = self.index.hidden(ledger_ids).tolist()
        doubtful = [
            each
            for each, hidden in with_pauses(zip(ledger_ids.tolist(), is_hidden))
            if hidden or each in self.limbo or self.index.lost(each)
        ]
        return np.array(doubtful, np.int64)

    def any_in_doubt(self) -> bool:
        return len(self.limbo) > 0 or self.index.has_hidden or len(self.index.all_lost()) > 0

    @property
    def is_flushing(self) -> bool:
        return self._flushing is not None

    @property
    def waiting_bytes(self) -> int:
        return self.active.used + (self._flushing.used if self._flushing is not None else 0)

    def droppable(self, ledger_ids: Sequence[int]) -> list[tuple[int, bool]]:
        found = []
        for ledger_id in ledger_ids:
            if self._is_settled(ledger_id) and not self.index.is_hidden(ledger_id):
                try:
                    ledger = self.ledger(ledger_id)
                except (StorageDamaged, OSError) as error:
                    if isinstance(error, OSError) and not is_disk_failure(error):
                        raise
                    found.append((ledger_id, True))
                    continue
                # Looking up the ledger put it into limbo if it has lost something.
                if ledger is not None or ledger_id in self.limbo:
                    found.append((ledger_id, ledger is None or ledger.fenced or ledger_id in self.limbo))
        return found

    def read_ahead_of_drop(self, ledger_ids: Sequence[int]) -> None:
        view = self.index.view(1)
        try:
            for ledger_id in with_pauses(ledger_ids):
                # If something is wrong with a ledger, `droppable` finds it, too.
                with contextlib.suppress(StorageDamaged, OSError):
                    view.header(ledger_id)
                    view.last_entry(ledger_id)
        finally:
            view.close()

    def prepare_drop(self, ledger_ids: Sequence[int], fenced: Sequence[int], now_s: int) -> None:
        self.tombstones.remember(fenced, now_s)
        with self._changing_records():
            try:
                self.index.disown(ledger_ids)
            except OSError as error:
                # Deleted ledgers must be dropped nevertheless, because that frees space.
                if not is_out_of_space(error):
                    raise

    def _changing_records(self) -> AbstractContextManager[None]:
        return between_flushes(self.writing, self.disks)

    def end_limbo(self, ledger_ids: Sequence[int]) -> None:
        with self._changing_records():
            self.index.accept(ledger_ids)
        # Without the lock, because a disk may be late. One may have failed since they were checked.
        self.limbo.end(ledger_ids, lambda: [each for each in ledger_ids if self.index.is_hidden(each)])

    def drop(self, ledger_ids: Sequence[int]) -> list[int]:
        dropped = []
        for ledger_id in ledger_ids:
            if self._is_settled(ledger_id) and self.watch.unwritten([ledger_id]):
                try:
                    self.index.remove(ledger_id)
                except OSError as error:
                    # A store has no space even for this record, or its disk fails. A later pass drops the ledger.
                    if not is_out_of_space(error) and not self.index.is_hidden(ledger_id):
                        raise
                    if not self.index.is_divided:
                        break
                else:
                    self._ledgers.pop(ledger_id, None)
                    dropped.append(ledger_id)
        return dropped

    def keep_prepared(self, ledger_ids: Collection[int]) -> None:
        with self._changing_records():
            self.index.accept(ledger_ids)

    def sync_dropped(self, ledger_ids: Collection[int]) -> None:
        left = list(ledger_ids)
        while left:
            # A flush may come in between.
            with self._changing_records():
                self.index.finish_removal(left[:REMOVALS_AT_ONCE])
            del left[:REMOVALS_AT_ONCE]
        with self._changing_records():
            syncs = self.index.sync_removed(ledger_ids)
        # Without the lock, because a disk may be late.
        for each in syncs:
            each.result()
        # One that comes back with its disk would deny what it lacks.
        self.limbo.end(ledger_ids, lambda: self.index.may_come_back(ledger_ids))
        self.index.forget_removed(ledger_ids)

    def _is_settled(self, ledger_id: int) -> bool:
        """Return whether everything of a ledger is in entry logs and index, and before the marks."""
        return not any(ledger_id in ledgers for ledgers in (self.active.ledgers, self._changed, self._unmarked))

    def forget_log(self, log_id: int) -> None:
        path = self.logs.path(log_id)
        if path is not None:
            self._reader.forget(path)
            self.logs.forget(log_id)

    def move(self, updates: Sequence[LedgerUpdate]) -> None:
        assert self.writing.locked()
        self.index.hold([each for each in updates if not self.index.is_hidden(each.ledger_id)])
        self.index.sync()

    def seal_logs(self) -> None:
        with self.writing:
            self._appender.seal()
            try:
                self._sync_index()
            except OSError as error:
                # The logs are not rotated. The flush that waits for the same disk reports the error, and tries again.
                if not may_be_repeated(error):
                    raise

    def keep_records(self) -> None:
        try:
            self.limbo.keep()
            self.tombstones.keep()
            with self._changing_records():
                self.index.keep_records()
        except OSError as error:
            if not refuses_writes(error):
                raise
            logger.warning("a start without the disk of this file is not possible: %s", error)

    def close(self) -> None:
        self.disks.stop()
        self._appender.close()
        self._reader.close()
        self.index.close()
