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
    1016    4     u32 CRC32C of all bytes from the ledgers map to the end of the file, 0 without a map
    1020    4     u32 CRC32C of bytes 0 .. 1019

From byte 1024 on there are records `i32 length, entry`, which are byte for byte items of a batch-read response. A
length of 0 or less is padding. An entry begins with its ledger id and entry id, so each record says which entry it
holds.

The ledgers map follows the last entry of a complete log: records of at most 10,000 ledgers each,

    0       4     i32 length of what follows
    4       8     i64 -1
    12      8     i64 -2
    20      4     i32 count
    24      16 n  count times i64 ledger id, i64 bytes of its records here, length words included

The map is written and synced before the header names it, so a crash in between leaves a log without a map. The map does
not say which of these bytes an index still points to.

Log ids begin at 1 and are never used twice. `lastId` has the highest id as hex text and a newline. It is not synced by
itself: after a crash it may be torn or old, and the existing logs determine the highest id. A position is `log id << 32
| offset of the entry` (after its length word).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from bkspark.wire.framing import LENGTH_BYTES

VERSION = 1
HEADER_BYTES = 1024
OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1
LOG_BYTES_MAX = 1 << 31
LOG_ID_MAX = (1 << 31) - 1
"""The highest log id, because a position is an i64."""
LAST_ID_NAME = "lastId"
MAP_LEDGERS_PER_RECORD = 10_000

_HEX = re.compile("[0-9a-fA-F]+")
_NAME = re.compile(r"(0|[1-9a-f][0-9a-f]*)\.log")
"""Only what `file_name` writes, and no other text that int() accepts, because two names must not mean one log."""
_MAGIC = b"BKLO"
_OURS = b"BKS1"
_HEAD = struct.Struct(">4siqi")
_TAIL = struct.Struct(">4sqI")
_CRC = struct.Struct(">I")
_MAP_FRONT = struct.Struct(">iqqi")
_MAP_LEDGER, _MAP_ENTRY = -1, -2


def file_name(log_id: int) -> str:
    return f"{log_id:x}.log"


def parse_file_name(name: str) -> int | None:
    """Return the log id; None: `name` is not that of an entry log."""
    match = _NAME.fullmatch(name)
    log_id = int(match[1], 16) if match else 0
    return log_id if 0 < log_id <= LOG_ID_MAX else None


def encode_header(log_id: int, map_offset: int = 0, map_ledgers: int = 0, map_crc: int = 0) -> bytes:
    """Return the 1024 bytes that begin a log. The other arguments are 0 for a log without a ledgers map."""
    head = _HEAD.pack(_MAGIC, VERSION, map_offset, map_ledgers)
    head = head.ljust(HEADER_BYTES - _TAIL.size - _CRC.size, b"\0") + _TAIL.pack(_OURS, log_id, map_crc)
    return head + _CRC.pack(crc32c(head))


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The contents of a log's header. `checksum_ok` None: Apache wrote it, without a checksum."""

    version: int
    """The version of the file's format."""
    map_offset: int
    """Where the ledgers map begins; 0: there is none."""
    map_ledgers: int
    """How many ledgers the map has, and (`map_crc`) its CRC32C."""
    checksum_ok: bool | None
    map_crc: int = 0


def decode_header(data: bytes, log_id: int) -> LogHeader | None:
    """Return the header of entry log `log_id`; None: the bytes are not a header, or are that of another log."""
    if len(data) < HEADER_BYTES or data[:4] != _MAGIC:
        return None
    _, version, map_offset, map_ledgers = _HEAD.unpack_from(data)
    checked = data[: HEADER_BYTES - _CRC.size]
    if not any(checked[_HEAD.size :]):
        return LogHeader(version, map_offset, map_ledgers, None)
    ours, found_id, map_crc = _TAIL.unpack_from(data, len(checked) - _TAIL.size)
    is_whole = _CRC.unpack_from(data, len(checked))[0] == crc32c(checked)
    if is_whole and (ours != _OURS or found_id != log_id):
        return None
    return LogHeader(version, map_offset, map_ledgers, is_whole, map_crc)


def encode_map(ledger_ids: np.ndarray, ledger_bytes: np.ndarray) -> bytes:
    """Return the ledgers map: ledger_ids[i] has ledger_bytes[i] bytes of records."""
    pairs = np.column_stack((ledger_ids, ledger_bytes)).astype(">i8")
    records = []
    for first in range(0, len(pairs), MAP_LEDGERS_PER_RECORD):
        some = pairs[first : first + MAP_LEDGERS_PER_RECORD]
        length = _MAP_FRONT.size - LENGTH_BYTES + some.nbytes
        records.append(_MAP_FRONT.pack(length, _MAP_LEDGER, _MAP_ENTRY, len(some)) + some.tobytes())
    return b"".join(records)


def map_checksum(table: bytes) -> int:
    """Return the checksum of the ledgers map, for the header."""
    return crc32c(table)


def decode_map(data: bytes, header: LogHeader) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (ledger ids, bytes of each) of the map in `data`, which is a log from `map_offset` on.

    None: the header or the map fails its checksum, or their numbers of ledgers differ.
    """
    if not header.checksum_ok or header.map_crc != map_checksum(data):
        return None
    pieces = [np.empty((0, 2), np.int64)]
    at = 0
    while at < len(data):
        if len(data) - at < _MAP_FRONT.size:
            return None
        length, ledger, entry, count = _MAP_FRONT.unpack_from(data, at)
        first, at = at + _MAP_FRONT.size, at + LENGTH_BYTES + length
        if (ledger, entry) != (_MAP_LEDGER, _MAP_ENTRY) or count < 0 or first + 16 * count != at or at > len(data):
            return None
        pieces.append(np.frombuffer(data, ">i8", 2 * count, first).astype(np.int64).reshape(count, 2))
    pairs = np.concatenate(pieces)
    return (pairs[:, 0], pairs[:, 1]) if len(pairs) == header.map_ledgers else None


def encode_last_id(log_id: int) -> bytes:
    return f"{log_id:x}\n".encode()


def decode_last_id(data: bytes) -> int | None:
    """Return the id in a `lastId` file; None: it is garbage, and the existing logs determine the highest id."""
    text = data.decode("ascii", "replace").strip()
    log_id = int(text, 16) if _HEX.fullmatch(text) else LOG_ID_MAX
    # The highest possible id is as unlikely to be true as other garbage, and no log could follow it.
    return log_id if log_id < LOG_ID_MAX else None
