"""AddPipeline: entries on their way to the bookies of an ensemble: who got what, who answered, what waits for whom.

Which bookies have an entry is one bit mask for each pending entry. What a bookie owes answers for follows from the ids
that were sent to it since it began to take part, and were not answered (`owed`): late answers to what was sent before
count as votes, and settle nothing else. The bytes of an entry are kept until every bookie that takes part has answered
for it, as a bookie that refuses load (TOOMANYREQUESTS) gets it again: what it refused, and what comes for it meanwhile,
is held back and sent after a pause that doubles up to a limit. When an entry is acknowledged, and what becomes of a
bookie that fails, `WriterCore` decides.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from bkspark.core import effects
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.owed import Runs, stripe, with_sent, without_answered, without_run
from bkspark.core.probing import Trial
from bkspark.core.striping import write_set_masks
from bkspark.wire.digest import SealedEntries

_MASKS_MIN = 1024


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Time-outs of a writer, in nanoseconds of the clock that its events carry, and what it does about slow bookies.

    A bookie lags when it owes answers for `slow_lag_entries` entries, or `slow_lag_bytes`, that are acknowledged
    already; it is replaced when it has done so at every tick for `slow_lag_ns`. It is left out when it lags and is more
    than `hold_back_ns_max` behind the acknowledgements. A bookie that is left out is probed after
    `probe_pause_ns_min`, then after pauses that double up to `probe_pause_ns_max`; when it is back it is on trial for
    `trial_ns`. `delay_ensemble_change` is Apache's delayEnsembleChange.
    """

    add_timeout_ns: int = 5_000_000_000
    replacement_retry_ns: int = 1_000_000_000
    refusal_pause_ns_min: int = 5_000_000
    refusal_pause_ns_max: int = 500_000_000
    slow_lag_entries: int = 4096
    slow_lag_bytes: int = 32 * 1024 * 1024
    slow_lag_ns: int = 5_000_000_000
    hold_back_ns_max: int = 2_000_000_000
    probe_pause_ns_min: int = 1_000_000_000
    probe_pause_ns_max: int = 10_000_000_000
    trial_ns: int = 2_000_000_000
    delay_ensemble_change: bool = False
    ensemble_change_delay_ns_max: int = 30_000_000_000

    def within(self, lag_entries_max: int, lag_bytes_max: int) -> WriterLimits:
        """Return these limits for a writer whose callers wait when a bookie owes so much.

        A bookie lags at half of that at most: one that is on trial is left out again before it holds callers back.
        """
        return replace(
            self,
            slow_lag_entries=min(self.slow_lag_entries, max(1, lag_entries_max // 2)),
            slow_lag_bytes=min(self.slow_lag_bytes, max(1, lag_bytes_max // 2)),
        )


@dataclass(slots=True)
class _Refusal:
    """A bookie refuses load: what waits for it, when it is tried again, and since when nothing got through.

    `probed` is the last entry of the piece that was sent to see whether it is taken, -1 while none is on its way.
    """

    since_ns: int
    pause_ns: int
    retry_at_ns: int
    probed: int = -1
    held: list[effects.SendAdds] = field(default_factory=list)


class AddPipeline:
    """What is pending, and what each slot of the ensemble owes."""

    def __init__(self, metadata: LedgerMetadata, limits: WriterLimits, lac: int) -> None:
        self.metadata = metadata
        self.acknowledged = lac
        self._limits = limits
        self._ensemble = list(metadata.last_fragment.bookies)
        # votes[i]: slots that hold pending entry acknowledged + 1 + i. Grown by doubling, shifted on release.
        self._votes = np.zeros(_MASKS_MIN, np.uint64)
        self._pending: deque[SealedEntries] = deque()
        self._pending_count = 0
        self._pending_bytes = 0
        # When each batch of `_pending` was added.
        self._added_ns: deque[int] = deque()
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        self._is_striped = quorum < size
        self._stripes = tuple(stripe(slot, size, quorum) for slot in range(size))
        # What each slot was sent since it began to take part, and has not answered; and how many entries that is.
        self._owed: list[Runs] = [()] * size
        self._outstanding = [0] * size
        self._progress_ns = [0] * size
        # When what is older than the newest entries was last sent to a slot.
        self._resent_ns = [0] * size
        # The highest entry that each slot has answered for.
        self._answered_to = [lac] * size
        self._refusals: dict[int, _Refusal] = {}
        # Slots that take no part, with the bookie that failed there.
        self._absent: dict[int, str] = {}
        # Slots that take part again and hold no caller back yet.
        self._trials: dict[int, Trial] = {}
        # Slots whose connection takes no more bytes for now.
        self._congested: Collection[int] = ()
        self._now_ns = 0

    @property
    def lac(self) -> int:
        """The last add confirmed: all up to it is acknowledged, and durable on Qa bookies."""
        return self.acknowledged

    @property
    def next_entry(self) -> int:
        """The id that the next entry gets."""
        return self.acknowledged + 1 + self._pending_count

    @property
    def pending_count(self) -> int:
        """Entries added and not yet acknowledged."""
        return self._pending_count

    @property
    def ensemble(self) -> tuple[str, ...]:
        return tuple(self._ensemble)

    @property
    def outstanding_max(self) -> int:
        """Adds sent and unanswered at the slowest bookie that may hold callers back."""
        if not (self._absent or self._trials):
            return max(self._outstanding)
        return max((count for slot, count in enumerate(self._outstanding) if self.may_hold_back(slot)), default=0)

    def may_hold_back(self, slot: int) -> bool:
        """Whether callers wait for the bookie in `slot` when it owes too much: it takes part, and not on trial."""
        return slot not in self._absent and slot not in self._trials

    @property
    def kept_bytes(self) -> int:
        """Bytes of sealed entries that are kept: pending ones, and those for which a bookie still owes an answer."""
        return self._pending_bytes

    def has_outstanding(self, slot: int) -> bool:
        """Whether the bookie in `slot` owes an answer."""
        return self._outstanding[slot] > 0

    def _pending_rows(self, entry_ids: np.ndarray, span: tuple[int, int] | None) -> slice | np.ndarray:
        """Return where in `_votes` those of the entries stand that are pending; `span` as `consecutive` has it."""
        first_pending = self.acknowledged + 1
        if span is not None:
            first, end = span
            return slice(max(0, first - first_pending), max(0, min(end - first_pending, self._pending_count)))
        at = entry_ids - first_pending
        return at[(at >= 0) & (at < self._pending_count)]

    def _reserve(self, count: int) -> None:
        if count > len(self._votes):
            grown = np.zeros(max(count, 2 * len(self._votes)), np.uint64)
            grown[: self._pending_count] = self._votes[: self._pending_count]
            self._votes = grown

    def _send(self, slot: int, entries: SealedEntries) -> list[effects.SendAdds]:
        """Return the send of those `entries` that `slot` stores and that are not released yet."""
        quorum, size = self.metadata.write_quorum, len(self._ensemble)
        begin = max(0, self.lac + 1 - entries.first_entry)
        positions: np.ndarray | None = None
        if quorum < size:
            ids = np.arange(entries.first_entry + begin, entries.first_entry + len(entries))
            stored = write_set_masks(ids, size, quorum) & np.uint64(1 << slot) != 0
            positions = np.nonzero(stored)[0] + begin
        elif begin:
            positions = np.arange(begin, len(entries))
        count = len(entries) if positions is None else len(positions)
        if count == 0:
            return []
        if self._outstanding[slot] == 0:
            self._progress_ns[slot] = self._now_ns
        first = entries.first_entry + begin
        if self._is_striped:
            first = self._stripes[slot].rank(first)
        self._owed[slot] = with_sent(self._owed[slot], first, first + count)
        self._outstanding[slot] += count
        return [effects.SendAdds(slot, self._ensemble[slot], entries, positions)]

    def _send_or_hold(self, slot: int, entries: SealedEntries) -> list[effects.Effect]:
        """Send entries to a slot, or keep them for later where its bookie refuses load."""
        sends = self._send(slot, entries)
        if slot not in self._refusals:
            return list(sends)
        self._refusals[slot].held += sends
        return []

    def _hold_back(self, slot: int, entry_ids: np.ndarray) -> list[effects.Effect]:
        """The bookie refused these for now: keep them, and ask to be called when it is time to try again."""
        refusal = self._refusals.get(slot)
        if refusal is None:
            pause_ns = self._limits.refusal_pause_ns_min
            refusal = self._refusals[slot] = _Refusal(self._now_ns, pause_ns, self._now_ns + pause_ns)
        elif refusal.probed >= 0:
            refusal.probed = -1
            refusal.pause_ns = min(2 * refusal.pause_ns, self._limits.refusal_pause_ns_max)
            refusal.retry_at_ns = self._now_ns + refusal.pause_ns
        for entries in self._pending:
            positions = entry_ids - entries.first_entry
            positions = positions[(positions >= 0) & (positions < len(entries))]
            if len(positions):
                refusal.held.append(effects.SendAdds(slot, self._ensemble[slot], entries, np.sort(positions)))
        # In entry order again, so that answers tell how far the bookie has come.
        refusal.held.sort(key=_first_sent)
        return [effects.CallAfter(max(0, refusal.retry_at_ns - self._now_ns))]

    def _taken_again(self, slot: int) -> list[effects.Effect]:
        """The bookie took the probe: it refuses no more. What was kept for it goes out."""
        self._resent_ns[slot] = self._now_ns
        self._keep(slot)
        return list(self._refusals.pop(slot).held)

    def _count_answers(self, slot: int, entry_ids: np.ndarray, span: tuple[int, int] | None) -> None:
        """The bookie in `slot` has these entries: it owes them no more. `span` as `consecutive` has it."""
        last_entry = entry_ids.item(-1)
        if last_entry > self._answered_to[slot]:
            self._answered_to[slot] = last_entry
        runs = self._owed[slot]
        run = self._stripes[slot].run(entry_ids) if self._is_striped else span
        if run is not None:
            self._owed[slot], count = without_run(runs, run[0], run[1])
        else:
            self._owed[slot], count = without_answered(runs, self._stripes[slot].ranks(entry_ids))
        self._outstanding[slot] -= count

    def _forgive(self, slot: int) -> None:
        """What was sent to the slot so far is owed no more."""
        self._owed[slot] = ()
        self._outstanding[slot] = 0

    def _oldest_owed(self, slot: int) -> int | None:
        """Return the first entry that the bookie in `slot` owes an answer for."""
        runs = self._owed[slot]
        return self._stripes[slot].entry(runs[0][0]) if runs else None

    def _reached(self, slot: int) -> int:
        """Return the entry up to which the bookie in `slot` has answered for all that it stores."""
        oldest = self._oldest_owed(slot)
        return self._answered_to[slot] if oldest is None else min(self._answered_to[slot], oldest - 1)

    def _waited_ns(self, slot: int, entry_id: int) -> int:
        """Return how long the bookie in `slot` has owed an answer for an entry."""
        return self._now_ns - max(self._added_at(entry_id), self._resent_ns[slot])

    def _added_at(self, entry_id: int) -> int:
        """Return when an entry that is kept was added; of another one, now."""
        for batch, added_ns in zip(self._pending, self._added_ns):
            if entry_id < batch.first_entry + len(batch):
                return added_ns
        return self._now_ns

    def _behind_ns(self, slot: int) -> int:
        """Return how far the bookie in `slot` is behind the acknowledgements, in the time of adds."""
        oldest = self._oldest_owed(slot)
        if oldest is None or oldest > self.acknowledged:
            return 0
        front_ns = self._now_ns if not self._pending_count else self._added_at(self.acknowledged + 1)
        return front_ns - max(self._added_at(oldest), self._resent_ns[slot])

    def _lags(self, slot: int) -> bool:
        """Whether the bookie in `slot` owes answers for too much of what is acknowledged."""
        limits = self._limits
        if slot in self._congested:
            return self._outstanding[slot] > 0
        if self._outstanding[slot] < limits.slow_lag_entries and self._pending_bytes < limits.slow_lag_bytes:
            return False
        reached = self._reached(slot)
        if (self.lac - reached) * self.metadata.write_quorum >= limits.slow_lag_entries * len(self._ensemble):
            return self._outstanding[slot] > 0
        if self._outstanding[slot] == 0:
            return False
        owed = [batch for batch in self._pending if reached < batch.first_entry <= self.lac]
        return sum(len(batch.buffer) for batch in owed) >= limits.slow_lag_bytes

    def _forget(self) -> None:
        """Let go of the bytes of entries that are acknowledged and owed by nobody."""
        while self._pending:
            last_entry = self._pending[0].first_entry + len(self._pending[0]) - 1
            if last_entry > self._kept_behind:
                return
            for slot, runs in enumerate(self._owed):
                # A rank is at most the entry's id.
                if runs and runs[0][0] <= last_entry and self._owes(slot, last_entry):
                    return
            self._pending_bytes -= len(self._pending.popleft().buffer)
            self._added_ns.popleft()

    @property
    def _kept_behind(self) -> int:
        """Entries behind this one are kept, to be sent again."""
        return self.acknowledged

    def _owes(self, slot: int, last_entry: int) -> bool:
        """Whether a slot's bookie may yet refuse an entry of the batch that ends at `last_entry`."""
        if slot in self._trials:
            return False
        oldest = self._oldest_owed(slot)
        return oldest is not None and oldest <= last_entry

    @abstractmethod
    def _keep(self, slot: int) -> None:
        """The bookie in `slot` needs no replacement any more."""

    def _probe_refused(self) -> list[effects.Effect]:
        """Send bookies that refuse load what is due, to see whether it is taken; ask for a call when more will be."""
        done: list[effects.Effect] = []
        for slot, refusal in sorted(self._refusals.items()):
            if refusal.held and refusal.probed < 0 and refusal.retry_at_ns <= self._now_ns:
                # One piece; the rest follows when it was taken.
                probe = refusal.held.pop(0)
                refusal.probed = _last_sent(probe)
                self._progress_ns[slot] = self._now_ns
                done.append(probe)
        waiting = [it.retry_at_ns for it in self._refusals.values() if it.probed < 0 and it.retry_at_ns > self._now_ns]
        if waiting:
            done.append(effects.CallAfter(min(waiting) - self._now_ns))
        return done


def _first_sent(send: effects.SendAdds) -> int:
    return send.entries.first_entry + (0 if send.positions is None else int(send.positions[0]))


def _last_sent(send: effects.SendAdds) -> int:
    return send.entries.first_entry + (len(send.entries) - 1 if send.positions is None else int(send.positions[-1]))
