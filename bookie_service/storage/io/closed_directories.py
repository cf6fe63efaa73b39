"""The real file system without some directories, which fail in every call, as if their disks did."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.files import DirectoryLock, File, FileSystem, LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions, KeyValues


class OpenDirectories(LocalFiles):
    """For a bookie that could not read some of its directories when it started.

    It could neither lock them nor check whose they are. So nothing is read or written there before the next start, even
    if a disk works again.
    """

    def __init__(self, closed: Collection[str], group_id: int | None = None) -> None:
        """`closed`: the directories that are not used."""
        super().__init__(group_id)
        self._closed = tuple(os.path.join(directory, "") for directory in closed)

    def is_closed(self, directory: str) -> bool:
        return os.path.join(directory, "").startswith(self._closed)

    def _check(self, path: str) -> None:
        if self.is_closed(path):
            raise OSError(errno.EIO, "the disk could not be read at the start", path)

    def open(self, path: str) -> File:
        self._check(path)
        return super().open(path)

    def names(self, directory: str) -> list[str]:
        self._check(directory)
        return super().names(directory)

    def exists(self, path: str) -> bool:
        self._check(path)
        return super().exists(path)

    def file_size(self, path: str) -> int | None:
        self._check(path)
        return super().file_size(path)

    def is_directory(self, path: str) -> bool:
        self._check(path)
        return super().is_directory(path)

    def open_key_values(self, path: str, options: KeyValueOptions) -> KeyValues:
        self._check(path)
        return super().open_key_values(path, options)

    def block_bytes(self, directory: str) -> int:
        self._check(directory)
        return super().block_bytes(directory)

    def space(self, directory: str) -> FileSystemSpace:
        self._check(directory)
        return super().space(directory)

    def lock(self, path: str) -> DirectoryLock:
        self._check(path)
        return super().lock(path)

    def protect(self, directory: str) -> str | None:
        self._check(directory)
        return super().protect(directory)

    def create(self, path: str) -> File:
        self._check(path)
        return super().create(path)

    def rename(self, old: str, new: str) -> None:
        self._check(new)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._check(path)
        super().remove(path)

    def remove_directory(self, path: str) -> None:
        self._check(path)
        super().remove_directory(path)

    def create_directory(self, path: str) -> None:
        self._check(path)
        super().create_directory(path)

    def open_file_system(self, path: str) -> FileSystem | None:
        self._check(path)
        return super().open_file_system(path)

    def sync_directory(self, path: str) -> None:
        self._check(path)
        super().sync_directory(path)
