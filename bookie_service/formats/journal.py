"""The journal file: what makes an acknowledged add survive a crash. Version 1, all integers big endian.

A journal is a chain of files `<16 hex digits of the file id>.txn`; ids ascend by one. File header, 512 bytes:

    offset  size  field
    0       4     magic "BKSJ"
    4       4     i32 version, 1
    8       8     i64 id of this file
    16      8     i64 id of the file before it in the chain, 0: this is the first file ever
    24      8     i64 where the records of that file end, 0 for the first file
    32      4     u32 CRC32C of bytes 0 .. 31
    36      8     i64 allocated: the length that this file had before its first record
    44      4     u32 CRC32C of bytes 36 .. 43; both are 0 if the length is unknown
    48      464   zero

A file names the exact end of the one before it. So a file that has a successor is known to be complete, and anything
unreadable in it is damage. Only the last file may end in a torn write.

From byte 512 on, records without gaps; each is a header of 48 bytes and its body:

    offset  size  field
    0       4     magic "BKJR"
    4       4     i32 kind of record (below)
    8       4     i32 bytes of body
    12      4     i32 count of things in the body
    16      8     i64 id of this file
    24      8     i64 offset of this record in this file
    32      8     i64 synced: all bytes of this file below it were durable when this record was written
    40      4     u32 CRC32C of the body
    44      4     u32 CRC32C of bytes 0 .. 43

    kind          body
    1 ENTRIES     count x { i32 length, entry }: byte for byte what an entry log holds
    2 LEDGER_KEY  count x { i64 ledger id, 20 bytes master key }
    3 FENCE       count x { i64 ledger id }
    4 LAC         count x { i64 ledger id, i32 length, explicit LAC packet }
    5 PADDING     zeros, count: the length of this file when it was written, in units of 512 bytes; 0: unknown
    6 FOLLOWED    nothing, count 0: the file with the next id is there, and its header is durable

Each record has its file id and offset, so stale bytes of a file that had another name, or at another offset, are not
mistaken for records. `synced` distinguishes torn from damaged records. Records of one group are written without a sync
between them, so after a crash a later record of the group may be whole while an earlier one is not; neither was
acknowledged. But a record with "synced up to S" proves that everything below S was whole once: an unreadable record
below S is damage, and acknowledged data may be lost.

PADDING fills a group up to a multiple of `journalAlignmentSize`, so that no later write touches a sector with synced
records: a sector torn by a power failure destroys none of them. A PADDING record alone is written and synced when
nothing was added for a moment: its `synced` says that the group before it is durable. From then on, damage anywhere in
the file is distinguished from a torn write. Before that, damage in the very last group is not.

A file is longer than its records, because space is allocated in advance, and the sync of a group also makes the length
durable. So a file that is shorter than `allocated`, or than a PADDING says that was durable, was truncated later, and
records may be missing. A file that is closed in order is cut to its end. Its last record is then a PADDING of unknown
length, which is durable before.

FOLLOWED is written after the last record of a file, and synced, when the next file with its header is durable and has
no record yet. So if a reader finds it and the next file does not begin with a whole header, acknowledged records are
missing: no other record would name the newest file of a chain. It costs one sync per file, and none per group.

A ledger's LEDGER_KEY precedes its first entry, its fence and its explicit LAC in the chain. `formats.index` describes
the LAC packet.

Example, the header of file 2 that follows file 1, which ends at byte 1000:

    42 4b 53 4a  00 00 00 01  00 00 00 00 00 00 00 02  00 00 00 00 00 00 00 01  00 00 00 00 00 00 03 e8  crc
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from bkspark.wire.layout import MASTER_KEY_BYTES

VERSION = 1
FILE_HEADER_BYTES = 512
RECORD_HEADER_BYTES = 48
RECORD_MAGIC = b"BKJR"
LAC_HEAD_BYTES = 12
LENGTH_UNIT_BYTES = 512
"""PADDING gives the length of its file in this unit."""
BODY_BYTES_MAX = (1 << 31) - 1

_NAME = re.compile(r"([0-9a-f]{16})\.txn")
_NAME_OF_APACHES = re.compile(r"[0-9a-f]{1,15}\.txn")
_FILE_MAGIC = b"BKSJ"
_FILE_HEADER = struct.Struct(">4siqqq")
_RECORD_HEADER = struct.Struct(">4siiiqqqI")
_CRC = struct.Struct(">I")
_LENGTH = struct.Struct(">q")
_LENGTH_AT = 36
_LAC = struct.Struct(">qi")
_KEYS = np.dtype([("ledger", ">i8"), ("key", f"V{MASTER_KEY_BYTES}")])


class RecordKind(enum.IntEnum):
    ENTRIES = 1
    LEDGER_KEY = 2
    FENCE = 3
    LAC = 4
    PADDING = 5
    FOLLOWED = 6


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The id of a file, and the exact end of the file before it.

    allocated: the length of the file before its first record; 0: unknown.
    """

    file_id: int
    previous_id: int
    """The file before it in the chain, which ends at byte `previous_end`; 0: it is the first file."""
    previous_end: int
    allocated: int = 0


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """A decoded record header of 48 bytes. The body is not checked yet."""

    kind: int
    """A `RecordKind`, or a number that this version does not know."""
    body_bytes: int
    count: int
    """How many things the body has."""
    synced: int
    """Bytes of this file that were durable when the record was written."""
    body_crc: int
    """CRC32C of the body."""


def file_name(file_id: int) -> str:
    return f"{file_id:016x}.txn"


def parse_file_name(name: str) -> int | None:
    """Return the file id; None: `name` is not that of a journal file."""
    match = _NAME.fullmatch(name)
    file_id = int(match[1], 16) if match else 0
    return file_id if 0 < file_id < 1 << 63 else None


