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
from bookie_service.formats import entry_log as log_format
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK
from bookie_service.storage.files import LocalFiles
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
    """Which entry logs exist, in which directory. Shared by all threads of the storage."""

    def __init__(self, files: LocalFiles, directories: Sequence[str]) -> None:
        """`directories`: the `current` directories; log n lies in the one that had its turn (n mod their number)."""
        self.files = files
        self._directories = directories
        self._directory_of: dict[int, str] = {}
        self._creating = threading.Lock()
        self._appended: set[int | None] = set()
        self._adopted: set[int] = set()
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

    def create(self) -> LogWriter:
        """Create the next log, with its header written; it is unsettled."""
        with self._creating:
            log_id, writer = self._create("")
            self._appended.add(log_id)
            self._directory_of[log_id] = self._directory(log_id)
        return writer

    def create_temporary(self, suffix: str) -> LogWriter:
        """Create a log under its name and `suffix`, not yet one of the logs: `adopt` makes it one.

        Raises:
            OSError: nothing was created.
        """
        with self._creating:
            try:
                return self._create(suffix)[1]
            except OSError:
                # The number is given again, so what was begun must not be in the way.
                with contextlib.suppress(OSError):
                    self.files.remove(self.temporary_path(self._last_id + 1, suffix))
                raise

    def temporary_path(self, log_id: int, suffix: str) -> str:
        return os.path.join(self._directory(log_id), log_format.file_name(log_id) + suffix)

    def adopt(self, log_id: int, suffix: str) -> None:
        """Give a temporary log its name, durably; it is unsettled. The file must be durable."""
        self._adopted.add(log_id)
        self.files.rename(self.temporary_path(log_id, suffix), self.temporary_path(log_id, ""))
        self.files.sync_directory(self._directory(log_id))
        self._directory_of[log_id] = self._directory(log_id)

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

    def _directory(self, log_id: int) -> str:
        return self._directories[log_id % len(self._directories)]

    def _create(self, suffix: str) -> tuple[int, LogWriter]:
        log_id = self._last_id + 1
        directory = self._directory(log_id)
        file = self.files.create(self.temporary_path(log_id, suffix))
        file.write([log_format.encode_header(log_id)], 0)
        file.sync_data()
        self.files.sync_directory(directory)
        self.files.replace(os.path.join(directory, log_format.LAST_ID_NAME), log_format.encode_last_id(log_id))
        self._last_id = log_id
        return log_id, LogWriter(log_id, file)


class EntryLogAppender:
    """Appends items to the newest log; rolls when it would exceed `log_bytes_max`. For one thread at a time.

    After an OSError the log's end is unknown and the appender must not be used again.
    """

    def __init__(self, logs: EntryLogs, log_bytes_max: int, sync_bytes: int) -> None:
        """`sync_bytes`: how much is written between two syncs, so that the journal's syncs never wait for much more."""
        self._logs = logs
        self._log_bytes_max = log_bytes_max
        self._sync_bytes = sync_bytes
        self._log: LogWriter | None = None

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

    def seal(self) -> None:
        """Complete the present log, durably; the next item goes to a new one."""
        if self._log is not None:
            self._log.seal()
            self.close()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _log_with_room(self, size: int) -> LogWriter:
        if self._log is not None and self._log.end + size > self._log_bytes_max and self._log.end > HEADER_BYTES:
            self.seal()
        if self._log is None:
            self._log = self._logs.create()
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
