"""What clients and the collector get while the disk of one home of several fails, is full or late."""

from __future__ import annotations

import errno
import logging
import os
from random import Random
from typing import Any

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.status import Status
from bookie_service.admin.rebuild import Rebuild
from bookie_service.formats import file_places
from bookie_service.formats import key_value_index as index_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index import key_value_index
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.kept_files import KeptFiles
from bookie_service.storage.index.split_index import open_index_view
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.kept_key_values import KeptKeyValues
from bookie_service.storage.ledgers import base
from bookie_service.storage.ledgers.limbo import Limbo
from tests.bookie.changing import Statuses
from tests.crash.campaign import reopened
from tests.crash.doubts import stopped_bookie
from tests.crash.full_disks import Trouble
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.late_disks import LateDisks
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.relaxed import DeferringClient, defer
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles, os_error
from tests.crash.simulated_key_values import SimulatedKeyValues
from tests.crash.split_stores import LEDGERS, audit_all, audit_limbo, failing_disk, filled, put, split_setup
from tests.crash.twins import BookieTwin
from tests.planting import around, replaced

# ---- forces ----


def deferring(*, bypasses_journal: bool) -> BookieTwin:
    """Return a bookie with two homes, and two deferred adds to ledgers 1 and 2 that no flush has."""
    setup = split_setup(2)
    twin = BookieTwin(setup.new_disk(), setup, History())
    client = DeferringClient(twin.history)
    for entry_ids in (range(2), range(2, 4)):
        twin.checkpoint()
        for ledger_id in (1, 2):
            defer(twin, client, ledger_id, entry_ids, bypasses_journal=bypasses_journal)
    return twin


def force(twin: BookieTwin, ledger_id: int) -> Statuses:
    client = Statuses()
    with twin.loop.serving():
        twin.bookie.force(client, ledger_id, lambda status: (bytes([status]),))
    return client


@pytest.mark.parametrize("bypasses_journal", [False, True])
def test_force_of_a_ledger_whose_disk_has_failed_is_an_error(bypasses_journal: bool) -> None:
    twin = deferring(bypasses_journal=bypasses_journal)
    twin.disk.fault = failing_disk(1)
    twin.checkpoint()
    forced = {ledger_id: force(twin, ledger_id) for ledger_id in (1, 2)}
    twin.checkpoint()
    assert {ledger_id: client.got for ledger_id, client in forced.items()} == {1: [Status.EIO], 2: [Status.EOK]}
    assert twin.read(1, 3)[0] == Status.EIO


def test_force_that_waits_for_a_flush_in_which_the_disk_of_its_ledger_fails_is_an_error() -> None:
    twin = deferring(bypasses_journal=True)
    twin.disk.fault = failing_disk(1)
    forced = {ledger_id: force(twin, ledger_id) for ledger_id in (1, 2)}
    assert [client.got for client in forced.values()] == [[], []]
    twin.settle()
    assert {ledger_id: client.got for ledger_id, client in forced.items()} == {1: [Status.EIO], 2: [Status.EOK]}


def test_entries_that_a_flush_lost_with_a_disk_never_count_as_synced() -> None:
    twin = deferring(bypasses_journal=True)
    cursor, _ = twin.bookie._deferrals._unflushed[1]
    twin.disk.fault = failing_disk(1)
    twin.checkpoint()
    assert cursor.last_synced == 1


# ---- limbo ----


