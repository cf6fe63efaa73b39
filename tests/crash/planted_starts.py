"""Defects of what a start finishes and builds upon, of what is dropped when, and of full disks; see `planted`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from functools import partial
from typing import Any

from bookie_service.engine import rules
from bookie_service.engine.bookie import Bookie
from bookie_service.formats import marks as mark_format
from bookie_service.storage.index.key_value_index import KeyValueIndex
from bookie_service.storage.io.file_places import FilePlaces
from bookie_service.storage.io.files import is_out_of_space
from bookie_service.storage.journal import checkpoint, replay
from bookie_service.storage.journal.checkpoint import Checkpoint, Marks
from bookie_service.storage.journal.journal import Journal
from bookie_service.storage.ledgers import opening
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from bookie_service.storage.ledgers.tombstones import Tombstones
from bookie_service.storage.ledgers.write_cache import MemTable
from bookie_service.storage.logs.compaction import Compactor
from bookie_service.storage.logs.entry_log import EntryLogs
from tests.crash.planting import skipping
from tests.crash.simulated_files import SimulatedFiles
from tests.planting import Plant, both, changed, replaced

# ---- what a killed process left ----


def unsynced_journal_directory() -> Plant:
    """A start syncs it twice: before it relies on the record of places, and in replay."""
    return both(skipping(replay, "_make_durable", "sync_directory"), skipping(FilePlaces, "__init__", "sync_directory"))


def unsynced_adopted_log() -> Plant:
    return replaced(Compactor, "_sync", lambda self, path: None)


def unsynced_current_directories() -> Plant:
    """The names of the directories below the configured ones are not synced."""

    def make(old: Any) -> Any:
        return lambda self, path: (
            None if path.rpartition("/")[2].startswith(("journal", "ledgers")) else old(self, path)
        )

    return changed(SimulatedFiles, "sync_directory", make)


def unsynced_key_value_directory() -> Plant:
    return skipping(KeyValueIndex, "__init__", "sync_directory")


# ---- the order of a start ----


def marks_before_replay_is_flushed() -> Plant:
    """The marks move to the end of what was replayed, and then that is flushed."""
    # By process: crash images are opened in the middle of this one.
    waiting: dict[Any, Callable[[], None]] = {}

    def deferring(old: Any) -> Any:
        def flush(self: Any) -> None:
            waiting[self._store.logs.files] = partial(old, self)

        return flush

    def late(old: Any) -> Any:
        def write(self: Marks, positions: Any) -> None:
            old(self, positions)
            waiting.pop(self._files, lambda: None)()

        return write

    return both(changed(opening.Replay, "flush", deferring), changed(Marks, "write", late))


def journals_forgotten_before_marks() -> Plant:
    """A start removes the journals that it replayed, and then moves the marks."""
    waiting: dict[Any, Journal] = {}

    def noting(old: Any) -> Any:
        def init(self: Journal, files: Any, *arguments: Any) -> None:
            old(self, files, *arguments)
            waiting[files] = self

        return init

    def late(old: Any) -> Any:
        def write(self: Marks, positions: Any) -> None:
            journal = waiting.pop(self._files, None)
            if journal is not None:
                journal.forget_before(journal.end)
            old(self, positions)

        return write

    return both(changed(Journal, "__init__", noting), changed(Marks, "write", late))


def ids_of_first_directory() -> Plant:
    """Which log has the highest id is looked up in the first ledger directory alone."""

    def make(old: Any) -> Any:
        def init(self: EntryLogs, files: Any, directories: Any, *arguments: Any, **named: Any) -> None:
            old(self, files, directories[:1], *arguments, **named)
            last_id = self._last_id
            old(self, files, directories, *arguments, **named)
            self._last_id = last_id

        return init

    return changed(EntryLogs, "__init__", make)


def spare_offered_twice() -> Plant:
    """A journal file that waits to be used again is offered once more by the next checkpoint."""

    def make(old: Any) -> Any:
        def forget_before(self: Journal, mark: Any) -> None:
            self._offered.clear()
            old(self, mark)

        return forget_before

    return changed(Journal, "forget_before", make)


# ---- what is dropped when ----


def dropped_before_marks() -> Plant:
    """A ledger is dropped whose flush is not before the marks yet."""

    def is_settled(self: BaseLedgerStorage, ledger_id: int) -> bool:
        return not any(ledger_id in ledgers for ledgers in (self.active.ledgers, self._changed))

    return replaced(BaseLedgerStorage, "_is_settled", is_settled)


def any_flush_moves_marks() -> Plant:
    """Ledgers count as before the marks after a flush that did not move them."""

    def make(old: Any) -> Any:
        def end_flush(self: BaseLedgerStorage, flush: Any) -> None:
            old(self, flush)
            self._unmarked.clear()

        return end_flush

    return changed(BaseLedgerStorage, "end_flush", make)


def changed_headers_not_unmarked() -> Plant:
    """A ledger of which a flush has a header and no entries counts as before the marks."""

    def make(old: Any) -> Any:
        def begin_flush(self: BaseLedgerStorage, **named: Any) -> Any:
            before = set(self._unmarked)
            flush = old(self, **named)
            if flush is not None:
                self._unmarked = before | set(flush.half.ledgers)
            return flush

        return begin_flush

    return changed(BaseLedgerStorage, "begin_flush", make)


def tombstones_replaced() -> Plant:
    """What is remembered of a drop takes the place of what was remembered before."""

    def make(old: Any) -> Any:
        def remember(self: Tombstones, ledger_ids: Any, now_s: int) -> None:
            if ledger_ids:
                self._dropped_at_s = {}
            old(self, ledger_ids, now_s)

        return remember

    return changed(Tombstones, "remember", make)


def late_lac_revives() -> Plant:
    """An explicit LAC creates a fenced and dropped ledger again, and forgets the fence."""

    def make(old: Any) -> Any:
        return lambda *arguments, is_deleted, **named: old(*arguments, is_deleted=False, **named)

    return changed(rules, "explicit_lac_status", make)


def late_add_revives() -> Plant:
    def make(old: Any) -> Any:
        def judge(self: Bookie, *arguments: Any) -> Any:
            remembered, self._store.tombstones._dropped_at_s = self._store.tombstones._dropped_at_s, {}
            try:
                return old(self, *arguments)
            finally:
                self._store.tombstones._dropped_at_s = remembered

        return judge

    return changed(Bookie, "_judge", make)


# ---- full disks ----


def no_space_taken_for_done() -> Plant:
    """A checkpoint that finds no space ends as if it were done: its half is emptied, the marks stay."""

    def make(old: Any) -> Any:
        def carry_out(todo: Checkpoint, *arguments: Any) -> None:
            try:
                old(todo, *arguments)
            except OSError as error:
                if not is_out_of_space(error):
                    raise

        return carry_out

    return changed(checkpoint, "carry_out", make)


def mark_in_every_directory() -> Plant:
    """Marks count as written only where every ledger directory took them."""

    def write(self: Marks, positions: Any) -> None:
        for directory in self._directories:
            for journal_index, position in enumerate(positions):
                path = f"{directory}/{mark_format.file_name(journal_index)}"
                self._files.replace(path, mark_format.encode_mark(position))

    return replaced(Marks, "write", write)


def compaction_finished_or_refused() -> Plant:
    """A start without space for the index is refused when a compaction was killed."""

    def make(old: Any) -> Any:
        def finish_again(self: Compactor, intent: Any) -> None:
            old(self, intent)
            if self.unfinished is not None:
                raise OSError(errno.ENOSPC, "No space left on device")

        return finish_again

    return changed(Compactor, "_finish_again", make)


def journals_forgotten_without_marks() -> Plant:
    """A start that finds no space for the marks removes the journals nevertheless."""

    def make(old: Any) -> Any:
        def write(self: Marks, positions: Any) -> None:
            with contextlib.suppress(OSError):
                old(self, positions)

        return write

    return changed(Marks, "write", make)


def stuck_flush_dropped() -> Plant:
    """A flush that finds no space at a start counts as done."""

    def make(old: Any) -> Any:
        def flush(self: Any, *, advances_checkpoint: bool) -> None:
            old(self, advances_checkpoint=advances_checkpoint)
            if self.stuck is not None:
                self._store.end_flush(self.stuck)
                self.stuck = None

        return flush

    return changed(opening.Replay, "_flush", make)


# ---- reading ----


def gap_of_flushing_half_ignored() -> Plant:
    """A run from the entry log goes on over an entry that was written again and is being flushed."""

    def make(old: Any) -> Any:
        def gap(self: MemTable, ledger_id: int, first_entry: int, count_max: int) -> int:
            return count_max

        return gap

    return changed(MemTable, "gap", make)


def flushing_half_first() -> Plant:
    """The half that is being flushed is asked before the one that fills."""

    def make(old: Any) -> Any:
        def read_run(self: BaseLedgerStorage, *arguments: Any) -> Any:
            if self._flushing is None:
                return old(self, *arguments)
            self.active, self._flushing = self._flushing, self.active
            try:
                return old(self, *arguments)
            finally:
                self.active, self._flushing = self._flushing, self.active

        return read_run

    return changed(BaseLedgerStorage, "_read_run", make)
