"""Marks of the journals, and the order in which a checkpoint does its steps."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from bkspark.errors import StorageDamaged
from bookie_service.formats import marks as mark_format
from bookie_service.formats.marks import NO_JOURNAL, JournalPosition
from bookie_service.storage.io.disk_threads import DiskThreads
from bookie_service.storage.journal.checkpoint import Checkpoint, CheckpointThread, JournalFailed, Marks, carry_out
from tests.bookie.faulty_files import FaultyFiles

LOW, HIGH = JournalPosition(3, 900), JournalPosition(4, 512)


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    paths = [str(tmp_path / name) for name in ("a", "b", "c")]
    for path in paths:
        os.mkdir(path)
    return paths


def put(directory: str, mark: JournalPosition, journal: int = 0) -> None:
    Path(directory, mark_format.file_name(journal)).write_bytes(mark_format.encode_mark(mark))


# ---- marks ----


@pytest.mark.parametrize("order", [(LOW, HIGH), (HIGH, LOW)])
def test_highest_mark_counts(directories: list[str], order: tuple[JournalPosition, ...]) -> None:
    """A crash between two directories leaves them different. Each was written after all below it was durable."""
    for directory, mark in zip(directories, order):
        put(directory, mark)
    put(directories[2], JournalPosition(9, 0), journal=1)
    marks = Marks(FaultyFiles(), directories)
    assert marks.read(0) == HIGH
    assert marks.read(1) == JournalPosition(9, 0)
    assert marks.read(2) is None
    assert marks.unreadable == []


def test_new_bookie_has_no_mark(directories: list[str]) -> None:
    put(directories[0], NO_JOURNAL)
    assert Marks(FaultyFiles(), directories).read(0) is None


def test_damaged_mark_is_named_and_the_others_count(directories: list[str]) -> None:
    put(directories[0], LOW)
    Path(directories[1], "lastMark").write_bytes(b"damaged")
    marks = Marks(FaultyFiles(), directories)
    assert marks.read(0) == LOW
    assert marks.unreadable == [os.path.join(directories[1], "lastMark")]


def test_mark_of_a_later_version_refuses_the_start(directories: list[str]) -> None:
    put(directories[0], LOW)
    data = bytearray(mark_format.encode_mark(HIGH))
    data[7] = 2
    data[24:] = mark_format.crc32c(bytes(data[:24])).to_bytes(4, "big")
    Path(directories[1], "lastMark").write_bytes(data)
    with pytest.raises(StorageDamaged, match="version 2"):
        Marks(FaultyFiles(), directories).read(0)


def test_marks_of_all_journals_are_written_to_all_directories(directories: list[str]) -> None:
    Marks(FaultyFiles(), directories).write([LOW, HIGH])
    for directory in directories:
        alone = Marks(FaultyFiles(), [directory])
        assert (alone.read(0), alone.read(1)) == (LOW, HIGH)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_directory_that_takes_no_mark_does_not_hold_the_others_up(directories: list[str], code: int) -> None:
    files = FaultyFiles()
    marks = Marks(files, directories)
    marks.write([LOW])
    files.code = code
    files.fault = lambda operation, path: path.startswith(directories[1])
    marks.write([HIGH])
    files.fault = None
    assert [Marks(files, [it]).read(0) for it in directories] == [HIGH, LOW, HIGH]
    assert Marks(files, directories).read(0) == HIGH


def test_directory_that_is_busy_is_left_out_and_gets_the_next_mark(directories: list[str]) -> None:
    threads = DiskThreads(directories, stall_s=0.0)
    threads.waits = False
    marks = Marks(FaultyFiles(), directories, threads)
    held: Future[None] = Future()
    threads.run({1: held.result})
    marks.write([LOW])
    threads.wait_for_any([0])
    assert Marks(FaultyFiles(), directories[:1]).read(0) == LOW
    held.set_result(None)
    threads.settle()
    assert Marks(FaultyFiles(), directories[1:2]).read(0) is None
    marks.write([HIGH])
    threads.settle()
    threads.stop()
    assert [Marks(FaultyFiles(), [each]).read(0) for each in directories] == [HIGH] * 3


class BusyThreads(DiskThreads):
    """All directories are busy until one of them is waited for."""

    def __init__(self, directories: list[str]) -> None:
        super().__init__(directories, stall_s=0.0)
        self.waits = False
        self._held: Future[None] = Future()
        self.run(dict.fromkeys(range(len(directories)), self._held.result))

    def wait_for_any(self, places: Collection[int]) -> None:
        if not self._held.done():
            self._held.set_result(None)
        super().wait_for_any(places)


def test_marks_wait_for_a_directory_if_all_are_busy(directories: list[str]) -> None:
    """Journal files before them are released afterwards, so they must be durable somewhere."""
    threads = BusyThreads(directories)
    Marks(FaultyFiles(), directories, threads).write([HIGH])
    assert Marks(FaultyFiles(), directories).read(0) == HIGH
    threads.stop()


def test_marks_that_no_directory_took_while_another_is_busy_are_not_written(directories: list[str]) -> None:
    """Otherwise the journal files before them would be released, and the mark of the busy disk is an earlier one."""
    files = FaultyFiles()
    threads = DiskThreads(directories, stall_s=0.0)
    threads.waits = False
    marks = Marks(files, directories, threads)
    held: Future[None] = Future()
    threads.run({1: held.result})
    files.code = errno.ENOSPC
    files.fault = lambda operation, path: True
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        marks.write([HIGH])
    held.set_result(None)
    threads.stop()


def test_error_of_a_late_write_that_its_disk_did_not_cause_is_raised_by_the_next_write(
    directories: list[str],
) -> None:
    files = FaultyFiles()
    threads = DiskThreads(directories, stall_s=0.0)
    threads.waits = False
    marks = Marks(files, directories, threads)
    may_fail = threading.Event()
    files.code = errno.EMFILE
    files.fault = lambda operation, path: path.startswith(directories[1]) and may_fail.wait(60)
    marks.write([LOW])
    may_fail.set()
    threads.settle()
    files.fault = None
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        marks.write([HIGH])
    threads.stop()


def test_lack_of_space_counts_more_than_a_disk_that_fails_when_no_directory_takes_the_marks(
    directories: list[str],
) -> None:
    """The checkpoint is tried again when there may be space; any other error ends the process."""
    files = FaultyFiles()

    def fault(operation: str, path: str) -> bool:
        files.code = errno.ENOSPC if path.startswith(directories[2]) else errno.EIO
        return True

    files.fault = fault
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        Marks(files, directories).write([HIGH])


def test_directory_that_takes_no_marks_is_logged_once_each_time_it_begins(
    directories: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    marks = Marks(files, directories)
    for refuses in (True, True, False, True):
        files.fault = (lambda operation, path: path.startswith(directories[1])) if refuses else None
        marks.write([HIGH])
    assert caplog.text.count(f"not to {directories[1]}") == 2


def test_mark_that_no_directory_takes_is_an_error(directories: list[str]) -> None:
    files = FaultyFiles()
    files.code = errno.ENOSPC
    files.fault = lambda operation, path: True
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        Marks(files, directories).write([HIGH])
    files.code = errno.EACCES
    files.fault = lambda operation, path: path.startswith(directories[2])
    with pytest.raises(PermissionError):
        Marks(files, directories).write([HIGH])


# ---- a checkpoint ----


class Steps:
    """The parts of a checkpoint, which note what they are asked to do."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write_flush(self, flush: object) -> None:
        self.done.append("flush")

    def write(self, positions: list[JournalPosition]) -> None:
        self.done.append(("marks", list(positions)))

    def forget_before(self, mark: JournalPosition) -> None:
        self.done.append(("forget", mark))


