"""Defects for `mutants` that lose no entry at Qa: copies left out, stale LACs, wrong lengths, waits for a time-out.

Each is a context in which the product (or the tier's driver) has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bkspark.core.add_pipeline import AddPipeline
from bkspark.core.last_confirmed import LastEntries
from bkspark.core.recovery import RecoveryCore
from bkspark.core.striping import mask_of, write_set_masks
from bkspark.core.writer import WriterCore
from tests.planting import Plant, around, both, changed, replaced
from tests.simulation.owner import SimulatedEntries

# ---- copies ----


def _sent_to_ack_quorums(*, recovery: bool) -> Plant:
    def send(old: Any, self: WriterCore, slot: int, entries: Any) -> Any:
        whole = self.metadata
        if self._is_recovery is recovery:
            self.metadata = replace(whole, write_quorum=whole.ack_quorum)
        try:
            return old(self, slot, entries)
        finally:
            self.metadata = whole

    return around(WriterCore, "_send", send)


def last_replica_left_out() -> Plant:
    return _sent_to_ack_quorums(recovery=False)


def rewritten_to_ack_quorums() -> Plant:
    return _sent_to_ack_quorums(recovery=True)


def bytes_forgotten_at_ack_quorum() -> Plant:
    return replaced(AddPipeline, "_owes", lambda self, slot, last_entry: False)


def repeated_answer_counts_for_the_next_slot() -> Plant:
    def wrap(old: Any, self: WriterCore, slot: int, bookie: str, ids: Any, *rest: Any) -> Any:
        rows = self._pending_rows(ids, None)
        if self._ensemble[slot] == bookie and (self._votes[rows] & np.uint64(1 << slot)).any():
            slot = (slot + 1) % len(self._ensemble)
        return old(self, slot, self._ensemble[slot], ids, *rest)

    return around(WriterCore, "on_add_replies", wrap)


# ---- LACs ----


def lac_never_sent() -> Plant:
    def make(old: Any) -> Any:
        def of(first_entry: int, payloads: Any, length_before: int, lac: int) -> SimulatedEntries:
            return old.__func__(SimulatedEntries, first_entry, payloads, length_before, -1)

        return staticmethod(of)

    return changed(SimulatedEntries, "of", make)


def reader_takes_the_lac_heard_last() -> Plant:
    def joined(old: Any, self: LastEntries, other: LastEntries) -> LastEntries:
        return replace(old(self, other), lac=other.lac)

    return around(LastEntries, "joined", joined)


# ---- lengths ----


def owner_closes_with_a_length_too_short() -> Plant:
    def close(old: Any, self: WriterCore) -> Any:
        self.length = max(0, self.length - 1)
        return old(self)

    return around(WriterCore, "close", close)


def recovery_closes_with_the_length_heard() -> Plant:
    def close(old: Any, self: RecoveryCore) -> Any:
        self.length = max(self._heard_length, self._reaches[1])
        return old(self)

    return around(RecoveryCore, "_close", close)


# ---- waits ----


def lost_connection_not_told() -> Plant:
    return replaced(AddPipeline, "has_outstanding", lambda self, slot: False)


def too_few_left_judged_by_one_write_set() -> Plant:
    def leaves_too_few(self: WriterCore, missing: Any) -> bool:
        quorum, size = self.metadata.write_quorum, len(self._ensemble)
        gone = write_set_masks(np.arange(1), size, quorum) & np.uint64(mask_of(tuple(missing)))
        return bool((np.bitwise_count(gone) > quorum - self.metadata.ack_quorum).any())

    return replaced(WriterCore, "_leaves_too_few", leaves_too_few)


def rewritten_entries_acknowledged_by_ticks() -> Plant:
    def release(old: Any, self: WriterCore) -> Any:
        if self._is_recovery and not getattr(self, "_is_in_tick", False):
            return []
        return old(self)

    def tick(old: Any, self: WriterCore, *arguments: Any) -> Any:
        self._is_in_tick = True  # type: ignore[attr-defined]
        try:
            return old(self, *arguments) + self._release()
        finally:
            self._is_in_tick = False  # type: ignore[attr-defined]

    return both(around(WriterCore, "_release", release), around(WriterCore, "on_tick", tick))
