"""Reads a journal file as it is on disk, including damage. The format is in `formats.journal`.

Torn and damaged records are distinguished as by `journal.replay`: bytes before an offset that is known to have been
synced were once whole. The synced offset is determined before a record is read, so a record that a running bookie is
still writing is never mistaken for damage.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence

import numpy as np
from crc32c import crc32c

from bkspark.errors import ProtocolError
from bkspark.wire.framing import LENGTH_BYTES, gather_i64, split_items
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bookie_service.admin.inspection.findings import VERIFIED, Damage, Fact, Finding, FoundEntries, Incomplete
from bookie_service.formats import index as index_format
from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    FileHeader,
    RecordHeader,
    RecordKind,
)
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.files import File, ReadOnlyFiles
from bookie_service.storage.journal.truncation import length_before

_SCAN_BYTES = 1 << 20


def file_ids(files: ReadOnlyFiles, directory: str) -> list[int]:
    """Return the ids of the journal files in a directory, ascending."""
    found = (journal_format.parse_file_name(name) for name in files.names(directory))
    return sorted(file_id for file_id in found if file_id is not None)


def read_journal(files: ReadOnlyFiles, path: str, mark: JournalPosition | None, start: int = 0) -> Iterator[Finding]:
    """Yield the contents of a journal file: its header, then each record followed by its contents.

    Args:
        mark: the mark of this journal, if known. Everything before it was once durable.
        start: offset of the record to begin with, after the file header.
    """
    directory, name = os.path.split(path)
    file_id = journal_format.parse_file_name(name)
    if file_id is None:
        yield Damage(path, 0, None, "the name is not that of a journal file, 16 hex digits and .txn")
        return
    # The successor is read first, because a file that has a successor no longer grows.
    successor = _successor(files, directory, file_id)
    file = files.open(path)
    try:
        yield from _JournalFile(file, file_id, successor, mark).read(start)
    finally:
        file.close()


def _successor(files: ReadOnlyFiles, directory: str, file_id: int) -> FileHeader | None:
    path = os.path.join(directory, journal_format.file_name(file_id + 1))
    if not files.exists(path):
        return None
    try:
        header = _file_header(files, path, file_id + 1)
    except ValueError:
        return None
    return header if header is not None and header.previous_id == file_id else None


def _file_header(files: ReadOnlyFiles, path: str, file_id: int) -> FileHeader | None:
    file = files.open(path)
    try:
        return journal_format.decode_file_header(file.read(FILE_HEADER_BYTES, 0), file_id)
    finally:
        file.close()


class _JournalFile:
    """One open file, and the offset up to which it must be whole."""

    def __init__(self, file: File, file_id: int, successor: FileHeader | None, mark: JournalPosition | None) -> None:
        self._file = file
        self._path = file.path
        self._file_id = file_id
        self._size = file.size()
        self._known_end = successor.previous_end if successor is not None else None
        """Where the next file says that this one ends; None: there is no next file. Constant."""
        self._durable = self._known_end or 0
        if mark is not None and mark.file_id == file_id:
            self._durable = max(self._durable, mark.offset)
        self._durable = max(self._durable, self._highest_synced())

    def read(self, start: int) -> Iterator[Finding]:
        yield from self._header()
        end = self._size if self._known_end is None else min(self._known_end, self._size)
        offset = max(start, FILE_HEADER_BYTES)
        while offset < end:
            record = self._record_at(offset)
            if record is None:
                following = yield from self._unreadable(offset)
            else:
                header, body = record
                following = yield from self._contents(offset, header, body)
            if following is None:
                break
            offset = following
        file_header = self._whole_header()
        length = None
        if self._known_end is None and file_header is not None:
            length = length_before(self._file, file_header, offset, self._durable)
        if length is not None:
            reason = f"the file ends at {self._size}, but it had {length} bytes once: it was truncated"
            yield Damage(self._path, self._size, length - self._size, reason)
        elif self._durable > self._size:
            reason = f"the file ends at {self._size}, but its records reached {self._durable} once: it was truncated"
            yield Damage(self._path, self._size, self._durable - self._size, reason)

    def _header(self) -> Iterator[Finding]:
        try:
            header = journal_format.decode_file_header(self._file.read(FILE_HEADER_BYTES, 0), self._file_id)
        except ValueError as error:
            yield Damage(self._path, 0, FILE_HEADER_BYTES, str(error))
            return
        if header is not None:
            values = {
                "journal": header.file_id,
                "previous": header.previous_id,
                "previous_end": header.previous_end,
                "bytes": self._size,
            }
            yield Fact("journal", self._path, 0, FILE_HEADER_BYTES, True, values)
        elif self._durable or self._next_header(0) is not None:
            yield Damage(self._path, 0, FILE_HEADER_BYTES, "the file header is unreadable")
        else:
            reason = "the file header was never made durable; the file holds no record"
            yield Incomplete(self._path, 0, self._size, reason)

    def _whole_header(self) -> FileHeader | None:
        try:
            return journal_format.decode_file_header(self._file.read(FILE_HEADER_BYTES, 0), self._file_id)
        except ValueError:
            return None  # the damage was reported already

    def _record_at(self, offset: int) -> tuple[RecordHeader, bytes] | None:
        """Return the whole record at `offset`; None: there is none."""
        header = self._record_header_at(offset)
        if header is None:
            return None
        body = self._file.read(header.body_bytes, offset + RECORD_HEADER_BYTES)
        is_whole = len(body) == header.body_bytes and crc32c(body) == header.body_crc
        return (header, body) if is_whole else None

    def _unreadable(self, offset: int) -> Generator[Finding, None, int | None]:
        """Report bytes at `offset` that are not a record; return where reading continues, or None: nowhere."""
        header = self._record_header_at(offset)
        after = offset + RECORD_HEADER_BYTES + header.body_bytes if header is not None else None
        following = after if after is not None and after <= self._size else self._next_header(offset + 1)
        length = following - offset if following is not None else None
        if offset < self._durable:
            what = "the record's header is unreadable" if header is None else "the record's body fails its checksum"
            yield Damage(self._path, offset, length, f"{what}; it was durable once")
            return following
        if self._holds_bytes(offset) and not self._is_stale(offset):
            reason = "no complete record follows: a write that is under way, or that a crash interrupted"
            yield Incomplete(self._path, offset, length or self._size - offset, reason)
        return None

    def _contents(self, offset: int, header: RecordHeader, body: bytes) -> Generator[Finding, None, int]:
        """Report a whole record; return where the next one begins."""
        length = RECORD_HEADER_BYTES + len(body)
        is_known = header.kind in list(RecordKind)
        name = RecordKind(header.kind).name.lower().replace("_", "-") if is_known else str(header.kind)
        values = {"record": name, "count": header.count, "synced": header.synced}
        yield Fact("record", self._path, offset, length, True, values)
        try:
            yield from _things(self._path, offset + RECORD_HEADER_BYTES, header, body)
        except (ValueError, ProtocolError) as error:
            yield Damage(self._path, offset, length, f"the record is complete, but: {error}")
        return offset + length

    def _record_header_at(self, offset: int) -> RecordHeader | None:
        data = self._file.read(RECORD_HEADER_BYTES, offset)
        return journal_format.decode_record_header(data, 0, file_id=self._file_id, offset=offset)

    def _holds_bytes(self, offset: int) -> bool:
        return any(self._file.read(RECORD_HEADER_BYTES, offset))

    def _is_stale(self, offset: int) -> bool:
        """Return whether a whole record header of another file is here, because this file is a reused one."""
        data = self._file.read(RECORD_HEADER_BYTES, offset)
        if len(data) < RECORD_HEADER_BYTES:
            return False
        old_id, old_offset = (int.from_bytes(data[at : at + 8], "big", signed=True) for at in (16, 24))
        return old_id != self._file_id and (
            journal_format.decode_record_header(data, 0, file_id=old_id, offset=old_offset) is not None
        )

    def _next_header(self, start: int) -> int | None:
        """Return where the next whole record header begins, at `start` or later; None: there is none."""
        overlap = RECORD_HEADER_BYTES - 1
        for position in range(start, self._size, _SCAN_BYTES):
            piece = self._file.read(_SCAN_BYTES + overlap, position)
            found = piece.find(RECORD_MAGIC)
            while found >= 0:
                at = position + found
                if journal_format.decode_record_header(piece, found, file_id=self._file_id, offset=at) is not None:
                    return at
                found = piece.find(RECORD_MAGIC, found + 1)
        return None

    def _highest_synced(self) -> int:
        """Return the offset up to which the file was durable, according to its own records."""
        synced = 0
        offset: int | None = FILE_HEADER_BYTES
        while offset is not None:
            header = self._record_header_at(offset)
            if header is None:
                offset = self._next_header(offset + 1)
                continue
            synced = max(synced, header.synced)
            offset += RECORD_HEADER_BYTES + header.body_bytes
        return synced


def _things(path: str, body_at: int, header: RecordHeader, body: bytes) -> Iterator[Finding]:
    """Yield the contents of a record's body, which begins at `body_at`. Raises ValueError or ProtocolError."""
    if header.kind == RecordKind.ENTRIES:
        yield _entries(path, body_at, header.count, body)
    elif header.kind == RecordKind.LEDGER_KEY:
        # The key gives access to the ledger, so it is not shown.
        ledger_ids = [ledger_id for ledger_id, _ in journal_format.decode_keys(body, header.count)]
        yield from _per_ledger("ledger-key", path, body_at, len(body), ledger_ids)
    elif header.kind == RecordKind.FENCE:
        yield from _per_ledger("fence", path, body_at, len(body), journal_format.decode_fences(body, header.count))
    elif header.kind == RecordKind.LAC:
        yield from _lacs(path, body_at, journal_format.decode_lacs(body, header.count))
    elif header.kind not in (RecordKind.PADDING, RecordKind.FOLLOWED):
        raise ValueError(f"records of kind {header.kind} are unknown to this version")


