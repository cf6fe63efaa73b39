"""A kill at any step of a change, and a power cut after the next start: what was acknowledged is there.

What a killed process left is there and not durable: a start must make it so before it builds upon it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from bkspark.wire.status import Status
from bookie_service.storage.disks import FileSystemSpace
from tests.bookie.changing import add, entry, fence, write_lac
from tests.bookie.stepped_twins import restarted, twin_of
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import OperationHook, SimulatedDisk
from tests.crash.twins import BookieTwin, lac_packet


class Killed(BaseException):
    """Ends the process between two operations."""


def killed_at(disk: SimulatedDisk, step: int, act: Callable[[], object]) -> bool:
    """Do something until this many operations of the disk are done; return whether that ended it."""

    def kill(_: str, __: str) -> None:
        nonlocal step
        step -= 1
        if step < 0:
            raise Killed

    return _killed_by(kill, disk, act)


def _killed_by(kill: OperationHook, disk: SimulatedDisk, act: Callable[[], object]) -> bool:
    disk.before_operation = kill
    try:
        act()
    except Killed:
        return True
    finally:
        disk.before_operation = None
    return False


def started_and_cut(twin: BookieTwin) -> BookieTwin:
    """Return the bookie of the start after a power cut after the start after a kill now."""
    left = crash_image(twin.disk, Loss.KEPT, Random(1))
    return restarted(BookieTwin(left, twin.setup, twin.history.after_crash()))


def drop(twin: BookieTwin, ledger_ids: list[int], fenced: list[int]) -> None:
    """Drop ledgers as the collector does."""
    twin.store.prepare_drop(ledger_ids, fenced, 1000)
    assert twin.store.drop(ledger_ids) == ledger_ids
    twin.store.sync_dropped(ledger_ids)


@pytest.mark.parametrize("directories", [1, 2])
def test_kill_in_a_flush(directories: int) -> None:
    """Ledgers 7 and 8 have their entries before the marks: the flush changes their headers alone."""
    held = [(ledger_id, entry_id) for entry_id in range(3) for ledger_id in (4, 5, 6)] + [(300, 0)]
    step, is_killed = 0, True
    while is_killed:
        twin = twin_of(directories=directories)
        assert add(twin, *held[:3], (7, 0), (8, 0)) == [Status.EOK] * 5
        twin.checkpoint()
        assert add(twin, *held[3:]) == [Status.EOK] * 7
        fence(twin, 5)
        fence(twin, 7)
        write_lac(twin, 8, 0)
        is_killed = killed_at(twin.disk, step, twin.checkpoint)
        again = started_and_cut(twin)
        assert [again.read(*each)[2] for each in held] == [entry(*each) for each in held]
        assert [again.header(each).fenced for each in (4, 5, 7, 8)] == [False, True, True, False]
        assert again.header(8).explicit_lac == lac_packet(8, 0)
        assert not again.store.any_in_doubt()
        step += 2
    assert step > 20


@pytest.mark.parametrize("directories", [1, 2])
def test_kill_in_a_compaction(directories: int) -> None:
    held = [(4, entry_id) for entry_id in range(12)]
    step, is_killed = 0, True
    while is_killed:
        twin = twin_of(directories=directories)
        assert add(twin, *held, *((5, entry_id) for entry_id in range(12))) == [Status.EOK] * 24
        twin.checkpoint()
        twin.store.seal_logs()
        log_id = twin.store.logs.rotated()[0]
        drop(twin, [5], [])
        is_killed = killed_at(twin.disk, step, partial(twin.compact, log_id))
        again = started_and_cut(twin)
        assert [again.read(*each)[2] for each in held] == [entry(*each) for each in held]
        assert again.store.ledger(5) is None
        assert not again.store.any_in_doubt()
        step += 1
    assert step > 15


def test_power_cut_in_the_start_that_finishes_a_compaction() -> None:
    """The kill came between the rename of the copy and its sync. The old log is in another directory than the copy, so
    its removal becomes durable separately."""
    twin = twin_of(directories=2)
    held = [(4, entry_id) for entry_id in range(12)]
    assert add(twin, *held, *((6, entry_id) for entry_id in range(12))) == [Status.EOK] * 24
    twin.checkpoint()
    twin.store.seal_logs()
    (log_id,) = (each for each in twin.store.logs.rotated() if str(twin.store.logs.path(each)).startswith("/ledgers0"))
    drop(twin, [6], [])
    twin.disk.spaces["/ledgers0"] = FileSystemSpace(1, 1 << 40, 1 << 39)
    is_renamed = False

    def kill(operation: str, path: str) -> None:
        nonlocal is_renamed
        if is_renamed:
            raise Killed
        is_renamed = operation == "rename" and path.startswith("/ledgers1") and path.endswith(".log")

    assert _killed_by(kill, twin.disk, partial(twin.compact, log_id))
    step, is_cut = 0, True
    while is_cut:
        disk = crash_image(twin.disk, Loss.KEPT, Random(1))
        is_cut = killed_at(disk, step, partial(BookieTwin, disk, twin.setup, twin.history.after_crash()))
        left = crash_image(disk, Loss.LOST, Random(1))
        again = BookieTwin(left, twin.setup, twin.history.after_crash())
        assert [again.read(*each)[2] for each in held] == [entry(*each) for each in held], step
        assert not again.store.any_in_doubt()
        step += 1
    assert step > 15


def test_kill_in_a_drop() -> None:
    step, is_killed = 0, True
    while is_killed:
        twin = twin_of()
        add(twin, (4, 0), (5, 0), (6, 0))
        fence(twin, 5)
        twin.checkpoint()
        is_killed = killed_at(twin.disk, step, partial(drop, twin, [4, 5], [5]))
        again = started_and_cut(twin)
        assert again.read(6, 0)[2] == entry(6, 0)
        assert add(again, (5, 1)) == [Status.EFENCED], "the fence is known, whether the ledger is gone or not"
        assert again.read(4, 0)[0] in (Status.EOK, Status.ENOLEDGER)
        assert not again.store.any_in_doubt()
        step += 1
    assert step > 4
