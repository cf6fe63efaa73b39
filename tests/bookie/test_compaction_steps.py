"""Compaction, step by step: what is durable and when, and what stays open."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire.status import Status
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.compaction import SUFFIX
from bookie_service.storage.logs import log_scan
from bookie_service.storage.logs.compaction import CompactionBlocked, Compactor, LogInDoubt
from tests.bookie.changing import add, entry
from tests.bookie.collecting import intended_copy, without_limits
from tests.bookie.ledger_stores import open_below
from tests.bookie.stepped_twins import cut, restarted, twin_of
from tests.bookie.storage_edges import half_live, log_ids
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import BookieTwin


def test_start_that_finishes_a_compaction_leaves_no_log_open(tmp_path: Path) -> None:
    bench = half_live(tmp_path)
    (old_id,) = log_ids(bench)
    assert intended_copy(bench.compactor, old_id) is not None
    bench.reopen()
    assert log_ids(bench) != [old_id]
    assert [path for path in open_below(tmp_path) if ".log" in path] == []
    bench.store.close()
    assert open_below(tmp_path) == []


@pytest.mark.parametrize(("outstanding_max", "most"), [(1, 0), (6, 3), (1000, 24)])
def test_copy_has_few_entries_that_are_not_durable(
    monkeypatch: pytest.MonkeyPatch, outstanding_max: int, most: int
) -> None:
    """The old log is read in pieces of three entries. After each piece at most `most` copied ones are not durable."""
    monkeypatch.setattr(log_scan, "WINDOW_BYTES", 150)
    twin = twin_of()
    held = [(4, entry_id) for entry_id in range(24)]
    assert add(twin, *held) == [Status.EOK] * 24
    twin.checkpoint()
    twin.store.seal_logs()
    compactor = Compactor(SimulatedFiles(twin.disk), twin.store, ["/ledgers0/current"])
    outstanding: list[int] = []

    def pace(entries: int, size: int) -> None:
        (name,) = (each for each in SimulatedFiles(twin.disk).names("/ledgers0/current") if each.endswith(SUFFIX))
        path = f"/ledgers0/current/{name}"
        written = SimulatedFiles(twin.disk).file_size(path)
        durable = cut(twin.disk).file_size(path) or 1024
        assert written is not None
        outstanding.append((written - durable) // (size // entries))

    assert compactor.rewrite(twin.store.logs.rotated()[0], pace, outstanding_max) is not None
    assert len(outstanding) > 5
    assert max(outstanding) == most


def test_start_without_space_for_the_index_keeps_both_logs_and_a_later_one_finishes() -> None:
    twin = twin_of()
    held = [(4, entry_id) for entry_id in range(12)]
    assert add(twin, *held) == [Status.EOK] * 12
    twin.checkpoint()
    twin.store.seal_logs()
    compactor = Compactor(SimulatedFiles(twin.disk), twin.store, ["/ledgers0/current"])
    intent = intended_copy(compactor, twin.store.logs.rotated()[0])
    assert intent is not None
    disk = crash_image(twin.disk, Loss.LOST, Random(1))
    full = OSError(errno.ENOSPC, "No space left on device", "/ledgers0/current")
    disk.fault = lambda operation, path: full if operation == "write" and path.endswith(".idx") else None
    again = BookieTwin(disk, twin.setup, twin.history.after_crash())
    assert again.notices == [f"entry log {intent.old_id:x} stays beside its copy until there is space for the index"]
    assert [again.read(*each)[2] for each in held] == [entry(*each) for each in held]
    names = cut(disk).names("/ledgers0/current")
    assert {log_format.file_name(intent.old_id), log_format.file_name(intent.new_id)} <= set(names)
    disk.fault = None
    last = restarted(again)
    assert (last.notices, last.store.logs.rotated()) == ([], [intent.new_id])
    assert [last.read(*each)[2] for each in held] == [entry(*each) for each in held]


def test_removed_log_is_gone_after_a_power_cut_and_nothing_is_kept_of_it() -> None:
    twin = twin_of()
    assert add(twin, *((4, entry_id) for entry_id in range(12))) == [Status.EOK] * 12
    twin.checkpoint()
    # A crash leaves the log without a ledgers map, so that it is scanned.
    again = restarted(twin)
    (log_id,) = again.store.logs.rotated()
    compactor = Compactor(SimulatedFiles(again.disk), again.store, ["/ledgers0/current"])
    compactor.facts(log_id, without_limits)
    assert set(compactor._scanned) == {log_id}
    again.store.forget_log(log_id)
    compactor.remove(log_id)
    assert compactor._scanned == {}
    assert log_format.file_name(log_id) not in cut(again.disk).names("/ledgers0/current")


def without_index_of_ledger_5(twin: BookieTwin) -> tuple[Compactor, int]:
    """Return a compactor after a crash in which the index file of ledger 5 is lost, and the id of the only log."""
    disk = crash_image(twin.disk, Loss.LOST, Random(1))
    files = SimulatedFiles(disk)
    files.remove("/ledgers0/current/0/5/5.idx")
    again = BookieTwin(disk, twin.setup, twin.history.after_crash())
    (log_id,) = again.store.logs.rotated()
    return Compactor(files, again.store, ["/ledgers0/current"]), log_id


def test_log_with_entries_of_a_ledger_in_doubt_is_not_rewritten_and_looked_at_again_later() -> None:
    """Its entries count although no position leads to them: a recovery of the ledger may need them."""
    twin = twin_of()
    assert add(twin, (4, 0), (5, 0)) == [Status.EOK] * 2
    twin.checkpoint()
    compactor, log_id = without_index_of_ledger_5(twin)
    assert compactor.facts(log_id, without_limits).ledger_ids.tolist() == [4, 5]
    assert compactor._scanned == {}, "the doubt may end"
    with pytest.raises(LogInDoubt, match="ledger 5, which has entries in"):
        compactor.rewrite(log_id, without_limits)
    assert not any(name.endswith(SUFFIX) for name in compactor._files.names("/ledgers0/current"))


def test_doubt_about_the_first_part_of_a_log_is_not_forgotten_at_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has one entry: of a ledger in doubt, of another one that was added again, and that one again."""
    monkeypatch.setattr(log_scan, "WINDOW_BYTES", 50)
    twin = twin_of()
    for each in ((5, 0), (4, 0), (4, 0)):
        assert add(twin, each) == [Status.EOK]
        twin.checkpoint()
    compactor, log_id = without_index_of_ledger_5(twin)
    facts = compactor.facts(log_id, without_limits)
    assert facts.ledger_ids.tolist() == [4, 5]
    assert int(facts.ledger_bytes.sum()) < facts.log_bytes, "one entry of ledger 4 is dead"
    assert compactor._scanned == {}


