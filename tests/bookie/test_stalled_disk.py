"""A ledger directory whose disk does not answer delays only itself; one that answers again is used again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.network.connection import ConnectionOptions
from bookie_service.settings.service_options import ServiceOptions
from bookie_service.storage.io.disk_threads import DiskThreads
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.serving import Peer, Serving, service_options
from tests.bookie.stalling_files import StallingFiles
from tests.bookie.three_directories import LEDGERS, PAYLOADS, make_only_store, marks, read_all, settle, write_all
from tests.disks import ROOMY, ROOMY_DISKS
from tests.polling import wait_until

HALF_BYTES = 200_000
"""Less than what one call of `write_all` adds."""


def options(directory: Path, storage_class: StorageClass = StorageClass.SORTED) -> ServiceOptions:
    return replace(
        service_options(directory),
        ledger_directories=[str(directory / name) for name in "abc"],
        connection=ConnectionOptions(frame_bytes_max=HALF_BYTES // 2),
        disks=replace(ROOMY_DISKS, interval_s=0.05),
        checkpoint_interval_s=0.05,
        store=StoreOptions(storage_class, HALF_BYTES, AppendOptions(400_000), disks=ROOMY),
        journal=JournalOptions(backups_max=0, file_bytes_max=400_000),
    )


@pytest.fixture
def files() -> Iterator[StallingFiles]:
    made = StallingFiles()
    yield made
    made.release()


class ImpatientServing(Serving):
    """A service for which a disk is late soon, and which soon says that its stop takes long."""

    slow_stop_s = 0.05

    def __enter__(self) -> Serving:
        super().__enter__()
        disks = self.service.storage.store.disks
        assert isinstance(disks, DiskThreads)
        disks.stall_s = 0.05
        return self


def stall(serving: Serving, files: StallingFiles, peer: Peer, name: str) -> None:
    """Stall a disk, and return when a flush met that. All before it is flushed."""
    settle(serving)
    files.stall(f"/{name}/current")
    assert set(peer.add(LEDGERS["abc".index(name)], 40, PAYLOADS)) == {Status.EOK}
    wait_until(lambda: files.holding, "a sync of the stalled disk")


def kept_files(directory: Path) -> set[str]:
    """Return the names of the files with changes that a directory's index lacks."""
    return {path.name for path in directory.glob("*/current/positions.kept.?")}


@contextmanager
def used_beside_a_stall(
    directory: Path, files: StallingFiles, name: str, storage_class: StorageClass
) -> Iterator[dict[str, bytes]]:
    """Use a bookie while a disk stalls, then after that, and start it again. The block runs while the disk stalls; it
    gets the marks from before."""
    with ImpatientServing(options(directory, storage_class), files) as serving, serving.connect() as peer:
        write_all(peer, 0)
        stall(serving, files, peer, name)
        before = marks(directory)
        # Adds that find no room are not answered: each of these needs several flushes.
        for first in range(40, 240, 40):
            write_all(peer, first)
        read_all(peer, 240)
        assert serving.failure is None
        yield before
        files.release()
        settle(serving)
        moved = {each for each, mark in marks(directory).items() if mark != before[each]}
        assert len(moved) >= 2
        write_all(peer, 240)
        # Each add lets a flush begin: one that meets a late disk leaves the removal of a file there to the next one.
        wait_until(
            lambda: peer.add(LEDGERS[0], 240, PAYLOADS[:1]) and not kept_files(directory),
            "the index of the disk to get what it lacked",
        )
        read_all(peer, 280)
    assert serving.failure is None
    with ImpatientServing(options(directory, storage_class), files) as serving, serving.connect() as peer:
        read_all(peer, 280)


def full_logs(directory: Path) -> set[str]:
    """Return the ledger directories with entry logs of more than one flush."""
    return {path.parts[-3] for path in directory.glob("*/current/*.log") if path.stat().st_size > HALF_BYTES}


@pytest.mark.parametrize("storage_class", [StorageClass.SORTED, StorageClass.INTERLEAVED])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_adds_reads_and_flushes_go_on_while_a_disk_stalls_and_the_mark_waits_for_it(
    tmp_path: Path, files: StallingFiles, name: str, storage_class: StorageClass
) -> None:
    with used_beside_a_stall(tmp_path, files, name, storage_class) as before:
        assert marks(tmp_path) == before
        assert {*"abc"} - {name} <= full_logs(tmp_path)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_mark_waits_for_a_disk_that_stalls_if_it_has_the_only_store(
    tmp_path: Path, files: StallingFiles, name: str
) -> None:
    make_only_store(tmp_path)
    with used_beside_a_stall(tmp_path, files, name, StorageClass.DB) as before:
        # No other directory needs a sync for the index.
        if name == "a":
            assert marks(tmp_path) == before
            assert {"b", "c"} <= full_logs(tmp_path)
        assert not kept_files(tmp_path)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_marks_advance_beside_a_disk_that_stalls_after_what_its_store_lacks_is_in_another_directory(
    tmp_path: Path, files: StallingFiles, name: str
) -> None:
    kept = f"positions.kept.{'abc'.index(name)}"
    with used_beside_a_stall(tmp_path, files, name, StorageClass.DB) as before:
        others = {*"abc"} - {name}
        wait_until(lambda: all(marks(tmp_path)[each] != before[each] for each in others), "the other marks to move")
        # On a machine with other work the other disks may be late, too, for a moment.
        wait_until(lambda: kept_files(tmp_path) == {kept}, "the stores of the other disks to have everything")
        assert marks(tmp_path)[name] == before[name]
        assert others <= full_logs(tmp_path)
        renamed = [path for operation, path in files.operations[files.stalled_at :] if operation == "rename"]
        order = [os.path.basename(path) for path in renamed if path.endswith((kept, "lastMark"))]
        assert order[0] == kept, "the marks advanced before the changes were in another directory"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_disk_that_stalls_and_then_fails_is_treated_as_one_that_fails(
    tmp_path: Path, files: StallingFiles, code: int
) -> None:
    with ImpatientServing(options(tmp_path), files) as serving, serving.connect() as peer:
        write_all(peer, 0)
        stall(serving, files, peer, "b")
        write_all(peer, 40)
        files.code = code
        files.fault = lambda operation, path: operation in ("write", "create", "sync_data") and "/b/current" in path
        files.release()
        write_all(peer, 80)
        settle(serving)
        read_all(peer, 120)
    assert serving.failure is None
    files.fault = None
    with ImpatientServing(options(tmp_path), files) as serving, serving.connect() as peer:
        read_all(peer, 120)


