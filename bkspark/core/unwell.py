"""UnwellBookies: what a writer does about bookies that refuse load, lag, are left out, or are on trial. Decisions only.

`left_out` decides which bookies are too slow, which are probed and which pass a trial. This module acts on that: the
writer continues without a bookie, looks for another one in its place, or lets it take part again.
"""

from __future__ import annotations

import numpy as np

from bkspark.core import effects
from bkspark.core.limits import WriterLimits
from bkspark.core.pipeline import Pipeline, WriterState
from bkspark.core.slots import Phase, Slot
from bkspark.ids import NO_ENTRY
from bkspark.wire.digest import SealedEntries


class UnwellBookies:
    """Handles the bookies of one writer that are not SERVING, or that lag."""

    def __init__(self, pipeline: Pipeline, limits: WriterLimits) -> None:
        self._pipeline = pipeline
        """The state that the parts of the writer share. This class changes it by its methods."""
        self._slots = pipeline.slots
        """The slots of the ensemble. This class changes them by their methods."""
        self._pending = pipeline.pending
        """The entries of the writer that are not acknowledged. This class only reads them."""
        self._left_out = pipeline.left_out
        """Decides which bookies are too slow, are probed, or pass a trial."""
        self._limits = limits
        """Limits and times, in ns. Constant."""

    def send_new(self, entries: SealedEntries) -> list[effects.WriterEffect]:
        """Send new entries to bookies on trial, hold them for those that refuse load, keep them for the next probe."""
        done: list[effects.WriterEffect] = []
        for slot in self._slots.all:
            if slot.phase is Phase.REFUSING:
                slot.hold_new(entries, entries.first_entry, self._pipeline.now_ns)
            elif slot.trial is not None:
                done += slot.send_on_trial(entries, entries.first_entry, self._pipeline.now_ns)
            elif slot.phase is Phase.LEFT_OUT:
                self._left_out.on_added(entries)
        return done

    # ---- bookies that refuse load ----

    def on_refused(self, slot: Slot, entry_ids: np.ndarray) -> list[effects.WriterEffect]:
        """A bookie refuses load (TOOMANYREQUESTS)."""
        if slot.phase is Phase.FAILED:
            # It is being replaced, and must not go back to REFUSING: the entries that it answered with an error were
            # not held, so it would never get them.
            return []
        if slot.phase is Phase.LEFT_OUT:
            return self._left_out.on_probe_failed(slot, self._pipeline.now_ns)
        if slot.phase is not Phase.ON_TRIAL:
            refusal = slot.hold(entry_ids, self._pending.sends(slot, entry_ids), self._limits, self._pipeline.now_ns)
            if refusal.probed != NO_ENTRY:
                # Nothing is due before the probe is answered.
                return []
            return [effects.CallAfter(max(0, refusal.retry_at_ns - self._pipeline.now_ns))]
        if self._slots.can_do_without(slot):
            return self.leave_out(slot)
        # It is needed: it gets all pending entries, now or when the ensemble change is over.
        return self.end_trials()

    def replace_refusing(self) -> list[effects.WriterEffect]:
        """Look for a spare to replace a bookie that has only refused for too long."""
        if self._pipeline.state is not WriterState.ACTIVE:
            return []
        for slot in self._slots.all:
            if slot.refusal is not None and self._pipeline.now_ns - slot.refusal.since_ns > self._limits.add_timeout_ns:
                slot.needs_replacement = True
                return self._pipeline.begin_change()
        return []

    # ---- bookies that lag, are left out, or come back ----

    def leave_out_lagging(self) -> list[effects.WriterEffect]:
        """Continue without bookies that delay callers for too long."""
        done: list[effects.WriterEffect] = []
        pipeline = self._pipeline
        if pipeline.state is WriterState.ACTIVE:
            for slot in self._slots.all:
                is_held_back = self._left_out.is_held_back(slot, pipeline.lac, pipeline.now_ns)
                if is_held_back and self._slots.can_do_without(slot):
                    done += self.leave_out(slot)
        return done

    def leave_out(self, slot: Slot) -> list[effects.WriterEffect]:
        """Continue without a bookie that has not failed; look for a spare if it stays left out for `slow_lag_ns`."""
        self._pipeline.durability.on_gone(slot)
        self._left_out.on_left_out(slot)
        slot.sought_from_ns = self._pipeline.now_ns + self._limits.slow_lag_ns
        self._pipeline.forget()
        return [effects.DropIfSilent(slot.bookie), *self._pipeline.release()]

    def leave_out_failed(self) -> list[effects.WriterEffect]:
        """Continue without the failed bookies for now, and without a change."""
        if not self._slots.left_out:
            self._left_out.begin_delay(self._pipeline.now_ns)
        for slot in self._slots.to_replace:
            self._left_out.on_left_out(slot)
        self._pipeline.forget()
        return self._pipeline.release()

    def replace_lagging(self) -> list[effects.WriterEffect]:
        """Look for spares to replace bookies that have lagged, or held up acknowledgements, for too long.

        Acknowledgements go on meanwhile: these bookies answer, and the metadata store may not.
        """
        if self._pipeline.state is not WriterState.ACTIVE:
            return []
        now_ns, lac = self._pipeline.now_ns, self._pipeline.lac
        for slot in self._slots.all:
            is_serving = slot.phase is Phase.SERVING
            if not (is_serving and (self._left_out.lags(slot, lac) or self._left_out.holds_up(slot, now_ns))):
                slot.lag_since_ns = None
            elif slot.lag_since_ns is None:
                slot.lag_since_ns = now_ns
        begun_ns = now_ns - self._limits.slow_lag_ns
        overdue = [slot for slot in self._slots.all if slot.lag_since_ns is not None and slot.lag_since_ns < begun_ns]
        return self._pipeline.change.find(overdue, is_seeking=True) if overdue else []

    def sought(self) -> list[Slot]:
        """Return the slots whose bookies lag still, and for which a spare was sought."""
        return [slot for slot in self._slots.all if slot.lag_since_ns is not None and slot.is_reported]

    def end_trials(self) -> list[effects.WriterEffect]:
        """Decide about the bookies on trial: those that pass, or are needed, get all pending entries; others may be
        left out."""
        done: list[effects.WriterEffect] = []
        for slot in self._slots.all:
            if slot.trial is None or self._pipeline.state is not WriterState.ACTIVE:
                continue
            if not self._slots.can_do_without(slot) or self._left_out.passes(slot, self._pipeline.now_ns):
                self._pipeline.take_back(slot)
                done += self._pipeline.resume({slot.number})
            elif self._left_out.fails(slot, self._pipeline.now_ns):
                done += self.leave_out(slot)
        return done

    def on_answer_of_left_out(self, slot: Slot, entry_ids: np.ndarray) -> None:
        """A bookie that is left out answered for these entries. If the probe is among them, it is on trial now."""
        if not self._left_out.is_probe_answered(slot, entry_ids):
            return
        may_return = self._pipeline.state is WriterState.ACTIVE
        self._left_out.on_probe_answered(slot, self._pipeline.now_ns, may_return=may_return)
        if may_return:
            self._pipeline.take_back(slot)
            slot.begin_trial(self._pending.next_entry, self._pipeline.now_ns)

    def look_after_left_out(self) -> list[effects.WriterEffect]:
        """Probe the bookies that are left out, and look for spares at intervals."""
        left_out, now_ns = self._slots.left_out, self._pipeline.now_ns
        if not left_out or self._pipeline.state not in (WriterState.ACTIVE, WriterState.CHANGING):
            return []
        done = [effect for slot in left_out for effect in self._left_out.probe(slot, now_ns)]
        is_due = self._pipeline.state is WriterState.ACTIVE and self._left_out.is_search_due(now_ns)
        if not is_due or self._pipeline.change.is_finding:
            return done
        if self._slots.leave_too_few([slot.number for slot in left_out]):
            # Others have failed since, so the registered ones are needed, even if they have not answered a probe.
            self._left_out.begin_search(now_ns)
            for slot in left_out:
                slot.needs_replacement = True
            return done + self._pipeline.begin_change()
        sought = self._left_out.sought(now_ns)
        if not sought:
            return done
        self._left_out.begin_search(now_ns)
        return done + self._pipeline.change.find(sought, is_seeking=True)
