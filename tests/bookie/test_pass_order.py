"""What a pass of garbage collection must do before something else, and what happens to a ledger meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bookie_service.formats import compaction as intent_format
from bookie_service.formats.compaction import SUFFIX
from bookie_service.formats.entry_log import OFFSET_BITS
from bookie_service.gc.gc_policy import CompactionLevel
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.ledgers.factory import open_ledger_storage
from bookie_service.storage.logs.compaction import Compactor
from bookie_service.storage.logs.log_appender import AppendOptions
from tests.bookie.bench_collectors import OFTEN, BenchCollector, with_collector
from tests.bookie.collecting import KEY, STORE_OPTIONS, UNLIMITED, Bench, intended_copy, without_limits
from tests.bookie.faulty_files import FaultyFiles, GoneFiles
from tests.bookie.items import item
from tests.bookie.storage_edges import half_live, log_ids


def add_again(bench: Bench) -> None:
    bench.put(5, range(3, 4))


def fence_again(bench: Bench) -> None:
    """A recovery begins the ledger again, and adds nothing."""
    ledger = bench.store.ledger(5)
    assert ledger is not None
    bench.store.fence(ledger)


@pytest.mark.parametrize("write", [add_again, fence_again])
def test_ledger_that_is_written_and_flushed_while_proofs_are_gathered_is_kept(
    tmp_path: Path, write: Callable[[Bench], None]
) -> None:
    """B8: it may have been created again with the id of the deleted one."""
    bench = Bench(tmp_path)
    bench.put(5, range(3))
    bench.flush()
    bench.delete(5)

    def come_back() -> None:
        bench.cluster.while_listing = lambda: None
        write(bench)
        bench.flush()
        bench.delete(5)

    bench.cluster.while_listing = come_back
    assert bench.collect().dropped_ledgers == 0
    assert bench.holds(5, range(3))
    assert bench.collect().dropped_ledgers == 1
    bench.store.close()


def test_ledger_in_limbo_is_dropped_as_a_fenced_one(tmp_path: Path) -> None:
    """P21. Its fence may be lost, so a late writer is refused afterwards."""
    bench = Bench(tmp_path)
    for ledger_id in (5, 6):
        bench.put(ledger_id, range(3))
    bench.flush()
    bench.store.limbo.begin([5])
    assert bench.store.droppable([5, 6]) == [(5, True), (6, False)]
    bench.delete(5, 6)
    assert bench.collect().dropped_ledgers == 2
    assert [each in bench.store.tombstones for each in (5, 6)] == [True, False]
    assert len(bench.store.limbo) == 0
    bench.store.close()


def test_no_read_finds_a_log_whose_file_is_being_removed(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = half_live(tmp_path, files)
    (old_id,) = log_ids(bench)
    known: list[str | None] = []

    def note(operation: str, path: str) -> bool:
        if operation == "remove" and path.endswith(f"{old_id:x}.log"):
            known.append(bench.store.logs.path(old_id))
        return False

    files.fault = note
    assert bench.collect().compacted_logs == 1
    assert known == [None]
    bench.store.close()


def test_compaction_ends_at_exactly_its_time(tmp_path: Path) -> None:
    """`majorCompactionMaxTimeMillis`: no further log is begun afterwards."""
    for seconds, compacted in ((9.9, 2), (10.0, 1)):
        files = FaultyFiles()
        bench = Bench(tmp_path / str(seconds), files)
        for first in (10, 20):
            bench.put(first, range(30))
            bench.put(first + 1, range(30))
            bench.flush()
            bench.store.seal_logs()
        bench.drop(10, 20)

        async def test(
            gc: BenchCollector, files: FaultyFiles = files, seconds: float = seconds, compacted: int = compacted
        ) -> None:
            def pass_time(operation: str, path: str) -> bool:
                if operation == "create" and path.endswith(SUFFIX):
                    gc.now_s = 1000 + seconds
                return False

            gc.now_s = 1000
            files.fault = pass_time
            report = await gc.collector.run_pass(is_forced=True)
            assert report.compacted_logs == compacted
            assert ("left for the next compaction after 10 s" in report.kept_because) == (compacted == 1)

        with_collector(bench, replace(UNLIMITED, major=CompactionLevel(0.8, 86_400, seconds_max=10.0)), test)


def test_bytes_of_removed_and_of_rewritten_logs_are_counted_apart(tmp_path: Path) -> None:
    bench = half_live(tmp_path)
    bench.put(3, range(10))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(3)
    item_bytes = 4 + 16 + 100

    async def test(gc: BenchCollector) -> None:
        report = await gc.collector.run_pass(is_forced=True)
        status = gc.collector.status
        assert (report.removed_logs, report.compacted_logs) == (1, 1)
        assert (status.deleted_bytes, status.compacted_bytes) == (10 * item_bytes, 20 * item_bytes)
        assert report.freed_bytes == 30 * item_bytes

    with_collector(bench, OFTEN, test)


def test_flush_that_is_repeated_gives_no_position_back_that_a_compaction_has_moved(tmp_path: Path) -> None:
    """B3. Its entries are in a log that is settled by then, because something else synced the index."""
    files = FaultyFiles()
    files.code = errno.ENOSPC
    bench = Bench(tmp_path, files)
    bench.put(1, range(20))
    bench.put(2, range(20))
    flush = bench.store.begin_flush()
    assert flush is not None
    files.fault = lambda operation, path: operation == "create" and path.endswith(".idx")
    with pytest.raises(OSError, match="No space left"):
        bench.store.write_flush(flush)
    files.fault = None
    bench.store.seal_logs()
    (old_id,) = log_ids(bench)
    bench.compact(old_id)
    bench.store.write_flush(flush)
    bench.store.end_flush(flush)
    assert old_id not in log_ids(bench)
    assert bench.holds(1, range(20))
    assert bench.holds(2, range(20))
    bench.store.close()


def test_log_whose_positions_found_no_room_is_not_settled_and_gets_no_entry_twice(tmp_path: Path) -> None:
    """Garbage collection would take a settled log without positions for a dead one."""
    files = FaultyFiles()
    files.code = errno.ENOSPC
    bench = Bench(tmp_path, files)
    bench.store.close()
    bench.store = open_ledger_storage(files, bench.paths, replace(STORE_OPTIONS, pages=PageOptions(64, 1)))
    for ledger_id in (1, 2):
        bench.put(ledger_id, range(20))
    flush = bench.store.begin_flush()
    assert flush is not None
    files.fault = lambda operation, path: operation == "create" and path.endswith("/2.idx")
    with pytest.raises(OSError, match="No space left"):
        bench.store.write_flush(flush)
    files.fault = None
    bench.store.seal_logs()
    assert bench.store.logs.rotated() == []
    log_bytes = bench.log_bytes
    bench.store.write_flush(flush)
    bench.store.end_flush(flush)
    assert bench.log_bytes == log_bytes
    assert bench.store.logs.rotated() == log_ids(bench)
    assert bench.holds(1, range(20))
    assert bench.holds(2, range(20))
    bench.store.close()


def test_ledger_whose_header_alone_was_flushed_is_dropped_after_the_marks_have_passed_it(tmp_path: Path) -> None:
    """Otherwise replay would bring it back."""
    bench = Bench(tmp_path)
    bench.store.fence(bench.store.create_ledger(5, KEY))
    found = []
    for advances_checkpoint in (False, True):
        flush = bench.store.begin_flush(advances_checkpoint=advances_checkpoint)
        assert flush is not None
        bench.store.write_flush(flush)
        bench.store.end_flush(flush)
        found.append(bench.store.droppable([5]))
    assert found == [[], [(5, True)]]
    ledger = bench.store.ledger(5)
    assert ledger is not None
    bench.store.fence(ledger)
    assert bench.store.droppable([5]) == [], "its header waits for a flush again"
    header = bench.store.index.header(5)
    assert header is not None
    assert header.fenced
    bench.store.close()


def test_entries_that_another_directory_takes_over_lie_there_in_their_order(tmp_path: Path) -> None:
    """A batch read is one slice of the log then."""
    files = FaultyFiles()
    bench = Bench(tmp_path, files, directories=2)
    for ledger_id in (4, 6):
        bench.put(ledger_id, range(20))
    files.fault = lambda operation, path: operation == "write" and path.endswith(".log") and "/ledgers0/" in path
    bench.flush()
    for ledger_id in (4, 6):
        assert np.unique(np.diff(bench.store.index.positions(ledger_id, 0, 20))).tolist() == [4 + 16 + 100]
    files.fault = None
    bench.store.close()


def test_ledger_that_is_written_after_it_was_chosen_is_not_dropped(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for ledger_id in (4, 5):
        bench.put(ledger_id, range(3))
    bench.flush()
    bench.store.watch.begin()
    bench.store.prepare_drop([4, 5], (), 0)
    bench.put(5, range(3, 6))
    bench.flush()
    assert bench.store.drop([4, 5]) == [4]
    assert bench.holds(5, range(6))
    bench.store.close()


def test_copy_is_synced_each_time_as_many_entries_are_outstanding_as_may_be(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = Bench(tmp_path, files)
    bench.store.close()
    bench.store = open_ledger_storage(files, bench.paths, replace(STORE_OPTIONS, append=AppendOptions(64 << 20)))
    bench.compactor = Compactor(files, bench.store, bench.paths)
    bench.store.create_ledger(1, KEY)
    for first in range(0, 48, 8):
        bench.put(1, range(first, first + 8), size=100_000)
        bench.flush()
    bench.store.seal_logs()
    syncs = []
    for outstanding_max in (1000, 20):
        files.operations.clear()
        (old_id,) = bench.store.logs.rotated()
        new_id = bench.compactor.rewrite(old_id, without_limits, outstanding_max)
        assert new_id is not None
        syncs.append(len([path for done, path in files.operations if done == "sync_data" and path.endswith(SUFFIX)]))
        bench.compactor.abandon(new_id)
    # A window of the scan has ten entries: 20 are outstanding after every second one, and the last eight are sealed.
    assert syncs[1] - syncs[0] == 2
    bench.store.close()


def test_ledger_that_leaves_limbo_is_not_lost_again_because_its_index_file_was_longer_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(5, range(100))
    bench.flush()
    bench.store.close()
    (path,) = tmp_path.rglob("*.idx")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)
    bench.open()
    assert bench.store.ledger(5) is not None
    assert 5 in bench.store.limbo
    bench.store.end_limbo([5])
    assert bench.store.index.all_lost() == []
    assert bench.store.in_doubt(np.array([5])).tolist() == []
    bench.reopen()
    assert bench.store.ledger(5) is not None
    assert 5 not in bench.store.limbo
    bench.store.close()


def test_log_whose_copy_finds_no_place_in_the_index_stays_and_does_not_count_as_rewritten(tmp_path: Path) -> None:
    files = GoneFiles()
    bench = half_live(tmp_path, files)
    old_ids = log_ids(bench)
    files.fault = lambda operation, path: operation == "rename" and path.endswith(".log")
    report = bench.collect()
    assert (report.compacted_logs, report.damaged_logs, report.freed_bytes) == (0, 1, 0)
    files.fault = None
    assert set(old_ids) <= set(log_ids(bench))
    assert bench.holds(1, range(20))
    bench.store.close()


def test_compaction_replaces_positions_that_a_crash_has_torn(tmp_path: Path) -> None:
    """They lead to no log, or to another entry; the copy has the entry."""
    bench = half_live(tmp_path)
    (old_id,) = log_ids(bench)
    intent = intended_copy(bench.compactor, old_id)
    assert intent is not None
    torn = np.array([(77 << OFFSET_BITS) + 1028, (77 << OFFSET_BITS) + 5], np.int64)
    with bench.store.writing:
        bench.store.move([LedgerUpdate(1, None, np.array([3, 9]), torn)])
    assert bench.read(1, range(3)) == [item(1, each, 100) for each in range(3)]
    bench.compactor.finish(intent, without_limits)
    assert bench.holds(1, range(20))
    bench.store.close()


def test_more_entries_than_one_move_takes_are_all_moved(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.close()
    options = replace(STORE_OPTIONS, cache_half_bytes=8 << 20, append=AppendOptions(64 << 20))
    bench.store = open_ledger_storage(bench.files, bench.paths, options)
    bench.compactor = Compactor(bench.files, bench.store, bench.paths)
    count = 2 * 64 * 1024 + 100
    bench.put(1, range(count), size=0)
    bench.flush()
    bench.put(2, range(10))
    bench.flush()
    bench.store.seal_logs()
    (old_id,) = log_ids(bench)
    bench.drop(2)
    bench.compact(old_id)
    (new_id,) = log_ids(bench)
    positions = bench.store.index.positions(1, 0, count)
    assert len(positions) == count
    assert np.unique(positions >> OFFSET_BITS).tolist() == [new_id]
    assert bench.holds(1, range(count - 3, count), size=0)
    bench.store.close()


def test_slice_of_a_log_ends_before_an_entry_that_the_write_cache_has_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(1, range(20))
    bench.flush()
    ledger = bench.store.ledger(1)
    assert ledger is not None
    located = bench.store.locate(ledger, 0, 20, 1 << 20)
    assert located is not None
    assert len(located.offsets) == 20
    bench.put(1, range(7, 8))
    for _ in range(2):
        located = bench.store.locate(ledger, 0, 20, 1 << 20)
        assert located is not None
        assert len(located.offsets) == 7
        assert bench.store.locate(ledger, 7, 20, 1 << 20) is None
        bench.store.begin_flush()
    bench.store.close()


def test_compaction_that_a_failing_disk_blocks_at_a_start_is_left_whole_to_a_later_one(tmp_path: Path) -> None:
    files = GoneFiles()
    bench = Bench(tmp_path, files, directories=2)
    for ledger_id in (1, 2, 3, 4):
        bench.put(ledger_id, range(20))
    bench.flush()
    bench.store.seal_logs()
    bench.drop(3, 4)
    old_id = log_ids(bench)[0]
    intent = intended_copy(bench.compactor, old_id)
    assert intent is not None
    (copy,) = tmp_path.rglob(f"*{SUFFIX}")
    files.fault = lambda operation, path: operation == "open" and path == str(copy)
    bench.reopen()
    assert [f"a later start finishes the compaction of entry log {old_id:x}" in each for each in bench.notices] == [
        True
    ]
    files.fault = None
    assert copy.exists()
    assert os.path.exists(os.path.join(bench.paths[0], intent_format.FILE_NAME))
    bench.reopen()
    assert bench.notices == []
    assert not copy.exists()
    assert (old_id in log_ids(bench), intent.new_id in log_ids(bench)) == (False, True)
    assert bench.holds(1, range(20))
    assert bench.holds(2, range(20))
    bench.store.close()
