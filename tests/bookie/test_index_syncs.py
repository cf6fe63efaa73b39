"""What a sync of the index makes durable, what it makes of syncs that were late, and which positions are in doubt."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from random import Random

import pytest

from bookie_service.storage.index.index import IndexPaths
from bookie_service.storage.index.index_moves import DoubtCallbacks
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.io.disk_threads import DiskStalled
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.file_indexes import held_by, update
from tests.bookie.late_directories import LateInTurn
from tests.bookie.moved_files import Moving, at, files_of
from tests.bookie.stepped_twins import cut, new_disk
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles, os_error

DEFAULT = PageOptions()
EVICTING = PageOptions(page_bytes=64, pages_max=1)


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    found = [str(tmp_path / name) for name in "abc"]
    for each in found:
        os.mkdir(each)
    return found


class Indexed:
    """An index of three directories, and the ledgers that it put in doubt."""

    def __init__(
        self, directories: list[str], options: PageOptions = DEFAULT, files: FaultyFiles | None = None
    ) -> None:
        self.files, self.disks = files or FaultyFiles(), LateInTurn()
        self.doubted: list[int] = []
        self.index = PerLedgerIndex(
            self.files, directories, options, 4, DoubtCallbacks(self.doubted.extend), disks=self.disks
        )


def test_late_sync_that_fails_in_the_end_moves_the_file_though_the_next_sync_succeeds(directories: list[str]) -> None:
    it = Indexed(directories)
    it.index.hold([update(3, 0, [7], generation=1)])  # ledger 3 belongs to directory a
    it.disks.late = {0}
    with pytest.raises(DiskStalled):
        it.index.sync()
    it.files.fault = at("a", "sync_data")
    it.disks.finish()
    it.files.fault = None
    it.index.sync()
    assert files_of(directories) == ["b/3.idx"]
    assert held_by(it.index, 3, 8) == {0: 7}
    assert it.doubted == []


def test_late_sync_that_failed_is_reported_once_and_the_next_one_moves_nothing(directories: list[str]) -> None:
    it = Indexed(directories)
    it.index.hold([update(4, 0, [6], generation=1)])  # ledger 4 belongs to directory b
    it.index.sync()
    it.index.hold([update(4, 0, [7])])
    it.disks.late = {1}
    with pytest.raises(DiskStalled):
        it.index.sync()
    it.files.fault = at("b", "sync_data")
    it.disks.finish()
    it.files.fault = None
    for value in (8, 9, 10):
        it.index.hold([update(4, 0, [value])])
        it.index.sync()
        assert files_of(directories) == ["a/4.idx"]
    assert held_by(it.index, 4, 8) == {0: 10}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("singly_max", [0, 6, 128])
def test_no_file_stays_open_after_a_sync(directories: list[str], singly_max: int) -> None:
    """A ledger that is dropped and comes back has a different file of the same name."""
    it = Indexed(directories, PageOptions(files_synced_singly_max=singly_max))
    gc.collect()  # files that earlier tests left to it are not closed below
    before = open_files()
    it.index.hold(update(each, 0, [7], generation=1) for each in range(20))
    it.index.sync()
    it.index.hold(update(each, 1, [8], generation=2) for each in range(20))
    it.index.sync()
    assert open_files() == before


@pytest.mark.parametrize(("singly_max", "is_single"), [(4, True), (3, False)])
def test_as_many_files_and_names_as_the_limit_are_synced_one_by_one(
    directories: list[str], singly_max: int, is_single: bool
) -> None:
    it = Indexed(directories, PageOptions(files_synced_singly_max=singly_max))
    it.files.operations.clear()
    it.index.hold([update(3, 0, [7], generation=1)])  # one file, and a name in each of three directories
    it.index.sync()
    has_file_systems = it.files.open_file_system(directories[0]) is not None
    synced = [operation for operation, path in it.files.operations if path.endswith("3.idx")]
    assert ("sync_data" in synced) == (is_single or not has_file_systems)


class RemovesNothing(FaultyFiles):
    """Files of which a directory cannot remove one while `keeps` says so."""

    keeps = ""

    def remove(self, path: str) -> None:
        if self.keeps and self.keeps in path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        super().remove(path)


def test_view_that_has_a_file_open_reads_the_new_one_after_it_moved(directories: list[str]) -> None:
    it = Indexed(directories, EVICTING)
    it.index.hold([update(3, 0, [7, 8], generation=1)])
    it.index.sync()
    view = it.index.view(4)
    assert view.positions(3, 0, 8).tolist() == [7, 8]
    it.files.fault = at("a", "write")
    it.index.hold([update(3, 2, [9])])
    it.index.sync()
    it.files.fault = None
    for ledger_id in (6, 9):
        it.index.hold([update(ledger_id, 0, [1], generation=1)])  # memory has room for no page of ledger 3
    it.index.sync()
    assert files_of(directories)[-1] == "b/3.idx"
    for reader in (view, it.index):
        assert reader.positions(3, 0, 8).tolist() == [7, 8, 9]
        assert reader.last_entry(3) == 2
    view.close()


def test_dropped_ledger_leaves_no_file_at_a_place_that_it_moved_away_from(directories: list[str]) -> None:
    """Otherwise that file would count again, because it is in the usual directory."""
    files = RemovesNothing()
    it = Indexed(directories, files=files)
    it.index.hold([update(3, 0, [7], generation=1)])
    it.index.sync()
    files.fault, files.keeps = at("a", "write"), "/a/"
    it.index.hold([update(3, 1, [8])])
    it.index.sync()
    assert files_of(directories) == ["a/3.idx", "b/3.idx"]
    files.fault, files.keeps = None, ""
    it.index.disown([3])
    it.index.remove(3)
    it.index.sync_removed([3])
    assert files_of(directories) == []
    assert (it.index.header(3), it.index.ledger_ids().tolist()) == (None, [])
    it.index.hold([update(3, 0, [11], generation=1)])
    it.index.sync()
    assert files_of(directories) == ["a/3.idx"], "a ledger of that id begins in its usual directory again"
    it.index.close()
    again = Indexed(directories)
    assert held_by(again.index, 3, 8) == {0: 11}
    again.index.close()


@pytest.mark.parametrize("ledgers", [[4], [*range(4, 40, 3)]], ids=["few", "many"])
def test_removal_does_not_wait_for_a_disk_that_is_late(directories: list[str], ledgers: list[int]) -> None:
    """Garbage collection removes files between flushes, which wait for it. A crash may restore a file: a later pass
    removes it again."""
    it = Indexed(directories)
    it.index.hold(update(each, 0, [7], generation=1) for each in [3, *ledgers])
    it.index.sync()
    for each in [3, *ledgers]:
        it.index.remove(each)
    it.files.operations.clear()
    it.disks.late = {1}
    it.index.sync_removed([3, *ledgers])
    synced = [path for operation, path in it.files.operations if operation == "sync_directory"]
    assert any(path.startswith(directories[0]) for path in synced)
    assert not any(path.startswith(directories[1]) for path in synced)
    assert files_of(directories) == []
    it.disks.finish()
    synced = [path for operation, path in it.files.operations if operation == "sync_directory"]
    assert any(path.startswith(directories[1]) for path in synced)
    it.index.close()


def test_late_sync_of_a_removal_that_fails_without_its_disk_is_an_error_in_the_end(
    directories: list[str],
) -> None:
    it = Indexed(directories)
    it.index.hold(update(each, 0, [7], generation=1) for each in (3, 4, 6))
    it.index.sync()
    for each in (3, 4, 6):
        it.index.remove(each)
    it.disks.late = {1}
    (late,) = it.index.sync_removed([4])
    it.files.fault, it.files.code = at("b", "sync_directory"), errno.EACCES
    assert not late.done()
    it.disks.finish()
    assert isinstance(late.exception(), PermissionError)
    it.files.fault = None
    for removed in ([3], [6]):
        assert [each.exception() for each in it.index.sync_removed(removed)] == [None]
    it.index.close()


def test_positions_that_memory_let_go_of_are_not_in_doubt_after_a_sync(directories: list[str]) -> None:
    it = Indexed(directories, EVICTING)
    for ledger_id in (3, 6, 9):  # all of directory a
        it.index.hold([update(ledger_id, 0, [7, 8], generation=1)])
    it.index.sync()
    it.files.fault = at("a", "write", "sync_data")
    it.index.hold([update(3, 2, [9])])
    it.index.sync()
    assert "b/3.idx" in files_of(directories)
    assert held_by(it.index, 3, 8) == {0: 7, 1: 8, 2: 9}
    assert it.doubted == []


@pytest.mark.parametrize("syncs", [True, False])
def test_evicted_positions_are_in_doubt_if_the_old_file_cannot_be_synced_when_it_moves(
    directories: list[str], syncs: bool
) -> None:
    it = Indexed(directories, EVICTING)
    for ledger_id in (3, 6, 9):
        it.index.hold([update(ledger_id, 0, [7, 8], generation=1)])
    assert "a/3.idx" in files_of(directories), "its positions are not in memory any more"
    it.files.fault = at("a", "write", *([] if syncs else ["sync_data"]))
    it.index.hold([update(3, 2, [9])])
    it.index.sync()
    assert (3 in it.doubted) == (not syncs)
    assert held_by(it.index, 3, 8) == {0: 7, 1: 8, 2: 9}


def test_evicted_positions_are_in_doubt_after_a_late_sync_that_failed_though_the_next_one_succeeds(
    directories: list[str],
) -> None:
    """The system reports once that it lost bytes. Its cache may show them, and a later sync succeeds without them."""
    it = Indexed(directories, EVICTING)
    for ledger_id in (3, 6):
        it.index.hold([update(ledger_id, 0, [7, 8], generation=1)])
    assert "a/3.idx" in files_of(directories), "its positions are not in memory any more"
    it.disks.late = {0}
    with pytest.raises(DiskStalled):
        it.index.sync()
    for ledger_id in (3, 6):
        it.index.hold([update(ledger_id, 2, [9])])
    it.files.fault = at("a", "sync_data")
    it.disks.finish()
    it.files.fault = None
    it.index.sync()
    assert "b/3.idx" in files_of(directories)
    assert 3 in it.doubted
    assert held_by(it.index, 3, 8) == {0: 7, 1: 8, 2: 9}


def test_length_of_a_file_is_noted_though_earlier_positions_are_written_last(directories: list[str]) -> None:
    it = Indexed(directories, EVICTING)
    it.index.hold([update(3, 0, [7], generation=1)])
    it.index.sync()
    it.index.hold([update(3, 100, [9])])
    it.index.hold([update(6, 0, [1], generation=1)])
    it.index.hold([update(3, 1, [8])])
    it.index.sync()
    path = Path(IndexPaths(directories).path(3))
    assert it.index.lost(3) == ""
    os.truncate(path, path.stat().st_size - 8)
    assert "truncated" in it.index.lost(3)


def test_positions_that_a_failed_sync_may_have_lost_are_in_memory_until_their_file_has_moved(
    directories: list[str],
) -> None:
    """A read of another ledger needs the memory in the middle of the sync, and the old file cannot be read."""
    it = Indexed(directories, PageOptions(page_bytes=64, pages_max=12))  # room for one page with its costs
    it.index.hold([update(4, 0, [5], generation=1), update(3, 0, [6], generation=1)])
    it.index.sync()
    it.index.hold([update(3, 0, [7], generation=2)])
    failing = at("a", "sync_data", "read")

    def fault(operation: str, path: str) -> bool:
        if operation == "sync_data" and path.endswith("3.idx") and "/a/" in path:
            it.files.fault = None
            assert held_by(it.index, 4, 8) == {0: 5}
            it.files.fault = failing
            return True
        return False

    it.files.fault = fault
    it.index.sync()
    it.files.fault = None
    assert files_of(directories)[-1] == "b/4.idx"
    assert "b/3.idx" in files_of(directories)
    assert held_by(it.index, 3, 8) == {0: 7}


class WithoutFileSystems(FaultyFiles):
    def open_file_system(self, path: str) -> None:
        return None


def test_file_that_is_not_kept_open_is_synced_before_it_is_closed(directories: list[str]) -> None:
    """An error that the system meets later is reported only to processes that have the file open."""
    it = Indexed(directories, PageOptions(files_synced_singly_max=0), WithoutFileSystems())
    it.index.hold([update(3, 0, [7], generation=1)])
    it.index.sync()
    it.files.operations.clear()
    it.index.hold([update(3, 1, [8])])
    it.index.sync()
    operations = [operation for operation, path in it.files.operations if path.endswith("3.idx")]
    assert operations[operations.index("write") :] == ["write", "sync_data", "sync_data"]


def not_durable(disk: SimulatedDisk, *without: str) -> SimulatedDisk:
    """Return a disk with the same files, as a killed process left them: neither bytes nor names are durable."""
    left = new_disk("/a")
    files = SimulatedFiles(left)
    for path, inode in sorted(disk.visible_files().items()):
        if not any(each in path for each in without):
            parts = path.split("/")
            for count in range(3, len(parts)):
                if not files.is_directory("/".join(parts[:count])):
                    files.create_directory("/".join(parts[:count]))
            file = files.create(path)
            file.write([bytes(inode.cached)], 0)
            file.close()
    return left


def test_files_that_the_list_does_not_have_are_durable_before_it_has_them() -> None:
    disk = new_disk("/a")
    index = PerLedgerIndex(SimulatedFiles(disk), ["/a"], DEFAULT, 4)
    index.hold([update(3, 0, [7], generation=1), update(300, 0, [8], generation=1)])
    index.sync()
    index.close()
    left = not_durable(disk, "indexFiles")
    PerLedgerIndex(SimulatedFiles(left), ["/a"], DEFAULT, 4).close()
    again = PerLedgerIndex(cut(left), ["/a"], DEFAULT, 4)
    assert again.ledger_ids().tolist() == [3, 300]
    assert (held_by(again, 3, 8), held_by(again, 300, 8)) == ({0: 7}, {0: 8})
    assert again.all_lost() == []


def test_file_that_moves_while_its_second_header_is_written_has_a_durable_name() -> None:
    disk = new_disk("/a", "/b")
    index = Moving(["/a", "/b"], SimulatedFiles(disk)).index
    index.hold([update(2, 0, [7], generation=1)])
    index.sync()
    index.hold([update(2, 0, [], generation=2)])
    synced: list[str] = []

    def fault(operation: str, path: str) -> OSError | None:
        # After the first header was synced.
        if operation == "sync_data" and path.endswith("/2.idx"):
            synced.append(path)
        fails = operation == "read" and path.startswith("/a/") and len(synced) == 1
        return os_error(errno.EIO, path) if fails else None

    disk.fault = fault
    index.sync()
    disk.fault = None
    assert [path for path in disk.visible_files() if path.endswith(".idx")] == ["/b/0/2/2.idx"]
    left = cut(disk)
    again = Moving(["/a", "/b"], left).index
    header = again.header(2)
    assert header is not None
    assert header.generation == 2
    assert held_by(again, 2, 8) == {0: 7}


def test_ledger_without_entries_that_is_removed_does_not_come_back() -> None:
    disk = new_disk("/a")
    index = PerLedgerIndex(SimulatedFiles(disk), ["/a"], DEFAULT, 4)
    index.hold([update(5, 0, [], generation=1), update(6, 0, [], generation=1)])
    index.sync()
    index.remove(5)
    index.sync_removed([5])
    for loss in Loss:
        again = PerLedgerIndex(SimulatedFiles(crash_image(disk, loss, Random(1))), ["/a"], DEFAULT, 4)
        assert again.ledger_ids().tolist() == [6]
