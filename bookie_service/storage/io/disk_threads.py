"""One thread per ledger directory, so that work for one disk never waits for another disk.

Work for several directories runs at the same time. Work for one directory runs in the order in which it was given. A
disk that does not finish in time is *late*: the caller continues without it, gives it no more work until it has
finished, and takes the result then. A bookie with one ledger directory has no such thread. `InTurn` does the work on
the caller's thread, so nothing is late there.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

STALL_S = 1.0
"""A disk that needs longer for its part of a flush is late. A healthy disk needs some milliseconds."""
_WAITING_MAX = 4
"""How many pieces of work may wait for one disk. Callers give fewer to a disk that is not late."""


class DiskStalled(OSError):
    """A disk did not finish in time. Nothing is lost: it is unknown what is durable, and the work is tried again."""


class DiskWork(Protocol):
    """Does work for directories, which have numbers. `run` and `wait_for_any` are for any thread."""

    waits: bool
    """Whether `run` waits for every disk without a limit: before the bookie serves, and when it stops."""

    def run(self, work: Mapping[int, Callable[[], T]]) -> dict[int, Future[T]]:
        """Do the work of each directory; return when all of it is done or late. A late future is not done."""

    def is_busy(self, place: int) -> bool:
        """Return whether a directory has not finished its work."""

    def is_any_busy(self) -> bool:
        """Return whether a directory, of all, has not finished its work."""

    def wait_for_any(self, places: Collection[int]) -> None:
        """Return when at least one of the directories is not busy."""

    def settle(self) -> None:
        """Return when all work that was given before is done."""

    def stop(self) -> None:
        """Finish all work that was given, and end the threads."""


class InTurn:
    """Does the work of one directory after the other, on the caller's thread."""

    waits = True

    def run(self, work: Mapping[int, Callable[[], T]]) -> dict[int, Future[T]]:
        return {place: carried_out(task) for place, task in work.items()}

    def is_busy(self, place: int) -> bool:
        return False

    def is_any_busy(self) -> bool:
        return False

    def wait_for_any(self, places: Collection[int]) -> None:
        """Do nothing: no directory is busy."""

    def settle(self) -> None:
        """Do nothing: all work is done."""

    def stop(self) -> None:
        """Do nothing: there are no threads."""


def carried_out(task: Callable[[], T]) -> Future[T]:
    """Return the result of some work, or the error of a disk. Any other error is raised."""
    future: Future[T] = Future()
    try:
        future.set_result(task())
    except OSError as error:
        future.set_exception(error)
    return future


class DiskThreads:
    """One thread per directory. A thread is started when it is first needed."""

    def __init__(self, directories: Sequence[str], stall_s: float = STALL_S) -> None:
        self.waits = True
        """As in `DiskWork`. Set by the bookie when it serves, and when it stops."""
        self.stall_s = stall_s
        """How long `run` waits for a disk, which is late then, unless it waits without a limit."""
        self._directories = directories
        """The directories, in the order in which callers number them."""
        self._queues: list[queue.Queue[tuple[Callable[[], Any], Future[Any]] | None]] = [
            queue.Queue(_WAITING_MAX) for _ in directories
        ]
        """The work of each directory's thread; None ends the thread."""
        self._threads: list[threading.Thread | None] = [None for _ in directories]
        """The thread of each directory; None: it was not needed yet."""
        self._giving = [threading.Lock() for _ in directories]
        """Held while work is given to the directory's thread, which may have to be started."""
        self._last: list[Future[Any] | None] = [None for _ in directories]
        """The work that each directory was given last. It also finishes last."""
        self._late_since: dict[int, float] = {}
        """Since when each late directory is late, by the monotonic clock. Changed with `_noting` held: work that ends
        while it is found late is not late."""
        self._noting = threading.Lock()
        """Held while work is found late, or ends. See `_late_since`."""

    def run(self, work: Mapping[int, Callable[[], T]]) -> dict[int, Future[T]]:
        futures = {place: self._give(place, task) for place, task in work.items()}
        _, late = wait(futures.values(), None if self.waits else self.stall_s)
        for place, future in futures.items():
            if future in late and self._note_late(place, future):
                logger.warning(
                    "the disk of %s has not finished its part of a flush for %g s: adds and the other ledger "
                    "directories continue without it. Until it answers the marks may not move, so the "
                    "journal grows, and reads of entries on this disk may wait",
                    self._directories[place],
                    self.stall_s,
                )
        return futures

    def is_busy(self, place: int) -> bool:
        last = self._last[place]
        return last is not None and not last.done()

    def is_any_busy(self) -> bool:
        return any(map(self.is_busy, range(len(self._directories))))

    def wait_for_any(self, places: Collection[int]) -> None:
        last = [self._last[place] for place in places]
        if None not in last:
            wait([each for each in last if each is not None], return_when=FIRST_COMPLETED)

    def settle(self) -> None:
        wait([last for last in self._last if last is not None])

    def stop(self) -> None:
        for waiting, thread in zip(self._queues, self._threads):
            if thread is not None:
                waiting.put(None)
                thread.join()

    def _note_late(self, place: int, future: Future[Any]) -> bool:
        """Note that a directory's work is late; False: this is known, or the work was done meanwhile."""
        with self._noting:
            if place in self._late_since or future.done():
                return False
            self._late_since[place] = time.monotonic()
            return True

    def _give(self, place: int, task: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._giving[place]:
            # In this order, so that a caller that finds the directory idle finds all its work done.
            self._last[place] = future
            self._queues[place].put((task, future))
            if self._threads[place] is None:
                thread = threading.Thread(target=self._run, args=(place,), name=f"disk-{place}", daemon=True)
                self._threads[place] = thread
                thread.start()
        return future

    def _run(self, place: int) -> None:
        while (given := self._queues[place].get()) is not None:
            task, future = given
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)
            with self._noting:
                late_since = self._late_since.pop(place, None)
            if late_since is not None:
                late_s = time.monotonic() - late_since + self.stall_s
                logger.warning("the disk of %s answers again, after %.1f s", self._directories[place], late_s)
            # The work may refer to much memory.
            del given, task, future