def _entries(path: str, body_at: int, count: int, body: bytes) -> FoundEntries:
    starts, ends = split_items(body, 0, len(body))
    if len(starts) != count or (count and int((ends - starts).min()) < ENTRY_BYTES_MIN):
        raise ValueError(f"it holds {len(starts)} entries and says {count}, or one is shorter than its ids")
    octets = np.frombuffer(body, np.uint8)
    ledger_ids, entry_ids = (gather_i64(octets, starts + at) if count else starts for at in (0, 8))
    states = np.full(count, VERIFIED, np.int8)
    return FoundEntries(
        path, starts - LENGTH_BYTES + body_at, ends - starts + LENGTH_BYTES, ledger_ids, entry_ids, states
    )


def _lacs(path: str, body_at: int, lacs: Sequence[tuple[int, bytes]]) -> Iterator[Fact]:
    for ledger_id, packet in lacs:
        length = journal_format.LAC_HEAD_BYTES + len(packet)
        values = {"ledger": ledger_id, "explicit_lac": index_format.decode_lac(packet)[1]}
        yield Fact("explicit-lac", path, body_at, length, True, values)
        body_at += length


def _per_ledger(kind: str, path: str, body_at: int, body_bytes: int, ledger_ids: Sequence[int]) -> Iterator[Fact]:
    each = body_bytes // max(1, len(ledger_ids))
    for i, ledger_id in enumerate(ledger_ids):
        yield Fact(kind, path, body_at + i * each, each, True, {"ledger": ledger_id})
