"""Opens a bookie's storage: finishes a compaction, replays the journals, flushes everything, and advances the marks.

Afterwards the write cache is empty and the marks are at the beginning of new journal files, so after an immediate
second crash there is nothing to replay. The old files stay until the marks are durable, so a crash in between only
repeats the work.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.errors import ProtocolError, StorageDamaged
from bkspark.wire.framing import LENGTH_BYTES, gather_i64, split_items
from bkspark.wire.layout import ENTRY_BYTES_MIN, ENTRY_ID_AT
from bookie_service.formats import journal as journal_format
from bookie_service.formats.index import UNKNOWN_KEY, LedgerHeader
from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage import layout
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import LocalFiles, is_disk_failure, is_out_of_space
from bookie_service.storage.io.framed_entries import rows_by_ledger
from bookie_service.storage.journal.checkpoint import Marks
from bookie_service.storage.journal.journal import Journal, JournalOptions
from bookie_service.storage.journal.replay import ReplayedJournal, replay_journal
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import check_converted, open_ledger_storage
from bookie_service.storage.ledgers.interface import Flush, Ledger, LedgerStorage
from bookie_service.storage.ledgers.limbo import DirtyMarker
from bookie_service.storage.ledgers.write_cache import INDEX_BYTES_PER_ENTRY
from bookie_service.storage.logs.compaction import Compactor


@dataclass(frozen=True, slots=True)
class Storage:
    """Open storage, with nothing left to flush.

    notices: lines for the operator about findings; usually empty.
    dirty: must be set before anything is acknowledged, and cleared when everything is flushed at the end.
    may_have_lost_entries: nothing may be served, and `dirty` must not be set, before the ledgers concerned are in
        limbo.
    stuck: a flush that found no space. It must be retried, and adds are refused until it is done.
    replayed: how many records of the journals were replayed.
    """

    store: LedgerStorage
    """The storage of the bookie's ledgers, which uses the parts below."""
    marks: Marks
    journals: Sequence[Journal]
    compactor: Compactor
    notices: Sequence[str]
    dirty: DirtyMarker
    may_have_lost_entries: bool
    stuck: Flush | None = None
    replayed: int = 0


def open_storage(
    files: LocalFiles,
    journal_directories: Sequence[str],
    ledger_directories: Sequence[str],
    store_options: StoreOptions,
    journal_options: JournalOptions,
) -> Storage:
    """Open configured directories, and create missing files in them. Identity must be checked before.

    Raises:
        ConfigurationError: as `open_ledger_storage` and `check_converted`.
        StorageDamaged: acknowledged data may be lost. The message names file, offset and remedy.
        OSError: a file cannot be read or written.
    """
    journals_at = [layout.current(directory) for directory in journal_directories]
    ledgers_at = [layout.current(directory) for directory in ledger_directories]
    _make_directories(files, journals_at, ledgers_at)
    check_converted(files, journals_at, ledgers_at)
    store = open_ledger_storage(files, ledgers_at, store_options, FilePlaces(files, journals_at[0]))
    marks = Marks(files, ledgers_at, store.disks)
    compactor = Compactor(files, store, ledgers_at)
    # Before replay, because its positions are newer.
    notices = compactor.recover()
    if store.tombstones.notice is not None:
        notices.append(store.tombstones.notice)
    notices += store.index.notices
    notices += store.logs.notices
    dirty = DirtyMarker(files, ledgers_at, journals_at)
    if store.limbo.is_lost:
        notices.append("the file limbo was deleted, so every ledger goes into limbo")
        dirty.set(journal_is_complete=False)
    # Also if the index found lost headers just now, or an earlier start that crashed found them.
    is_in_doubt = dirty.is_journal_incomplete()
    replay = Replay(store, is_in_doubt=is_in_doubt)
    befores: list[JournalPosition | None] = []
    ends: list[JournalPosition] = []
    for index, directory in enumerate(journals_at):
        mark, replayed = _replayed(files, directory, marks, index, replay)
        befores.append(mark)
        ends.append(replayed.end)
        if replayed.torn is not None:
            notices.append(replayed.torn)
    replay.flush()
    journals = [
        Journal(files, directory, journal_options, end, before)
        for directory, end, before in zip(journals_at, ends, befores)
    ]
    if replay.stuck is None:
        notices += _move_marks(marks, journals)
    else:
        notices.append("the ledger directories have no space for what the journals hold; it stays there and in memory")
    return Storage(store, marks, journals, compactor, notices, dirty, is_in_doubt, replay.stuck, replay.records)


