"""Threads that wait for the disk, so that the event loop need not.

Tasks wait in a queue. A thread runs one, passes its result to the event loop, and begins the next task only after the
result was taken. So memory holds the fetched bytes of at most one read per thread. If there are several ledger
directories, each has its own queue and threads, so reads of a disk that stalls occupy no thread of another disk.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bookie_service.storage.io.byte_source import Fetched, FileRange
from bookie_service.storage.io.files import LocalFiles

_AHEAD_BYTES_MIN = 256 * 1024
"""After a piece of at least this size the next one is prefetched: some client reads a ledger from end to end."""

OnFetched = Callable[[Fetched], None]
T = TypeVar("T")
_Queue = queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None]
_ANY = ""
"""The key of the queue for paths in no directory with threads of its own. Every path begins with it."""


class FetchThreads:
    """Fetches ranges of files from `start` until `stop`. The event loop calls `fetch`, and is called back."""

    def __init__(
        self,
        files: LocalFiles,
        threads: int,
        post: Callable[..., None],
        on_failure: Callable[[BaseException], None],
        directories: Sequence[str] = (),
    ) -> None:
        """`directories`: those that have threads of their own. They share the number `threads`; each has at least one.

        `post(callback, *arguments)` calls back on the event loop from a thread. `on_failure` gets an error of our own
        there, after which a read would never be answered.
        """
        self._files = files
        self._post = post
        self._on_failure = on_failure
        own = [os.path.join(directory, "") for directory in directories] if len(directories) > 1 else []
        self._queues: dict[str, _Queue] = {directory: queue.SimpleQueue() for directory in (*own, _ANY)}
        """The tasks by directory; `_ANY` comes last, because it matches every path."""
        self._stopping = threading.Event()
        """Set by `stop`: the threads take no further tasks."""
        each = -(-threads // max(1, len(own)))
        self._threads = [
            threading.Thread(target=self._run, args=(waiting,), name=f"fetch-{number}-{place}", daemon=True)
            for place, waiting in enumerate(self._queues.values())
            for number in range(each)
        ]

    @property
    def waiting(self) -> int:
        """How many tasks wait for a thread."""
        return sum(waiting.qsize() for waiting in self._queues.values())

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin no more tasks, and end the threads. Results that were not taken are dropped."""
        self._stopping.set()
        for waiting in self._queues.values():
            for _ in self._threads:
                waiting.put(None)

    def join(self) -> None:
        """Return when the threads have ended."""
        for thread in self._threads:
            thread.join()

    def fetch(self, place: FileRange, on_fetched: OnFetched) -> None:
        """Read a range and call back with the result."""
        waiting = next(waiting for directory, waiting in self._queues.items() if place.path.startswith(directory))
        waiting.put((lambda: self._read(place), on_fetched))

    def run(self, task: Callable[[], T], on_done: Callable[[T], None]) -> None:
        """Run `task`, which must not raise, on a thread; then call `on_done` with its result on the event loop."""
        self._queues[_ANY].put((task, on_done))

    def _run(self, waiting: _Queue) -> None:
        try:
            self._run_all(waiting)
        except BaseException as error:
            self._post(self._on_failure, error)

    def _run_all(self, waiting: _Queue) -> None:
        while (wanted := waiting.get()) is not None and not self._stopping.is_set():
            task, on_done = wanted
            result = task()
            taken = threading.Event()
            self._post(self._hand_over, taken, on_done, result)
            del task, on_done, wanted, result
            while not taken.wait(0.1) and not self._stopping.is_set():
                pass

    def _hand_over(self, taken: threading.Event, on_done: Callable[[T], None], result: T) -> None:
        try:
            on_done(result)
        finally:
            taken.set()

    def _read(self, place: FileRange) -> Fetched:
        try:
            # The event loop's own file cannot be used, because the loop may close it at any time.
            file = self._files.open(place.path)
            try:
                data = file.read(place.size, place.offset)
                if place.size >= _AHEAD_BYTES_MIN:
                    file.read_ahead(place.size, place.offset + place.size)
            finally:
                file.close()
        except OSError as error:
            return Fetched(place, error=error)
        return Fetched(place, data)
