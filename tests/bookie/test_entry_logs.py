"""`EntryLogs` and what appends to them: numbers, directories, which logs are rotated, and taking back what failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import ConfigurationError, StorageDamaged
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES, LOG_ID_MAX, OFFSET_BITS
from bookie_service.storage.disks import DiskLimits, FileSystemSpace
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import AppendOptions, EntryLogAppender
from bookie_service.storage.logs.log_writer import EntryLogWriter
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles

ITEM = (56).to_bytes(4, "big") + (5).to_bytes(8, "big") + bytes(48)


class Disks:
    """Three ledger directories in memory, on disks of their own whose free space the test sets."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.files = Spaces(self.disk)
        self.files.unreadable = {}
        self.paths = ["/a", "/b", "/c"]
        for path in self.paths:
            self.files.make_directory(path)
        self.files.free = dict.fromkeys(self.paths, 1 << 40)
        self.calls: list[tuple[str, str]] = []
        self.disk.before_operation = lambda operation, path: self.calls.append((operation, path))

    def logs(self) -> EntryLogs:
        return EntryLogs(self.files, self.paths)

    def fail(self, operation: str, directory: str, code: int = errno.ENOSPC) -> None:
        """Let an operation fail below a directory from now on."""

        def fault(happens: str, path: str) -> OSError | None:
            fails = happens == operation and f"{path}/".startswith(directory.rstrip("/") + "/")
            return OSError(code, os.strerror(code), path) if fails else None

        self.disk.fault = fault

    def work(self) -> None:
        self.disk.fault = None

    def names(self, directory: str) -> list[str]:
        return [name for name in self.files.names(directory) if name != log_format.LAST_ID_NAME]


class Spaces(SimulatedFiles):
    """Simulated files that say what is free on each disk."""

    free: dict[str, int]
    unreadable: dict[str, int]
    """Error codes of directories and files that cannot be read."""

    def names(self, directory: str) -> list[str]:
        self._check(directory)
        return super().names(directory)

    def read_all(self, path: str) -> bytes:
        self._check(path)
        return super().read_all(path)

    def _check(self, path: str) -> None:
        code = self.unreadable.get(path)
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def space(self, directory: str) -> FileSystemSpace:
        return FileSystemSpace(hash(directory), 1 << 41, self.free[directory])


@pytest.fixture
def disks() -> Disks:
    return Disks()


def close(*writers: EntryLogWriter) -> None:
    for writer in writers:
        writer.close()


# ---- numbers ----


def test_number_after_the_highest_file_and_the_highest_last_id_is_next(disks: Disks) -> None:
    assert disks.logs().create().log_id == 1
    disks.files.replace("/b/7.log", b"")
    assert disks.logs().create().log_id == 8
    disks.files.replace("/c/lastId", log_format.encode_last_id(0x20))
    disks.files.replace("/a/lastId", log_format.encode_last_id(0x10))
    logs = disks.logs()
    assert [logs.create().log_id, logs.create_temporary(".new").log_id, logs.create().log_id] == [0x21, 0x22, 0x23]
    assert disks.logs().create().log_id == 0x24


def test_unreadable_last_id_leaves_the_files_to_count(disks: Disks) -> None:
    disks.files.replace("/a/lastId", b"nonsense")
    assert disks.logs().create().log_id == 1
    disks.files.replace("/a/9.log", b"")
    assert disks.logs().create().log_id == 10


def test_no_log_follows_the_one_with_the_highest_number(disks: Disks) -> None:
    disks.files.replace("/a/lastId", log_format.encode_last_id(LOG_ID_MAX - 1))
    logs = disks.logs()
    assert logs.create().log_id == LOG_ID_MAX
    with pytest.raises(StorageDamaged, match="remove lastId"):
        logs.create()


def test_number_of_a_log_that_could_not_be_created_is_not_used_again(disks: Disks) -> None:
    logs = disks.logs()
    disks.fail("create", "/", errno.EACCES)
    with pytest.raises(PermissionError):
        logs.create()
    disks.work()
    assert logs.create().log_id == 2


