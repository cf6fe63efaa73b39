"""Disks of ledger directories whose work goes on in steps, and simulated stores that take steps.

A late disk does its work on a thread of its own, which stops before each change of the simulated disk, and before and
after each write of a store, until it is given a step. So only one thread runs at a time, and a seed says which one: a
schedule can be had again. Between two steps of a late disk another thread may do anything.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, TypeVar

from bookie_service.storage.io.disk_threads import InTurn, carried_out
from bookie_service.storage.io.key_values import KeyValueOptions
from tests.crash.simulated_files import SimulatedDisk, SimulatedFiles
from tests.crash.simulated_key_values import SimulatedKeyValues

T = TypeVar("T")

_WRITES_OUT = 0.05
"""How likely a store writes out a part of its memory after a write, without a sync."""


class _Abandoned(BaseException):
    """Ends the thread of a process that was killed."""


class _Task:
    """Work of a late disk. Its thread runs only while `step` is called."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work
        self._may_go = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._is_abandoned = False

    def is_current(self) -> bool:
        """Return whether the caller is the thread of this work."""
        return threading.current_thread() is self._thread

    def step(self) -> None:
        """Let the work go on until it stops again, or ends."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._may_go.release()
        self._has_stopped.acquire()

    def stop(self) -> None:
        """Wait for the next step. On the thread of the work."""
        self._has_stopped.release()
        self._may_go.acquire()
        if self._is_abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End the thread: its process was killed."""
        self._is_abandoned = True
        while self._thread is not None and self._thread.is_alive():
            self._may_go.release()
            self._thread.join(0.001)

    def _run(self) -> None:
        self._may_go.acquire()
        try:
            if not self._is_abandoned:
                self.future.set_result(self._work())
        except BaseException as error:
            self.future.set_exception(error)
        self._has_stopped.release()


class SteppedDisks(InTurn):
    """The disk of each directory; those in `late` do their work when they are given steps, or are waited for."""

    def __init__(self, directories: int) -> None:
        self.waits = True
        self.late: set[int] = set()
        """Directories whose work is not waited for. Changed by the owner."""
        self._waiting: list[deque[_Task]] = [deque() for _ in range(directories)]
        """The work of each directory that has not ended, in its order."""

    def run(self, work: Mapping[int, Callable[[], T]]) -> dict[int, Future[T]]:
        futures: dict[int, Future[T]] = {}
        for place, task in work.items():
            if not self._waiting[place] and not self._is_late(place):
                futures[place] = carried_out(task)
                continue
            waiting = _Task(task)
            self._waiting[place].append(waiting)
            futures[place] = waiting.future
            if not self._is_late(place):
                self.finish(place)
        return futures

    def _is_late(self, place: int) -> bool:
        return not self.waits and place in self.late

    def busy(self) -> list[int]:
        """Return the directories that have not finished their work."""
        return [place for place, waiting in enumerate(self._waiting) if waiting]

    def is_busy(self, place: int) -> bool:
        return bool(self._waiting[place])

    def is_any_busy(self) -> bool:
        return any(self._waiting)

    def step(self, place: int) -> None:
        """Let the first work of a busy directory take a step."""
        task = self._waiting[place][0]
        task.step()
        if task.future.done():
            self._waiting[place].popleft()

    def finish(self, place: int) -> None:
        """Let a directory do all its work."""
        while self._waiting[place]:
            self.step(place)

    def stop_here(self) -> bool:
        """If the caller is the thread of a disk, wait for the next step, and return True."""
        for waiting in self._waiting:
            if waiting and waiting[0].is_current():
                waiting[0].stop()
                return True
        return False

    def wait_for_any(self, places: Collection[int]) -> None:
        self.finish(min(places))

    def settle(self) -> None:
        for place in range(len(self._waiting)):
            self.finish(place)

    def stop(self) -> None:
        self.settle()

    def abandon(self) -> None:
        """End all threads: the process was killed."""
        for waiting in self._waiting:
            for task in waiting:
                task.abandon()
            waiting.clear()


class SteppedFiles(SimulatedFiles):
    """Files whose key-value stores call `between` around each write."""

    def __init__(self, disk: SimulatedDisk, between: Callable[[], None], random: Random) -> None:
        super().__init__(disk)
        self._between = between
        self._random = random

    def open_key_values(self, path: str, options: KeyValueOptions) -> SimulatedKeyValues:
        return SteppedKeyValues(self, path, self._between, self._random)


class SteppedKeyValues(SimulatedKeyValues):
    """A store that others use between its steps, and that writes out some of its memory when it likes."""

    def __init__(self, files: SimulatedFiles, path: str, between: Callable[[], None], random: Random) -> None:
        super().__init__(files, path)
        self._between = between
        self._random = random
        self._is_writing_out = False
        """Whether a thread writes memory out. No other one does meanwhile."""

    def write(self, puts: Sequence[tuple[bytes, bytes]], removed: Sequence[tuple[bytes, bytes]] = ()) -> None:
        if removed:
            # The caller may hold a lock that a thread needs for its next step.
            super().write(puts, removed)
            return
        self._between()
        super().write(puts)
        self._between()
        if not self._is_writing_out and self._random.random() < _WRITES_OUT:
            with self._writing_out(), suppress(OSError):
                self._write_out(self._random.randint(0, len(self._unsynced)))

    def sync(self) -> None:
        self._between()
        while self._is_writing_out:
            self._between()
        with self._writing_out():
            super().sync()
        self._between()

    @contextmanager
    def _writing_out(self) -> Iterator[None]:
        self._is_writing_out = True
        try:
            yield
        finally:
            self._is_writing_out = False
