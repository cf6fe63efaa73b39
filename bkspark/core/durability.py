"""Durability: which acknowledged entries of a writer are durable, and when bookies are asked to sync. Decisions only.

`Durability` is what a writer asks. With `bkspark.core.pending.Synced`, an acknowledged entry is durable, and there is
nothing to force.

With `Relaxed` an add is acknowledged from the page caches of Qa bookies, and the LAC follows when entries are synced.
Entries carry that LAC, ensembles change after it, and the ledger is closed at it. A bookie reports synced entries with
each response (LastAddSynced); its response to a force means that everything it had acknowledged is synced.

A bookie that disconnects may have lost entries that it had acknowledged and not synced. Without `changes_ensemble` it
is never replaced, but left out while every write set has Qa others, like a bookie for which no spare exists. With
`changes_ensemble` entries are retained until they are synced, and a new bookie gets all of them.
"""

from __future__ import annotations

from typing import Protocol

from bkspark.core import effects
from bkspark.core.limits import nanoseconds
from bkspark.core.pending import PendingEntries
from bkspark.core.relaxed import RelaxedDurability, confirmed_up_to
from bkspark.core.slots import Phase, Slot, Slots
from bkspark.ids import NO_ENTRY


class Durability(Protocol):
    """What a writer asks about the durability of its entries."""

    @property
    def lac(self) -> int:
        """The last add confirmed: every entry up to it is acknowledged, and durable on Qa bookies."""

    @property
    def retained_after(self) -> int:
        """The bytes of entries above this one are retained, to be sent again."""

    @property
    def replaces_bookies(self) -> bool:
        """Whether a lost bookie may be replaced."""

    @property
    def unsynced_bytes_max(self) -> int | None:
        """Limit of the bytes that are retained until they are synced; None if they are not retained for that long."""

    def may_lose(self, slot: Slot) -> bool:
        """Return whether the bookie may lose what it acknowledged when it goes away."""

    def on_gone(self, slot: Slot) -> None:
        """The bookie in a slot, or its connection, is gone: it answers no force any more."""

    def confirm(self, now_ns: int) -> list[effects.WriterEffect]:
        """Move the LAC to what is durable."""

    def want(self) -> None:
        """Record that a caller wants everything acknowledged to be synced."""

    def wants_for_space(self) -> bool:
        """Return whether so many bytes wait for a sync that one must be requested without a caller."""

    def wants_for_time(self, now_ns: int) -> bool:
        """Return whether the LAC has been lower than the last acknowledged entry for too long."""

    def force(self, *, is_again: bool = False) -> list[effects.WriterEffect]:
        """Ask the bookies that take part to sync, if a caller waits for that and no force is under way.

        Args:
            is_again: only if the last force did not ask for all that is wanted.
        """

    def takes(self, force: effects.Force) -> bool:
        """Return whether a force belongs to the round under way, and its bookie is still in the slot."""

    def on_forced(self, force: effects.Force) -> None:
        """A bookie carried out a force that is taken."""

    def is_lost(self) -> bool:
        """Return whether the last force did not reach what is wanted, and no further force can."""


class Relaxed:
    """The LAC is the last synced entry.

    A force goes to every participating bookie; the response of a bookie means that everything it had acknowledged
    before the force is synced there. This counts only if the bookie received everything since the LAC on one
    connection: after a disconnect it may have lost acknowledged entries.
    """

    def __init__(self, slots: Slots, pending: PendingEntries, options: RelaxedDurability) -> None:
        self._slots = slots
        """The writer's. This class changes their `last_synced` and `asked_to_sync` alone."""
        self._pending = pending
        """The entries of the writer that are not acknowledged, or retained. Only read here."""
        self._options = options
        """What is allowed beyond the proposal, and limits. Constant."""
        self._force_interval_ns = nanoseconds(options.force_interval_s)
        """How long the LAC may lag before a force is sent without a caller; 0: for ever. Constant."""
        self._lac = NO_ENTRY
        """Every entry up to this one is synced by Qa bookies of its write set. Grows, by `confirm` alone."""
        self._target = NO_ENTRY
        """The entry up to which a caller wants everything synced. Grows, by `want` alone."""
        self._forced_to = NO_ENTRY
        """The last acknowledged entry when the last force began; NO_ENTRY if one of its bookies disconnected since."""
        self._round = 0
        """The number of rounds of forces that were begun. Answers to earlier rounds are ignored."""
        self._confirmed_ns = 0
        """When the LAC last grew, or was equal to the last acknowledged entry. Changed by `confirm` and
        `wants_for_time`."""

    @property
    def lac(self) -> int:
        return self._lac

    @property
    def retained_after(self) -> int:
        return self._lac if self._options.changes_ensemble else self._pending.acknowledged

    @property
    def replaces_bookies(self) -> bool:
        return self._options.changes_ensemble

    @property
    def unsynced_bytes_max(self) -> int | None:
        return self._options.unsynced_bytes_max if self._options.changes_ensemble else None

    def may_lose(self, slot: Slot) -> bool:
        return slot.reached > slot.last_synced

    def on_gone(self, slot: Slot) -> None:
        if slot.asked_to_sync is not None:
            slot.asked_to_sync = None
            # Another force is needed to reach all of them.
            self._forced_to = NO_ENTRY

    def confirm(self, now_ns: int) -> list[effects.WriterEffect]:
        slots = self._slots
        synced = confirmed_up_to([slot.last_synced for slot in slots.all], slots.write_quorum, slots.ack_quorum)
        lac = min(synced, self._pending.acknowledged)
        if lac <= self._lac:
            return []
        self._lac = lac
        self._confirmed_ns = now_ns
        return [effects.Confirm(lac)]

    def want(self) -> None:
        self._target = self._pending.acknowledged

    def wants_for_space(self) -> bool:
        return self._options.changes_ensemble and 2 * self._pending.kept_bytes > self._options.unsynced_bytes_max

    def wants_for_time(self, now_ns: int) -> bool:
        if self._pending.acknowledged == self._lac:
            self._confirmed_ns = now_ns
        return self._force_interval_ns > 0 and now_ns - self._confirmed_ns >= self._force_interval_ns

    def force(self, *, is_again: bool = False) -> list[effects.WriterEffect]:
        if self._is_forcing() or self._target <= self._lac or (is_again and self._forced_to >= self._target):
            return []
        self._round += 1
        self._forced_to = self._pending.acknowledged
        asked = [slot for slot in self._slots.all if slot.takes_part]
        for slot in asked:
            # A bookie that refuses some adds may have accepted later ones.
            slot.asked_to_sync = NO_ENTRY if slot.phase is Phase.REFUSING else slot.reached
        return [effects.Force(slot.number, slot.bookie, self._round) for slot in asked]

    def takes(self, force: effects.Force) -> bool:
        return self._round == force.number and self._slots.all[force.slot].bookie == force.bookie

    def on_forced(self, force: effects.Force) -> None:
        slot = self._slots.all[force.slot]
        answered_to, slot.asked_to_sync = slot.asked_to_sync, None
        if answered_to is not None and slot.complete_from <= self._lac + 1:
            slot.last_synced = max(slot.last_synced, answered_to)

    def is_lost(self) -> bool:
        if self._is_forcing() or self._target <= self._lac or self._forced_to < self._target:
            return False
        # Entries that a slow bookie has yet to acknowledge may replace those that another lost; the next tick tries
        # again.
        return not any(slot.owed for slot in self._slots.all if slot.phase is not Phase.LEFT_OUT)

    def _is_forcing(self) -> bool:
        return any(slot.asked_to_sync is not None for slot in self._slots.all)