def test_name_and_last_id_are_durable_before_a_log_is_used(disks: Disks) -> None:
    log = disks.logs().create()
    where = next(path for path in disks.paths if disks.names(path))
    assert disks.names(where) == ["1.log"]
    assert log_format.decode_header(disks.files.read_all(f"{where}/1.log"), 1) is not None
    assert log_format.decode_last_id(disks.files.read_all(f"{where}/lastId")) == 1
    assert disks.calls[-1] == ("sync_directory", where)
    log.close()


@pytest.mark.parametrize("path", ["/b", "/b/lastId"])
def test_numbers_of_logs_on_a_failing_disk_are_not_reused(disks: Disks, path: str) -> None:
    disks.files.replace("/a/7.log", b"")
    disks.files.replace("/b/lastId", log_format.encode_last_id(9))
    disks.files.unreadable = {path: errno.EIO}
    logs = disks.logs()
    assert [path in notice for notice in logs.notices] == [True]
    assert logs.create().log_id == (7 if path == "/b/lastId" else 9) + (1 << 20) + 1
    disks.files.replace("/c/lastId", log_format.encode_last_id(LOG_ID_MAX - 5))
    with pytest.raises(StorageDamaged, match="remove lastId"):
        disks.logs().create()


@pytest.mark.parametrize("path", ["/b", "/b/lastId"])
def test_error_that_is_not_the_disks_or_of_the_only_disk_ends_the_start(disks: Disks, path: str) -> None:
    disks.files.replace("/b/lastId", log_format.encode_last_id(9))
    disks.files.unreadable = {path: errno.EACCES}
    with pytest.raises(PermissionError):
        disks.logs()
    disks.files.unreadable = {path: errno.EIO}
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        EntryLogs(disks.files, ["/b"])
    disks.files.unreadable = {}
    assert EntryLogs(disks.files, ["/b"]).notices == []


# ---- directories ----


def test_log_goes_to_the_disk_with_the_most_space(disks: Disks) -> None:
    disks.files.free |= {"/b": 1 << 41}
    logs = disks.logs()
    assert [logs.path(logs.create().log_id) for _ in range(2)] == ["/b/1.log", "/b/2.log"]
    assert logs.path(3) is None


@pytest.mark.parametrize("operation", ["create", "write", "sync_directory"])
def test_log_goes_to_the_next_best_disk_where_the_best_has_no_space_after_all(disks: Disks, operation: str) -> None:
    disks.files.free |= {"/b": 1 << 41, "/c": 1 << 40, "/a": 1 << 39}
    logs = disks.logs()
    disks.fail(operation, "/b")
    log = logs.create()
    assert logs.path(log.log_id) == "/c/2.log", "the failed attempt used the first id"
    assert disks.names("/b") == []
    log.close()


def test_disk_that_fails_otherwise_ends_the_search_for_one(disks: Disks) -> None:
    disks.fail("create", "/", errno.EACCES)
    with pytest.raises(PermissionError):
        disks.logs().create()
    disks.fail("create", "/")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        disks.logs().create()


def test_directory_without_space_is_avoided_until_the_disks_are_looked_at(disks: Disks) -> None:
    disks.files.free |= {"/b": 1 << 41, "/c": 1 << 40, "/a": 1 << 39}
    logs = disks.logs()
    logs.create()
    logs.avoid("/b")
    assert logs.path(logs.create().log_id) == "/c/2.log"
    logs.avoid("/c")
    assert logs.path(logs.create().log_id) == "/a/3.log"
    logs.avoid("/a")
    assert logs.path(logs.create().log_id) == "/b/4.log", "all are avoided, so none is"
    logs.note_full(frozenset())
    assert logs.with_room(["/a", "/b", "/c"]) == ["/a", "/b", "/c"]


