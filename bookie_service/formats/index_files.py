"""Which index files there must be, and how long each is at least. Version 1, all integers big endian.

One file `indexFiles` in the first ledger directory, so that an index file that is lost is told from one that never was:

    offset  size  field
    0       4     magic "BKSF"
    4       4     i32 version, 1
    8       4     u32 CRC32C of these

and behind it any number of records, each appended and synced by itself:

    0       4     u32 CRC32C of the rest of the record
    4       4     i32 count, at most 65,536
    8       16 n  count times i64 ledger id, i64 bytes that its index file has at least; 0: it may be gone

Of a ledger's rows the last one counts. A row is written after the index file is durable and before the marks move past
what is in it; a row of 0 is durable before the file is removed. So a crash leaves no row that is not true. It may leave
a torn record at the end, which says nothing; damage looks the same. Whoever finds either takes the rows before it and
asks the index files that there are for the others. The file is written anew under another name when most rows are old.
"""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

VERSION = 1
FILE_NAME = "indexFiles"
ROWS_PER_RECORD_MAX = 1 << 16

_MAGIC = b"BKSF"
_HEAD = struct.Struct(">4si")
_CRC = struct.Struct(">I")
_COUNT = struct.Struct(">i")
_HEAD_BYTES = _HEAD.size + _CRC.size


def _head(version: int) -> bytes:
    head = _HEAD.pack(_MAGIC, version)
    return head + _CRC.pack(crc32c(head))


HEAD = _head(VERSION)


def encode_rows(ledger_ids: np.ndarray, file_bytes: np.ndarray) -> bytes:
    """Return records that say that the file of ledger_ids[i] has at least file_bytes[i] bytes."""
    pairs = np.column_stack((ledger_ids, file_bytes)).astype(">i8")
    records = []
    for first in range(0, len(pairs), ROWS_PER_RECORD_MAX):
        some = pairs[first : first + ROWS_PER_RECORD_MAX]
        body = _COUNT.pack(len(some)) + some.tobytes()
        records += [_CRC.pack(crc32c(body)), body]
    return b"".join(records)


def decode(data: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (ledger ids, bytes of each, where the whole records end) of a file: every row, as written.

    The end is 0 when the head is damaged, and `len(data)` when everything is whole.

    Raises:
        ValueError: the file is of a version that this code does not read.
    """
    pieces = [np.empty((0, 2), np.int64)]
    at = 0
    if len(data) >= _HEAD_BYTES:
        version = _HEAD.unpack_from(data)[1]
        if data[:_HEAD_BYTES] == _head(version):
            if version != VERSION:
                raise ValueError(f"version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
            at = _HEAD_BYTES
    while at and at < len(data):
        rows = _record(data, at)
        if rows is None:
            break
        pieces.append(rows)
        at += _CRC.size + _COUNT.size + rows.size * 8
    pairs = np.concatenate(pieces)
    return pairs[:, 0], pairs[:, 1], at


def _record(data: bytes, at: int) -> np.ndarray | None:
    """Return the rows of the record at an offset, None when it is not whole."""
    body = at + _CRC.size
    if len(data) < body + _COUNT.size:
        return None
    count = _COUNT.unpack_from(data, body)[0]
    end = body + _COUNT.size + 16 * count
    if not 0 < count <= ROWS_PER_RECORD_MAX or end > len(data):
        return None
    if _CRC.unpack_from(data, at)[0] != crc32c(memoryview(data)[body:end]):
        return None
    return np.frombuffer(data, ">i8", 2 * count, body + _COUNT.size).astype(np.int64).reshape(count, 2)
