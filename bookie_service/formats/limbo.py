"""Files that record that a bookie may have lost acknowledged entries. All integers big endian.

`DIRTY` is in every journal and ledger directory that can be written, from before the bookie serves until it has stopped
in order. Apache's bookies have a file of this name, too, which is empty. It has one line of text:

    journal complete     every entry was in the journal, synced, before it was acknowledged
    journal incomplete   it was not (journalWriteData or journalSyncData is false): a crash may have lost some

Anything else counts as incomplete.

`limbo` is in a ledger directory, mostly the first one (`io.placed_file`). It names the ledgers whose negative answers
must not be trusted; without such ledgers there is no file. Version 2:

    offset  size  field
    0       4     magic "BKSL"
    4       4     i32 version, 2
    8       4     i32 count
    12      8     i64 generation: if there are several such files, the highest counts
    20      8 n   count times i64 ledger id, ascending
    end     4     u32 CRC32C of everything before

Version 1 has no generation, which counts as 0.

Both files are written whole under another name, synced and renamed, and the directory is synced.
"""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

VERSION = 2
DIRTY_NAME = "DIRTY"
LIMBO_NAME = "limbo"

_COMPLETE, _INCOMPLETE = b"journal complete\n", b"journal incomplete\n"
_MAGIC = b"BKSL"
_HEADS = {1: struct.Struct(">4sii"), 2: struct.Struct(">4siiq")}
_START = struct.Struct(">4si")
_CRC = struct.Struct(">I")


def encode_dirty(*, journal_is_complete: bool) -> bytes:
    """Return the marker of a run."""
    return _COMPLETE if journal_is_complete else _INCOMPLETE


def decode_dirty(data: bytes) -> bool:
    """Return whether the journal was complete in the run that left a marker."""
    return data == _COMPLETE


def encode_limbo(ledger_ids: np.ndarray, generation: int = 0) -> bytes:
    """Return the file that names ledgers, which ascend."""
    head = _HEADS[VERSION].pack(_MAGIC, VERSION, len(ledger_ids), generation) + ledger_ids.astype(">i8").tobytes()
    return head + _CRC.pack(crc32c(head))


def decode_limbo(data: bytes) -> tuple[np.ndarray, int]:
    """Return (the ledgers, int64; the generation).

    Raises:
        ValueError: the bytes fail their checksum, or have a version that this code does not read.
    """
    end = len(data) - _CRC.size
    if end < _START.size or data[:4] != _MAGIC or _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise ValueError("the bytes fail their checksum")
    _, version = _START.unpack_from(data)
    if version not in _HEADS:
        readable = " and ".join(map(str, _HEADS))
        raise ValueError(f"version {version}, this bookie reads {readable}: run the bookie that wrote it")
    begin = _HEADS[version].size
    count, *generation = _HEADS[version].unpack_from(data)[2:] if end >= begin else (-1,)
    if end != begin + 8 * count:
        raise ValueError(f"it says {count} ledgers and has {end - begin} bytes for them")
    return np.frombuffer(data, ">i8", count, begin).astype(np.int64), sum(generation)
