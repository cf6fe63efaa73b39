"""Ledgers that were fenced and are dropped: a late writer is still refused. Version 1, all integers big endian.

One file `fencedDeleted` in the first ledger directory:

    offset  size  field
    0       4     magic "BKST"
    4       4     i32 version, 1
    8       4     i32 count
    12      16 n  count times i64 ledger id, i64 seconds since the epoch when it was dropped
    end     4     u32 CRC32C of everything before

Written whole under another name, synced, renamed, and the directory synced.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
from crc32c import crc32c

VERSION = 1
FILE_NAME = "fencedDeleted"

_MAGIC = b"BKST"
_HEAD = struct.Struct(">4sii")
HEAD_BYTES = _HEAD.size
ROW_BYTES = 16
_CRC = struct.Struct(">I")


def encode(dropped_at_s: Mapping[int, int]) -> bytes:
    """Return the file that says when each ledger was dropped."""
    pairs = np.array(sorted(dropped_at_s.items()), ">i8").reshape(-1, 2)
    head = _HEAD.pack(_MAGIC, VERSION, len(pairs)) + pairs.tobytes()
    return head + _CRC.pack(crc32c(head))


def decode(data: bytes) -> dict[int, int] | None:
    """Return when each ledger was dropped; None when the bytes fail their checksum.

    Raises:
        ValueError: the file is whole but of a version that this code does not read.
    """
    end = len(data) - _CRC.size
    if end < _HEAD.size or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        return None
    magic, version, count = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version != VERSION:
        raise ValueError(f"version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
    if end != HEAD_BYTES + ROW_BYTES * count:
        return None
    pairs = np.frombuffer(data, ">i8", 2 * count, _HEAD.size).reshape(count, 2)
    return dict(zip(pairs[:, 0].tolist(), pairs[:, 1].tolist()))
