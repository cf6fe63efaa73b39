"""When a thread that is not the flush's may change the records of an index."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from bookie_service.storage.io.disk_threads import DiskWork


@contextlib.contextmanager
def between_flushes(writing: threading.Lock, disks: DiskWork) -> Iterator[None]:
    """Hold `writing`, which flushes hold, while no disk is late."""
    while True:
        # Without the lock, because flushes need it.
        disks.settle()
        with writing:
            # A flush that had the lock may have met a disk that is late.
            if not disks.is_any_busy():
                yield
                return
