"""Garbage collection while the disk of one ledger directory of several fails: the others are collected, and the bookie
goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bookie_service.storage.io.files import File
from tests.bookie.collecting import Bench, item
from tests.bookie.faulty_files import FaultyFiles

CHANGES = frozenset({"write", "create", "rename", "remove", "sync_data", "sync_directory"})
EVERYTHING = CHANGES | {"read", "names", "open", "stat"}
FAILING = {
    "takes no changes": CHANGES,
    "does everything but list": frozenset({"names"}),
    "does everything but remove": frozenset({"remove"}),
    "does everything but sync names": frozenset({"sync_directory"}),
    "is gone": EVERYTHING,
}
LEDGERS, ENTRIES = range(12), range(120)
KEPT = 11


class MoreFaultyFiles(FaultyFiles):
    """Files that a gone disk does not even find."""

    def open(self, path: str) -> File:
        self.check("open", path)
        return super().open(path)

    def exists(self, path: str) -> bool:
        self.check("stat", path)
        return super().exists(path)

    def file_size(self, path: str) -> int | None:
        self.check("stat", path)
        return super().file_size(path)

    def is_directory(self, path: str) -> bool:
        self.check("stat", path)
        return super().is_directory(path)


def filled(directory: Path, files: FaultyFiles) -> Bench:
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
    files = MoreFaultyFiles()
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
    files = MoreFaultyFiles()
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
    files = MoreFaultyFiles()
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
