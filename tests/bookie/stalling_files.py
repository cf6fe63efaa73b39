"""Real files on disks of which a test stalls some: a sync there does not return until the test says so."""

from __future__ import annotations

import threading

from tests.bookie.faulty_files import FaultyFiles

SYNCS = ("sync_data", "sync_directory")


class StallingFiles(FaultyFiles):
    """`stall(part)` holds syncs of files and directories whose path contains `part`, until `release`."""

    def __init__(self) -> None:
        super().__init__()
        self._stalled = ""
        self._released = threading.Event()
        self._released.set()
        self.holding: list[str] = []
        """Paths of the syncs that are held now."""
        self.stalled_at = 0
        """How many operations came before the last stall."""

    def stall(self, part: str) -> None:
        self.stalled_at = len(self.operations)
        self._released.clear()
        self._stalled = part

    def release(self) -> None:
        self._stalled = ""
        self._released.set()

    def check(self, operation: str, path: str) -> None:
        if self._stalled and self._stalled in path and operation in SYNCS:
            self.holding.append(path)
            self._released.wait(120)
            self.holding.remove(path)
        super().check(operation, path)
