"""Defects of relaxed durability for `mutants`, each a context in which product or model has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkspark.core import durability, effects
from bkspark.core.durability import Relaxed
from bkspark.core.pipeline import Pipeline
from bkspark.core.relaxed import confirmed_up_to
from bkspark.core.slots import Slot
from bkspark.core.writer import WriterCore
from bkspark.wire.status import Status
from bookie_service.engine.sync_cursor import EntryRange, SyncCursor
from tests.planting import Plant, changed, replaced
from tests.simulation.bookies import ModelBookie


def _around(kind: Any, name: str, new: Any) -> Plant:
    return changed(kind, name, lambda old: lambda self, *arguments, **named: new(old, self, *arguments, **named))


# ---- what the writer makes of LastAddSynced ----


def confirmed_by_one_less() -> Plant:
    def rule(last_synced: Sequence[int], write_quorum: int, ack_quorum: int) -> int:
        return confirmed_up_to(last_synced, write_quorum, max(1, ack_quorum - 1))

    return replaced(durability, "confirmed_up_to", rule)


def confirmed_by_the_quickest() -> Plant:
    return replaced(durability, "confirmed_up_to", lambda last_synced, write_quorum, ack_quorum: max(last_synced))


def striping_ignored() -> Plant:
    def rule(last_synced: Sequence[int], write_quorum: int, ack_quorum: int) -> int:
        return sorted(last_synced)[len(last_synced) - ack_quorum]

    return replaced(durability, "confirmed_up_to", rule)


def confirmed_when_acknowledged() -> Plant:
    def confirm(self: Relaxed, now_ns: int) -> list[effects.WriterEffect]:
        before, self._lac = self._lac, self._pending.acknowledged
        return [effects.Confirm(self._lac)] if self._lac > before else []

    return replaced(Relaxed, "confirm", confirm)


# ---- forces ----


def confirmed_when_forced() -> Plant:
    def force(old: Any, self: Pipeline) -> list[effects.WriterEffect]:
        forces = old(self)
        for one in forces:
            self.durability.on_forced(one)
        return [*forces, *self.release()]

    return _around(Pipeline, "force", force)


def force_not_synced() -> Plant:
    def on_force(self: ModelBookie, ledger_id: int) -> tuple[Status, int]:
        return Status.EOK, self._world.now

    return replaced(ModelBookie, "on_force", on_force)


def older_force_counts() -> Plant:
    def takes(self: Relaxed, force: effects.Force) -> bool:
        return self._slots.all[force.slot].bookie == force.bookie

    return replaced(Relaxed, "takes", takes)


# ---- bookies that go away ----


def replaced_bookie_confirms() -> Plant:
    def replies(
        old: Any, self: WriterCore, slot: int, bookie: str, ids: Any, codes: Any, now_ns: int, synced: Any = None
    ) -> Any:
        if synced is not None:
            self.slots.all[slot].last_synced = max(self.slots.all[slot].last_synced, synced)
        return old(self, slot, bookie, ids, codes, now_ns, synced)

    return _around(WriterCore, "on_add_replies", replies)


def lost_connection_ignored() -> Plant:
    return replaced(Relaxed, "may_lose", lambda self, slot: False)


def returning_bookie_trusted() -> Plant:
    def on_forced(self: Relaxed, force: effects.Force) -> None:
        slot = self._slots.all[force.slot]
        if slot.asked_to_sync is not None:
            slot.last_synced = max(slot.last_synced, slot.asked_to_sync)
        slot.asked_to_sync = None

    return replaced(Relaxed, "on_forced", on_forced)


def new_bookie_inherits() -> Plant:
    def replace(old: Any, self: Slot, *arguments: Any) -> None:
        synced = self.last_synced
        old(self, *arguments)
        self.last_synced = synced

    return _around(Slot, "replace", replace)


# ---- the bookie's cursor ----


def cursor_over_a_hole() -> Plant:
    def on_synced(self: SyncCursor, runs: Sequence[EntryRange]) -> None:
        self.last_synced = max([self.last_synced, *(last for _, last in runs)])

    return replaced(SyncCursor, "on_synced", on_synced)


def cursor_when_taken() -> Plant:
    def on_taken(self: SyncCursor, runs: Sequence[EntryRange]) -> None:
        self.on_synced(runs)

    return replaced(SyncCursor, "on_taken", on_taken)


def cursor_outlives_a_crash() -> Plant:
    def start(old: Any, self: ModelBookie) -> None:
        cursors, unsynced = self._cursors, self._unsynced
        for _, ledger_id, runs in unsynced:
            cursors[ledger_id].on_synced(runs)
        old(self)
        self._cursors = cursors

    return _around(ModelBookie, "start", start)
