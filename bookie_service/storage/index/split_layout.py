"""Whether a bookie has one key-value store for all ledgers, or one for each ledger directory, and which are lost.

The files beside the stores say it (`formats.key_value_index`). A new bookie with several directories gets a store in
each. Its creation has three steps, each durable before the next one: the file of every directory says that the stores
are being created; the stores are created; every file says that they were. Rows come after that. So if a file or a store
is missing, and a file says that the stores were created, rows may be lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bkspark.errors import StorageDamaged
from bookie_service.formats import key_value_index as index_format
from bookie_service.formats.key_value_index import COMMIT_NAME, COMMIT_SUFFIX, DIRECTORY_NAME, STORES_MAX, StoreCommit
from bookie_service.storage.index.key_value_index import REMEDY, read_commit
from bookie_service.storage.io.files import LocalFiles, ReadOnlyFiles, is_disk_failure


@dataclass(frozen=True, slots=True)
class SplitLayout:
    """One store for each ledger directory.

    hidden: the errors of directories that cannot be read, by number.
    is_being_created: the creation of the stores did not end, or has not begun.
    """

    stores: int
    hidden: dict[int, OSError]
    is_being_created: bool

    def commit(self, home: int) -> StoreCommit:
        """Return which store directory number `home` has."""
        return StoreCommit(0, self.stores, home, self.is_being_created)


def find_layout(
    files: ReadOnlyFiles, directories: Sequence[str], may_be_new: Callable[[], bool] = lambda: False
) -> SplitLayout | None:
    """Return how the stores are divided; None: one store in the first directory has all ledgers, or should have.

    `directories`: the `current` directories of all ledger directories. `may_be_new`: whether there may be no index yet.

    Raises:
        StorageDamaged: a store is lost, or the files contradict each other.
        OSError: a disk fails, and the stores are not created yet.
    """
    found: list[StoreCommit | None] = []
    hidden: dict[int, OSError] = {}
    for home, directory in enumerate(directories):
        try:
            found.append(read_commit(files, os.path.join(directory, COMMIT_NAME)))
        except OSError as error:
            if not is_disk_failure(error):
                raise
            found.append(None)
            hidden[home] = error
    if any(commit is not None and commit.stores > 1 for commit in found):
        return _existing(directories, found, hidden)
    if len(directories) == 1 or len(directories) > STORES_MAX or not may_be_new() or _has_store(files, directories[0]):
        return None
    if hidden:
        raise next(iter(hidden.values()))
    return SplitLayout(len(directories), {}, is_being_created=True)


def _has_store(files: ReadOnlyFiles, directory: str) -> bool:
    """Return whether a directory has the only store, or had it."""
    return any(files.exists(os.path.join(directory, name)) for name in (DIRECTORY_NAME, COMMIT_NAME))


def _existing(
    directories: Sequence[str], found: Sequence[StoreCommit | None], hidden: dict[int, OSError]
) -> SplitLayout:
    stores = len(directories)
    for home, commit in enumerate(found):
        if commit is not None and (commit.stores, commit.home) != (stores, home):
            raise StorageDamaged(
                f"{os.path.join(directories[home], COMMIT_NAME)}: it is of store {commit.home} of {commit.stores}, but "
                f"this is directory {home} of {stores} with a store each: mount or move each where it was. Otherwise "
                + REMEDY
            )
    known = [commit for commit in found if commit is not None]
    missing = [home for home, commit in enumerate(found) if commit is None and home not in hidden]
    is_being_created = all(commit.is_being_created for commit in known)
    if missing and (hidden or not is_being_created):
        path = os.path.join(directories[missing[0]], DIRECTORY_NAME)
        raise StorageDamaged(
            f"{path}: the key-value store is missing, or {COMMIT_NAME} beside it is missing or unreadable, and each of "
            f"the {stores} ledger directories had one; {REMEDY}"
        )
    if hidden and any(commit.is_being_created for commit in known):
        raise next(iter(hidden.values()))
    return SplitLayout(stores, hidden, is_being_created)


def begin_creation(files: LocalFiles, directories: Sequence[str], layout: SplitLayout, name: str) -> None:
    """Record durably in each directory that the stores are being created. Raises OSError if that is not possible.

    `name`: of each store.
    """
    for home, directory in enumerate(directories):
        path = os.path.join(directory, name + COMMIT_SUFFIX)
        # A crash may have left the record without making its name durable, so it is written again.
        files.replace(path, index_format.encode_store_commit(layout.commit(home)))
