"""A key-value store on a simulated disk that keeps what `storage.io.key_values` says of one, and not more.

All writes since the last sync are in the process's memory, so a kill takes them. `sync` appends one checksummed record
per write to one file and syncs that: a crash in the middle leaves some leading ones. Opening cuts the rest away and
makes what is left durable. A record that was damaged afterwards ends what is found, as an older state would: the worst
that a real store could make of damage without noticing it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from crc32c import crc32c

from bookie_service.formats import key_value_index
from bookie_service.storage.io.key_values import Changes

if TYPE_CHECKING:
    from tests.crash.simulated_files import SimulatedFiles

_FRONT = struct.Struct(">II")
_FILE_NAME = key_value_index.DIRECTORY_NAME


class SimulatedKeyValues:
    """Stands in for `RocksKeyValues`."""

    def __init__(self, files: SimulatedFiles, directory: str) -> None:
        path = os.path.join(directory, _FILE_NAME)
        self._file = files.open(path) if files.exists(path) else files.create(path)
        # As RocksDB does whenever it opens a store: a process that was killed may not have come so far.
        files.sync_directory(directory)
        self._disk = files.disk
        self._is_stuck = False
        """Whether a sync has failed. As with RocksDB, writes are refused then until the disk takes some."""
        self._map: dict[bytes, bytes] = {}
        self._unsynced: list[bytes] = []
        self._end = 0
        data = self._file.read(self._file.size(), 0)
        while (record := _record_at(data, self._end)) is not None:
            self._apply(*pickle.loads(record))
            self._end += _FRONT.size + len(record)
        if self._end < len(data):
            self._file.truncate(self._end)
        if data:
            self._file.sync_data()

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._read()
        return [self._map.get(key) for key in keys]

    def last(self, first: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        self._read()
        key = max(self._keys(first, end), default=None)
        return None if key is None else (key, self._map[key])

    def key_count(self) -> int:
        return sum(1 for _ in self._keys(b"", b"\xff"))

    def keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        self._read()
        return self._keys(first, end)

    def _keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        return iter(sorted(key for key in self._map if first <= key < end))

    def _read(self) -> None:
        """Fail as a real store does if what it must read is not in its cache, which is unknown."""
        self._disk.check("read", self._file.path)

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        if self._is_stuck:
            self._disk.check("write", self._file.path)
            self._is_stuck = False
        self._unsynced.append(pickle.dumps((puts, removed)))
        self._apply(puts, removed)

    def sync(self) -> None:
        self._write_out(len(self._unsynced))

    def _write_out(self, count: int) -> None:
        """Make the first writes that are not durable durable. Others may come meanwhile."""
        records = b"".join(_FRONT.pack(len(each), crc32c(each)) + each for each in self._unsynced[:count])
        if records:
            try:
                self._file.write([records], self._end)
                self._file.sync_data()
            except OSError:
                # A real store abandons the file whose sync failed: it never shows data that may not be durable.
                with contextlib.suppress(OSError):
                    self._file.truncate(self._end)
                self._is_stuck = True
                raise
            self._end += len(records)
            del self._unsynced[:count]

    def unsynced(self) -> list[Changes]:
        return [pickle.loads(each) for each in self._unsynced]

    def forget_removed(self, ranges: Sequence[tuple[bytes, bytes]]) -> None:
        """Do nothing: nothing is left of a removed key here."""

    def close(self) -> None:
        self._file.close()

    def _apply(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]]) -> None:
        for first, end in removed:
            for key in list(self._keys(first, end)):
                del self._map[key]
        self._map.update(puts)


def _record_at(data: bytes, at: int) -> bytes | None:
    """Return the record that begins there, None when none is whole."""
    if at + _FRONT.size > len(data):
        return None
    size, checksum = _FRONT.unpack_from(data, at)
    record = data[at + _FRONT.size : at + _FRONT.size + size]
    return record if size and len(record) == size and crc32c(record) == checksum else None
