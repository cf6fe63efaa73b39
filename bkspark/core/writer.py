"""WriterCore: the add pipeline of one ledger, decisions only.

It is composed of the slots of the ensemble (`core.slots`), unacknowledged entries (`core.pending`), durability
(`core.durability`), the change of the ensemble (`core.ensemble`), and slow bookies (`core.left_out`). This module has
the states and the order of steps.

States: ACTIVE -> CHANGING <-> ACTIVE -> CLOSING -> CLOSED, and from any of them FAILED, which is final.

Events: `add`, `on_add_replies`, `on_bookie_failed`, `on_silent`, `on_tick`, `on_writable_bookies`,
`on_metadata_written`, `on_metadata_conflict`, `on_metadata_failed`, `close`. Each returns effects, to be performed in
order.

Invariants:
* Entries are acknowledged strictly in id order, each when Qa bookies *of the ensemble that the metadata names for it*
  have it. Which bookies have an entry is one bit mask per pending entry; "may be acknowledged" is derived from it and
  never stored, so that withdrawing the votes of a replaced bookie needs no flag to be undone.
* An ensemble change begins at LAC + 1. From the decision until the compare-and-set succeeded nothing is released (LAC
  cannot move), and no entry goes to a new bookie. After it all votes of replaced slots are withdrawn from every pending
  entry, then missing entries are resent, and only then complete entries are released.
* A bookie that cannot be replaced because no spare exists is left out while every write set still has Qa others: the
  ledger continues with fewer copies instead of failing. Later ticks look for a replacement again; adds are acknowledged
  meanwhile.
* A bookie that is left out is probed, and on trial when it has answered; a bookie that lags delays callers only for a
  limited time (`core.left_out`).
* A bookie that stays silent for `add_timeout_ns`, or answers for later entries and not for an earlier one for as long,
  has failed.
* A bookie that refuses load (TOOMANYREQUESTS) has not failed: the refused entries, and new entries for it, are held and
  sent again after a pause that doubles up to a limit. The bytes of an entry are kept until every bookie that takes part
  has answered for it; the lag counts towards the caller's limits. A bookie that only refuses for longer than the add
  time-out is replaced if a spare exists, otherwise it stays or is left out as above.
* A bookie that lags (it owes answers for many entries that the others have acknowledged) for long is replaced if a
  spare exists, otherwise it stays or is left out as above.
* With `delay_ensemble_change` a failed bookie is left out, and replaced only when a write set would have less than Qa
  others, or after `ensemble_change_delay_ns_max`.
* Fenced, unauthorised or metadata not OPEN: every pending add ends with "outcome unknown"; the core is FAILED.

In recovery (`is_recovery`) ensemble changes stay local: they are published only by the compare-and-set that closes
the ledger.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import numpy as np

from bkspark.core import effects, writer_errors
from bkspark.core.durability import Durability, Relaxed, Synced
from bkspark.core.ensemble import EnsembleChange
from bkspark.core.left_out import LeftOutBookies
from bkspark.core.limits import WriterLimits
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.owed import consecutive
from bkspark.core.pending import PendingEntries
from bkspark.core.placement import FLAT, RandomSource, Topology
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.slots import Phase, Slot, Slots
from bkspark.core.striping import ENSEMBLE_SIZE_MAX
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, LedgerClosed
from bkspark.ids import NO_ENTRY
from bkspark.wire.digest import SealedEntries
from bkspark.wire.status import EOK, Status


class WriterState(enum.Enum):
    ACTIVE = enum.auto()
    CHANGING = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()
    FAILED = enum.auto()


class WriterCore:
    """Decides what to send, when an entry is acknowledged, and how the ensemble changes."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        random: RandomSource,
        options: WriterOptions = WriterOptions(),
        *,
        is_recovery: bool = False,
        lac: int = NO_ENTRY,
        relaxed: RelaxedDurability | None = None,
    ) -> None:
        """Begin at the end of a ledger.

        Args:
            lac: the last existing entry.
            relaxed: how acknowledged entries become durable; None: they are durable.
        """
        if metadata.ensemble_size > ENSEMBLE_SIZE_MAX:
            raise ValueError(f"an ensemble of {metadata.ensemble_size} is above the limit of {ENSEMBLE_SIZE_MAX}")
        self.ledger_id = ledger_id
        """Constant."""
        self.metadata = metadata
        """The metadata as they were last stored or read. Changed when a compare-and-set is decided."""
        self.version = version
        """The version of `metadata`; they change together."""
        self.state = WriterState.ACTIVE
        """See the module's text. FAILED exactly when `error` is set."""
        self.error: BookKeeperError | None = None
        """Why the writer failed. Set once."""
        self.length = 0
        """Payload bytes of all entries up to the newest. Grows with `add`; a recovery sets it before it adds."""
        self._limits = WriterLimits.of(options)
        """Constant."""
        self._now_ns = 0
        """When the last event that carries a time happened."""
        self._slots = Slots(metadata, lac)
        """The slots of the ensemble. They belong to this core; its parts share them."""
        self._pending = PendingEntries(lac)
        """Unacknowledged and retained entries. They belong to this core; its parts read them."""
        self._durability: Durability = (
            Synced(self._pending) if relaxed is None else Relaxed(self._slots, self._pending, relaxed)
        )
        """The kind of durability. Chosen once."""
        self._change = EnsembleChange(self._slots, metadata.fragments, random, is_published=not is_recovery)
        """The current change while CHANGING, and look-ups of bookies."""
        self._left_out = LeftOutBookies(self._slots, self._pending, self._limits)
        """Which bookies are too slow, and which come back."""

    # ---- what drivers and callers may read ----

    @property
    def lac(self) -> int:
        """The last add confirmed: all up to it is acknowledged, and durable on Qa bookies."""
        return self._durability.lac

    @property
    def acknowledged(self) -> int:
        """The last entry that is acknowledged; with relaxed durability it may be above the LAC."""
        return self._pending.acknowledged

    @property
    def next_entry(self) -> int:
        """The id that the next entry gets."""
        return self._pending.next_entry

    @property
    def pending_count(self) -> int:
        """Entries added and not yet acknowledged."""
        return self._pending.count

    @property
    def kept_bytes(self) -> int:
        """Bytes of sealed entries that are retained: pending ones, and those that may have to be sent again."""
        return self._pending.kept_bytes

    @property
    def unsynced_bytes_max(self) -> int | None:
        """Limit of `kept_bytes` if entries are retained until they are synced; None: they are not."""
        return self._durability.unsynced_bytes_max

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that new entries go to, by slot."""
        return self._slots.ensemble

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments as this writer knows them; in recovery they may be ahead of the stored ones."""
        return self._change.fragments

    @property
    def outstanding_max(self) -> int:
        """Sent and unanswered adds at the slowest bookie that may delay callers."""
        return self._slots.outstanding_max

    def may_hold_back(self, slot: int) -> bool:
        """Return whether callers wait for the bookie in `slot` when it owes too many answers."""
        return self._slots.all[slot].takes_part

    def has_outstanding(self, slot: int) -> bool:
        """Return whether the bookie in `slot` owes an answer, or may lose acknowledged entries when it disconnects."""
        place = self._slots.all[slot]
        return bool(place.owed) or place.is_probed or self._durability.may_lose(place)

    def check_open(self) -> None:
        """Raise an error if the writer takes no more entries."""
        if self.error is not None:
            raise self.error
        if self.state in (WriterState.CLOSING, WriterState.CLOSED):
            raise LedgerClosed(f"ledger {self.ledger_id} is closed", ledger_id=self.ledger_id)

    # ---- events: entries and answers ----

    def add(self, entries: SealedEntries, payload_bytes: int, now_ns: int) -> list[effects.WriterEffect]:
        """Add sealed entries that begin at `next_entry`.

        Raises:
            BookKeeperError: the writer is closed or failed; nothing was added.
        """
        self.check_open()
        first_entry = entries.first_entry
        assert first_entry == self._pending.next_entry
        self._now_ns = now_ns
        self._pending.add(entries, now_ns)
        self.length += payload_bytes
        if self._slots.are_all_serving:
            done: list[effects.WriterEffect] = []
            for slot in self._slots.all:
                done += slot.send(entries, first_entry, now_ns)
        else:
            done = self._send_to_some(entries)
        return done + self.sync() if self._durability.wants_for_space() else done

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

        `last_synced`: the LastAddSynced in the newest of them, which counts where durability is relaxed.
        """
        self._now_ns = now_ns
        place = self._slots.all[slot]
        if self.state in (WriterState.FAILED, WriterState.CLOSED) or place.bookie != bookie:
            return []
        place.progress_ns = now_ns
        if last_synced is not None:
            place.last_synced = max(place.last_synced, last_synced)
        done: list[effects.WriterEffect] = []
        has_failed = False
        if statuses.item() if len(statuses) == 1 else statuses.any():
            failed = (statuses != EOK) & (statuses != Status.ETOOMANYREQUESTS)
            has_failed = bool(failed.any())
            status = int(statuses[np.argmax(failed)])
            error = writer_errors.decisive(status, self.ledger_id, self.lac, bookie) if has_failed else None
            if error is not None:
                return self._fail(error)
            if not has_failed:
                done += self._on_refused(place, entry_ids[statuses != EOK])
            entry_ids = entry_ids[statuses == EOK]
        if len(entry_ids):
            span = consecutive(entry_ids)
            place.count_answers(entry_ids, span)
            if place.phase is Phase.LEFT_OUT:
                self._on_answer_of_left_out(place, entry_ids)
            elif place.refusal is not None:
                done += place.take_again(entry_ids, now_ns)
            self._pending.vote(place.bit, entry_ids, span)
        done += self._release()
        self._pending.forget(self._slots, self._durability.retained_after)
        return done + self.on_bookie_failed(slot, bookie, now_ns) if has_failed else done

    def sync(self) -> list[effects.WriterEffect]:
        """Sync everything acknowledged; with relaxed durability `Confirm` reports the progress."""
        self._durability.want()
        return self._force()

    def on_forced(self, force: effects.Force, now_ns: int) -> list[effects.WriterEffect]:
        """A bookie carried out a `Force`; a failure calls `on_bookie_failed` instead."""
        self._now_ns = now_ns
        if not self._takes(force):
            return []
        self._durability.on_forced(force)
        return self._release() + self._force_again()

    def on_force_lost(self, force: effects.Force, now_ns: int) -> list[effects.WriterEffect]:
        """The connection of a `Force` is lost; the bookie counts as failed only if that matters."""
        self._now_ns = now_ns
        if not self._takes(force):
            return []
        self._durability.on_gone(self._slots.all[force.slot])
        return self._force_again()

    # ---- events: bookies ----

    def on_bookie_failed(self, slot: int, bookie: str, now_ns: int) -> list[effects.WriterEffect]:
        """Begin to replace a bookie that cannot be reached, dropped its connection, or answered with an error."""
        self._now_ns = now_ns
        place = self._slots.all[slot]
        if place.bookie != bookie:
            return []
        self._durability.on_gone(place)
        if self.state not in (WriterState.ACTIVE, WriterState.CHANGING):
            return []
        if place.phase is Phase.LEFT_OUT:
            return self._left_out.on_probe_failed(place, now_ns)
        place.fail()
        if self.state is WriterState.CHANGING:
            return []
        if self._limits.delay_ensemble_change and self._change.is_published:
            left_out = self._slots.left_out
            if not self._slots.leave_too_few({slot, *(it.number for it in left_out)}):
                return self._leave_out_failed()
            for other in left_out:
                other.needs_replacement = True
        return self._begin_change()

    def on_silent(self, bookies: Mapping[int, str], now_ns: int) -> list[effects.WriterEffect]:
        """Bookies, by slot, did not answer other requests in time: do not wait for them if Qa needs one of them."""
        missing = [slot for slot, bookie in bookies.items() if self._slots.all[slot].bookie == bookie]
        if not self._slots.leave_too_few({*missing, *(slot.number for slot in self._slots.left_out)}):
            return []
        return [effect for slot in missing for effect in self.on_bookie_failed(slot, bookies[slot], now_ns)]

    def on_tick(self, now_ns: int, congested: Collection[int] = ()) -> list[effects.WriterEffect]:
        """Notice bookies that fail, lag or hang, probe those that are left out, and look for spare ones.

        Args:
            congested: slots whose connection has so many unsent bytes that callers wait for it.
        """
        self._now_ns = now_ns
        for slot in self._slots.all:
            slot.is_congested = slot.number in congested
        done = [*self._slots.probe_refusals(now_ns), *self._replace_refusing()]
        for slot in self._slots.all:
            if self._left_out.has_hung(slot, now_ns):
                done += self.on_bookie_failed(slot.number, slot.bookie, now_ns)
        done += self._end_trials()
        done += self._leave_out_lagging()
        done += self._replace_lagging()
        done += self._look_after_left_out()
        if self._durability.wants_for_space():
            done += self.sync()
        if self._durability.wants_for_time(now_ns):
            done += self.sync()
        return done + self._force()

    def on_writable_bookies(self, writable: Collection[str], topology: Topology = FLAT) -> list[effects.WriterEffect]:
        """Choose replacements for the failed bookies and store them, or continue without them."""
        is_seeking = self._change.end_search()
        self._left_out.note_registered(writable, self._now_ns)
        if is_seeking and self.state is WriterState.ACTIVE:
            for slot in self._left_out.sought(self._now_ns):
                slot.needs_replacement = True
        elif self.state is not WriterState.CHANGING:
            return []
        if not (self._durability.replaces_bookies and self._change.choose(writable, topology)):
            if self.state is WriterState.CHANGING:
                return self._go_on_without(writable)
            self._change.give_up()
            return []
        self.state = WriterState.CHANGING
        if not self._change.is_published:
            return self._adopt(self._change.changed(self.lac))
        return [effects.WriteMetadata(self._change.proposal(self.metadata, self.lac), self.version)]

    # ---- events: metadata ----

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        """The compare-and-set took effect."""
        self.metadata, self.version = metadata, version
        if self.state is WriterState.CLOSING:
            self.state = WriterState.CLOSED
            return []
        return self._adopt(metadata.fragments) if self.state is WriterState.CHANGING else []

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        """The compare-and-set lost; `current` is stored now."""
        if self.state is WriterState.CLOSING:
            return self._close_conflict(current, version)
        if self.state is not WriterState.CHANGING:
            return []
        if current.state is not LedgerState.OPEN:
            return self._fail(writer_errors.lost_to(current, self.ledger_id, self.lac))
        # Re-replication renamed bookies of earlier fragments, perhaps after our own write, whose answer was lost.
        if current.last_fragment == self.metadata.last_fragment:
            self.metadata, self.version = current, version
            self._change.follow(current.fragments)
            return self._change.find(self._slots.to_replace)
        if self._change.is_ours(current.last_fragment, self.lac):
            return self.on_metadata_written(current, version)
        return self._fail(writer_errors.lost_to(current, self.ledger_id, self.lac))

    def on_metadata_seen(self, current: LedgerMetadata) -> list[effects.WriterEffect]:
        """`current` was read because a bookie may be a different one now; if it is not OPEN, the writer is fenced."""
        is_over = self.state in (WriterState.CLOSING, WriterState.CLOSED, WriterState.FAILED)
        return (
            []
            if is_over or current.state is LedgerState.OPEN
            else self._fail(writer_errors.fenced(self.ledger_id, self.lac))
        )

    def on_metadata_failed(self, error: BookKeeperError) -> list[effects.WriterEffect]:
        """The metadata store failed; it is unknown whether the write took effect."""
        self._change.end_search()
        return self._fail(error) if self.state in (WriterState.CHANGING, WriterState.CLOSING) else []

    # ---- events: the end ----

    def close(self) -> list[effects.WriterEffect]:
        """Close the ledger at the LAC. The caller has drained pending entries, synced, and waited for ACTIVE.

        Raises:
            BookKeeperError: the writer is closed or failed already.
        """
        self.check_open()
        assert self.lac == self.next_entry - 1
        # A compare-and-set of an ensemble change in flight would be taken for the closing one.
        assert self.state is WriterState.ACTIVE
        self.state = WriterState.CLOSING
        return [effects.WriteMetadata(self.metadata.closed(self.lac, self.length), self.version)]

    def give_up(self, error: BookKeeperError) -> list[effects.WriterEffect]:
        """End the writer without closing the ledger (its owner ends)."""
        return [] if self.state in (WriterState.FAILED, WriterState.CLOSED) else self._fail(error)

    # ---- sending, acknowledging, confirming ----

    def _send_to_some(self, entries: SealedEntries) -> list[effects.WriterEffect]:
        """Send new entries to the bookies that get them, while not every bookie is SERVING."""
        done: list[effects.WriterEffect] = []
        first_entry = entries.first_entry
        for slot in self._slots.all:
            if slot.is_served:
                done += slot.send_or_hold(entries, first_entry, self._now_ns)
        for slot in self._slots.all:
            if slot.trial is not None:
                done += slot.send_on_trial(entries, first_entry, self._now_ns)
            elif slot.phase is Phase.LEFT_OUT:
                self._left_out.on_added(entries)
        return done

    def _release(self) -> list[effects.WriterEffect]:
        """Acknowledge and confirm as many entries as possible; nothing while the ensemble changes."""
        if self.state is WriterState.CHANGING:
            return []
        done: list[effects.WriterEffect] = []
        if self._pending.release(self._slots):
            done.append(effects.Acknowledge(self._pending.acknowledged))
        confirmed = self._durability.confirm(self._now_ns)
        if confirmed:
            self._forget()
        return done + confirmed

    def _forget(self) -> None:
        """Release the bytes that no bookie needs any more."""
        self._pending.forget(self._slots, self._durability.retained_after)

    def _takes(self, force: effects.Force) -> bool:
        """Return whether the outcome of a force counts."""
        is_over = self.state in (WriterState.FAILED, WriterState.CLOSED)
        return not is_over and self._durability.takes(force)

    def _force(self) -> list[effects.WriterEffect]:
        return self._durability.force() if self.state is WriterState.ACTIVE else []

    def _force_again(self) -> list[effects.WriterEffect]:
        """A force is over: send another, wait for adds in flight, or give up if neither suffices."""
        if self.state is not WriterState.ACTIVE:
            return []
        if not self._durability.is_lost():
            return self._durability.force(is_again=True)
        return self._fail(writer_errors.cannot_be_synced(self.ledger_id, self.lac, self.ensemble))

    # ---- bookies that refuse load ----

    def _on_refused(self, slot: Slot, entry_ids: np.ndarray) -> list[effects.WriterEffect]:
        """A bookie refuses load (TOOMANYREQUESTS)."""
        if slot.phase is Phase.LEFT_OUT:
            return self._left_out.on_probe_failed(slot, self._now_ns)
        if slot.phase is not Phase.ON_TRIAL:
            refusal = slot.hold(entry_ids, self._pending.sends(slot, entry_ids), self._limits, self._now_ns)
            if refusal.probed != NO_ENTRY:
                # Nothing is due before the probe is answered.
                return []
            return [effects.CallAfter(max(0, refusal.retry_at_ns - self._now_ns))]
        if self._slots.can_do_without(slot):
            return self._leave_out(slot)
        # It is needed: it gets all pending entries, now or when the ensemble change is over.
        return self._end_trials()

    def _replace_refusing(self) -> list[effects.WriterEffect]:
        """Look for a spare to replace a bookie that has only refused for too long."""
        if self.state is not WriterState.ACTIVE:
            return []
        for slot in self._slots.all:
            if slot.refusal is not None and self._now_ns - slot.refusal.since_ns > self._limits.add_timeout_ns:
                slot.needs_replacement = True
                return self._begin_change()
        return []

    # ---- bookies that lag, are left out, or come back ----

    def _leave_out_lagging(self) -> list[effects.WriterEffect]:
        """Continue without bookies that delay callers for too long."""
        done: list[effects.WriterEffect] = []
        if self.state is WriterState.ACTIVE:
            for slot in self._slots.all:
                if self._left_out.is_held_back(slot, self.lac, self._now_ns) and self._slots.can_do_without(slot):
                    done += self._leave_out(slot)
        return done

    def _leave_out(self, slot: Slot) -> list[effects.WriterEffect]:
        """Continue without a bookie that has not failed; look for a spare if it stays left out for `slow_lag_ns`."""
        self._durability.on_gone(slot)
        self._left_out.on_left_out(slot)
        slot.sought_from_ns = self._now_ns + self._limits.slow_lag_ns
        self._forget()
        return [effects.DropIfSilent(slot.bookie), *self._release()]

    def _leave_out_failed(self) -> list[effects.WriterEffect]:
        """Continue without the failed bookies for now, and without a change."""
        if not self._slots.left_out:
            self._left_out.begin_delay(self._now_ns)
        for slot in self._slots.to_replace:
            self._left_out.on_left_out(slot)
        self._forget()
        return self._release()

    def _replace_lagging(self) -> list[effects.WriterEffect]:
        """Look for spares to replace bookies that have lagged for too long."""
        if self.state is not WriterState.ACTIVE:
            return []
        now_ns, lac = self._now_ns, self.lac
        for slot in self._slots.all:
            if slot.phase is not Phase.SERVING or not self._left_out.lags(slot, lac):
                slot.lag_since_ns = None
            elif slot.lag_since_ns is None:
                slot.lag_since_ns = now_ns
            elif now_ns - slot.lag_since_ns > self._limits.slow_lag_ns:
                slot.needs_replacement = True
        return self._begin_change() if self._slots.to_replace else []

    def _end_trials(self) -> list[effects.WriterEffect]:
        """Decide about the bookies on trial: those that pass, or are needed, get all pending entries; others may be
        left out."""
        done: list[effects.WriterEffect] = []
        for slot in self._slots.all:
            if slot.trial is None or self.state is not WriterState.ACTIVE:
                continue
            if not self._slots.can_do_without(slot) or self._left_out.passes(slot, self._now_ns):
                self._take_back(slot)
                done += self._resume({slot.number})
            elif self._left_out.fails(slot, self._now_ns):
                done += self._leave_out(slot)
        return done

    def _on_answer_of_left_out(self, slot: Slot, entry_ids: np.ndarray) -> None:
        """A bookie that is left out has these entries; with the probe's among them it takes part again, on trial."""
        if not self._left_out.is_probe_answered(slot, entry_ids):
            return
        may_return = self.state is WriterState.ACTIVE
        self._left_out.on_probe_answered(slot, self._now_ns, may_return=may_return)
        if may_return:
            self._take_back(slot)
            slot.begin_trial(self._pending.next_entry, self._now_ns)

    def _take_back(self, slot: Slot) -> None:
        """A bookie that was left out takes part again: its votes count for entries that it gets from now on."""
        self._pending.withdraw(slot.bit)
        slot.take_back(self._pending.first_retained(self.lac), self._now_ns)
        self._left_out.on_taken_back()

    def _look_after_left_out(self) -> list[effects.WriterEffect]:
        """Probe the bookies that are left out, and look for spares at intervals."""
        left_out, now_ns = self._slots.left_out, self._now_ns
        if not left_out or self.state not in (WriterState.ACTIVE, WriterState.CHANGING):
            return []
        done = [effect for slot in left_out for effect in self._left_out.probe(slot, now_ns)]
        is_due = self.state is WriterState.ACTIVE and self._left_out.is_search_due(now_ns)
        if not is_due or self._change.is_finding:
            return done
        if self._slots.leave_too_few([slot.number for slot in left_out]):
            # Others have failed since: the registered ones are needed, whether or not they answer probes.
            self._left_out.begin_search(now_ns)
            for slot in left_out:
                slot.needs_replacement = True
            return done + self._begin_change()
        sought = self._left_out.sought(now_ns)
        if not sought:
            return done
        self._left_out.begin_search(now_ns)
        return done + self._change.find(sought, is_seeking=True)

    # ---- ensemble changes ----

    def _begin_change(self) -> list[effects.WriterEffect]:
        self.state = WriterState.CHANGING
        return self._change.find(self._slots.to_replace)

    def _go_on_without(self, writable: Collection[str]) -> list[effects.WriterEffect]:
        """No spare bookie: leave the failed ones out if Qa others remain in every write set, else fail."""
        slots = self._slots
        for slot in slots.to_replace:
            if slot.is_excused:
                slot.keep(self._now_ns)
        if not slots.to_replace:
            return self._resume(set())
        missing = [slot for slot in slots.all if slot.phase is Phase.LEFT_OUT or slot.needs_replacement]
        back: set[int] = set()
        if slots.leave_too_few([slot.number for slot in missing]):
            # The writer would fail without them: wait for them, though they have not answered a probe.
            returning = [slot for slot in slots.left_out if slot.bookie in writable]
            if not returning:
                return self._fail(writer_errors.not_enough(self.ledger_id, self.lac, [slot.bookie for slot in missing]))
            for slot in returning:
                self._take_back(slot)
                back.add(slot.number)
        else:
            self._left_out.note_search(self._now_ns)
        for slot in slots.to_replace:
            if slot.phase is not Phase.LEFT_OUT:
                self._left_out.on_left_out(slot)
        return self._resume(back)

    def _adopt(self, fragments: tuple[Fragment, ...]) -> list[effects.WriterEffect]:
        """The new ensemble takes effect: withdraw votes of replaced slots everywhere, then resend, then release."""
        lac = self.lac
        first_entry = self._pending.first_retained(lac)
        replaced = self._change.adopt(fragments)
        for slot, bookie in replaced:
            self._durability.on_gone(slot)
            slot.replace(bookie, first_entry, lac, self._now_ns)
            self._pending.withdraw(slot.bit)
        return self._resume({slot.number for slot, _ in replaced})

    def _resume(self, resend_to: set[int]) -> list[effects.WriterEffect]:
        """Send all retained entries to the given slots; then continue changing (more failed meanwhile) or release."""
        done: list[effects.WriterEffect] = []
        for slot in self._slots.all:
            if slot.number in resend_to:
                for entries in self._pending.batches:
                    done += slot.send(entries, self.lac + 1, self._now_ns)
            if slot.phase is Phase.LEFT_OUT:
                slot.needs_replacement = False
        if self._slots.to_replace:
            return done + self._change.find(self._slots.to_replace)
        self.state = WriterState.ACTIVE
        self._forget()
        return done + self._release() + self._force()

    # ---- the end ----

    def _fail(self, error: BookKeeperError) -> list[effects.WriterEffect]:
        self.state = WriterState.FAILED
        self.error = error
        self._pending.clear()
        self._left_out.on_ended()
        for slot in self._slots.all:
            slot.end()
        return [effects.Fail(error)]

    def _close_conflict(self, current: LedgerMetadata, version: int) -> list[effects.WriterEffect]:
        if current.state is LedgerState.CLOSED and current.last_entry == self.lac:
            self.metadata, self.version = current, version
            self.state = WriterState.CLOSED
            return []
        if current.state is LedgerState.OPEN and current.last_fragment == self.metadata.last_fragment:
            self.metadata, self.version = current, version
            return [effects.WriteMetadata(current.closed(self.lac, self.length), version)]
        return self._fail(writer_errors.lost_to(current, self.ledger_id, self.lac))
