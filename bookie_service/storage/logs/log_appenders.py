"""Appends the items of a flush to the entry logs of all ledger directories at once, with an appender for each
directory.

The items of a ledger go to the directory in which its index file usually is, so a ledger needs only one disk. They go
to another directory if that one is full, takes no writes, or is late (`disk_threads`), because an entry log takes any
entries.

What one directory wrote does not count before the whole flush is durable. If an item finds no place, all of it is
undone. A directory that was late undoes its part itself when its disk answers. Until then no position points to what it
wrote, and the memory that it writes from must not change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import numpy as np

from bkspark.wire.framing import LENGTH_BYTES, gather_i64
from bookie_service.storage.io.disk_threads import DiskWork
from bookie_service.storage.io.files import is_out_of_space, refuses_writes
from bookie_service.storage.logs.entry_log import EntryLogs
from bookie_service.storage.logs.log_appender import AppendOptions, EntryLogAppender


class FlushAppender(Protocol):
    """Writes the items of flushes to entry logs. For one thread at a time."""

    def write(self, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Write the items at memory[addresses[i]:][:sizes[i]] durably; return their positions, int64.

        Raises:
            OSError: no directory takes all of them. If disks refused writes, nothing was written.
        """

    @property
    def is_late(self) -> bool:
        """Whether a disk still writes items that other disks have taken over, or that are undone. For any thread."""

    def rotate(self) -> None:
        """Record that the index is durable for all logs except those that are still appended to."""

    def seal_idle(self) -> None:
        """Complete logs of ledgers without writes for a long time."""

    def seal(self) -> None:
        """Complete the current logs, durably. The next items go to new logs."""

    def close(self) -> None: ...


def flush_appender(
    logs: EntryLogs, options: AppendOptions, directories: Sequence[str], disks: DiskWork
) -> FlushAppender:
    """Return the appender that writes flushes to the ledger directories."""
    if len(directories) == 1:
        return EntryLogAppender(logs, options)
    return DirectoryAppenders(logs, options, directories, disks)


class AppendPart:
    """One directory's part of a flush. Either its thread finishes it, or the flush continues without it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        """Whether the thread or the flush has ended the part. Set once, by the first of them."""

    def ends(self) -> bool:
        """End the part; False: the other side has already ended it."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
            return not was_over


