"""Errors of one disk are not other errors; and what a start leaves open, and says."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.formats import index_files
from bookie_service.formats import journal as journal_format
from bookie_service.formats import key_value_index as index_format
from bookie_service.formats.journal import FileHeader
from bookie_service.formats.limbo import LIMBO_NAME
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal import replay
from bookie_service.storage.journal.journal import Journal, JournalOptions
from bookie_service.storage.ledgers.limbo import Limbo
from bookie_service.storage.ledgers.opening import Storage, open_storage
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.logs.entry_log import EntryLogs
from tests.bookie.changing import add, fence
from tests.bookie.file_indexes import update
from tests.bookie.journals import START, open_journal, path_of, replayed
from tests.bookie.journals import record as fence_record
from tests.bookie.ledger_stores import open_below
from tests.bookie.stepped_twins import SMALL, new_disk, record, twin_of
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import BookieTwin


class Answering(LocalFiles):
    """Files of two directories, of which one's disk answers some questions with an error."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.code = 0

    def space(self, directory: str) -> FileSystemSpace:
        self._answer(directory)
        return super().space(directory)

    def exists(self, path: str) -> bool:
        self._answer(os.path.dirname(path))
        return super().exists(path)

    def _answer(self, directory: str) -> None:
        if self.code and directory == self._directory:
            raise OSError(self.code, os.strerror(self.code), directory)


def test_log_is_created_and_found_beside_a_disk_that_fails_and_other_errors_are_raised(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        os.mkdir(path)
    files = Answering(paths[0])
    logs = EntryLogs(files, paths)
    files.code = errno.EIO
    log = logs.create_temporary(".compacting")
    log.close()
    assert logs.file_path(log.log_id, ".compacting") == f"{paths[1]}/{log.log_id:x}.log.compacting"
    files.code = errno.EACCES
    with pytest.raises(PermissionError):
        logs.create_temporary(".compacting")
    with pytest.raises(PermissionError):
        logs.file_path(log.log_id, ".compacting")


def test_name_of_a_removed_file_that_cannot_be_synced_is_an_error_unless_its_disk_fails() -> None:
    twin = twin_of()
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    twin.checkpoint()
    code = errno.EIO

    def fault(operation: str, path: str) -> OSError | None:
        is_asked = operation == "sync_directory" and path != "/ledgers0/current"
        return OSError(code, os.strerror(code), path) if is_asked else None

    for ledger_id in (4, 5):
        twin.store.prepare_drop([ledger_id], [], 1000)
        assert twin.store.drop([ledger_id]) == [ledger_id]
    twin.disk.fault = fault
    twin.store.sync_dropped([4])
    code = errno.EINVAL
    with pytest.raises(OSError, match="Invalid argument"):
        twin.store.sync_dropped([5])


def test_logs_that_lack_space_to_be_sealed_are_sealed_later_and_other_errors_are_raised() -> None:
    twin = twin_of()
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    twin.bookie.checkpoint(advances_checkpoint=False)
    twin.settle()
    code = errno.ENOSPC

    def fault(operation: str, path: str) -> OSError | None:
        is_asked = operation == "write" and path.endswith(".idx")
        return OSError(code, os.strerror(code), path) if is_asked else None

    twin.disk.fault = fault
    twin.store.seal_logs()
    assert twin.store.logs.rotated() == []
    code = errno.EINVAL
    with pytest.raises(OSError, match="Invalid argument"):
        twin.store.seal_logs()
    twin.disk.fault = None
    twin.store.seal_logs()
    assert len(twin.store.logs.rotated()) == 1


def test_replayed_journal_is_not_open_any_more(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, options=JournalOptions(file_bytes_max=100, preallocate_bytes=0, alignment_bytes=1))
    for number in range(5):
        journal.append([fence_record(bytes([number]) * 50)])
    journal.close()
    assert len(list(tmp_path.iterdir())) > 2
    assert len(replayed(tmp_path)[0]) >= 5
    assert open_below(tmp_path) == []


def test_journal_that_has_no_file_yet_ends_before_its_first_one(tmp_path: Path) -> None:
    bodies, result = replayed(tmp_path)
    assert (bodies, result.end, result.torn) == ([], JournalPosition(0, 0), None)
    open_journal(tmp_path, result.end).close()
    assert [path.name for path in tmp_path.iterdir()] == [journal_format.file_name(1)]
    header = journal_format.decode_file_header(path_of(tmp_path).read_bytes(), 1)
    assert header is not None
    assert replace(header, allocated=0) == FileHeader(1, 0, 0)


def test_emptied_file_in_which_replay_begins_refuses_the_start(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([fence_record(b"x" * 50)])
    mark = journal.end
    journal.close()
    path_of(tmp_path).write_bytes(b"")
    with pytest.raises(StorageDamaged, match=journal_format.file_name(1)):
        replayed(tmp_path, mark)
    assert path_of(tmp_path).exists()


@pytest.mark.parametrize("within", [0, 1, 3, journal_format.RECORD_HEADER_BYTES - 1])
def test_record_after_damage_is_found_wherever_the_bytes_that_are_looked_through_are_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: int
) -> None:
    """The given number of bytes of its header are in the first part."""
    journal = open_journal(tmp_path)
    at = journal.end.offset
    journal.append([fence_record(b"x" * 50)])
    later = journal.end.offset
    journal.append([fence_record(b"y" * 50)])
    journal.close()
    content = bytearray(path_of(tmp_path).read_bytes())
    content[later - 1] ^= 0xFF
    path_of(tmp_path).write_bytes(content)
    monkeypatch.setattr(replay, "SCAN_BYTES", later + within - (at + 1))
    with pytest.raises(StorageDamaged, match=f"offset {at}: .* offset {later} holds a record"):
        replayed(tmp_path)


def test_journal_keeps_its_backups_while_there_is_space_for_the_next_group() -> None:
    """The disk has no space for `preallocate_bytes`."""
    disk = new_disk("/a")
    files = SimulatedFiles(disk)
    options = JournalOptions(file_bytes_max=600, preallocate_bytes=4096, alignment_bytes=512, backups_max=50)
    journal = Journal(files, "/a", options, START)
    for number in range(6):
        journal.append([record(number)])
    journal.forget_before(journal.end)
    names = files.names("/a")
    assert len(names) > 3
    asked = 0

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal asked
        if operation != "preallocate":
            return None
        asked += 1
        return OSError(errno.ENOSPC, "No space left on device", path) if asked % 2 else None

    disk.fault = fault
    for number in range(6, 12):
        journal.append([record(number)])
    assert asked > 1
    assert set(names) < set(files.names("/a"))


def test_full_disk_without_backups_is_not_said_to_have_had_some(caplog: pytest.LogCaptureFixture) -> None:
    disk = new_disk("/a")
    journal = Journal(SimulatedFiles(disk), "/a", SMALL, START)
    full = OSError(errno.ENOSPC, "No space left on device", "/a")
    disk.fault = lambda operation, path: full if operation == "preallocate" else None
    with pytest.raises(OSError, match="No space left"):
        journal.append([record(number) for number in range(200)])
    assert "backups" not in caplog.text


def test_commit_file_of_a_later_version_refuses_the_start_by_name(tmp_path: Path) -> None:
    KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions()).close()
    later = bytearray(index_format.encode_commit(1))
    later[4:8] = struct.pack(">i", index_format.VERSION + 1)
    later[-4:] = struct.pack(">I", crc32c(later[:-4]))
    (tmp_path / index_format.COMMIT_NAME).write_bytes(later)
    with pytest.raises(StorageDamaged, match=f"{index_format.COMMIT_NAME}: version {index_format.VERSION + 1}"):
        KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())


