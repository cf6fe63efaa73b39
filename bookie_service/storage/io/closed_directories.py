"""The real file system of a bookie whose directories may be closed or vanish: calls fail there as on a failing disk."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator

from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.files import DirectoryLock, File, FileSystem, LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions, KeyValues


class OpenDirectories(LocalFiles):
    """Closed directories are those that a bookie could not read when it started. It could neither lock them nor check
    whose they are. So nothing is read or written there before the next start, even if a disk works again.

    A ledger directory vanishes when its disk is unplugged and unmounted. What is not found there may exist, and it may
    be back later.
    """

    def __init__(
        self, closed: Collection[str], group_id: int | None = None, ledger_directories: Collection[str] = ()
    ) -> None:
        """`closed`: the directories that are not used. `ledger_directories`: the `current` directories, which exist."""
        super().__init__(group_id)
        self._closed = tuple(os.path.join(directory, "") for directory in closed)
        self._ledger_directories = tuple(ledger_directories)
        """The `current` directories of all ledger directories. Constant."""

    def is_closed(self, directory: str) -> bool:
        return os.path.join(directory, "").startswith(self._closed)

    def _check(self, path: str) -> None:
        if self.is_closed(path):
            raise OSError(errno.EIO, "the disk could not be read at the start", path)

    @contextlib.contextmanager
    def _at(self, path: str) -> Iterator[None]:
        """Work on a path. If it is not found, and neither is its ledger directory, that is a disk that fails."""
        self._check(path)
        try:
            yield
        except FileNotFoundError:
            self._check_present(path)
            raise

    def _check_present(self, path: str) -> None:
        """Raise an error if the ledger directory of a path has vanished."""
        below = os.path.join(path, "")
        for directory in self._ledger_directories:
            if below.startswith(os.path.join(directory, "")) and not super().is_directory(directory):
                raise OSError(errno.ENODEV, "its ledger directory has vanished", path)

    def open(self, path: str) -> File:
        with self._at(path):
            return super().open(path)

    def names(self, directory: str) -> list[str]:
        with self._at(directory):
            return super().names(directory)

    def exists(self, path: str) -> bool:
        self._check(path)
        found = super().exists(path)
        if not found:
            self._check_present(path)
        return found

    def file_size(self, path: str) -> int | None:
        self._check(path)
        size = super().file_size(path)
        if size is None:
            self._check_present(path)
        return size

    def is_directory(self, path: str) -> bool:
        self._check(path)
        found = super().is_directory(path)
        if not found:
            self._check_present(path)
        return found

    def open_key_values(self, path: str, options: KeyValueOptions) -> KeyValues:
        self._check(path)
        return super().open_key_values(path, options)

    def block_bytes(self, directory: str) -> int:
        self._check(directory)
        return super().block_bytes(directory)

    def space(self, directory: str) -> FileSystemSpace:
        with self._at(directory):
            return super().space(directory)

    def lock(self, path: str) -> DirectoryLock:
        self._check(path)
        return super().lock(path)

    def other_owner(self, directory: str) -> int | None:
        self._check(directory)
        return super().other_owner(directory)

    def protect(self, directory: str) -> str | None:
        self._check(directory)
        return super().protect(directory)

    def create(self, path: str) -> File:
        with self._at(path):
            return super().create(path)

    def rename(self, old: str, new: str) -> None:
        with self._at(new):
            super().rename(old, new)

    def remove(self, path: str) -> None:
        with self._at(path):
            super().remove(path)

    def remove_directory(self, path: str) -> None:
        with self._at(path):
            super().remove_directory(path)

    def create_directory(self, path: str) -> None:
        with self._at(path):
            super().create_directory(path)

    def open_file_system(self, path: str) -> FileSystem | None:
        with self._at(path):
            return super().open_file_system(path)

    def sync_directory(self, path: str) -> None:
        with self._at(path):
            super().sync_directory(path)