def test_limbo_goes_on_if_the_disk_fails_while_its_end_waits_for_a_flush() -> None:
    """An add may have come after the check of the ledger, and the flush lost it with the disk."""
    twin = filled(2)
    store = twin.store
    store.limbo.begin([1, 2])
    twin.add(1, [(9, b"recovered")], flags=RECOVERY_ADD)
    flushes = [store.begin_flush()]

    def flush_first(old: Any, self: Any) -> None:
        if flushes:
            flush = flushes.pop()
            assert flush is not None
            twin.disk.fault = failing_disk(1)
            store.write_flush(flush)
            store.end_flush(flush)
        old(self)

    with around(type(store.disks), "settle", flush_first):
        store.end_limbo([1, 2])
    assert store.limbo.ledger_ids.tolist() == [1]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_dropped_ledger_stays_in_limbo_until_its_removal_is_durable(code: int) -> None:
    """It may come back with its disk, and lack entries that it denies then."""
    twin = filled(2)
    twin.store.limbo.begin([1, 3])
    twin.history.delete(1)
    twin.disk.fault = lambda operation, path: (
        os_error(code, path) if operation == "write" and path.startswith("/ledgers1/current/positions/") else None
    )
    twin.collect(DoubtfulMetadataView(twin.history.ledgers))
    assert twin.store.limbo.ledger_ids.tolist() == [1, 3]
    image = crash_image(twin.disk, Loss.LOST, Random(1))
    image.fault = None
    again = reopened(image, twin.setup, twin.history.after_crash())
    assert again.store.ledger(1) is not None
    assert again.read(1, 999)[0] == Status.EIO, "V2 has no better answer for a ledger in limbo"
    for _ in range(2):
        again.collect(DoubtfulMetadataView(twin.history.ledgers))
    assert again.store.ledger(1) is None
    assert again.store.limbo.ledger_ids.tolist() == [3]


# ---- failed reads ----


def test_failed_read_of_the_index_is_an_error_of_its_request_alone() -> None:
    twin = filled(2)
    # In a new process, because the first one has the ledgers in memory.
    again = reopened(crash_image(twin.disk, Loss.KEPT, Random(1)), twin.setup, twin.history.after_crash())
    again.disk.fault = lambda operation, path: (
        os_error(errno.EIO, path) if operation == "read" and path.startswith("/ledgers1/current/positions/") else None
    )
    index = again.store.index
    assert again.read(1, 0)[0] == Status.EIO
    assert again.store.absent(np.array([1, 1001, 2, 1002])).tolist() == [False, False, False, True]
    assert index.holding_entries(np.array([1, 2, 1001, 1002])).tolist() == [1, 2, 1001]
    assert index.counts()[0] == 3
    assert not index.has_hidden
    again.disk.fault = None
    assert [again.read(ledger_id, 0)[0] for ledger_id in LEDGERS] == [Status.EOK] * len(LEDGERS)


def test_home_whose_ledgers_cannot_be_listed_is_closed() -> None:
    """Garbage collection would take those that are missing in a list for deleted."""
    twin = filled(2)
    twin.disk.fault = lambda operation, path: (
        os_error(errno.EIO, path) if operation == "read" and path.startswith("/ledgers1/current/positions/") else None
    )
    assert twin.store.index.ledger_ids().tolist() == [2, 4, 6]
    assert twin.store.index.hidden(np.array([1, 2])).tolist() == [True, False]


# ---- full ----


def logs_in(twin: BookieTwin, place: int) -> list[str]:
    paths = twin.disk.visible_files()
    return sorted(path for path in paths if path.startswith(f"/ledgers{place}/") and path.endswith(".log"))


def fill_home(twin: BookieTwin, filler: int) -> Trouble:
    """Let the home of a ledger of directory 1 find its disk full."""
    trouble = Trouble(("/ledgers1",), errno.ENOSPC)
    trouble.begin(twin.disk)
    twin.add(filler, [(0, b"x")])
    twin.bookie.look_at_disks()
    twin.checkpoint()
    assert twin.store.index.is_full(filler)
    return trouble


def test_garbage_collection_frees_a_full_directory() -> None:
    twin = filled(2)
    for first in range(4, 40, 4):
        put(twin, first)
    before = logs_in(twin, 1)
    trouble = fill_home(twin, 7)
    for ledger_id in (1, 3, 5):
        twin.history.delete(ledger_id)
    for _ in range(3):
        twin.checkpoint()
        twin.collect(DoubtfulMetadataView(twin.history.ledgers))
    assert twin.store.index.ledger_ids().tolist() == [2, 4, 6, 7]
    assert len(logs_in(twin, 1)) < len(before) / 2
    audit_all(twin)
    trouble.end(twin.disk)
    twin.bookie.look_at_disks()
    twin.checkpoint()
    assert not twin.store.index.has_full
    twin.stop()
    again = reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())
    assert again.store.index.ledger_ids().tolist() == [2, 4, 6, 7]
    audit_all(again)


