"""A small file of the whole bookie, kept in one of its ledger directories: the first one that takes it.

If the disk of the current file is full or fails, the next version goes to another directory. Each version has a
generation, and the highest one counts. Older versions may remain in directories that could not be changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bkspark.errors import StorageDamaged
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, is_disk_failure, refuses_writes


class PlacedFile:
    """The place of such a file. Written by one thread at a time."""

    def __init__(
        self, files: ReadOnlyFiles, directories: Sequence[str], name: str, generation_of: Callable[[bytes], int | None]
    ) -> None:
        """`generation_of(contents)` returns None for damaged contents. A damaged file counts, because it may be the
        newest version.

        Raises:
            StorageDamaged: a disk cannot be read, so it is unknown which file counts.
        """
        self._paths = [os.path.join(directory, name) for directory in directories]
        """Where the file may be. Constant."""
        try:
            found = {path: files.read_all(path) for path in self._paths if files.exists(path)}
        except OSError as error:
            if not is_disk_failure(error):
                raise
            raise StorageDamaged(
                f"{error.filename} cannot be read ({error.strerror}), so it is unknown whether a version of it in "
                "another ledger directory is the last. Repair the disk, or start a bookie with a new bookieId and "
                "empty directories"
            ) from error
        generations = {path: generation_of(data) for path, data in found.items()}
        damaged = [path for path, generation in generations.items() if generation is None]
        whole = {path: generation for path, generation in generations.items() if generation is not None}
        last = max(whole, key=lambda path: whole[path], default=self._paths[0])
        self.path = damaged[0] if damaged else last
        """The path of the file that counts, or of the first one to be written. Changed by `replace`."""
        self.generation = whole.get(last, 0)
        """The generation of the newest whole file; 0: there is none. Incremented by `replace`."""
        self.data = found.get(self.path)
        """The contents of the file that counts, as found at the start; None: there is no file."""

    @property
    def directories(self) -> int:
        """The number of directories that may contain the file."""
        return len(self._paths)

    def replace(self, files: LocalFiles, encode: Callable[[int], bytes], *, elsewhere: bool = False) -> bytes:
        """Write the next version, `encode(generation)`, durably to a directory whose disk takes it; return its bytes.

        `elsewhere`: use another directory than that of the last version, if there is one.

        Raises:
            OSError: no directory took it. The last version still counts.
        """
        # Each attempt has a generation of its own, because an attempt that fails late may have left its file.
        self.generation += 1
        data = encode(self.generation)
        others = [path for path in self._paths if path != self.path]
        candidates = [*others, self.path] if elsewhere else [self.path, *others]
        error: OSError | None = None
        for path in candidates:
            try:
                files.replace(path, data)
            except OSError as refusal:
                if not refuses_writes(refusal):
                    raise
                error = error or refusal
                continue
            self.path = path
            return data
        assert error is not None, "there is a directory"
        raise error
