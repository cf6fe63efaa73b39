"""Defects for `mutants` that lose no entry at Qa: copies left out, stale LACs, wrong lengths, waits for a time-out.

Each is a context in which the product (or the tier's driver) has it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bkspark.core.last_confirmed import LastEntries
from bkspark.core.pipeline import Pipeline, WriterStart
from bkspark.core.recovery import RecoveryCore
from bkspark.core.slots import Slot, Slots
from bkspark.core.striping import mask_of, stripe, write_set_masks
from bkspark.core.writer import WriterCore
from tests.planting import Plant, around, both, changed, replaced
from tests.simulation.owner import SimulatedEntries

# ---- copies ----


def _sent_to_ack_quorums(*, recovery: bool) -> Plant:
    def begin(old: Any, self: WriterCore, start: WriterStart, *arguments: Any, **named: Any) -> None:
        old(self, start, *arguments, **named)
        if start.is_recovery is recovery:
            for slot in self.slots.all:
                slot.stripe = stripe(slot.number, len(self.slots.all), self.slots.ack_quorum)

    return around(WriterCore, "__init__", begin)


def last_replica_left_out() -> Plant:
    return _sent_to_ack_quorums(recovery=False)


def rewritten_to_ack_quorums() -> Plant:
    return _sent_to_ack_quorums(recovery=True)


def bytes_forgotten_at_ack_quorum() -> Plant:
    return replaced(Slot, "retains", lambda self, last_entry: False)


def repeated_answer_counts_for_the_next_slot() -> Plant:
    def wrap(old: Any, self: WriterCore, slot: int, bookie: str, ids: Any, *rest: Any) -> Any:
        place, at = self.slots.all[slot], ids - self.pending.acknowledged - 1
        held = self.pending.votes[at[(at >= 0) & (at < self.pending.count)]] & place.bit
        if place.bookie == bookie and held.any():
            slot = (slot + 1) % len(self.slots.all)
        return old(self, slot, self.slots.all[slot].bookie, ids, *rest)

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


def lost_connection_not_reported() -> Plant:
    return replaced(WriterCore, "has_outstanding", lambda self, slot: self.slots.all[slot].is_probed)


def too_few_left_judged_by_one_write_set() -> Plant:
    def leave_too_few(self: Slots, missing: Any) -> bool:
        gone = write_set_masks(np.arange(1), len(self.all), self.write_quorum) & np.uint64(mask_of(tuple(missing)))
        return bool((np.bitwise_count(gone) > self.write_quorum - self.ack_quorum).any())

    return replaced(Slots, "leave_too_few", leave_too_few)


def rewritten_entries_acknowledged_by_ticks() -> Plant:
    def release(old: Any, self: Pipeline) -> Any:
        if not self.change.is_published and not getattr(self, "_is_in_tick", False):
            return []
        return old(self)

    def tick(old: Any, self: WriterCore, *arguments: Any) -> Any:
        self._pipeline._is_in_tick = True  # type: ignore[attr-defined]
        try:
            return old(self, *arguments) + self._pipeline.release()
        finally:
            self._pipeline._is_in_tick = False  # type: ignore[attr-defined]

    return both(around(Pipeline, "release", release), around(WriterCore, "on_tick", tick))