def test_removal_that_waits_for_space_alone_is_made_durable_when_there_is_some() -> None:
    twin = filled(2)
    twin.disk.fault = lambda operation, path: (
        os_error(errno.ENOSPC, path)
        if operation == "write" and path.startswith("/ledgers1/current/positions/")
        else None
    )
    twin.history.delete(1)
    for _ in range(2):
        twin.collect(DoubtfulMetadataView(twin.history.ledgers))
    assert not twin.store.index.has(1)
    twin.history.delete(3)
    twin.collect(DoubtfulMetadataView(twin.history.ledgers))
    twin.disk.fault = None
    twin.checkpoint()
    image = crash_image(twin.disk, Loss.LOST, Random(1))
    again = reopened(image, twin.setup, twin.history.after_crash())
    assert again.store.index.ledger_ids().tolist() == [2, 4, 5, 6]


def test_few_new_ledgers_begin_while_the_marks_wait() -> None:
    """They stay in memory until the marks advance, which full directories may prevent for days."""
    twin = filled(2)
    with replaced(base, "_WAITING_LEDGERS_MAX", 50), replaced(KeptFiles, "save", lambda *arguments: False):
        trouble = fill_home(twin, 7)
        new = range(100, 400, 2)
        for ledger_id in new:
            twin.add(ledger_id, [(0, b"x")])
            if ledger_id % 20 == 0:
                twin.checkpoint()
        began = [ledger_id for ledger_id in new if not twin.history.ledger(ledger_id).entries[0].refused]
        assert 40 < len(began) < 70
        twin.fence(900)
        assert twin.header(900) is None
        twin.add(4, [(4, b"goes on")])
        twin.checkpoint()
        assert twin.read(4, 4)[0] == Status.EOK
        trouble.end(twin.disk)
        twin.bookie.look_at_disks()
        twin.checkpoint()
        twin.add(902, [(0, b"x")])
        twin.settle()
        assert twin.read(902, 0)[0] == Status.EOK
    audit_all(twin)


def test_commit_does_not_wait_with_rows_that_are_kept_while_it_is_made() -> None:
    """The file beside the store must not name a commit that the store does not have."""
    twin = filled(2)
    row = index_format.header_key(101), index_format.encode_header(LedgerHeader(101, 1, False, b"key"))
    rows = [row]

    def give(old: Any, self: Any, bytes_max: int) -> Any:
        is_left = old(self, bytes_max)
        if rows and "/ledgers1/" in self._path:
            self.keep([rows.pop()])
        return is_left

    twin.add(1, [(4, b"x")])
    with around(KeptKeyValues, "give", give):
        twin.checkpoint()
    assert not rows
    reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())


def late_once() -> BookieTwin:
    """Return an idle bookie whose first disk was late in a flush that wrote what it lacked to the second one."""
    twin = filled(2)
    is_late = True

    def run(old: Any, self: LateDisks, work: Any) -> Any:
        twin.disk.lateness = 1.0 if is_late and 0 in work else 0.0
        found = old(self, {0: work[0]} if 0 in work else {}) if is_late else {}
        twin.disk.lateness = 0.0
        return found | old(self, {place: each for place, each in work.items() if place not in found})

    with around(LateDisks, "run", run):
        for ledger_id in (3, 4, 6):
            twin.add(ledger_id, [(4, b"late")])
        twin.checkpoint()
        is_late = False
    assert kept_files(twin.disk) == ["/ledgers1/current/positions.kept.0"]
    twin.store.disks.settle()
    return twin


