"""The steps of one pass of garbage collection, in their order, and which compaction is due at which time."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bkspark.errors import BookKeeperError
from bookie_service.formats import compaction as intent_format
from bookie_service.formats import index_files
from bookie_service.formats import tombstones as tombstone_format
from bookie_service.formats.compaction import SUFFIX
from bookie_service.gc.garbage_collector import SUSPENDED, GarbageCollector
from bookie_service.gc.gc_policy import OFF, CompactionLevel
from bookie_service.storage.disks import DiskRoom
from tests.bookie.bench_collectors import MAJOR, MINOR, OFTEN, BenchCollector, with_collector
from tests.bookie.collecting import UNLIMITED, Bench, FakeCluster
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.storage_edges import half_live

# ---- which compaction ----


def due(collector: GarbageCollector) -> CompactionLevel:
    """Return the compaction of a pass that was not requested."""
    return collector.take_due_compaction(is_forced=False, may_major=True, may_minor=True)


def test_compactions_come_at_their_intervals_and_a_major_one_counts_as_a_minor_one(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        found = []
        for now_s in (9.9, 10, 15, 19.9, 20, 99, 100, 109.9, 110, 199.9, 200):
            gc.now_s = now_s
            found.append((now_s, due(gc.collector)))
        assert found == [
            (9.9, OFF),
            (10, MINOR),
            (15, OFF),
            (19.9, OFF),
            (20, MINOR),
            (99, MINOR),
            (100, MAJOR),
            (109.9, OFF),
            (110, MINOR),
            (199.9, MINOR),
            (200, MAJOR),
        ]

    with_collector(Bench(tmp_path), OFTEN, test)


@pytest.mark.parametrize(
    ("may_major", "may_minor", "level"),
    [(True, True, MAJOR), (True, False, MAJOR), (False, True, MINOR), (False, False, OFF)],
)
def test_requested_compaction_is_the_one_that_was_asked_for_and_is_not_suspended(
    tmp_path: Path, may_major: bool, may_minor: bool, level: CompactionLevel
) -> None:
    async def test(gc: BenchCollector) -> None:
        collector = gc.collector
        assert collector.take_due_compaction(is_forced=True, may_major=may_major, may_minor=may_minor) == level
        collector.status.is_minor_suspended, collector.status.is_major_suspended = not may_minor, not may_major
        assert collector.take_due_compaction(is_forced=True, may_major=True, may_minor=True) == level
        gc.now_s = 1000
        assert due(collector) == level

    with_collector(Bench(tmp_path), OFTEN, test)


@pytest.mark.parametrize("is_suspended", [False, True], ids=["requested without one", "suspended"])
def test_pass_without_a_compaction_delays_no_later_one(tmp_path: Path, is_suspended: bool) -> None:
    async def test(gc: BenchCollector) -> None:
        status = gc.collector.status
        status.is_minor_suspended = status.is_major_suspended = is_suspended
        gc.now_s = 99
        level = gc.collector.take_due_compaction(
            is_forced=not is_suspended, may_major=is_suspended, may_minor=is_suspended
        )
        assert level == OFF
        status.is_minor_suspended = status.is_major_suspended = False
        gc.now_s = 100
        assert due(gc.collector) == MAJOR

    with_collector(Bench(tmp_path), OFTEN, test)


def test_full_disks_delay_compaction_and_it_comes_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(gc: BenchCollector) -> None:
        gc.now_s = 100
        gc.room = DiskRoom.FULL
        assert [due(gc.collector) for _ in range(3)] == [OFF] * 3
        gc.room = DiskRoom.SCARCE
        assert due(gc.collector) == MINOR
        gc.room = DiskRoom.ENOUGH
        assert due(gc.collector) == MAJOR, "the minor one did not count as a major one"

    with_collector(Bench(tmp_path), OFTEN, test)
    assert caplog.text.count("compaction waits until there is more room on the disks") == 1


def test_full_disks_are_compacted_at_each_pass_where_that_is_configured(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        assert due(gc.collector) == OFF
        gc.room = DiskRoom.FULL
        assert [due(gc.collector) for _ in range(2)] == [MAJOR] * 2

    with_collector(Bench(tmp_path), replace(OFTEN, compact_when_full=True), test)


def test_other_options_keep_the_interval_of_passes_and_the_brake(tmp_path: Path) -> None:
    async def test(gc: BenchCollector) -> None:
        wanted = replace(OFTEN, interval_s=7.0, deleted_share_max=0.9, minor=CompactionLevel(0.3, 10.0))
        gc.collector.set_options(wanted)
        assert gc.collector.options == replace(wanted, interval_s=5.0, deleted_share_max=0.2)
        gc.now_s = 10
        assert due(gc.collector) == CompactionLevel(0.3, 10.0)
        gc.collector.status.is_suspended = True
        with pytest.raises(BookKeeperError, match=SUSPENDED):
            await gc.collector.collect()

    with_collector(Bench(tmp_path), OFTEN, test)


def test_pass_that_was_requested_just_before_collection_is_suspended_does_not_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()
    bench.delete(1)

    async def test(gc: BenchCollector) -> None:
        collector = gc.collector

        async def suspend() -> None:
            collector.status.is_suspended = True

        collector.start()
        refusal, _ = await asyncio.gather(collector.collect(), suspend(), return_exceptions=True)
        assert isinstance(refusal, BookKeeperError)
        assert str(refusal) == SUSPENDED
        collector.status.is_suspended = False
        assert (await collector.collect()).dropped_ledgers == 1
        assert collector.status.passes == 1

    with_collector(bench, UNLIMITED, test)


# ---- the pass ----


def test_ledgers_of_other_bookies_are_looked_for_at_exactly_their_interval(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def test(gc: BenchCollector) -> None:
        for ledger_id, now_s, is_dropped in ((1, 99.9, False), (1, 100.0, True), (2, 199.9, False), (2, 200.0, True)):
            bench.put(ledger_id, range(1))
            bench.flush()
            bench.cluster.on_other_bookies = {ledger_id}
            gc.now_s = now_s
            report = await gc.collector.run_pass(is_forced=False)
            assert (now_s, report.dropped_ledgers) == (now_s, int(is_dropped))
        assert gc.dropped == [1, 2]

    with_collector(bench, replace(OFTEN, overreplicated_interval_s=100.0), test)


def test_ledger_that_existed_again_needs_two_new_proofs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()

    async def test(gc: BenchCollector) -> None:
        dropped = []
        for exists in (False, True, False, False):
            gc.now_s += OFTEN.interval_s
            if exists:
                bench.cluster.existing.add(1)
            else:
                bench.delete(1)
            # The listing never has it: it may be one of an earlier time.
            bench.cluster.unlisted.add(1)
            dropped.append((await gc.collector.run_pass(is_forced=False)).dropped_ledgers)
        assert dropped == [0, 0, 0, 1]

    with_collector(bench, OFTEN, test)


@pytest.mark.parametrize("passes_between", [0, 1])
def test_ledger_that_comes_back_under_the_id_of_a_dropped_one_needs_two_new_proofs(
    tmp_path: Path, passes_between: int
) -> None:
    """B8: both proofs must be of the ledger that is here now. The one that was proven before is gone."""
    bench = Bench(tmp_path)

    async def test(gc: BenchCollector) -> None:
        async def dropped() -> int:
            gc.now_s += OFTEN.interval_s
            return (await gc.collector.run_pass(is_forced=False)).dropped_ledgers

        for _ in range(2):
            bench.put(1, range(3))
            bench.flush()
            bench.delete(1)
            assert [await dropped() for _ in range(2)] == [0, 1]
            assert [await dropped() for _ in range(passes_between)] == [0] * passes_between

    with_collector(bench, OFTEN, test)


class TimedCluster(FakeCluster):
    """Notes when the metadata of ledgers are read, by the event loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.read_s: list[float] = []

    async def is_deleted(self, ledger_id: int) -> bool:
        self.read_s.append(asyncio.get_running_loop().time())
        return await super().is_deleted(ledger_id)


