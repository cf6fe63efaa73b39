"""WriterCore: the add pipeline of one ledger, decisions only.

It is composed of the slots of the ensemble (`core.slots`), pending entries (`core.pending`), durability
(`core.durability`), the ensemble change (`core.ensemble`), and the rules for slow bookies (`core.left_out`). They share
the state of the writer (`core.pipeline`); `core.unwell` leaves out bookies and takes them back. This module has the
events.

States: ACTIVE -> CHANGING <-> ACTIVE -> CLOSING -> CLOSED, and from any of them FAILED, which is final.

Events: `add`, `on_add_replies`, `on_bookie_failed`, `on_silent`, `on_tick`, `on_writable_bookies`,
`on_metadata_written`, `on_metadata_conflict`, `on_metadata_failed`, `close`. Each returns effects, to be performed in
order.

Invariants:
* Entries are acknowledged strictly in id order, each when Qa bookies *of the ensemble that the metadata names for it*
  have it. Which bookies have an entry is one bit mask per pending entry; "may be acknowledged" is derived from it and
  never stored, so that withdrawing the votes of a replaced bookie needs no flag to be undone.
* An ensemble change begins at LAC + 1. From the decision until the compare-and-set has succeeded, nothing is released
  (the LAC cannot move), and no entry goes to a new bookie. Afterwards all votes of replaced slots are withdrawn from
  every pending entry, then missing entries are resent, and only then complete entries are released.
* A bookie that cannot be replaced because no spare exists is left out while every write set still has Qa others: the
  ledger continues with fewer copies instead of failing. Later ticks look for a replacement again; adds are acknowledged
  meanwhile.
* A bookie that is left out is probed, and on trial when it has answered; a bookie that lags delays callers only for a
  limited time (`core.left_out`).
* A bookie has failed if it answers nothing for `add_timeout_ns`, or if it answers for later entries but not for an
  earlier one for that long.
* A bookie that refuses load (TOOMANYREQUESTS) has not failed: the refused entries, and new entries for it, are held and
  sent again after a pause that doubles up to a limit. The bytes of an entry are kept until every bookie that takes part
  has answered for it; the lag counts towards the caller's limits. A bookie that only refuses for longer than the add
  time-out is replaced if a spare exists, otherwise it stays or is left out as above.
* A bookie that lags for long (it owes answers for many entries that the others have acknowledged) is replaced if a
  spare exists; otherwise it stays or is left out as above.
* With `delay_ensemble_change` a failed bookie is left out, and replaced only when a write set would have less than Qa
  others, or after `ensemble_change_delay_ns_max`.
* Fenced, unauthorised or metadata not OPEN: every pending add ends with "outcome unknown"; the core is FAILED.

In recovery (`is_recovery`) ensemble changes stay local: they are published only by the compare-and-set that closes
the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from bkspark.core import effects, writer_errors
from bkspark.core.limits import WriterLimits
from bkspark.core.metadata import LedgerMetadata, LedgerState
from bkspark.core.pipeline import Pipeline, WriterStart, WriterState
from bkspark.core.placement import FLAT, RandomSource, Topology
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.slots import Phase, Slot, consecutive
from bkspark.core.striping import ENSEMBLE_SIZE_MAX
from bkspark.core.unwell import UnwellBookies
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError
from bkspark.wire.digest import SealedEntries
from bkspark.wire.status import EOK, Status


class WriterCore:
    """Decides what to send, when an entry is acknowledged, and how the ensemble changes."""

    def __init__(
        self,
        start: WriterStart,
        random: RandomSource,
        options: WriterOptions = WriterOptions(),
        *,
        relaxed: RelaxedDurability | None = None,
    ) -> None:
        """`relaxed`: how acknowledged entries become durable; None: they are durable."""
        if start.metadata.ensemble_size > ENSEMBLE_SIZE_MAX:
            raise ValueError(f"an ensemble of {start.metadata.ensemble_size} is above the limit of {ENSEMBLE_SIZE_MAX}")
        self.ledger_id = start.ledger_id
        """The id of the ledger. Constant."""
        self.length = 0
        """Payload bytes of all entries up to the newest. Grows with `add`; a recovery sets it before it adds."""
        self._limits = WriterLimits.of(options)
        """Limits and times, in ns. Constant."""
        self._pipeline = pipeline = Pipeline(start, random, self._limits, relaxed)
        """The writer's state. Changed by this core and its parts."""
        self._unwell = UnwellBookies(pipeline, self._limits)
        """Handles bookies that refuse load, lag, are left out or on trial."""
        self.slots = pipeline.slots
        """The slots of the ensemble. Drivers only read them."""
        self.pending = pipeline.pending
        """Entries that are not acknowledged, or whose bytes are retained. Drivers only read them."""
        self.durability = pipeline.durability
        """Which acknowledged entries are durable. Drivers only read it."""
        self.change = pipeline.change
        """The fragments as this writer knows them. In recovery they may be newer than the stored ones."""

    # ---- what drivers and callers may read ----

    @property
    def state(self) -> WriterState:
        return self._pipeline.state

    @property
    def error(self) -> BookKeeperError | None:
        """Why the writer failed; None exactly if it has not failed."""
        return self._pipeline.error

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as they were last stored or read."""
        return self._pipeline.metadata

    @property
    def version(self) -> int:
        """The version of `metadata`."""
        return self._pipeline.version

    @property
    def lac(self) -> int:
        """The last add confirmed: all up to it is acknowledged, and durable on Qa bookies."""
        return self.durability.lac

    def has_outstanding(self, slot: int) -> bool:
        """Return whether the bookie in `slot` owes an answer, or may lose acknowledged entries when it disconnects."""
        place = self.slots.all[slot]
        return bool(place.owed) or place.is_probed or self.durability.may_lose(place)

    def check_open(self) -> None:
        """Raise an error if the writer accepts no more entries."""
        if self._pipeline.error is not None:
            raise self._pipeline.error
        if self._pipeline.state in (WriterState.CLOSING, WriterState.CLOSED):
            raise writer_errors.closed(self.ledger_id)

    # ---- events: entries and answers ----

    def add(self, entries: SealedEntries, payload_bytes: int, now_ns: int) -> list[effects.WriterEffect]:
        """Add sealed entries that begin at `next_entry`.

        Raises:
            BookKeeperError: the writer is closed or failed; nothing was added.
        """
        self.check_open()
        first_entry = entries.first_entry
        assert first_entry == self.pending.next_entry
        self._pipeline.now_ns = now_ns
        self.pending.add(entries, now_ns)
        self.length += payload_bytes
        done: list[effects.WriterEffect] = []
        is_any_unwell = False
        for slot in self.slots.all:
            if slot.phase is Phase.SERVING:
                done += slot.send(entries, first_entry, now_ns)
            else:
                is_any_unwell = True
        if is_any_unwell:
            done += self._unwell.send_new(entries)
        return done + self.sync() if self.durability.wants_for_space() else done

    def on_add_replies(
        self,
        slot: int,
        bookie: str,
        entry_ids: np.ndarray,
        statuses: np.ndarray,
        now_ns: int,
        last_synced: int | None = None,
    ) -> list[effects.WriterEffect]:
        """Count the answers of the bookie in `slot`; answers of a replaced bookie are ignored.

        `last_synced`: the LastAddSynced in the newest of them, used with relaxed durability.
        """
        self._pipeline.now_ns = now_ns
        place = self.slots.all[slot]
        if self._pipeline.state in (WriterState.FAILED, WriterState.CLOSED) or place.bookie != bookie:
            return []
        place.progress_ns = now_ns
        if last_synced is not None:
            place.last_synced = max(place.last_synced, last_synced)
        done: list[effects.WriterEffect] = []
        has_failed = False
        if statuses.any():
            failed = (statuses != EOK) & (statuses != Status.ETOOMANYREQUESTS)
            has_failed = bool(failed.any())
            status = int(statuses[np.argmax(failed)])
            error = writer_errors.decisive(status, self.ledger_id, self.lac, bookie) if has_failed else None
            if error is not None:
                return self._pipeline.fail(error)
            if not has_failed:
                done += self._unwell.on_refused(place, entry_ids[statuses != EOK])
            entry_ids = entry_ids[statuses == EOK]
        if len(entry_ids):
            span = consecutive(entry_ids)
            place.count_answers(entry_ids, span)
            if place.phase is Phase.LEFT_OUT:
                self._unwell.on_answer_of_left_out(place, entry_ids)
            elif place.refusal is not None:
                done += place.take_again(entry_ids, now_ns)
            self.pending.vote(place.bit, entry_ids, span)
        done += self._pipeline.release()
        self.pending.forget(self.slots, self.durability.retained_after)
        return done + self.on_bookie_failed(slot, bookie, now_ns) if has_failed else done

    def sync(self) -> list[effects.WriterEffect]:
        """Sync everything acknowledged; with relaxed durability `Confirm` reports the progress."""
        self.durability.want()
        return self._pipeline.force()

    def on_forced(self, force: effects.Force, now_ns: int) -> list[effects.WriterEffect]:
        """A bookie carried out a `Force`; a failure calls `on_bookie_failed` instead."""
        self._pipeline.now_ns = now_ns
        if not self._pipeline.takes(force):
            return []
        self.durability.on_forced(force)
        return self._pipeline.release() + self._pipeline.force_again()

    def on_force_lost(self, force: effects.Force, now_ns: int) -> list[effects.WriterEffect]:
        """The connection of a `Force` is lost; the bookie counts as failed only if that matters."""
        self._pipeline.now_ns = now_ns
        if not self._pipeline.takes(force):
            return []
        self.durability.on_gone(self.slots.all[force.slot])
        return self._pipeline.force_again()

    # ---- events: bookies ----

    def on_bookie_failed(self, slot: int, bookie: str, now_ns: int) -> list[effects.WriterEffect]:
        """Begin to replace a bookie that cannot be reached, dropped its connection, or answered with an error."""
        self._pipeline.now_ns = now_ns
        place = self.slots.all[slot]
        if place.bookie != bookie:
            return []
        self.durability.on_gone(place)
        if self._pipeline.state not in (WriterState.ACTIVE, WriterState.CHANGING):
            return []
        if place.phase is Phase.LEFT_OUT:
            return self._pipeline.left_out.on_probe_failed(place, now_ns)
        place.fail()
        if self._pipeline.state is WriterState.CHANGING:
            return []
        if self._limits.delay_ensemble_change and self.change.is_published:
            left_out = self.slots.left_out
            if not self.slots.leave_too_few({slot, *(it.number for it in left_out)}):
                return self._unwell.leave_out_failed()
            for other in left_out:
                other.needs_replacement = True
        return self._pipeline.begin_change()

    def on_silent(self, bookies: Mapping[int, str], now_ns: int) -> list[effects.WriterEffect]:
        """Bookies, by slot, did not answer other requests in time: treat them as failed if Qa cannot be reached without
        one of them."""
        missing = [slot for slot, bookie in bookies.items() if self.slots.all[slot].bookie == bookie]
        if not self.slots.leave_too_few({*missing, *(slot.number for slot in self.slots.left_out)}):
            return []
        return [effect for slot in missing for effect in self.on_bookie_failed(slot, bookies[slot], now_ns)]

    def on_tick(self, now_ns: int, congested: Collection[int] = ()) -> list[effects.WriterEffect]:
        """Notice bookies that fail, lag or hang, probe those that are left out, and look for spare ones.

        Args:
            congested: slots whose connection has so many unsent bytes that callers wait for it.
        """
        self._pipeline.now_ns = now_ns
        for slot in self.slots.all:
            slot.is_congested = slot.number in congested
        done = [*self.slots.probe_refusals(now_ns), *self._unwell.replace_refusing()]
        for slot in self.slots.all:
            if self._pipeline.left_out.has_hung(slot, now_ns):
                done += self.on_bookie_failed(slot.number, slot.bookie, now_ns)
        done += self._unwell.end_trials()
        done += self._unwell.leave_out_lagging()
        done += self._unwell.replace_lagging()
        done += self._unwell.look_after_left_out()
        if self.durability.wants_for_space():
            done += self.sync()
        if self.durability.wants_for_time(now_ns):
            done += self.sync()
        return done + self._pipeline.force()

    def on_writable_bookies(self, writable: Collection[str], topology: Topology = FLAT) -> list[effects.WriterEffect]:
        """Choose replacements for the failed bookies and store them, or continue without them."""
        is_seeking = self.change.end_search()
        self._pipeline.left_out.note_registered(writable, self._pipeline.now_ns)
        lagging: list[Slot] = []
        if is_seeking and self._pipeline.state is WriterState.ACTIVE:
            lagging = self._unwell.sought()
            for slot in (*self._pipeline.left_out.sought(self._pipeline.now_ns), *lagging):
                slot.needs_replacement = True
        elif self._pipeline.state is not WriterState.CHANGING:
            return []
        if not (self.durability.replaces_bookies and self.change.choose(writable, topology)):
            if self._pipeline.state is WriterState.CHANGING:
                return self._pipeline.go_on_without(writable)
            self.change.give_up()
            for slot in lagging:
                slot.keep(self._pipeline.now_ns)
            return []
        self._pipeline.state = WriterState.CHANGING
        if not self.change.is_published:
            return self._pipeline.adopt(self.change.changed(self.lac))
        return [effects.WriteMetadata(self.change.proposal(self._pipeline.metadata, self.lac), self._pipeline.version)]

    # ---- events: metadata ----

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        """The compare-and-set took effect."""
        self._pipeline.metadata, self._pipeline.version = metadata, version
        if self._pipeline.state is WriterState.CLOSING:
            self._pipeline.state = WriterState.CLOSED
            return []
        return self._pipeline.adopt(metadata.fragments) if self._pipeline.state is WriterState.CHANGING else []

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        """The compare-and-set lost; `current` is stored now."""
        if self._pipeline.state is WriterState.CLOSING:
            return self._close_conflict(current, version)
        if self._pipeline.state is not WriterState.CHANGING:
            return []
        if current.state is not LedgerState.OPEN:
            return self._pipeline.fail(writer_errors.lost_to(current, self.ledger_id, self.lac))
        # Re-replication has replaced bookies of earlier fragments, possibly after our own write, whose answer was lost.
        if current.last_fragment == self._pipeline.metadata.last_fragment:
            self._pipeline.metadata, self._pipeline.version = current, version
            return self.change.find(self.slots.to_replace)
        if self.change.is_ours(current.last_fragment, self.lac):
            return self.on_metadata_written(current, version)
        return self._pipeline.fail(writer_errors.lost_to(current, self.ledger_id, self.lac))

    def on_metadata_seen(self, current: LedgerMetadata) -> list[effects.WriterEffect]:
        """`current` was read because a bookie may be a different one now; if it is not OPEN, the writer is fenced."""
        is_over = self._pipeline.state in (WriterState.CLOSING, WriterState.CLOSED, WriterState.FAILED)
        return (
            []
            if is_over or current.state is LedgerState.OPEN
            else self._pipeline.fail(writer_errors.fenced(self.ledger_id, self.lac))
        )

    def on_metadata_failed(self, error: BookKeeperError) -> list[effects.WriterEffect]:
        """The metadata store failed; it is unknown whether the write took effect."""
        self.change.end_search()
        return self._pipeline.fail(error) if self._pipeline.state in (WriterState.CHANGING, WriterState.CLOSING) else []

    # ---- events: the end ----

    def close(self) -> list[effects.WriterEffect]:
        """Close the ledger at the LAC. The caller has drained pending entries, synced, and waited for ACTIVE.

        Raises:
            BookKeeperError: the writer is closed or failed already.
        """
        self.check_open()
        lac = self.lac
        assert lac == self.pending.next_entry - 1
        # Otherwise the answer to an ensemble change in flight would be taken for that of the closing compare-and-set.
        assert self._pipeline.state is WriterState.ACTIVE
        self._pipeline.state = WriterState.CLOSING
        return [effects.WriteMetadata(self._pipeline.metadata.closed(lac, self.length), self._pipeline.version)]

    def give_up(self, error: BookKeeperError) -> list[effects.WriterEffect]:
        """End the writer with `error`, without closing the ledger."""
        return [] if self._pipeline.state in (WriterState.FAILED, WriterState.CLOSED) else self._pipeline.fail(error)

    def _close_conflict(self, current: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        if current.state is LedgerState.CLOSED and current.last_entry == self.lac:
            self._pipeline.metadata, self._pipeline.version = current, version
            self._pipeline.state = WriterState.CLOSED
            return []
        if current.state is LedgerState.OPEN and current.last_fragment == self._pipeline.metadata.last_fragment:
            self._pipeline.metadata, self._pipeline.version = current, version
            return [effects.WriteMetadata(current.closed(self.lac, self.length), version)]
        return self._pipeline.fail(writer_errors.lost_to(current, self.ledger_id, self.lac))
