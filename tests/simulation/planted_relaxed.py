"""Defects of relaxed durability for `mutants`, each a context in which product or model has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bkspark.core import effects, relaxed
from bkspark.core.relaxed import SyncProgress, confirmed_up_to
from bkspark.core.relaxed_writer import RelaxedWriterCore
from bkspark.core.writer import WriterCore, WriterState
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

    return replaced(relaxed, "confirmed_up_to", rule)


def confirmed_by_the_quickest() -> Plant:
    return replaced(relaxed, "confirmed_up_to", lambda last_synced, write_quorum, ack_quorum: max(last_synced))


def striping_ignored() -> Plant:
    def rule(last_synced: Sequence[int], write_quorum: int, ack_quorum: int) -> int:
        return sorted(last_synced)[len(last_synced) - ack_quorum]

    return replaced(relaxed, "confirmed_up_to", rule)


def confirmed_when_acknowledged() -> Plant:
    def advance(self: SyncProgress, acknowledged: int) -> bool:
        before, self.lac = self.lac, max(self.lac, acknowledged)
        return self.lac > before

    return replaced(SyncProgress, "advance", advance)


# ---- forces ----


def confirmed_when_forced() -> Plant:
    def force(old: Any, self: RelaxedWriterCore) -> list[effects.Effect]:
        forces = old(self)
        for one in forces:
            self._syncs.on_forced(one.slot)
        return [*forces, *self._confirm()]

    return _around(RelaxedWriterCore, "_force", force)


def force_not_synced() -> Plant:
    def on_force(self: ModelBookie, ledger_id: int) -> tuple[Status, int]:
        return Status.EOK, self._world.now

    return replaced(ModelBookie, "on_force", on_force)


def older_force_counts() -> Plant:
    def awaits(self: RelaxedWriterCore, force: effects.Force) -> bool:
        is_over = self.state in (WriterState.FAILED, WriterState.CLOSED)
        return not is_over and self._ensemble[force.slot] == force.bookie

    return replaced(RelaxedWriterCore, "_awaits", awaits)


# ---- bookies that go away ----


def replaced_bookie_confirms() -> Plant:
    def replies(
        old: Any, self: RelaxedWriterCore, slot: int, bookie: str, ids: Any, codes: Any, now_ns: int, synced: Any = None
    ) -> Any:
        if synced is not None:
            self._syncs.on_last_synced(slot, synced)
        return old(self, slot, bookie, ids, codes, now_ns, synced)

    return _around(RelaxedWriterCore, "on_add_replies", replies)


def lost_connection_ignored() -> Plant:
    return replaced(RelaxedWriterCore, "has_outstanding", WriterCore.has_outstanding)


def returning_bookie_trusted() -> Plant:
    def on_forced(self: SyncProgress, slot: int) -> None:
        self.on_last_synced(slot, self._forced.pop(slot, -1))

    return replaced(SyncProgress, "on_forced", on_forced)


def new_bookie_inherits() -> Plant:
    def take_in(old: Any, self: SyncProgress, slot: int, first_entry: int, *, is_new: bool) -> None:
        old(self, slot, first_entry, is_new=False)

    return _around(SyncProgress, "take_in", take_in)


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