def kept_files(disk: SimulatedDisk) -> list[str]:
    return [path for path in disk.visible_files() if "positions.kept" in path]


def test_idle_bookie_removes_the_file_of_a_disk_that_was_late_once() -> None:
    twin = late_once()
    for _ in range(2):
        twin.checkpoint()
    assert not kept_files(twin.disk)
    assert twin.store.is_clean


def test_home_that_was_late_once_takes_adds_after_a_ledger_is_removed() -> None:
    twin = late_once()
    twin.history.delete(2)
    twin.store.index.remove(2)
    assert not twin.store.index.is_full(4)
    twin.add(4, [(8, b"after")])
    twin.settle()
    assert twin.read(4, 8)[0] == Status.EOK
    twin.checkpoint()
    assert not kept_files(twin.disk)
    audit_all(reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash()))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_start_gives_a_home_with_space_what_another_directory_has(is_stopped: bool) -> None:
    """Otherwise the disk of the file alone could close both homes."""
    twin = filled(2)
    fill_home(twin, 7)
    if is_stopped:
        twin.stop()
    disk = crash_image(twin.disk, Loss.LOST, Random(1))
    assert kept_files(disk) == ["/ledgers0/current/positions.kept.1"]
    disk.fault = None
    started = reopened(disk, twin.setup, twin.history.after_crash())
    assert not kept_files(disk)
    assert not started.store.index.is_full(7)
    audit_all(started)


@pytest.mark.parametrize("is_killed", [False, True])
def test_part_of_the_file_that_a_directory_has_no_space_for_does_not_stay(is_killed: bool) -> None:
    twin = filled(3)
    trouble = Trouble(("/ledgers1",), errno.ENOSPC)
    path = "/ledgers0/current/positions.kept.1.new"
    tried = []

    def fault(operation: str, at: str) -> OSError | None:
        if at == path and operation == "write":
            tried.append(crash_image(twin.disk, Loss.KEPT, Random(1)))
            return os_error(errno.ENOSPC, at)
        return trouble.fault(operation, at)

    trouble.begin(twin.disk)
    twin.disk.fault = fault
    twin.bookie.look_at_disks()
    put(twin, 4)
    assert tried
    assert kept_files(twin.disk) == ["/ledgers2/current/positions.kept.1"]
    if is_killed:
        disk = tried[0]
        assert path in kept_files(disk)
        trouble.begin(disk)
        started = reopened(disk, twin.setup, twin.history.after_crash())
        assert path not in kept_files(disk)
        audit_all(started)


def beside_a_full_home() -> tuple[SimulatedDisk, BookieTwin]:
    """Return the disk after a crash of a bookie with a full home, whose changes are in another directory."""
    twin = filled(3)
    fill_home(twin, 7)
    twin.fence(4)
    twin.checkpoint()
    return crash_image(twin.disk, Loss.LOST, Random(1)), twin


RECORD = f"/journal0/current/{file_places.FILE_NAME}"


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("takes_store", [False, True])
def test_start_without_the_record_of_places_relies_on_no_file_with_changes(is_damaged: bool, takes_store: bool) -> None:
    """The file may be an older one than a file that is lost, or of an attempt that nothing relied on."""
    disk, twin = beside_a_full_home()
    if takes_store:
        disk.fault = None
    files = SimulatedFiles(disk)
    if is_damaged:
        files.replace(RECORD, b"filePlaces 1\n")
    else:
        files.remove(RECORD)
        files.sync_directory(os.path.dirname(RECORD))
    journal, directories = twin.setup.current_journal_paths[0], twin.setup.current_ledger_paths
    for _ in range(2):
        with pytest.raises(StorageDamaged, match=r"filePlaces.*--rebuild-index"):
            BookieTwin(crash_image(disk, Loss.KEPT, Random(1)), twin.setup, twin.history.after_crash())
        with pytest.raises(StorageDamaged, match=r"filePlaces.*--rebuild-index"):
            open_index_view(files, journal, directories)


