"""The rules of garbage collection, and the store's side of it on real files."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bookie_service.cluster.ledger_shares import is_elsewhere
from bookie_service.engine.pacing import pause_s
from bookie_service.formats import compaction as intent_format
from bookie_service.formats import entry_log as log_format
from bookie_service.formats import tombstones as tombstone_format
from bookie_service.formats.compaction import Intent
from bookie_service.formats.entry_log import HEADER_BYTES
from bookie_service.formats.index import STORED_ENTRY_ID_MAX
from bookie_service.gc import gc_policy
from bookie_service.gc.gc_policy import OFF, CompactionLevel, LogUsage
from bookie_service.storage.disks import DiskRoom
from bookie_service.storage.io.files import File, LocalFiles
from bookie_service.storage.ledgers.tombstones import Tombstones
from tests.bookie.collecting import UNLIMITED, Bench, intended_copy, without_limits
from tests.bookie.counted_reads import ReadCountingFiles
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.items import item
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles

MINOR, MAJOR = CompactionLevel(0.2, 10), CompactionLevel(0.8, 100)
SEVEN_DAYS_S = 604_800

# ---- rules ----


def test_ledger_is_elsewhere_only_when_closed_and_in_no_ensemble() -> None:
    ensembles = [("b:1", "c:1"), ("c:1", "d:1")]
    assert is_elsewhere(True, ensembles, "a:1")
    assert not is_elsewhere(True, ensembles, "d:1")
    assert not is_elsewhere(False, ensembles, "a:1")


def test_logs_below_the_threshold_are_compacted_emptiest_first_and_dead_ones_removed() -> None:
    usages = [LogUsage(1, 100, 0), LogUsage(2, 100, 19), LogUsage(3, 100, 10), LogUsage(4, 100, 20)]
    assert gc_policy.dead_logs(usages) == [1]
    assert gc_policy.logs_to_compact(usages, 0.2) == [3, 2]
    assert gc_policy.logs_to_compact(usages, 0) == []


def test_usage_counts_ledgers_that_are_still_there() -> None:
    found = gc_policy.usage(7, 100, np.array([1, 2, 3]), np.array([50, 30, 10]), np.array([2, 3, 4]))
    assert found == LogUsage(7, 100, 40)


@pytest.mark.parametrize(
    ("minor_s", "major_s", "due"), [(0, 0, OFF), (10, 10, MINOR), (10, 100, MAJOR), (0, 100, MAJOR)]
)
def test_compaction_is_due_by_its_interval(minor_s: float, major_s: float, due: CompactionLevel) -> None:
    assert gc_policy.due_level(MINOR, MAJOR, minor_s, major_s) == due


def test_threshold_or_interval_of_zero_or_less_turns_compaction_off() -> None:
    for off in (CompactionLevel(0, 10), CompactionLevel(-1, 10), CompactionLevel(0.5, 0), CompactionLevel(0.5, -1)):
        assert gc_policy.due_level(off, off, 1e9, 1e9) == OFF
        assert gc_policy.forced_level(off, off, without_interval=False) == OFF
        assert gc_policy.forced_level(MINOR, off, without_interval=False) == MINOR


def test_forced_compaction_needs_no_interval_only_when_that_is_allowed() -> None:
    """Reference 6.9: forceAllowCompaction."""
    without_interval = CompactionLevel(0.8, 0)
    assert gc_policy.forced_level(MINOR, without_interval, without_interval=False) == MINOR
    assert gc_policy.forced_level(MINOR, without_interval, without_interval=True) == without_interval
    assert gc_policy.forced_level(OFF, OFF, without_interval=True) == OFF


@pytest.mark.parametrize(
    ("due", "room", "when_full", "done"),
    [
        (MAJOR, DiskRoom.ENOUGH, False, MAJOR),
        (MAJOR, DiskRoom.SCARCE, False, MINOR),
        (MINOR, DiskRoom.SCARCE, False, MINOR),
        (MINOR, DiskRoom.FULL, False, OFF),
        (MAJOR, DiskRoom.FULL, False, OFF),
        (MAJOR, DiskRoom.FULL, True, MAJOR),
        (MAJOR, DiskRoom.SCARCE, True, MAJOR),
        (OFF, DiskRoom.SCARCE, False, OFF),
    ],
)
def test_major_compaction_waits_on_scarce_disks_and_every_one_on_full_disks(
    due: CompactionLevel, room: DiskRoom, when_full: bool, done: CompactionLevel
) -> None:
    """Reference 6.9: isForceGCAllowWhenNoSpace."""
    assert gc_policy.level_with_room(due, MINOR, room, when_full=when_full) == done


def test_pause_makes_up_for_what_was_done_too_fast() -> None:
    assert pause_s(500, 1000, 0.1) == pytest.approx(0.4)
    assert pause_s(500, 1000, 2.0) == 0
    assert pause_s(500, 0, 0.0) == 0


# ---- formats ----


def test_ledgers_map_has_apaches_layout() -> None:
    """Reference 6.7."""
    table = log_format.encode_map(np.array([5, 9]), np.array([100, 7]))
    expected = "00000034 ffffffffffffffff fffffffffffffffe 00000002" + "0000000000000005 0000000000000064"
    assert table == bytes.fromhex(expected + "0000000000000009 0000000000000007")
    many = np.arange(20_001)
    table = log_format.encode_map(many, many)
    header = log_format.decode_header(log_format.encode_header(1, 2000, len(many), log_format.map_checksum(table)), 1)
    assert header is not None
    decoded = log_format.decode_map(table, header)
    assert decoded is not None
    assert np.array_equal(decoded[0], many)
    for at in (0, 4, 20, 30, len(table) - 1):
        damaged = bytearray(table)
        damaged[at] ^= 1
        assert log_format.decode_map(bytes(damaged), header) is None
    assert log_format.decode_map(table, replace(header, map_ledgers=3)) is None
    assert log_format.decode_map(table, replace(header, checksum_ok=False)) is None


def test_intent_and_tombstones_survive_encoding_and_no_damage() -> None:
    for data, decode, value in (
        (intent_format.encode(Intent(7, 3)), intent_format.decode, Intent(7, 3)),
        (tombstone_format.encode({5: 10, 3: 20}), tombstone_format.decode, {5: 10, 3: 20}),
    ):
        assert decode(data) == value
        for at in range(len(data)):
            assert decode(data[:at]) is None
            assert decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def test_tombstones_are_kept_for_seven_days(tmp_path: Path) -> None:
    tombstones = Tombstones(LocalFiles(), [str(tmp_path)])
    tombstones.remember([5], 1000)
    tombstones.remember([6], 1000 + SEVEN_DAYS_S - 1)
    assert 5 in Tombstones(LocalFiles(), [str(tmp_path)])
    tombstones.remember([], 1000 + SEVEN_DAYS_S)
    again = Tombstones(LocalFiles(), [str(tmp_path)])
    assert (5 in again, 6 in again, again.notice) == (False, True, None)
    (tmp_path / tombstone_format.FILE_NAME).write_bytes(b"garbage")
    notice = Tombstones(LocalFiles(), [str(tmp_path)]).notice
    assert notice is not None
    assert "fails its checksum" in notice


# ---- logs on disk ----


def test_sealed_log_tells_what_each_ledger_has_in_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id in (8, 7):
        bench.put(ledger_id, range(3), size=10)
    bench.flush()
    bench.put(7, range(3, 4), size=10)
    bench.flush()
    bench.store.seal_logs()
    facts = bench.compactor.facts(1, without_limits)
    size = len(item(7, 0, 10))
    assert (facts.ledger_ids.tolist(), facts.ledger_bytes.tolist()) == ([7, 8], [4 * size, 3 * size])
    bench.store.close()


def test_log_without_a_map_is_scanned_for_what_the_index_points_to(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(7, range(10), size=10)
    bench.flush()
    bench.put(7, range(4), size=10)  # a recovery writes them again
    bench.flush()
    bench.reopen()
    facts = bench.compactor.facts(1, without_limits)
    assert (facts.ledger_ids.tolist(), facts.ledger_bytes.tolist()) == ([7], [10 * len(item(7, 0, 10))])
    assert facts.log_bytes == 14 * len(item(7, 0, 10))
    bench.store.close()


@pytest.mark.parametrize("directories", [1, 3])
@pytest.mark.parametrize("sealed", [False, True])
def test_space_returns_after_deletes(tmp_path: Path, directories: int, sealed: bool) -> None:
    """To within 5 % of the live bytes divided by the threshold."""
    bench = Bench(tmp_path, directories=directories)
    for first in range(0, 100, 10):
        for ledger_id in range(10):
            bench.put(ledger_id, range(first, first + 10))
        bench.flush()
    bench.reopen(cleanly=sealed)
    bench.delete(*range(1, 10))
    report = bench.collect()
    assert (report.dropped_ledgers, report.damaged_logs) == (9, 0)
    live = 100 * len(item(0, 0))
    assert bench.log_bytes <= 1.05 * live / UNLIMITED.major.threshold
    assert bench.holds(0, range(100))
    assert bench.read(1, range(1)) == [None]
    bench.reopen()
    assert bench.holds(0, range(100))
    bench.delete(0)
    bench.collect()
    assert bench.log_paths == []
    assert bench.other_names == set()
    bench.store.close()


@pytest.mark.parametrize("seed", range(3))
def test_space_stays_within_the_bound_through_random_deletes(seed: int) -> None:
    """After each pass within 5 % of the live bytes divided by the threshold, restarts in between included."""
    random = Random(seed)
    bench = Bench(Path("/bookie"), SimulatedFiles(SimulatedDisk()))
    live: dict[int, list[int]] = {}
    for turn in range(8):
        for ledger_id in range(100 * turn, 100 * turn + random.randint(1, 12)):
            live[ledger_id] = [random.choice((10, 100, 400))] * random.randint(1, 40)
            bench.put(ledger_id, range(len(live[ledger_id])), size=live[ledger_id][0])
            if random.random() < 0.3:
                bench.flush()
        bench.flush()
        if random.random() < 0.4:
            bench.reopen(cleanly=random.random() < 0.5)
        for ledger_id in [each for each in live if random.random() < 0.4]:
            bench.delete(ledger_id)
            del live[ledger_id]
        bench.collect(replace(UNLIMITED, deleted_share_max=1.0))
        live_bytes = sum(len(sizes) * len(item(0, 0, sizes[0])) for sizes in live.values())
        assert bench.log_bytes <= 1.05 * live_bytes / UNLIMITED.major.threshold
        assert all(bench.holds(ledger_id, range(len(sizes)), sizes[0]) for ledger_id, sizes in live.items())
    bench.store.close()


def test_logs_of_which_enough_is_live_are_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id in range(10):
        bench.put(ledger_id, range(5))
    bench.flush()
    before = bench.log_paths
    bench.delete(3)
    assert bench.collect().compacted_logs == 0
    assert bench.log_paths == before
    bench.store.close()


def test_unforced_pass_compacts_only_when_it_is_due_and_leaves_the_open_log_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id in range(10):
        bench.put(ledger_id, range(20))
    bench.flush()
    bench.drop(*range(1, 10))
    open_log = bench.log_paths[-1]
    report = bench.collect(forced=False)
    assert report.compacted_logs == 0
    assert open_log in bench.log_paths
    minor = replace(UNLIMITED, interval_s=1e-9, minor=CompactionLevel(0.9, 1e-8), major=CompactionLevel(0, 0))
    bench.store.seal_logs()
    assert bench.collect(minor, forced=False).compacted_logs == 1
    assert bench.holds(0, range(20))
    bench.store.close()


def test_entries_written_again_during_a_compaction_stay_the_newer_ones(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(10), size=10)
    bench.put(2, range(10))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2)
    intent = intended_copy(bench.compactor, 1)
    assert intent is not None
    bench.put(1, range(4), size=20)
    bench.flush()
    bench.compactor.finish(intent, without_limits)
    bench.store.forget_log(1)
    bench.compactor.remove(1)
    assert bench.holds(1, range(4), size=20)
    assert bench.read(1, range(4, 10)) == [item(1, entry_id, 10) for entry_id in range(4, 10)]
    bench.store.close()


def test_striped_and_far_apart_entries_are_compacted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(0, 60, 3))
    bench.put(1, range(1 << 30, (1 << 30) + 2))
    bench.put(2, range(100))
    bench.flush()
    bench.delete(2)
    assert bench.collect().compacted_logs > 0
    assert all(bench.holds(1, range(entry_id, entry_id + 1)) for entry_id in range(0, 60, 3))
    assert bench.holds(1, range(1 << 30, (1 << 30) + 2))
    assert bench.read(1, range(1, 2)) == [None]
    bench.store.close()


def test_log_of_an_apache_bookie_or_with_a_torn_end_is_compacted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(5))
    bench.put(2, range(30))
    bench.flush()
    bench.store.close()
    for path in bench.log_paths:
        with open(path, "r+b") as log:
            log.write(b"BKLO" + (1).to_bytes(4, "big") + bytes(HEADER_BYTES - 8))
            log.seek(0, os.SEEK_END)
            log.write(b"\0\0\0\x70 half an entry")
    bench.open()
    bench.delete(2)
    report = bench.collect()
    assert report.damaged_logs == 0
    assert bench.holds(1, range(5))
    assert bench.log_bytes <= 1.05 * 5 * len(item(1, 0)) / UNLIMITED.major.threshold
    bench.store.close()


def test_copying_never_reads_beyond_damage(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(20))
    bench.put(2, range(30))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2)
    path = bench.log_paths[0]
    content = bytearray(Path(path).read_bytes())
    for at in (HEADER_BYTES, HEADER_BYTES + 4, HEADER_BYTES + 11):  # length, top and last byte of the ledger id
        damaged = bytearray(content)
        damaged[at] ^= 0x80
        Path(path).write_bytes(damaged)
        with pytest.raises(StorageDamaged, match="is kept as it is"):
            intended_copy(bench.compactor, 1)
        assert bench.other_names == set()
    bench.store.close()


def test_logs_of_tiny_entries_are_not_rewritten_again_and_again(tmp_path: Path) -> None:
    """The ledgers map is not garbage."""
    bench = Bench(tmp_path)
    for ledger_id in range(50):
        bench.put(ledger_id, range(1), size=0)
    bench.flush()
    assert bench.collect().compacted_logs == 0
    bench.store.close()


def test_entry_id_that_cannot_be_is_damage(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()
    bench.store.seal_logs()
    path = Path(bench.log_paths[0])
    content = bytearray(path.read_bytes())
    content[HEADER_BYTES + 12] = 0x7F
    path.write_bytes(content)
    with pytest.raises(StorageDamaged, match="no entry begins there"):
        intended_copy(bench.compactor, 1)
    bench.store.close()


def test_disk_without_room_changes_nothing_at_whatever_step_it_says_so(tmp_path: Path) -> None:
    """A copy that fails leaves neither a temporary file nor an intent, and the next pass does the work."""
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    bench.put(1, range(5))
    bench.put(2, range(50))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2)
    bench.cluster.existing = {1}
    files.code = errno.ENOSPC
    failed = 0
    while True:
        countdown = iter(range(failed, -1, -1))
        files.fault = lambda operation, path, left=countdown: (
            operation in ("create", "write", "sync_data", "rename") and next(left, 1) == 0
        )
        try:
            intent = intended_copy(bench.compactor, 1)
            break
        except OSError:
            files.fault = None
            assert bench.other_names <= {"lastId.new", "compaction.new"}
            assert bench.holds(1, range(5))
            failed += 1
    files.fault = None
    assert failed > 10
    assert intent is not None
    bench.compactor.finish(intent, without_limits)
    assert bench.holds(1, range(5))
    bench.store.close()


def half_dead_logs(tmp_path: Path, files: LocalFiles | None = None) -> Bench:
    """Return a bench with one log without a live entry, and four of which half is live."""
    bench = Bench(tmp_path, files)
    bench.put(99, range(60))
    bench.flush()
    bench.store.seal_logs()
    for ledger_id in range(4):
        bench.put(ledger_id, range(20))
        bench.put(50 + ledger_id, range(20))
        bench.flush()
        bench.store.seal_logs()
    bench.delete(99, 50, 51, 52, 53)
    return bench


@pytest.mark.parametrize(
    ("room", "when_full", "compacted"),
    [(DiskRoom.FULL, False, 0), (DiskRoom.SCARCE, False, 0), (DiskRoom.FULL, True, 4), (DiskRoom.ENOUGH, False, 4)],
)
def test_full_disk_gets_the_dead_logs_and_compaction_only_when_that_is_configured(
    tmp_path: Path, room: DiskRoom, when_full: bool, compacted: int
) -> None:
    bench = half_dead_logs(tmp_path)
    report = bench.collect(replace(UNLIMITED, compact_when_full=when_full), room=room)
    assert (report.dropped_ledgers, report.compacted_logs) == (5, compacted)
    assert report.removed_logs >= 1
    assert all(bench.holds(ledger_id, range(20)) for ledger_id in range(4))
    # What waited is done when there is room: asked for, and by itself.
    late = replace(UNLIMITED, interval_s=1e-9, major=CompactionLevel(0.8, 1e-8), minor=CompactionLevel(0, 0))
    assert bench.collect(late, forced=False).compacted_logs == 4 - compacted
    bench.store.close()


def test_every_pass_on_a_full_disk_compacts_when_that_is_configured(tmp_path: Path) -> None:
    bench = half_dead_logs(tmp_path)
    bench.drop(99, 50, 51, 52, 53)
    options = replace(UNLIMITED, compact_when_full=True)
    assert bench.collect(options, forced=False).compacted_logs == 0, "not due yet"
    assert bench.collect(options, forced=False, room=DiskRoom.FULL).compacted_logs == 4
    bench.store.close()


def test_compaction_begins_no_further_log_when_its_time_is_over(tmp_path: Path) -> None:
    bench = half_dead_logs(tmp_path)
    report = bench.collect(replace(UNLIMITED, major=CompactionLevel(0.8, 86_400, seconds_max=1e-9)))
    assert report.compacted_logs == 0
    assert report.removed_logs >= 1
    assert "left for the next compaction" in report.kept_because
    assert bench.collect().compacted_logs == 4
    bench.store.close()


def test_index_files_are_removed_apart_from_the_event_loop(tmp_path: Path) -> None:
    """A file system may let a removal wait for its disk, for a second and longer."""
    threads: set[str] = set()

    class Watched(LocalFiles):
        def remove(self, path: str) -> None:
            if path.endswith(".idx"):
                threads.add(threading.current_thread().name)
            super().remove(path)

    bench = half_dead_logs(tmp_path, Watched())
    report = bench.collect()
    assert report.dropped_ledgers == 5
    assert len(list(tmp_path.rglob("*.idx"))) == len(bench.store.index.ledger_ids())
    assert {name.rpartition("_")[0] for name in threads} == {"collector"}
    bench.store.close()


def test_fenced_ledgers_wait_while_they_cannot_be_noted_and_others_go(tmp_path: Path) -> None:
    class Full(LocalFiles):
        is_full = False

        def create(self, path: str) -> File:
            if self.is_full and "fencedDeleted" in path:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return super().create(path)

    files = Full()
    bench = half_dead_logs(tmp_path, files)
    ledger = bench.store.ledger(50)
    assert ledger is not None
    bench.store.fence(ledger)
    bench.put(0, range(20, 21))
    bench.flush()
    files.is_full = True
    report = bench.collect(room=DiskRoom.FULL)
    assert report.dropped_ledgers == 4
    assert "No space left" in report.kept_because
    assert bench.holds(50, range(20))
    files.is_full = False
    assert bench.collect().dropped_ledgers == 1
    assert 50 in bench.store.tombstones
    bench.store.close()


def test_copies_are_synced_after_a_number_of_entries(tmp_path: Path) -> None:
    """Apache's compactionMaxOutstandingRequests."""

    syncs = 0

    class CountedFile(File):
        def sync_data(self) -> None:
            nonlocal syncs
            syncs += self.path.endswith(intent_format.SUFFIX)
            super().sync_data()

    class Counting(LocalFiles):
        def create(self, path: str) -> File:
            super().create(path).close()
            return CountedFile(os.open(path, os.O_RDWR), path)

    counts = []
    for outstanding_max in (1, 1000):
        syncs = 0
        bench = half_dead_logs(tmp_path / str(outstanding_max), Counting())
        assert bench.collect(replace(UNLIMITED, outstanding_max=outstanding_max)).compacted_logs == 4
        counts.append(syncs)
        bench.store.close()
    assert counts[0] == counts[1] + 4


def test_torn_log_costs_what_the_ledgers_hold_not_how_far_their_ids_lie_apart(tmp_path: Path) -> None:
    """One add of entry 2**40 - 1 made the search for positions after the tear take hours."""
    files = ReadCountingFiles()
    bench = Bench(tmp_path, files)
    bench.put(1, range(5))
    bench.put(2, range(STORED_ENTRY_ID_MAX, STORED_ENTRY_ID_MAX + 1))
    bench.flush()
    bench.store.close()
    for path in bench.log_paths:
        with open(path, "r+b") as log:
            log.seek(0, os.SEEK_END)
            log.write(b"\0\0\0\x70 half an entry")
    bench.open()
    files.looks = 0
    facts = bench.compactor.facts(1, without_limits)
    assert facts.ledger_ids.tolist() == [1, 2]
    assert files.looks < 100
    bench.store.close()
