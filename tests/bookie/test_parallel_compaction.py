"""Compaction with several ledger directories: logs of different disks are copied at the same time, under one limit."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from bookie_service.gc.compaction_pace import CollectionStopped, CompactionPace, PaceLimit
from bookie_service.storage.io.files import File
from tests.bookie.collecting import Bench, collect, copies
from tests.bookie.faulty_files import FaultyFiles

KEPT, DELETED = range(3), range(3, 6)
"""One of each in each of three directories."""


class MeetingFiles(FaultyFiles):
    """Threads of compaction open their first log together, or not at all."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._barrier = threading.Barrier(parties, timeout=60)
        self.met: set[str] = set()

    def open(self, path: str) -> File:
        name = threading.current_thread().name
        if name.startswith("compaction") and name not in self.met:
            self.met.add(name)
            self._barrier.wait()
        return super().open(path)


def bench_of(directory: Path, files: FaultyFiles) -> Bench:
    """Return a store that has a log in each of three directories, half of it garbage."""
    bench = Bench(directory, files, directories=3)
    for ledger_id in (*KEPT, *DELETED):
        bench.put(ledger_id, range(20))
    bench.flush()
    bench.store.seal_logs()
    bench.delete(*DELETED)
    return bench


def test_logs_of_all_directories_are_copied_at_the_same_time(tmp_path: Path) -> None:
    files = MeetingFiles(3)
    bench = bench_of(tmp_path, files)
    report = collect(bench)
    assert (report.compacted_logs, report.damaged_logs, report.dropped_ledgers) == (3, 0, 3)
    assert len(files.met) == 3, "none could go on alone"
    for ledger_id in KEPT:
        assert bench.holds(ledger_id, range(20))
    bench.reopen()
    for ledger_id in KEPT:
        assert bench.holds(ledger_id, range(20))
    assert copies(tmp_path) == []
    bench.store.close()


def test_log_that_cannot_be_read_keeps_no_other_from_being_rewritten(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = bench_of(tmp_path, files)
    files.fault = lambda operation, path: (
        operation == "read"
        and "/ledgers1/" in path
        and path.endswith(".log")
        and threading.current_thread().name.startswith("compaction")
    )
    report = collect(bench)
    assert (report.compacted_logs, report.damaged_logs) == (2, 1)
    files.fault = None
    for ledger_id in KEPT:
        assert bench.holds(ledger_id, range(20))
    assert copies(tmp_path) == []
    bench.store.close()


def test_copies_are_given_up_when_there_is_no_space_for_the_index_and_made_again_later(tmp_path: Path) -> None:
    files = FaultyFiles()
    bench = bench_of(tmp_path, files)
    files.code = errno.ENOSPC
    files.fault = lambda operation, path: operation == "write" and path.endswith(".idx")
    report = collect(bench)
    assert report.compacted_logs == 0
    assert "stays beside its copy for now" in report.kept_because
    assert bench.compactor.unfinished is not None
    assert copies(tmp_path) == []
    files.fault = None
    assert collect(bench).compacted_logs == 3
    for ledger_id in KEPT:
        assert bench.holds(ledger_id, range(20))
    bench.store.close()


# ---- the limit ----


def test_copies_share_one_limit() -> None:
    pace = CompactionPace(lambda: PaceLimit(1000, counts_bytes=True), threading.Event(), lambda: 100.0)
    assert pace.pause_s(1, 5000) == 5
    assert pace.pause_s(1, 5000) == 10, "what all of them did counts"


def test_changed_limit_counts_from_now_on() -> None:
    limits = [PaceLimit(1000, counts_bytes=False)]
    pace = CompactionPace(lambda: limits[0], threading.Event(), lambda: 100.0)
    assert pace.pause_s(10_000, 0) == 10
    limits[0] = PaceLimit(0, counts_bytes=False)
    assert pace.pause_s(10_000, 0) == 0
    limits[0] = PaceLimit(1000, counts_bytes=False)
    assert pace.pause_s(1000, 0) == 1


def test_time_before_a_change_of_the_limit_earns_no_entries() -> None:
    now_s = 100.0
    limits = [PaceLimit(10, counts_bytes=False)]
    pace = CompactionPace(lambda: limits[0], threading.Event(), lambda: now_s)
    now_s += 50
    limits[0] = PaceLimit(20, counts_bytes=False)
    assert pace.pause_s(40, 0) == 2


def test_stop_ends_the_work() -> None:
    stopping = threading.Event()
    pace = CompactionPace(lambda: PaceLimit(0, counts_bytes=False), stopping)
    pace(10, 1000)
    stopping.set()
    with pytest.raises(CollectionStopped):
        pace(10, 1000)
