"""What tells a bookie that it may have lost acknowledged entries. Version 1, all integers big endian.

`DIRTY` in every ledger directory, present from before the bookie serves until it has stopped in order; Apache's bookies
have a file of that name, too, which is empty. One line of text:

    journal complete     every entry was in the journal, synced, before it was acknowledged
    journal incomplete   it was not (journalWriteData or journalSyncData is false): a crash may have lost some

Anything else reads as incomplete.

`limbo` in the first ledger directory, the ledgers whose negative answers are not to be trusted; absent for none:

    offset  size  field
    0       4     magic "BKSL"
    4       4     i32 version, 1
    8       4     i32 count
    12      8 n   count times i64 ledger id, ascending
    end     4     u32 CRC32C of everything before

Both are written whole under another name, synced, renamed, and the directory synced.
"""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

VERSION = 1
DIRTY_NAME = "DIRTY"
LIMBO_NAME = "limbo"

_COMPLETE, _INCOMPLETE = b"journal complete\n", b"journal incomplete\n"
_MAGIC = b"BKSL"
_HEAD = struct.Struct(">4sii")
_CRC = struct.Struct(">I")


def encode_dirty(*, journal_is_complete: bool) -> bytes:
    """Return the marker of a run."""
    return _COMPLETE if journal_is_complete else _INCOMPLETE


def decode_dirty(data: bytes) -> bool:
    """Return whether the journal of the run that left a marker is complete."""
    return data == _COMPLETE


def encode_limbo(ledger_ids: np.ndarray) -> bytes:
    """Return the file that names ledgers; they ascend."""
    head = _HEAD.pack(_MAGIC, VERSION, len(ledger_ids)) + ledger_ids.astype(">i8").tobytes()
    return head + _CRC.pack(crc32c(head))


def decode_limbo(data: bytes) -> np.ndarray:
    """Return the ledgers, int64.

    Raises:
        ValueError: the bytes fail their checksum, or are of a version that this code does not read.
    """
    end = len(data) - _CRC.size
    if end < _HEAD.size or data[:4] != _MAGIC or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise ValueError("the bytes fail their checksum")
    _, version, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
    if end != _HEAD.size + 8 * count:
        raise ValueError(f"it says {count} ledgers and has {end - _HEAD.size} bytes for them")
    return np.frombuffer(data, ">i8", count, _HEAD.size).astype(np.int64)
