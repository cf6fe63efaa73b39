"""Garbage collection while the disk of one ledger directory of several fails: the others are collected, and the bookie
goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookie_service.formats import entry_log as log_format
from bookie_service.formats.compaction import Intent
from bookie_service.storage.logs.compaction import CompactionBlocked
from tests.bookie.collecting import Bench, intended_copy, without_limits
from tests.bookie.faulty_files import GoneFiles
from tests.bookie.items import item

CHANGES = frozenset({"write", "create", "rename", "remove", "sync_data", "sync_directory"})
EVERYTHING = CHANGES | {"read", "names", "open", "stat", "space"}
FAILING = {
    "takes no changes": CHANGES,
    "does everything but list": frozenset({"names"}),
    "does everything but remove": frozenset({"remove"}),
    "does everything but sync names": frozenset({"sync_directory"}),
    "is gone": EVERYTHING,
}
LEDGERS, ENTRIES = range(12), range(120)
KEPT = 11


def filled(directory: Path, files: GoneFiles) -> Bench:
    """Return a store with fenced ledgers in three directories: entry logs and index files. All but one are deleted."""
    bench = Bench(directory, files, directories=3)
    for first in range(0, len(ENTRIES), 30):
        for ledger_id in LEDGERS:
            bench.put(ledger_id, range(first, first + 30))
            ledger = bench.store.ledger(ledger_id)
            assert ledger is not None
            bench.store.fence(ledger)
        bench.flush()
    bench.reopen(cleanly=True)
    assert {Path(path).parent.name for path in bench.log_paths} == {"ledgers0", "ledgers1", "ledgers2"}
    bench.delete(*(ledger_id for ledger_id in LEDGERS if ledger_id != KEPT))
    return bench


@pytest.mark.parametrize("operations", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("name", ["ledgers0", "ledgers1", "ledgers2"])
def test_pass_goes_on_without_a_failing_disk_and_loses_nothing(
    tmp_path: Path, name: str, operations: frozenset[str]
) -> None:
    files = GoneFiles()
    bench = filled(tmp_path, files)
    files.fault = lambda operation, path: operation in operations and f"/{name}" in path
    reports = [bench.collect(), bench.collect()]
    assert reports[0].dropped_ledgers == len(LEDGERS) - 1
    files.fault = None
    bench.reopen()
    assert bench.holds(KEPT, ENTRIES)
    bench.collect()
    bench.reopen()
    assert bench.holds(KEPT, ENTRIES)
    assert bench.store.index.ledger_ids().tolist() == [KEPT]
    assert bench.log_bytes < 2 * sum(len(item(KEPT, entry_id)) for entry_id in ENTRIES), "no space leaks"
    bench.store.close()


@pytest.mark.parametrize("operations", FAILING.values(), ids=FAILING)
def test_passes_that_copy_nothing_remove_the_dead_logs_of_the_other_disks(
    tmp_path: Path, operations: frozenset[str]
) -> None:
    files = GoneFiles()
    bench = filled(tmp_path, files)
    bench.delete(KEPT)
    files.fault = lambda operation, path: operation in operations and "/ledgers1" in path
    bench.collect_in_passes(14)
    files.fault = None
    if operations != CHANGES:
        # Otherwise its ledgers exist until it takes a change.
        assert {Path(path).parent.name for path in bench.log_paths} <= {"ledgers1"}
    bench.reopen()
    bench.collect_in_passes(14)
    assert not bench.log_paths
    bench.store.close()


def test_log_that_a_failed_attempt_left_has_an_id_of_its_own(tmp_path: Path) -> None:
    """Otherwise compaction takes the empty file for its copy."""
    files = GoneFiles()
    bench = filled(tmp_path, files)
    files.code = errno.EROFS
    files.fault = lambda operation, path: (
        "/ledgers1" in path and (operation == "remove" or (operation == "rename" and path.endswith("lastId")))
    )
    bench.collect()
    names = [Path(path).name for path in bench.log_paths]
    assert len(set(names)) == len(names)
    assert bench.holds(KEPT, ENTRIES)
    bench.store.close()


# ---- compactions that a disk interrupts ----

SURVIVORS = (9, 10, 11)
"""One ledger of each directory."""


def half_deleted(directory: Path, files: GoneFiles) -> Bench:
    """Return a store whose logs have garbage, and entries of `SURVIVORS`."""
    bench = filled(directory, files)
    bench.cluster.existing |= set(SURVIVORS)
    return bench


def copied(bench: Bench) -> Intent:
    """Copy a log, and write the intent."""
    intents = (intended_copy(bench.compactor, log_id) for log_id in bench.store.logs.rotated())
    return next(intent for intent in intents if intent is not None)


def check_whole(bench: Bench) -> None:
    for ledger_id in SURVIVORS:
        assert bench.holds(ledger_id, ENTRIES)


def check_clean(bench: Bench) -> None:
    """Check that a healthy bookie collects everything that was left, and finishes what was interrupted."""
    bench.files.fault = None
    bench.reopen()
    check_whole(bench)
    bench.collect()
    bench.reopen()
    check_whole(bench)
    assert not {name for name in bench.other_names if "compact" in name}
    assert bench.log_bytes < 2 * len(SURVIVORS) * sum(len(item(9, entry_id)) for entry_id in ENTRIES), "no space leaks"
    bench.store.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("operation", ["remove", "sync_directory"])
def test_intent_that_its_disk_does_not_let_go_of_ends_nothing(tmp_path: Path, operation: str, code: int) -> None:
    files = GoneFiles()
    bench = half_deleted(tmp_path, files)
    files.code = code
    is_written = False

    def fault(asked: str, path: str) -> bool:
        nonlocal is_written
        is_written = is_written or (asked == "rename" and path.endswith("/ledgers0/compaction"))
        return is_written and asked == operation and path.endswith(("/ledgers0", "/ledgers0/compaction"))

    files.fault = fault
    bench.collect()
    assert is_written
    check_whole(bench)
    for _ in range(2):
        bench.reopen()
        check_whole(bench)
        bench.collect()
        check_whole(bench)
    check_clean(bench)


@pytest.mark.parametrize("operations", [CHANGES, frozenset({"remove"})], ids=["no changes", "no removal"])
def test_start_goes_on_when_the_disk_of_an_intent_takes_no_changes(tmp_path: Path, operations: frozenset[str]) -> None:
    files = GoneFiles()
    bench = half_deleted(tmp_path, files)
    copied(bench)
    files.code = errno.EROFS
    files.fault = lambda operation, path: operation in operations and "/ledgers0" in path
    for _ in range(2):
        bench.reopen()
        check_whole(bench)
    bench.collect()
    check_clean(bench)


def test_start_goes_on_when_an_intent_cannot_be_read_and_a_later_one_finishes_it(tmp_path: Path) -> None:
    files = GoneFiles()
    bench = half_deleted(tmp_path, files)
    intent = copied(bench)
    files.fault = lambda operation, path: path.endswith("/ledgers0/compaction")
    bench.reopen()
    assert any("ledgers0/compaction cannot be read" in notice for notice in bench.notices)
    check_whole(bench)
    bench.collect()
    check_whole(bench)
    assert any(name.endswith(".compacting") for name in bench.other_names), "the intent may name it"
    files.fault = None
    bench.reopen()
    assert bench.store.logs.path(intent.new_id) is not None
    check_clean(bench)


@pytest.mark.parametrize("failing", ["rename", "sync_directory", "open", "read"])
def test_both_logs_stay_when_the_disk_of_the_copy_fails(tmp_path: Path, failing: str) -> None:
    files = GoneFiles()
    bench = half_deleted(tmp_path, files)
    intent = copied(bench)
    place = Path(bench.store.logs.file_path(intent.new_id, ".compacting")).parent
    failing_path = str(place if failing == "sync_directory" else place / log_format.file_name(intent.new_id))
    files.fault = lambda operation, path: (operation, path) == (failing, failing_path)
    with pytest.raises(CompactionBlocked):
        bench.compactor.finish(intent, without_limits)
    assert bench.compactor.unfinished is None
    files.fault = None
    check_whole(bench)
    files.fault = lambda operation, path: (operation, path) == (failing, failing_path)
    bench.reopen()
    files.fault = None
    check_whole(bench)
    check_clean(bench)


def test_ledgers_whose_index_cannot_be_read_keep_the_old_log(tmp_path: Path) -> None:
    files = GoneFiles()
    bench = half_deleted(tmp_path, files)
    intent = copied(bench)
    files.fault = lambda operation, path: path.endswith(".idx")
    with pytest.raises(CompactionBlocked, match="idx"):
        bench.compactor.finish(intent, without_limits)
    assert bench.store.logs.path(intent.old_id) is not None
    check_clean(bench)


def test_pass_goes_on_when_the_disk_of_a_copy_fails(tmp_path: Path) -> None:
    files = GoneFiles()
    bench = half_deleted(tmp_path, files)
    files.fault = lambda operation, path: operation == "rename" and path.endswith(".log")
    report = bench.collect()
    assert report.damaged_logs
    assert "left out of garbage collection" in report.kept_because
    check_whole(bench)
    check_clean(bench)
