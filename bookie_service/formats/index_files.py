"""Which index files must exist, the least length of each, and which are in another directory. Version 3, big endian.

There is one file `indexFiles` in a ledger directory, mostly the first one (`io.placed_file`). It distinguishes a lost
index file from one that never existed:

    offset  size  field
    0       4     magic "BKSF"
    4       4     i32 version, 3, or 2 where no row has a negative id
    8       8     i64 generation: if there are several such files, the highest counts
    16      4     u32 CRC32C of these

Any number of records follows, each appended and synced by itself:

    0       4     u32 CRC32C of the rest of the record
    4       4     i32 count, at most 65,536
    8       16 n  count times i64 ledger id, i64 size and place

The lower 56 bits of size and place are the least size of the ledger's index file in bytes; 0: the file may be gone. The
upper 8 bits are its place. 0: in the usual ledger directory, number (id mod number of directories); n: in directory
number n - 1, because the disk of the usual one was full or failed. Version 1 has no generation, which counts as 0, and
no places.

A row with the negative id -g is about the file of headers of ledgers without entries (`formats.ledger_headers`): there
is one of generation g or later, and a file of generation g has at least this size. The last such row counts. A bookie
that does not know that file would deny the ledgers and the fences in it; such a bookie reads only versions 1 and 2, and
refuses version 3.

The last row of a ledger counts. A row is written after the index file is durable, and before the marks advance past its
contents. A row of 0 is durable before the file is removed. So after a crash no row is false. A crash may leave a torn
record at the end, which is ignored; damage looks the same. A reader that finds either uses the rows before it, and
takes the others from the existing index files. The file is rewritten under another name when most rows are obsolete.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from crc32c import crc32c

VERSION = 3
_VERSION_WITHOUT_HEADERS = 2
FILE_NAME = "indexFiles"
ROWS_PER_RECORD_MAX = 1 << 16

_MAGIC = b"BKSF"
_HEAD = struct.Struct(">4siq")
_HEADS = {1: struct.Struct(">4si"), _VERSION_WITHOUT_HEADERS: _HEAD, VERSION: _HEAD}
_START = struct.Struct(">4si")
_CRC = struct.Struct(">I")
_COUNT = struct.Struct(">i")

PLACES_MAX = 127
"""Directories from this number on get no index file from another one."""
PLACE_BITS = 56
"""How many lower bits of a row are the size."""
SIZE_MASK = (1 << PLACE_BITS) - 1


def encode_head(generation: int, *, names_headers: bool = False) -> bytes:
    """Return the head of a file. `names_headers`: it has a row with a negative id."""
    version = version_of(names_headers=names_headers)
    head = _HEADS[version].pack(_MAGIC, version, generation)
    return head + _CRC.pack(crc32c(head))


def with_place(size: int, place: int | None) -> int:
    """Return the number that encodes an index file's length, and its directory if that is not the usual one."""
    return size if place is None or not size else size | ((place + 1) << PLACE_BITS)


def sizes_of(rows: np.ndarray) -> np.ndarray:
    """Return the sizes that these rows name."""
    return rows & SIZE_MASK


def places_of(rows: np.ndarray) -> np.ndarray:
    """Return the numbers of the directories that these rows name; -1: the usual one."""
    return (rows >> PLACE_BITS) - 1


def encode_rows(ledger_ids: np.ndarray, rows: np.ndarray) -> bytes:
    """Return records that give ledger_ids[i] the size and place rows[i]."""
    return b"".join(_records(ledger_ids, rows))


def encode(generation: int, ledger_ids: np.ndarray, rows: np.ndarray, *, names_headers: bool) -> bytes:
    """Return a whole file: see `encode_head` and `encode_rows`."""
    # In one step: to put two strings of bytes together copies them while the interpreter is held.
    return b"".join([encode_head(generation, names_headers=names_headers), *_records(ledger_ids, rows)])


def _records(ledger_ids: np.ndarray, rows: np.ndarray) -> list[bytes]:
    records = []
    for first in range(0, len(rows), ROWS_PER_RECORD_MAX):
        chosen = slice(first, first + ROWS_PER_RECORD_MAX)
        some = np.column_stack((ledger_ids[chosen], rows[chosen])).astype(">i8")
        body = _COUNT.pack(len(some)) + some.tobytes()
        records += [_CRC.pack(crc32c(body)), body]
    return records


def decode(data: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """Return (ledger ids, size and place of each, end of the whole records) of a file: every row, as written.

    The end is 0 if the head is damaged, and `len(data)` if everything is whole.

    Raises:
        ValueError: the file has a version that this code does not read.
    """
    pieces = [np.empty((0, 2), np.int64)]
    head = _head(data)
    at = 0 if head is None else _HEADS[head[1]].size + _CRC.size
    while at and at < len(data):
        rows = _record(data, at)
        if rows is None:
            break
        pieces.append(rows)
        at += _CRC.size + _COUNT.size + rows.size * 8
    pairs = np.concatenate(pieces)
    return pairs[:, 0], pairs[:, 1], at


def generation(data: bytes) -> int | None:
    """Return the generation of a file; None: its head is damaged. Raises ValueError as `decode`."""
    head = _head(data)
    if head is None:
        return None
    return 0 if head[1] == 1 else int(head[2])


def version(data: bytes) -> int:
    """Return the version of a file; 0: its head is damaged. Raises ValueError as `decode`."""
    head = _head(data)
    return 0 if head is None else int(head[1])


def version_of(*, names_headers: bool) -> int:
    """Return the version of new files. `names_headers`: they have a row with a negative id."""
    return VERSION if names_headers else _VERSION_WITHOUT_HEADERS


def may_append(version: int, *, names_headers: bool) -> bool:
    """Return whether rows may be appended to a file of a version. `names_headers`: one of them has a negative id."""
    return version == VERSION or (version == _VERSION_WITHOUT_HEADERS and not names_headers)


def headers_row(generation: int) -> int:
    """Return the id of the row about the file of headers."""
    return -generation


def headers_of(ledger_ids: np.ndarray, rows: np.ndarray) -> tuple[int, int] | None:
    """Return (generation, least bytes) of the file of headers; None: no row is about it."""
    found = np.flatnonzero(ledger_ids < 0)
    return (-ledger_ids.item(found[-1]), rows.item(found[-1]) & SIZE_MASK) if len(found) else None


def _head(data: bytes) -> tuple[Any, ...] | None:
    """Return (magic, version, ...); None: the head fails its checksum."""
    if len(data) < _START.size:
        return None
    magic, found = _START.unpack_from(data)
    # The head of a later version may have another length. Its checksum follows one of these lengths.
    for layout in _HEADS.values():
        whole = data[: layout.size]
        if len(data) < layout.size + _CRC.size or _CRC.unpack_from(data, layout.size)[0] != crc32c(whole):
            continue
        if magic != _MAGIC:
            return None
        if found not in _HEADS:
            readable = ", ".join(map(str, _HEADS))
            raise ValueError(f"version {found}, this bookie reads {readable}: run the bookie that wrote it")
        return layout.unpack_from(data) if layout is _HEADS[found] else None
    return None


def _record(data: bytes, at: int) -> np.ndarray | None:
    """Return the rows of the record at an offset; None: it is not whole."""
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