class Flush:
    def __init__(self, advances_checkpoint: bool) -> None:
        self.advances_checkpoint = advances_checkpoint


def checkpoint(*, advances_checkpoint: bool, error: Exception | None = None) -> Checkpoint:
    marks: list[Future[JournalPosition]] = [Future(), Future()]
    marks[0].set_result(LOW)
    marks[1].set_result(HIGH) if error is None else marks[1].set_exception(error)
    return Checkpoint(Flush(advances_checkpoint), marks)  # type: ignore[arg-type]


def test_journals_go_after_the_marks_and_marks_move_after_the_flush() -> None:
    steps = Steps()
    carry_out(checkpoint(advances_checkpoint=True), steps, steps, [steps, steps])  # type: ignore[arg-type]
    assert steps.done == ["flush", ("marks", [LOW, HIGH]), ("forget", LOW), ("forget", HIGH)]


def test_flush_that_only_makes_room_moves_no_mark() -> None:
    steps = Steps()
    carry_out(checkpoint(advances_checkpoint=False), steps, steps, [steps, steps])  # type: ignore[arg-type]
    assert steps.done == ["flush"]


def test_flush_that_a_late_disk_kept_from_the_index_moves_no_mark() -> None:
    """The flush itself tells it, when it ends: the journal must keep what the index may not have."""

    class Late(Steps):
        def write_flush(self, flush: Any) -> None:
            super().write_flush(flush)
            flush.advances_checkpoint = False

    steps = Late()
    carry_out(checkpoint(advances_checkpoint=True), steps, steps, [steps, steps])  # type: ignore[arg-type]
    assert steps.done == ["flush"]


