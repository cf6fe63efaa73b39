"""Compaction of entry logs after ledgers were deleted: moves the live entries of a log into a new log.

Replacing a log is a transaction. Each step is durable before the next one:

1. the entries that the index points to are copied to a new log with a temporary name, including its ledgers map;
2. the intent (`formats.compaction`) is written;
3. the new log gets its name, and the index points to it, entry by entry, except for entries that a flush wrote again;
4. the old log is removed (the event loop has stopped using it), and then the intent.

Step 3 may find the disk full. Then the index points partly to one log and partly to the other, and both stay. The step
is repeated when there may be space; entries are served meanwhile. After a crash `recover` repeats it.

If a disk fails in step 3, both logs and the intent stay. If the disk of the intent takes no changes in step 4, the
intent stays. It does no harm: the next start repeats the steps, and the intent of another compaction replaces it.

A log that may hold entries of a ledger in doubt is not compacted. Such a ledger is in limbo, or its index is lost or
cut: its entries without a position count, too, until the index is rebuilt from the logs or the ledger is repaired.

A crash before the intent leaves a temporary file, which `recover` removes. After a later crash `recover` repeats the
rest; it runs before replay. So every entry always has a durable copy, and no entry is copied twice.

For one thread that is neither the event loop nor the checkpoint thread. Several threads may do step 1.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.errors import StorageDamaged
from bookie_service.formats import compaction as intent_format
from bookie_service.formats.compaction import SUFFIX, Intent
from bookie_service.formats.entry_log import HEADER_BYTES, OFFSET_BITS, OFFSET_MASK
from bookie_service.storage.index.index import LedgerUpdate
from bookie_service.storage.io.background import with_pauses
from bookie_service.storage.io.files import LocalFiles, is_disk_failure, is_out_of_space, refuses_writes
from bookie_service.storage.io.framed_entries import contiguous_spans, ledger_sums, rows_by_ledger
from bookie_service.storage.ledgers.interface import IndexView, LedgerStorage
from bookie_service.storage.logs.log_reader import EntryLogReader
from bookie_service.storage.logs.log_scan import LogScan, LogWindow, incomplete, live_rows, stored_positions
from bookie_service.storage.logs.log_writer import EntryLogWriter

logger = logging.getLogger(__name__)

_OPEN_FILES_MAX = 64
_LEDGERS_PER_MOVE = 128
"""How many index files one move changes while flushes wait for it."""
_ROWS_PER_MOVE = 64 * 1024
SYNC_BYTES = 2 * 1024 * 1024
OUTSTANDING_MAX = 100_000

_Group = tuple[int, slice | np.ndarray]
"""(ledger id, its rows). See `rows_by_ledger`."""

Pace = Callable[[int, int], None]
"""Called with (entries, bytes) that were copied. It waits as the limits require, and raises to end the work."""


class LogInDoubt(Exception):
    """A log must not be compacted, because it may hold entries without a position of a ledger in doubt."""


class CompactionBlocked(Exception):
    """A disk fails, so that a compaction cannot be finished. Both logs stay, and positions lead to whole entries."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The contents of entry log `log_id`, of which `log_bytes` precede its map.

    ledger_ids[i] has ledger_bytes[i] bytes of records.
    """

    log_id: int
    log_bytes: int
    ledger_ids: np.ndarray
    ledger_bytes: np.ndarray


class Compactor:
    """Surveys and rewrites the rotated logs of one store."""

    def __init__(self, files: LocalFiles, store: LedgerStorage, directories: Sequence[str]) -> None:
        """`directories`: the `current` directories of the store."""
        self._files = files
        self._store = store
        self._directories = directories
        self._intent_path = os.path.join(directories[0], intent_format.FILE_NAME)
        self._scanned: dict[int, LogFacts] = {}
        """The contents of logs without a ledgers map, by log id, so that they are scanned only once."""
        self.unfinished: Intent | None = None
        """A compaction whose step 3 found no space. Both logs stay until `finish` is repeated, and no other log is
        copied before. None: there is none."""

    # ---- what a log holds ----

    def facts(self, log_id: int, pace: Pace) -> LogFacts:
        """Return the contents of a rotated log, from its ledgers map or, if it has no whole map, from the index.

        For a ledger in doubt all entries in the log count.

        Raises:
            LogInDoubt: unreadable bytes may belong to a ledger in doubt.
            StorageDamaged: the contents are unknown, and the log must be kept.
            OSError: the log or the index cannot be read.
        """
        if log_id in self._scanned:
            return self._scanned[log_id]
        with self._reading(log_id) as (scan, index, path):
            if scan.ledgers_map is not None:
                return LogFacts(log_id, scan.items_end - HEADER_BYTES, *scan.ledgers_map)
            ledger_ids = ledger_bytes = np.empty(0, np.int64)
            is_settled = True
            for window in scan:
                live = live_rows(window, index)
                if not live.all():
                    doubtful = self._store.in_doubt(np.unique(window.ledger_ids[~live]))
                    is_settled = is_settled and not len(doubtful)
                    live |= np.isin(window.ledger_ids, doubtful)
                ledger_ids, ledger_bytes = ledger_sums(
                    np.concatenate([ledger_ids, window.ledger_ids[live]]),
                    np.concatenate([ledger_bytes, window.sizes[live]]),
                )
                pace(0, 0)
            if scan.end < scan.size and self._points_after(log_id, scan.end, index, pace):
                raise incomplete(scan, path)
            if scan.end < scan.size and self._store.any_in_doubt():
                raise LogInDoubt(f"no entry begins at offset {scan.end} of {path}, and entries of a ledger may follow")
        facts = LogFacts(log_id, max(0, scan.size - HEADER_BYTES), ledger_ids, ledger_bytes)
        if is_settled:
            self._scanned[log_id] = facts
        return facts

    def _points_after(self, log_id: int, offset: int, index: IndexView, pace: Pace) -> bool:
        """Return whether any position points into a log at `offset` or later. Raises LogInDoubt if the index of some
        ledgers cannot be read."""
        if self._store.index.has_hidden:
            raise LogInDoubt(
                f"no entry begins at offset {offset} of entry log {log_id:x}, and the disk of an index fails"
            )
        for ledger_id in self._store.index.ledger_ids().tolist():
            for _, positions in index.extents(ledger_id):
                if bool(((positions >> OFFSET_BITS == log_id) & (positions & OFFSET_MASK >= offset)).any()):
                    return True
            pace(0, 0)
        return False

    # ---- rewriting ----

    def rewrite(self, log_id: int, pace: Pace, outstanding_max: int = OUTSTANDING_MAX) -> int | None:
        """Do step 1; return the id of the new log, or None if nothing in the log counts any more.

        For any thread; several logs may be copied at the same time. `outstanding_max`: how many entries are copied
        between two syncs.

        Raises:
            LogInDoubt: a ledger in the log is in doubt. Nothing is changed.
            StorageDamaged: the log is not whole, and must be kept. Nothing is changed.
            OSError: a file could not be read or written. Nothing is changed.
        """
        writer: EntryLogWriter | None = None
        outstanding = 0
        try:
            with self._reading(log_id) as (scan, index, path):
                seen = [np.empty(0, np.int64)] * 2
                for window in scan:
                    seen = list(
                        ledger_sums(*map(np.concatenate, zip(seen, (window.ledger_ids, window.sizes), strict=True)))
                    )
                    live = live_rows(window, index)
                    self._check_not_in_doubt(path, window.ledger_ids)
                    if live.any():
                        writer = writer or self._store.logs.create_temporary(SUFFIX)
                        _append(writer, window, live)
                        outstanding += int(live.sum())
                        if outstanding >= outstanding_max:
                            writer.sync()
                            outstanding = 0
                    pace(int(live.sum()), int(window.sizes[live].sum()))
                self._check_whole(scan, path, seen, index, pace)
            if writer is None:
                return None
            writer.seal()
        except BaseException:
            if writer is not None:
                writer.close()
                self.abandon(writer.log_id)
            raise
        writer.close()
        return writer.log_id

    def intend(self, new_id: int, old_id: int) -> Intent:
        """Do step 2 for a log and the copy that `rewrite` made of it.

        Raises:
            OSError: the intent could not be written; the copy is gone.
        """
        assert self.unfinished is None, "its intent would be overwritten"
        intent = Intent(new_id, old_id)
        try:
            self._files.replace(self._intent_path, intent_format.encode(intent))
        except BaseException:
            # An intent that reached the disk nevertheless names a missing log, and `recover` skips it.
            self.abandon(new_id)
            raise
        return intent

    def _check_not_in_doubt(self, path: str, ledger_ids: np.ndarray) -> None:
        doubtful = self._store.in_doubt(np.unique(ledger_ids))
        if len(doubtful):
            raise LogInDoubt(
                f"ledger {doubtful[0]}, which has entries in {path}, is in limbo, or its index is lost or on a disk "
                "that fails"
            )

    def _check_whole(self, scan: LogScan, path: str, seen: Sequence[np.ndarray], index: IndexView, pace: Pace) -> None:
        """Raise StorageDamaged unless all contents of the log were seen."""
        if scan.ledgers_map is None:
            if scan.end < scan.size and self._points_after(scan.log_id, scan.end, index, pace):
                raise incomplete(scan, path)
        elif scan.end != scan.items_end:
            raise incomplete(scan, path)
        elif not all(map(np.array_equal, seen, scan.ledgers_map)):
            raise StorageDamaged(
                f"{path}: the ledgers of its entries are not those of its ledgers map, so ids in it are damaged; the "
                f"log is kept as it is. Look with `bkspark dump entry-log {path}`"
            )

    def finish(self, intent: Intent, pace: Pace) -> None:
        """Do step 3: let the index point to the new log, durably. It may be repeated.

        Raises:
            StorageDamaged: the new log is not whole, and both logs must be kept.
            CompactionBlocked: a disk fails, and both logs must be kept.
            OSError: the index could not be written. If there was no space, or a disk is late (`files.may_be_repeated`),
                positions lead to both logs, each to a whole entry, and the step can be repeated: it is `unfinished`.
                After any other error `recover` must run before anything else uses the store.
        """
        self.unfinished = intent
        try:
            self._finish(intent, pace)
        except (StorageDamaged, CompactionBlocked):
            self.unfinished = None
            raise
        self.unfinished = None

    def _finish(self, intent: Intent, pace: Pace) -> None:
        left: list[str] = []
        """Why ledgers still point to the old log."""
        with contextlib.ExitStack() as held:
            with _blocked_by_disk():
                if self._store.logs.path(intent.new_id) is None:
                    self._store.logs.adopt(intent.new_id, SUFFIX)
                scan, index, path = held.enter_context(self._reading(intent.new_id))
            gathered: list[np.ndarray] = []
            for window in _blocked_scan(scan):
                # Without the bytes of the window, which may be many.
                gathered.append(np.stack((window.ledger_ids, window.entry_ids, window.positions)))
                if sum(each.shape[1] for each in gathered) >= _ROWS_PER_MOVE:
                    left += self._move(intent, np.concatenate(gathered, axis=1), index)
                    gathered = []
                pace(0, 0)
            if gathered:
                left += self._move(intent, np.concatenate(gathered, axis=1), index)
            if scan.ledgers_map is None or scan.end != scan.items_end:
                raise incomplete(scan, path)
        self._store.logs.rotate_adopted(intent.new_id)
        if left:
            raise CompactionBlocked(left[0])

    def _move(self, intent: Intent, moved: np.ndarray, index: IndexView) -> list[str]:
        """Move entries, except those of ledgers whose index cannot be read; return the errors of these.

        `moved` has three rows: ledger ids, entry ids, positions in the new log.
        """
        ledger_ids, entry_ids, positions = moved
        every = np.arange(len(ledger_ids))
        left = []
        for groups in _few_at_a_time(collections.deque(rows_by_ledger(ledger_ids))):
            with self._store.writing:
                updates = []
                for ledger_id, of_ledger in with_pauses(groups):
                    try:
                        with _blocked_by_disk():
                            rows = self._replaced_rows(intent, ledger_id, entry_ids, every[of_ledger], index)
                    except CompactionBlocked as blocked:
                        left.append(str(blocked))
                    else:
                        updates.append(LedgerUpdate(ledger_id, None, entry_ids[rows], positions[rows]))
                self._store.move(updates)
                left += [
                    f"ledger {update.ledger_id}: the disk with its index fails"
                    for update in updates
                    if self._store.index.is_hidden(update.ledger_id)
                ]
        return left

    def _replaced_rows(
        self, intent: Intent, ledger_id: int, entry_ids: np.ndarray, rows: np.ndarray, index: IndexView
    ) -> np.ndarray:
        """Return those rows of a ledger whose positions are replaced, in the order of their entry ids."""
        if not self._store.index.has(ledger_id):
            return rows[:0]
        rows = rows[np.argsort(entry_ids[rows], kind="stable")]
        stored = stored_positions(index, ledger_id, entry_ids[rows])
        return rows[self._is_replaced(intent, ledger_id, entry_ids[rows], stored)]

    def _is_replaced(self, intent: Intent, ledger_id: int, entry_ids: np.ndarray, stored: np.ndarray) -> np.ndarray:
        """Return which stored positions are replaced by those in the new log, bool each.

        Positions into the old log are replaced, and so are those that do not lead to their entry, because a crash has
        torn them. Positions into the new log are written again, because a process that was killed may not have synced
        them. All other positions are newer.
        """
        logs = stored >> OFFSET_BITS
        replaced = (logs == intent.old_id) | (logs == intent.new_id) | (stored == 0)
        others = np.flatnonzero(~replaced)
        reader = EntryLogReader(self._store.logs, _OPEN_FILES_MAX)
        try:
            for row in others.tolist():
                try:
                    reader.read(ledger_id, int(entry_ids[row]), stored[row : row + 1], 0)
                except StorageDamaged:
                    replaced[row] = True
        finally:
            reader.close()
        return replaced

    def remove(self, log_id: int) -> None:
        """Remove the file of a log that the store has forgotten, durably."""
        self._scanned.pop(log_id, None)
        path = self._store.logs.file_path(log_id, "")
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(path)
        self._files.sync_directory(os.path.dirname(path))

    def forget_intent(self) -> None:
        """Do the end of step 4. If its disk takes no writes, the intent stays."""
        try:
            if self._files.exists(self._intent_path):
                self._files.remove(self._intent_path)
                self._files.sync_directory(os.path.dirname(self._intent_path))
        except OSError as error:
            if not refuses_writes(error):
                raise
            logger.warning("%s stays until the next compaction or the next start: %s", self._intent_path, error)

    # ---- after a crash ----

    def recover(self) -> list[str]:
        """Finish interrupted compactions, and remove files of unfinished ones; return lines for the operator.

        A compaction that cannot be finished without space is `unfinished`; the next garbage collection tries again.

        Raises:
            OSError: a file could not be read or written; the store must not be used.
            StorageDamaged: the intent has a later version.
        """
        try:
            intent = self._read_intent()
        except OSError as error:
            if not is_disk_failure(error) or len(self._directories) == 1:
                raise
            # It may name the temporary file of a copy, so that these stay, too.
            return [f"{self._intent_path} cannot be read ({error.strerror}): a later start finishes the compaction"]
        notices = []
        if intent is not None:
            try:
                self._finish_again(intent)
            except StorageDamaged as error:
                # Positions may point into both logs, so both stay.
                notices.append(f"the compaction of entry log {intent.old_id:x} could not be finished: {error}")
            except CompactionBlocked as blocked:
                notices.append(f"a later start finishes the compaction of entry log {intent.old_id:x}: {blocked}")
                return notices
            if self.unfinished is not None:
                # As while serving. Nothing is removed, because the new log may still have its temporary name.
                notices.append(f"entry log {intent.old_id:x} stays beside its copy until there is space for the index")
                return notices
        self._remove_copies()
        self.forget_intent()
        return notices

    def _remove_copies(self) -> None:
        """Remove the files of compactions without an intent."""
        for directory in self._directories:
            try:
                unfinished = [name for name in self._files.names(directory) if name.endswith(SUFFIX)]
                for name in unfinished:
                    self._files.remove(os.path.join(directory, name))
            except OSError as error:
                # The start continues without the data of this disk; the copies wait for a later start.
                if not is_disk_failure(error):
                    raise

    def _read_intent(self) -> Intent | None:
        if not self._files.exists(self._intent_path):
            return None
        try:
            return intent_format.decode(self._files.read_all(self._intent_path))
        except ValueError as error:
            raise StorageDamaged(f"{self._intent_path}: {error}") from error

    def _finish_again(self, intent: Intent) -> None:
        logs = self._store.logs
        with _blocked_by_disk():
            path = logs.path(intent.new_id) or logs.file_path(intent.new_id, SUFFIX)
            if not self._files.exists(path):
                raise StorageDamaged(f"the new log {path} is missing")
            # A process that was killed leaves files and names that exist, but are not durable yet.
            self._sync(path)
        try:
            self.finish(intent, _without_limits)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            return
        # The old log may already be removed.
        self._store.forget_log(intent.old_id)
        try:
            self.remove(intent.old_id)
        except OSError as error:
            # Nothing points to it. Garbage collection finds it after the next start.
            if not is_disk_failure(error):
                raise

    def _sync(self, path: str) -> None:
        file = self._files.open(path)
        try:
            file.sync_data()
        finally:
            file.close()
        self._files.sync_directory(os.path.dirname(path))

    def abandon(self, new_id: int) -> None:
        """Remove a copy that `rewrite` made."""
        # If the disk refuses this, too, the next start removes the copy.
        with contextlib.suppress(OSError):
            self._files.remove(self._store.logs.file_path(new_id, SUFFIX))

    @contextlib.contextmanager
    def _reading(self, log_id: int) -> Iterator[tuple[LogScan, IndexView, str]]:
        """Open a log for a scan, and a view of the index for this thread."""
        path = self._store.logs.path(log_id)
        assert path is not None, f"entry log {log_id:x} is not a rotated one"
        index = self._store.index.view(_OPEN_FILES_MAX)
        file = self._files.open(path)
        try:
            yield LogScan(file, log_id), index, path
        finally:
            file.close()
            index.close()


@contextlib.contextmanager
def _blocked_by_disk() -> Iterator[None]:
    """Turn the failure of a disk into CompactionBlocked."""
    try:
        yield
    except OSError as error:
        if not is_disk_failure(error):
            raise
        raise CompactionBlocked(f"{error.filename}: {error.strerror}") from error


def _blocked_scan(scan: LogScan) -> Iterator[LogWindow]:
    """Yield the windows of a log. Raises CompactionBlocked if its disk fails."""
    windows = iter(scan)
    while True:
        with _blocked_by_disk():
            window = next(windows, None)
        if window is None:
            return
        yield window


def _few_at_a_time(groups: collections.deque[_Group]) -> Iterator[list[_Group]]:
    """Yield all groups, `_LEDGERS_PER_MOVE` at a time. They leave the queue meanwhile: to free those of 65,536 ledgers
    at once would hold the interpreter's lock for 5 ms."""
    while groups:
        yield [groups.popleft() for _ in range(min(_LEDGERS_PER_MOVE, len(groups)))]


def _without_limits(entries: int, size: int) -> None:
    """Continue at once."""


def _append(writer: EntryLogWriter, window: LogWindow, live: np.ndarray) -> None:
    """Write the chosen items of a window. They are durable once the log is sealed."""
    view = window.octets.data
    starts, sizes = window.starts[live], window.sizes[live]
    writer.count(window.ledger_ids[live], sizes)
    begin = writer.end
    writer.write([view[start:end] for start, end in contiguous_spans(starts, sizes)])
    if begin // SYNC_BYTES != writer.end // SYNC_BYTES:
        # In small steps, so that the journal's syncs never wait for much.
        writer.sync()
