"""Defects of how records are committed and requests answered: the journal's thread, inline commits, deferred adds.

See `planted`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from bookie_service.engine.bookie import Bookie
from bookie_service.engine.deferrals import Deferrals, TakenAdds
from bookie_service.engine.waiting_replies import BegunFence
from bookie_service.formats.journal import RecordKind
from bookie_service.storage.journal.journal import Journal
from bookie_service.storage.journal.journal_thread import JournalThread, _Group
from tests.planting import Plant, changed, replaced

# ---- the journal's thread ----


def mark_not_forced() -> Plant:
    def make(old: Any) -> Any:
        def add(self: _Group, submission: Any) -> None:
            forces = self.forces or submission.forces
            old(self, submission)
            self.forces = forces

        return add

    return changed(_Group, "add", make)


def unsynced_commit() -> Plant:
    def make(old: Any) -> Any:
        def commit(self: JournalThread, records: Any) -> int:
            def deferring(old: Any) -> Any:
                def carry_out(self: JournalThread, group: _Group) -> bool:
                    group.is_deferred = True
                    return old(self, group)

                return carry_out

            with changed(JournalThread, "_carry_out", deferring):
                return old(self, records)

        return commit

    return changed(JournalThread, "commit", make)


def commit_before_held() -> Plant:
    """A single add's commit, whose sequence number is higher, counts for what this turn still holds."""

    def make(old: Any) -> Any:
        def commit(self: JournalThread, records: Any) -> int:
            held, self._held = self._held, []
            try:
                return old(self, records)
            finally:
                self._held = held

        return commit

    return changed(JournalThread, "commit", make)


def commit_beside_thread() -> Plant:
    return replaced(JournalThread, "_may_commit", lambda self: self._commits_inline)


def failed_journal_used() -> Plant:
    """A journal that failed goes on: what the failed sync lost counts as durable with the next one."""

    def make(old: Any) -> Any:
        def run_group(self: JournalThread) -> bool:
            goes_on = old(self)
            if self._failure is not None:
                self._failure, goes_on = None, True
                self._carried_out = self._handed_over
            return goes_on

        return run_group

    return changed(JournalThread, "run_group", make)


def mixed_group_deferred() -> Plant:
    def make(old: Any) -> Any:
        def add(self: _Group, submission: Any) -> None:
            was_deferred = self.is_deferred and self.submissions > 0
            old(self, submission)
            self.is_deferred = self.is_deferred or was_deferred or submission.is_deferred

        return add

    return changed(_Group, "add", make)


def held_handed_over_last() -> Plant:
    def hand_over(self: JournalThread, *submissions: Any) -> None:
        for submission in (*submissions, *self._take_held()):
            self._handed_over += 1
            self._queue.put(submission)

    return replaced(JournalThread, "_hand_over", hand_over)


def submitted_counted_as_written() -> Plant:
    def make(old: Any) -> Any:
        def carry_out(self: JournalThread, group: _Group) -> bool:
            is_durable = old(self, group)
            group.sequence = self._sequence
            return is_durable

        return carry_out

    return changed(JournalThread, "_carry_out", make)


def deferred_counted_as_durable() -> Plant:
    return changed(JournalThread, "_carry_out", lambda old: lambda self, group: old(self, group) or True)


# ---- fences, LACs and adds that come a second time ----


def second_fence_early() -> Plant:
    """A second recovery is answered as if the first one's fence were durable."""

    def make(old: Any) -> Any:
        def fence(self: Bookie, client: Any, ledger_id: int, key: bytes) -> BegunFence:
            ledger = self._store.ledger(ledger_id)
            was_fenced = ledger is not None and ledger.fenced
            found = old(self, client, ledger_id, key)
            return BegunFence(found.status, found.journal_index, 0) if was_fenced else found

        return fence

    return changed(Bookie, "_fence", make)


def second_lac_early() -> Plant:
    """A LAC that does not advance is answered as if the higher one before it were durable."""

    def make(old: Any) -> Any:
        def write_lac(self: Bookie, client: Any, ledger_id: int, *rest: Any) -> None:
            ledger = self._store.ledger(ledger_id)
            if ledger is not None:
                ledger.lac_sequence = 0
            old(self, client, ledger_id, *rest)

        return write_lac

    return changed(Bookie, "write_lac", make)


