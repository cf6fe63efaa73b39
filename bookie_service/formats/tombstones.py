"""Ledgers that were fenced and then dropped, so that a late writer is still refused. Version 2, all integers big
endian.

There is one file `fencedDeleted` in a ledger directory, mostly the first one (`io.placed_file`):

    offset  size  field
    0       4     magic "BKST"
    4       4     i32 version, 2
    8       4     i32 count
    12      8     i64 generation: if there are several such files, the highest counts
    20      16 n  count times i64 ledger id, i64 seconds since the epoch when it was dropped
    end     4     u32 CRC32C of everything before

Version 1 has no generation, which counts as 0. The file is written whole under another name, synced and renamed, and
the directory is synced.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from crc32c import crc32c

VERSION = 2
FILE_NAME = "fencedDeleted"

_MAGIC = b"BKST"
_HEADS = {1: struct.Struct(">4sii"), 2: struct.Struct(">4siiq")}
_START = struct.Struct(">4si")
ROW_BYTES = 16
_CRC = struct.Struct(">I")


def encode(dropped_at_s: Mapping[int, int], generation: int = 0) -> bytes:
    """Return the file that says when each ledger was dropped."""
    pairs = np.array(sorted(dropped_at_s.items()), ">i8").reshape(-1, 2)
    head = _HEADS[VERSION].pack(_MAGIC, VERSION, len(pairs), generation) + pairs.tobytes()
    return head + _CRC.pack(crc32c(head))


def decode(data: bytes) -> dict[int, int] | None:
    """Return when each ledger was dropped; None: the bytes fail their checksum.

    Raises:
        ValueError: the file is whole but of a version that this code does not read.
    """
    head = _head(data)
    if head is None:
        return None
    (_, version, count, *_), end = head, len(data) - _CRC.size
    if end != _HEADS[version].size + ROW_BYTES * count:
        return None
    pairs = np.frombuffer(data, ">i8", 2 * count, _HEADS[version].size).reshape(count, 2)
    return dict(zip(pairs[:, 0].tolist(), pairs[:, 1].tolist()))


def generation(data: bytes) -> int | None:
    """Return the generation of a file; None: the bytes fail their checksum. Raises ValueError as `decode`."""
    head = _head(data)
    if head is None:
        return None
    return 0 if head[1] == 1 else int(head[3])


def tail_bytes(count: int) -> int:
    """Return how many bytes the rows of this many ledgers take, including the checksum after them."""
    return ROW_BYTES * count + _CRC.size


def _head(data: bytes) -> tuple[Any, ...] | None:
    """Return (magic, version, count, ...); None: the bytes fail their checksum."""
    end = len(data) - _CRC.size
    if end < _START.size or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        return None
    magic, version = _START.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version not in _HEADS:
        readable = " and ".join(map(str, _HEADS))
        raise ValueError(f"version {version}, this bookie reads {readable}: run the bookie that wrote it")
    return _HEADS[version].unpack_from(data) if end >= _HEADS[version].size else None
