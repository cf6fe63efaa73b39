"""What files and disk allow to bookies that do nothing else: the same writes and syncs, without a bookie around them.

For each bookie a thread appends groups to a file as its journal does (preallocated, one fdatasync a group, durable
bytes leave the page cache), and another thread writes the same bytes to a second file as flushes of the write cache
do (2 MiB, then fdatasync), at most half a cache later than the first. All memory is the writer's own and
stays in use, so copies into the page cache cost what they cost a bookie.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from bookie_service.storage.io.files import LocalFiles
from bookie_service.storage.journal.journal import JournalOptions
from bookie_service.storage.logs.log_appender import AppendOptions

GROUP_BYTES = 1 << 20
"""About what arrives at a loaded bookie during a sync. It divides what an entry log writes between two syncs."""
_BEHIND_MAX = 64 << 20
_RESERVE_BYTES = 16 << 20


class BareBookie:
    """The two files of one bookie, and the threads that write them."""

    def __init__(self, directory: Path, number: int, group_bytes: int, *, fresh: bool) -> None:
        """`fresh`: the blocks of the journal were never written before, as those of a new file."""
        files = LocalFiles()
        self._journal = files.create(str(directory / f"bare{number}.txn"))
        self._log = files.create(str(directory / f"bare{number}.log"))
        self._group, self._piece = os.urandom(group_bytes), os.urandom(AppendOptions().sync_bytes)
        self._fresh = fresh
        self._behind = threading.Semaphore(_BEHIND_MAX // group_bytes)
        self._journaled = threading.Semaphore(0)
        self._is_over = threading.Event()
        self.groups = 0
        self._threads = [threading.Thread(target=self._write_journal), threading.Thread(target=self._write_log)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._behind.release()
        self._journaled.release(self.groups + 1 + len(self._piece) // len(self._group))
        for thread in self._threads:
            thread.join()
        for file in (self._journal, self._log):
            file.close()
            os.unlink(file.path)

    def prepare(self, size: int) -> None:
        """Write the journal's blocks once."""
        for offset in range(0, size, len(self._piece)):
            self._journal.write([self._piece], offset)
        self._journal.sync_data()

    def _write_journal(self) -> None:
        end = let_go = allocated = 0
        options = JournalOptions()
        while not self._is_over.is_set():
            self._behind.acquire()
            if self._fresh and end + len(self._group) > allocated:
                self._journal.preallocate(allocated, options.preallocate_bytes)
                allocated += options.preallocate_bytes
            self._journal.write([self._group], end)
            self._journal.sync_data()
            end += len(self._group)
            self.groups += 1
            if end - let_go >= options.cached_bytes:
                self._journal.drop_page_cache(let_go, end)
                let_go = end
            self._journaled.release()

    def _write_log(self) -> None:
        end = reserved = 0
        groups = len(self._piece) // len(self._group)
        while not self._is_over.is_set():
            for _ in range(groups):
                self._journaled.acquire()
            if end + len(self._piece) > reserved:
                self._log.reserve(reserved, _RESERVE_BYTES)
                reserved += _RESERVE_BYTES
            self._log.write([self._piece], end)
            self._log.sync_data()
            end += len(self._piece)
            self._behind.release(groups)


def bare_bytes_per_s(directory: Path, bookies: int, seconds: float, *, fresh: bool = True) -> float:
    """Return how many bytes of entries a second all bookies together write, each twice."""
    found = [BareBookie(directory, number, GROUP_BYTES, fresh=fresh) for number in range(bookies)]
    if not fresh:
        for each in found:
            each.prepare(int(seconds * (1 << 30)))
    began = time.monotonic()
    for each in found:
        each.start()
    time.sleep(seconds)
    written = sum(each.groups for each in found) * GROUP_BYTES
    elapsed = time.monotonic() - began
    for each in found:
        each.stop()
    return written / elapsed
