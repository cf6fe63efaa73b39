"""Checkpoints: flush the store, then advance the mark, then release journal files, always in this order.

A flush that does not advance the mark ends with the first step: it only makes room for adds, and the journal keeps
everything.

The mark of each journal is taken together with the flush, after every record whose entry or header the flush contains.
It is written to the ledger directories only after entry logs and index are durable. Journal files before it are
released only after the mark is durable in at least one directory: a directory that is full or fails does not block the
others. A crash between any two steps repeats work at the next start and loses nothing.

A checkpoint that finds no space is retried when there may be some. Meanwhile its entries stay in memory, where reads
find them, and in the journal, whose mark has not advanced. Any other error ends the process.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bkspark.errors import StorageDamaged
from bookie_service.formats import marks as mark_format
from bookie_service.formats.marks import JournalPosition
from bookie_service.storage.io.disk_threads import DiskWork, InTurn
from bookie_service.storage.io.files import LocalFiles, is_disk_failure, is_out_of_space, refuses_writes
from bookie_service.storage.journal.journal_thread import JournalThread
from bookie_service.storage.ledgers.interface import Flush, LedgerStorage

logger = logging.getLogger(__name__)


class Marks:
    """The marks of all journals, stored in every ledger directory that takes writes."""

    def __init__(self, files: LocalFiles, directories: Sequence[str], disks: DiskWork | None = None) -> None:
        """`directories`: the `current` directories of all ledger directories. `disks`: writes to them; None: one
        directory after the other.
        """
        self._files = files
        self._directories = directories
        self._disks = disks or InTurn()
        self.unreadable: list[str] = []
        """Files that `read` found damaged, or on a disk that cannot be read."""
        self._refusing: frozenset[str] = frozenset()
        """Directories that did not take the last marks. Each is logged once."""
        self._late: dict[int, Future[None]] = {}
        """Writes that the last `write` did not wait for, by number of the directory."""

    def read(self, journal_index: int) -> JournalPosition | None:
        """Return the highest readable mark of a journal; None: there is none.

        Without a mark the whole remaining journal is replayed. That is always enough, because files are removed only
        before a durable mark.
        """
        found = []
        for directory in self._directories:
            path = os.path.join(directory, mark_format.file_name(journal_index))
            try:
                if not self._files.exists(path):
                    continue
                mark = mark_format.decode_mark(self._files.read_all(path))
            except ValueError as error:
                raise StorageDamaged(f"{path}: {error}") from error
            except OSError as error:
                if not is_disk_failure(error):
                    raise
                mark = None
            if mark is None:
                self.unreadable.append(path)
            else:
                found.append(mark)
        mark = max(found, default=None)
        return None if mark == mark_format.NO_JOURNAL else mark

    def write(self, positions: Sequence[JournalPosition]) -> None:
        """Make positions[i] the mark of journal i, durably, in every directory that takes writes, but at least in one.

        Raises:
            OSError: no directory took all marks; some may be written. If a directory had no space, its error is raised.
        """
        self._errors({place: future for place, future in self._late.items() if future.done()})
        places = range(len(self._directories))
        # A directory that is late keeps a lower mark, which does no harm, and gets a later mark.
        chosen = [place for place in places if not self._disks.is_busy(place)] or places
        futures = self._disks.run({place: partial(self._write_to, place, positions) for place in chosen})
        while not any(future.done() and future.exception() is None for future in futures.values()):
            left = [place for place, future in futures.items() if not future.done()]
            if not left:
                break
            self._disks.wait_for_any(left)
        self._late = {place: future for place, future in futures.items() if not future.done()}
        errors = self._errors({place: future for place, future in futures.items() if place not in self._late})
        if len(errors) == len(futures):
            raise next(filter(is_out_of_space, errors.values()), next(iter(errors.values())))
        for directory in sorted(errors.keys() - self._refusing):
            why = errors[directory]
            logger.warning("marks are written to the other ledger directories, not to %s: %s", directory, why)
        self._refusing = frozenset(errors)

    def _write_to(self, place: int, positions: Sequence[JournalPosition]) -> None:
        for journal_index, position in enumerate(positions):
            path = os.path.join(self._directories[place], mark_format.file_name(journal_index))
            self._files.replace(path, mark_format.encode_mark(position))

    def _errors(self, futures: Mapping[int, Future[None]]) -> dict[str, OSError]:
        """Return the errors of finished writes, by directory. Raises an error that has nothing to do with its disk."""
        errors: dict[str, OSError] = {}
        for place, future in futures.items():
            error = future.exception()
            if error is not None:
                if not isinstance(error, OSError) or not refuses_writes(error):
                    raise error
                errors[self._directories[place]] = error
        return errors


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A flush and, for each journal, the position after everything in the flush."""

    flush: Flush
    marks: Sequence[Future[JournalPosition]]
    """Done when each journal has reached the end of what `flush` contains."""


