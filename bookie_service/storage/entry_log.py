"""Entry logs: where entries stay. One thread appends sorted runs, another reads items back.

Log ids ascend and are never used twice, whatever `lastId` says: the highest of it and of the files found counts, and a
log is created only where no file of its name exists. A crash in the middle of an append leaves bytes that no index
position points to; nothing is ever appended behind them, because a new process begins a new log. A log that is full
is closed with a ledgers map; it is settled once the index is durable for all that it holds.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.wire.framing import LENGTH_BYTES, gather_i32, gather_i64
from bookie_service.disks import DiskLimits, directory_for_log
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK
from bookie_service.storage.files import LocalFiles, is_out_of_space
from bookie_service.storage.items import Items, contiguous_spans
from bookie_service.storage.log_writer import LogWriter
from bookie_service.storage.open_files import OpenFiles

ENTRY_BYTES_MIN = 16
_GAP_BYTES_MAX = 256 * 1024
"""Entries of one ledger that lie further apart than this are read one by one."""
_FIRST_READ_BYTES = 4096
ITEM_BYTES_MAX = 64 * 1024 * 1024
"""A length word above this is damage, not an entry."""


class EntryLogs:
    """Which entry logs exist, in which directory. Shared by all threads of the storage.

    A new log goes to the directory with the most free space (`disks.directory_for_log`).
    """

    def __init__(self, files: LocalFiles, directories: Sequence[str], limits: DiskLimits | None = None) -> None:
        """`directories`: the `current` directories of all ledger directories."""
        self.files = files
        self._directories = directories
        self._limits = limits or DiskLimits()
        self._directory_of: dict[int, str] = {}
        self._creating = threading.Lock()
        self._appended: set[int | None] = set()
        self._adopted: set[int] = set()
        self._full: frozenset[str] = frozenset()
        self._avoided: frozenset[str] = frozenset()
        highest = 0
        for directory in directories:
            for name in files.names(directory):
                log_id = log_format.parse_file_name(name)
                if log_id is not None:
                    self._directory_of[log_id] = directory
                    highest = max(highest, log_id)
            last_id_path = os.path.join(directory, log_format.LAST_ID_NAME)
            if files.exists(last_id_path):
                highest = max(highest, log_format.decode_last_id(files.read_all(last_id_path)) or 0)
        self._last_id = highest

    def path(self, log_id: int) -> str | None:
        """Return where a log lies, None when there is no such log."""
        directory = self._directory_of.get(log_id)
        return None if directory is None else os.path.join(directory, log_format.file_name(log_id))

    # ---- full disks ----

    def note_full(self, directories: frozenset[str]) -> None:
        """Remember which directories are full, as a look at the disks found; those avoided may be tried again."""
        self._full = directories
        self._avoided = frozenset()

    def avoid(self, log_id: int | None) -> bool:
        """Note that a log's directory had no space; return whether there is another one to try."""
        directory = None if log_id is None else self._directory_of.get(log_id)
        if directory is not None:
            self._avoided |= {directory}
        return directory is not None and len(self._avoided) < len(self._directories)

    def should_leave(self, log_id: int) -> bool:
        """Return whether the rest belongs into another log, because this one's directory is full and another is not."""
        return self._directory_of.get(log_id) in self._full and len(self._full) < len(self._directories)

    # ---- creating ----

    def create(self) -> LogWriter:
        """Create the next log, with its header written; it is unsettled.

        Raises:
            OSError: nothing was created.
        """
        with self._creating:
            log_id, directory, writer = self._create("")
            self._appended.add(log_id)
            self._directory_of[log_id] = directory
        return writer

    def create_temporary(self, suffix: str) -> LogWriter:
        """Create a log under its name and `suffix`, not yet one of the logs: `adopt` makes it one.

        Raises:
            OSError: nothing was created.
        """
        with self._creating:
            return self._create(suffix)[2]

    def file_path(self, log_id: int, suffix: str) -> str:
        """Return where the file of a log lies that is not one of the logs, or not any more."""
        name = log_format.file_name(log_id) + suffix
        paths = [os.path.join(directory, name) for directory in self._directories]
        return next(filter(self.files.exists, paths), paths[0])

    def adopt(self, log_id: int, suffix: str) -> None:
        """Give a temporary log its name, durably; it is unsettled. The file must be durable."""
        self._adopted.add(log_id)
        path = self.file_path(log_id, suffix)
        directory = os.path.dirname(path)
        self.files.rename(path, os.path.join(directory, log_format.file_name(log_id)))
        self.files.sync_directory(directory)
        self._directory_of[log_id] = directory

    def discard(self, log_id: int) -> None:
        """Remove a log that nothing points to yet."""
        path = self.path(log_id)
        if path is not None:
            self.forget(log_id)
            self._appended.discard(log_id)
            self.files.remove(path)

    def settle_appended(self, except_for: int | None) -> None:
        """Note that the index is durable for all created logs but the one that is still appended to."""
        self._appended &= {except_for}

    def settle_adopted(self, log_id: int) -> None:
        """Note that the index is durable for an adopted log."""
        self._adopted.discard(log_id)

    def settled(self) -> list[int]:
        """Return the logs that only compaction changes any more: all that the index will ever say of them, it says."""
        return sorted(set(self._directory_of) - self._appended - self._adopted)

    def forget(self, log_id: int) -> None:
        """Take a log out of the list; its file stays."""
        del self._directory_of[log_id]

    def _create(self, suffix: str) -> tuple[int, str, LogWriter]:
        """Create the next log in the best directory, or the next best while one has no space after all."""
        # A number is used once, also when creating its file failed in the middle.
        if self._last_id == log_format.LOG_ID_MAX:
            raise StorageDamaged(
                f"entry log {self._last_id:x} has the highest id there is, so none can follow: stop this bookie and "
                "remove lastId from its ledger directories if a wrong number stands there"
            )
        self._last_id += 1
        log_id = self._last_id
        left = [directory for directory in self._directories if directory not in self._avoided] or self._directories
        spaces = {directory: self.files.space(directory) for directory in left}
        while True:
            directory = directory_for_log(self._limits, spaces, log_id, self._full)
            try:
                return log_id, directory, self._create_in(directory, log_id, suffix)
            except OSError as error:
                del spaces[directory]
                if not is_out_of_space(error) or not spaces:
                    raise

    def _create_in(self, directory: str, log_id: int, suffix: str) -> LogWriter:
        path = os.path.join(directory, log_format.file_name(log_id) + suffix)
        file = self.files.create(path)
        try:
            file.write([log_format.encode_header(log_id)], 0)
            file.sync_data()
            self.files.sync_directory(directory)
            self.files.replace(os.path.join(directory, log_format.LAST_ID_NAME), log_format.encode_last_id(log_id))
        except OSError:
            file.close()
            # The disk may refuse this, too; the file is then a log without entries, which garbage collection removes.
            with contextlib.suppress(OSError):
                self.files.remove(path)
            raise
        return LogWriter(log_id, file)


