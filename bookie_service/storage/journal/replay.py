"""Reads the journal after a stop or a crash. Only this module decides what is torn and what is damaged.

The argument: records are written in groups, and a group is acknowledged only after its sync. A crash leaves every
synced group whole, and any part of the last, unsynced one. Let P be the first unreadable record of the last file. P is
torn if it belongs to the unsynced group: then nothing acknowledged is at P or after it, and the file is cut there. P is
damaged if it was once synced. Any whole record after P whose `synced` exceeds P proves that: a record of a later group,
or the PADDING that is written when nothing follows for a moment. If a file has a successor, the successor says where
the file's records end, and everything before that offset was synced. With journalSyncData=false a record that is cut
may nevertheless have been acknowledged: that is the price of this setting.

A crash never makes a file shorter than it durably was, and the records say how long that is (`formats.journal`). So a
last file that is shorter was truncated, and what it had after its end may have been acknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from crc32c import crc32c

from bkspark.errors import StorageDamaged
from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import File, LocalFiles
from bookie_service.storage.journal.truncation import length_before

Apply = Callable[[int, int, bytes], None]
"""Called with (kind, count, body) of each record, in order."""

SCAN_BYTES = 1 << 20
_REMEDY = (
    "acknowledged entries may be lost, so this bookie does not start; restore the file from a backup, or start a "
    "bookie with a new id and empty directories and let autorecovery copy the ledgers"
)


@dataclass(frozen=True, slots=True)
class ReplayedJournal:
    """The result of reading a chain of files: where its last whole record ends, and how much was read."""

    end: JournalPosition
    """Where the last whole record ends."""
    records: int
    """How many records there were, of all kinds."""
    torn: str | None
    """A line about a torn tail that was cut; None: nothing was cut."""


def replay_journal(files: LocalFiles, directory: str, mark: JournalPosition | None, apply: Apply) -> ReplayedJournal:
    """Apply all records in order, from `mark` on; None: from the first existing file on.

    Raises:
        StorageDamaged: a file that must exist is missing, or bytes that were once durable are unreadable.
    """
    ids = sorted(
        file_id for name in files.names(directory) if (file_id := journal_format.parse_file_name(name)) is not None
    )
    if mark is not None:
        ids = [file_id for file_id in ids if file_id >= mark.file_id]
        if not ids or ids[0] != mark.file_id:
            raise StorageDamaged(
                f"{directory}: journal file {journal_format.file_name(mark.file_id)}, where replay begins, is missing; "
                + _REMEDY
            )
    chain = [_Link(files, directory, file_id) for file_id in ids]
    try:
        _make_durable(files, directory, chain)
        is_last_unborn = bool(chain) and _is_unborn(chain[-1], mark)
        born = chain[:-1] if is_last_unborn else chain
        _check_chain(born)
        replayed = _replay_chain(born, mark, apply)
    finally:
        for link in chain:
            link.file.close()
    if is_last_unborn:
        files.remove(chain[-1].file.path)
        files.sync_directory(directory)
    return replayed


class _Link:
    """One file of the chain."""

    def __init__(self, files: LocalFiles, directory: str, file_id: int) -> None:
        self.file_id = file_id
        self.file: File = files.open(os.path.join(directory, journal_format.file_name(file_id)))
        self.size = self.file.size()
        """Bytes of the file, with space that was allocated in advance."""
        try:
            self.header = journal_format.decode_file_header(self.file.read(FILE_HEADER_BYTES, 0), file_id)
        except ValueError as error:
            self.file.close()
            raise StorageDamaged(f"{self.file.path}: {error}") from error


def _make_durable(files: LocalFiles, directory: str, chain: list[_Link]) -> None:
    """Make the records durable before anything depends on them. Otherwise this could happen:

    1. A process is killed between a write and its sync. The record is in the page cache, and replay finds it whole.
    2. The header of the next file says that the record is there.
    3. The power fails, and the record is gone.
    """
    for link in chain:
        link.file.sync_data()
    files.sync_directory(directory)


def _is_unborn(last: _Link, mark: JournalPosition | None) -> bool:
    """Return whether the last file has no header, as before its first sync.

    No record was written into it before that sync, unless the file before it says so.
    """
    is_marked = mark is not None and mark.file_id == last.file_id
    return last.header is None and not is_marked and _later_record(last, 0) is None


def _check_chain(chain: list[_Link]) -> None:
    for before, link in zip([None, *chain], chain):
        if link.header is None:
            raise StorageDamaged(f"{link.file.path} offset 0: the file header is unreadable; " + _REMEDY)
        if before is not None and link.header.previous_id != before.file_id:
            missing = journal_format.file_name(link.header.previous_id)
            raise StorageDamaged(f"{link.file.path}: the file before it, {missing}, is missing; " + _REMEDY)


def _replay_chain(chain: list[_Link], mark: JournalPosition | None, apply: Apply) -> ReplayedJournal:
    records = 0
    end = JournalPosition(0, 0)
    torn = None
    for position, link in enumerate(chain):
        start = FILE_HEADER_BYTES
        if mark is not None and link.file_id == mark.file_id:
            start = mark.offset
            if link.size < start:
                raise StorageDamaged(
                    f"{link.file.path} offset {link.size}: the file ends there, but replay begins at {start}, and all "
                    "before that was durable once; " + _REMEDY
                )
        successor = chain[position + 1].header if position + 1 < len(chain) else None
        known_end = successor.previous_end if successor else None
        offset, count = _replay_file(link, start, known_end, apply)
        records += count
        if known_end is None:
            _check_last(link, offset)
            is_marked = mark is not None and link.file_id == mark.file_id
            is_begun = is_marked or (position > 0 and _is_followed(chain[position - 1], end.offset))
            _check_length(link, offset, start if is_begun else 0)
            torn = _judge_tail(link, offset)
        elif offset != known_end:
            raise StorageDamaged(f"{link.file.path} offset {offset}: the record there is unreadable; " + _REMEDY)
        end = JournalPosition(link.file_id, offset)
    return ReplayedJournal(end, records, torn)


def _replay_file(link: _Link, start: int, known_end: int | None, apply: Apply) -> tuple[int, int]:
    """Apply whole records from `start` on; return (the offset of the first unreadable one, how many were applied)."""
    offset = start
    count = 0
    while known_end is None or offset < known_end:
        header = _header_at(link, offset)
        if header is None or header.kind == RecordKind.FOLLOWED:
            break
        body = link.file.read(header.body_bytes, offset + RECORD_HEADER_BYTES)
        if len(body) != header.body_bytes or crc32c(body) != header.body_crc:
            break
        try:
            apply(header.kind, header.count, body)
        except ValueError as error:
            raise StorageDamaged(f"{link.file.path} offset {offset}: {error}; " + _REMEDY) from error
        offset += RECORD_HEADER_BYTES + header.body_bytes
        count += 1
    return offset, count


def _header_at(link: _Link, offset: int) -> RecordHeader | None:
    data = link.file.read(RECORD_HEADER_BYTES, offset)
    return journal_format.decode_record_header(data, 0, file_id=link.file_id, offset=offset)


def _is_followed(link: _Link, end: int) -> bool:
    """Return whether a file says that another file follows it, whose header and length are durable then."""
    header = _header_at(link, end)
    return header is not None and header.kind == RecordKind.FOLLOWED


def _check_last(link: _Link, end: int) -> None:
    """Raise StorageDamaged if the last file says that another file follows it."""
    if _is_followed(link, end):
        missing = journal_format.file_name(link.file_id + 1)
        raise StorageDamaged(
            f"{link.file.path} offset {end}: it says that {missing} follows, which is missing, or whose header is; "
            + _REMEDY
        )


def _check_length(link: _Link, end: int, durable_end: int) -> None:
    """Raise StorageDamaged if the last file was truncated. The arguments are those of `length_before`."""
    assert link.header is not None, "_check_chain says so"
    length = length_before(link.file, link.header, end, durable_end)
    if length is not None:
        raise StorageDamaged(
            f"{link.file.path} offset {link.size}: the file ends there, but it had {length} bytes once, so it was "
            "truncated; " + _REMEDY
        )


def _judge_tail(link: _Link, end: int) -> str | None:
    """Return a line about a torn tail of the last file; None: the file simply ends there.

    Raises:
        StorageDamaged: the bytes at `end` were once durable.
    """
    later = _later_record(link, end)
    if later is not None:
        raise StorageDamaged(
            f"{link.file.path} offset {end}: the record there is unreadable, but offset {later} holds a record written "
            "after it was synced; " + _REMEDY
        )
    if link.file.read(4, end) == journal_format.RECORD_MAGIC:
        return f"{link.file.path} offset {end}: cut a record whose write a crash interrupted; it was never synced"
    return None


def _later_record(link: _Link, end: int) -> int | None:
    """Return the offset of a whole record header after `end` which says that `end` was synced before; None: none."""
    position = end + 1
    overlap = RECORD_HEADER_BYTES - 1
    while position < link.size:
        piece = link.file.read(SCAN_BYTES + overlap, position)
        found = piece.find(journal_format.RECORD_MAGIC)
        while found >= 0:
            header = journal_format.decode_record_header(piece, found, file_id=link.file_id, offset=position + found)
            if header is not None and header.synced > end:
                return position + found
            found = piece.find(journal_format.RECORD_MAGIC, found + 1)
        position += SCAN_BYTES
    return None