def test_entries_that_came_out_of_order_are_all_moved() -> None:
    twin = twin_of()
    held = [(4, 2), (4, 0), (4, 3), (4, 1)]
    for each in held:
        assert add(twin, each) == [Status.EOK]
        # One flush each: a flush sorts the entries of its ledgers.
        twin.checkpoint()
    twin.store.seal_logs()
    compactor = Compactor(SimulatedFiles(twin.disk), twin.store, ["/ledgers0/current"])
    intent = intended_copy(compactor, twin.store.logs.rotated()[0])
    assert intent is not None
    compactor.finish(intent, without_limits)
    twin.store.forget_log(intent.old_id)
    compactor.remove(intent.old_id)
    assert [restarted(twin).read(*each)[2] for each in held] == [entry(*each) for each in held]


@pytest.mark.parametrize("is_torn", [False, True])
def test_compaction_that_cannot_be_finished_is_not_in_the_way_of_others(is_torn: bool) -> None:
    twin = twin_of()
    assert add(twin, *((4, entry_id) for entry_id in range(12))) == [Status.EOK] * 12
    twin.checkpoint()
    twin.store.seal_logs()
    files = SimulatedFiles(twin.disk)
    compactor = Compactor(files, twin.store, ["/ledgers0/current"])
    intent = intended_copy(compactor, twin.store.logs.rotated()[0])
    assert intent is not None
    copied = f"/ledgers0/current/{log_format.file_name(intent.new_id)}"
    if is_torn:
        files.open(f"{copied}{SUFFIX}").truncate(1100)
    else:
        broken = OSError(errno.EIO, "Input/output error", copied)
        twin.disk.fault = lambda operation, path: broken if operation == "read" and path == copied else None
    with pytest.raises(StorageDamaged if is_torn else CompactionBlocked):
        compactor.finish(intent, without_limits)
    assert compactor.unfinished is None
