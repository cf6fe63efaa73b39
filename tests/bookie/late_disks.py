"""Disks that are late, and work that waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from bookie_service.storage.io.disk_threads import DiskThreads

_END_S = 120.0
"""Work that does not end in this time waits for ever."""


class WatchedDisks(DiskThreads):
    """Disks that are late soon. They say when someone waits for one, or for all of them."""

    def __init__(self, directories: Sequence[str]) -> None:
        super().__init__(directories, 0.05)
        self.waited_for = threading.Event()
        """Set when `wait_for_any` is called."""
        self.settling = threading.Event()
        """Set when `settle` waits for a disk."""
        self.settled = 0
        """How often `settle` has returned."""

    def wait_for_any(self, places: Collection[int]) -> None:
        self.waited_for.set()
        super().wait_for_any(places)

    def settle(self) -> None:
        if self.is_any_busy():
            self.settling.set()
        super().settle()
        self.settled += 1


@contextmanager
def running(work: Callable[[], object], release: Callable[[], None]) -> Iterator[threading.Thread]:
    """Run some work on a thread of its own. At the end the disks go on, and the work ends."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        release()
        thread.join(_END_S)
        assert not thread.is_alive()