def test_held_positions_are_committed_though_nothing_is_held_after_them(tmp_path: Path) -> None:
    index = KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    assert index.is_clean
    index.hold([update(5, 0, [7, 8], generation=1)])
    index.hold([])
    assert not index.is_clean
    index.sync()
    assert (tmp_path / index_format.COMMIT_NAME).read_bytes() == index_format.encode_commit(1)
    index.close()


def test_store_that_is_refused_is_not_open_any_more(tmp_path: Path) -> None:
    KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions()).close()
    (tmp_path / index_format.COMMIT_NAME).write_bytes(index_format.encode_commit(7))
    with pytest.raises(StorageDamaged, match="7 was durable") as refused:
        KeyValueIndex(LocalFiles(), str(tmp_path), KeyValueOptions())
    # The error, which is kept, refers to the index.
    assert refused.value.__traceback__ is not None
    assert open_below(tmp_path) == []


def opened(twin: BookieTwin) -> Storage:
    """Open what a kill of a bookie leaves now."""
    setup = twin.setup
    files = SimulatedFiles(crash_image(twin.disk, Loss.KEPT, Random(1)))
    return open_storage(files, setup.journal_paths, setup.ledger_paths, setup.store, setup.journal)


def test_start_says_how_many_records_were_replayed_and_that_the_list_of_index_files_is_torn() -> None:
    twin = twin_of()
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    twin.checkpoint()
    assert opened(twin).replayed == 0
    assert add(twin, (4, 1)) == [Status.EOK]
    assert fence(twin, 4) == [Status.EOK]
    assert (opened(twin).replayed, opened(twin).notices) == (2, [])
    file = SimulatedFiles(twin.disk).open(f"/ledgers0/current/{index_files.FILE_NAME}")
    file.write([b"torn"], file.size())
    (notice,) = opened(twin).notices
    assert notice.startswith(f"{file.path} offset {file.size() - 4}: torn by a crash, or damaged")


