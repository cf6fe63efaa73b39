"""Failing calls and damaged bytes: nothing acknowledged is lost, nothing wrong is served."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
import threading
from collections import Counter
from random import Random
from types import ModuleType

import pytest

from bkspark.wire.status import Status
from bookie_service.storage.index.per_ledger import PageOptions
from bookie_service.storage.ledgers.base import StoreOptions
from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.audit import audit, audit_space
from tests.crash.campaign import reopened
from tests.crash.faults import Part, fail_every_call, flip_bytes, main
from tests.crash.history import History
from tests.crash.images import Loss, crash_image
from tests.crash.metadata_view import DoubtfulMetadataView
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles, os_error
from tests.crash.twins import BookieTwin, Setup


@pytest.mark.long_except("1", reason="more ways of the same calls")
@pytest.mark.parametrize("ways", [1, 3])
def test_every_call_of_a_script_may_fail_without_loss(ways: int) -> None:
    """Each call in some of seven ways, its neighbours in the others; all seven: `python -m tests.crash.faults`."""
    counts: Counter[str] = Counter()
    fail_every_call(2, counts, Part(ways=ways))
    assert counts["calls failed"] == ways * counts["calls"] > 160 * ways
    assert counts["calls with a fault"] == counts["calls"]
    assert counts["images"] == 2 * counts["calls failed"]


@pytest.mark.long_except("4-StorageClass.DB", "4-StorageClass.INTERLEAVED", reason="more scripts of the same calls")
@pytest.mark.parametrize("storage_class", StorageClass)
@pytest.mark.parametrize("seed", range(3, 5))
def test_some_calls_of_other_scripts_may_fail_without_loss(seed: int, storage_class: StorageClass) -> None:
    fail_every_call(seed, Counter(), Part(0.03), storage_class)


@pytest.mark.long_except(
    *(f"{storage}-{clean}" for storage in (StorageClass.SORTED, StorageClass.DB) for clean in (True, False)),
    reason="InterleavedLedgerStorage has the files of SortedLedgerStorage",
)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("storage_class", StorageClass)
def test_damaged_byte_gives_no_wrong_bytes_and_no_false_negative(storage_class: StorageClass, clean: bool) -> None:
    counts: Counter[str] = Counter()
    flip_bytes(1, counts, Part(0.004), storage_class, clean=clean)
    assert counts["flips"] > 50


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_header_of_a_ledger_without_entries_puts_every_ledger_in_doubt(clean: bool) -> None:
    """This script leaves a ledger whose fence and explicit LAC are nowhere else."""
    counts: Counter[str] = Counter()
    flip_bytes(27, counts, Part(0.2), StorageClass.SORTED, clean=clean, files="ledgerHeaders")
    assert counts["starts in doubt"] == counts["flips"] > 50


def test_command_covers_every_call_and_byte_of_a_share_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--storage", "DbLedgerStorage", "--share", "0.003"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["violations"] == 0
    assert 0 < report["coverage"]["bytes"] < 0.05
    assert report["calls"] > 100


def test_hang_is_noticed_whatever_the_process_waits_for() -> None:
    program = "from tests.crash import faults, test_faults; test_faults.hang(faults)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert "in hang" in result.stderr, "the traceback of what hangs"


def hang(module: ModuleType) -> None:
    """Hang as a process for faults does, with a short limit."""
    module.HANG_S = 1
    module._begin_process()
    module._watch()
    threading.Event().wait()


def stuck_twin(place: str, storage_class: StorageClass) -> BookieTwin:
    """Return a bookie whose checkpoint found no space at a place, where there is none still, and waits."""
    setup = Setup(store=StoreOptions(storage_class=storage_class, cache_half_bytes=6144))
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.disk.fault = lambda operation, path: (
        os_error(errno.ENOSPC, path) if operation in ("create", "write") and place in path else None
    )
    twin.add(1, [(0, b"first"), (1, b"second")])
    twin.checkpoint()
    assert twin.disks.is_stuck
    assert twin.disks.is_read_only
    return twin


STORAGES = [StorageClass.SORTED, StorageClass.DB]


@pytest.mark.parametrize("storage_class", STORAGES)
def test_log_whose_index_waits_for_space_is_not_collected(storage_class: StorageClass) -> None:
    twin = stuck_twin("positions" if storage_class is StorageClass.DB else ".idx", storage_class)
    with contextlib.suppress(OSError):
        twin.store.seal_logs()
    assert twin.store.logs.rotated() == []
    twin.disk.fault = None
    twin.settle()
    twin.store.seal_logs()
    assert len(twin.store.logs.rotated()) == 1
    audit(twin, twin.history)


@pytest.mark.parametrize("storage_class", STORAGES)
def test_positions_that_were_moved_while_the_marks_wait_for_space_stay_moved(storage_class: StorageClass) -> None:
    twin = stuck_twin("lastMark", storage_class)
    twin.disk.fault = None
    twin.store.seal_logs()
    (log_id,) = twin.store.logs.rotated()
    twin.compact(log_id)
    twin.settle()
    audit(twin, twin.history)
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), twin.setup, twin.history), twin.history)


def twin_with_garbage(storage_class: StorageClass) -> BookieTwin:
    """Return a bookie with a log that is half of a deleted ledger, 2; index pages are written at once."""
    page = PageOptions(page_bytes=16, pages_max=1)
    setup = Setup(store=StoreOptions(storage_class, cache_half_bytes=6144, pages=page))
    twin = BookieTwin(setup.new_disk(), setup, History())
    for ledger_id in (1, 2):
        twin.add(ledger_id, [(entry_id, b"kept") for entry_id in range(6)])
    twin.checkpoint()
    twin.store.seal_logs()
    twin.history.delete(2)
    return twin


@pytest.mark.parametrize("storage_class", STORAGES)
@pytest.mark.parametrize("fails_at", range(4))
def test_compaction_that_finds_no_space_for_the_index_goes_on_when_there_is_some(
    storage_class: StorageClass, fails_at: int
) -> None:
    """ENOSPC at any moment loses nothing; here it does not even end the process."""
    twin = twin_with_garbage(storage_class)
    place = "positions" if storage_class is StorageClass.DB else ".idx"
    calls = 0

    def fault(operation: str, path: str) -> OSError | None:
        nonlocal calls
        if place not in path or operation not in ("write", "create"):
            return None
        calls += 1
        return os_error(errno.ENOSPC, path) if calls > fails_at else None

    twin.disk.fault = fault
    report = twin.collect(DoubtfulMetadataView({1}))
    assert report.compacted_logs == (calls <= fails_at)
    assert fails_at > 0 or calls, "the first write of the index fails"
    audit(twin, twin.history)
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), twin.setup, twin.history), twin.history)
    twin.disk.fault = None
    twin.collect(DoubtfulMetadataView({1}))
    audit(twin, twin.history)
    audit_space(twin, {1})
    audit(reopened(crash_image(twin.disk, Loss.LOST, Random(0)), twin.setup, twin.history), twin.history)


@pytest.mark.parametrize("storage_class", [*STORAGES, StorageClass.INTERLEAVED])
@pytest.mark.parametrize("loss", [Loss.KEPT, Loss.LOST])
def test_start_without_space_leaves_a_compaction_that_was_killed_to_the_next_pass(
    storage_class: StorageClass, loss: Loss
) -> None:
    """A full ledger directory must not keep a bookie from starting, whatever its last process was at."""
    twin = twin_with_garbage(storage_class)
    killed: list[SimulatedDisk] = []
    twin.disk.before_operation = lambda operation, path: killed.append(crash_image(twin.disk, loss, Random(0)))
    twin.collect(DoubtfulMetadataView({1}))
    assert len(killed) > 20
    for disk in killed:
        disk.fault = lambda operation, path: (
            os_error(errno.ENOSPC, path)
            if "/ledgers" in path and operation in ("write", "create", "rename", "reserve", "create_directory")
            else None
        )
        history = twin.history.after_crash()
        again = reopened(disk, twin.setup, history)
        audit(again, history)
        disk.fault = None
        again.settle()
        # The marks move with the next checkpoint that has something to do.
        again.add(1, [(6, b"behind")])
        again.checkpoint()
        again.collect(DoubtfulMetadataView({1}))
        audit_space(again, {1})
        audit(reopened(crash_image(disk, Loss.LOST, Random(0)), twin.setup, history), history)


def test_start_without_space_to_note_the_index_files_notes_them_later() -> None:
    """A process that was killed in its first checkpoint leaves index files and no note of them."""
    setup = Setup(ledger_directories=2)
    twin = BookieTwin(setup.new_disk(), setup, History())
    twin.add(1, [(0, b"entry")])
    twin.checkpoint()
    disk = crash_image(twin.disk, Loss.LOST, Random(0))
    files = SimulatedFiles(disk)
    files.remove("/ledgers0/current/indexFiles")
    disk.fault = lambda operation, path: (
        os_error(errno.ENOSPC, path) if "/ledgers" in path and operation in ("write", "create") else None
    )
    again = reopened(disk, setup, twin.history.after_crash())
    audit(again, again.history)
    disk.fault = None
    again.add(2, [(0, b"entry")])
    again.checkpoint()
    again.stop()
    (path,) = (path for path in disk.visible_files() if path.endswith("/1.idx"))
    files.remove(path)
    status, _ = reopened(disk, setup, again.history.after_crash()).batch_read(1, 0)
    assert status == Status.EIO
