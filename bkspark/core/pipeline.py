"""Pipeline: the state of one writer, and the consequences of its changes. Decisions only.

The parts of a `WriterCore` share it: slots, pending entries, durability, ensemble change. `bkspark.core.writer`
specifies the states, and the order that the methods keep.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from bkspark.core import effects, writer_errors
from bkspark.core.durability import Durability, Relaxed
from bkspark.core.ensemble import EnsembleChange
from bkspark.core.left_out import LeftOutBookies
from bkspark.core.limits import WriterLimits
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pending import PendingEntries, Synced
from bkspark.core.placement import RandomSource
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.slots import Phase, Slot, Slots
from bkspark.errors import BookKeeperError
from bkspark.ids import NO_ENTRY


class WriterState(enum.Enum):
    """What a writer does; `bkspark.core.writer` describes the states."""

    ACTIVE = enum.auto()
    CHANGING = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class WriterStart:
    """Where a writer begins: at the end of a ledger.

    metadata, version: the ledger's metadata as last read or written, and their version. lac: the last existing entry.
    is_recovery: it writes the entries that a recovery found, and its ensemble changes are stored when that closes.
    """

    ledger_id: int
    metadata: LedgerMetadata
    version: int
    lac: int = NO_ENTRY
    is_recovery: bool = False


class Pipeline:
    """The state that the parts of one writer share, and the operations on it."""

    def __init__(
        self, start: WriterStart, random: RandomSource, limits: WriterLimits, relaxed: RelaxedDurability | None
    ) -> None:
        """The arguments have the meaning that `WriterCore` documents."""
        self.ledger_id = start.ledger_id
        """The id of the ledger. Constant."""
        self.metadata = start.metadata
        """The metadata as they were last stored or read. Changed when a compare-and-set is decided."""
        self.version = start.version
        """The version of `metadata`; they change together."""
        self.state = WriterState.ACTIVE
        """The writer's state; see `bkspark.core.writer`. FAILED exactly when `error` is set."""
        self.error: BookKeeperError | None = None
        """Why the writer failed. Set once, by `fail`."""
        self.now_ns = 0
        """The time of the last event that carries one. Set by every event."""
        self.slots = Slots(start.metadata, start.lac)
        """The slots of the ensemble. Their bookies change when an ensemble change is stored."""
        self.pending = PendingEntries(start.lac)
        """Entries that are not acknowledged, or whose bytes are retained."""
        self.durability: Durability = (
            Synced(self.pending) if relaxed is None else Relaxed(self.slots, self.pending, relaxed)
        )
        """Which acknowledged entries are durable. Constant."""
        self.change = EnsembleChange(self.slots, start.metadata.fragments, random, is_published=not start.is_recovery)
        """The current change while CHANGING, and look-ups of bookies."""
        self.left_out = LeftOutBookies(self.slots, self.pending, limits)
        """Which bookies are too slow, and which come back."""

    @property
    def lac(self) -> int:
        """The last add confirmed: all up to it is acknowledged, and durable on Qa bookies."""
        return self.durability.lac

    # ---- acknowledging, confirming ----

    def release(self) -> list[effects.WriterEffect]:
        """Acknowledge and confirm as many entries as possible; nothing while the ensemble changes."""
        if self.state is WriterState.CHANGING:
            return []
        done: list[effects.WriterEffect] = []
        if self.pending.release(self.slots):
            done.append(effects.Acknowledge(self.pending.acknowledged))
        confirmed = self.durability.confirm(self.now_ns)
        if confirmed:
            self.forget()
        return done + confirmed

    def forget(self) -> None:
        """Drop the bytes of entries that are not sent again."""
        self.pending.forget(self.slots, self.durability.retained_after)

    def force(self) -> list[effects.WriterEffect]:
        """Ask bookies to sync, if a caller waits for that."""
        return self.durability.force() if self.state is WriterState.ACTIVE else []

    def takes(self, force: effects.Force) -> bool:
        """Return whether the outcome of a force counts."""
        is_over = self.state in (WriterState.FAILED, WriterState.CLOSED)
        return not is_over and self.durability.takes(force)

    def force_again(self) -> list[effects.WriterEffect]:
        """After a force: send another, or wait for adds in flight; fail if neither can make the entries durable."""
        if self.state is not WriterState.ACTIVE:
            return []
        if not self.durability.is_lost():
            return self.durability.force(is_again=True)
        return self.fail(writer_errors.cannot_be_synced(self.ledger_id, self.lac, self.slots.ensemble))

    # ---- ensemble changes ----

    def begin_change(self) -> list[effects.WriterEffect]:
        """Look for bookies in place of those that need replacement."""
        self.state = WriterState.CHANGING
        return self.change.find(self.slots.to_replace)

    def go_on_without(self, writable: Collection[str]) -> list[effects.WriterEffect]:
        """No spare bookie exists: leave out the failed ones if every write set has Qa others, otherwise fail."""
        slots = self.slots
        for slot in slots.to_replace:
            if slot.is_excused:
                slot.keep(self.now_ns)
        if not slots.to_replace:
            return self.resume(set())
        missing = [slot for slot in slots.all if slot.phase is Phase.LEFT_OUT or slot.needs_replacement]
        back: set[int] = set()
        if slots.leave_too_few([slot.number for slot in missing]):
            # The writer would fail without them: wait for them, though they have not answered a probe.
            returning = [slot for slot in slots.left_out if slot.bookie in writable]
            if not returning:
                return self.fail(writer_errors.not_enough(self.ledger_id, self.lac, [slot.bookie for slot in missing]))
            for slot in returning:
                self.take_back(slot)
                back.add(slot.number)
        else:
            self.left_out.note_search(self.now_ns)
        for slot in slots.to_replace:
            if slot.phase is not Phase.LEFT_OUT:
                self.left_out.on_left_out(slot)
        return self.resume(back)

    def adopt(self, fragments: tuple[Fragment, ...]) -> list[effects.WriterEffect]:
        """Put the new ensemble into effect: withdraw all votes of replaced slots, then resend, then release."""
        lac = self.lac
        first_entry = self.pending.first_retained(lac)
        replaced = self.change.adopt(fragments)
        for slot, bookie in replaced:
            self.durability.on_gone(slot)
            slot.replace(bookie, first_entry, lac, self.now_ns)
            self.pending.withdraw(slot.bit)
        return self.resume({slot.number for slot, _ in replaced})

    def resume(self, resend_to: set[int]) -> list[effects.WriterEffect]:
        """Send all retained entries to the given slots. Then find more replacements, if more bookies have failed, or
        return to ACTIVE and release."""
        done: list[effects.WriterEffect] = []
        for slot in self.slots.all:
            if slot.number in resend_to:
                for entries in self.pending.batches:
                    done += slot.send(entries, self.lac + 1, self.now_ns)
            if slot.phase is Phase.LEFT_OUT:
                slot.needs_replacement = False
        if self.slots.to_replace:
            return done + self.change.find(self.slots.to_replace)
        self.state = WriterState.ACTIVE
        self.forget()
        return done + self.release() + self.force()

    def take_back(self, slot: Slot) -> None:
        """Let a bookie that was left out take part again. Only entries that it gets from now on count as its votes."""
        self.pending.withdraw(slot.bit)
        slot.take_back(self.pending.first_retained(self.lac), self.now_ns)
        self.left_out.on_taken_back()

    # ---- the end ----

    def fail(self, error: BookKeeperError) -> list[effects.WriterEffect]:
        """End the writer: nothing is sent or acknowledged any more."""
        self.state = WriterState.FAILED
        self.error = error
        self.pending.clear()
        self.left_out.on_ended()
        for slot in self.slots.all:
            slot.end()
        return [effects.Fail(error)]