@pytest.mark.parametrize("is_changed", [False, True])
def test_pass_reads_metadata_as_fast_as_the_options_in_force_allow(tmp_path: Path, is_changed: bool) -> None:
    """gcMetadataOpRateLimit, also after an operator has changed it."""
    bench, limited = Bench(tmp_path), replace(OFTEN, metadata_ops_per_s=50)
    bench.cluster = cluster = TimedCluster()
    ledger_ids = range(1, 6)
    for ledger_id in ledger_ids:
        bench.put(ledger_id, range(3))
    bench.flush()
    for ledger_id in ledger_ids:
        bench.delete(ledger_id)

    async def test(gc: BenchCollector) -> None:
        if is_changed:
            gc.collector.set_options(limited)
        began_s = asyncio.get_running_loop().time()
        await gc.collector.run_pass(is_forced=False)
        assert len(cluster.read_s) == len(ledger_ids)
        assert all(read_s - began_s >= number / 50 for number, read_s in enumerate(cluster.read_s))

    with_collector(bench, OFTEN if is_changed else limited, test)


def test_log_that_is_completed_while_a_pass_counts_is_kept(tmp_path: Path) -> None:
    """Logs are listed first: a ledger of a log that is listed is then in the list of ledgers."""
    bench = Bench(tmp_path)
    bench.put(1, range(3))
    bench.flush()
    rotated = bench.store.logs.rotated

    def complete_and_list() -> list[int]:
        bench.store.logs.rotated = rotated  # type: ignore[method-assign]
        bench.put(2, range(3))
        bench.flush()
        bench.store.seal_logs()
        return rotated()

    async def test(gc: BenchCollector) -> None:
        bench.store.logs.rotated = complete_and_list  # type: ignore[method-assign]
        report = await gc.collector.run_pass(is_forced=False)
        assert (report.removed_logs, bench.holds(1, range(3)), bench.holds(2, range(3))) == (0, True, True)
        assert gc.collector.status.ledgers == 2

    with_collector(bench, OFTEN, test)


