"""What storage does at the edges of its files: empty, cut, missing, read in another order, finished after a crash."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bookie_service.formats import journal as journal_format
from bookie_service.formats.compaction import SUFFIX
from bookie_service.formats.index import LAYOUT, LedgerHeader
from bookie_service.formats.journal import RecordKind
from bookie_service.storage.index.index import innermost_directories, last_data_end
from bookie_service.storage.index.index_file import IndexFile
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.io import files as files_module
from bookie_service.storage.io.byte_source import CachedSource
from bookie_service.storage.io.files import File, LocalFiles
from bookie_service.storage.io.key_values import KeyValueOptions
from bookie_service.storage.journal.journal import Journal, JournalOptions, Record
from bookie_service.storage.ledgers.limbo import DirtyMarker
from bookie_service.storage.ledgers.opening import open_storage
from bookie_service.storage.logs import compaction
from tests.bookie.collecting import Bench, intended_copy, without_limits
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.file_indexes import CountingFiles, new_index, update
from tests.bookie.items import item
from tests.bookie.journals import FILES, OPTIONS, START, open_journal, path_of, record, replayed
from tests.bookie.ledger_stores import OPTIONS as STORE_OPTIONS
from tests.bookie.ledger_stores import flush, open_store, put, read
from tests.bookie.storage_edges import half_live, log_ids

KEY = b"k" * 20
FAKE = journal_format.RECORD_MAGIC + bytes(20)
"""Bytes that begin like a record of a journal."""


# ---- files ----


def test_physical_block_size_falls_back_to_that_of_most_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for found, expected in ((512, 512), (4096, 4096), (None, 4096)):
        monkeypatch.setattr(files_module, "physical_block_bytes", lambda device: asked.append(device) or found)  # noqa: B023
        assert LocalFiles().block_bytes(str(tmp_path)) == expected
    assert set(asked) == {os.stat(tmp_path).st_dev}


def test_directory_is_not_a_file_to_be_opened_read_only_instead(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        LocalFiles().open(str(tmp_path))


def test_failed_sync_of_a_directory_names_it_and_holds_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError) as raised:
        LocalFiles().sync_directory(str(tmp_path))
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(tmp_path))
    assert os.listdir("/proc/self/fd") == before


def test_private_directory_that_passes_its_group_on_is_left_as_it_is(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o2700)
    assert LocalFiles().protect(str(tmp_path)) is None
    os.chmod(tmp_path, 0o2710)
    assert LocalFiles().protect(str(tmp_path)) is not None
    assert os.stat(tmp_path).st_mode & 0o777 == 0o700


# ---- index files ----


def index_file(path: Path, data: bytes) -> IndexFile:
    path.write_bytes(data)
    return IndexFile(LocalFiles().open(str(path)))


def test_index_file_that_is_empty_has_no_positions_and_one_without_a_header_does_not_tell(tmp_path: Path) -> None:
    empty = index_file(tmp_path / "1.idx", b"")
    assert empty.end_entry(0) == 0
    assert not len(empty.positions(0, 10))
    lost = index_file(tmp_path / "2.idx", bytes(5000))
    for ask in (lambda: lost.end_entry(lost.file.size()), lambda: lost.positions(0, 1), lambda: lost.next_data(0)):
        with pytest.raises(StorageDamaged, match=r"2\.idx: its header is unreadable"):
            ask()
    whole = index_file(tmp_path / "3.idx", b"")
    whole.create(LedgerHeader(3, 1, False, KEY))
    assert whole.end_entry(whole.file.size()) == 0
    whole.write_positions(4, np.array([7, 8]))
    assert whole.end_entry(whole.file.size()) == 6
    assert whole.positions(3, 9).tolist() == [0, 7, 8]


def test_hole_of_an_index_file_is_not_looked_through(tmp_path: Path) -> None:
    file = index_file(tmp_path / "1.idx", b"")
    file.create(LedgerHeader(1, 1, False, KEY))
    assert last_data_end(file, 0) == 0
    os.truncate(tmp_path / "1.idx", 1 << 20)
    if file.next_data(4096) is not None:
        pytest.skip("this file system tells of no holes")
    at = 100_000
    file.write_positions(at, np.array([5]))
    assert at < last_data_end(file, file.end_entry(file.file.size())) <= at + 1024
    if LAYOUT.position_at(0) >= os.stat(tmp_path).st_blksize:
        assert last_data_end(file, 40_000) == 0


def test_only_directories_of_one_or_two_hexadecimal_digits_hold_index_files(tmp_path: Path) -> None:
    for name in ("0", "a", "1f", "abc", "g", "1F"):
        for inner in ("7", "00", "000", "x"):
            (tmp_path / name / inner).mkdir(parents=True)
    (tmp_path / "b").write_bytes(b"no directory")
    found = sorted(os.path.relpath(path, tmp_path) for path in innermost_directories(LocalFiles(), str(tmp_path)))
    assert found == ["0/00", "0/7", "1f/00", "1f/7", "a/00", "a/7"]


def test_positions_that_fit_into_memory_reach_no_file_before_the_sync(tmp_path: Path) -> None:
    """A flush that only makes room for adds writes nothing to the index."""
    index = new_index(LocalFiles(), tmp_path, PageOptions(8192, 1 << 20))
    index.hold([update(ledger_id, 0, [ledger_id + 1] * 3, generation=1) for ledger_id in range(20)])
    assert not list(tmp_path.rglob("*.idx"))
    index.sync()
    assert len(list(tmp_path.rglob("*.idx"))) == 20
    index.close()


def test_names_that_a_killed_process_may_have_made_are_synced_with_their_files(tmp_path: Path) -> None:
    files = CountingFiles()
    first = new_index(files, tmp_path, PageOptions())
    first.hold([update(5, 0, [1], generation=1)])
    first.sync()
    for names_are_durable in (True, False):
        files.synced.clear()
        first.hold([update(5, 1, [2])])
        first.sync(names_are_durable)
        innermost = str(next(tmp_path.rglob("5.idx")).parent)
        on_the_way = {innermost, os.path.dirname(innermost), str(tmp_path)}
        assert (on_the_way <= set(files.synced)) == (not names_are_durable)
        assert bool(on_the_way & set(files.synced)) == (not names_are_durable)
    first.close()


def test_file_that_a_crash_left_without_a_header_gets_it_in_both_slots(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    index.hold([update(5, 0, [1], generation=1)])
    index.sync()
    (path,) = tmp_path.rglob("5.idx")
    index.close()
    path.write_bytes(b"")
    again = new_index(LocalFiles(), tmp_path, PageOptions())
    again.hold([update(5, 0, [9], generation=2)])
    again.sync()
    content = path.read_bytes()
    slots = [content[at : at + 64] for at in LAYOUT.slots_at]
    assert slots[0] == slots[1] != bytes(64)
    assert again.positions(5, 0, 2).tolist()[:1] == [9]
    again.close()


# ---- the key-value index ----


def test_key_value_index_commits_once_for_each_change(tmp_path: Path) -> None:
    files = FaultyFiles()
    index = KeyValueIndex(files, str(tmp_path), KeyValueOptions())
    index.close()
    files.operations.clear()
    index = KeyValueIndex(files, str(tmp_path), KeyValueOptions())
    # A process that was killed may have made it and not its name durable.
    assert ("sync_directory", str(tmp_path)) in files.operations
    index.hold([update(5, 0, [7, 8], generation=1)])
    assert not index.is_clean
    index.sync()
    assert index.is_clean
    files.operations.clear()
    index.sync()
    assert files.operations == []
    index.hold([])
    assert index.is_clean
    index.hold([update(5, 1, [9])])
    index.sync()
    assert index.positions(5, 0, 3).tolist()[:2] == [7, 9]
    index.close()


# ---- the store ----


def test_ledger_0_is_found_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 0, {0: item(0, 0, 5)})
    flush(store)
    store.close()
    store = open_store(tmp_path)
    assert read(store, 0, 0) == item(0, 0, 5)
    assert store.ledger(-1) is None
    assert store.absent(np.array([0, 1, -1])).tolist() == [False, True, True]
    store.close()


def test_flush_moves_the_mark_unless_forbidden(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for advances_checkpoint in (None, True, False):
        put(store, 5, {0: item(5, 0, 5)})
        taken = (
            store.begin_flush()
            if advances_checkpoint is None
            else store.begin_flush(advances_checkpoint=advances_checkpoint)
        )
        assert taken is not None
        assert taken.advances_checkpoint == (advances_checkpoint is not False)
        assert store.begin_flush() is None, "one runs"
        store.write_flush(taken)
        store.end_flush(taken)
    store.close()


def test_entries_are_located_in_the_logs_alone_and_only_as_far_as_these_are_the_newest(tmp_path: Path) -> None:
    """A client that maps a log reads it by itself: it must not get an entry that was written again since."""
    store = open_store(tmp_path)
    put(store, 900, {entry_id: item(900, entry_id, 20) for entry_id in (0, 1, 2, 3, 6)})
    flush(store)
    ledger = store.ledger(900)
    assert ledger is not None

    def located(first_entry: int, count: int = 100) -> int:
        found = store.locate(ledger, first_entry, count, 1 << 20)
        return 0 if found is None else len(found.offsets)

    assert [located(entry_id) for entry_id in (0, 2, 4, 5, 6, 7)] == [4, 2, 0, 0, 1, 0]
    assert (located(0, 3), located(0, 0)) == (3, 0)
    put(store, 900, {2: item(900, 2, 30)})
    assert [located(entry_id) for entry_id in (0, 1, 2, 3)] == [2, 1, 0, 1]
    taken = store.begin_flush()
    assert taken is not None
    put(store, 900, {1: item(900, 1, 30)})
    assert [located(entry_id) for entry_id in (0, 1, 2, 3)] == [1, 0, 0, 1]
    store.write_flush(taken)
    store.end_flush(taken)
    assert [located(entry_id) for entry_id in (0, 1, 2, 3)] == [1, 0, 1, 1]
    store.close()


def test_forgotten_log_holds_no_descriptor(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 5, {0: item(5, 0, 5)})
    flush(store)
    assert read(store, 5, 0) == item(5, 0, 5)

    def held() -> list[str]:
        paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        held = [path for path in paths if os.path.lexists(path) and os.readlink(path).startswith(str(tmp_path))]
        return [path for path in held if os.readlink(path).endswith(".log")]

    (log_id,) = {int(os.path.basename(os.readlink(path)).removesuffix(".log"), 16) for path in held()}
    store.seal_logs()
    store.forget_log(log_id)
    assert held() == []
    store.close()


def test_marker_of_a_run_is_gone_after_a_stop_in_order(tmp_path: Path) -> None:
    directories = [str(tmp_path / "a"), str(tmp_path / "b")]
    for directory in directories:
        os.mkdir(directory)
    marker = DirtyMarker(LocalFiles(), directories)
    marker.set(journal_is_complete=False)
    assert [len(os.listdir(directory)) for directory in directories] == [1, 1]
    assert marker.is_journal_incomplete()
    marker.clear()
    assert [os.listdir(directory) for directory in directories] == [[], []]
    assert not marker.is_journal_incomplete()


# ---- journals ----


def test_each_file_of_a_journal_is_preallocated_step_by_step(tmp_path: Path) -> None:
    """A file that is not preallocated has its length synced with each group, which costs a second write."""
    step = 4096
    journal = open_journal(tmp_path, options=JournalOptions(10_000, step, 1, 0))
    sizes = set()
    for _ in range(12):
        journal.append([record(b"x" * 3000)])
        end = journal.end
        size = os.path.getsize(path_of(tmp_path, end.file_id))
        assert size % step == 0
        assert end.offset <= size <= end.offset + 2 * step
        sizes.add((end.file_id, size))
    assert {file_id for file_id, _ in sizes} == {1, 2, 3}
    journal.close()


def test_record_after_damage_is_found_though_later_bytes_look_like_records(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([record(b"kept")])
    damaged = journal.end.offset
    journal.append([record(b"damaged" + FAKE)])
    journal.append([record(b"y" * 50)])
    journal.append([record(b"proof" + FAKE * 3 + b"z" * 50)])
    journal.close()
    path = path_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[damaged] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageDamaged, match="was synced"):
        replayed(tmp_path)


def test_record_of_invalid_entries_prevents_the_start(tmp_path: Path) -> None:
    current = tmp_path / "journal" / "current"
    current.mkdir(parents=True)
    ledgers = tmp_path / "ledgers" / "current"
    ledgers.mkdir(parents=True)
    for body in (b"\xff" * 40, b"\0\0\0\x03abc", b"\0\0\0\x50" + bytes(20)):
        for left in current.iterdir():
            left.unlink()
        journal = Journal(FILES, str(current), OPTIONS, START)
        journal.append([Record.of(RecordKind.ENTRIES, 1, body)])
        journal.close()
        with pytest.raises(StorageDamaged, match="offset"):
            open_storage(LocalFiles(), [str(tmp_path / "journal")], [str(tmp_path / "ledgers")], STORE_OPTIONS, OPTIONS)


def test_journal_keeps_as_many_backups_as_apaches_unless_it_is_configured() -> None:
    """journalMaxBackups"""
    assert JournalOptions().backups_max == 5


# ---- compaction ----


def test_compaction_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    bench = half_live(tmp_path)
    (old_id,) = log_ids(bench)
    intent = intended_copy(bench.compactor, old_id)
    assert intent is not None
    bench.reopen()
    assert bench.notices == []
    assert log_ids(bench) == [intent.new_id]
    assert bench.holds(1, range(20))
    assert not [name for path in bench.paths for name in os.listdir(path) if name.startswith("compaction")]
    assert bench.compactor.recover() == []
    bench.store.close()


def test_start_of_a_bookie_finishes_the_compaction_before_it_replays(tmp_path: Path) -> None:
    bench = half_live(tmp_path)
    (old_id,) = log_ids(bench)
    intent = intended_copy(bench.compactor, old_id)
    assert intent is not None
    bench.store.close()
    (tmp_path / "ledgers").mkdir()
    current = Path(bench.paths[0]).rename(tmp_path / "ledgers" / "current")
    journals, ledgers = [str(tmp_path / "journal")], [str(tmp_path / "ledgers")]
    storage = open_storage(LocalFiles(), journals, ledgers, STORE_OPTIONS, JournalOptions())
    assert storage.store.logs.rotated() == [intent.new_id]
    assert not [each.name for each in current.iterdir() if each.name.startswith("compaction") or each.suffix == SUFFIX]
    storage.store.close()


def test_compaction_whose_new_log_is_lost_or_damaged_keeps_the_old_one(tmp_path: Path) -> None:
    for number, damage in enumerate(("missing", "cut", "damaged")):
        bench = half_live(tmp_path / str(number))
        (old_id,) = log_ids(bench)
        intent = intended_copy(bench.compactor, old_id)
        assert intent is not None
        (copied,) = (tmp_path / str(number)).rglob(f"*{SUFFIX}")
        if damage == "missing":
            copied.unlink()
        elif damage == "cut":
            os.truncate(copied, copied.stat().st_size - 10)
        else:
            content = bytearray(copied.read_bytes())
            content[1024 + 3 * 120] ^= 0xFF  # the length of an entry in the middle
            copied.write_bytes(content)
        bench.reopen()
        (notice,) = bench.notices
        assert f"the compaction of entry log {old_id:x} could not be finished" in notice, damage
        assert old_id in log_ids(bench)
        assert bench.holds(1, range(20))
        bench.store.close()


def test_log_without_a_map_is_scanned_once(tmp_path: Path) -> None:
    class Opened(LocalFiles):
        def __init__(self) -> None:
            super().__init__()
            self.logs: list[str] = []

        def open(self, path: str) -> File:
            if path.endswith(".log"):
                self.logs.append(path)
            return super().open(path)

    files = Opened()
    bench = Bench(tmp_path, files)
    bench.put(7, range(10))
    bench.flush()
    bench.reopen()
    (log_id,) = log_ids(bench)
    first = bench.compactor.facts(log_id, without_limits)
    files.logs.clear()
    assert bench.compactor.facts(log_id, without_limits) is first
    assert files.logs == []
    bench.store.close()


def test_copy_that_fails_tells_why_though_its_file_cannot_be_removed(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = half_live(tmp_path, files)
    (old_id,) = log_ids(bench)

    def fault(operation: str, path: str) -> bool:
        if operation == "remove" and path.endswith(SUFFIX):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return operation == "sync_data" and path.endswith(SUFFIX)

    files.fault = fault
    with pytest.raises(OSError, match="Input/output") as raised:
        intended_copy(bench.compactor, old_id)
    assert raised.value.filename.endswith(SUFFIX)
    files.fault = None
    bench.reopen()
    assert bench.compactor.recover() == []
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))
    assert log_ids(bench) == [old_id]
    assert bench.holds(1, range(20))
    bench.store.close()


def test_large_copies_are_synced_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync of all of it at the end would hold the journal's syncs up."""
    monkeypatch.setattr(compaction, "SYNC_BYTES", 1000)
    files = FaultyFiles()
    bench = half_live(tmp_path, files)
    (old_id,) = log_ids(bench)
    files.operations.clear()
    assert intended_copy(bench.compactor, old_id) is not None
    syncs = [path for operation, path in files.operations if operation == "sync_data" and path.endswith(SUFFIX)]
    monkeypatch.undo()
    files.operations.clear()
    other = half_live(tmp_path / "other", files)
    files.operations.clear()
    assert intended_copy(other.compactor, log_ids(other)[0]) is not None
    unhurried = [path for operation, path in files.operations if operation == "sync_data" and path.endswith(SUFFIX)]
    assert len(syncs) > len(unhurried) > 0
    bench.store.close()
    other.store.close()