def is_apaches(name: str) -> bool:
    """Return whether `name` is that of a journal file of Apache's, whose digits are not padded with zeros."""
    return _NAME_OF_APACHES.fullmatch(name) is not None


def encode_file_header(header: FileHeader) -> bytes:
    """Return the 512 bytes that begin a file."""
    head = _FILE_HEADER.pack(_FILE_MAGIC, VERSION, header.file_id, header.previous_id, header.previous_end)
    head += _CRC.pack(crc32c(head))
    if header.allocated:
        length = _LENGTH.pack(header.allocated)
        head += length + _CRC.pack(crc32c(length))
    return head.ljust(FILE_HEADER_BYTES, b"\0")


def decode_file_header(data: bytes, file_id: int) -> FileHeader | None:
    """Return the header of file `file_id`; None: there is none (never written, torn, or of another file).

    Raises:
        ValueError: the header is whole but of a version that this code does not read.
    """
    if len(data) < _FILE_HEADER.size + _CRC.size:
        return None
    head = data[: _FILE_HEADER.size]
    magic, version, found_id, previous_id, previous_end = _FILE_HEADER.unpack(head)
    if magic != _FILE_MAGIC or _CRC.unpack_from(data, _FILE_HEADER.size)[0] != crc32c(head) or found_id != file_id:
        return None
    if version != VERSION:
        raise ValueError(f"journal version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
    return FileHeader(found_id, previous_id, previous_end, _allocated(data[_LENGTH_AT : _LENGTH_AT + 12]))


def _allocated(data: bytes) -> int:
    """Return the allocated length; 0: an earlier version wrote the file, or the length is damaged."""
    if len(data) < 12 or _CRC.unpack_from(data, 8)[0] != crc32c(data[:8]):
        return 0
    return max(0, _LENGTH.unpack_from(data)[0])


def encode_record_header(
    kind: RecordKind, body_bytes: int, count: int, *, file_id: int, offset: int, synced: int, body_crc: int
) -> bytes:
    """Return the 48 bytes that precede a body."""
    head = _RECORD_HEADER.pack(RECORD_MAGIC, kind, body_bytes, count, file_id, offset, synced, body_crc)
    return head + _CRC.pack(crc32c(head))


def decode_record_header(data: bytes | memoryview, at: int, *, file_id: int, offset: int) -> RecordHeader | None:
    """Return the whole header at data[at:], which is at `offset` of file `file_id`; None: there is none."""
    if len(data) - at < RECORD_HEADER_BYTES or bytes(data[at : at + 4]) != RECORD_MAGIC:
        return None
    head = bytes(data[at : at + _RECORD_HEADER.size])
    if _CRC.unpack_from(data, at + _RECORD_HEADER.size)[0] != crc32c(head):
        return None
    _, kind, body_bytes, count, found_id, found_offset, synced, body_crc = _RECORD_HEADER.unpack(head)
    if found_id != file_id or found_offset != offset or body_bytes < 0 or count < 0:
        return None
    return RecordHeader(kind, body_bytes, count, synced, body_crc)


def padding_body_bytes(offset: int, alignment: int) -> int:
    """Return how many bytes of body let a PADDING record at `offset` end at a multiple of `alignment`."""
    return -(offset + RECORD_HEADER_BYTES) % alignment


def encode_keys(keys: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the body of a LEDGER_KEY record."""
    return b"".join(ledger_id.to_bytes(8, "big") + key for ledger_id, key in keys)


def decode_keys(body: bytes, count: int) -> list[tuple[int, bytes]]:
    """Return (ledger id, key) of a LEDGER_KEY body.

    Raises:
        ValueError: the body does not have `count` keys, or a ledger id is invalid.
    """
    if len(body) != count * _KEYS.itemsize:
        raise ValueError(f"a key record of {len(body)} bytes does not hold {count} keys")
    rows = np.frombuffer(body, _KEYS)
    _check_ledger_ids(rows["ledger"])
    return list(zip(rows["ledger"].tolist(), map(bytes, rows["key"])))


def encode_fences(ledger_ids: Sequence[int]) -> bytes:
    """Return the body of a FENCE record."""
    return np.array(ledger_ids, ">i8").tobytes()


def decode_fences(body: bytes, count: int) -> list[int]:
    """Return the ledger ids of a FENCE body.

    Raises:
        ValueError: the body does not have `count` ids, or one is invalid.
    """
    if len(body) != count * 8:
        raise ValueError(f"a fence record of {len(body)} bytes does not hold {count} ledger ids")
    ledger_ids = np.frombuffer(body, ">i8")
    _check_ledger_ids(ledger_ids)
    return ledger_ids.tolist()


def _check_ledger_ids(ledger_ids: np.ndarray) -> None:
    if len(ledger_ids) and int(ledger_ids.min()) < 0:
        raise ValueError(f"a record names ledger {int(ledger_ids.min())}; ledger ids are at least 0")


def encode_lacs(lacs: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the body of a LAC record of (ledger id, packet)."""
    return b"".join(_LAC.pack(ledger_id, len(packet)) + packet for ledger_id, packet in lacs)


def decode_lacs(body: bytes, count: int) -> list[tuple[int, bytes]]:
    """Return (ledger id, packet) of a LAC body.

    Raises:
        ValueError: the body does not have `count` packets.
    """
    lacs = []
    at = 0
    while at + _LAC.size <= len(body):
        ledger_id, length = _LAC.unpack_from(body, at)
        at += _LAC.size + max(length, 0)
        lacs.append((ledger_id, body[at - max(length, 0) : at]))
    if len(lacs) != count or at != len(body):
        raise ValueError(f"a LAC record of {len(body)} bytes does not hold {count} explicit LACs")
    return lacs
