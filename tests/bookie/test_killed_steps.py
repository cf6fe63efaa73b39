"""A kill at any step of a change, and a power cut after the next start: what was acknowledged is there.

What a killed process left is there and not durable: a start must make it so before it builds upon it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from bkspark.wire.status import Status
from tests.bookie.test_changes import add, entry, fence
from tests.bookie.test_durable_steps import restarted, twin_of
from tests.crash.images import Loss, crash_image
from tests.crash.twins import BookieTwin


class Killed(BaseException):
    """Ends the process between two operations."""


def killed_at(twin: BookieTwin, step: int, act: Callable[[], object]) -> bool:
    """Do something until this many operations are done; return whether that ended it."""

    def kill(_: str, __: str) -> None:
        nonlocal step
        step -= 1
        if step < 0:
            raise Killed

    twin.disk.before_operation = kill
    try:
        act()
    except Killed:
        return True
    finally:
        twin.disk.before_operation = None
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
    held = [(ledger_id, entry_id) for entry_id in range(3) for ledger_id in (4, 5, 6)] + [(300, 0)]
    step, is_killed = 0, True
    while is_killed:
        twin = twin_of(directories=directories)
        assert add(twin, *held[:3]) == [Status.EOK] * 3
        twin.checkpoint()
        assert add(twin, *held[3:]) == [Status.EOK] * 7
        fence(twin, 5)
        is_killed = killed_at(twin, step, twin.checkpoint)
        again = started_and_cut(twin)
        assert [again.read(*each)[2] for each in held] == [entry(*each) for each in held]
        assert again.header(5).fenced
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
        is_killed = killed_at(twin, step, partial(twin.compact, log_id))
        again = started_and_cut(twin)
        assert [again.read(*each)[2] for each in held] == [entry(*each) for each in held]
        assert again.store.ledger(5) is None
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
        is_killed = killed_at(twin, step, partial(drop, twin, [4, 5], [5]))
        again = started_and_cut(twin)
        assert again.read(6, 0)[2] == entry(6, 0)
        assert add(again, (5, 1)) == [Status.EFENCED], "the fence is known, whether the ledger is gone or not"
        assert again.read(4, 0)[0] in (Status.EOK, Status.ENOLEDGER)
        assert not again.store.any_in_doubt()
        step += 1
    assert step > 4