def _make_directories(files: LocalFiles, journals_at: Sequence[str], ledgers_at: Sequence[str]) -> None:
    """Create missing directories, and make every name durable. A ledger directory whose disk fails is left out."""
    for directory in (*journals_at, *ledgers_at):
        try:
            files.make_directory(directory)
            # A process that was killed may have created it without making its name durable.
            files.sync_directory(os.path.dirname(directory))
        except OSError as error:
            if directory in journals_at or not is_disk_failure(error):
                raise


def _replayed(
    files: LocalFiles, directory: str, marks: Marks, journal_index: int, replay: Replay
) -> tuple[JournalPosition | None, ReplayedJournal]:
    """Replay one journal; return its mark and what was replayed. Raises StorageDamaged as `replay_journal`."""
    mark = marks.read(journal_index)
    try:
        return mark, replay_journal(files, directory, mark, replay.apply)
    except StorageDamaged as error:
        if mark is not None or not marks.unreadable:
            raise
        # Records before the mark may belong to deleted ledgers, whose keys are gone, too.
        damaged = ", ".join(marks.unreadable)
        why = f"replay began at the first existing record, because {damaged} is damaged"
        raise StorageDamaged(f"{error}; {why}") from error


def _move_marks(marks: Marks, journals: Sequence[Journal]) -> list[str]:
    """Advance the marks to the ends of the journals, and drop files before them; return notices of missing space."""
    try:
        marks.write([journal.end for journal in journals])
        for journal in journals:
            journal.forget_before(journal.end)
    except OSError as error:
        if not is_out_of_space(error):
            raise
        return [f"{error.filename}: there is no space for the marks, so the journals stay as they are"]
    return []


