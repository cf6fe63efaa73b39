"""A thread for each ledger directory: order, lateness, errors, stops."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest

from bookie_service.storage.io.disk_threads import DiskThreads, InTurn
from bookie_service.storage.io.files import LocalFiles

SOON_S = 0.01


@pytest.fixture
def disks() -> Iterator[DiskThreads]:
    made = DiskThreads(["/a", "/b", "/c"], SOON_S)
    yield made
    made.stop()


class Gate:
    """Work that waits until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.opened.wait(60)
        return "done"


def test_directories_work_at_the_same_time(disks: DiskThreads) -> None:
    both = threading.Barrier(2, timeout=60)
    done = disks.run({0: both.wait, 2: both.wait})
    assert sorted(future.result() for future in done.values()) == [0, 1], "neither could go on alone"


def test_work_of_one_directory_keeps_its_order(disks: DiskThreads) -> None:
    disks.waits = False
    gate, order = Gate(), []
    (first,) = disks.run({1: gate}).values()
    later = [disks.run({1: lambda number=number: order.append(number)})[1] for number in range(3)]
    assert not first.done()
    assert order == []
    gate.opened.set()
    for future in later:
        future.result(60)
    assert order == [0, 1, 2]


def test_disk_that_stalls_does_not_hold_the_others_up(disks: DiskThreads) -> None:
    disks.waits = False
    gate = Gate()
    futures = disks.run({0: lambda: "a", 1: gate, 2: lambda: "c"})
    assert [futures[0].result(60), futures[2].result(60)] == ["a", "c"]
    assert not futures[1].done()
    assert [disks.is_busy(place) for place in range(3)] == [False, True, False]
    assert disks.run({2: lambda: "again"})[2].result(60) == "again"
    gate.opened.set()
    assert futures[1].result(60) == "done"
    disks.settle()
    assert not disks.is_busy(1)


def test_disk_is_waited_for_where_nothing_may_be_late(disks: DiskThreads) -> None:
    gate = Gate()
    opening = threading.Timer(10 * SOON_S, gate.opened.set)
    opening.start()
    assert disks.run({1: gate})[1].result(0) == "done"


def test_stall_and_its_end_are_logged_once_with_the_directory(
    disks: DiskThreads, caplog: pytest.LogCaptureFixture
) -> None:
    disks.waits = False
    gate = Gate()
    for _ in range(2):
        disks.run({1: gate})
    gate.opened.set()
    disks.stop()
    stalled, over = caplog.messages
    assert stalled.startswith("the disk of /b has not finished its part of a flush for 0.01 s")
    assert over.startswith("the disk of /b answers again")


def test_any_directory_that_is_not_busy_is_found(disks: DiskThreads) -> None:
    disks.waits = False
    gates = [Gate(), Gate()]
    disks.run(dict(enumerate(gates)))
    disks.wait_for_any([0, 2])
    gates[1].opened.set()
    disks.wait_for_any([0, 1])
    assert [disks.is_busy(place) for place in (0, 1)] == [True, False]
    gates[0].opened.set()


def test_error_is_that_of_its_directory_and_its_thread_goes_on(disks: DiskThreads) -> None:
    def fails() -> None:
        raise OSError(errno.EIO, "no disk", "/a/1.log")

    def breaks() -> None:
        raise KeyError("a defect")

    futures = disks.run({0: fails, 1: breaks, 2: lambda: None})
    with pytest.raises(OSError, match="no disk"):
        futures[0].result()
    with pytest.raises(KeyError):
        futures[1].result()
    assert futures[2].result() is None
    assert disks.run({0: lambda: 7})[0].result() == 7


def test_stop_finishes_what_was_given() -> None:
    disks = DiskThreads(["/a", "/b"], SOON_S)
    disks.waits = False
    gate, order = Gate(), []
    futures = [disks.run({0: gate})[0], disks.run({0: lambda: order.append("second")})[0]]
    stopping = threading.Thread(target=disks.stop)
    stopping.start()
    assert gate.begun.wait(60)
    assert stopping.is_alive()
    gate.opened.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert all(future.done() for future in futures)
    assert order == ["second"]


def test_single_directory_has_no_thread() -> None:
    before = threading.active_count()
    disks = LocalFiles().disk_work(["/a"])
    where = disks.run({0: threading.current_thread})[0].result()
    assert isinstance(disks, InTurn)
    assert where is threading.current_thread()
    assert threading.active_count() == before
    assert not disks.is_busy(0)
    disks.stop()


def test_defect_in_the_work_of_a_single_directory_is_not_taken_for_an_error_of_its_disk() -> None:
    def breaks() -> None:
        raise KeyError("a defect")

    with pytest.raises(KeyError):
        InTurn().run({0: breaks})