def test_index_that_lacks_changes_of_a_file_without_a_record_is_rebuilt() -> None:
    disk, twin = beside_a_full_home()
    disk.fault = None
    SimulatedFiles(disk).remove(RECORD)
    Rebuild(stopped_bookie(disk, twin.setup), lambda line: None).run(None)
    history = twin.history.after_crash()
    started = BookieTwin(disk, twin.setup, history)
    started.begin_run(history.ledgers)
    assert not kept_files(disk)
    audit_limbo(started)


@pytest.mark.parametrize("wanted", [None, frozenset({1})])
@pytest.mark.parametrize("takes_store", [False, True])
def test_ledgers_are_rebuilt_whose_store_lacks_what_another_directory_has(
    takes_store: bool, wanted: frozenset[int] | None
) -> None:
    disk, twin = beside_a_full_home()
    if takes_store:
        disk.fault = None
    files = SimulatedFiles(disk)
    Limbo(files, twin.setup.current_ledger_paths, FilePlaces(files, twin.setup.current_journal_paths[0])).begin([1])
    report = Rebuild(stopped_bookie(disk, twin.setup), lambda line: None).run(wanted)
    assert (report.ledgers, report.everything) == (1, False)
    started = reopened(crash_image(disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())
    assert started.store.limbo.ledger_ids.tolist() == [1]
    assert started.read(1, 3)[0] == Status.EOK
    audit_limbo(started)


def test_full_journal_disk_keeps_only_the_marks_back_beside_a_full_home() -> None:
    """The record of places is there: without space for it, the file in another directory does not count."""
    twin = filled(3)
    trouble = Trouble(("/ledgers1",), errno.ENOSPC)
    is_full = True

    def fault(operation: str, path: str) -> OSError | None:
        is_record = path.startswith(RECORD) and operation in ("create", "write")
        return os_error(errno.ENOSPC, path) if is_full and is_record else trouble.fault(operation, path)

    twin.add(1, [(4, b"newer")])
    trouble.begin(twin.disk)
    twin.disk.fault = fault
    twin.bookie.look_at_disks()
    twin.checkpoint()
    assert not twin.bookie._disks.is_stuck
    put(twin, 8, range(3, 4))
    assert twin.read(3, 8)[0] == Status.EOK
    assert twin.store._unmarked
    history = twin.history.after_crash()
    audit_all(reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, history))
    is_full = False
    twin.checkpoint()
    assert not twin.store._unmarked
    audit_all(reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash()))


def test_file_stays_while_the_record_of_places_has_no_space_to_forget_it() -> None:
    twin = late_once()
    twin.disk.fault = lambda operation, path: (
        os_error(errno.ENOSPC, path) if operation in ("create", "write") and path.startswith(RECORD) else None
    )
    for first in (12, 16):
        put(twin, first, range(3, 5))
        assert not twin.store._unmarked
    assert kept_files(twin.disk) == ["/ledgers1/current/positions.kept.0"]
    audit_all(reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash()))
    twin.disk.fault = None
    put(twin, 20, range(3, 5))
    assert not kept_files(twin.disk)
    audit_all(reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash()))


def test_full_index_is_reported_with_its_directory_and_its_ledgers() -> None:
    twin = filled(3)
    assert twin.store.index.problems == ()
    trouble = fill_home(twin, 7)
    (problem,) = twin.store.index.problems
    assert problem.startswith(
        "/ledgers1/current/positions: its disk is full or late, and adds to ledgers with id mod 3"
    )
    trouble.end(twin.disk)
    twin.bookie.look_at_disks()
    twin.checkpoint()
    assert twin.store.index.problems == ()


def test_closed_index_is_reported_with_its_directory_and_its_ledgers() -> None:
    twin = filled(3)
    twin.disk.fault = failing_disk(2)
    put(twin, 4)
    (problem,) = twin.store.index.problems
    assert problem.startswith("/ledgers2/current/positions: its disk fails, and requests for ledgers with id mod 3 = 2")


