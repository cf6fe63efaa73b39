"""The protocol defects of `mutants`, each a context in which the product (or the tier's driver) has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bkspark.core import effects, recovery, writer_errors
from bkspark.core.last_confirmed import LastConfirmed, LastEntries
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pending import PendingEntries
from bkspark.core.pipeline import Pipeline, WriterState
from bkspark.core.reader import GroupRead
from bkspark.core.recovery import RecoveryCore, RecoveryState
from bkspark.core.recovery_window import Response
from bkspark.core.slots import Slots
from bkspark.core.striping import write_set_masks
from bkspark.core.writer import WriterCore
from bkspark.errors import NoSuchEntry
from bkspark.wire.status import Status
from tests.planting import Plant, around, both, changed, replaced
from tests.simulation import clients, owner
from tests.simulation.bookies import ModelBookie
from tests.simulation.owner import SimulatedEntries

# ---- acknowledging ----


def _releasing(choose: Callable[[np.ndarray, int], int]) -> Plant:
    """Release as many pending entries as `choose(votes counted per entry, Qa)` says."""

    def release(self: PendingEntries, slots: Slots) -> bool:
        if not self.count:
            return False
        ids = np.arange(self.acknowledged + 1, self.next_entry)
        masks = write_set_masks(ids, len(slots.all), slots.write_quorum)
        count = choose(np.bitwise_count(self.votes & masks), slots.ack_quorum)
        self.acknowledged += count
        self._votes[: self.count] = self._votes[count : count + self.count].copy()
        return count > 0

    return replaced(PendingEntries, "release", release)


def _prefix(ripe: np.ndarray) -> int:
    return len(ripe) if ripe.all() else int(np.argmin(ripe))


def acknowledged_by_one_less() -> Plant:
    return _releasing(lambda votes, ack_quorum: _prefix(votes >= max(1, ack_quorum - 1)))


def acknowledged_before_lower_ids() -> Plant:
    def choose(votes: np.ndarray, ack_quorum: int) -> int:
        ripe = np.flatnonzero(votes >= ack_quorum)
        return int(ripe[-1]) + 1 if len(ripe) else 0

    return _releasing(choose)


def acknowledged_by_refusals(*statuses: Status) -> Callable[[], Plant]:
    def wrap(old: Any, self: WriterCore, slot: int, bookie: str, ids: Any, codes: np.ndarray, *rest: Any) -> Any:
        codes = np.where(np.isin(codes, statuses), Status.EOK, codes)
        return old(self, slot, bookie, ids, codes, *rest)

    return lambda: around(WriterCore, "on_add_replies", wrap)


def stale_answers_counted() -> Plant:
    def wrap(old: Any, self: WriterCore, slot: int, bookie: str, *rest: Any) -> Any:
        return old(self, slot, self.slots.all[slot].bookie, *rest)

    return around(WriterCore, "on_add_replies", wrap)


def confirmed_too_high() -> Plant:
    def make(old: Any) -> Any:
        def of(first_entry: int, payloads: Any, length_before: int, lac: int) -> SimulatedEntries:
            return old.__func__(SimulatedEntries, first_entry, payloads, length_before, first_entry + len(payloads) - 1)

        return staticmethod(of)

    return changed(SimulatedEntries, "of", make)


# ---- ensemble changes ----


def votes_kept() -> Plant:
    def wrap(old: Any, self: Pipeline, fragments: Any) -> Any:
        with replaced(PendingEntries, "withdraw", lambda pending, bit: None):
            return old(self, fragments)

    return around(Pipeline, "adopt", wrap)


def released_before_withdrawal() -> Plant:
    def wrap(old: Any, self: Pipeline, fragments: Any) -> Any:
        self.state = WriterState.ACTIVE
        done = self.release()
        self.state = WriterState.CHANGING
        return done + old(self, fragments)

    return around(Pipeline, "adopt", wrap)


def _changing_from(choose: Callable[[WriterCore], int]) -> Plant:
    """Begin the new fragment elsewhere than at LAC + 1."""

    def wrap(old: Any, self: WriterCore, writable: Any, *topology: Any) -> Any:
        acknowledged = self.pending.acknowledged
        self.pending.acknowledged = max(choose(self), self.change.fragments[-1].first_entry) - 1
        try:
            return old(self, writable, *topology)
        finally:
            self.pending.acknowledged = acknowledged

    return around(WriterCore, "on_writable_bookies", wrap)


def changed_from_lac() -> Plant:
    return _changing_from(lambda core: core.lac)


def changed_from_next() -> Plant:
    return _changing_from(lambda core: core.pending.next_entry)


def released_while_changing() -> Plant:
    def wrap(old: Any, self: Pipeline) -> Any:
        state, self.state = self.state, WriterState.ACTIVE
        try:
            return old(self)
        finally:
            self.state = state

    return around(Pipeline, "release", wrap)


def used_before_stored() -> Plant:
    def wrap(old: Any, self: WriterCore, writable: Any, *topology: Any) -> Any:
        done = old(self, writable, *topology)
        if any(isinstance(effect, effects.WriteMetadata) for effect in done):
            return done + self._pipeline.adopt(self.change.changed(self.lac))
        return done

    def written(old: Any, self: WriterCore, metadata: Any, version: int) -> Any:
        if self.state is WriterState.CLOSING:
            return old(self, metadata, version)
        self._pipeline.metadata, self._pipeline.version = metadata, version
        return []

    return both(around(WriterCore, "on_writable_bookies", wrap), around(WriterCore, "on_metadata_written", written))


def nothing_resent() -> Plant:
    return around(Pipeline, "resume", lambda old, self, slots: old(self, set()))


def only_newest_resent() -> Plant:
    def wrap(old: Any, self: Pipeline, slots: set[int]) -> Any:
        batches = self.pending.batches
        self.pending.batches = type(batches)(list(batches)[-1:])
        try:
            return old(self, slots)
        finally:
            self.pending.batches = batches

    return around(Pipeline, "resume", wrap)


def resent_with_other_bytes() -> Plant:
    def other(effect: effects.WriterEffect) -> effects.WriterEffect:
        if not isinstance(effect, effects.SendAdds):
            return effect
        assert isinstance(effect.entries, SimulatedEntries)
        values = tuple(value._replace(payload=b"again " + value.payload) for value in effect.entries.values)
        return replace(effect, entries=replace(effect.entries, values=values))

    return around(Pipeline, "resume", lambda old, self, slots: [other(effect) for effect in old(self, slots)])


def overwrites_newer_state() -> Plant:
    def conflict(self: WriterCore, current: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        if self.state is WriterState.CLOSING:
            return self._close_conflict(current, version)
        return [effects.WriteMetadata(self.change.proposal(self.metadata, self.lac), version)]

    return replaced(WriterCore, "on_metadata_conflict", conflict)


def merges_into_recovery() -> Plant:
    def conflict(self: WriterCore, current: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        if self.state is WriterState.CLOSING or current.is_closed:
            return self._pipeline.fail(writer_errors.lost_to(current, self.ledger_id, self.lac))
        return [effects.WriteMetadata(self.change.proposal(current, self.lac), version)]

    return replaced(WriterCore, "on_metadata_conflict", conflict)


def closes_over_anything() -> Plant:
    def conflict(self: WriterCore, current: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        return [effects.WriteMetadata(self.metadata.closed(self.lac, self.length), version)]

    return replaced(WriterCore, "_close_conflict", conflict)


def closed_one_short() -> Plant:
    def wrap(old: Any, self: WriterCore) -> Any:
        done = old(self)
        if self.lac < 0:
            return done
        return [effects.WriteMetadata(self.metadata.closed(self.lac - 1, self.length), self.version)]

    return around(WriterCore, "close", wrap)


def lost_answer_believed() -> Plant:
    def failed(old: Any, self: WriterCore, error: Any) -> Any:
        if self.state is WriterState.CHANGING and self.change._proposed:
            return self.on_metadata_written(self.change.proposal(self.metadata, self.lac), self.version + 1)
        return old(self, error)

    return around(WriterCore, "on_metadata_failed", failed)


def change_never_over() -> Plant:
    def wrap(old: Any, self: Pipeline, slots: set[int]) -> Any:
        done = old(self, slots)
        if self.state is WriterState.ACTIVE and slots and self.pending.count:
            self.state = WriterState.CHANGING
        return done

    return around(Pipeline, "resume", wrap)


def second_search_forgotten() -> Plant:
    def wrap(old: Any, self: WriterCore, writable: Any, *topology: Any) -> Any:
        done = old(self, writable, *topology)
        self.change._is_finding = True
        return done

    return around(WriterCore, "on_writable_bookies", wrap)


def silence_ignored() -> Plant:
    return replaced(WriterCore, "on_tick", lambda self, now_ns: [])


def too_few_left_ignored() -> Plant:
    def go_on(self: Pipeline, writable: Any) -> Any:
        for slot in self.slots.to_replace:
            self.left_out.on_left_out(slot)
        return self.resume(set())

    return replaced(Pipeline, "go_on_without", go_on)


# ---- recovery: fencing ----


def _covered_by(needed: Callable[[int, int], int]) -> Callable[[], Plant]:
    def covered(known: Any, ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
        return all(
            sum((start + i) % ensemble_size in known for i in range(write_quorum)) >= needed(write_quorum, ack_quorum)
            for start in range(ensemble_size)
        )

    return lambda: replaced(recovery, "has_coverage", covered)


covered_by_one_less = _covered_by(lambda write_quorum, ack_quorum: write_quorum - ack_quorum)
covered_by_all = _covered_by(lambda write_quorum, ack_quorum: write_quorum)


def covered_by_any() -> Plant:
    return replaced(recovery, "has_coverage", lambda known, *quorums: bool(known))


def fence_not_awaited() -> Plant:
    def wrap(old: Any, self: RecoveryCore) -> Any:
        done = old(self)
        self._next_entry = self.lac + 1
        return done + self._read_window()

    return around(RecoveryCore, "_fence", wrap)


def error_covers() -> Plant:
    def wrap(old: Any, self: RecoveryCore, slot: int, answer: Response, *rest: Any, **named: Any) -> Any:
        if answer is Response.FAILED:
            answer, named = Response.NEGATIVE, {}
        return old(self, slot, answer, *rest, **named)

    return around(RecoveryCore, "on_fence_answer", wrap)


def wrong_ensemble_fenced() -> Plant:
    def wrap(old: Any, self: RecoveryCore, metadata: LedgerMetadata, version: int) -> Any:
        old(self, metadata, version)
        self._ensemble = metadata.fragments[0].bookies

    return around(RecoveryCore, "_begin", wrap)


def lac_from_nothing() -> Plant:
    def wrap(old: Any, self: RecoveryCore, metadata: LedgerMetadata, version: int) -> Any:
        old(self, metadata, version)
        self.lac = -1

    return around(RecoveryCore, "_begin", wrap)


def lac_one_too_high() -> Plant:
    def wrap(old: Any, self: RecoveryCore, slot: int, answer: Response, lac: int = -1, *rest: Any, **named: Any) -> Any:
        return old(self, slot, answer, lac + 1, *rest, **named)

    return around(RecoveryCore, "on_fence_answer", wrap)


def recovery_reads_do_not_fence() -> Plant:
    return replaced(clients, "fencing_reads", clients.plain_reads)


# ---- recovery: reading, rewriting, closing ----


def _negatives(count: Callable[[int, int], int]) -> Callable[[], Plant]:
    return lambda: replaced(recovery, "negatives_needed", count)


one_negative_ends = _negatives(lambda write_quorum, ack_quorum: 1)
one_negative_less = _negatives(lambda write_quorum, ack_quorum: max(1, write_quorum - ack_quorum))
all_negatives_needed = _negatives(lambda write_quorum, ack_quorum: write_quorum)


def error_is_negative() -> Plant:
    def wrap(old: Any, self: RecoveryCore, slot: int, entry_ids: Any, answers: Any, *rest: Any, **named: Any) -> Any:
        named.pop("error", None)
        answers = np.where(answers == Response.FAILED, np.uint8(Response.NEGATIVE), answers)
        return old(self, slot, entry_ids, answers, *rest[:2], **named)

    return around(RecoveryCore, "on_read_answers", wrap)


def undecided_is_the_end() -> Plant:
    def wrap(old: Any, self: RecoveryCore) -> Any:
        done = old(self)
        if any(isinstance(effect, effects.Fail) for effect in done):
            self.state = RecoveryState.READING
            return self._take_window()
        return done

    return around(RecoveryCore, "_decide", wrap)


def lac_moves() -> Plant:
    def wrap(old: Any, self: RecoveryCore) -> Any:
        done = old(self)
        for i, effect in enumerate(done):
            if isinstance(effect, effects.RewriteEntries):
                done[i] = replace(effect, lac=effect.payloads.first_entry - 1)
        return done

    return both(around(RecoveryCore, "_take_window", wrap), replaced(RecoveryCore, "_window_size", lambda self: 1))


def changes_published_early() -> Plant:
    def wrap(old: Any, self: WriterCore, writable: Any, *topology: Any) -> Any:
        was, self.change.is_published = self.change.is_published, True
        try:
            return old(self, writable, *topology)
        finally:
            self.change.is_published = was

    return around(WriterCore, "on_writable_bookies", wrap)


def reads_follow_changes() -> Plant:
    def wrap(old: Any, self: RecoveryCore, fragments: tuple[Fragment, ...]) -> None:
        old(self, fragments)
        self._ensemble = fragments[-1].bookies

    small = replaced(RecoveryCore, "_window_size", lambda self: 2)
    return both(around(RecoveryCore, "on_ensemble_changed", wrap), small)


def failed_rewrite_is_the_end() -> Plant:
    def failed(self: RecoveryCore, error: Any) -> Any:
        self._next_entry = self.lac + 1
        return self._close()

    return replaced(RecoveryCore, "on_rewrite_failed", failed)


def nothing_rewritten() -> Plant:
    def wrap(old: Any, self: RecoveryCore) -> Any:
        done = old(self)
        if any(isinstance(effect, effects.RewriteEntries) for effect in done):
            return self.on_rewritten()
        return done

    return around(RecoveryCore, "_take_window", wrap)


def rewriting_not_awaited() -> Plant:
    def wrap(old: Any, self: RecoveryCore) -> Any:
        done = old(self)
        if self._at_end and any(isinstance(effect, effects.RewriteEntries) for effect in done):
            return done + self._finish()
        return done

    def rewritten(old: Any, self: RecoveryCore) -> Any:
        return old(self) if self.state is RecoveryState.REWRITING else []

    return both(around(RecoveryCore, "_take_window", wrap), around(RecoveryCore, "on_rewritten", rewritten))


def _closing_at(shift: int) -> Callable[[], Plant]:
    def wrap(old: Any, self: RecoveryCore) -> Any:
        self._next_entry = max(0, self._next_entry + shift)
        return old(self)

    return lambda: around(RecoveryCore, "_close", wrap)


recovered_one_short = _closing_at(-1)
recovered_one_long = _closing_at(1)


def recovery_overwrites_the_end() -> Plant:
    def conflict(old: Any, self: RecoveryCore, current: LedgerMetadata, version: int) -> Any:
        if self.state is RecoveryState.CLOSING and current.is_closed:
            return [effects.WriteMetadata(self.metadata.closed(self.last_entry, self.length, self._fragments), version)]
        return old(self, current, version)

    return around(RecoveryCore, "on_metadata_conflict", conflict)


def changes_of_recovery_forgotten() -> Plant:
    return replaced(RecoveryCore, "on_ensemble_changed", lambda self, fragments: None)


def recovery_never_ends_on_conflict() -> Plant:
    return around(RecoveryCore, "on_metadata_conflict", lambda old, self, current, version: [])


def rewritten_as_an_owner() -> Plant:
    return replaced(owner, "recovery_adds", owner.owner_adds)


# ---- reading ----


def reader_takes_the_last_held() -> Plant:
    def on_entry(self: LastConfirmed, slot: int, entry_id: int, lac: int, length: int) -> None:
        self.found = self.found.joined(LastEntries(entry_id, entry_id, length))
        self._known.add(slot)

    return replaced(LastConfirmed, "on_entry", on_entry)


def first_negative_believed() -> Plant:
    def wrap(old: Any, self: GroupRead, error: Any) -> None:
        old(self, error)
        if isinstance(error, NoSuchEntry):
            self._asked = self._negatives = len(self._replicas)

    return around(GroupRead, "on_failure", wrap)


# ---- the tier's bookies: what the real ones must do, which tests/crash proves of their storage ----


def fence_not_journaled() -> Plant:
    def make(old: Any) -> Any:
        def fence(self: ModelBookie, ledger_id: int) -> int:
            when = old(self, ledger_id)
            self._journal = [record for record in self._journal if record[3] is not None]
            return when

        return fence

    return changed(ModelBookie, "fence", make)


def negative_before_fence_durable() -> Plant:
    def last(old: Any, self: ModelBookie, ledger_id: int, fencing: bool) -> Any:
        status, entry_id, stored, when = old(self, ledger_id, fencing)
        return status, entry_id, stored, when if stored is not None else self._world.now

    def reads(old: Any, self: ModelBookie, ledger_id: int, entry_ids: list[int], fencing: bool) -> Any:
        answers, when = old(self, ledger_id, entry_ids, fencing)
        return answers, when if any(stored for _, stored in answers) else self._world.now

    return both(around(ModelBookie, "on_last_entry", last), around(ModelBookie, "on_reads", reads))


def fence_lets_adds_pass() -> Plant:
    def wrap(old: Any, self: ModelBookie, ledger_id: int, first: int, values: Any, positions: Any, _: bool) -> Any:
        return old(self, ledger_id, first, values, positions, True)

    return around(ModelBookie, "on_adds", wrap)


def unknown_ledger_not_fenced() -> Plant:
    def wrap(old: Any, self: ModelBookie, ledger_id: int) -> int:
        return old(self, ledger_id) if ledger_id in self.ledgers else self._world.now

    return around(ModelBookie, "fence", wrap)


def answered_before_synced() -> Plant:
    def wrap(old: Any, self: ModelBookie, *arguments: Any) -> Any:
        ids, statuses, _ = old(self, *arguments)
        return ids, statuses, self._world.now

    return around(ModelBookie, "on_adds", wrap)


def recovery_adds_refused() -> Plant:
    def wrap(old: Any, self: ModelBookie, ledger_id: int, first: int, values: Any, positions: Any, _: bool) -> Any:
        return old(self, ledger_id, first, values, positions, False)

    return around(ModelBookie, "on_adds", wrap)
