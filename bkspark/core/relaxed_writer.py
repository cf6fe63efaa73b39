"""RelaxedWriterCore: the add pipeline of a ledger with relaxed durability, decisions only.

As `WriterCore`, but entries are acknowledged from page caches and the LAC follows, behind them, what is synced
(`core.relaxed`). Entries carry that LAC, ensembles change behind it, and the ledger is closed at it.

A bookie that goes away may have lost what it had acknowledged and not synced. It is never replaced unless
`changes_ensemble`, but left out while every write set has Qa others, as one without a spare is. With
`changes_ensemble` entries are kept until they are synced, and a new bookie gets all of them.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from bkspark.core import effects
from bkspark.core.add_pipeline import WriterLimits
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.placement import RandomSource
from bkspark.core.relaxed import RelaxedDurability, SyncProgress
from bkspark.core.writer import WriterCore, WriterState
from bkspark.errors import NotEnoughBookies
from bkspark.wire.digest import SealedEntries


class RelaxedWriterCore(WriterCore):
    """Decides what to send, when an entry is acknowledged, and what is confirmed because it is synced."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        random: RandomSource,
        limits: WriterLimits,
        relaxed: RelaxedDurability,
    ) -> None:
        super().__init__(ledger_id, metadata, version, random, limits)
        self._relaxed = relaxed
        # When the LAC last moved, or had nowhere to move to.
        self._confirmed_ns = 0
        self._syncs = SyncProgress(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

    @property
    def lac(self) -> int:
        return self._syncs.lac

    @property
    def unsynced_bytes_max(self) -> int | None:
        return self._relaxed.unsynced_bytes_max if self._relaxed.changes_ensemble else None

    def has_outstanding(self, slot: int) -> bool:
        """Whether the bookie in `slot` owes an answer, or may lose what it acknowledged when it goes away."""
        return super().has_outstanding(slot) or self._syncs.may_lose(slot, self._reached(slot))

    # ---- events ----

    def add(self, entries: SealedEntries, payload_bytes: int, now_ns: int) -> list[effects.Effect]:
        return super().add(entries, payload_bytes, now_ns) + self._sync_much()

    def on_add_replies(
        self,
        slot: int,
        bookie: str,
        entry_ids: np.ndarray,
        statuses: np.ndarray,
        now_ns: int,
        last_synced: int | None = None,
    ) -> list[effects.Effect]:
        if last_synced is not None and self._ensemble[slot] == bookie:
            self._syncs.on_last_synced(slot, last_synced)
        return super().on_add_replies(slot, bookie, entry_ids, statuses, now_ns, last_synced)

    def on_bookie_failed(self, slot: int, bookie: str, now_ns: int) -> list[effects.Effect]:
        if self._ensemble[slot] == bookie:
            self._syncs.drop(slot)
        return super().on_bookie_failed(slot, bookie, now_ns)

    def on_tick(self, now_ns: int, congested: Collection[int] = ()) -> list[effects.Effect]:
        return super().on_tick(now_ns, congested) + self._sync_much() + self._sync_in_time() + self._force()

    def sync(self) -> list[effects.Effect]:
        """Have all that is acknowledged synced; `Confirm`s tell how far it is."""
        self._syncs.target = self.acknowledged
        return self._force()

    def on_forced(self, force: effects.Force, now_ns: int) -> list[effects.Effect]:
        """A bookie carried out a `Force`; a failure to is `on_bookie_failed`."""
        self._now_ns = now_ns
        if not self._awaits(force):
            return []
        self._syncs.on_forced(force.slot)
        return self._confirm() + self._force_again()

    def on_force_lost(self, force: effects.Force, now_ns: int) -> list[effects.Effect]:
        """The connection that a `Force` went on is gone, and the bookie counts as failed only if that matters."""
        self._now_ns = now_ns
        if not self._awaits(force):
            return []
        self._syncs.drop(force.slot)
        return self._force_again()

    def _awaits(self, force: effects.Force) -> bool:
        is_over = self.state in (WriterState.FAILED, WriterState.CLOSED)
        return not is_over and self._ensemble[force.slot] == force.bookie and self._syncs.round == force.number

    # ---- decisions ----

    @property
    def _kept_behind(self) -> int:
        return self.lac if self._relaxed.changes_ensemble else self.acknowledged

    def _replaceable(self) -> Collection[int]:
        return self._failed if self._relaxed.changes_ensemble else ()

    def _release(self) -> list[effects.Effect]:
        return super()._release() + self._confirm()

    def _take_in(self, slot: int, *, is_new: bool) -> None:
        super()._take_in(slot, is_new=is_new)
        first_kept = self._pending[0].first_entry if self._pending else self.next_entry
        first_entry = max(self.lac + 1, first_kept)
        self._answered_to[slot] = first_entry - 1
        self._syncs.take_in(slot, first_entry, is_new=is_new)

    def _leave_out_slot(self, slot: int) -> list[effects.Effect]:
        self._syncs.drop(slot)
        return super()._leave_out_slot(slot)

    def _resume(self, resend_to: set[int]) -> list[effects.Effect]:
        return super()._resume(resend_to) + self._force()

    def _confirm(self) -> list[effects.Effect]:
        """Move the LAC to what is synced; it stays while the ensemble changes."""
        if self.state is WriterState.CHANGING or not self._syncs.advance(self.acknowledged):
            return []
        self._confirmed_ns = self._now_ns
        self._forget()
        return [effects.Confirm(self.lac)]

    def _sync_much(self) -> list[effects.Effect]:
        """Begin a force where much is kept only until it is synced: nobody else may ever ask for it."""
        is_much = 2 * self._pending_bytes > self._relaxed.unsynced_bytes_max
        return self.sync() if is_much and self._relaxed.changes_ensemble else []

    def _sync_in_time(self) -> list[effects.Effect]:
        """Begin a force where the LAC has stood behind what is acknowledged for too long."""
        if self.acknowledged == self.lac:
            self._confirmed_ns = self._now_ns
        interval_ns = self._relaxed.force_interval_ns
        is_due = interval_ns > 0 and self._now_ns - self._confirmed_ns >= interval_ns
        return self.sync() if is_due else []

    def _force(self) -> list[effects.Effect]:
        """Ask the bookies that take part to sync, if somebody waits for that and no force is under way."""
        syncs = self._syncs
        if self.state is not WriterState.ACTIVE or syncs.is_forcing or not syncs.is_wanted:
            return []
        # A bookie that refuses some adds may have taken others that lie above these.
        answered = {
            slot: -1 if slot in self._refusals else self._reached(slot)
            for slot in range(len(self._ensemble))
            if self.may_hold_back(slot)
        }
        syncs.force(answered, self.acknowledged)
        return [effects.Force(slot, self._ensemble[slot], syncs.round) for slot in answered]

    def _force_again(self) -> list[effects.Effect]:
        """All asked have answered and it is not enough: ask for more, or wait for adds on their way, or give up."""
        syncs = self._syncs
        if self.state is not WriterState.ACTIVE or syncs.is_forcing or not syncs.is_wanted:
            return []
        if not syncs.is_asked:
            return self._force()
        if any(count for slot, count in enumerate(self._outstanding) if slot not in self._absent):
            # What a slow bookie has yet to take may make up for what another lost; `on_tick` asks again.
            return []
        return self._fail(
            NotEnoughBookies(
                f"entries of ledger {self.ledger_id} above {self.lac} were acknowledged and cannot be synced: too many "
                f"of the bookies {', '.join(self._ensemble)} went away since and may have lost them; open the ledger "
                "with recovery to see what is left",
                ledger_id=self.ledger_id,
            )
        )
