"""The defects of `mutants`, each a context in which the product has it; here alone tests reach into the product.

Here are those of what a bookie promises of its ledgers; the other `planted_` modules have those of its storage. Most
are made by `changed`, which wraps a function of the product, and by `skipping`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bkspark.wire import v2
from bkspark.wire.single_add import SingleAdd
from bookie_service.engine import bookie, rules, single_reads
from bookie_service.formats import index as index_format
from bookie_service.formats import marks as mark_format
from bookie_service.formats.index import LedgerHeader
from bookie_service.network import v2_batch_read
from bookie_service.storage.journal import checkpoint
from bookie_service.storage.journal.checkpoint import Checkpoint, Marks
from bookie_service.storage.journal.journal_thread import JournalThread
from bookie_service.storage.ledgers import opening
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from tests.crash.planting import ignoring_errors, skipping
from tests.planting import Plant, both, changed, replaced

# ---- fences and keys ----


def early_fence_answer() -> Plant:
    return replaced(bookie.Bookie, "_read_after_fence", lambda self, fence, reading: self.reads.enqueue(reading))


def unflushed_fence() -> Plant:
    return replaced(BaseLedgerStorage, "fence", lambda self, ledger: setattr(ledger, "fenced", True))


def unfenced_header() -> Plant:
    def make(old: Any) -> Any:
        def encode(header: LedgerHeader, *version: int) -> bytes:
            return old(dataclasses.replace(header, fenced=False), *version)

        return encode

    return changed(index_format, "encode_slot", make)


def unflushed_lac() -> Plant:
    def advance_lac(self: BaseLedgerStorage, ledger: Any, packet: bytes) -> bool:
        advances = index_format.decode_lac(packet)[1] > index_format.decode_lac(ledger.explicit_lac or bytes(16))[1]
        if advances or not ledger.explicit_lac:
            ledger.explicit_lac = packet
        return advances

    return replaced(BaseLedgerStorage, "advance_lac", advance_lac)


def receding_lac() -> Plant:
    def advance_lac(self: BaseLedgerStorage, ledger: Any, packet: bytes) -> bool:
        ledger.explicit_lac = packet
        self._changed.add(ledger.ledger_id)
        return True

    return replaced(BaseLedgerStorage, "advance_lac", advance_lac)


def lacless_header() -> Plant:
    def make(old: Any) -> Any:
        return lambda header, *version: old(dataclasses.replace(header, explicit_lac=b""), *version)

    return changed(index_format, "encode_slot", make)


def early_lac_answer() -> Plant:
    def make(old: Any) -> Any:
        def write_lac(self: bookie.Bookie, client: Any, *arguments: Any) -> Any:
            queues = [journal.waiting for journal in self._journals]
            before = [len(waiting) for waiting in queues]
            taken = old(self, client, *arguments)
            for count, waiting in zip(before, queues):
                if len(waiting) > count:
                    client.send(waiting[-1].parts)
                    waiting[-1] = waiting[-1]._replace(parts=())
            return taken

        return write_lac

    return changed(bookie.Bookie, "write_lac", make)


def unflushed_key() -> Plant:
    def make(old: Any) -> Any:
        def create_ledger(self: BaseLedgerStorage, ledger_id: int, master_key: bytes) -> Any:
            ledger = old(self, ledger_id, master_key)
            self._changed.discard(ledger_id)
            return ledger

        return create_ledger

    return changed(BaseLedgerStorage, "create_ledger", make)


def replay_drops_keys() -> Plant:
    return replaced(opening.Replay, "_learn_key", lambda self, ledger_id, key: None)


def wrong_key_taken() -> Plant:
    def make(old: Any) -> Any:
        return lambda ledger, ids, flags, match, *others, **named: old(
            ledger, ids, flags, np.ones_like(match), *others, **named
        )

    return changed(rules, "add_statuses", make)


def wrong_key_fences() -> Plant:
    return changed(rules, "fence_status", lambda old: lambda ledger, stored, given: old(ledger, given, given))


def single_add_through_fence() -> Plant:
    def ledger_of(self: bookie.Bookie, add: SingleAdd) -> Any:
        ledger = self._store.ledger(add.ledger_id)
        return ledger if ledger is not None and ledger.master_key == add.master_key else None

    return replaced(bookie.Bookie, "_ledger_of", ledger_of)


def unjournaled_single_add() -> Plant:
    return replaced(JournalThread, "commit", lambda self, records: 1)


# ---- checkpoints ----


def mark_before_flush() -> Plant:
    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        positions = [mark.result() for mark in todo.marks]
        if todo.flush.advances_checkpoint:
            marks.write(positions)
        store.write_flush(todo.flush)
        if not todo.flush.advances_checkpoint:
            return
        for journal, position in zip(journals, positions):
            journal.forget_before(position)

    return replaced(checkpoint, "carry_out", carry_out)


def mark_newer_than_flush() -> Plant:
    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        store.write_flush(todo.flush)
        if not todo.flush.advances_checkpoint:
            return
        positions = [journal._journal.end for journal in journals]
        marks.write(positions)
        for journal, position in zip(journals, positions):
            journal.forget_before(position)

    return replaced(checkpoint, "carry_out", carry_out)


def mark_at_every_flush() -> Plant:
    """The mark moves although the index still holds in memory what was flushed."""

    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        positions = [mark.result() for mark in todo.marks]
        store.write_flush(todo.flush)
        marks.write(positions)
        for journal, position in zip(journals, positions):
            journal.forget_before(position)

    return replaced(checkpoint, "carry_out", carry_out)


def journal_removed_first() -> Plant:
    def carry_out(todo: Checkpoint, store: Any, marks: Any, journals: Any) -> None:
        positions = [mark.result() for mark in todo.marks]
        store.write_flush(todo.flush)
        if not todo.flush.advances_checkpoint:
            return
        for journal, position in zip(journals, positions):
            journal.forget_before(position)
        marks.write(positions)

    return replaced(checkpoint, "carry_out", carry_out)


def unsynced_mark_name() -> Plant:
    return skipping(Marks, "write", "sync_directory")


def shared_mark() -> Plant:
    return replaced(mark_format, "file_name", lambda journal_index: "lastMark")


def ignored_flush_error() -> Plant:
    return changed(BaseLedgerStorage, "write_flush", ignoring_errors)


def ignored_mark_error() -> Plant:
    return changed(Marks, "write", ignoring_errors)


def half_forgotten_early() -> Plant:
    def make(old: Any) -> Any:
        def write_flush(self: BaseLedgerStorage, flush: Any, **named: Any) -> None:
            self._flushing = None
            old(self, flush, **named)

        return write_flush

    return changed(BaseLedgerStorage, "write_flush", make)


# ---- answers ----


def negative_doubt() -> Plant:
    return both(
        *(replaced(module, "failed", lambda error: v2.Status.ENOENTRY) for module in (single_reads, v2_batch_read))
    )
