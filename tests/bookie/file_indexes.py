"""An index with a file per ledger, its updates, and files that count what is synced and open."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.io.files import File, FileSystem, LocalFiles

KEY = b"k" * 20


class CountingFiles(LocalFiles):
    """The real file system; notes what is synced, and how many files are open at once."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.open_now = 0
        self.open_most = 0

    def open(self, path: str) -> File:
        return self._counted(os.open(path, os.O_RDWR), path)

    def create(self, path: str) -> File:
        return self._counted(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), path)

    def open_file_system(self, path: str) -> FileSystem:
        return _CountedFileSystem(os.open(path, os.O_RDONLY), path, self)

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        super().sync_directory(path)

    def _counted(self, fd: int, path: str) -> File:
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        return _CountedFile(fd, path, self)


class _CountedFile(File):
    __slots__ = ("_files",)

    def __init__(self, fd: int, path: str, files: CountingFiles) -> None:
        super().__init__(fd, path)
        self._files = files

    def sync_data(self) -> None:
        self._files.synced.append(self.path)
        super().sync_data()

    def close(self) -> None:
        self._files.open_now -= 1
        super().close()


class _CountedFileSystem(FileSystem):
    def __init__(self, fd: int, path: str, files: CountingFiles) -> None:
        super().__init__(fd, path)
        self._files = files

    def sync(self) -> None:
        self._files.synced.append("everything")
        super().sync()


def update(ledger_id: int, first_entry: int, positions: list[int], generation: int = 0) -> LedgerUpdate:
    header = LedgerHeader(ledger_id, generation, False, KEY) if generation else None
    ids = np.arange(first_entry, first_entry + len(positions))
    return LedgerUpdate(ledger_id, header, ids, np.array(positions, np.int64))


def new_index(files: LocalFiles, directory: Path, options: PageOptions, open_files: int = 4) -> PerLedgerIndex:
    return PerLedgerIndex(files, [str(directory)], options, open_files)


def held_by(index: PerLedgerIndex, ledger_id: int, count: int) -> dict[int, int]:
    found = index.positions(ledger_id, 0, count)
    return {int(entry): int(found[entry]) for entry in np.flatnonzero(found)}
