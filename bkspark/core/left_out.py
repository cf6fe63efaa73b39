"""LeftOutBookies: when a writer continues without a bookie that delays its callers, and how that bookie comes back.

Decisions only. The rules:

* A bookie that lags delays callers only for a limited time: when it lags behind the acknowledgements by more than
  `hold_back_ns_max`, it is left out, if every write set has Qa others. Below that, callers wait for a bookie that is
  slower than the others.
* A bookie that Qa needs cannot be left out. If it is that slow, a spare is sought in its place (`holds_up`).
* A bookie that is left out is probed: it gets one entry, in an ordinary add, which goes through its journal and is the
  same in V2 and V3. It takes part again only when it has acknowledged the probe within `add_timeout_ns`; a registration
  proves nothing, as a bookie that hangs stays registered. The pause before the next probe doubles up to a limit, also
  when a bookie that came back is left out again soon. A bookie that registers again is probed at once. A registered
  bookie is taken back without a probe only if the writer would fail without it.
* A bookie that answered its probe is on trial for `trial_ns`. It gets new entries while few are in flight to it, and
  delays neither callers nor the release of entries' bytes. It is left out again when it refuses load, answers nothing
  for `hold_back_ns_max`, has skipped an entry, or has answered for too few. If it passes, it gets all pending and new
  entries. The writer never sends it entries that were acknowledged before: those have at least Qa copies, and the
  periodic check of autorecovery finds and copies what the bookie lacks (docs/autorecovery.md). If the writer would fail
  without a bookie, its trial ends.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from bkspark.core import effects
from bkspark.core.limits import WriterLimits
from bkspark.core.pending import PendingEntries
from bkspark.core.probing import Pauses, Probe
from bkspark.core.slots import Phase, Slot, Slots
from bkspark.wire.digest import SealedEntries


class LeftOutBookies:
    """Decides which bookies of one writer lag or hang, which are probed, and which pass their trial."""

    def __init__(self, slots: Slots, pending: PendingEntries, limits: WriterLimits) -> None:
        self._slots = slots
        """The writer's. This class changes their `probe` and `was_unregistered` alone."""
        self._pending = pending
        """The entries of the writer that are not acknowledged, or retained. Only read here."""
        self._limits = limits
        """Limits and times, in ns. Constant."""
        self._pauses = Pauses(limits.probe_pause_ns_min, limits.probe_pause_ns_max)
        """The shortest and the longest pause before a probe. Constant."""
        self._recent: SealedEntries | None = None
        """The batch that probes are taken from: the newest while a bookie is left out, otherwise None."""
        self._sought_ns = 0
        """When spare bookies were last looked up, or a delay by `delay_ensemble_change` began."""
        self._is_delaying = False
        """Whether bookies were left out by `delay_ensemble_change` and no spare bookies were looked up since."""

    # ---- bookies that are too slow ----

    def has_hung(self, slot: Slot, now_ns: int) -> bool:
        """Return whether a bookie is silent, or has skipped an entry, for longer than an answer may take."""
        oldest = slot.oldest_owed
        if oldest is None:
            return False
        limit_ns = self._limits.add_timeout_ns
        if now_ns - slot.progress_ns > limit_ns:
            return True
        return slot.has_skipped(oldest) and now_ns - self._sent_ns(slot, oldest, now_ns) > limit_ns

    def lags(self, slot: Slot, lac: int) -> bool:
        """Return whether a bookie has not answered for too many acknowledged entries."""
        limits, outstanding, slots = self._limits, slot.outstanding, self._slots
        if not outstanding:
            return False
        if slot.is_congested:
            return True
        if outstanding < limits.slow_lag_entries and self._pending.kept_bytes < limits.slow_lag_bytes:
            return False
        reached = slot.reached
        if (lac - reached) * slots.write_quorum >= limits.slow_lag_entries * len(slots.all):
            return True
        return self._pending.bytes_between(reached, lac) >= limits.slow_lag_bytes

    def holds_up(self, slot: Slot, now_ns: int) -> bool:
        """Return whether a bookie's oldest answer is due for longer than it may take, and another one is far ahead.

        If Qa needs it, acknowledgements wait for it, so it never owes what is acknowledged. If no bookie is far ahead,
        spares would not help: the network or the load delays all of them.
        """
        oldest = slot.oldest_owed
        if oldest is None or now_ns - self._sent_ns(slot, oldest, now_ns) <= self._limits.add_timeout_ns:
            return False
        limits, slots, reached = self._limits, self._slots, slot.reached
        front = max(other.reached for other in slots.all if other.phase is Phase.SERVING)
        if (front - reached) * slots.write_quorum >= limits.hold_up_entries * len(slots.all):
            return True
        return self._pending.bytes_between(reached, front) >= limits.hold_up_bytes

    def is_held_back(self, slot: Slot, lac: int, now_ns: int) -> bool:
        """Return whether a bookie lags, and callers have waited for it for too long."""
        return (
            slot.takes_part and self.lags(slot, lac) and self._behind_ns(slot, now_ns) > self._limits.hold_back_ns_max
        )

    def _behind_ns(self, slot: Slot, now_ns: int) -> int:
        """Return by how much time, measured between adds, a bookie lags behind the acknowledgements."""
        oldest, pending = slot.oldest_owed, self._pending
        if oldest is None or oldest > pending.acknowledged:
            return 0
        front_ns = pending.added_ns(pending.acknowledged + 1, now_ns) if pending.count else now_ns
        return front_ns - self._sent_ns(slot, oldest, now_ns)

    def _sent_ns(self, slot: Slot, entry_id: int, now_ns: int) -> int:
        """Return when an entry was last sent to a bookie."""
        return max(self._pending.added_ns(entry_id, now_ns), slot.resent_ns)

    # ---- leaving out, and looking for spare ones ----

    def on_added(self, entries: SealedEntries) -> None:
        """Entries were added while a bookie is left out."""
        self._recent = entries

    def on_left_out(self, slot: Slot) -> None:
        """A bookie is left out."""
        slot.leave_out()
        if self._pending.batches:
            self._recent = self._pending.batches[-1]

    def on_taken_back(self) -> None:
        """A bookie takes part again."""
        if not self._slots.left_out:
            self._recent = None

    def on_ended(self) -> None:
        """The writer has ended."""
        self._recent = None

    def begin_delay(self, now_ns: int) -> None:
        """The first bookie is left out; look for spare ones as late as `delay_ensemble_change` says."""
        self._sought_ns = now_ns
        self._is_delaying = True

    def note_search(self, now_ns: int) -> None:
        """Spare bookies were looked for, and there are too few."""
        self._sought_ns = now_ns

    def begin_search(self, now_ns: int) -> None:
        """Spare bookies are looked for."""
        self._sought_ns = now_ns
        self._is_delaying = False

    def is_search_due(self, now_ns: int) -> bool:
        """Return whether it is time to look for spare bookies again."""
        limits = self._limits
        pause_ns = limits.ensemble_change_delay_ns_max if self._is_delaying else limits.replacement_retry_ns
        return now_ns - self._sought_ns > pause_ns

    def sought(self, now_ns: int) -> list[Slot]:
        """Return the slots whose bookie is left out and in whose place a spare one is looked for now."""
        return [slot for slot in self._slots.left_out if slot.sought_from_ns <= now_ns]

    # ---- probes ----

    def probe(self, slot: Slot, now_ns: int) -> list[effects.WriterEffect]:
        """Send a bookie that is left out one entry when that is due; record an expired probe."""
        probe = slot.probe
        if probe is None or probe.returned_ns is not None:
            probe = slot.probe = Probe.begun(probe, self._pauses, now_ns)
        if probe.is_under_way:
            is_over = now_ns - probe.sent_ns > self._limits.add_timeout_ns
            return self.on_probe_failed(slot, now_ns) if is_over else []
        batch = self._recent
        if probe.due_ns > now_ns or batch is None:
            return []
        first = batch.first_entry
        stored = slot.stripe.ranks(np.arange(first, first + len(batch)))
        if not len(stored):
            return []
        entry_id = slot.stripe.entry(stored.item(-1))
        slot.probe = probe.sent(entry_id, now_ns)
        return [effects.SendAdds(slot.number, slot.bookie, batch, np.array([entry_id - first]))]

    def on_probe_failed(self, slot: Slot, now_ns: int) -> list[effects.WriterEffect]:
        """The probe of a bookie that is left out failed: it is unreachable, refused the probe, or did not answer."""
        probe = slot.probe
        if probe is None or not probe.is_under_way:
            return []
        slot.probe = probe.failed(self._pauses, now_ns)
        return [effects.DropIfSilent(slot.bookie)]

    def is_probe_answered(self, slot: Slot, entry_ids: np.ndarray) -> bool:
        """Return whether the probe of a bookie that is left out is among the entries that it has."""
        probe = slot.probe
        return probe is not None and probe.is_under_way and bool((entry_ids == probe.entry_id).any())

    def on_probe_answered(self, slot: Slot, now_ns: int, *, may_return: bool) -> None:
        """A bookie acknowledged its probe; with `may_return` it takes part again, otherwise it is probed again
        later."""
        assert slot.probe is not None
        slot.probe = slot.probe.answered(now_ns) if may_return else slot.probe.failed(self._pauses, now_ns)

    def note_registered(self, writable: Collection[str], now_ns: int) -> None:
        """Soon probe bookies that are left out and have registered since the last look-up of bookies."""
        for slot in self._slots.all:
            is_absent, is_registered = slot.phase is Phase.LEFT_OUT, slot.bookie in writable
            if is_absent and is_registered and slot.was_unregistered and slot.probe is not None:
                slot.probe = slot.probe.due(now_ns)
            slot.was_unregistered = is_absent and not is_registered

    # ---- trials ----

    def passes(self, slot: Slot, now_ns: int) -> bool:
        """Return whether a bookie kept up with the others until its trial is over, and skipped nothing."""
        trial = slot.trial
        assert trial is not None
        if now_ns - trial.since_ns < self._limits.trial_ns or slot.is_congested:
            return False
        oldest = slot.oldest_owed
        if oldest is not None and slot.has_skipped(oldest):
            return False
        return trial.has_kept_up(slot.stripe.rank(self._pending.next_entry), slot.outstanding)

    def fails(self, slot: Slot, now_ns: int) -> bool:
        """Return whether a bookie on trial is silent, or did not pass in twice the trial's time."""
        trial = slot.trial
        assert trial is not None
        is_silent = bool(slot.owed) and now_ns - slot.progress_ns > self._limits.hold_back_ns_max
        return is_silent or slot.is_congested or now_ns - trial.since_ns >= 2 * self._limits.trial_ns