def test_log_without_a_map_whose_entries_end_in_damage_is_not_rewritten(tmp_path: Path) -> None:
    """The index points to entries after the damage, which a copy would leave out."""
    bench = Bench(tmp_path)
    bench.put(1, range(20))
    bench.put(2, range(20))
    bench.flush()
    bench.store.close()
    (path,) = bench.log_paths
    content = bytearray(Path(path).read_bytes())
    content[1024 + 23 * 120] ^= 0xFF  # the length of an entry of ledger 2
    Path(path).write_bytes(content)
    bench.open()
    bench.drop(1)
    (log_id,) = log_ids(bench)
    with pytest.raises(StorageDamaged, match="no entry begins there"):
        intended_copy(bench.compactor, log_id)
    assert log_ids(bench) == [log_id]
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))
    assert bench.holds(2, range(4, 20))
    bench.store.close()


def test_extents_begin_and_end_with_a_position(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    index.hold([update(5, 0, [7, 8], generation=1), update(5, 60, [9])])
    for sync in (False, True):
        if sync:
            index.sync()
        found = [(first, positions.tolist()) for first, positions in index.extents(5, 0, 10)]
        assert found == [(0, [7, 8])]
        found = [(first, positions.tolist()) for first, positions in index.extents(5, 1, 61)]
        assert found == [(1, [8, *[0] * 58, 9])]
        assert list(index.extents(5, 2, 60)) == []
    index.close()


def test_ledgers_that_hold_entries_are_known_by_their_files_whatever_the_order_of_their_flush(tmp_path: Path) -> None:
    index = new_index(LocalFiles(), tmp_path, PageOptions())
    asked = np.array([2, 3, 5, 7, 8, 9])
    for ledger_ids, expected in (((9, 3, 7), [3, 7, 9]), ((5, 2), [2, 3, 5, 7, 9])):
        index.hold([update(ledger_id, 0, [1], generation=1) for ledger_id in ledger_ids])
        index.hold([update(8, 0, [], generation=1)])
        index.sync()
        assert index.holding_entries(asked).tolist() == expected
    index.close()


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_journal_file_in_which_replay_begins_must_be_there(tmp_path: Path, missing: int) -> None:
    """The later files alone would look like a whole journal."""
    journal = open_journal(tmp_path, options=JournalOptions(1500, 4096, 1, 0))
    ends = []
    for number in range(6):
        journal.append([record(bytes([number]) * 800)])
        ends.append(journal.end)
    journal.close()
    assert {end.file_id for end in ends} >= {1, 2, 3}
    mark = next(end for end in ends if end.file_id == missing)
    assert replayed(tmp_path, mark)[0] == [bytes([number]) * 800 for number in range(ends.index(mark) + 1, 6)]
    path_of(tmp_path, missing).unlink()
    with pytest.raises(StorageDamaged, match="where replay begins, is missing"):
        replayed(tmp_path, mark)


def test_journal_lets_go_of_whole_pages_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last page is written to again: it would be read from the disk first."""
    gone: list[tuple[int, int]] = []
    monkeypatch.setattr(File, "drop_page_cache", lambda self, start, end: gone.append((start, end)))
    journal = open_journal(tmp_path, options=replace(OPTIONS, cached_bytes=10_000))
    for _ in range(30):
        journal.append([record(b"x" * 1500)])
        assert all(end <= journal.end.offset for _, end in gone)
    assert len(gone) >= 3
    assert [start for start, _ in gone] == [0, *(end for _, end in gone[:-1])]
    assert all(end % 4096 == 0 and end - start >= 4096 for start, end in gone)
    journal.close()


def test_entries_that_are_read_for_keeps_are_copies_and_lent_ones_are_not(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 5, {0: item(5, 0, 5)})
    ledger = store.ledger(5)
    assert ledger is not None
    (kept,) = store.read(ledger, 0, 1, 1 << 20)
    (lent,) = store.read(ledger, 0, 1, 1 << 20, CachedSource(1 << 16))
    assert bytes(kept.buffer) == bytes(lent.buffer) == item(5, 0, 5)
    store.active.memory[: store.active.used] = 0
    assert bytes(kept.buffer) == item(5, 0, 5)
    assert bytes(lent.buffer) == bytes(len(item(5, 0, 5)))
    store.close()
