"""Files that count what is read of entry logs."""

from __future__ import annotations

import os

import numpy as np

from bookie_service.storage.index.index import EXTENT_ENTRIES
from bookie_service.storage.io.files import File, LocalFiles
from bookie_service.storage.ledgers.interface import IndexView

LEDGER = 7


def found(index: IndexView, *span: int) -> list[int]:
    """Return the ids that the extents name; check that positions belong to them, and that no piece is too large."""
    ids: list[int] = []
    for first, positions in index.extents(LEDGER, *span):
        assert len(positions) <= EXTENT_ENTRIES
        held = np.flatnonzero(positions)
        assert (positions[held] == first + held + 1).all()
        ids += (first + held).tolist()
    return ids


class ReadCountingFiles(LocalFiles):
    """The real file system; counts the calls that look at the contents of files."""

    def __init__(self) -> None:
        self.looks = 0
        self.bytes_read = 0

    def open(self, path: str) -> File:
        return _CountedFile(os.open(path, os.O_RDWR), path, self)


class _CountedFile(File):
    __slots__ = ("_files",)

    def __init__(self, fd: int, path: str, files: ReadCountingFiles) -> None:
        super().__init__(fd, path)
        self._files = files

    def read(self, size: int, offset: int) -> bytes:
        self._files.looks += 1
        found = super().read(size, offset)
        self._files.bytes_read += len(found)
        return found

    def next_data(self, offset: int) -> int | None:
        self._files.looks += 1
        return super().next_data(offset)
