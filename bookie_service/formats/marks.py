"""The last log mark: where replay begins. Version 1, all integers big endian.

There is one file per journal in every ledger directory that can be written, but at least in one: `lastMark` for journal
0, `lastMark.<i>` for the others.

    offset  size  field
    0       4     magic "BKSM"
    4       4     i32 version, 1
    8       8     i64 id of a journal file; 0: no journal file was ever written (first boot)
    16      8     i64 offset in it: every record before is in entry logs and index, durably
    24      4     u32 CRC32C of bytes 0 .. 23

A mark is written whole under another name, synced and renamed, and the directory is synced. So a mark that fails its
checksum was damaged later, and is never torn. The copies of one journal's mark may differ, after a crash between two of
them or if a directory was full. The highest counts, because each was written only after everything before it was
durable. The journal files that a lower copy names may be gone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

VERSION = 1
MARK_BYTES = 28
APACHE_MARK_BYTES = 16

_MAGIC = b"BKSM"
_MARK = struct.Struct(">4siqq")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True, order=True)
class JournalPosition:
    """A position in one journal's chain of files. Positions have the order of the records."""

    file_id: int
    offset: int
    """Every record before it in this file, and in earlier files, is meant."""


NO_JOURNAL = JournalPosition(0, 0)
"""The first mark of a new bookie."""


def file_name(journal_index: int) -> str:
    return "lastMark" if journal_index == 0 else f"lastMark.{journal_index}"


def encode_mark(position: JournalPosition) -> bytes:
    head = _MARK.pack(_MAGIC, VERSION, position.file_id, position.offset)
    return head + _CRC.pack(crc32c(head))


def is_apaches(data: bytes) -> bool:
    """Return whether a mark has Apache's format: two i64, the id of a journal file and an offset in it."""
    return len(data) == APACHE_MARK_BYTES and not data.startswith(_MAGIC)


def decode_mark(data: bytes) -> JournalPosition | None:
    """Return the mark; None: the bytes fail their checksum.

    Raises:
        ValueError: the mark is whole but of a version that this code does not read.
    """
    if len(data) != MARK_BYTES or data[:4] != _MAGIC or _CRC.unpack_from(data, _MARK.size)[0] != crc32c(data[:-4]):
        return None
    _, version, file_id, offset = _MARK.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"mark version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
    return JournalPosition(file_id, offset)
