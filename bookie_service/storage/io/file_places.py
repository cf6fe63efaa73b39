"""Where the files of the whole bookie are, recorded beside a journal (`formats.file_places`)."""

from __future__ import annotations

import os
import threading

from bkspark.errors import StorageDamaged
from bookie_service.formats import file_places as file_format
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, refuses_writes


class RecordedPlaces:
    """The record, for reading."""

    def __init__(self, files: ReadOnlyFiles, journal: str) -> None:
        """`journal`: the `current` directory of the first journal.

        Raises:
            StorageDamaged: a later version wrote the record.
            OSError: it cannot be read.
        """
        self._path = os.path.join(journal, file_format.FILE_NAME)
        try:
            found = file_format.decode(files.read_all(self._path)) if files.exists(self._path) else None
        except ValueError as error:
            raise StorageDamaged(f"{self._path}: {error}") from error
        self.is_known = found is not None
        """Whether every file is where the record says, or nowhere. Until `settle` there may be no record."""
        self._places = found or {}
        """The number of the ledger directory of each file, as recorded."""
        self._actual = dict(self._places)
        """The number of the ledger directory of each file. Differs from `_places` only before `settle`."""

    def place(self, name: str) -> int | None:
        """Return the number of the ledger directory that has a file, as recorded; None: no directory has it."""
        return self._places.get(name)

    def found(self, name: str, number: int | None) -> None:
        """Note where a file was found at the start. `settle` records it."""
        if number is None:
            self._actual.pop(name, None)
        else:
            self._actual[name] = number


class FilePlaces(RecordedPlaces):
    """The record. `note` and `forget` are for any thread."""

    def __init__(self, files: LocalFiles, journal: str) -> None:
        """As `RecordedPlaces`. The record that was read is durable, or this raises OSError."""
        super().__init__(files, journal)
        if self.is_known:
            # A process that was killed may have replaced the record without a durable name. A start removes files that
            # the record does not name; if a power failure brought an older record back, it could name one of them.
            files.sync_directory(journal)
        self._files = files
        """Writes the record."""
        self._noting = threading.Lock()
        """Held while a place is recorded."""
        self._is_doubtful = False
        """Whether the last write failed: it is unknown what the disk has, so the next call writes in any case."""

    def settle(self) -> None:
        """Record where the files are, after all of them were found. Without a record, one is written if possible.

        Raises:
            OSError: the record is wrong and cannot be replaced.
        """
        if self.is_known and self._actual == self._places:
            return
        try:
            self._write(self._actual)
        except OSError as error:
            # Without a record a later start needs every disk.
            if self.is_known or not refuses_writes(error):
                raise

    def note(self, name: str, number: int) -> None:
        """Record, durably, that a file is in a ledger directory from now on.

        Raises:
            OSError: it is not recorded.
        """
        with self._noting:
            self._actual[name] = number
            if self.is_known and (self._is_doubtful or self._places.get(name) != number):
                self._write({**self._places, name: number})

    def forget(self, name: str) -> None:
        """Record, durably, that no directory has a file, because it was removed on purpose.

        Raises:
            OSError: it is not recorded.
        """
        with self._noting:
            self._actual.pop(name, None)
            if self.is_known and (self._is_doubtful or name in self._places):
                self._write({each: number for each, number in self._places.items() if each != name})

    def _write(self, places: dict[str, int]) -> None:
        self._is_doubtful = True
        self._files.replace(self._path, file_format.encode(places))
        self._places, self.is_known, self._is_doubtful = dict(places), True, False