class EntryLogAppender:
    """Appends items to the newest log; rolls when it would exceed `log_bytes_max`. For one thread at a time.

    After an OSError of `append` or `sync` either `rollback` is called, or the appender must not be used again.
    """

    def __init__(self, logs: EntryLogs, log_bytes_max: int, sync_bytes: int) -> None:
        """`sync_bytes`: how much is written between two syncs, so that the journal's syncs never wait for much more."""
        self._logs = logs
        self._log_bytes_max = log_bytes_max
        self._sync_bytes = sync_bytes
        self._log: LogWriter | None = None
        self._created: list[int] = []
        self._synced: tuple[int, int] | None = None
        """The log that was appended to at the last `sync`, and where it ended."""

    @property
    def log_id(self) -> int | None:
        """The log that the next item may go to, None when that will be a new one."""
        return None if self._log is None else self._log.log_id

    def append(self, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Write the items at memory[addresses[i]:][:sizes[i]] in this order; return their positions, int64.

        They are durable after `sync`.
        """
        positions = np.empty(len(addresses), np.int64)
        ledger_ids = gather_i64(memory, addresses + LENGTH_BYTES)
        done = 0
        while done < len(addresses):
            log = self._log_with_room(int(sizes[done]))
            ends = np.cumsum(sizes[done:]) + log.end
            # At least one item, also when a single one exceeds the limit of a whole log.
            count = max(1, int(ends.searchsorted(self._log_bytes_max, side="right")))
            ends = ends[:count]
            chosen = slice(done, done + count)
            positions[chosen] = (log.log_id << OFFSET_BITS) + ends - sizes[chosen] + LENGTH_BYTES
            log.count(ledger_ids[chosen], sizes[chosen])
            self._write(log, memory, addresses[chosen], sizes[chosen])
            done += count
        return positions

    def sync(self) -> None:
        """Make everything appended durable."""
        if self._log is not None:
            self._log.sync()
        self._note_synced()

    def rollback(self) -> None:
        """Take back what was appended since the last `sync`; the next item goes to a new log.

        Nothing may point to it yet. What the disk does not take back, garbage collection finds.
        """
        self.close()
        with contextlib.suppress(OSError):
            for log_id in self._created:
                self._logs.discard(log_id)
            if self._synced is not None:
                self._cut(*self._synced)
        self._note_synced()

    def seal(self) -> None:
        """Complete the present log, durably; the next item goes to a new one."""
        self._seal()
        self._note_synced()

    def _seal(self) -> None:
        if self._log is not None:
            self._log.seal(may_lack_map=True)
            self.close()

    def _note_synced(self) -> None:
        self._created = []
        self._synced = None if self._log is None else (self._log.log_id, self._log.end)

    def _cut(self, log_id: int, end: int) -> None:
        """Make a log end where it did, without a ledgers map: whoever needs to know what it holds scans it."""
        path = self._logs.path(log_id)
        assert path is not None, f"entry log {log_id:x} was appended to a moment ago"
        file = self._logs.files.open(path)
        try:
            # The header first: it must never name a map that is not there.
            file.write([log_format.encode_header(log_id)], 0)
            file.sync_data()
            file.truncate(end)
            file.sync_data()
        finally:
            file.close()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _log_with_room(self, size: int) -> LogWriter:
        log = self._log
        if log is not None and log.end > HEADER_BYTES:
            is_full = log.end + size > self._log_bytes_max
            if is_full or self._logs.should_leave(log.log_id):
                self._seal()
        if self._log is None:
            self._log = self._logs.create()
            self._created.append(self._log.log_id)
        return self._log

    def _write(self, log: LogWriter, memory: np.ndarray, addresses: np.ndarray, sizes: np.ndarray) -> None:
        view = memory.data
        buffers: list[memoryview] = []
        gathered = 0
        for start, end in contiguous_spans(addresses, sizes):
            for piece in range(start, end, self._sync_bytes):
                buffers.append(view[piece : min(end, piece + self._sync_bytes)])
                gathered += len(buffers[-1])
                if gathered >= self._sync_bytes:
                    log.write(buffers)
                    log.sync()
                    buffers, gathered = [], 0
        if buffers:
            log.write(buffers)


class EntryLogReader:
    """Reads runs of items back and checks that they are what the index says. For one thread."""

    def __init__(self, logs: EntryLogs, open_files_max: int) -> None:
        self._logs = logs
        self._open = OpenFiles(logs.files, open_files_max)

    def read(self, ledger_id: int, first_entry: int, positions: np.ndarray, bytes_max: int) -> Items:
        """Return a run of entries from `first_entry` on, whose positions (none 0) are given.

        At least one entry, then as many as lie near each other in one log and as `bytes_max` bytes of items allow.

        Raises:
            StorageDamaged: the first position does not point to that entry.
            OSError: the log cannot be read.
        """
        positions = _nearby(positions, bytes_max)
        items_at = (positions & OFFSET_MASK) - LENGTH_BYTES
        path = self._logs.path(int(positions[0]) >> OFFSET_BITS)
        if path is None:
            raise StorageDamaged(
                f"ledger {ledger_id} entry {first_entry}: the index names entry log {positions[0] >> OFFSET_BITS:x}, "
                "which does not exist",
                ledger_id=ledger_id,
                entry_id=first_entry,
            )
        data = self._read_span(path, items_at)
        starts = items_at - items_at[0]
        sizes = _checked_sizes(data, starts, ledger_id, first_entry)
        if not len(sizes):
            raise StorageDamaged(
                f"{path} offset {items_at[0]}: not entry {first_entry} of ledger {ledger_id}, as the index says",
                ledger_id=ledger_id,
                entry_id=first_entry,
            )
        taken = max(1, int(np.cumsum(sizes).searchsorted(bytes_max, side="right")))
        starts, sizes = starts[:taken], sizes[:taken]
        view = memoryview(data)
        spans = [view[start:end] for start, end in contiguous_spans(starts, sizes)]
        return Items(first_entry, spans[0] if len(spans) == 1 else b"".join(spans), sizes)

    def forget(self, path: str) -> None:
        """Let go of a log that is about to be removed."""
        self._open.forget(path)

    def close(self) -> None:
        self._open.close()

    def _read_span(self, path: str, items_at: np.ndarray) -> bytes:
        """Return the log's bytes from the first item to the end of the last, or not quite when that one is long."""
        file = self._open.get(path)
        first = int(items_at[0])
        if len(items_at) > 1:
            # Entries of a ledger mostly have one size, so the last is taken to be as long as the one before it.
            return file.read(int(2 * items_at[-1] - items_at[-2]) - first, first)
        data = file.read(_FIRST_READ_BYTES, first)
        size = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
        if len(data) < size <= ITEM_BYTES_MAX:
            data = file.read(size, first)
        return data


def _nearby(positions: np.ndarray, bytes_max: int) -> np.ndarray:
    """Return the leading positions that one read serves: one log, ascending, no wide gaps, within `bytes_max`."""
    if len(positions) == 1:
        return positions
    steps = np.diff(positions)
    near = (steps > 0) & (steps <= _GAP_BYTES_MAX) & (positions[1:] - positions[0] <= bytes_max)
    return positions if near.all() else positions[: int(np.argmin(near)) + 1]


def _checked_sizes(data: bytes, starts: np.ndarray, ledger_id: int, first_entry: int) -> np.ndarray:
    """Return the item sizes of the leading items that are whole in `data` and carry the right ids, int64."""
    octets = np.frombuffer(data, np.uint8)
    starts = starts[starts <= len(data) - LENGTH_BYTES - ENTRY_BYTES_MIN]
    if not len(starts):
        return starts
    lengths = gather_i32(octets, starts).astype(np.int64)
    entry_ids = np.arange(first_entry, first_entry + len(starts))
    right = (
        (lengths >= ENTRY_BYTES_MIN)
        & (starts + LENGTH_BYTES + lengths <= len(data))
        & (gather_i64(octets, starts + LENGTH_BYTES) == ledger_id)
        & (gather_i64(octets, starts + LENGTH_BYTES + 8) == entry_ids)
    )
    count = len(starts) if right.all() else int(np.argmin(right))
    return lengths[:count] + LENGTH_BYTES
