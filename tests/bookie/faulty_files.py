"""Files whose operations fail on request: real files with an injected errno."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.files import Buffer, DirectoryLock, File, FileSystem, LocalFiles

Fault = Callable[[str, str], bool]
"""Called with (operation, path) before each; True makes it fail."""


class FaultyFiles(LocalFiles):
    """`fault` decides which operations fail, with `code`; None lets all through."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.code = errno.EIO
        self.used: dict[str, float] = {}
        """How full the disk of a directory is said to be, 0 to 1, by a part of the directory's path."""
        self.operations: list[tuple[str, str]] = []

    def check(self, operation: str, path: str) -> None:
        """Record an operation, or fail it."""
        if self.fault is not None and self.fault(operation, path):
            raise OSError(self.code, os.strerror(self.code), path)
        self.operations.append((operation, path))

    def space(self, directory: str) -> FileSystemSpace:
        for part, share in self.used.items():
            if part in directory:
                return FileSystemSpace(hash(part), 1 << 40, int((1 - share) * (1 << 40)))
        return super().space(directory)

    def open(self, path: str) -> File:
        return self._opened(super().open(path))

    def _opened(self, file: File) -> File:
        return _FaultyFile(file, self)

    def names(self, directory: str) -> list[str]:
        self.check("names", directory)
        return super().names(directory)

    def create(self, path: str) -> File:
        self.check("create", path)
        return self._opened(super().create(path))

    def rename(self, old: str, new: str) -> None:
        self.check("rename", new)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.check("sync_directory", path)
        super().sync_directory(path)


class _FaultyFile(File):
    __slots__ = ("_files", "_inner")

    def __init__(self, inner: File, files: FaultyFiles) -> None:
        self.path = inner.path
        self._fd = inner._fd
        self._files = files

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._files.check("write", self.path)
        return super().write(buffers, offset)

    def read(self, size: int, offset: int) -> bytes:
        self._files.check("read", self.path)
        return super().read(size, offset)

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        self._files.check("read", self.path)
        return super().read_cached(buffer, offset)

    def sync_data(self) -> None:
        self._files.check("sync_data", self.path)
        super().sync_data()


class GoneFiles(FaultyFiles):
    """Files on a disk that may be gone: then nothing is found, listed or opened there, and open files fail, too."""

    def _opened(self, file: File) -> File:
        return _GoneFile(file, self)

    def open(self, path: str) -> File:
        self.check("open", path)
        return super().open(path)

    def exists(self, path: str) -> bool:
        self.check("stat", path)
        return super().exists(path)

    def file_size(self, path: str) -> int | None:
        self.check("stat", path)
        return super().file_size(path)

    def is_directory(self, path: str) -> bool:
        self.check("stat", path)
        return super().is_directory(path)

    def space(self, directory: str) -> FileSystemSpace:
        self.check("space", directory)
        return super().space(directory)

    def lock(self, path: str) -> DirectoryLock:
        self.check("open", path)
        return super().lock(path)

    def create_directory(self, path: str) -> None:
        self.check("create", path)
        super().create_directory(path)

    def open_file_system(self, path: str) -> FileSystem | None:
        self.check("open", path)
        return super().open_file_system(path)


class _GoneFile(_FaultyFile):
    __slots__ = ()

    def size(self) -> int:
        self._files.check("stat", self.path)
        return super().size()

    def next_data(self, offset: int) -> int | None:
        self._files.check("read", self.path)
        return super().next_data(offset)

    def truncate(self, size: int) -> None:
        self._files.check("write", self.path)
        super().truncate(size)
