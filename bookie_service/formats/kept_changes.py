"""Changes that one of several key-value stores lacks, because its disk is full or late. All integers big endian.

`positions.kept.H` is in the `current` directory of another ledger directory than number H, whose store lacks them:

    offset  size  field
    0       4     magic "BKKC"
    4       4     i32 version, 1
    8       1     u8 n, the number of stores, from 2 to 255
    9       1     u8 H
    10      8     u64 number of the last commit that may be in the store without these changes
    18      8     u64 generation: how often the file was written; in which order files were tried
    26      4     u32 number of removed ranges
    30      4     u32 number of keys
    34            of each removed range: u16 size of its first key, u16 size of its end, first key, end
                  of each key: u16 size of the key, u32 size of the value, key, value
    last    4     u32 CRC32C of everything before

First the ranges are removed, then the keys are set. The store has all of it if it has a commit with a higher number
(`formats.key_value_index`). The file is written whole under another name, synced and renamed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from bookie_service.formats.key_value_index import DIRECTORY_NAME

_MAGIC, _VERSION = b"BKKC", 1
_START = struct.Struct(">4si")
_HEAD = struct.Struct(">4siBBQQII")
_RANGE = struct.Struct(">HH")
_ITEM = struct.Struct(">HI")
_CRC = struct.Struct(">I")


def file_name(home: int) -> str:
    """Return the name of the file with what the store of a directory lacks."""
    return f"{DIRECTORY_NAME}.kept.{home}"


@dataclass(frozen=True, slots=True)
class KeptChanges:
    """What such a file has, with the fields of the file.

    stores: how many stores the bookie has.
    home: the number of the directory whose store lacks the changes.
    number: the store has the changes if its last commit has a higher number.
    generation: how often the file was written.
    removed: ranges of keys [first, end), which are removed first.
    puts: the keys that are set then, with their values.
    """

    stores: int
    home: int
    number: int
    generation: int
    removed: Sequence[tuple[bytes, bytes]]
    puts: Mapping[bytes, bytes]


def encode(changes: KeptChanges) -> bytes:
    counts = len(changes.removed), len(changes.puts)
    pieces = [
        _HEAD.pack(_MAGIC, _VERSION, changes.stores, changes.home, changes.number, changes.generation, *counts),
    ]
    for first, end in changes.removed:
        pieces += (_RANGE.pack(len(first), len(end)), first, end)
    for key, value in changes.puts.items():
        pieces += (_ITEM.pack(len(key), len(value)), key, value)
    body = b"".join(pieces)
    return body + _CRC.pack(crc32c(body))


def decode(data: bytes) -> KeptChanges | None:
    """Return what the file has; None: it is damaged.

    Raises:
        ValueError: it is whole, but of a version that this code does not read.
    """
    end = len(data) - _CRC.size
    if end < _HEAD.size or data[:4] != _MAGIC or _CRC.unpack_from(data, end)[0] != crc32c(memoryview(data)[:end]):
        return None
    version = _START.unpack_from(data)[1]
    if version != _VERSION:
        raise ValueError(f"version {version}, this bookie reads {_VERSION}: run the bookie that wrote it")
    _, _, stores, home, number, generation, ranges, keys = _HEAD.unpack_from(data)
    at = _HEAD.size
    removed, puts = [], {}
    for _ in range(ranges):
        first_size, end_size = _RANGE.unpack_from(data, at)
        at += _RANGE.size
        removed.append((data[at : at + first_size], data[at + first_size : at + first_size + end_size]))
        at += first_size + end_size
    for _ in range(keys):
        key_size, value_size = _ITEM.unpack_from(data, at)
        at += _ITEM.size
        puts[data[at : at + key_size]] = data[at + key_size : at + key_size + value_size]
        at += key_size + value_size
    return KeptChanges(stores, home, number, generation, removed, puts)