def kept_bytes(twin: BookieTwin) -> int:
    kept = twin.store.index._homes[1]._kept
    assert isinstance(kept, KeptKeyValues)
    return kept._kept_bytes


def test_flush_that_waits_because_too_much_is_kept_ends_when_there_is_space() -> None:
    twin = filled(2)
    with replaced(key_value_index, "_KEPT_BYTES_MAX", 1000):
        twin = reopened_with(twin)
        trouble = fill_home(twin, 7)
        for ledger_id in (1, 3, 5, 9):
            twin.fence(ledger_id)
            twin.checkpoint()
        assert kept_bytes(twin) > 1000
        assert twin.bookie._disks.is_stuck
        trouble.end(twin.disk)
        for _ in range(3):
            twin.bookie.look_at_disks()
            twin.settle()
            twin.checkpoint()
            # A crash loses nothing of the write that was refused and repeated.
            again = reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())
            audit_all(again)
        assert not twin.bookie._disks.is_stuck
        assert kept_bytes(twin) == 0
        put(twin, 12, range(1, 9))
    audit_all(twin)


def test_start_with_more_than_may_be_kept_gives_it_to_a_store_with_space() -> None:
    """The file also has what was in the store's memory, so it may be larger than what may be kept."""
    twin = filled(2)
    for ledger_id in (1, 3, 5):
        twin.add(ledger_id, [(4, b"newer")])
    fill_home(twin, 7)
    twin.fence(3)
    twin.settle()
    disk, history = crash_image(twin.disk, Loss.LOST, Random(1)), twin.history.after_crash()
    disk.fault = None
    with replaced(key_value_index, "_KEPT_BYTES_MAX", 50):
        started = reopened(disk, twin.setup, history)
        assert not started.bookie._disks.is_stuck
        assert kept_bytes(started) == 0
        put(started, 12)
    audit_all(started)


def reopened_with(twin: BookieTwin) -> BookieTwin:
    """Stop a bookie, and start it again."""
    twin.stop()
    return reopened(crash_image(twin.disk, Loss.LOST, Random(1)), twin.setup, twin.history.after_crash())


# ---- closed ----


def test_compaction_puts_no_ledger_of_a_closed_home_into_limbo() -> None:
    """The old log stays, so nothing is lost."""
    twin = filled(2)
    twin.disk.fault = failing_disk(1)
    twin.store.index.ledger_ids()
    nothing = np.empty(0, np.int64)
    with twin.store.writing:
        twin.store.move([LedgerUpdate(1, None, nothing, nothing), LedgerUpdate(3, None, np.arange(1), np.ones(1, int))])
    assert twin.store.index.is_hidden(1)
    assert len(twin.store.limbo) == 0


def test_update_without_content_puts_no_ledger_into_limbo() -> None:
    twin = filled(2)
    twin.disk.fault = failing_disk(1)
    twin.store.index.ledger_ids()
    nothing = np.empty(0, np.int64)
    twin.store.index.hold(
        [LedgerUpdate(1, None, nothing, nothing), LedgerUpdate(3, None, np.arange(1), np.ones(1, int))]
    )
    assert twin.store.limbo.ledger_ids.tolist() == [3]


def test_vanished_directory_is_reported_as_such_and_not_as_damage(caplog: pytest.LogCaptureFixture) -> None:
    """A store says that it is damaged, and asks for a rebuild, if its files are gone."""
    twin = filled(2)

    def keys(old: Any, self: Any, first: bytes, end: bytes) -> Any:
        if twin.disk.fault is not None and "/ledgers1/" in self._file.path:
            raise StorageDamaged("the key-value store is damaged: run --rebuild-index")
        return old(self, first, end)

    with around(SimulatedKeyValues, "keys", keys), caplog.at_level(logging.ERROR):
        twin.disk.fault = failing_disk(1)
        assert twin.store.index.ledger_ids().tolist() == [2, 4, 6]
    (line,) = caplog.messages
    assert "its disk fails" in line
    assert "rebuild-index" not in line
