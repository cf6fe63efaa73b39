"""What is durable after each step of the storage: a power cut right after it takes everything that was not synced.

A killed process leaves files and names that are there, but not durable: `copied` makes such a disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.status import Status
from bookie_service.formats import compaction as intent_format
from bookie_service.formats import entry_log as log_format
from bookie_service.formats import index as index_format
from bookie_service.formats import journal as journal_format
from bookie_service.formats.compaction import Intent
from bookie_service.formats.journal import RecordKind
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.index.manifest import IndexManifestWriter
from bookie_service.storage.index.per_ledger import PageOptions, PerLedgerIndex
from bookie_service.storage.journal.checkpoint import Marks
from bookie_service.storage.journal.journal import Journal, JournalOptions
from bookie_service.storage.journal.replay import replay_journal
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.limbo import DirtyMarker, Limbo
from bookie_service.storage.ledgers.storage_class import StorageClass
from bookie_service.storage.ledgers.tombstones import Tombstones
from bookie_service.storage.logs.compaction import Compactor
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.changing import KEY, add, entry, fence, write_lac
from tests.bookie.collecting import intended_copy
from tests.bookie.stepped_twins import SMALL, cut, new_disk, record, restarted, twin_of
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.twins import BookieTwin, Setup, lac_packet

PATHS = ["/a", "/b"]


def copied(disk: SimulatedDisk, *paths: str) -> SimulatedDisk:
    """Return a disk with the same files in these directories, of which neither bytes nor names are durable."""
    found, old = new_disk(*paths), SimulatedFiles(disk)
    files = SimulatedFiles(found)
    for path in paths:
        for name in old.names(path):
            file = files.create(f"{path}/{name}")
            file.write([old.read_all(f"{path}/{name}")], 0)
            file.close()
    return found


def replayed(files: SimulatedFiles) -> list[bytes]:
    found: list[bytes] = []
    replay_journal(files, "/a", None, lambda kind, _, body: found.append(body) if kind == RecordKind.ENTRIES else None)
    return found


def bodies(*numbers: int) -> list[bytes]:
    return [bytes(record(number).parts[0]) for number in numbers]


# ---- the journal ----


def test_each_way_of_making_a_journal_durable_does_so() -> None:
    for finish in ("append", "sync", "marker", "close"):
        disk = new_disk("/a")
        journal = Journal(SimulatedFiles(disk), "/a", SMALL, JournalPosition(0, 0))
        journal.append([record(0)])
        assert replayed(cut(disk)) == bodies(0)
        journal.append([record(1)], deferred=True)
        assert replayed(cut(disk)) == bodies(0)
        if finish == "append":
            journal.append([record(2)])
        elif finish == "sync":
            journal.sync()
        elif finish == "marker":
            journal.write_durability_marker()
        else:
            journal.close()
        assert replayed(cut(disk)) == bodies(0, 1, *([2] if finish == "append" else [])), finish


def test_durability_marker_is_itself_durable_and_is_written_once() -> None:
    disk = new_disk("/a")
    journal = Journal(SimulatedFiles(disk), "/a", SMALL, JournalPosition(0, 0))
    journal.append([record(0)])
    journal.append([record(1)], deferred=True)
    end = journal.end
    journal.write_durability_marker()
    marked = journal.end
    assert marked > end
    path = f"/a/{journal_format.file_name(1)}"
    data = cut(disk).read_all(path)
    header = journal_format.decode_record_header(data, end.offset, file_id=1, offset=end.offset)
    assert header is not None
    assert (header.kind, header.synced) == (RecordKind.PADDING, end.offset)
    operations = disk.operations
    journal.write_durability_marker()
    assert (journal.end, disk.operations) == (marked, operations)


def test_next_file_of_a_journal_is_durable_with_its_name_before_it_takes_a_record() -> None:
    disk = new_disk("/a")
    options = JournalOptions(file_bytes_max=600, preallocate_bytes=4096, alignment_bytes=512, backups_max=0)
    journal = Journal(SimulatedFiles(disk), "/a", options, JournalPosition(0, 0))
    assert cut(disk).names("/a") == [journal_format.file_name(1)]
    for number in range(6):
        journal.append([record(number)])
        assert replayed(cut(disk)) == bodies(*range(number + 1))
    assert len(cut(disk).names("/a")) > 2
    journal.append([record(6)], deferred=True)
    journal._go_on()
    assert replayed(cut(disk)) == bodies(*range(7)), "the next file says that all of the one before it is durable"


def test_journal_whose_file_is_followed_by_another_starts_whenever_the_power_fails() -> None:
    disk = new_disk("/a")
    journal = Journal(SimulatedFiles(disk), "/a", SMALL, JournalPosition(0, 0))
    journal.append([record(0)])
    journal.append([record(1)], deferred=True)
    end = journal.end.offset
    images: list[SimulatedDisk] = []
    disk.before_operation = lambda *_: images.extend(crash_image(disk, loss, Random(1)) for loss in Loss)
    journal._go_on()
    disk.before_operation = None
    for image in images:
        assert replayed(SimulatedFiles(image)) in (bodies(0), bodies(0, 1))
    path = f"/a/{journal_format.file_name(1)}"
    data = cut(disk).read_all(path)
    header = journal_format.decode_record_header(data, end, file_id=1, offset=end)
    assert header is not None
    assert header.kind == RecordKind.FOLLOWED
    assert len(data) == end + journal_format.RECORD_HEADER_BYTES, "space that was reserved after it is free again"


def test_closed_journal_has_no_reserved_space_after_its_last_record() -> None:
    disk = new_disk("/a")
    journal = Journal(SimulatedFiles(disk), "/a", SMALL, JournalPosition(0, 0))
    journal.append([record(0)])
    end = journal.end.offset
    assert SimulatedFiles(disk).file_size(f"/a/{journal_format.file_name(1)}") > end
    journal.close()
    assert journal.end.offset - end == SMALL.alignment_bytes, "a last record says that the file is closed"
    assert SimulatedFiles(disk).file_size(f"/a/{journal_format.file_name(1)}") == journal.end.offset


def test_records_that_a_killed_process_left_are_durable_before_replay_ends() -> None:
    disk = new_disk("/a")
    options = JournalOptions(file_bytes_max=600, preallocate_bytes=0, alignment_bytes=512, backups_max=0)
    journal = Journal(SimulatedFiles(disk), "/a", options, JournalPosition(0, 0))
    for number in range(6):
        journal.append([record(number)])
    left = copied(disk, "/a")
    assert cut(left).names("/a") == []
    assert replayed(SimulatedFiles(left)) == bodies(*range(6))
    assert replayed(cut(left)) == bodies(*range(6))


def test_file_that_was_not_begun_whole_is_removed_durably() -> None:
    disk = new_disk("/a")
    journal = Journal(SimulatedFiles(disk), "/a", SMALL, JournalPosition(0, 0))
    journal.append([record(0)])
    SimulatedFiles(disk).create(f"/a/{journal_format.file_name(2)}").close()
    SimulatedFiles(disk).sync_directory("/a")
    assert len(cut(disk).names("/a")) == 2
    assert replayed(SimulatedFiles(disk)) == bodies(0)
    assert cut(disk).names("/a") == [journal_format.file_name(1)]


def test_marks_are_durable_in_every_directory() -> None:
    disk = new_disk(*PATHS)
    Marks(SimulatedFiles(disk), PATHS).write([JournalPosition(3, 512), JournalPosition(4, 1024)])
    for path in PATHS:
        marks = Marks(cut(disk), [path])
        assert [marks.read(0), marks.read(1)] == [JournalPosition(3, 512), JournalPosition(4, 1024)]


# ---- lists and markers ----


def test_ledgers_in_limbo_tombstones_and_index_files_are_noted_durably() -> None:
    disk = new_disk(*PATHS)
    files = SimulatedFiles(disk)
    limbo = Limbo(files, PATHS)
    limbo.begin([3, 5])
    assert Limbo(cut(disk), PATHS).ledger_ids.tolist() == [3, 5]
    limbo.end([3])
    assert Limbo(cut(disk), PATHS).ledger_ids.tolist() == [5]
    Tombstones(files, PATHS).remember([7], 1000)
    assert 7 in Tombstones(cut(disk), PATHS)
    manifest = IndexManifestWriter(files, PATHS)
    manifest.note({1: 1024})
    assert IndexManifestWriter(cut(disk), PATHS).least_bytes(1) == 1024
    manifest.note({1: 1032, 2: 2048})
    assert [IndexManifestWriter(cut(disk), PATHS).least_bytes(each) for each in (1, 2)] == [1032, 2048]


def test_list_of_index_files_that_a_killed_process_left_is_durable_before_it_is_believed() -> None:
    disk = new_disk(*PATHS)
    IndexManifestWriter(SimulatedFiles(disk), PATHS).note({1: 1024})
    left = copied(disk, *PATHS)
    manifest = IndexManifestWriter(SimulatedFiles(left), PATHS)
    assert (manifest.least_bytes(1), IndexManifestWriter(cut(left), PATHS).least_bytes(1)) == (1024, 1024)
    manifest.note({2: 2048})
    assert [IndexManifestWriter(cut(left), PATHS).least_bytes(each) for each in (1, 2)] == [1024, 2048]


def test_marker_of_a_run_is_durable_from_its_beginning_to_its_end() -> None:
    disk = new_disk(*PATHS)
    marker = DirtyMarker(SimulatedFiles(disk), PATHS)
    marker.set(journal_is_complete=False)
    for path in PATHS:
        assert DirtyMarker(cut(disk), [path]).is_journal_incomplete()
    left = copied(disk, *PATHS)
    assert not DirtyMarker(cut(left), PATHS).is_journal_incomplete()
    DirtyMarker(SimulatedFiles(left), PATHS).set(journal_is_complete=False)
    for path in PATHS:
        assert DirtyMarker(cut(left), [path]).is_journal_incomplete()
    marker.clear()
    for path in PATHS:
        assert cut(disk).names(path) == []


def test_replaced_file_has_its_old_or_its_new_content_whenever_the_power_fails() -> None:
    old, new = b"old" * 300, b"new" * 500
    disk = new_disk("/a")
    files = SimulatedFiles(disk)
    files.replace("/a/list", old)
    assert cut(disk).read_all("/a/list") == old
    images: list[SimulatedDisk] = []
    disk.before_operation = lambda *_: images.extend(
        crash_image(disk, loss, Random(seed)) for loss in Loss for seed in range(5)
    )
    files.create("/a/list.new").close()
    files.replace("/a/list", new)
    disk.before_operation = None
    assert {SimulatedFiles(image).read_all("/a/list") for image in images} == {old, new}
    assert cut(disk).read_all("/a/list") == new
    assert files.names("/a") == ["list"]


@pytest.mark.parametrize("operation", ["create", "write", "sync_data", "rename"])
def test_list_that_cannot_be_written_is_as_before_and_is_written_later(operation: str) -> None:
    disk = new_disk("/a")
    files = SimulatedFiles(disk)
    limbo, tombstones, manifest = Limbo(files, ["/a"]), Tombstones(files, ["/a"]), IndexManifestWriter(files, ["/a"])
    limbo.begin([3])
    tombstones.remember([7], 1000)
    disk.fault = lambda asked, path: OSError(errno.ENOSPC, "No space", path) if asked == operation else None
    for change in (
        lambda: limbo.begin([5]),
        lambda: limbo.end([3]),
        lambda: tombstones.remember([8], 1000),
        lambda: manifest.note({1: 1024}),
    ):
        with pytest.raises(OSError, match="No space"):
            change()
    disk.fault = None
    assert (limbo.ledger_ids.tolist(), 7 in tombstones, 8 in tombstones) == ([3], True, False)
    assert Limbo(cut(disk), ["/a"]).ledger_ids.tolist() == [3]
    limbo.begin([5])
    tombstones.remember([8], 1000)
    manifest.note({})
    assert Limbo(cut(disk), ["/a"]).ledger_ids.tolist() == [3, 5]
    assert all(each in Tombstones(cut(disk), ["/a"]) for each in (7, 8))
    assert IndexManifestWriter(cut(disk), ["/a"]).least_bytes(1) == 1024, "what was refused is written with the next"


# ---- entry logs ----


def test_name_of_a_new_log_and_that_of_an_adopted_one_are_durable() -> None:
    disk = new_disk(*PATHS)
    logs = EntryLogs(SimulatedFiles(disk), PATHS)
    log = logs.create("/a")
    log.write([b"x" * 40])
    log.sync()
    name = log_format.file_name(log.log_id)
    assert cut(disk).read_all(f"/a/{name}")[-40:] == b"x" * 40
    temporary = logs.create_temporary(".new")
    temporary.write([b"y" * 40])
    temporary.sync()
    logs.adopt(temporary.log_id, ".new")
    path = logs.path(temporary.log_id)
    assert path is not None
    assert cut(disk).read_all(path)[-40:] == b"y" * 40
    assert not [each for each in cut(disk).names(path.rpartition("/")[0]) if each.endswith(".new")]


def test_sealed_log_has_its_map_and_its_header_after_a_power_cut() -> None:
    disk = new_disk(*PATHS)
    logs = EntryLogs(SimulatedFiles(disk), PATHS)
    log = logs.create("/a")
    log.write([b"x" * 40])
    log.count(np.array([5]), np.array([40]))
    log.seal()
    path = f"/a/{log_format.file_name(log.log_id)}"
    assert cut(disk).read_all(path) == SimulatedFiles(disk).read_all(path)


# ---- a whole bookie ----


STORAGES = [StorageClass.SORTED, StorageClass.INTERLEAVED, StorageClass.DB]


@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("storage_class", STORAGES, ids=lambda each: each.name)
def test_everything_before_the_marks_is_durable_without_the_journal(
    storage_class: StorageClass, directories: int
) -> None:
    twin = twin_of(storage_class, directories)
    held = [(ledger_id, entry_id) for ledger_id in range(4, 12) for entry_id in range(5)]
    for number, each in enumerate(held):
        assert add(twin, each) == [Status.EOK]
        if number == 20:
            twin.checkpoint()
    fence(twin, 5)
    fence(twin, 100)
    write_lac(twin, 6, 3)
    write_lac(twin, 101, 4)
    twin.checkpoint()
    again = restarted(twin)
    for reopened in (again, restarted(again)):
        assert [reopened.read(*each)[2] for each in held] == [entry(*each) for each in held]
        assert [reopened.header(each).fenced for each in (4, 5, 100, 101)] == [False, True, True, False]
        assert [reopened.header(each).explicit_lac for each in (6, 101)] == [lac_packet(6, 3), lac_packet(101, 4)]
        assert reopened.header(100).master_key == KEY
        assert not len(reopened.store.limbo)
        assert not reopened.store.any_in_doubt()


def test_key_that_comes_with_an_old_lac_is_durable() -> None:
    twin = twin_of(StorageClass.SORTED)
    ledger = twin.store.create_ledger(7, index_format.UNKNOWN_KEY)
    assert twin.store.advance_lac(ledger, lac_packet(7, 5))
    twin.checkpoint()
    assert write_lac(twin, 7, 3) == [Status.EOK]
    header = restarted(twin).header(7)
    assert (header.master_key, header.explicit_lac) == (KEY, lac_packet(7, 5))


@pytest.mark.parametrize("storage_class", STORAGES, ids=lambda each: each.name)
def test_dropped_ledgers_stay_dropped_and_their_fences_known(storage_class: StorageClass) -> None:
    twin = twin_of(storage_class)
    for ledger_id in (4, 5, 6):
        add(twin, (ledger_id, 0), (ledger_id, 1))
    fence(twin, 5)
    twin.checkpoint()
    twin.store.prepare_drop([4, 5], [5], 1000)
    assert twin.store.drop([4, 5]) == [4, 5]
    twin.store.sync_dropped([4, 5])
    reopened = restarted(twin)
    assert [reopened.store.ledger(each) is None for each in (4, 5, 6)] == [True, True, False]
    assert not reopened.store.any_in_doubt()
    assert add(reopened, (5, 2)) == [Status.EFENCED]
    assert add(reopened, (4, 2)) == [Status.EOK]


@pytest.mark.parametrize("storage_class", STORAGES, ids=lambda each: each.name)
def test_compacted_log_is_gone_and_its_copy_is_durable(storage_class: StorageClass) -> None:
    twin = twin_of(storage_class)
    for entry_id in range(40):
        add(twin, (4, entry_id), (5, entry_id))
    twin.checkpoint()
    twin.store.seal_logs()
    log_ids = twin.store.logs.rotated()
    assert log_ids
    for log_id in log_ids:
        twin.compact(log_id)
    assert set(twin.store.logs.rotated()) > {max(log_ids) + 1}, "the copies may be compacted in their turn"
    reopened = restarted(twin)
    assert not set(log_ids) & set(reopened.store.logs.rotated()), "a removed log does not come back"
    held = [(ledger_id, entry_id) for ledger_id in (4, 5) for entry_id in range(40)]
    assert [reopened.read(*each)[2] for each in held] == [entry(*each) for each in held]
    assert not any("compact" in name or name.endswith(".new") for name in _names(reopened))


def _names(twin: BookieTwin) -> list[str]:
    files = SimulatedFiles(twin.disk)
    return [name for path in twin.setup.ledger_paths for name in files.names(f"{path}/current")]


def test_intent_of_a_compaction_is_durable_before_the_index_moves_and_forgotten_durably() -> None:
    twin = twin_of()
    for entry_id in range(20):
        add(twin, (4, entry_id))
    twin.checkpoint()
    twin.store.seal_logs()
    directories = [f"{path}/current" for path in twin.setup.ledger_paths]
    compactor = Compactor(SimulatedFiles(twin.disk), twin.store, directories)
    log_id = twin.store.logs.rotated()[0]
    intent = intended_copy(compactor, log_id)
    assert intent is not None
    path = f"{directories[0]}/{intent_format.FILE_NAME}"
    assert intent_format.decode(cut(twin.disk).read_all(path)) == Intent(intent.new_id, log_id)
    compactor.finish(intent, lambda *_: None)
    twin.store.forget_log(log_id)
    compactor.remove(log_id)
    assert log_format.file_name(log_id) not in cut(twin.disk).names(directories[0])
    compactor.forget_intent()
    assert not cut(twin.disk).exists(path)


# ---- many files, and disks that fail ----


@pytest.mark.parametrize("syncs_file_systems", [True, False])
@pytest.mark.parametrize("singly_max", [0, 3, 20])
def test_index_files_are_durable_however_many_are_synced_one_by_one_and_stay_open_no_longer(
    monkeypatch: pytest.MonkeyPatch, singly_max: int, syncs_file_systems: bool
) -> None:
    if not syncs_file_systems:
        monkeypatch.setattr(SimulatedFiles, "open_file_system", lambda files, path: None)
    pages = PageOptions(files_synced_singly_max=singly_max)
    store = StoreOptions(cache_half_bytes=6144, append=AppendOptions(2600), open_files_max=4, pages=pages)
    setup = Setup(store=store)
    twin = BookieTwin(setup.new_disk(), setup, History())
    held = [(ledger_id, entry_id) for entry_id in range(2) for ledger_id in range(4, 16)]
    for number, each in enumerate(held):
        assert add(twin, each) == [Status.EOK]
        if number == 11:
            twin.checkpoint()
    twin.checkpoint()
    index = twin.store.index
    assert isinstance(index, PerLedgerIndex)
    assert not index._writer._written, "no file stays open after its sync"
    reopened = restarted(twin)
    assert [reopened.read(*each)[2] for each in held] == [entry(*each) for each in held]
    assert not reopened.store.any_in_doubt()


@pytest.mark.parametrize(
    ("singly_max", "operation", "what"),
    [
        (20, "sync_data", ".idx"),
        (20, "sync_directory", "/0/4"),
        (0, "sync_file_system", "/ledgers0"),
        (0, "write", ".idx"),
        (20, "write", "indexFiles"),
        (20, "sync_data", "indexFiles"),
        (20, "sync_data", ".log"),
        (20, "rename", "lastMark"),
    ],
)
def test_flush_of_which_one_step_fails_moves_no_mark_and_the_journal_keeps_everything(
    singly_max: int, operation: str, what: str
) -> None:
    pages = PageOptions(files_synced_singly_max=singly_max)
    store = StoreOptions(cache_half_bytes=6144, append=AppendOptions(2600), open_files_max=4, pages=pages)
    setup = Setup(store=store)
    twin = BookieTwin(setup.new_disk(), setup, History())
    add(twin, (5, 0), (5, 1))
    twin.checkpoint()
    before = Marks(SimulatedFiles(twin.disk), ["/ledgers0/current"]).read(0)
    held = [(ledger_id, entry_id) for ledger_id in (4, 5, 6) for entry_id in range(2, 5)]
    assert add(twin, *held) == [Status.EOK] * len(held)
    failed: list[str] = []

    def fault(asked: str, path: str) -> OSError | None:
        if asked != operation or what not in path:
            return None
        failed.append(path)
        return OSError(errno.EIO, "Input/output error", path)

    twin.disk.fault = fault
    with pytest.raises(OSError, match="Input/output error"):
        twin.checkpoint()
    assert failed
    twin.disk.fault = None
    assert Marks(cut(twin.disk), ["/ledgers0/current"]).read(0) == before
    reopened = restarted(twin)
    assert [reopened.read(*each)[2] for each in held] == [entry(*each) for each in held]


# ---- what a flush writes, and in which order ----


def operations_of(twin: BookieTwin, act: Callable[[], object]) -> list[tuple[str, str]]:
    """Return what was done with files while something was done: (operation, name of the file or directory)."""
    found: list[tuple[str, str]] = []
    twin.disk.before_operation = lambda operation, path: found.append((operation, path.rpartition("/")[2]))
    act()
    twin.disk.before_operation = None
    return found


def test_flush_touches_the_index_files_of_changed_ledgers_alone() -> None:
    twin = twin_of()
    for ledger_id in (4, 5):
        add(twin, (ledger_id, 0))
    fence(twin, 4)
    twin.checkpoint()
    add(twin, (5, 1))
    touched = operations_of(twin, twin.checkpoint)
    assert not [each for each in touched if each[1] in ("4.idx", "4")]
    assert [operation for operation, name in touched if name == "5.idx"] == ["write", "sync_data"]
    assert not [each for each in touched if each[0] == "sync_directory" and each[1] != "current"]
    fence(twin, 5)
    twin.checkpoint()
    add(twin, (4, 1), flags=RECOVERY_ADD)
    touched = operations_of(twin, twin.checkpoint)
    assert not [each for each in touched if each[1] == "5.idx"]


def test_changed_header_is_durable_in_one_slot_before_the_other_is_written() -> None:
    twin = twin_of()
    add(twin, (5, 0))
    twin.checkpoint()
    fence(twin, 5)
    touched = operations_of(twin, twin.checkpoint)
    assert [operation for operation, name in touched if name == "5.idx"] == ["write", "sync_data"] * 2
    data = cut(twin.disk).read_all("/ledgers0/current/0/5/5.idx")
    for lost in index_format.LAYOUT.slots_at:
        damaged = bytearray(data)
        damaged[lost : lost + index_format.SLOT_BYTES] = bytes(index_format.SLOT_BYTES)
        header = index_format.decode_header(bytes(damaged), 5)
        assert header is not None
        assert header.fenced


def test_directories_that_a_killed_process_made_are_durable_before_the_first_add_is_answered() -> None:
    setup = Setup()
    disk = setup.new_disk()
    for path in (*setup.journal_paths, *setup.ledger_paths):
        SimulatedFiles(disk).create_directory(f"{path}/current")
    twin = BookieTwin(disk, setup, History())
    assert add(twin, (5, 0)) == [Status.EOK]
    assert restarted(twin).read(5, 0)[2] == entry(5, 0)