def test_flush_that_finds_space_only_after_the_start_is_not_a_checkpoint() -> None:
    """The journal keeps its records: a ledger that was dropped now would be missing when they are replayed again."""
    twin = twin_of()
    assert add(twin, (4, 0)) == [Status.EOK]
    image = crash_image(twin.disk, Loss.KEPT, Random(1))
    full = OSError(errno.ENOSPC, "No space left on device", "/ledgers0")
    image.fault = lambda operation, path: full if operation == "write" and path.startswith("/ledgers0") else None
    again = BookieTwin(image, twin.setup, History())
    assert again.disks.is_stuck
    image.fault = None
    again.settle()
    assert not again.disks.is_stuck
    assert not again.store.is_clean
    assert again.store.droppable([4]) == []
    again.checkpoint()
    assert again.store.is_clean
    assert again.store.droppable([4]) == [(4, False)]


def test_start_without_space_for_the_marks_says_so_and_keeps_the_journals() -> None:
    twin = twin_of()
    assert add(twin, (4, 0)) == [Status.EOK]
    image = crash_image(twin.disk, Loss.KEPT, Random(1))
    full = OSError(errno.ENOSPC, "No space left on device", "/ledgers0/current/lastMark")
    image.fault = lambda operation, path: full if operation in ("create", "write") and "lastMark" in path else None
    again = BookieTwin(image, twin.setup, History())
    assert again.notices == [f"{full.filename}: there is no space for the marks, so the journals stay as they are"]
    assert again.read(4, 0)[0] == Status.EOK
    after = BookieTwin(crash_image(image, Loss.LOST, Random(1)), twin.setup, History())
    assert after.read(4, 0)[0] == Status.EOK


@pytest.mark.parametrize("full_place", [0, 1])
def test_marks_wait_for_space_though_the_disk_of_another_directory_fails(full_place: int) -> None:
    twin = twin_of(directories=2)
    assert add(twin, (4, 0)) == [Status.EOK]

    def fault(operation: str, path: str) -> OSError | None:
        if operation not in ("create", "write") or "lastMark" not in path:
            return None
        code = errno.ENOSPC if path.startswith(f"/ledgers{full_place}") else errno.EIO
        return OSError(code, os.strerror(code), path)

    twin.disk.fault = fault
    twin.checkpoint()
    assert twin.disks.is_stuck
    twin.disk.fault = None
    twin.settle()
    assert not twin.disks.is_stuck
    assert twin.store.is_clean


def test_ledger_whose_index_cannot_be_read_goes_into_limbo_before_its_records_are_flushed() -> None:
    """Otherwise a crash between the two leaves an index that has only these records, and no doubt."""
    twin = twin_of(directories=2)
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    twin.checkpoint()
    assert add(twin, (4, 1), (5, 1)) == [Status.EOK] * 2
    image = crash_image(twin.disk, Loss.KEPT, Random(1))
    broken = OSError(errno.EIO, "Input/output error", "/ledgers1")
    image.fault = lambda operation, path: broken if path.startswith("/ledgers1/current/0") else None
    changed: list[str] = []
    changes = ("create", "rename", "write")
    image.before_operation = lambda operation, path: changed.append(path) if operation in changes else None
    again = BookieTwin(image, twin.setup, History())
    assert again.store.limbo.ledger_ids.tolist() == [5]
    flushed = next(index for index, path in enumerate(changed) if path.endswith((".log", ".idx")))
    assert f"/ledgers0/current/{LIMBO_NAME}" in changed[:flushed]
    assert [again.read(4, entry_id)[0] for entry_id in range(2)] == [Status.EOK] * 2


def test_damaged_list_of_ledgers_in_limbo_is_named_with_its_directories(tmp_path: Path) -> None:
    (tmp_path / LIMBO_NAME).write_bytes(b"nonsense")
    with pytest.raises(StorageDamaged, match=f"^{LIMBO_NAME} in {tmp_path}: .*cannot tell which ledgers lost entries"):
        Limbo(LocalFiles(), [str(tmp_path)])


def test_size_of_the_write_cache_is_named_as_the_operator_configures_it() -> None:
    found = {each.name: each.cache_half_setting for each in StorageClass}
    assert found["DB"] == "half of dbStorage_writeCacheMaxSizeMb, in bytes"
    assert found["SORTED"] == found["INTERLEAVED"] == "skipListSizeLimit"
