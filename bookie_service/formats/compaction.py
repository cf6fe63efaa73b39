"""The intent of a compaction: which entry log replaces which. Version 1, all integers big endian.

There is one file `compaction` in the first ledger directory. It exists from the moment when the new log is complete and
durable under its temporary name `<hex log id>.log.compacting` until the old log is removed:

    offset  size  field
    0       4     magic "BKSC"
    4       4     i32 version, 1
    8       8     i64 id of the new log
    16      8     i64 id of the old log
    24      4     u32 CRC32C of bytes 0 .. 23

With the intent, a crash makes the next start repeat the rest of the work. Without it, temporary files are removed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

VERSION = 1
FILE_NAME = "compaction"
SUFFIX = ".compacting"

_MAGIC = b"BKSC"
_INTENT = struct.Struct(">4siqq")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Intent:
    """Log `new_id` replaces log `old_id`."""

    new_id: int
    old_id: int


def encode(intent: Intent) -> bytes:
    head = _INTENT.pack(_MAGIC, VERSION, intent.new_id, intent.old_id)
    return head + _CRC.pack(crc32c(head))


def decode(data: bytes) -> Intent | None:
    """Return the intent; None: the bytes fail their checksum.

    Raises:
        ValueError: the intent is whole but of a version that this code does not read.
    """
    if len(data) != _INTENT.size + _CRC.size or _CRC.unpack_from(data, _INTENT.size)[0] != crc32c(data[:-4]):
        return None
    magic, version, new_id, old_id = _INTENT.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version != VERSION:
        raise ValueError(f"version {version}, this bookie reads {VERSION}: run the bookie that wrote it")
    return Intent(new_id, old_id)
