"""What a flush, a drop and a replay without space leave: complete logs, no lost entry, and a lock that is soon free."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import pytest

from bkspark.wire import v2
from bkspark.wire.framing import scan_frames
from bkspark.wire.status import Status
from bookie_service.engine.responses import Parts
from bookie_service.formats.journal import RecordKind
from bookie_service.storage.io.disk_threads import InTurn
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.ledgers import base
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.opening import Replay, open_storage
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import AppendOptions
from bookie_service.storage.logs.log_appenders import DirectoryAppenders
from bookie_service.storage.logs.log_scan import LogScan
from tests.bookie.changing import KEY, add, entry, fence, write_lac
from tests.bookie.collecting import Bench
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.flushes import CountedLock, logs_with_a_map
from tests.bookie.items import item
from tests.bookie.late_directories import LateInTurn
from tests.bookie.stepped_twins import twin_of
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import BookieTwin, Setup, TakingClient, add_frame

Ids = tuple[int, int]
T = TypeVar("T")


@pytest.mark.parametrize("directories", [1, 2])
def test_logs_of_idle_ledgers_are_complete_and_collectable_after_a_flush(directories: int) -> None:
    append = AppendOptions(2600, log_per_ledger=True, idle_s=0)
    store = StoreOptions(cache_half_bytes=6144, append=append, open_files_max=4)
    setup = Setup(ledger_directories=directories, store=store)
    twin = BookieTwin(setup.new_disk(), setup, History())
    assert add(twin, (4, 0), (5, 0), (6, 0)) == [Status.EOK] * 3
    twin.checkpoint()
    assert len(logs_with_a_map(twin)) == 3
    assert twin.store.logs.rotated() == logs_with_a_map(twin)


@pytest.mark.parametrize("directories", [1, 2])
def test_full_logs_are_collectable_once_the_index_is_durable_for_them(directories: int) -> None:
    twin = twin_of(directories=directories)
    for first in range(0, 160, 20):
        assert (
            add(twin, *((ledger_id, first + each) for each in range(20) for ledger_id in (4, 5))) == [Status.EOK] * 40
        )
    full = logs_with_a_map(twin)
    assert len(full) > directories
    assert twin.store.logs.rotated() == []
    twin.checkpoint()
    rotated = twin.store.logs.rotated()
    assert rotated == logs_with_a_map(twin)
    assert set(full) <= set(rotated)


def test_entries_are_in_the_directory_of_their_ledger() -> None:
    """A disk that is lost takes few ledgers with it."""
    twin = twin_of(directories=2)
    for first in range(0, 160, 20):
        ids = [(ledger_id, first + each) for each in range(20) for ledger_id in (4, 5, 6, 7)]
        assert add(twin, *ids) == [Status.EOK] * len(ids)
    twin.checkpoint()
    twin.store.seal_logs()
    for log_id in twin.store.logs.rotated():
        path = str(twin.store.logs.path(log_id))
        ledgers_map = LogScan(SimulatedFiles(twin.disk).open(path), log_id).ledgers_map
        assert ledgers_map is not None
        assert {f"/ledgers{ledger_id % 2}" for ledger_id in ledgers_map[0].tolist()} == {path.rpartition("/current")[0]}


@pytest.mark.parametrize("refused", ["create", "write"])
def test_replay_that_finds_no_space_for_a_while_loses_no_entry(refused: str) -> None:
    """The journal holds more than the write cache."""
    twin = twin_of()
    held = [(4, entry_id) for entry_id in range(300)]
    for first in range(0, len(held), 20):
        assert add(twin, *held[first : first + 20]) == [Status.EOK] * 20
    disk = crash_image(twin.disk, Loss.LOST, Random(1))
    was_refused = False

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal was_refused
        if was_refused or operation != refused or not path.endswith(".log"):
            return None
        was_refused = True
        return OSError(errno.ENOSPC, "No space left on device", path)

    disk.fault = fault
    again = BookieTwin(disk, twin.setup, twin.history.after_crash())
    assert was_refused
    assert [again.read(*each)[2] for each in held] == [entry(*each) for each in held]
    disk.fault = None
    again.checkpoint()
    after = BookieTwin(crash_image(disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())
    assert [after.read(*each)[2] for each in held] == [entry(*each) for each in held]


def test_replay_fills_a_half_of_the_write_cache_no_further_than_adds_do() -> None:
    """What a look-up costs counts, too."""
    setup = Setup(store=StoreOptions(cache_half_bytes=6144))
    for count in range(110, 190, 8):
        twin = BookieTwin(setup.new_disk(), setup, History())
        for first in range(0, count, 50):
            assert set(add(twin, *((4, each) for each in range(first, min(first + 50, count))))) == {Status.EOK}
        storage = open_storage(
            SimulatedFiles(crash_image(twin.disk, Loss.KEPT, Random(1))),
            setup.journal_paths,
            setup.ledger_paths,
            setup.store,
            setup.journal,
        )
        replay = Replay(storage.store, is_in_doubt=False)
        body = b"".join(item(4, each, 0) for each in range(count))
        replay.apply(RecordKind.ENTRIES, count, body)
        assert storage.store.active.room >= -600, "no more than what the ledger itself costs is lacking"


@pytest.mark.parametrize("size", [15, 16])
def test_record_with_an_entry_that_is_shorter_than_its_ids_refuses_the_start(size: int) -> None:
    twin = twin_of()
    assert add(twin, (0, 0)) == [Status.EOK]
    replay = Replay(twin.store, is_in_doubt=False)
    body = size.to_bytes(4, "big") + bytes(size)
    if size < 16:
        with pytest.raises(ValueError, match="one is shorter than its ids"):
            replay.apply(RecordKind.ENTRIES, 1, body)
    else:
        replay.apply(RecordKind.ENTRIES, 1, body)
        assert twin.read(0, 0)[2] == bytes(size)


def test_start_leaves_no_journal_file_that_it_has_replayed() -> None:
    """journalMaxBackups is 0 here."""
    twin = twin_of()
    for first in range(0, 200, 20):
        assert add(twin, *((4, first + each) for each in range(20))) == [Status.EOK] * 20
    directory = twin.setup.current_journal_paths[0]
    assert len([name for name in SimulatedFiles(twin.disk).names(directory) if name.endswith(".txn")]) > 2
    again = BookieTwin(crash_image(twin.disk, Loss.KEPT, Random(1)), twin.setup, twin.history.after_crash())
    assert len([name for name in SimulatedFiles(again.disk).names(directory) if name.endswith(".txn")]) == 1
    assert again.read(4, 199)[0] == Status.EOK


def test_header_of_a_ledger_has_a_higher_generation_after_each_change() -> None:
    """docs/formats.md: of two whole header slots the one of the higher generation counts."""
    twin, generations = twin_of(), []
    for change in (lambda: add(twin, (4, 0)), lambda: fence(twin, 4), lambda: write_lac(twin, 4, 0)):
        change()
        twin.checkpoint()
        header = twin.store.index.header(4)
        assert header is not None
        generations.append(header.generation)
    assert generations == [1, 2, 3]


class Late(LateInTurn):
    """Directories that are late are busy from their next work until `finish`."""

    def __init__(self) -> None:
        super().__init__()
        self._given: dict[int, Future[Any]] = {}

    def run(self, work: Mapping[int, Callable[[], T]]) -> dict[int, Future[T]]:
        futures = super().run(work)
        self._given |= futures
        return futures

    def is_busy(self, place: int) -> bool:
        return place in self._given and not self._given[place].done()


def late_appenders(folder: Path) -> tuple[list[str], Late, EntryLogs, DirectoryAppenders]:
    """Return two directories, their disks, which may be late, and what appends to the logs there."""
    directories = [str(folder / name) for name in "ab"]
    for each in directories:
        os.mkdir(each)
    disks = Late()
    logs = EntryLogs(LocalFiles(), directories)
    return directories, disks, logs, DirectoryAppenders(logs, AppendOptions(), directories, disks)


def test_memory_of_a_flush_is_in_use_while_a_late_disk_may_still_write_it(tmp_path: Path) -> None:
    directories, disks, logs, appenders = late_appenders(tmp_path)
    items = [item(ledger_id, entry_id, 40) for ledger_id in (2, 3) for entry_id in range(5)]
    sizes = np.array([len(each) for each in items])
    disks.late = {0}
    positions = appenders.write(np.frombuffer(b"".join(items), np.uint8), np.cumsum(sizes) - sizes, sizes)
    assert {os.path.dirname(str(logs.path(int(each) >> 32))) for each in positions} == {directories[1]}
    assert appenders.is_late
    disks.finish()
    assert not appenders.is_late
    appenders.close()


def test_log_that_a_late_disk_may_still_append_to_is_not_collected(tmp_path: Path) -> None:
    """Garbage collection would remove the file, and entries that are appended later with it."""
    directories, disks, logs, appenders = late_appenders(tmp_path)
    items = [item(ledger_id, 0, 40) for ledger_id in (2, 3)]
    sizes = np.array([len(each) for each in items])
    for late in (set(), {0}):
        disks.late = late
        appenders.write(np.frombuffer(b"".join(items), np.uint8), np.cumsum(sizes) - sizes, sizes)
    appenders.rotate()
    assert logs.rotated() == []
    disks.finish()
    appenders.seal()
    appenders.rotate()
    paths = {os.path.dirname(str(logs.path(each))): Path(str(logs.path(each))) for each in logs.rotated()}
    assert sorted(paths) == directories
    assert paths[directories[0]].read_bytes().count(items[0]) == 1, "another directory has the item of the second flush"
    appenders.close()


def test_directory_that_refused_a_flush_gets_no_entry_before_the_disks_are_looked_at(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in "ab"]
    for each in directories:
        os.mkdir(each)
    files = FaultyFiles()
    files.fault = lambda operation, path: operation == "write" and path.startswith(directories[0])
    logs = EntryLogs(files, directories)
    appenders = DirectoryAppenders(logs, AppendOptions(), directories, InTurn())
    content = item(2, 0, 40)
    appenders.write(np.frombuffer(content, np.uint8), np.array([0]), np.array([len(content)]))
    assert logs.with_room(directories) == directories[1:]
    logs.note_full(frozenset())
    assert logs.with_room(directories) == directories
    appenders.close()


def test_flush_waits_for_the_removal_of_few_index_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REMOVALS_AT_ONCE", 2)
    twin = twin_of()
    dropped = list(range(4, 11))
    assert add(twin, *((ledger_id, 0) for ledger_id in dropped)) == [Status.EOK] * 7
    twin.checkpoint()
    twin.store.prepare_drop(dropped, [], 1000)
    assert twin.store.drop(dropped) == dropped
    lock = CountedLock()
    monkeypatch.setattr(twin.store, "writing", lock)
    removed: list[int] = []

    def note(operation: str, path: str) -> None:
        if operation == "remove" and path.endswith(".idx"):
            assert lock.locked()
            removed.append(lock.taken)

    twin.disk.before_operation = note
    twin.store.sync_dropped(dropped)
    assert len(removed) == 7
    assert max(removed.count(turn) for turn in removed) == 2


class Waiting(TakingClient):
    """A connection whose adds may have to wait for room."""

    def __init__(self) -> None:
        self.resumed = 0
        self.statuses: list[int] = []

    def resume(self) -> None:
        self.resumed += 1

    def send(self, parts: Parts) -> None:
        buffer = b"".join(parts)
        self.statuses += v2.decode_replies(buffer, scan_frames(buffer, len(buffer))).statuses.tolist()


def test_adds_that_wait_for_room_are_answered_when_there_is_no_space_for_it() -> None:
    """And new adds are taken as soon as there is space, not only after the next look at the disks."""
    twin = twin_of()
    full = OSError(errno.ENOSPC, "No space left on device", "/ledgers0")
    twin.disk.fault = lambda operation, path: full if operation == "write" and path.endswith(".log") else None
    client = Waiting()
    frames = b"".join(add_frame(KEY, entry(4, entry_id)) for entry_id in range(300))
    octets, requests = twin.received(client, frames)
    with twin.loop.serving():
        assert not requests.serve(octets)
    twin._settle_journals()
    with twin.loop.serving():
        assert not requests.serve(octets), "the flush that makes room has not begun"
    client.resumed = 0
    twin.settle()
    assert twin.disks.is_stuck
    assert client.resumed == 1
    with twin.loop.serving():
        assert requests.serve(octets)
    twin.settle()
    accepted = client.statuses.count(Status.EOK)
    assert 0 < accepted < 300
    assert sorted(client.statuses) == sorted([Status.EOK] * accepted + [Status.EREADONLY] * (300 - accepted))
    twin.disk.fault = None
    twin.settle()
    assert not twin.disks.is_stuck
    assert not twin.disks.is_read_only
    assert [twin.read(4, entry_id)[0] for entry_id in range(accepted)] == [Status.EOK] * accepted


# ---- errors, and the lock ----


def flush_to_make_room(bench: Bench) -> bool:
    """Flush what is in memory; return whether that advances the marks."""
    flush = bench.store.begin_flush(advances_checkpoint=False)
    assert flush is not None
    bench.store.write_flush(flush)
    bench.store.end_flush(flush)
    return flush.advances_checkpoint


def test_bytes_before_the_marks_do_not_count_as_bytes_that_a_start_would_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "UNMARKED_BYTES_MAX", 3000)
    bench = Bench(tmp_path)
    advances = []
    for first in range(0, 100, 10):
        bench.put(1, range(first, first + 10))
        advances.append(flush_to_make_room(bench))
    assert advances == [False, False, True] * 3 + [False]
    bench.store.close()


def test_logs_are_settled_later_if_the_index_has_no_space_and_any_other_error_is_raised(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    bench.put(1, range(3))
    assert not flush_to_make_room(bench)
    files.fault = lambda operation, path: operation == "write" and path.endswith(".idx")
    files.code = errno.EMFILE
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        bench.store.seal_logs()
    files.code = errno.ENOSPC
    bench.store.seal_logs()
    assert bench.store.logs.rotated() == []
    files.fault = None
    bench.store.seal_logs()
    assert len(bench.store.logs.rotated()) == 1
    bench.store.close()


def test_ledger_on_a_failing_disk_may_be_dropped_and_a_lack_of_the_process_is_raised(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    bench.put(1, range(3))
    bench.flush()
    bench.reopen()
    files.fault = lambda operation, path: operation == "read" and path.endswith(".idx")
    files.code = errno.ENOMEM
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        bench.store.droppable([1])
    files.code = errno.EIO
    assert bench.store.droppable([1]) == [(1, True)], "its fence is unknown"
    files.fault = None
    bench.store.close()


class SettlingDisks(InTurn):
    """Disks that are late again after they were waited for once. They record whether a lock is held meanwhile."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.held: list[bool] = []

    def settle(self) -> None:
        self.held.append(self._lock.locked())

    def is_any_busy(self) -> bool:
        assert self._lock.locked(), "no flush may meet a late disk afterwards"
        return len(self.held) == 1


def test_late_disk_is_waited_for_without_keeping_flushes_out_until_none_is_late(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()
    disks = bench.store.disks = SettlingDisks(bench.store.writing)
    bench.store.keep_prepared([1])
    assert disks.held == [False, False]
    assert not bench.store.writing.locked()
    bench.store.close()