def test_nothing_is_flushed_when_a_journal_failed() -> None:
    steps = Steps()
    with pytest.raises(JournalFailed) as failed:
        carry_out(checkpoint(advances_checkpoint=True, error=OSError(errno.ENOSPC, "full")), steps, steps, [])  # type: ignore[arg-type]
    assert isinstance(failed.value.error, OSError)
    assert steps.done == []


# ---- the thread ----


class Running:
    """A checkpoint thread whose parts note what they do; `error` is raised by the next flush."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.error: BaseException | None = None
        self.happened: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.has_space_when_stuck = False
        self.thread = CheckpointThread(
            self,  # type: ignore[arg-type]
            self.steps,  # type: ignore[arg-type]
            [self.steps, self.steps],  # type: ignore[list-item]
            lambda done: self.happened.put(("done", done)),
            self._on_stuck,
            lambda error: self.happened.put(("failed", error)),
        )

    def write_flush(self, flush: object) -> None:
        if self.error is not None:
            raise self.error
        self.steps.write_flush(flush)

    def _on_stuck(self, error: OSError) -> None:
        self.happened.put(("stuck", error))
        if self.has_space_when_stuck:
            self.error = None
            self.thread.retry()

    def next(self) -> Any:
        return self.happened.get(timeout=60)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    made.thread.start()
    yield made
    made.thread.stop()


def test_checkpoints_are_carried_out_one_after_the_other(running: Running) -> None:
    submitted = [checkpoint(advances_checkpoint=advances_checkpoint) for advances_checkpoint in (True, False, True)]
    for each in submitted:
        running.thread.submit(each)
    assert [running.next() for _ in submitted] == [("done", each) for each in submitted]
    whole = ["flush", ("marks", [LOW, HIGH]), ("forget", LOW), ("forget", HIGH)]
    assert running.steps.done == [*whole, "flush", *whole]


def test_checkpoint_without_space_is_tried_again_when_there_may_be_some(running: Running) -> None:
    running.error = OSError(errno.ENOSPC, "full")
    submitted = checkpoint(advances_checkpoint=True)
    running.thread.submit(submitted)
    assert running.next() == ("stuck", running.error)
    running.thread.retry()
    assert running.next() == ("stuck", running.error)
    assert running.steps.done == []
    running.error = None
    running.thread.retry()
    assert running.next() == ("done", submitted)
    assert running.steps.done[0] == "flush"


def test_space_that_comes_while_a_checkpoint_reports_that_there_is_none_is_not_missed() -> None:
    made = Running()
    made.error, made.has_space_when_stuck = OSError(errno.ENOSPC, "full"), True
    made.thread.start()
    submitted = checkpoint(advances_checkpoint=True)
    made.thread.submit(submitted)
    assert made.next()[0] == "stuck"
    assert made.next() == ("done", submitted)
    made.thread.stop()


def test_checkpoint_that_is_stuck_is_left_to_the_journal_by_a_stop() -> None:
    made = Running()
    made.thread.start()
    made.error = OSError(errno.ENOSPC, "full")
    made.thread.submit(checkpoint(advances_checkpoint=True))
    assert made.next()[0] == "stuck"
    made.thread.stop()
    assert made.happened.empty() or made.next()[0] == "stuck"
    assert made.happened.empty()
    assert made.steps.done == []


def test_stop_carries_out_what_was_submitted() -> None:
    made = Running()
    made.thread.start()
    submitted = [checkpoint(advances_checkpoint=True) for _ in range(3)]
    for each in submitted:
        made.thread.submit(each)
    made.thread.stop()
    assert [made.next() for _ in submitted] == [("done", each) for each in submitted]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk fails"), ValueError("an error of our own")])
def test_any_other_error_ends_the_process_and_nothing_more_is_carried_out(error: Exception) -> None:
    made = Running()
    made.thread.start()
    made.error = error
    made.thread.submit(checkpoint(advances_checkpoint=True))
    assert made.next() == ("failed", error)
    made.error = None
    made.thread.submit(checkpoint(advances_checkpoint=True))
    made.thread.stop()
    assert made.happened.empty()
    assert made.steps.done == []


def test_error_of_a_journal_ends_the_process_though_it_is_a_lack_of_space(running: Running) -> None:
    error = OSError(errno.ENOSPC, "the journal's disk is full")
    running.thread.submit(checkpoint(advances_checkpoint=True, error=error))
    assert running.next() == ("failed", error)