class DirectoryAppenders:
    """A `FlushAppender` for several directories."""

    def __init__(self, logs: EntryLogs, options: AppendOptions, directories: Sequence[str], disks: DiskWork) -> None:
        self._logs = logs
        self._directories = directories
        self._disks = disks
        self._seals_idle = options.log_per_ledger
        """Whether `seal_idle` ends logs: only if each ledger has a log of its own. Constant."""
        self._appenders = [EntryLogAppender(logs, options, directory=directory) for directory in directories]
        self._late: list[Future[Any]] = []
        """Work that the last callers did not wait for. Reduced by `_run`."""

    @property
    def is_late(self) -> bool:
        return any(not future.done() for future in self._late)

    def write(self, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        self._leave_full()
        write = _Write(self._directories, self._appenders, self._logs, self._disks, memory, addresses, sizes)
        try:
            write.run()
        except OSError as error:
            if refuses_writes(error):
                self._run(self._idle(), EntryLogAppender.rollback)
            raise
        finally:
            self._late += write.late
        for place in self._idle():
            self._appenders[place].settle()
        return write.positions

    def rotate(self) -> None:
        idle = self._idle()
        busy = {directory for place, directory in enumerate(self._directories) if place not in idle}
        self._logs.rotate_appended(set().union(*(self._appenders[place].active_log_ids for place in idle)), busy)

    def seal_idle(self) -> None:
        if self._seals_idle:
            self._run(self._idle(), EntryLogAppender.seal_idle)

    def seal(self) -> None:
        self._run(self._idle(), EntryLogAppender.seal)

    def close(self) -> None:
        for appender in self._appenders:
            appender.close()

    def _idle(self) -> list[int]:
        return [place for place in range(len(self._directories)) if not self._disks.is_busy(place)]

    def _leave_full(self) -> None:
        """Complete the logs of directories that are full, so that garbage collection may take them."""
        idle = self._idle()
        active = {place: self._appenders[place].active_log_ids for place in idle}
        self._run([place for place in idle if any(map(self._logs.should_leave, active[place]))], EntryLogAppender.seal)

    def _run(self, places: Sequence[int], work: Callable[[EntryLogAppender], None]) -> None:
        """Do some work with the appenders of directories that are not busy.

        Raises:
            OSError: the work of a directory failed, now or after it was late.
        """
        self._late += self._disks.run({place: partial(work, self._appenders[place]) for place in places}).values()
        over = [future for future in self._late if future.done()]
        self._late = [future for future in self._late if future not in over]
        for future in over:
            future.result()


class _Write:
    """One call of `DirectoryAppenders.write`."""

    def __init__(
        self,
        directories: Sequence[str],
        appenders: Sequence[EntryLogAppender],
        logs: EntryLogs,
        disks: DiskWork,
        memory: np.ndarray,
        addresses: np.ndarray,
        sizes: np.ndarray,
    ) -> None:
        self._directories = directories
        self._appenders = appenders
        self._logs = logs
        self._disks = disks
        self._memory = memory
        """The bytes in which the items are: item i is `_sizes[i]` bytes from `_addresses[i]` on."""
        self._addresses = addresses
        self._sizes = sizes
        self._ledger_ids = gather_i64(memory, addresses + LENGTH_BYTES)
        self.positions = np.zeros(len(addresses), np.int64)
        """The position of each item, filled as directories write. 0: not written yet."""
        self._refusals: dict[int, OSError] = {}
        """Errors of directories that took no writes, by number."""
        self._written: dict[int, list[np.ndarray]] = {}
        """The rows of the items that each directory wrote."""
        self.late: list[Future[Any]] = []
        """Parts that other directories have taken over."""

    def run(self) -> None:
        """Write all items durably. Raises OSError: a refusal if no directory is left, or any other error."""
        left = np.arange(len(self._addresses))
        while len(left):
            left = self._write(left, self._usable())

    def _usable(self) -> list[int]:
        """Return the directories to write to: those with room that have not refused and are not late."""
        while True:
            left = [place for place in range(len(self._directories)) if place not in self._refusals]
            idle = {self._directories[place] for place in left if not self._disks.is_busy(place)}
            if idle:
                with_room = self._logs.with_room(idle)
                return [place for place in left if self._directories[place] in with_room]
            if not left:
                # After a lack of space the flush can be repeated; after a failure of a disk it cannot.
                errors = self._refusals.values()
                raise next(filter(is_out_of_space, errors), next(iter(errors)))
            self._disks.wait_for_any(left)

    def _write(self, rows: np.ndarray, usable: Sequence[int]) -> np.ndarray:
        """Write items to some directories; return the rows that other directories must write."""
        shares = self._shares(rows, usable)
        parts = {place: AppendPart() for place in shares}
        futures = self._disks.run(
            {place: partial(self._write_part, place, share, parts[place]) for place, share in shares.items()}
        )
        left = []
        for place, share in shares.items():
            self._written.setdefault(place, []).append(share)
            if not futures[place].done() and parts[place].ends():
                self.late.append(futures[place])
                left += self._written.pop(place)
                continue
            try:
                self.positions[share] = futures[place].result()
            except OSError as error:
                if not refuses_writes(error):
                    raise
                self._refusals[place] = error
                self._logs.avoid(self._directories[place])
                left += self._written.pop(place)
        return np.sort(np.concatenate(left)) if left else np.empty(0, np.int64)

    def _shares(self, rows: np.ndarray, usable: Collection[int]) -> dict[int, np.ndarray]:
        """Return which rows each directory writes, in the given order."""
        count = len(self._directories)
        turns, places = np.divmod(self._ledger_ids[rows], count)
        # Ledgers of a directory that is left out are distributed over all others.
        substitute = np.array(sorted(usable))[turns % len(usable)]
        places = np.where(np.isin(places, list(usable)), places, substitute)
        return {place: rows[places == place] for place in np.unique(places).tolist()}

    def _write_part(self, place: int, rows: np.ndarray, part: AppendPart) -> np.ndarray:
        """Write items to one directory, on its thread; return their positions. Raises OSError: see `write`."""
        appender = self._appenders[place]
        try:
            positions = appender.append(self._memory, self._addresses[rows], self._sizes[rows])
            appender.sync_all()
        except OSError as error:
            # Also after a failed sync: entries that the log then lacks are written again, to another log.
            if refuses_writes(error):
                appender.rollback()
                if not part.ends():
                    return np.empty(0, np.int64)
            raise
        if not part.ends():
            # Another directory has these items, or the flush is over.
            appender.rollback()
        return positions