class Replay:
    """Applies journal records to the store as when they were served. Repeating it changes nothing."""

    def __init__(self, store: LedgerStorage, *, is_in_doubt: bool) -> None:
        """`is_in_doubt`: all ledgers go into limbo after replay."""
        self._store = store
        self._is_in_doubt = is_in_doubt
        self.stuck: Flush | None = None
        """A flush that found no space, or None. Later records stay in memory, as far as there is room."""
        self.records = 0
        """How many records were applied, without padding."""
        self._hidden: dict[int, OSError] = {}
        """Ledgers whose index is on a disk that cannot be read, with records that are not flushed, and the errors. They
        go into limbo before they are flushed."""
        self._keeps_header: set[int] = set()
        """Those of `_hidden` whose header could be read, so the flush writes it as it was."""

    def apply(self, kind: int, count: int, body: bytes) -> None:
        """Apply one record. Raises ValueError if its body does not fit its kind."""
        self.records += kind != RecordKind.PADDING
        if kind == RecordKind.ENTRIES:
            self._insert(count, body)
        elif kind == RecordKind.LEDGER_KEY:
            for ledger_id, key in journal_format.decode_keys(body, count):
                self._learn_key(ledger_id, key)
        elif kind == RecordKind.FENCE:
            for ledger_id in journal_format.decode_fences(body, count):
                self._store.fence(self._ledger(ledger_id))
        elif kind == RecordKind.LAC:
            for ledger_id, packet in journal_format.decode_lacs(body, count):
                self._learn_lac(ledger_id, packet)
        elif kind != RecordKind.PADDING:
            raise ValueError(f"record of unknown kind {kind}")

    def flush(self) -> None:
        """Make all applied records durable in entry logs and index. Without space they stay in memory."""
        if self.stuck is None and not self._store.is_clean:
            self._flush(advances_checkpoint=True)

    def _flush(self, *, advances_checkpoint: bool) -> None:
        if self.stuck is not None:
            self._flush_again(self.stuck)
        self._begin_limbo()
        flush = self._store.begin_flush(advances_checkpoint=advances_checkpoint)
        if flush is None:
            return
        try:
            self._store.write_flush(flush, names_are_durable=False)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            # A later flush advances the marks, beyond everything that replay found.
            flush.advances_checkpoint = False
            self.stuck = flush
        else:
            self._store.end_flush(flush)

    def _begin_limbo(self) -> None:
        """Put ledgers whose index cannot be read into limbo.

        Raises:
            OSError: one of them can be read now. The flush would replace its header by one without its key and fence.
        """
        for ledger_id, error in self._hidden.items():
            if ledger_id not in self._keeps_header and self._header(ledger_id) is not None:
                reason = (
                    f"{error.strerror}, and a later read found ledger {ledger_id}: the disk works now and then. "
                    "Nothing of this ledger was changed: start the bookie again, or without this disk"
                )
                raise OSError(error.errno, reason, error.filename)
        self._store.limbo.begin(self._hidden.keys())
        self._hidden.clear()
        self._keeps_header.clear()

    def _header(self, ledger_id: int) -> LedgerHeader | None:
        """Return what the index has of a ledger. None: there is nothing, or it cannot be read."""
        try:
            return self._store.index.header(ledger_id)
        except StorageDamaged:
            return None
        except OSError as error:
            if not is_disk_failure(error):
                raise
            return None

    def _flush_again(self, flush: Flush) -> None:
        """Write the flush that found no space before. Raises OSError if there is still no space, and no room in memory
        for later records."""
        try:
            self._store.write_flush(flush, names_are_durable=False)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            reason = f"{error.strerror}, and the journals hold more than the write cache does: free space there"
            raise OSError(error.errno, reason, error.filename) from error
        self._store.end_flush(flush)
        self.stuck = None

    def _learn_key(self, ledger_id: int, key: bytes) -> None:
        # Regardless of the index: a crash may have interrupted the creation of the file, or a process that was killed
        # wrote it without making it durable. In both cases this record creates it again.
        with contextlib.suppress(StorageDamaged):
            self._known(ledger_id)
        self._create(ledger_id, key)

    def _learn_lac(self, ledger_id: int, packet: bytes) -> None:
        ledger = self._ledger(ledger_id)
        if not self._store.advance_lac(ledger, packet):
            # Regardless of the index, as above: the header is written and synced again.
            self._store.create_ledger(ledger_id, ledger.master_key)

    def _known(self, ledger_id: int) -> Ledger | None:
        """Return a ledger. None: there is none, or its index is on a disk that cannot be read."""
        try:
            return self._store.ledger(ledger_id)
        except OSError as error:
            self._hide(ledger_id, error)
        header = self._header(ledger_id)
        if header is None:
            return None
        # Only its positions cannot be read: a disk may have lost a single sector.
        self._keeps_header.add(ledger_id)
        ledger = self._store.create_ledger(ledger_id, header.master_key)
        ledger.generation, ledger.fenced, ledger.explicit_lac = header.generation, header.fenced, header.explicit_lac
        return ledger

    def _create(self, ledger_id: int, key: bytes) -> Ledger:
        try:
            return self._store.create_ledger(ledger_id, key)
        except OSError as error:
            self._hide(ledger_id, error)
        return self._store.create_ledger(ledger_id, key)

    def _hide(self, ledger_id: int, error: OSError) -> None:
        """Note that the disk of a ledger's index cannot be read. Raises OSError if a bookie cannot do without it."""
        if not is_disk_failure(error):
            raise error
        if not self._store.index.goes_on_without(ledger_id, error):
            reason = (
                f"{error.strerror}, and what the journals have of ledger {ledger_id} must not replace what is there: "
                "start the bookie again. If this repeats, replace the disk"
            )
            raise OSError(error.errno, reason, error.filename) from error
        self._hidden[ledger_id] = error.with_traceback(None)  # which would keep the record in memory

    def _ledger(self, ledger_id: int) -> Ledger:
        ledger = self._known(ledger_id)
        is_doubtful = self._is_in_doubt or ledger_id in self._store.limbo or ledger_id in self._hidden
        if ledger is None and is_doubtful:
            # Its header is lost, and its key with it. The journal's records of it are kept until a recovery comes.
            ledger = self._create(ledger_id, UNKNOWN_KEY)
        if ledger is None:
            raise ValueError(
                f"a record of ledger {ledger_id}, whose master key is neither in the journal nor the index"
            )
        return ledger

    def _insert(self, count: int, body: bytes) -> None:
        try:
            starts, ends = split_items(body, 0, len(body))
        except ProtocolError as error:
            raise ValueError(str(error)) from error
        if len(starts) != count or (count and int((ends - starts).min()) < ENTRY_BYTES_MIN):
            raise ValueError(f"a record of {len(starts)} entries says {count}, or one is shorter than its ids")
        octets = np.frombuffer(body, np.uint8)
        sizes = ends - starts + LENGTH_BYTES
        filled = np.cumsum(sizes + INDEX_BYTES_PER_ENTRY)
        first = 0
        while first < count:
            taken = int((filled - (filled[first - 1] if first else 0)).searchsorted(self._store.active.room, "right"))
            if taken <= first:
                self._flush(advances_checkpoint=False)
                continue
            rows = slice(first, taken)
            self._hold(octets, starts[rows], sizes[rows])
            first = taken

    def _hold(self, octets: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> None:
        ledger_ids, entry_ids = gather_i64(octets, starts), gather_i64(octets, starts + ENTRY_ID_AT)
        addresses = self._store.active.place(octets, starts - LENGTH_BYTES, sizes)
        for ledger_id, rows in rows_by_ledger(ledger_ids):
            self._store.insert(self._ledger(ledger_id), entry_ids[rows], addresses[rows])
