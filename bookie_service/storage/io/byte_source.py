"""Sources of a file's bytes for a read: one waits for the disk, the other never does.

The event loop never waits for a disk. It reads through a `CachedSource`, which returns bytes from the operating
system's page cache. For other bytes it raises `NotCached`; a thread fetches them (`fetching`), and the read is repeated
with them in memory. The bytes at a position of an entry log never change, so it does not matter when they were fetched.
A read looks up everything else again.

Index pages do change. Fetching one only brings it into the page cache, and its bytes are read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bookie_service.storage.io.files import File

_MEMORY_BYTES_MIN = 64
_MORE_BYTES = 8 * 1024
"""How many bytes are fetched beyond the request: the length of a run's last entry is known only when it is read."""


class ByteSource(Protocol):
    """Returns bytes of files."""

    lends: bool
    """Whether returned bytes are valid only until the next read through this source."""

    def bytes_at(self, file: File, size: int, offset: int) -> bytes | memoryview:
        """Return up to `size` bytes; fewer only at the end of the file. Raises OSError as the file does."""

    def changing_bytes_at(self, file: File, size: int, offset: int) -> bytes | bytearray:
        """Return what `bytes_at` returns, for a file whose bytes may change: the bytes as they are now."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """`size` bytes of a file from `offset` on. Those of an entry log never change, and no other file gets its path."""

    path: str
    offset: int
    size: int


class NotCached(Exception):
    """A read needs the disk. It is not an error."""

    def __init__(self, place: FileRange) -> None:
        super().__init__(place)
        self.place = place
        """The range to fetch before the read is repeated."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of fetching a range: its bytes, or the error of the read."""

    place: FileRange
    """The range that was fetched."""
    data: bytes = b""
    """The bytes, fewer than asked for at the end of the file; b"" if there is an error."""
    error: OSError | None = None

    def part(self, path: str, size: int, offset: int) -> memoryview | None:
        """Return the bytes of a range if they were fetched. Raises the error of fetching this range, if any."""
        place = self.place
        begin = offset - place.offset
        if path != place.path or begin < 0 or begin + size > place.size:
            return None
        if self.error is not None:
            raise self.error
        return memoryview(self.data)[begin : begin + size] if begin + size <= len(self.data) else None


class WaitingSource:
    """A source that waits for the disk."""

    lends = False

    def bytes_at(self, file: File, size: int, offset: int) -> bytes:
        return file.read(size, offset)

    changing_bytes_at = bytes_at


WAITING = WaitingSource()


class CachedSource:
    """A source that never waits: it raises NotCached instead. For the event loop."""

    lends = True

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes`: the size of the memory that reads share. A larger read gets memory of its own."""
        self.memory = np.empty(max(memory_bytes, _MEMORY_BYTES_MIN), np.uint8).data
        """The memory that `load` and `bytes_at` read into."""
        self._used = 0
        """How many bytes of the memory are lent. Reset by `begin`."""
        self._fetched: Fetched | None = None
        """The bytes that were fetched for this read, or None. Set by `begin`."""
        self.has_used_fetched = False
        """Whether this read has used them. Reset by `begin`."""

    def begin(self, fetched: Fetched | None = None) -> None:
        """Begin a read with the bytes that were fetched for it. Bytes returned before are no longer valid."""
        self._used = 0
        self._fetched = fetched
        self.has_used_fetched = False

    def changing_bytes_at(self, file: File, size: int, offset: int) -> bytes | bytearray:
        there = min(size, max(0, file.size() - offset))
        found = bytearray(there)
        if file.read_cached(memoryview(found), offset) == there:
            return found
        wanted = FileRange(file.path, offset, size)
        if self._fetched is not None and self._fetched.place == wanted:
            # The bytes were cached a moment ago, or their file system cannot tell.
            self.has_used_fetched = True
            return file.read(there, offset)
        raise NotCached(wanted)

    def bytes_at(self, file: File, size: int, offset: int) -> memoryview:
        # A short read then means "not cached", because it cannot be the end of the file.
        size = min(size, max(0, file.size() - offset))
        fetched = None if self._fetched is None else self._fetched.part(file.path, size, offset)
        if fetched is not None:
            self.has_used_fetched = True
            return fetched
        end = self._used + size
        view = self.memory[self._used : end] if end <= len(self.memory) else memoryview(bytearray(size))
        self._read(file, view, offset)
        self._used = end
        return view

    def load(self, file: File, size: int, offset: int) -> tuple[int, int] | None:
        """Put what `bytes_at` returns into `memory`; return where it begins and ends there. None: there is no room."""
        size = min(size, max(0, file.size() - offset))
        begin, end = self._used, self._used + size
        if end > len(self.memory):
            return None
        fetched = None if self._fetched is None else self._fetched.part(file.path, size, offset)
        if fetched is not None:
            self.has_used_fetched = True
            self.memory[begin:end] = fetched
        else:
            self._read(file, self.memory[begin:end], offset)
        self._used = end
        return begin, end

    def _read(self, file: File, view: memoryview, offset: int) -> None:
        if file.read_cached(view, offset) < len(view):
            raise NotCached(FileRange(file.path, offset, len(view) + _MORE_BYTES))