def test_error_that_no_disk_explains_ends_the_bookie_also_when_it_comes_late(
    tmp_path: Path, files: StallingFiles
) -> None:
    with ImpatientServing(options(tmp_path), files) as serving, serving.connect() as peer:
        write_all(peer, 0)
        stall(serving, files, peer, "c")
        files.code = errno.EACCES
        files.fault = lambda operation, path: operation == "sync_data" and "/c/current" in path
        files.release()
        assert isinstance(serving.wait_for_failure(), PermissionError)


def test_stop_waits_for_a_disk_that_stalls_and_says_so(
    tmp_path: Path, files: StallingFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with ImpatientServing(options(tmp_path), files) as serving, serving.connect() as peer:
        write_all(peer, 0)
        stall(serving, files, peer, "b")
        write_all(peer, 40)
        stopping = threading.Thread(target=serving.__exit__)
        stopping.start()
        wait_until(lambda: serving.service.storage.store.disks.waits, "the stop to begin")
        wait_until(lambda: "the bookie has been stopping for 0.05 s" in caplog.text, "the line that it waits")
        assert stopping.is_alive()
        files.release()
        stopping.join(120)
        assert not stopping.is_alive()
    assert serving.failure is None
    assert len(set(marks(tmp_path).values())) == 1
    with ImpatientServing(options(tmp_path), files) as serving, serving.connect() as peer:
        read_all(peer, 80)


@pytest.mark.parametrize("storage_class", StorageClass)
@pytest.mark.parametrize("writes_data", [True, False])
def test_stop_waits_for_a_late_sync_of_an_index_and_makes_everything_durable(
    tmp_path: Path,
    files: StallingFiles,
    caplog: pytest.LogCaptureFixture,
    storage_class: StorageClass,
    writes_data: bool,
) -> None:
    """Without journalWriteData, only a stop in order keeps what is in memory: a bookie then denied what it had
    acknowledged."""
    bookie = replace(options(tmp_path, storage_class), bookie=BookieOptions(journals_entries=writes_data))
    with ImpatientServing(bookie, files) as serving, serving.connect() as peer:
        write_all(peer, 0)
        settle(serving)
        files.stall("/b/current/positions.commit" if storage_class is StorageClass.DB else "/b/current/0/")
        write_all(peer, 40)
        wait_until(lambda: files.holding, "a sync of an index that stalls")
        write_all(peer, 80)
        stopping = threading.Thread(target=serving.__exit__)
        stopping.start()
        wait_until(lambda: serving.service.storage.store.disks.waits, "the stop to begin")
        wait_until(lambda: "the bookie has been stopping for 0.05 s" in caplog.text, "the line that it waits")
        assert ("If you kill the process, because a disk does not answer, nothing" in caplog.text) == writes_data
        assert stopping.is_alive()
        files.release()
        stopping.join(120)
        assert not stopping.is_alive()
    assert serving.failure is None
    with ImpatientServing(bookie, files) as serving, serving.connect() as peer:
        assert serving.service.storage.replayed == 0, "the marks are after everything"
        read_all(peer, 120)


def test_each_directory_keeps_its_order_and_the_mark_comes_after_all_of_them(
    tmp_path: Path, files: StallingFiles
) -> None:
    with ImpatientServing(options(tmp_path), files) as serving, serving.connect() as peer:
        settle(serving)
        files.operations.clear()
        for ledger_id in LEDGERS:
            assert peer.add(ledger_id, 0, [b"one"]) == [Status.EOK]
        settle(serving)
    numbered = list(enumerate(files.operations))
    index_synced = []
    for name in "abc":
        here = [(at, operation, path) for at, (operation, path) in numbered if f"/{name}/current/" in path]
        log_synced = min(at for at, operation, path in here if operation == "sync_data" and path.endswith(".log"))
        written = min(at for at, operation, path in here if operation == "write" and path.endswith(".idx"))
        synced = [at for at, operation, path in here if operation == "sync_data" and path.endswith(".idx")]
        assert log_synced < written < min(synced)
        index_synced += synced
    moved = [at for at, (operation, path) in numbered if operation == "rename" and path.endswith("lastMark")]
    assert min(index_synced) < min(moved)
    assert max(index_synced) < max(moved)
