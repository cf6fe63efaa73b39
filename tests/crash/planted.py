"""The defects of `mutants`, each a context in which the product has it; here alone tests reach into the product.

Two tools make most of them: `changed` wraps a function of the product, and `skipping` makes one operation of the disk
do nothing while a function of the product runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bookie_service import bookie, reads, rules
from bookie_service.formats import index as index_format
from bookie_service.formats import journal as journal_format
from bookie_service.formats import marks as mark_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage import checkpoint, log_reader, opening, replay, write_cache
from bookie_service.storage.checkpoint import Checkpoint, Marks
from bookie_service.storage.entry_log import EntryLogs
from bookie_service.storage.file_index import FileIndex
from bookie_service.storage.index_pages import IndexPages, Page
from bookie_service.storage.index_writer import IndexWriter
from bookie_service.storage.journal import Journal, Record
from bookie_service.storage.ledger_store import LedgerStore
from bookie_service.storage.log_appender import EntryLogAppender
from bookie_service.storage.replay import ReplayedJournal
from bookie_service.storage.write_cache import LedgerWrites
from tests.crash.simulated_files import SimulatedDisk, SimulatedFile, SimulatedFiles, SimulatedFileSystem
from tests.planting import Plant, changed, replaced


@contextlib.contextmanager
def skipping(owner: Any, name: str, operation: str) -> Iterator[None]:
    """Make `sync_data`, `sync_directory`, or `sync` of a file system, do nothing while a method runs."""
    depth = 0

    def counting(old: Any) -> Any:
        def method(*arguments: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                return old(*arguments, **named)
            finally:
                depth -= 1

        return method

    def apart(old: Any) -> Any:
        def begin(*arguments: Any) -> Any:
            """Crash images are opened between two operations; what runs there is another process."""
            nonlocal depth
            outer, depth = depth, 0
            try:
                return old(*arguments)
            finally:
                depth = outer

        return begin

    def unless_inside(old: Any) -> Any:
        return lambda *arguments: None if depth else old(*arguments)

    owner_of = {"sync_data": SimulatedFile, "sync_directory": SimulatedFiles, "sync": SimulatedFileSystem}[operation]
    with (
        changed(owner, name, counting),
        changed(SimulatedDisk, "begin", apart),
        changed(owner_of, operation, unless_inside),
    ):
        yield


# ---- journal ----


def unsynced_group() -> Plant:
    return skipping(Journal, "append", "sync_data")


def unwritten_group() -> Plant:
    return replaced(Journal, "append", lambda self, records, *, deferred=False: None)


def unsynced_header() -> Plant:
    return skipping(Journal, "_begin_file", "sync_data")


def unsynced_journal_name() -> Plant:
    return skipping(Journal, "_begin_file", "sync_directory")


def lac_taken_for_durable() -> Plant:
    def apply(self: Any, ledger_id: int, packet: bytes) -> None:
        self._store.advance_lac(self._ledger(ledger_id), packet)

    return replaced(opening._Replay, "_learn_lac", apply)


def unnamed_journal() -> Plant:
    def go_on(self: Journal) -> None:
        self.close()
        self._begin_file()

    return replaced(Journal, "_go_on", go_on)


def journal_named_early() -> Plant:
    """The full file names the next one and is synced, and then the next one is made."""

    def go_on(self: Journal) -> None:
        self.sync()
        followed: list[Any] = []
        self._encode(Record.of(RecordKind.FOLLOWED, 0, b""), self._end, followed)
        self._file.write(followed, self._end)
        self._file.sync_data()
        self._file.close()
        self._begin_file()

    return replaced(Journal, "_go_on", go_on)


def _journaling(choose: Callable[[list[Any]], list[Any]]) -> Plant:
    """Journal only, or in another order, what `choose` returns of each group."""

    def make(old: Any) -> Any:
        def append(self: Journal, records: list[Any], *, deferred: bool = False) -> None:
            chosen = choose(records)
            if chosen:
                old(self, chosen, deferred=deferred)

        return append

    return changed(Journal, "append", make)


def unjournaled_fence() -> Plant:
    return _journaling(lambda records: [record for record in records if record.kind != RecordKind.FENCE])


def unjournaled_key() -> Plant:
    return _journaling(lambda records: [record for record in records if record.kind != RecordKind.LEDGER_KEY])


def unjournaled_lac() -> Plant:
    return _journaling(lambda records: [record for record in records if record.kind != RecordKind.LAC])


def late_key() -> Plant:
    return _journaling(lambda records: sorted(records, key=lambda record: record.kind == RecordKind.LEDGER_KEY))


def ignored_sync_error() -> Plant:
    return changed(Journal, "append", _ignoring_errors)


def removes_marked_file() -> Plant:
    def make(old: Any) -> Any:
        return lambda self, mark: old(self, JournalPosition(mark.file_id + 1, 0))

    return changed(Journal, "forget_before", make)


def synced_too_new() -> Plant:
    def make(old: Any) -> Any:
        return lambda kind, size, count, **named: old(kind, size, count, **{**named, "synced": named["offset"]})

    return changed(journal_format, "encode_record_header", make)


def unsettled() -> Plant:
    return replaced(Journal, "settle", lambda self: None)


def stale_records() -> Plant:
    def make(old: Any) -> Any:
        def decode(data: Any, at: int, *, file_id: int, offset: int) -> Any:
            head = bytes(data[at : at + 40])
            if len(head) == 40:
                file_id, offset = (int.from_bytes(head[first : first + 8], "big") for first in (16, 24))
            return old(data, at, file_id=file_id, offset=offset)

        return decode

    return changed(journal_format, "decode_record_header", make)


# ---- fences and keys ----


def early_fence_answer() -> Plant:
    return replaced(bookie.Bookie, "_read_after_fence", lambda self, fence, request: self._reads.promise(request))


def unflushed_fence() -> Plant:
    return replaced(LedgerStore, "fence", lambda self, ledger: setattr(ledger, "fenced", True))


def unfenced_header() -> Plant:
    def make(old: Any) -> Any:
        def encode(header: LedgerHeader) -> bytes:
            return old(dataclasses.replace(header, fenced=False))

        return encode

    return changed(index_format, "encode_slot", make)


def unflushed_lac() -> Plant:
    def advance_lac(self: LedgerStore, ledger: Any, packet: bytes) -> bool:
        advances = index_format.decode_lac(packet)[1] > index_format.decode_lac(ledger.explicit_lac or bytes(16))[1]
        if advances or not ledger.explicit_lac:
            ledger.explicit_lac = packet
        return advances

    return replaced(LedgerStore, "advance_lac", advance_lac)


def receding_lac() -> Plant:
    def advance_lac(self: LedgerStore, ledger: Any, packet: bytes) -> bool:
        ledger.explicit_lac = packet
        self._changed.add(ledger.ledger_id)
        return True

    return replaced(LedgerStore, "advance_lac", advance_lac)


def lacless_header() -> Plant:
    def make(old: Any) -> Any:
        return lambda header: old(dataclasses.replace(header, explicit_lac=b""))

    return changed(index_format, "encode_slot", make)


def early_lac_answer() -> Plant:
    def make(old: Any) -> Any:
        def write_lac(self: bookie.Bookie, client: Any, *arguments: Any) -> None:
            with replaced(bookie.Bookie, "_send_when_durable", lambda *arguments: client.send(arguments[4])):
                old(self, client, *arguments)

        return write_lac

    return changed(bookie.Bookie, "write_lac", make)


def unflushed_key() -> Plant:
    def make(old: Any) -> Any:
        def create_ledger(self: LedgerStore, ledger_id: int, master_key: bytes) -> Any:
            ledger = old(self, ledger_id, master_key)
            self._changed.discard(ledger_id)
            return ledger

        return create_ledger

    return changed(LedgerStore, "create_ledger", make)


def replay_drops_keys() -> Plant:
    return replaced(opening._Replay, "_learn_key", lambda self, ledger_id, key: None)


def wrong_key_taken() -> Plant:
    def make(old: Any) -> Any:
        return lambda ledger, ids, flags, match, **named: old(ledger, ids, flags, np.ones_like(match), **named)

    return changed(rules, "add_statuses", make)


def wrong_key_fences() -> Plant:
    return changed(rules, "fence_status", lambda old: lambda ledger, stored, given: old(ledger, given, given))


# ---- checkpoints ----


def mark_before_flush() -> Plant:
    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        positions = [mark.result() for mark in todo.marks]
        if todo.flush.moves_mark:
            marks.write(positions)
        store.write_flush(todo.flush)
        if not todo.flush.moves_mark:
            return
        for journal, position in zip(journals, positions):
            journal.forget_before(position)

    return replaced(checkpoint, "carry_out", carry_out)


def mark_newer_than_flush() -> Plant:
    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        store.write_flush(todo.flush)
        if not todo.flush.moves_mark:
            return
        positions = [journal._journal.end for journal in journals]
        marks.write(positions)
        for journal, position in zip(journals, positions):
            journal.forget_before(position)

    return replaced(checkpoint, "carry_out", carry_out)


def mark_at_every_flush() -> Plant:
    """The mark moves although the index still holds in memory what was flushed."""

    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        positions = [mark.result() for mark in todo.marks]
        store.write_flush(todo.flush)
        marks.write(positions)
        for journal, position in zip(journals, positions):
            journal.forget_before(position)

    return replaced(checkpoint, "carry_out", carry_out)


def journal_removed_first() -> Plant:
    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        positions = [mark.result() for mark in todo.marks]
        store.write_flush(todo.flush)
        if not todo.flush.moves_mark:
            return
        for journal, position in zip(journals, positions):
            journal.forget_before(position)
        marks.write(positions)

    return replaced(checkpoint, "carry_out", carry_out)


def unsynced_mark_name() -> Plant:
    return skipping(Marks, "write", "sync_directory")


def shared_mark() -> Plant:
    return replaced(mark_format, "file_name", lambda journal_index: "lastMark")


def ignored_flush_error() -> Plant:
    return changed(LedgerStore, "write_flush", _ignoring_errors)


def ignored_mark_error() -> Plant:
    return changed(Marks, "write", _ignoring_errors)


def half_forgotten_early() -> Plant:
    def make(old: Any) -> Any:
        def write_flush(self: LedgerStore, flush: Any, **named: Any) -> None:
            self._flushing = None
            old(self, flush, **named)

        return write_flush

    return changed(LedgerStore, "write_flush", make)


# ---- replay ----


def mark_stays_after_replay() -> Plant:
    def make(old: Any) -> Any:
        def open_storage(*arguments: Any) -> Any:
            with replaced(Marks, "write", lambda self, positions: None):
                return old(*arguments)

        return open_storage

    return _reopening(make)


@contextlib.contextmanager
def unflushed_replay() -> Iterator[None]:
    """What makes room in a full half stays."""
    inside = False

    def noting(old: Any) -> Any:
        def insert(*arguments: Any) -> None:
            nonlocal inside
            inside = True
            try:
                old(*arguments)
            finally:
                inside = False

        return insert

    def unless_last(old: Any) -> Any:
        return lambda self: old(self) if inside else None

    with changed(opening._Replay, "_insert", noting), changed(opening._Replay, "flush", unless_last):
        yield


def replay_stops_early() -> Plant:
    def make(old: Any) -> Any:
        def replay_file(link: Any, start: int, known_end: int | None, apply: Any) -> Any:
            records: list[Any] = []
            found = old(link, start, known_end, lambda *record: records.append(record))
            for record in records[:-1] if known_end is None else records:
                apply(*record)
            return found

        return replay_file

    return changed(replay, "_replay_file", make)


def replay_drops_fences() -> Plant:
    def make(old: Any) -> Any:
        return lambda self, kind, count, body: None if kind == RecordKind.FENCE else old(self, kind, count, body)

    return changed(opening._Replay, "apply", make)


def replay_drops_lacs() -> Plant:
    def make(old: Any) -> Any:
        return lambda self, kind, count, body: None if kind == RecordKind.LAC else old(self, kind, count, body)

    return changed(opening._Replay, "apply", make)


def trusting_replay() -> Plant:
    return replaced(replay, "_make_durable", lambda files, directory, chain: None)


def trusted_names() -> Plant:
    return changed(IndexWriter, "sync", lambda old: lambda self, names_are_durable=True: old(self))


def uncut_tail() -> Plant:
    def make(old: Any) -> Any:
        def replay_chain(chain: Any, mark: Any, apply: Any) -> ReplayedJournal:
            found = old(chain, mark, apply)
            if found.torn is None:
                return found
            return ReplayedJournal(JournalPosition(found.end.file_id, chain[-1].size), found.records, found.torn)

        return replay_chain

    return changed(replay, "_replay_chain", make)


def refused_tail() -> Plant:
    def make(old: Any) -> Any:
        def judge_tail(link: Any, end: int) -> Any:
            torn = old(link, end)
            if torn is not None:
                raise opening.StorageDamaged(torn)
            return torn

        return judge_tail

    return changed(replay, "_judge_tail", make)


def kept_unborn_file() -> Plant:
    return replaced(replay, "_is_unborn", lambda last, mark: False)


def unverified_body() -> Plant:
    class Anything:
        """A checksum that equals every other."""

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = None

    return replaced(replay, "crc32c", lambda body: Anything())


def damage_taken_as_tail() -> Plant:
    return replaced(replay, "_later_record", lambda link, end: None)


# ---- entry logs ----


def unsynced_entry_log() -> Plant:
    return replaced(EntryLogAppender, "sync", lambda self: None)


def unsynced_full_log() -> Plant:
    return skipping(EntryLogAppender, "_log_with_room", "sync_data")


def unsynced_log_name() -> Plant:
    return skipping(EntryLogs, "create", "sync_directory")


@contextlib.contextmanager
def colliding_log_ids() -> Iterator[None]:
    def forgetting(old: Any) -> Any:
        def init(self: EntryLogs, *arguments: Any, **named: Any) -> None:
            old(self, *arguments, **named)
            self._last_id = 0

        return init

    def truncating(old: Any) -> Any:
        def create(self: SimulatedFiles, path: str) -> Any:
            if path.endswith(".log") and self.exists(path):
                file = self.open(path)
                file.truncate(0)
                return file
            return old(self, path)

        return create

    with changed(EntryLogs, "__init__", forgetting), changed(SimulatedFiles, "create", truncating):
        yield


def unverified_ids() -> Plant:
    def checked_sizes(data: bytes, starts: np.ndarray, ledger_id: int, first_entry: int) -> np.ndarray:
        sizes = []
        for start in starts.tolist():
            size = 4 + int.from_bytes(data[start : start + 4], "big", signed=True)
            if size < 20 or start + size > len(data):
                break
            sizes.append(size)
        return np.array(sizes, np.int64)

    return replaced(log_reader, "_checked_sizes", checked_sizes)


# ---- index ----


@contextlib.contextmanager
def unsynced_index() -> Iterator[None]:
    with skipping(IndexWriter, "sync", "sync_data"), skipping(IndexWriter, "sync", "sync"):
        yield


def unsynced_index_name() -> Plant:
    return changed(IndexWriter, "_make_durable", lambda old: lambda self, ledger_ids, names: old(self, ledger_ids, ()))


def unsynced_index_folder() -> Plant:
    """Only the directory of the file itself is synced, not those above it."""

    def make(old: Any) -> Any:
        def make_durable(self: IndexWriter, ledger_ids: Any, names: Any) -> None:
            old(self, ledger_ids, {self._paths.directories(ledger_id)[-1] for ledger_id in ledger_ids} & set(names))

        return make_durable

    return changed(IndexWriter, "_make_durable", make)


def zeroed_gaps() -> Plant:
    """A page is made anew, not of what its file holds."""
    return replaced(IndexWriter, "_load", lambda self, ledger_id, number: np.empty(0, np.int64))


def cut_position() -> Plant:
    def make(old: Any) -> Any:
        def load(self: IndexWriter, ledger_id: int, number: int) -> np.ndarray:
            path = self._paths.path(ledger_id)
            if self._files.exists(path):
                with contextlib.closing(self._files.open(path)) as file:
                    if (file.size() - index_format.POSITIONS_AT) % index_format.POSITION_BYTES:
                        raise ValueError("buffer size must be a multiple of element size")
            return old(self, ledger_id, number)

        return load

    return changed(IndexWriter, "_load", make)


def dropped_dirty_page() -> Plant:
    return replaced(IndexWriter, "_write_pages", lambda self, ledger_id, file, pages: None)


def dropped_evicted_page() -> Plant:
    def make(old: Any) -> Any:
        def make_room(self: IndexWriter) -> None:
            with replaced(IndexWriter, "_write_pages", lambda self, ledger_id, file, pages: None):
                old(self)

        return make_room

    return changed(IndexWriter, "_make_room", make)


def unsynced_evicted_page() -> Plant:
    """What was evicted counts as durable: only files written by `sync` itself are synced."""

    def make(old: Any) -> Any:
        def make_room(self: IndexWriter) -> None:
            old(self)
            self._unsynced &= {ledger_id for (ledger_id, _), _ in self._pages.dirty()} | set(self._headers)

        return make_room

    return changed(IndexWriter, "_make_room", make)


def partly_written_page() -> Plant:
    """Of a page that changed twice only the later change is written."""

    def make(old: Any) -> Any:
        def set_positions(self: Page, slots: np.ndarray, positions: np.ndarray, slots_max: int) -> None:
            self.dirty_first = self.dirty_end = 0
            old(self, slots, positions, slots_max)

        return set_positions

    return changed(Page, "set", make)


def stale_page() -> Plant:
    """A page that a reader brought in hides what a flush changed."""

    def make(old: Any) -> Any:
        def find(self: IndexPages, ledger_id: int, first_page: int, end_page: int) -> Any:
            found = old(self, ledger_id, first_page, end_page)
            stale = self.__dict__.setdefault("stale", {})
            return {number: stale.setdefault((ledger_id, number), page.copy()) for number, page in found.items()}

        return find

    return changed(IndexPages, "find", make)


def unverified_header() -> Plant:
    """A checksum that is the same for everything, both when it is written and when it is checked."""
    return replaced(index_format, "crc32c", lambda head: 0)


# ---- write cache ----


def older_version_wins() -> Plant:
    def make(old: Any) -> Any:
        def held(self: LedgerWrites) -> tuple[np.ndarray, np.ndarray]:
            entries = self._entries[: self._count]
            newer = {entry: at for entry, at in self._late.items() if entry not in entries}
            late, self._late = self._late, newer
            try:
                return old(self)
            finally:
                self._late = late

        return held

    return changed(write_cache.LedgerWrites, "sorted", make)


def late_entries_dropped() -> Plant:
    return replaced(
        write_cache.LedgerWrites, "sorted", lambda self: (self._entries[: self._count], self._addresses[: self._count])
    )


# ---- answers ----


def negative_doubt() -> Plant:
    return replaced(reads, "failed", lambda error: reads.Status.ENOENTRY)


def _ignoring_errors(old: Any) -> Any:
    def method(*arguments: Any, **named: Any) -> None:
        with contextlib.suppress(OSError):
            old(*arguments, **named)

    return method


def _reopening(make: Callable[[Any], Any]) -> Plant:
    """Change `open_storage` where the twins find it."""
    from tests.crash import twins

    return changed(twins, "open_storage", make)


def noted_before_durable() -> Plant:
    """It is noted how long index files are before they are."""

    def make(old: Any) -> Any:
        def make_durable(self: IndexWriter, ledger_ids: Any, names: Any) -> None:
            self._known.note({ledger_id: self.file_size(ledger_id) for ledger_id in ledger_ids})
            old(self, ledger_ids, names)

        return make_durable

    return changed(IndexWriter, "_make_durable", make)


def lost_index_believed() -> Plant:
    return replaced(FileIndex, "lost", lambda self, ledger_id: "")
