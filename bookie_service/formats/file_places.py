"""Which ledger directory has each file of the whole bookie (`storage.io.placed_file`). Text, version 1.

`filePlaces` is in the `current` directory of the first journal. A bookie that starts can always read its journals. So
it knows where these files are even if the disk of a ledger directory cannot be read, and it notices if one was deleted:

    filePlaces 1
    indexFiles 0            directory number 0 of the configured ledger directories, counted from 0
    limbo 2
    positions.kept.1 0
    crc 89abcdef            CRC32C of the lines before

A file that is not listed is in no directory. The file is written whole under another name, synced and renamed, and the
directory is synced. It changes when a file is created or goes to another directory, which is rare.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from crc32c import crc32c

FILE_NAME = "filePlaces"

_HEAD = "filePlaces 1\n"
_START = re.compile(r"filePlaces (\d+)\n")
_ROW = re.compile(r"([A-Za-z0-9.]+) (\d+)\n")
_CRC = re.compile(r"crc ([0-9a-f]{8})\n")


def encode(places: Mapping[str, int]) -> bytes:
    rows = _HEAD + "".join(f"{name} {number}\n" for name, number in sorted(places.items()))
    return f"{rows}crc {crc32c(rows.encode()):08x}\n".encode()


def decode(data: bytes) -> dict[str, int] | None:
    """Return the number of the directory of each file; None: the bytes are damaged.

    Raises:
        ValueError: they have a version that this code does not read.
    """
    *lines, last = data.decode("ascii", "replace").splitlines(keepends=True) or [""]
    crc = _CRC.fullmatch(last)
    rows = "".join(lines)
    if crc is None or int(crc[1], 16) != crc32c(rows.encode()):
        return None
    start = _START.fullmatch(lines[0]) if lines else None
    if start is None:
        return None
    if lines[0] != _HEAD:
        raise ValueError(f"version {start[1]}, this bookie reads 1: run the bookie that wrote it")
    found = [_ROW.fullmatch(line) for line in lines[1:]]
    return None if None in found else {row[1]: int(row[2]) for row in found if row is not None}
