"""Threads that wait for the disk, so that the event loop need not.

What is to be fetched waits in a queue; a thread reads it and hands it over, and begins the next only once that is
taken. So fetched bytes in memory are never more than one read for each thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from bookie_service.storage.byte_source import Fetched, Place
from bookie_service.storage.files import LocalFiles

_AHEAD_BYTES_MIN = 256 * 1024
"""Behind a piece as large as this the next one is asked for: somebody reads a ledger from end to end."""

OnFetched = Callable[[Fetched], None]


class FetchThreads:
    """Fetches places from `start` to `stop`. `fetch` is called on the event loop, and calls back there."""

    def __init__(
        self,
        files: LocalFiles,
        threads: int,
        post: Callable[..., None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`post(callback, *arguments)` calls back on the event loop, from a thread; there `on_failure` gets an error of
        our own, after which nobody would answer.
        """
        self._files = files
        self._post = post
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[tuple[Place, OnFetched] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"fetch-{number}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin nothing more, and end the threads; what they have read is dropped."""
        self._stopping.set()
        for _ in self._threads:
            self._queue.put(None)

    def join(self) -> None:
        """Return when the threads have ended."""
        for thread in self._threads:
            thread.join()

    def fetch(self, place: Place, on_fetched: OnFetched) -> None:
        """Read a place and call back with what came of it."""
        self._queue.put((place, on_fetched))

    def _run(self) -> None:
        try:
            self._fetch_all()
        except BaseException as error:
            self._post(self._on_failure, error)

    def _fetch_all(self) -> None:
        while (wanted := self._queue.get()) is not None and not self._stopping.is_set():
            place, on_fetched = wanted
            fetched = self._read(place)
            taken = threading.Event()
            self._post(self._hand_over, taken, on_fetched, fetched)
            del fetched
            while not taken.wait(0.1) and not self._stopping.is_set():
                pass

    def _hand_over(self, taken: threading.Event, on_fetched: OnFetched, fetched: Fetched) -> None:
        try:
            on_fetched(fetched)
        finally:
            taken.set()

    def _read(self, place: Place) -> Fetched:
        try:
            # Not the event loop's file, which it may close at any time.
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
