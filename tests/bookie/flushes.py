"""What tests of flushes look at: complete entry logs, and how often a lock was taken."""

from __future__ import annotations

import threading

from bookie_service.storage.logs.log_scan import LogScan
from tests.crash.simulated_files import SimulatedFiles
from tests.crash.twins import BookieTwin


def logs_with_a_map(twin: BookieTwin) -> list[int]:
    """Return the logs of a bookie that are complete."""
    found = []
    for log_id in sorted(twin.store.logs._paths):
        file = SimulatedFiles(twin.disk).open(str(twin.store.logs.path(log_id)))
        if LogScan(file, log_id).ledgers_map is not None:
            found.append(log_id)
    return found


class CountedLock:
    """A lock that knows how often it was taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()