def resent_add_answered_early() -> Plant:
    """An add of bytes that the write cache has is answered at once."""

    def make(old: Any) -> Any:
        def add_to_journal(self: Bookie, index: int, client: Any, octets: np.ndarray, run: Any) -> None:
            if all(_is_held(self, octets, run, row) for row in range(len(run))):
                client.send((run.encode_responses(0),))
            else:
                old(self, index, client, octets, run)

        return add_to_journal

    return changed(Bookie, "_add_to_journal", make)


def _is_held(bookie: Bookie, octets: np.ndarray, run: Any, row: int) -> bool:
    if run.ledger_ids[row] < 0 or run.entry_ids[row] < 0:
        return False
    items = bookie._store.active.read(int(run.ledger_ids[row]), int(run.entry_ids[row]), 1, 1 << 20)
    start, size = int(run.item_starts[row]) + 4, int(run.sizes[row]) - 4
    return items is not None and bytes(items.buffer[4:]) == octets[start : start + size].tobytes()


def revived_fence_not_journaled() -> Plant:
    """A repair creates a fenced and dropped ledger again; a crash forgets that it is fenced."""

    def make(old: Any) -> Any:
        def append(self: Journal, records: Any, **named: Any) -> None:
            kinds = [record.kind for record in records]
            is_revival = RecordKind.FENCE in kinds and RecordKind.ENTRIES in kinds
            old(self, [each for each in records if not is_revival or each.kind != RecordKind.FENCE], **named)

        return append

    return changed(Journal, "append", make)


def fence_without_key() -> Plant:
    """The fence of an unknown ledger is journaled, the key that came with it is not."""

    def make(old: Any) -> Any:
        def append(self: Journal, records: Any, **named: Any) -> None:
            kept = list(records)
            for before, record in itertools.pairwise(records):
                if before.kind == RecordKind.LEDGER_KEY and record.kind == RecordKind.FENCE:
                    kept.remove(before)
            old(self, kept, **named)

        return append

    return changed(Journal, "append", make)


def single_add_to_first_journal() -> Plant:
    def make(old: Any) -> Any:
        def init(self: Bookie, *arguments: Any) -> None:
            old(self, *arguments)
            self._takes_single_adds = True

        return init

    return changed(Bookie, "__init__", make)


# ---- deferred adds ----


def force_answered_at_once() -> Plant:
    def force(self: Bookie, client: Any, ledger_id: int, encode: Any) -> None:
        client.send(encode(0))

    return replaced(Bookie, "force", force)


def bypassing_not_flushed() -> Plant:
    return replaced(Deferrals, "is_unflushed", lambda self, ledger_id: False)


def running_flush_forgotten() -> Plant:
    return replaced(Deferrals, "is_flushing", lambda self, ledger_id: False)


def flush_counted_when_begun() -> Plant:
    def make(old: Callable[[Deferrals], None]) -> Callable[[Deferrals], None]:
        def on_flush_begun(self: Deferrals) -> None:
            for cursor, runs in self._unflushed.values():
                cursor.on_synced(runs)
            old(self)

        return on_flush_begun

    return changed(Deferrals, "on_flush_begun", make)


def deferred_counted_when_taken() -> Plant:
    def make(old: Any) -> Any:
        def journaled(self: Deferrals, index: int, sequence: int, taken: TakenAdds) -> None:
            taken.count()
            old(self, index, sequence, taken)

        return journaled

    return changed(Deferrals, "journaled", make)


def forces_of_any_flush() -> Plant:
    """A flush that leaves the index in memory counts for the forces, too."""

    def make(old: Any) -> Any:
        def checkpoint(self: Bookie, *, advances_checkpoint: bool = True) -> bool:
            begun = old(self, advances_checkpoint=advances_checkpoint)
            if begun and not advances_checkpoint:
                self._deferrals.on_flush_begun()
                self._deferrals.on_flush_done(self._store.index.is_hidden)
            return begun

        return checkpoint

    return changed(Bookie, "checkpoint", make)


def deferred_groups_counted_as_synced() -> Plant:
    def make(old: Callable[..., None]) -> Callable[..., None]:
        def append(self: Journal, records: Any, *, deferred: bool = False) -> None:
            old(self, records, deferred=deferred)
            self._synced = self._end

        return append

    return changed(Journal, "append", make)