def test_new_entries_go_to_directories_with_room_that_are_not_avoided(disks: Disks) -> None:
    logs = disks.logs()
    assert logs.with_room(["/c", "/a"]) == ["/a", "/c"], "in configured order"
    disks.files.free["/c"] = 1
    logs.avoid("/b")
    assert logs.with_room(["/a", "/b", "/c"]) == ["/a"]
    assert logs.with_room(["/b", "/c"]) == ["/c"], "a full one is better than one that took nothing"
    assert logs.with_room(["/b"]) == ["/b"]
    assert logs.with_room([]) == []
    logs.note_full(frozenset())
    assert logs.with_room(["/a", "/b"]) == ["/a", "/b"], "the disks were looked at since"


def test_log_is_created_where_the_caller_wants_it(disks: Disks) -> None:
    logs = disks.logs()
    for name in ("/c", "/c", "/a"):
        log = logs.create(name)
        assert logs.path(log.log_id) == f"{name}/{log.log_id}.log"
    disks.fail("create", "/b")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        logs.create("/b")


def test_log_in_a_full_directory_is_left_where_another_is_not_full(disks: Disks) -> None:
    logs = disks.logs()
    log = logs.create()
    where = str(logs.path(log.log_id))[:2]
    others = [path for path in disks.paths if path != where]
    assert not logs.should_leave(log.log_id)
    logs.note_full(frozenset(others))
    assert not logs.should_leave(log.log_id)
    logs.note_full(frozenset([where]))
    assert logs.should_leave(log.log_id)
    logs.note_full(frozenset([where, others[0]]))
    assert logs.should_leave(log.log_id)
    logs.note_full(frozenset(disks.paths))
    assert not logs.should_leave(log.log_id)


# ---- rotated logs, and those that come and go ----


def test_log_is_settled_once_the_index_is_durable_for_it(disks: Disks) -> None:
    disks.files.replace("/b/1.log", log_format.encode_header(1))
    logs = disks.logs()
    assert logs.rotated() == [1]
    close(logs.create(), logs.create(), logs.create_temporary(".compacting"))
    assert logs.rotated() == [1]
    logs.rotate_appended(except_for={3})
    assert logs.rotated() == [1, 2]
    logs.rotate_appended(except_for=set())
    assert logs.rotated() == [1, 2, 3]
    logs.adopt(4, ".compacting")
    assert logs.rotated() == [1, 2, 3]
    logs.rotate_appended(except_for=set())
    assert logs.rotated() == [1, 2, 3]
    logs.rotate_adopted(4)
    assert logs.rotated() == [1, 2, 3, 4]


def test_temporary_log_is_not_listed_until_it_is_adopted_under_its_name_durably(disks: Disks) -> None:
    logs = disks.logs()
    close(logs.create_temporary(".compacting"))
    assert logs.path(1) is None
    path = logs.file_path(1, ".compacting")
    assert disks.files.exists(path)
    directory = os.path.dirname(path)
    disks.calls.clear()
    logs.adopt(1, ".compacting")
    assert disks.calls[-1] == ("sync_directory", directory)
    assert logs.path(1) == f"{directory}/1.log"
    assert disks.names(directory) == ["1.log"]
    assert logs.file_path(9, ".compacting") == "/a/9.log.compacting"


def test_adopted_number_is_not_given_out_again(disks: Disks) -> None:
    """`lastId` may be lost in a crash, and a temporary log does not count at the start."""
    disks.files.replace("/a/5.log.compacting", log_format.encode_header(5))
    logs = disks.logs()
    logs.adopt(5, ".compacting")
    assert logs.create().log_id == 6


def test_discarded_log_is_gone_and_a_forgotten_ones_file_stays(disks: Disks) -> None:
    logs = disks.logs()
    first, second = logs.create(), logs.create()
    paths = [str(logs.path(log.log_id)) for log in (first, second)]
    logs.discard(first.log_id)
    logs.discard(99)
    logs.forget(second.log_id)
    assert [logs.path(1), logs.path(2), logs.rotated()] == [None, None, []]
    assert [disks.files.exists(path) for path in paths] == [False, True]


def test_logs_of_a_directory_that_is_busy_are_not_settled(disks: Disks) -> None:
    """Its disk may still append to them. Garbage collection would take them for dead ones."""
    logs = disks.logs()
    writers = [logs.create(directory) for directory in ("/a", "/b", "/a")]
    logs.rotate_appended({writers[2].log_id}, busy={"/b"})
    assert logs.rotated() == [writers[0].log_id]
    logs.rotate_appended({writers[2].log_id})
    assert logs.rotated() == [writers[0].log_id, writers[1].log_id]
    close(*writers)


