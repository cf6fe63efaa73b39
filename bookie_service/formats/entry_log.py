"""The entry log: entries of many ledgers, in Apache's layout (version 1), all integers big endian.

`<hex log id>.log`, header of 1024 bytes:

    offset  size  field
    0       4     magic "BKLO"
    4       4     i32 version, 1
    8       8     i64 offset of the ledgers map, 0: none (the log is scanned when its contents matter)
    16      4     i32 number of ledgers in that map
    20      984   zero
    1004    4     "BKS1": the three fields below are ours (Apache leaves zeros here and does not read them)
    1008    8     i64 log id
    1016    4     zero
    1020    4     u32 CRC32C of bytes 0 .. 1019

From byte 1024 on, records `i32 length, entry`, which is byte for byte an item of a batch-read reply. A length of 0 or
less is padding. An entry begins with its ledger id and entry id, so each record says whose it is.

Log ids begin at 1 and are never used twice; `lastId` holds the highest as hex text and a newline. A position is
`log id << 32 | offset of the entry` (behind its length word).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

VERSION = 1
HEADER_BYTES = 1024
LENGTH_BYTES = 4
OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1
LOG_BYTES_MAX = 1 << 31
LAST_ID_NAME = "lastId"

_MAGIC = b"BKLO"
_OURS = b"BKS1"
_HEAD = struct.Struct(">4siqi")
_TAIL = struct.Struct(">4sqi")
_CRC = struct.Struct(">I")


def file_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def parse_file_name(name: str) -> int | None:
    """Return the log id, or None when `name` is not an entry log's."""
    stem, dot, suffix = name.partition(".")
    if not dot or suffix != "log":
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


def encode_header(log_id: int) -> bytes:
    """Return the 1024 bytes that begin a log without a ledgers map."""
    head = _HEAD.pack(_MAGIC, VERSION, 0, 0)
    head = head.ljust(HEADER_BYTES - _TAIL.size - _CRC.size, b"\0") + _TAIL.pack(_OURS, log_id, 0)
    return head + _CRC.pack(crc32c(head))


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What a log says of itself. `checksum_ok` None: Apache wrote it, whose headers carry no checksum."""

    version: int
    map_offset: int
    map_ledgers: int
    checksum_ok: bool | None


def decode_header(data: bytes, log_id: int) -> LogHeader | None:
    """Return the header of entry log `log_id`; None when the bytes are not one, or are that of another log."""
    if len(data) < HEADER_BYTES or data[:4] != _MAGIC:
        return None
    _, version, map_offset, map_ledgers = _HEAD.unpack_from(data)
    checked = data[: HEADER_BYTES - _CRC.size]
    if not any(checked[_HEAD.size :]):
        return LogHeader(version, map_offset, map_ledgers, None)
    ours, found_id, _ = _TAIL.unpack_from(data, len(checked) - _TAIL.size)
    is_whole = _CRC.unpack_from(data, len(checked))[0] == crc32c(checked)
    if is_whole and (ours != _OURS or found_id != log_id):
        return None
    return LogHeader(version, map_offset, map_ledgers, is_whole)


def encode_last_id(log_id: int) -> bytes:
    return f"{log_id:x}\n".encode()


def decode_last_id(data: bytes) -> int | None:
    """Return the id in a `lastId` file; None when it is garbage (existing logs then tell the highest)."""
    try:
        return int(data.decode("ascii").strip(), 16)
    except ValueError:
        return None
