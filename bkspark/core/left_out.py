"""LeftOutBookies: bookies of an ensemble that a writer goes on without, and how they take part again.

Why a bookie is left out, when it is probed, and what its trial is, `WriterCore` says.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Collection, Mapping

import numpy as np

from bkspark.core import effects
from bkspark.core.add_pipeline import AddPipeline, WriterLimits
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.probing import Pauses, Probe, Trial
from bkspark.core.striping import mask_of, write_set_masks
from bkspark.wire.digest import SealedEntries


class WriterState(enum.Enum):
    ACTIVE = enum.auto()
    CHANGING = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()
    FAILED = enum.auto()


class LeftOutBookies(AddPipeline):
    """Who takes no part, who is on trial, and what is due for them."""

    def __init__(self, metadata: LedgerMetadata, limits: WriterLimits, lac: int) -> None:
        super().__init__(metadata, limits, lac)
        self.state = WriterState.ACTIVE
        self._probes: dict[int, Probe] = {}
        self._pauses = Pauses(limits.probe_pause_ns_min, limits.probe_pause_ns_max)
        # What probes are taken from while a slot is absent: the batch that was added last.
        self._recent: SealedEntries | None = None
        self._failed: dict[int, str] = {}
        self._lag_since: dict[int, int] = {}
        self._reported: dict[int, str] = {}
        self._finding_bookies = False
        # Bookies are looked up in search of a spare one only; nothing waits for that.
        self._is_seeking = False
        # When a spare is looked for in place of bookies that were left out because they lag, by slot.
        self._sought_from_ns: dict[int, int] = {}
        # Those of the absent that were not registered when last looked up.
        self._unregistered: frozenset[str] = frozenset()
        self._absent_checked_ns = 0
        self._is_delaying = False

    def has_outstanding(self, slot: int) -> bool:
        """Whether the bookie in `slot` owes an answer, to a probe too."""
        return super().has_outstanding(slot) or (slot in self._probes and self._probes[slot].is_under_way)

    @abstractmethod
    def _release(self) -> list[effects.Effect]:
        """Acknowledge what Qa bookies have."""

    @abstractmethod
    def _resume(self, resend_to: set[int]) -> list[effects.Effect]:
        """Send what is pending to some slots, and go on."""

    @abstractmethod
    def _find_bookies(self, sought: Mapping[int, str] | None = None) -> list[effects.Effect]:
        """Look bookies up, in place of those that failed or of others that are named."""

    @abstractmethod
    def _take_in(self, slot: int, *, is_new: bool) -> None:
        """A bookie begins to take part in a slot, or takes part again."""

    def _leaves_too_few(self, missing: Collection[int]) -> bool:
        """Whether a write set without the missing slots has less than Qa bookies."""
        quorum, size = self.metadata.write_quorum, len(self._ensemble)
        gone = write_set_masks(np.arange(size), size, quorum) & np.uint64(mask_of(tuple(missing)))
        return bool((np.bitwise_count(gone) > quorum - self.metadata.ack_quorum).any())

    def _has_hung(self, slot: int) -> bool:
        """Whether the bookie in `slot` is silent, or has skipped an entry, for longer than an answer may take."""
        if not self._outstanding[slot]:
            return False
        limit_ns = self._limits.add_timeout_ns
        if self._now_ns - self._progress_ns[slot] > limit_ns:
            return True
        oldest = self._oldest_owed(slot)
        return oldest is not None and self._has_skipped(slot, oldest) and self._waited_ns(slot, oldest) > limit_ns

    def _has_skipped(self, slot: int, entry_id: int) -> bool:
        """Whether the bookie in `slot`, which owes an answer for an entry, has answered for later ones."""
        return slot not in self._refusals and entry_id <= self._answered_to[slot]

    def _can_do_without(self, slot: int) -> bool:
        return not self._leaves_too_few({*self._absent, *self._failed, slot})

    def _leave_out_lagging(self) -> list[effects.Effect]:
        """Go on without bookies that hold callers back for too long."""
        if self.state is not WriterState.ACTIVE:
            return []
        done: list[effects.Effect] = []
        for slot in range(len(self._ensemble)):
            if not self.may_hold_back(slot) or not self._lags(slot):
                continue
            if self._behind_ns(slot) > self._limits.hold_back_ns_max and self._can_do_without(slot):
                done += self._leave_out_slot(slot)
        return done

    def _leave_out_slot(self, slot: int) -> list[effects.Effect]:
        """Go on without a bookie that has not failed; a spare is looked for when it stays away for `slow_lag_ns`."""
        bookie = self._ensemble[slot]
        self._refusals.pop(slot, None)
        self._lag_since.pop(slot, None)
        self._trials.pop(slot, None)
        self._forgive(slot)
        self._sought_from_ns[slot] = self._now_ns + self._limits.slow_lag_ns
        if self._pending:
            self._recent = self._pending[-1]
        self._absent[slot] = bookie
        self._forget()
        return [effects.DropIfSilent(bookie), *self._release()]

    def _end_trials(self) -> list[effects.Effect]:
        """Judge the bookies on trial: those that pass, or are needed, get all that is pending; others are left out."""
        done: list[effects.Effect] = []
        for slot, trial in sorted(self._trials.items()):
            if self.state is not WriterState.ACTIVE:
                continue
            if not self._can_do_without(slot) or self._passes(slot, trial):
                self._take_back(slot)
                done += self._resume({slot})
            elif self._fails(slot, trial):
                done += self._leave_out_slot(slot)
        return done

    def _passes(self, slot: int, trial: Trial) -> bool:
        """Whether the bookie in `slot` kept up with the others until its trial is over, and skipped nothing."""
        if self._now_ns - trial.since_ns < self._limits.trial_ns or slot in self._congested:
            return False
        oldest = self._oldest_owed(slot)
        if oldest is not None and self._has_skipped(slot, oldest):
            return False
        return trial.has_kept_up(self._stripes[slot].rank(self.next_entry), self._outstanding[slot])

    def _fails(self, slot: int, trial: Trial) -> bool:
        """Whether the bookie in `slot` is silent on trial, or did not pass in twice the time that it takes."""
        is_silent = self._outstanding[slot] > 0 and (
            self._now_ns - self._progress_ns[slot] > self._limits.hold_back_ns_max
        )
        return is_silent or slot in self._congested or self._now_ns - trial.since_ns >= 2 * self._limits.trial_ns

    def _send_on_trials(self, entries: SealedEntries) -> list[effects.SendAdds]:
        return [send for slot in sorted(self._trials) for send in self._send_on_trial(slot, entries)]

    def _send_on_trial(self, slot: int, entries: SealedEntries) -> list[effects.SendAdds]:
        """Return the send of entries to a bookie on trial, if there is room for them on their way."""
        trial = self._trials[slot]
        if not trial.has_room(self._outstanding[slot], len(entries), len(entries.buffer)):
            return []
        before = self._outstanding[slot]
        sends = self._send(slot, entries)
        self._trials[slot] = trial.with_sent(self._outstanding[slot] - before)
        return sends

    def _look_after_absent(self) -> list[effects.Effect]:
        """Probe the bookies that are left out, and look for spare ones every now and then."""
        if not self._absent or self.state not in (WriterState.ACTIVE, WriterState.CHANGING):
            return []
        done = [effect for slot in sorted(self._absent) for effect in self._probe_absent(slot)]
        limits = self._limits
        pause_ns = limits.ensemble_change_delay_ns_max if self._is_delaying else limits.replacement_retry_ns
        is_due = self.state is WriterState.ACTIVE and self._now_ns - self._absent_checked_ns > pause_ns
        if not is_due or self._finding_bookies:
            return done
        if self._leaves_too_few(self._absent):
            # Others have failed since: those that are registered are needed, whether or not they answer probes.
            self._failed = dict(self._absent)
            self.state = WriterState.CHANGING
        elif self._sought():
            self._is_seeking = True
        else:
            return done
        self._absent_checked_ns = self._now_ns
        self._is_delaying = False
        return done + self._find_bookies(self._sought() if self._is_seeking else None)

    def _sought(self) -> dict[int, str]:
        """Return the absent bookies in whose place a spare is looked for now."""
        return {
            slot: bookie for slot, bookie in self._absent.items() if self._sought_from_ns.get(slot, 0) <= self._now_ns
        }

    def _probe_absent(self, slot: int) -> list[effects.Effect]:
        """Send an absent bookie one entry when that is due; note that it did not answer the last one in time."""
        probe = self._probes.get(slot)
        if probe is None or probe.returned_ns is not None:
            probe = self._probes[slot] = Probe.begun(probe, self._pauses, self._now_ns)
        if probe.is_under_way:
            is_over = self._now_ns - probe.sent_ns > self._limits.add_timeout_ns
            return self._on_probe_failed(slot) if is_over else []
        batch = self._recent
        if probe.due_ns > self._now_ns or batch is None:
            return []
        first = batch.first_entry
        stored = self._stripes[slot].ranks(np.arange(first, first + len(batch)))
        if not len(stored):
            return []
        entry_id = self._stripes[slot].entry(stored.item(-1))
        self._probes[slot] = probe.sent(entry_id, self._now_ns)
        return [effects.SendAdds(slot, self._ensemble[slot], batch, np.array([entry_id - first]))]

    def _on_probe_failed(self, slot: int) -> list[effects.Effect]:
        """An absent bookie did not take its probe: it cannot be reached, refused it, or did not answer."""
        probe = self._probes.get(slot)
        if probe is None or not probe.is_under_way:
            return []
        self._probes[slot] = probe.failed(self._pauses, self._now_ns)
        return [effects.DropIfSilent(self._ensemble[slot])]

    def _on_probe_answered(self, slot: int, entry_ids: np.ndarray) -> list[effects.Effect]:
        """An absent bookie has these entries; with the probe's among them it takes part again, on trial."""
        probe = self._probes.get(slot)
        if probe is None or not probe.is_under_way or not (entry_ids == probe.entry_id).any():
            return []
        if self.state is not WriterState.ACTIVE:
            self._probes[slot] = probe.failed(self._pauses, self._now_ns)
            return []
        self._probes[slot] = probe.answered(self._now_ns)
        self._take_back(slot)
        self._trials[slot] = Trial(self._now_ns, self._stripes[slot].rank(self.next_entry))
        return []

    def _take_back(self, slot: int) -> None:
        """A bookie that was left out takes part again: its votes count from what it gets now on."""
        self._absent.pop(slot, None)
        self._trials.pop(slot, None)
        self._failed.pop(slot, None)
        self._reported.pop(slot, None)
        self._sought_from_ns.pop(slot, None)
        if not self._absent:
            self._recent = None
        self._votes[: self._pending_count] &= ~np.uint64(1 << slot)
        self._take_in(slot, is_new=False)

    def _forget_absence(self, slot: int) -> None:
        """Another bookie has the slot."""
        self._absent.pop(slot, None)
        self._reported.pop(slot, None)
        self._sought_from_ns.pop(slot, None)
        self._probes.pop(slot, None)
        self._trials.pop(slot, None)
        self._lag_since.pop(slot, None)

    def _note_registered(self, writable: Collection[str]) -> None:
        """Probe absent bookies soon that have registered since bookies were looked up last."""
        for slot, bookie in self._absent.items():
            if bookie in writable and bookie in self._unregistered and slot in self._probes:
                self._probes[slot] = self._probes[slot].due(self._now_ns)
        self._unregistered = frozenset(bookie for bookie in self._absent.values() if bookie not in writable)

    def _refused(self, slot: int, entry_ids: np.ndarray) -> list[effects.Effect]:
        """The bookie in `slot` refuses load (TOOMANYREQUESTS)."""
        if slot in self._absent:
            return self._on_probe_failed(slot)
        if slot not in self._trials:
            return self._hold_back(slot, entry_ids)
        if self._can_do_without(slot):
            return self._leave_out_slot(slot)
        # It is needed: it gets all that is pending, or will when the change of the ensemble is over.
        return self._end_trials()
