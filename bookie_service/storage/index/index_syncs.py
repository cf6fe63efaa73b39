"""Makes index files durable. The files of each ledger directory are synced on the thread of its disk.

A sync that is late (`disk_threads`) continues. Nothing counts as durable, and no other sync begins, before it has ended
and its result was taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from bookie_service.storage.index.index import IndexPaths
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.io.disk_threads import DiskStalled, DiskWork
from bookie_service.storage.io.files import FileSystem, LocalFiles, SyncFailed, refuses_writes


@dataclass(slots=True)
class SyncRefusals:
    """The syncs that failed because of their disk: of single files, and of whole directories."""

    ledgers: dict[int, SyncFailed] = field(default_factory=dict)
    """The errors of single files, by ledger id."""
    places: dict[int, SyncFailed] = field(default_factory=dict)
    """The errors of whole directories, by number."""


class IndexSyncs:
    """Syncs files of the index. For one thread at a time: the index writer's."""

    def __init__(
        self,
        files: LocalFiles,
        paths: IndexPaths,
        disks: DiskWork,
        file_systems: Sequence[FileSystem | None],
        files_synced_singly_max: int,
    ) -> None:
        """`file_systems`: the file system of each directory; if one is None, files are always synced one by one."""
        self._files = files
        self._paths = paths
        self._disks = disks
        self._file_systems = [each for each in file_systems if each is not None]
        self.syncs_file_systems = len(self._file_systems) == len(file_systems)
        """Whether many files can be made durable by one sync of their file system. Constant."""
        self.files_synced_singly_max = files_synced_singly_max
        """From more changed files on, their file system is synced as a whole."""
        self._late: dict[int, Future[SyncRefusals]] = {}
        """Syncs that the last caller did not wait for, by number of the directory. Emptied by `refusals`."""

    def sync(
        self, written: dict[int, IndexFile], ledger_ids: Collection[int], directories: Collection[str]
    ) -> SyncRefusals:
        """Sync the files of ledgers, and the names in directories.

        `written`: open files of ledgers. Those that are synced are taken out and closed.

        Raises:
            DiskStalled: a disk is late.
            SyncFailed: the reason has nothing to do with one disk.
        """
        by_place: dict[int, tuple[list[int], list[str]]] = {}
        for ledger_id in sorted(ledger_ids):
            by_place.setdefault(self._paths.place(ledger_id), ([], []))[0].append(ledger_id)
        for directory in sorted(directories):
            by_place.setdefault(self._paths.place_of(directory), ([], []))[1].append(directory)
        work: dict[int, Callable[[], SyncRefusals]]
        if self.syncs_file_systems and len(ledger_ids) + len(directories) > self.files_synced_singly_max:
            work = {place: partial(self._sync_file_system, place) for place in sorted(by_place)}
            for ledger_id in list(written):
                written.pop(ledger_id).close()
        else:
            work = {
                place: partial(self._sync_files, place, {each: written.pop(each, None) for each in ledgers}, names)
                for place, (ledgers, names) in sorted(by_place.items())
            }
        self._late.update(self._disks.run(work))
        return self.refusals()

    def sync_names(self, directories: Collection[str]) -> Collection[Future[None]]:
        """Begin to make the removal of names in directories durable, as far as their disks take writes.

        Return the syncs of the disks. Some may be late. One that fails, and not because of its disk, has an OSError.
        """
        by_place: dict[int, list[str]] = {}
        for directory in sorted(directories):
            by_place.setdefault(self._paths.place_of(directory), []).append(directory)
        is_much = self.syncs_file_systems and len(directories) > self.files_synced_singly_max
        work: dict[int, Callable[[], None]] = {}
        for place, names in by_place.items():
            one_by_one = [partial(self._files.sync_directory, each) for each in names]
            work[place] = partial(_sync_removals, [self._file_systems[place].sync] if is_much else one_by_one)
        return self._disks.run(work).values()

    def record(self, place: int, work: Callable[[], None]) -> None:
        """Do some work for a file of the whole index in directory number `place`.

        Raises:
            DiskStalled: the disk is late.
            OSError: as `work`.
        """

        def recorded() -> SyncRefusals:
            work()
            return SyncRefusals()

        self._late.update(self._disks.run({place: recorded}))
        self.refusals()

    def refusals(self) -> SyncRefusals:
        """Return the results of all syncs, including those that were late. Each result is returned once. If the bookie
        waits for every disk, as at its end, it waits for late ones.

        Raises:
            DiskStalled: a sync is still late; the results of the others are kept.
            OSError: one failed.
        """
        if self._disks.waits:
            self._disks.settle()
        late = [place for place, future in self._late.items() if not future.done()]
        if late:
            raise DiskStalled(f"ledger directory number {late[0] + 1} has not finished a sync yet")
        ended, self._late = self._late, {}
        found = SyncRefusals()
        for future in ended.values():
            refused = future.result()
            found.ledgers |= refused.ledgers
            found.places |= refused.places
        return found

    def _sync_file_system(self, place: int) -> SyncRefusals:
        found = SyncRefusals()
        with _noting(found.places, place):
            self._file_systems[place].sync()
        return found

    def _sync_files(
        self, place: int, ledgers: Mapping[int, IndexFile | None], directories: Collection[str]
    ) -> SyncRefusals:
        """Sync files of one directory, and then the names in it. A file that is not open is opened first."""
        found = SyncRefusals()
        for ledger_id, written in ledgers.items():
            with _noting(found.ledgers, ledger_id):
                file = written or IndexFile(self._files.open(self._paths.path(ledger_id)))
                with contextlib.closing(file):
                    file.file.sync_data()
        for directory in directories:
            with _noting(found.places, place):
                self._files.sync_directory(directory)
        return found


def _sync_removals(syncs: Sequence[Callable[[], None]]) -> None:
    """Do syncs after names were removed, on the thread of their disk."""
    for sync in syncs:
        try:
            sync()
        except FileNotFoundError:
            pass  # ledgers without entries have no files there
        except OSError as error:
            if not refuses_writes(error):
                raise


def is_of_disk(error: OSError) -> bool:
    """Return whether an error, for example of a sync, means that one disk takes no writes. Its files then go to another
    one."""
    return refuses_writes(OSError(error.errno, error.strerror))


@contextlib.contextmanager
def _noting(failed: dict[int, SyncFailed], key: int) -> Iterator[None]:
    """Record a sync that fails because of its disk."""
    try:
        yield
    except OSError as error:
        failure = SyncFailed(error.errno, error.strerror, error.filename)
        if not is_of_disk(error):
            raise failure from error
        failed.setdefault(key, failure)


@contextlib.contextmanager
def syncing() -> Iterator[None]:
    """Make a failed sync final: pages that it did not write count as clean, so no later sync would write them."""
    try:
        yield
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, error.filename) from error