# ---- taking back ----


class Appending:
    """An appender of items of one ledger."""

    def __init__(self, disks: Disks, options: AppendOptions) -> None:
        self.disks = disks
        self.logs = disks.logs()
        self.appender = EntryLogAppender(self.logs, options)

    def append(self, count: int = 1) -> list[int]:
        memory = np.frombuffer(ITEM * count, np.uint8)
        found = self.appender.append(memory, np.arange(count) * len(ITEM), np.full(count, len(ITEM)))
        return (found >> OFFSET_BITS).tolist()

    def size(self, log_id: int) -> int:
        path = self.logs.path(log_id)
        assert path is not None
        size = self.disks.files.file_size(path)
        assert size is not None
        return size


def test_rollback_leaves_what_was_synced_and_nothing_else(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions(log_bytes_max=HEADER_BYTES + 3 * len(ITEM)))
    assert appending.append(2) == [1, 1]
    appending.appender.sync()
    assert appending.append(5) == [1, 2, 2, 2, 3]
    appending.appender.rollback()
    assert [appending.logs.path(log_id) for log_id in (2, 3)] == [None, None]
    assert appending.size(1) == HEADER_BYTES + 2 * len(ITEM)
    header = log_format.decode_header(disks.files.read_all(str(appending.logs.path(1))), 1)
    assert header is not None
    assert header.map_offset == 0, "the map that the full log got is gone"
    assert appending.append(1) == [4]


def test_rollback_after_a_sync_takes_back_nothing(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions())
    appending.append(2)
    appending.appender.sync()
    appending.appender.rollback()
    assert appending.size(1) == HEADER_BYTES + 2 * len(ITEM)
    appending.append(1)
    appending.appender.rollback()
    assert appending.logs.path(2) is None
    assert appending.size(1) == HEADER_BYTES + 2 * len(ITEM)


def test_rollback_goes_back_to_the_last_sync_of_a_log_that_had_several(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions())
    for _ in range(3):
        assert appending.append(2) == [1, 1]
        appending.appender.sync()
    assert appending.append(1) == [1]
    appending.appender.rollback()
    assert appending.size(1) == HEADER_BYTES + 6 * len(ITEM)


def test_rollback_takes_back_all_appends_since_the_last_sync(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions())
    appending.append(2)
    appending.appender.sync()
    for _ in range(3):
        assert appending.append(1) == [1]
    appending.appender.rollback()
    assert appending.size(1) == HEADER_BYTES + 2 * len(ITEM)


@pytest.mark.parametrize(("free", "is_reserved"), [(1 << 20, True), ((1 << 20) - 1, False)])
def test_space_is_reserved_where_a_whole_log_is_free(tmp_path: Path, free: int, is_reserved: bool) -> None:
    """On a nearly full disk reserved space would be missing for acknowledged entries."""
    files = FreeFiles()
    files.free = free
    logs = EntryLogs(files, [str(tmp_path)], DiskLimits(log_bytes_max=1 << 20), reserves=True)
    writer = logs.create()
    writer.write([ITEM])
    assert ((tmp_path / "1.log").stat().st_blocks * 512 > 1 << 19) == is_reserved
    writer.close()


class FreeFiles(LocalFiles):
    """Files on a disk of which a test says what is free."""

    free = 0

    def space(self, directory: str) -> FileSystemSpace:
        return FileSystemSpace(1, 1 << 41, self.free)