def test_fences_are_noted_durably_before_anything_of_their_ledgers_is_removed(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    for ledger_id in (1, 2, 3):
        bench.put(ledger_id, range(3))
    ledger = bench.store.ledger(2)
    assert ledger is not None
    bench.store.fence(ledger)
    bench.flush()
    bench.delete(1, 2)
    files.operations.clear()

    async def test(gc: BenchCollector) -> None:
        report = await gc.collector.run_pass(is_forced=True)
        assert (report.dropped_ledgers, sorted(gc.dropped)) == (2, [1, 2])
        done = [(operation, path.rpartition("/")[2]) for operation, path in files.operations]
        noted = done.index(("rename", tombstone_format.FILE_NAME))
        assert all(noted < done.index(("remove", f"{ledger_id}.idx")) for ledger_id in (1, 2))
        assert [each in bench.store.tombstones for each in (1, 2, 3)] == [False, True, False]

    with_collector(bench, UNLIMITED, test)


@pytest.mark.parametrize("others", [(), (6,)], ids=["alone", "with another"])
def test_loss_of_an_index_file_is_noticed_though_its_ledger_was_about_to_be_dropped(
    tmp_path: Path, others: tuple[int, ...]
) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    for ledger_id in (5, *others):
        bench.put(ledger_id, range(3))
    bench.flush()
    bench.delete(5, *others)
    late: list[str] = []

    def write_late(operation: str, path: str) -> bool:
        """An add comes when the record says already that the ledger's file may go."""
        if operation == "write" and os.path.basename(path).startswith(index_files.FILE_NAME) and not late:
            late.append(path)
            bench.put(5, range(3, 4))
        return False

    files.fault = write_late
    assert bench.collect().dropped_ledgers == len(others)
    assert late
    (index_path,) = (str(path) for path in tmp_path.rglob("*.idx"))
    files.remove(index_path)
    assert "missing" in bench.store.index.lost(5)
    bench.store.close()


def test_pass_counts_logs_ledgers_and_bytes_as_it_found_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id, count in ((1, 10), (2, 30)):
        bench.put(ledger_id, range(count))
    bench.flush()
    bench.store.seal_logs()
    bench.put(3, range(20))
    bench.flush()
    bench.store.seal_logs()
    bench.put(4, range(20))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2, 4)
    item_bytes = 4 + 16 + 100

    async def test(gc: BenchCollector) -> None:
        status = gc.collector.status
        await gc.collector.run_pass(is_forced=False)
        assert (status.logs, status.ledgers) == (3, 2)
        assert status.live_bytes == 30 * item_bytes
        assert status.deleted_bytes == 20 * item_bytes
        # Shares of live bytes: 0.25, 1 and 0.
        assert status.usage_counts[0] == 1
        assert status.usage_counts[2] == 2
        assert status.usage_counts[9] == 3
        assert len(bench.log_paths) == 2
        log_bytes = status.log_bytes
        await gc.collector.run_pass(is_forced=False)
        assert (status.logs, status.live_bytes) == (2, 30 * item_bytes)
        assert status.log_bytes == log_bytes - status.deleted_bytes

    with_collector(bench, OFTEN, test)


