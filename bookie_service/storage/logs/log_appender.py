"""Appends items to entry logs: to one log for all ledgers, or to one log for each ledger.

A flush appends, then syncs, and only then the index points to what it wrote. If a disk has no space in between, the
append is rolled back. So the same flush can go to another directory (`log_appenders`), or be repeated when there is
space.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bkspark.options import BYTES_MAX, COUNT_MAX, YEARS_S, bounded, check
from bkspark.wire.framing import LENGTH_BYTES, gather_i64
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES, LOG_BYTES_MAX, OFFSET_BITS
from bookie_service.storage.io.files import is_disk_failure, refuses_writes
from bookie_service.storage.io.framed_entries import contiguous_spans, rows_by_ledger
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_writer import EntryLogWriter

_SHARED = -1
"""The owner of the log that all ledgers share."""


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """How entry logs grow, in bytes.

    log_bytes_max: the size of a log, unless a single item is larger.
    sync_bytes: how many bytes are written between two syncs, so that the journal's syncs never wait for much more.
    log_per_ledger: a ledger that is written gets a log of its own, up to `active_logs_max` logs at a time.
    idle_s: such a log is completed when nothing was written to it for this time. This is checked when a flush ends.
    reserves: space is allocated in the file system before it is written.
    """

    log_bytes_max: int = bounded(1024 * 1024 * 1024, 1, LOG_BYTES_MAX, "bytes")
    sync_bytes: int = bounded(2 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    log_per_ledger: bool = False
    active_logs_max: int = bounded(500, 1, COUNT_MAX)
    idle_s: float = bounded(300.0, 0.0, YEARS_S, "seconds")
    reserves: bool = True

    def __post_init__(self) -> None:
        check(self)


class EntryLogAppender:
    """Appends items to the newest log, or to the newest log of their ledger. For one thread at a time.

    After an OSError of `append` or `sync`, `rollback` must be called, or the appender must not be used again.
    """

    def __init__(
        self,
        logs: EntryLogs,
        options: AppendOptions,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        directory: str | None = None,
    ) -> None:
        """`directory`: where new logs are created; None: `logs` chooses."""
        self._logs = logs
        self._directory = directory
        self._options = options
        self._clock_s = clock_s
        self._active: OrderedDict[int, tuple[EntryLogWriter, float]] = OrderedDict()
        """Logs, with the time of their last write, by ledger id or `_SHARED`; the least recently written first."""
        self._unsynced: dict[int, EntryLogWriter] = {}
        """Logs with bytes that are not synced, by id."""
        self._created: set[int] = set()
        """Ids of logs that were created since the last `settle`."""
        self._synced_ends: dict[int, int] = {}
        """The other logs written since the last `settle`: where each ended at that time, by id."""

    is_late = False
    """False: the caller waits for the disk."""

    @property
    def active_log_ids(self) -> set[int]:
        """The logs that may get the next item, unless it needs a new one."""
        return {log.log_id for log, _ in self._active.values()}

    def rotate(self) -> None:
        """Record that the index is durable for all logs except those that are still appended to."""
        self._logs.rotate_appended(self.active_log_ids)

    def write(self, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Do `append`, then `sync`. Raises OSError: if the disk takes no writes, nothing was written."""
        try:
            positions = self.append(memory, addresses, sizes)
            self.sync()
        except OSError as error:
            # Also after a failed sync: entries that the log may lack then are written again, to another log.
            if refuses_writes(error):
                self.rollback()
            raise
        return positions

    def append(self, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Write the items at memory[addresses[i]:][:sizes[i]], in this order within a log; return their positions.

        The positions are int64. The items are durable after `sync`.
        """
        ledger_ids = gather_i64(memory, addresses + LENGTH_BYTES)
        if not self._options.log_per_ledger:
            return self._append(_SHARED, memory, addresses, sizes, ledger_ids)
        positions = np.empty(len(addresses), np.int64)
        for ledger_id, rows in rows_by_ledger(ledger_ids):
            positions[rows] = self._append(ledger_id, memory, addresses[rows], sizes[rows], ledger_ids[rows])
        return positions

    def _append(
        self, owner: int, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray, ledger_ids: np.ndarray
    ) -> np.ndarray:
        positions = np.empty(len(addresses), np.int64)
        done = 0
        while done < len(addresses):
            log = self._log_with_room(owner, int(sizes[done]))
            ends = np.cumsum(sizes[done:]) + log.end
            # At least one item, even if it exceeds the size of a whole log.
            count = max(1, int(ends.searchsorted(self._options.log_bytes_max, side="right")))
            ends = ends[:count]
            chosen = slice(done, done + count)
            positions[chosen] = (log.log_id << OFFSET_BITS) + ends - sizes[chosen] + LENGTH_BYTES
            log.count(ledger_ids[chosen], sizes[chosen])
            self._write(log, memory, addresses[chosen], sizes[chosen])
            done += count
        return positions

    def sync(self) -> None:
        """Make everything appended durable. `rollback` no longer undoes it."""
        self.sync_all()
        self.settle()

    def sync_all(self) -> None:
        """Make everything appended durable. Until `settle`, `rollback` can still undo it."""
        for log in self._unsynced.values():
            log.sync()

    def rollback(self) -> None:
        """Undo the appends since the last `settle`. The next items go to new logs.

        No position may point to them yet. If the disk cannot undo them, garbage collection removes them.
        """
        self.close()
        for log_id in self._created:
            with contextlib.suppress(OSError):
                self._logs.discard(log_id)
        for log_id, end in self._synced_ends.items():
            with contextlib.suppress(OSError):
                self._cut(log_id, end)
        self.settle()

    def seal_idle(self) -> None:
        """Complete logs of ledgers that were not written for a long time. Everything appended must be synced."""
        if self._options.log_per_ledger:
            idle_since_s = self._clock_s() - self._options.idle_s
            while self._active and next(iter(self._active.values()))[1] <= idle_since_s:
                self._seal(next(iter(self._active)))

    def seal(self) -> None:
        """Complete the current logs, durably. The next items go to new logs."""
        while self._active:
            self._seal(next(iter(self._active)))
        self.settle()

    def close(self) -> None:
        for log, _ in self._active.values():
            log.close()
        self._active.clear()

    def settle(self) -> None:
        """Keep everything that is synced: a later `rollback` does not undo it."""
        self._unsynced.clear()
        self._created.clear()
        self._synced_ends.clear()

    def _seal(self, owner: int) -> None:
        log, _ = self._active[owner]
        try:
            log.seal(may_lack_map=True)
        except OSError as error:
            # Durable entries need no map: a log without one is scanned. On a failing disk no map can be written.
            if log.log_id in self._unsynced or not is_disk_failure(error):
                raise
        self._unsynced.pop(log.log_id, None)
        del self._active[owner]
        log.close()

    def _cut(self, log_id: int, end: int) -> None:
        """Truncate a log to its previous end, without a ledgers map. Its contents are found by a scan."""
        path = self._logs.path(log_id)
        assert path is not None, f"entry log {log_id:x} was appended to a moment ago"
        file = self._logs.files.open(path)
        try:
            # The header first, because it must never name a missing map.
            file.write([log_format.encode_header(log_id)], 0)
            file.sync_data()
            file.truncate(end)
            file.sync_data()
        finally:
            file.close()

    def _log_with_room(self, owner: int, size: int) -> EntryLogWriter:
        """Return the owner's log, or a new one if that is full, and record that it is written to."""
        if owner in self._active:
            log, _ = self._active[owner]
            is_full = log.end + size > self._options.log_bytes_max
            if log.end > HEADER_BYTES and (is_full or self._logs.should_leave(log.log_id)):
                self._seal(owner)
        if owner not in self._active:
            if len(self._active) >= self._options.active_logs_max:
                self._seal(next(iter(self._active)))
            log = self._logs.create(self._directory)
            self._created.add(log.log_id)
        self._active[owner] = log, self._clock_s()
        self._active.move_to_end(owner)
        if log.log_id not in self._created:
            self._synced_ends.setdefault(log.log_id, log.end)
        return log

    def _write(self, log: EntryLogWriter, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> None:
        view = memory.data
        sync_bytes = self._options.sync_bytes
        self._unsynced[log.log_id] = log
        buffers: list[memoryview] = []
        gathered = 0
        for start, end in contiguous_spans(addresses, sizes):
            for piece in range(start, end, sync_bytes):
                buffers.append(view[piece : min(end, piece + sync_bytes)])
                gathered += len(buffers[-1])
                if gathered >= sync_bytes:
                    log.write(buffers)
                    log.sync()
                    buffers, gathered = [], 0
        if buffers:
            log.write(buffers)
