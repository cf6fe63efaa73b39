"""A small file of the whole bookie, kept in one of its ledger directories: the first one that takes it.

If the disk of the current file is full or fails, the next version goes to another directory. Each version has a
generation, and the highest one counts. Older versions may remain in directories that could not be changed.
`file_places` records the directory of the last version, for a start at which a disk cannot be read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from bkspark.errors import StorageDamaged
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import (
    LocalFiles,
    ReadOnlyFiles,
    is_disk_failure,
    is_out_of_space,
    refuses_writes,
)

_HIDDEN_ATTEMPTS_MAX = 1 << 20
"""How many attempts that were not recorded a disk may have."""


class PlacedFile:
    """The place of such a file. Written by one thread at a time."""

    def __init__(
        self,
        files: ReadOnlyFiles,
        directories: Sequence[str],
        name: str,
        generation_of: Callable[[bytes], int | None],
        places: FilePlaces | None = None,
    ) -> None:
        """`generation_of(contents)` returns None for damaged contents. A damaged file counts, because it may be the
        newest version. `places`: the record of where the file is; None: there is none.

        Raises:
            StorageDamaged: a disk cannot be read, and it may have the file that counts.
        """
        self._name = name
        self._places = places
        self._paths = [os.path.join(directory, name) for directory in directories]
        """Where the file may be. Constant."""
        found, hidden = self._read(files)
        generations = {path: generation_of(data) for path, data in found.items()}
        damaged = [path for path, generation in generations.items() if generation is None]
        whole = {path: generation for path, generation in generations.items() if generation is not None}
        last = max(whole, key=lambda path: whole[path], default=self._paths[0])
        self.path = damaged[0] if damaged else last
        """The path of the file that counts, or of the first one to be written. Changed by `replace`."""
        # An attempt that was not recorded may have left a version on a disk that cannot be read.
        self.generation = whole.get(last, 0) + (_HIDDEN_ATTEMPTS_MAX if hidden else 0)
        """The generation of the newest whole file; 0: there is none. Incremented by `replace`."""
        self._is_written = bool(found)
        """Whether there is a version."""
        self.data = found.get(self.path)
        """The contents of the file that counts, as found at the start; None: there is no file."""
        recorded = None if places is None else places.place(name)
        self.is_lost = recorded is not None and not found.keys() & self._paths[recorded : recorded + 1]
        """Whether the last version is missing. Reset by `replace`."""
        if places is not None and not self.is_lost:
            places.found(name, None if self.data is None else self._paths.index(self.path))

    def _read(self, files: ReadOnlyFiles) -> tuple[dict[str, bytes], set[str]]:
        """Return (the contents of the files by path, the paths that cannot be read)."""
        found: dict[str, bytes] = {}
        hidden: set[str] = set()
        for number, path in enumerate(self._paths):
            try:
                if files.exists(path):
                    found[path] = files.read_all(path)
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                self._check_needless(number, error)
                hidden.add(path)
        return found, hidden

    def _check_needless(self, number: int, error: OSError) -> None:
        """Raise StorageDamaged if the directory with this number, whose disk fails, may have the last version."""
        places = self._places
        if places is None or not places.is_known:
            why = "so it is unknown whether a version of it in another ledger directory is the last"
        elif places.place(self._name) == number:
            why = "and the bookie cannot serve without this file"
        else:
            return
        raise StorageDamaged(
            f"{self._paths[number]} cannot be read ({error.strerror}), {why}. Repair the disk, or start a bookie with "
            "a new bookieId and empty directories"
        ) from error

    def is_out_of_reach(self, files: ReadOnlyFiles) -> bool:
        """Return whether there is a file, and its disk fails, so that a start could not read it."""
        if not self._is_written:
            return False
        try:
            # A start asks for the file, and then reads it.
            files.exists(self.path)
            with contextlib.closing(files.open(self.path)) as file:
                file.read(1, 0)
        except OSError as error:
            # Any other error says nothing about the disk.
            return is_disk_failure(error)
        return False

    @property
    def directories(self) -> int:
        """The number of directories that may contain the file."""
        return len(self._paths)

    def replace(self, files: LocalFiles, encode: Callable[[int], bytes], *, elsewhere: bool = False) -> bytes:
        """Write the next version, `encode(generation)`, durably to a directory whose disk takes it; return its bytes.

        `elsewhere`: use another directory than that of the last version, if there is one. So it is if the last version
        is out of reach.

        Raises:
            OSError: no directory took it. The last version still counts.
        """
        # Each attempt has a generation of its own, because an attempt that fails late may have left its file.
        self.generation += 1
        data = encode(self.generation)
        others = [path for path in self._paths if path != self.path]
        elsewhere = elsewhere or self.is_out_of_reach(files)
        candidates = [*others, self.path] if elsewhere else [self.path, *others]
        errors: list[OSError] = []
        for path in candidates:
            try:
                files.replace(path, data)
            except OSError as error:
                if not refuses_writes(error):
                    raise
                errors.append(error)
                continue
            if self._places is not None:
                self._places.note(self._name, self._paths.index(path))
            self.path, self.is_lost, self._is_written = path, False, True
            return data
        # After a lack of space the callers try again; a failure of a disk may be final.
        raise next(filter(is_out_of_space, errors), errors[0])
