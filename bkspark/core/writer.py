"""WriterCore: the add pipeline of one ledger, decisions only.

States: ACTIVE -> CHANGING <-> ACTIVE -> CLOSING -> CLOSED, and from any of them FAILED, which is final.

Events: `add`, `on_add_replies`, `on_bookie_failed`, `on_silent`, `on_tick`, `on_writable_bookies`,
`on_metadata_written`, `on_metadata_conflict`, `on_metadata_failed`, `close`. Each returns effects, to be performed in
order.

Invariants:
* Entries are acknowledged strictly in id order, each when Qa bookies *of the ensemble that the metadata names for it*
  have it. Which bookies have an entry is one bit mask per pending entry; "acknowledged" is derived from it and never
  stored, so that withdrawing the votes of a replaced bookie needs no flag to be undone.
* An ensemble change begins at LAC + 1. From the decision until the compare-and-set succeeded nothing is released (LAC
  cannot move), and no entry goes to a new bookie. After it all votes of replaced slots are withdrawn from every
  pending entry, then what is missing is resent, and only then ripe entries are released.
* A bookie that cannot be replaced because no spare one exists is left out while every write set still has Qa others:
  the ledger goes on with fewer copies rather than fail. A replacement is looked for again on later ticks; adds are
  acknowledged meanwhile.
* A bookie that is left out is probed: it gets one entry, in an ordinary add, which goes through its journal and is the
  same in V2 and V3. It takes part again only when it has acknowledged that in `add_timeout_ns`; a registration proves
  nothing, as a bookie that hangs stays registered. The pause before the next probe doubles up to a limit, also when a
  bookie that came back is left out again soon. A bookie that registers anew is probed at once. Only where the writer
  would fail without it is a registered bookie taken back unasked.
* A bookie that answered its probe is on trial for `trial_ns`. It gets new entries while few are on their way to it, and
  holds no caller back, nor the bytes of any entry. It is left out again as soon as it refuses load or is silent for
  `hold_back_ns_max`, and when it has skipped an entry or answered for too few. Then it gets all that is pending, and
  what comes. What was acknowledged before that it never gets from the writer: those entries have Qa copies or more,
  and the periodic check of autorecovery finds and copies what it lacks (docs/autorecovery.md). A bookie without which
  the writer would fail is on trial no longer.
* A bookie that lags holds callers back, and only for so long: once it is `hold_back_ns_max` behind the acknowledgements
  it is left out, where every write set has Qa others. One that is merely slower than the others sets the pace.
* A bookie that stays silent for `add_timeout_ns`, or answers for later entries and not for an earlier one for as long,
  has failed.
* A bookie that refuses load (TOOMANYREQUESTS) has not failed: what it refused, and what comes for it meanwhile, is held
  back and sent again after a pause that doubles up to a limit. The bytes of an entry are kept until every bookie that
  takes part has answered for it; the lag counts towards the caller's limits. A bookie that does nothing but refuse for
  longer than the add time-out is replaced where a spare one exists, and else stays or is left out as above.
* A bookie that lags (it owes answers for many entries that the others have acknowledged) for long is replaced where a
  spare one exists, and else stays or is left out as above.
* With `delay_ensemble_change` a failed bookie is left out, and replaced only when a write set would have less than Qa
  others, or after `ensemble_change_delay_ns_max`.
* Fenced, unauthorised or metadata not OPEN: every pending add ends with "outcome unknown"; the core is FAILED.

In recovery (`is_recovery`) ensemble changes stay local: they are published only by the compare-and-set that closes
the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from bkspark.core import effects
from bkspark.core.add_pipeline import WriterLimits
from bkspark.core.left_out import LeftOutBookies, WriterState
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState, change_ensemble
from bkspark.core.owed import consecutive
from bkspark.core.placement import FLAT, RandomSource, Topology, choose_replacements
from bkspark.core.striping import ENSEMBLE_SIZE_MAX, write_set_masks
from bkspark.errors import BookKeeperError, LedgerClosed, LedgerFenced, NotEnoughBookies, UnauthorizedAccess
from bkspark.wire.digest import SealedEntries
from bkspark.wire.status import EOK, Status

__all__ = ["WriterCore", "WriterState"]


class WriterCore(LeftOutBookies):
    """Decides what to send, when an entry is acknowledged, and how the ensemble changes."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        random: RandomSource,
        limits: WriterLimits = WriterLimits(),
        *,
        is_recovery: bool = False,
        lac: int = -1,
    ) -> None:
        if metadata.ensemble_size > ENSEMBLE_SIZE_MAX:
            raise ValueError(f"an ensemble of {metadata.ensemble_size} is above the limit of {ENSEMBLE_SIZE_MAX}")
        super().__init__(metadata, limits, lac)
        self.ledger_id = ledger_id
        self.version = version
        self.error: BookKeeperError | None = None
        self.length = 0
        self._random = random
        self._is_recovery = is_recovery
        self._fragments: tuple[Fragment, ...] = metadata.fragments
        self._proposed: list[str] = []

    # ---- what drivers and callers may look at ----

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments as this writer knows them; in recovery they may be ahead of the stored ones."""
        return self._fragments

    @property
    def unsynced_bytes_max(self) -> int | None:
        """What `kept_bytes` may come to where entries are kept until they are synced; None: they are not."""
        return None

    def check_open(self) -> None:
        """Raise why the writer takes no more entries, if it does not."""
        if self.error is not None:
            raise self.error
        if self.state in (WriterState.CLOSING, WriterState.CLOSED):
            raise LedgerClosed(f"ledger {self.ledger_id} is closed", ledger_id=self.ledger_id)

    # ---- events ----

    def add(self, entries: SealedEntries, payload_bytes: int, now_ns: int) -> list[effects.Effect]:
        """Add sealed entries that begin at `next_entry`.

        Raises:
            BookKeeperError: the writer is closed or failed; nothing was added.
        """
        self.check_open()
        assert entries.first_entry == self.next_entry
        self._now_ns = now_ns
        count = len(entries)
        self._reserve(self._pending_count + count)
        self._votes[self._pending_count : self._pending_count + count] = 0
        self._pending.append(entries)
        self._added_ns.append(now_ns)
        self._pending_bytes += len(entries.buffer)
        self._pending_count += count
        self.length += payload_bytes
        if self._absent:
            self._recent = entries
        slots = range(len(self._ensemble))
        if not (self._absent or self._failed or self._refusals or self._trials):
            return [send for slot in slots for send in self._send(slot, entries)]
        sends = [send for slot in slots if self._is_served(slot) for send in self._send_or_hold(slot, entries)]
        return [*sends, *self._send_on_trials(entries)] if self._trials else sends

    def on_add_replies(
        self,
        slot: int,
        bookie: str,
        entry_ids: np.ndarray,
        statuses: np.ndarray,
        now_ns: int,
        last_synced: int | None = None,
    ) -> list[effects.Effect]:
        """Count the answers of the bookie in `slot`; answers of a bookie no longer there are ignored.

        `last_synced`: the LastAddSynced in the newest of them, which counts where durability is relaxed.
        """
        self._now_ns = now_ns
        if self.state in (WriterState.FAILED, WriterState.CLOSED) or self._ensemble[slot] != bookie:
            return []
        self._progress_ns[slot] = now_ns
        done: list[effects.Effect] = []
        has_failed = False
        if statuses.item() if len(statuses) == 1 else statuses.any():
            failed = (statuses != EOK) & (statuses != Status.ETOOMANYREQUESTS)
            has_failed = bool(failed.any())
            error = self._refusal(int(statuses[np.argmax(failed)]), bookie) if has_failed else None
            if error is not None:
                return self._fail(error)
            if not has_failed:
                done += self._refused(slot, entry_ids[statuses != EOK])
            entry_ids = entry_ids[statuses == EOK]
        if len(entry_ids):
            span = consecutive(entry_ids)
            self._count_answers(slot, entry_ids, span)
            if slot in self._absent:
                done += self._on_probe_answered(slot, entry_ids)
            if self._refusals and slot in self._refusals and (entry_ids == self._refusals[slot].probed).any():
                done += self._taken_again(slot)
            # A vote counts only for entries whose write set names the slot.
            self._votes[self._pending_rows(entry_ids, span)] |= np.uint64(1 << slot)
        done += self._release()
        self._forget()
        return done + self.on_bookie_failed(slot, bookie, now_ns) if has_failed else done

    def on_bookie_failed(self, slot: int, bookie: str, now_ns: int) -> list[effects.Effect]:
        """Begin to replace a bookie that cannot be reached, dropped its connection, or answered with an error."""
        self._now_ns = now_ns
        if self.state not in (WriterState.ACTIVE, WriterState.CHANGING) or self._ensemble[slot] != bookie:
            return []
        self._refusals.pop(slot, None)
        self._lag_since.pop(slot, None)
        self._trials.pop(slot, None)
        if slot in self._absent:
            return self._on_probe_failed(slot)
        self._forgive(slot)
        if slot in self._failed:
            return []
        self._failed[slot] = bookie
        if self.state is WriterState.CHANGING:
            return []
        if self._limits.delay_ensemble_change and not self._is_recovery:
            if not self._leaves_too_few({*self._absent, *self._failed}):
                return self._leave_out()
            self._failed.update(self._absent)
        self.state = WriterState.CHANGING
        return self._find_bookies()

    def on_silent(self, bookies: Mapping[int, str], now_ns: int) -> list[effects.Effect]:
        """Bookies, by slot, did not answer other requests in time: do not wait for them where Qa needs one of them."""
        missing = [slot for slot, bookie in bookies.items() if self._ensemble[slot] == bookie]
        if not self._leaves_too_few({*self._absent, *missing}):
            return []
        return [effect for slot in missing for effect in self.on_bookie_failed(slot, bookies[slot], now_ns)]

    def on_tick(self, now_ns: int, congested: Collection[int] = ()) -> list[effects.Effect]:
        """Notice bookies that fail, lag or hang, probe those that are left out, and look for spare ones.

        Args:
            congested: slots whose connection has taken so few bytes that callers wait for it.
        """
        self._now_ns = now_ns
        self._congested = congested
        done = [*self._probe_refused(), *self._replace_refusing()]
        for slot, bookie in enumerate(self._ensemble):
            if self._has_hung(slot):
                done += self.on_bookie_failed(slot, bookie, now_ns)
        return [
            *done,
            *self._end_trials(),
            *self._leave_out_lagging(),
            *self._replace_slow(),
            *self._look_after_absent(),
        ]

    def on_writable_bookies(self, writable: Collection[str], topology: Topology = FLAT) -> list[effects.Effect]:
        """Choose replacements for the failed bookies and store them, or go on without."""
        self._finding_bookies = False
        is_seeking, self._is_seeking = self._is_seeking, False
        self._note_registered(writable)
        if is_seeking and self.state is WriterState.ACTIVE:
            self._failed = self._sought()
        elif self.state is not WriterState.CHANGING:
            return []
        replacements = choose_replacements(
            self._ensemble, self._replaceable(), writable, self.metadata.write_quorum, self._random, topology
        )
        if not replacements and self.state is WriterState.ACTIVE:
            self._failed = {}
            return []
        if not replacements:
            return self._go_on_without(writable)
        self.state = WriterState.CHANGING
        self._proposed = list(self._ensemble)
        for slot, bookie in replacements.items():
            self._proposed[slot] = bookie
        fragments = change_ensemble(self._fragments, self.lac + 1, self._proposed)
        if self._is_recovery:
            return self._adopt(fragments)
        changed = self.metadata.with_ensemble(self.lac + 1, self._proposed)
        return [effects.WriteMetadata(changed, self.version)]

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[effects.Effect]:
        """The compare-and-set took effect."""
        self.metadata, self.version = metadata, version
        if self.state is WriterState.CLOSING:
            self.state = WriterState.CLOSED
            return []
        if self.state is not WriterState.CHANGING:
            return []
        return self._adopt(metadata.fragments)

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[effects.Effect]:
        """The compare-and-set lost; `current` is stored now."""
        if self.state is WriterState.CLOSING:
            return self._close_conflict(current, version)
        if self.state is not WriterState.CHANGING:
            return []
        if current.state is not LedgerState.OPEN:
            return self._fail(self._lost_to(current))
        # Re-replication renamed bookies of earlier fragments, perhaps behind our own write, whose answer was lost.
        ours, theirs = self.metadata.last_fragment, current.last_fragment
        if ours == theirs:
            self.metadata, self.version, self._fragments = current, version, current.fragments
            return self._find_bookies()
        if theirs == Fragment(self.lac + 1, tuple(self._proposed)):
            return self.on_metadata_written(current, version)
        return self._fail(self._lost_to(current))

    def on_metadata_seen(self, current: LedgerMetadata) -> list[effects.Effect]:
        """`current` is stored, looked at because a bookie may not be the one it was: not OPEN, the writer is fenced."""
        is_over = self.state in (WriterState.CLOSING, WriterState.CLOSED, WriterState.FAILED)
        return [] if is_over or current.state is LedgerState.OPEN else self._fail(self._fenced(None))

    def on_metadata_failed(self, error: BookKeeperError) -> list[effects.Effect]:
        """The metadata store could not be asked; whether the write took effect is unknown."""
        self._finding_bookies = self._is_seeking = False
        if self.state in (WriterState.CHANGING, WriterState.CLOSING):
            return self._fail(error)
        return []

    def sync(self) -> list[effects.Effect]:
        """Have all that is acknowledged synced; here it is."""
        return []

    def on_forced(self, force: effects.Force, now_ns: int) -> list[effects.Effect]:
        """A bookie carried out a `Force`; a failure to is `on_bookie_failed`."""
        raise AssertionError("a writer whose acknowledged adds are durable forces nothing")

    def on_force_lost(self, force: effects.Force, now_ns: int) -> list[effects.Effect]:
        """The connection that a `Force` went on is gone."""
        raise AssertionError("a writer whose acknowledged adds are durable forces nothing")

    def close(self) -> list[effects.Effect]:
        """Close the ledger at the LAC. The caller has drained what is pending, synced, and waited for ACTIVE.

        Raises:
            BookKeeperError: the writer is closed or failed already.
        """
        self.check_open()
        assert self.lac == self.next_entry - 1
        # A compare-and-set of an ensemble change in flight would be taken for the closing one.
        assert self.state is WriterState.ACTIVE
        self.state = WriterState.CLOSING
        return [effects.WriteMetadata(self.metadata.closed(self.lac, self.length), self.version)]

    def give_up(self, error: BookKeeperError) -> list[effects.Effect]:
        """End the writer without closing the ledger (its owner goes away)."""
        return [] if self.state in (WriterState.FAILED, WriterState.CLOSED) else self._fail(error)

    # ---- decisions ----

    def _replace_refusing(self) -> list[effects.Effect]:
        """Look for a spare in place of bookies that have done nothing but refuse for too long."""
        done: list[effects.Effect] = []
        for slot, refusal in sorted(self._refusals.items()):
            if self._now_ns - refusal.since_ns > self._limits.add_timeout_ns and self.state is WriterState.ACTIVE:
                self._failed[slot] = self._ensemble[slot]
                self.state = WriterState.CHANGING
                done += self._find_bookies()
        return done

    def _replace_slow(self) -> list[effects.Effect]:
        """Look for a spare in place of bookies that have lagged behind the others for too long."""
        if self.state is not WriterState.ACTIVE:
            return []
        self._lag_since = {
            slot: self._lag_since.get(slot, self._now_ns)
            for slot in range(len(self._ensemble))
            if self.may_hold_back(slot) and slot not in self._refusals and self._lags(slot)
        }
        for slot, since_ns in self._lag_since.items():
            if self._now_ns - since_ns > self._limits.slow_lag_ns:
                self._failed[slot] = self._ensemble[slot]
        if not self._failed:
            return []
        self.state = WriterState.CHANGING
        return self._find_bookies()

    def _is_served(self, slot: int) -> bool:
        """Whether entries go to the bookie in `slot`; to one that lives they do also while a spare is looked for."""
        if slot in self._refusals or slot in self._lag_since:
            return True
        return slot not in self._failed and self.may_hold_back(slot)

    def _leave_out(self) -> list[effects.Effect]:
        """Go on without the failed bookies for now, and without a change."""
        if not self._absent:
            self._absent_checked_ns = self._now_ns
            self._is_delaying = True
        self._absent.update(self._failed)
        self._failed = {}
        if self._pending:
            self._recent = self._pending[-1]
        self._forget()
        return self._release()

    def _release(self) -> list[effects.Effect]:
        """Acknowledge the longest prefix of pending entries that Qa bookies have; none while the ensemble changes."""
        if self.state is WriterState.CHANGING or self._pending_count == 0:
            return []
        votes = self._votes[: self._pending_count]
        if votes.item(0).bit_count() < self.metadata.ack_quorum:
            return []
        is_striped = self.metadata.write_quorum < len(self._ensemble)
        count = 1
        if is_striped or self._pending_count > 1:
            if is_striped:
                ids = np.arange(self.acknowledged + 1, self.acknowledged + 1 + self._pending_count)
                votes = votes & write_set_masks(ids, len(self._ensemble), self.metadata.write_quorum)
            ripe = np.bitwise_count(votes) >= self.metadata.ack_quorum
            count = self._pending_count if ripe.all() else int(np.argmin(ripe))
        if count == 0:
            return []
        self.acknowledged += count
        left = self._pending_count - count
        if left:
            self._votes[:left] = self._votes[count : self._pending_count].copy()
        self._pending_count = left
        return [effects.Acknowledge(self.acknowledged)]

    def _refusal(self, status: int, bookie: str) -> BookKeeperError | None:
        """Return the error that ends the writer for good, or None where only the bookie failed."""
        if status == Status.EFENCED:
            return self._fenced(bookie)
        if status == Status.EUA:
            return UnauthorizedAccess(
                f"bookie {bookie} refuses adds to ledger {self.ledger_id}: its password is another one",
                ledger_id=self.ledger_id,
                entry_id=self.lac + 1,
                bookie=bookie,
            )
        return None

    def _fail(self, error: BookKeeperError) -> list[effects.Effect]:
        self.state = WriterState.FAILED
        self.error = error
        self._pending.clear()
        self._added_ns.clear()
        self._refusals.clear()
        self._pending_bytes = 0
        self._recent = None
        return [effects.Fail(error)]

    def _find_bookies(self, sought: Mapping[int, str] | None = None) -> list[effects.Effect]:
        """Look bookies up, in place of those that failed or of others that are named."""
        if self._finding_bookies:
            return []
        self._finding_bookies = True
        replaced = self._failed if sought is None else sought
        failed = {slot: bookie for slot, bookie in replaced.items() if self._reported.get(slot) != bookie}
        self._reported.update(failed)
        return [effects.FindBookies(tuple(bookie for _, bookie in sorted(failed.items())))]

    def _keep(self, slot: int) -> None:
        """The bookie in `slot` needs no replacement any more; one that is stored already takes its place."""
        self._failed.pop(slot, None)
        self._reported.pop(slot, None)

    def _replaceable(self) -> Collection[int]:
        """Return the failed slots that may get another bookie."""
        return self._failed

    def _go_on_without(self, writable: Collection[str]) -> list[effects.Effect]:
        """No spare bookie: leave the failed ones out if Qa others remain in every write set, else fail."""
        for slot in (self._refusals.keys() | self._lag_since.keys()) & self._failed.keys():
            # It refuses load or is slow, and it lives: wait for it, whatever that takes.
            if slot in self._refusals:
                self._refusals[slot].since_ns = self._now_ns
            self._lag_since.pop(slot, None)
            self._reported.pop(slot, None)
            del self._failed[slot]
        if not self._failed:
            return self._resume(set())
        missing = {**self._absent, **self._failed}
        is_needed = self._leaves_too_few(missing)
        back = {slot for slot, bookie in self._absent.items() if bookie in writable} if is_needed else set()
        if back:
            # The writer would fail without them: wait for them, though they have not answered a probe.
            for slot in back:
                self._take_back(slot)
            self._absent.update(self._failed)
            if self._pending:
                self._recent = self._pending[-1]
            return self._resume(back)
        if is_needed:
            return self._fail(
                NotEnoughBookies(
                    f"ledger {self.ledger_id} lost bookies {', '.join(sorted(missing.values()))} and there is none to "
                    f"take their place; the outcome of adds above entry {self.lac} is unknown",
                    ledger_id=self.ledger_id,
                    entry_id=self.lac + 1,
                    bookie=min(missing.values()),
                )
            )
        self._absent = missing
        self._absent_checked_ns = self._now_ns
        if self._pending:
            self._recent = self._pending[-1]
        return self._resume(set())

    def _adopt(self, fragments: tuple[Fragment, ...]) -> list[effects.Effect]:
        """The new ensemble is in force: withdraw votes of replaced slots everywhere, then resend, then release."""
        replaced = {slot for slot, bookie in enumerate(self._proposed) if bookie != self._ensemble[slot]}
        self._fragments = fragments
        self._ensemble = list(self._proposed)
        for slot in replaced:
            self._take_in(slot, is_new=True)
            self._refusals.pop(slot, None)
            self._failed.pop(slot, None)
            self._forget_absence(slot)
            self._votes[: self._pending_count] &= ~np.uint64(1 << slot)
        return self._resume(replaced)

    def _take_in(self, slot: int, *, is_new: bool) -> None:
        """A bookie begins to take part in a slot, `is_new`, or takes part again; it will get what is kept."""
        self._forgive(slot)
        self._answered_to[slot] = self.lac
        self._resent_ns[slot] = self._now_ns

    def _resume(self, resend_to: set[int]) -> list[effects.Effect]:
        """Send all that is pending to the given slots; then go on changing (more failed meanwhile) or release."""
        sends = [send for slot in sorted(resend_to) for entries in self._pending for send in self._send(slot, entries)]
        self._failed = {slot: bookie for slot, bookie in self._failed.items() if slot not in self._absent}
        if self._failed:
            return sends + self._find_bookies()
        self.state = WriterState.ACTIVE
        self._forget()
        return sends + self._release()

    def _lost_to(self, current: LedgerMetadata) -> BookKeeperError:
        if current.state is LedgerState.CLOSED:
            return LedgerClosed(
                f"ledger {self.ledger_id} was closed at entry {current.last_entry} by another client: the outcome of "
                f"adds above entry {self.lac} is whether they lie below that",
                ledger_id=self.ledger_id,
                entry_id=self.lac + 1,
            )
        return self._fenced(None)

    def _fenced(self, bookie: str | None) -> LedgerFenced:
        return LedgerFenced(
            f"ledger {self.ledger_id} is being recovered by another client, or has been: the outcome of adds above "
            f"entry {self.lac} is unknown",
            ledger_id=self.ledger_id,
            entry_id=self.lac + 1,
            bookie=bookie,
        )

    def _close_conflict(self, current: LedgerMetadata, version: int) -> list[effects.Effect]:
        if current.state is LedgerState.CLOSED and current.last_entry == self.lac:
            self.metadata, self.version = current, version
            self.state = WriterState.CLOSED
            return []
        if current.state is LedgerState.OPEN and current.last_fragment == self.metadata.last_fragment:
            self.metadata, self.version = current, version
            return [effects.WriteMetadata(current.closed(self.lac, self.length), version)]
        return self._fail(self._lost_to(current))
