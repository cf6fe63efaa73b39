"""The files with what key-value stores lack, because their disks are full or late (`formats.kept_changes`).

A flush whose changes one store does not take writes them, as they are in memory, to another ledger directory. Then they
are durable, and the marks may advance. So the disk of one directory keeps nothing back that belongs to the others.

A file counts until its store has made a commit with a higher number durable than the file has. All that the file has is
in that commit, or before it. Until then the store gets no removal that came after the file: at a start the file would
bring back a part of what was removed. Other later changes may be undone by the file, because the journal has them, or
they moved an entry whose old place is still there.

`FilePlaces` records the directory of each file. So a start knows which homes it cannot read, if that disk fails. A file
that is not recorded never counts: it is of an attempt that nothing relied on, or its store has everything. If the
record is lost, it is unknown which file counts, so a start refuses any whose store lacks what it has.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from bkspark.errors import StorageDamaged
from bookie_service.formats import kept_changes as kept_format
from bookie_service.formats.file_places import FILE_NAME as RECORD_NAME
from bookie_service.formats.kept_changes import KeptChanges
from bookie_service.storage.io.disk_threads import DiskWork
from bookie_service.storage.io.file_places import FilePlaces, RecordedPlaces
from bookie_service.storage.io.files import (
    LocalFiles,
    ReadOnlyFiles,
    is_disk_failure,
    is_out_of_space,
    refuses_writes,
    temporary_path,
)

_HIDDEN_ATTEMPTS_MAX = 1 << 20
"""How many attempts that were not recorded a disk may have."""


class KeptFiles:
    """The files of all homes. Written by one thread at a time."""

    def __init__(self, files: ReadOnlyFiles, directories: Sequence[str], places: RecordedPlaces | None = None) -> None:
        """Find the files.

        `directories`: the `current` directories of all ledger directories. `places`: the record of where the files are;
        None: it is not known, so all disks are needed.

        Raises:
            StorageDamaged: a file that counts is lost or damaged.
            OSError: a disk fails, and without a record its directory may have such a file.
        """
        self._directories = directories
        self._places = places
        self._had_record = places is not None and places.is_known
        """Whether the places of the files were recorded at the start. Constant."""
        self.found: dict[int, KeptChanges] = {}
        """What the file of each home had at the start."""
        self.unreadable: dict[int, OSError] = {}
        """Why the files of homes cannot be read."""
        self._generations = [0 for _ in directories]
        """How often the file of each home was written."""
        self._at: dict[int, set[int]] = {}
        """The directories that have a file of each home, as far as they could be read."""
        self._unfinished: set[tuple[int, int]] = set()
        """(home, directory) of each file that a crash left unfinished."""
        for home in range(len(directories)):
            self._find(files, home)

    def _find(self, files: ReadOnlyFiles, home: int) -> None:
        whole: dict[int, KeptChanges] = {}
        damaged: set[int] = set()
        hidden: dict[int, OSError] = {}
        for place in range(len(self._directories)):
            path = self._path(home, place)
            try:
                if files.exists(temporary_path(path)):
                    self._unfinished.add((home, place))
                if not files.exists(path):
                    continue
                changes = kept_format.decode(files.read_all(path))
            except ValueError as error:
                raise StorageDamaged(f"{path}: {error}") from error
            except OSError as error:
                if not self._had_record or not is_disk_failure(error):
                    raise
                hidden[place] = error
                continue
            if changes is None or (changes.stores, changes.home) != (len(self._directories), home):
                damaged.add(place)
            else:
                whole[place] = changes
        recorded = None if self._places is None else self._places.place(kept_format.file_name(home))
        if recorded in hidden:
            self.unreadable[home] = hidden[recorded]
            return
        # One that is not recorded was never relied on, and its number may have been used again: a run without its disk
        # did not know the number. Without a record any may have been relied on.
        suspects = {recorded} if recorded is not None else set() if self._had_record else damaged
        if lost := suspects - whole.keys():
            raise StorageDamaged(
                f"{self._path(home, min(lost))} is missing or damaged, and it had changes that the key-value store of "
                f"{self._directories[home]} lacks. Restore the file, or run `bkspark bookie --rebuild-index`"
            )
        self._at[home] = {*whole, *damaged}
        last = recorded
        if whole and not self._had_record:
            last = max(whole, key=lambda place: (whole[place].number, whole[place].generation))
        if last is not None:
            self.found[home] = whole[last]
            self._generations[home] = whole[last].generation
            if self._places is not None:
                self._places.found(kept_format.file_name(home), last)
        self._generations[home] += _HIDDEN_ATTEMPTS_MAX if hidden else 0

    def check_recorded(self, home: int) -> None:
        """Refuse what `found` had of a home, whose store lacks it, if no record says that this file counts.

        Raises:
            StorageDamaged: it may be older than a file that is lost, or of an attempt that nothing relied on.
        """
        if not self._had_record:
            raise StorageDamaged(
                f"{self._directories[home]}: the key-value store lacks what {kept_format.file_name(home)} in another "
                f"ledger directory has, and {RECORD_NAME} in the first journal directory is missing or damaged, which "
                "says whether this file is the last one. Restore that file, or run `bkspark bookie --rebuild-index`"
            )

    def _path(self, home: int, place: int) -> str:
        return os.path.join(self._directories[place], kept_format.file_name(home))

    def remove_unfinished(self, files: LocalFiles, disks: DiskWork) -> None:
        """Remove what a crash left of files that were being written. One whose disk fails stays.

        Raises:
            OSError: a removal failed for another reason.
        """
        for home, place in sorted(self._unfinished):
            work = {place: partial(_remove_if_there, files, temporary_path(self._path(home, place)))}
            _check_removals(disks.run(work))

    def has(self, home: int) -> bool:
        """Return whether there is a file of a home, whether it counts or not."""
        return bool(self._at.get(home))

    def save(self, files: LocalFiles, disks: DiskWork, changes: KeptChanges, avoided: Collection[int]) -> bool:
        """Write what a store lacks durably to another directory; return whether one took it.

        False without a record of places: if the disk of the file failed, a start would not know that it is missing.

        The generation of the changes does not matter. `avoided`: the numbers of directories that are not tried.

        Raises:
            OSError: the disk of the record of places fails.
        """
        home, places = changes.home, self._places
        if not isinstance(places, FilePlaces) or not places.is_known:
            return False
        # Each attempt has a generation of its own, because one that is late may leave its file later.
        self._generations[home] += 1
        data = kept_format.encode(replace(changes, generation=self._generations[home]))
        at = self._at.setdefault(home, set())
        last = places.place(kept_format.file_name(home))
        for place in sorted(range(len(self._directories)), key=lambda place: place != last):
            if place == home or place in avoided or disks.is_busy(place):
                continue
            at.add(place)
            future = disks.run({place: partial(_write, files, self._path(home, place), data)})[place]
            error = future.exception() if future.done() else None
            if error is not None and not (isinstance(error, OSError) and refuses_writes(error)):
                raise error
            if future.done() and error is None:
                return _is_recorded(partial(places.note, kept_format.file_name(home), place))
        return False

    def remove(self, files: LocalFiles, disks: DiskWork, home: int) -> None:
        """Remove the files of a home, whose store has everything durably. One whose disk is late stays until a later
        call, and one whose disk fails until the next start, which ignores it. If the record of places has no space for
        a change, all stay until the next call.

        Raises:
            OSError: the disk of the record of places fails.
        """
        places = self._places
        if not isinstance(places, FilePlaces):
            return
        if not _is_recorded(partial(places.forget, kept_format.file_name(home))):
            return
        at = self._at.get(home, set())
        work = {place: partial(_remove, files, self._path(home, place)) for place in at if not disks.is_busy(place)}
        self._at[home] = at - work.keys()
        _check_removals(disks.run(work))


def _is_recorded(change: Callable[[], None]) -> bool:
    """Change the record of places; return whether there was space for it. Raises OSError if its disk fails."""
    try:
        change()
    except OSError as error:
        if not is_out_of_space(error):
            raise
        return False
    return True


def _check_removals(work: Mapping[int, Future[None]]) -> None:
    """Raise the error of a removal, unless its disk is late, full or fails."""
    for future in work.values():
        error = future.exception() if future.done() else None
        if error is not None and not (isinstance(error, OSError) and refuses_writes(error)):
            raise error


def _write(files: LocalFiles, path: str, data: bytes) -> None:
    try:
        files.replace(path, data)
    except OSError:
        # A part of it would take the space that this directory needs itself.
        with contextlib.suppress(OSError):
            _remove_if_there(files, temporary_path(path))
        raise


def _remove(files: LocalFiles, path: str) -> None:
    for each in (path, temporary_path(path)):
        _remove_if_there(files, each)


def _remove_if_there(files: LocalFiles, path: str) -> None:
    if files.exists(path):
        files.remove(path)


def forget_kept_files(
    files: LocalFiles, places: FilePlaces, directories: Sequence[str], *, leaves_out_failing: bool = False
) -> None:
    """Remove all files, durably, because another index was built. None counts from now on, if there is a record.

    `directories`: the `current` directories of all ledgers. `leaves_out_failing`: files on disks that fail stay, which
    is right only if index files count from now on: without a record such a file would count beside new stores.

    Raises:
        OSError: a disk fails.
    """
    # First, because one that has a place and is gone counts as lost.
    for home in range(len(directories)):
        places.forget(kept_format.file_name(home))
    for directory in directories:
        try:
            for home in range(len(directories)):
                _remove(files, os.path.join(directory, kept_format.file_name(home)))
            files.sync_directory(directory)
        except OSError as error:
            if not leaves_out_failing or not is_disk_failure(error):
                raise