def test_cut_log_loses_its_map_before_its_bytes_durably(disks: Disks) -> None:
    """A header that names a map must never be there without it, wherever a crash comes."""
    appending = Appending(disks, AppendOptions())
    appending.append(1)
    appending.appender.sync()
    appending.append(1)
    appending.appender.seal()
    appending.append(1)
    path = str(appending.logs.path(1))
    appending.appender.rollback()
    assert appending.size(1) == disks.files.file_size(path)
    appending = Appending(disks, AppendOptions())
    appending.append(1)
    appending.appender.sync()
    appending.append(1)
    path = str(appending.logs.path(next(iter(appending.appender.active_log_ids))))
    disks.calls.clear()
    appending.appender.rollback()
    steps = [operation for operation, where in disks.calls if where == path]
    assert steps == ["write", "sync_data", "truncate", "sync_data"]


def test_rollback_does_what_it_can_on_a_disk_that_takes_nothing(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions())
    appending.append(1)
    appending.appender.sync()
    appending.append(1)
    disks.fail("write", "/", errno.EIO)
    appending.appender.rollback()
    disks.work()
    assert appending.append(1) == [2]


def test_items_that_were_made_durable_are_undone_until_they_are_settled(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions())
    appending.append(2)
    appending.appender.sync_all()
    appending.appender.rollback()
    assert appending.logs.path(1) is None
    appending.append(2)
    appending.appender.sync_all()
    appending.appender.settle()
    appending.appender.rollback()
    assert appending.size(2) == HEADER_BYTES + 2 * len(ITEM)


def test_only_a_log_without_unsynced_items_may_lack_its_map_on_a_failing_disk(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions())
    appending.append(1)
    disks.fail("write", "/", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        appending.appender.seal()
    disks.work()
    appending.appender.sync()
    disks.fail("write", "/", errno.EACCES)
    with pytest.raises(PermissionError):
        appending.appender.seal()
    disks.fail("write", "/", errno.EIO)
    appending.appender.seal()
    disks.work()
    assert appending.append(1) == [2]


def test_much_that_is_written_is_synced_in_between(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions(sync_bytes=2 * len(ITEM)))
    disks.calls.clear()
    appending.append(5)
    path = str(appending.logs.path(1))
    steps = [operation for operation, where in disks.calls if where == path and operation in ("write", "sync_data")]
    assert steps == ["write", "write", "sync_data", "write", "sync_data", "write"]
    appending.appender.sync()
    assert disks.calls[-1] == ("sync_data", path)
    before = len(disks.calls)
    appending.appender.sync()
    assert len(disks.calls) == before, "nothing was written since"


def test_item_larger_than_a_log_has_one_of_its_own(disks: Disks) -> None:
    appending = Appending(disks, AppendOptions(log_bytes_max=HEADER_BYTES + 1))
    assert appending.append(3) == [1, 2, 3]


@pytest.mark.parametrize("log_bytes_max", [0, -1, log_format.LOG_BYTES_MAX + 1])
def test_log_size_out_of_range_is_refused_by_its_name(log_bytes_max: int) -> None:
    with pytest.raises(ConfigurationError, match=r"AppendOptions\.log_bytes_max"):
        AppendOptions(log_bytes_max=log_bytes_max)
    AppendOptions(log_bytes_max=log_format.LOG_BYTES_MAX)


def test_closed_appender_holds_no_files(tmp_path: Path) -> None:
    logs = EntryLogs(LocalFiles(), [str(tmp_path)])
    appender = EntryLogAppender(logs, AppendOptions(log_per_ledger=True, active_logs_max=2))
    items = [(56).to_bytes(4, "big") + ledger.to_bytes(8, "big") + bytes(48) for ledger in range(4)]
    before = len(os.listdir("/proc/self/fd"))
    appender.append(np.frombuffer(b"".join(items), np.uint8), np.arange(4) * len(ITEM), np.full(4, len(ITEM)))
    assert len(os.listdir("/proc/self/fd")) == before + 2
    appender.sync()
    appender.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_log_that_is_in_two_directories_is_refused_and_both_are_named() -> None:
    disks = Disks()
    disks.files.create("/a/7.log")
    disks.files.create("/c/7.log")
    with pytest.raises(StorageDamaged, match=r"entry log 7 is in two ledger directories, /a/7\.log and /c/7\.log"):
        disks.logs()
    disks.files.remove("/a/7.log")
    assert disks.logs().path(7) == "/c/7.log"
