"""Garbage collection waits for a disk that stalls; flushes wait neither for that disk nor for garbage collection."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from bookie_service.storage.io.disk_threads import DiskWork
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.io.rocks import RocksKeyValues
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.bookie.items import item
from tests.bookie.late_disks import WatchedDisks, running
from tests.bookie.ledger_stores import flush, put, read
from tests.bookie.stalling_files import SYNCS, StallingFiles
from tests.disks import ROOMY
from tests.polling import wait_until

WAIT_S = 20


class StallingKeyValues(RocksKeyValues):
    """A store whose sync stalls with the disk of its files."""

    def __init__(self, path: str, options: KeyValueOptions, files: StallingFiles) -> None:
        super().__init__(path, options)
        self._stalling_path = path
        self._stalling_files = files

    def sync(self) -> None:
        self._stalling_files.check("sync_data", self._stalling_path)
        super().sync()


class StallingDisks(StallingFiles):
    """Files and stores on disks that stall."""

    def open_key_values(self, path: str, options: KeyValueOptions) -> StallingKeyValues:
        return StallingKeyValues(path, options, self)

    def disk_work(self, directories: Sequence[str]) -> DiskWork:
        return WatchedDisks(directories)


@pytest.fixture(params=StorageClass)
def storage_class(request: pytest.FixtureRequest) -> StorageClass:
    found: StorageClass = request.param
    return found


@pytest.fixture
def files() -> StallingDisks:
    return StallingDisks()


@pytest.fixture
def store(tmp_path: Path, files: StallingDisks, storage_class: StorageClass) -> Iterator[LedgerStorage]:
    """Ledgers 2, 4 and 5 in two directories. 2 is dropped, which is not durable."""
    directories = [tmp_path / name for name in "ab"]
    for directory in directories:
        directory.mkdir()
    options = StoreOptions(storage_class, cache_half_bytes=8192, disks=ROOMY)
    made = open_ledger_storage(files, list(map(str, directories)), options)
    for ledger_id in (2, 4, 5):
        put(made, ledger_id, {0: item(ledger_id, 0, 40)})
    flush(made)
    made.prepare_drop([2], [], 0)
    assert made.drop([2]) == [2]
    made.disks.waits = False
    yield made
    files.release()
    made.close()


@pytest.fixture
def disks(store: LedgerStorage) -> WatchedDisks:
    assert isinstance(store.disks, WatchedDisks)
    store.disks.settled = 0
    return store.disks


def flushes(store: LedgerStorage) -> bool:
    """Add an entry of the directory that does not stall, and return whether its flush ends."""
    put(store, 5, {1: item(5, 1, 40)})
    thread = threading.Thread(target=flush, args=(store,), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return not thread.is_alive()


def test_flushes_go_on_if_collection_finds_a_disk_late_only_when_it_has_their_lock(
    store: LedgerStorage, disks: WatchedDisks
) -> None:
    """A flush meets the stall while collection waits for the end of the flush."""
    goes_on = threading.Event()
    with contextlib.ExitStack() as stack:
        with store.writing:
            collecting = stack.enter_context(running(lambda: store.end_limbo([5]), goes_on.set))
            wait_until(lambda: disks.settled, "collection to wait for the lock")
            disks.run({0: goes_on.wait})
        assert disks.settling.wait(WAIT_S)
        assert flushes(store)
        assert collecting.is_alive()
    assert read(store, 5, 0) == item(5, 0, 40) + item(5, 1, 40)


@pytest.mark.parametrize("ledger_id", [2, 4])
def test_flushes_go_on_while_the_list_of_ledgers_in_limbo_is_synced(
    store: LedgerStorage, files: StallingDisks, ledger_id: int
) -> None:
    store.limbo.begin([2, 4])
    files.stall("/a/limbo")
    # 2 was dropped.
    end = store.sync_dropped if ledger_id == 2 else store.end_limbo
    with running(lambda: end([ledger_id]), files.release):
        wait_until(lambda: files.holding, "the sync of the list")
        assert flushes(store)
    assert store.limbo.ledger_ids.tolist() == [6 - ledger_id]


@pytest.mark.parametrize("storage_class", [StorageClass.DB], indirect=True)
def test_flushes_go_on_while_the_removal_of_ledgers_from_the_key_value_store_is_synced(
    store: LedgerStorage, files: StallingDisks
) -> None:
    files.stall("/a/positions")
    with running(lambda: store.sync_dropped([2]), files.release):
        wait_until(lambda: files.holding, "the sync of the removal")
        assert flushes(store)
    assert read(store, 5, 0) == item(5, 0, 40) + item(5, 1, 40)
    store.disks.waits = True
    flush(store)
    assert store.is_clean
    assert store.index.ledger_ids().tolist() == [4, 5]


@pytest.mark.parametrize("storage_class", [StorageClass.DB], indirect=True)
def test_removal_without_space_is_repeated_after_a_crash_and_one_that_fails_hides_the_ledgers_of_its_disk(
    store: LedgerStorage, files: StallingDisks
) -> None:
    store.disks.waits = True
    files.fault = lambda operation, path: operation == "sync_data" and path.endswith("/a/positions")
    files.code = errno.ENOSPC
    store.sync_dropped([2])
    assert not store.index.has_hidden
    files.code = errno.EIO
    store.sync_dropped([2])
    with pytest.raises(OSError, match="cannot be read, because its disk failed"):
        store.ledger(4)
    assert store.index.ledger_ids().tolist() == [5]
    # Their entry logs are kept: the ledgers may exist again with the disk.
    assert store.in_doubt(np.array([2, 4, 5])).tolist() == [2, 4]


def test_removal_that_fails_ends_a_bookie_with_one_store_for_all_directories(
    tmp_path: Path, files: StallingDisks
) -> None:
    # As an earlier build began.
    for name in ("a/positions", "b"):
        (tmp_path / name).mkdir(parents=True)
    options = StoreOptions(StorageClass.DB, cache_half_bytes=8192, disks=ROOMY)
    store = open_ledger_storage(files, [str(tmp_path / name) for name in "ab"], options)
    put(store, 2, {0: item(2, 0, 40)})
    flush(store)
    store.prepare_drop([2], [], 0)
    assert store.drop([2]) == [2]
    files.fault = lambda operation, path: operation == "sync_data" and path.endswith("/a/positions")
    files.code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        store.sync_dropped([2])
    files.fault = None
    store.close()


def test_removal_that_fails_after_its_disk_was_late_ends_the_bookie_before_entry_logs_are_removed(
    store: LedgerStorage, files: StallingDisks
) -> None:
    """Otherwise the ledgers would exist again after a crash, and their positions would name logs that are gone."""
    failed = threading.Event()

    def collect() -> None:
        with pytest.raises(PermissionError):
            store.sync_dropped([2])
        failed.set()

    files.stall("/a/")
    with running(collect, files.release):
        wait_until(lambda: files.holding, "the sync of the removal")
        assert flushes(store)
        files.code = errno.EACCES
        files.fault = lambda operation, path: operation in SYNCS and "/a/" in path
    assert failed.is_set()
    files.fault = None
