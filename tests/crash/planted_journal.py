"""Defects of the journal and of replay; see `planted`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.index.index_writer import IndexWriter
from bookie_service.storage.journal import replay
from bookie_service.storage.journal.checkpoint import Marks
from bookie_service.storage.journal.journal import Journal, Record
from bookie_service.storage.journal.replay import ReplayedJournal
from bookie_service.storage.ledgers import opening
from tests.crash.planting import ignoring_errors, skipping
from tests.planting import Plant, changed, replaced


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

    return replaced(opening.Replay, "_learn_lac", apply)


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
    return changed(Journal, "append", ignoring_errors)


def removes_marked_file() -> Plant:
    def make(old: Any) -> Any:
        return lambda self, mark: old(self, JournalPosition(mark.file_id + 1, 0))

    return changed(Journal, "forget_before", make)


def synced_too_new() -> Plant:
    def make(old: Any) -> Any:
        return lambda kind, size, count, **named: old(kind, size, count, **{**named, "synced": named["offset"]})

    return changed(journal_format, "encode_record_header", make)


def unsettled() -> Plant:
    return replaced(Journal, "write_durability_marker", lambda self: None)


def stale_records() -> Plant:
    def make(old: Any) -> Any:
        def decode(data: Any, at: int, *, file_id: int, offset: int) -> Any:
            head = bytes(data[at : at + 40])
            if len(head) == 40:
                file_id, offset = (int.from_bytes(head[first : first + 8], "big") for first in (16, 24))
            return old(data, at, file_id=file_id, offset=offset)

        return decode

    return changed(journal_format, "decode_record_header", make)


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

    with changed(opening.Replay, "_insert", noting), changed(opening.Replay, "flush", unless_last):
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

    return changed(opening.Replay, "apply", make)


def replay_drops_lacs() -> Plant:
    def make(old: Any) -> Any:
        return lambda self, kind, count, body: None if kind == RecordKind.LAC else old(self, kind, count, body)

    return changed(opening.Replay, "apply", make)


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


def _reopening(make: Callable[[Any], Any]) -> Plant:
    """Change `open_storage` where the twins find it."""
    from tests.crash import twins

    return changed(twins, "open_storage", make)