class JournalFailed(Exception):
    """A journal failed with `error` and returned no mark. Even for a lack of space, no flush waits for it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class ForgetfulJournal(Protocol):
    """The part of a journal that a checkpoint uses."""

    def forget_before(self, mark: JournalPosition) -> None:
        """Release files that lie completely before a durable mark."""


def carry_out(checkpoint: Checkpoint, store: LedgerStorage, marks: Marks, journals: Sequence[ForgetfulJournal]) -> None:
    """Do all disk work of a checkpoint in the only safe order, after waiting for its marks.

    Raises:
        JournalFailed: a journal failed, and the process must end.
        OSError: a step failed. Marks that were not advanced stay where they were, and nothing is lost.
    """
    try:
        positions = [mark.result() for mark in checkpoint.marks]
    except Exception as error:
        raise JournalFailed(error) from error
    store.write_flush(checkpoint.flush)
    if not checkpoint.flush.advances_checkpoint:
        return
    marks.write(positions)
    for journal, position in zip(journals, positions):
        journal.forget_before(position)


class CheckpointThread:
    """Carries out checkpoints one after the other. A failure ends the thread: the marks stay, and nothing is lost."""

    def __init__(
        self,
        store: LedgerStorage,
        marks: Marks,
        journals: Sequence[JournalThread],
        on_done: Callable[[Checkpoint], None],
        on_stuck: Callable[[OSError], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """All callbacks are called on the checkpoint thread.

        `on_done(checkpoint)`. `on_stuck(error)`: a checkpoint found no space and waits for `retry`.
        `on_failure(error)`: the thread has ended.
        """
        self._store = store
        """The storage of the bookie's ledgers."""
        self._marks = marks
        self._journals = journals
        self._on_done = on_done
        self._on_stuck = on_stuck
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Checkpoint | None] = queue.SimpleQueue()
        """Checkpoints to carry out; None ends the thread."""
        self._again = threading.Event()
        """Set when a checkpoint that found no space may be retried."""
        self._is_stopping = False
        """Whether `stop` was called, after which a checkpoint that finds no space is not retried. Set once."""
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, checkpoint: Checkpoint) -> None:
        self._queue.put(checkpoint)

    def retry(self) -> None:
        """Retry a checkpoint that found no space."""
        self._again.set()

    def stop(self) -> None:
        """Carry out submitted checkpoints, then end. Entries without space stay in the journal."""
        self._is_stopping = True
        self._again.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (checkpoint := self._queue.get()) is not None:
                while not self._carry_out(checkpoint):
                    if self._is_stopping:
                        return
                    self._again.wait()
                    self._again.clear()
                self._on_done(checkpoint)
        except JournalFailed as failed:
            self._on_failure(failed.error)
        except BaseException as error:
            self._on_failure(error)

    def _carry_out(self, checkpoint: Checkpoint) -> bool:
        """Carry out a checkpoint; return False if there was no space."""
        try:
            carry_out(checkpoint, self._store, self._marks, self._journals)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            self._on_stuck(error)
            return False
        return True