def test_rewritten_logs_are_counted_with_the_bytes_that_they_free(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    for ledger_id, count in ((1, 10), (2, 30)):
        bench.put(ledger_id, range(count))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(2)

    async def test(gc: BenchCollector) -> None:
        status = gc.collector.status
        seen: list[str] = []

        def note(operation: str, path: str) -> bool:
            if operation == "create" and path.endswith(SUFFIX):
                seen.append(status.compacting)
            return False

        files.fault = note
        gc.now_s = 10
        assert (await gc.collector.run_pass(is_forced=False)).compacted_logs == 0
        assert (status.minor_count, status.major_count, seen) == (1, 0, [])
        gc.now_s = 100
        report = await gc.collector.run_pass(is_forced=False)
        assert (status.minor_count, status.major_count, seen, status.compacting) == (1, 1, ["major"], "")
        assert report.compacted_logs == 1
        assert report.freed_bytes == status.compacted_bytes == 30 * (4 + 16 + 100)
        assert status.major_at_ms > status.minor_at_ms - 1 > 0
        assert bench.holds(1, range(10))

    with_collector(bench, OFTEN, test)


def test_intent_of_a_compaction_is_the_last_thing_that_goes(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = half_live(tmp_path, files)
    (old_path,) = bench.log_paths
    files.operations.clear()
    assert bench.collect().compacted_logs == 1
    gone = [path for operation, path in files.operations if operation == "remove" and not path.endswith(".new")]
    assert gone == [old_path, os.path.join(bench.paths[0], intent_format.FILE_NAME)]
    after = files.operations[files.operations.index(("remove", old_path)) :]
    assert after.index(("sync_directory", bench.paths[0])) < after.index(("remove", gone[1]))
    bench.store.close()


@pytest.mark.parametrize(("operation", "code"), [("write", errno.EMFILE), ("sync_data", errno.EIO)])
def test_process_must_end_when_it_is_unknown_where_the_index_points(tmp_path: Path, operation: str, code: int) -> None:
    files = FaultyFiles()
    bench = half_live(tmp_path, files)
    (old_path,) = bench.log_paths
    intent_path = os.path.join(bench.paths[0], intent_format.FILE_NAME)
    files.code = code
    files.fault = lambda which, path: which == operation and path.endswith(".idx") and os.path.exists(intent_path)
    with pytest.raises(OSError, match=os.strerror(code)):
        bench.collect()
    assert old_path in bench.log_paths
    assert os.path.exists(intent_path)
    files.fault = None
    bench.reopen()
    assert bench.holds(1, range(20))
    assert old_path not in bench.log_paths
    bench.store.close()


@pytest.mark.parametrize(("code", "is_of_disk"), [(errno.EIO, True), (errno.EROFS, True), (errno.EACCES, False)])
def test_log_that_cannot_be_removed_may_stay_only_if_its_disk_fails(
    tmp_path: Path, code: int, is_of_disk: bool
) -> None:
    files = FaultyFiles()
    bench = half_live(tmp_path, files)
    (old_path,) = bench.log_paths
    files.code = code
    files.fault = lambda operation, path: (operation, path) == ("remove", old_path)
    if is_of_disk:
        assert "may stay until the next start" in bench.collect().kept_because
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            bench.collect()
    files.fault = None
    bench.reopen()
    assert bench.holds(1, range(20))
    bench.store.close()


def test_compaction_that_finds_no_space_for_the_index_reports_it_each_time_and_copies_no_other_log(
    tmp_path: Path,
) -> None:
    files = FaultyFiles()
    bench = half_live(tmp_path, files)
    bench.put(3, range(20))
    bench.put(4, range(20))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(4)
    files.code = errno.ENOSPC
    files.fault = lambda operation, path: operation == "write" and path.endswith(".idx")
    files.operations.clear()
    reports: list[str] = []

    async def run() -> None:
        callbacks = bench.callbacks(on_no_space=lambda: reports.append("no space"))
        collector = GarbageCollector(bench.store, bench.compactor, bench.cluster, UNLIMITED, callbacks)
        try:
            for count in (1, 2):
                assert (await collector.run_pass(is_forced=True)).compacted_logs == 0
                assert reports == ["no space"] * count
                assert len(bench.log_paths) == 3
                made = [path for operation, path in files.operations if operation == "create"]
                assert sum(path.endswith(SUFFIX) for path in made) == 1
            files.fault = None
            assert (await collector.run_pass(is_forced=True)).compacted_logs == 2
        finally:
            await collector.stop()

    asyncio.run(run())
    assert len(reports) == 2
    assert bench.holds(1, range(20))
    assert bench.holds(3, range(20))
    bench.store.close()


def test_ledgers_that_are_written_between_passes_are_not_noted(tmp_path: Path) -> None:
    """Otherwise every ledger of a bookie would be noted, from the first pass on."""
    bench = Bench(tmp_path)

    async def test(gc: BenchCollector) -> None:
        await gc.collector.run_pass(is_forced=False)
        bench.store.watch.note({5})
        assert bench.store.watch.unwritten([5]) == [5]

    with_collector(bench, OFTEN, test)
