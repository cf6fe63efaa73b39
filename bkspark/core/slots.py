"""Slots: the positions of an ensemble, each with its bookie, the answers that it owes, and its phase.

The answers that a bookie owes are derived: they are the entries that were sent to it since it began to take part, minus
those that it answered. Late answers to earlier requests count only as votes. A slot's entries are counted by rank
(`Stripe`), so the entries sent to it are one run, also in a striped ledger. Runs are tuples that are replaced as a
whole. A bookie that answers in order has one run; one that answers every second request has as many as the writer's
limits let it owe.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from bkspark.core import effects
from bkspark.core.limits import WriterLimits
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.probing import Probe, Trial
from bkspark.core.striping import Stripe, mask_of, stripe, write_set_masks
from bkspark.ids import NO_ENTRY
from bkspark.wire.digest import SealedEntries

Runs = tuple[tuple[int, int], ...]
"""Runs of entries, (first rank, rank after the last). They ascend and do not touch."""


class Phase(enum.Enum):
    """How the bookie in a slot takes part."""

    SERVING = enum.auto()
    """It gets every entry that the slot stores, and callers wait for it when it owes too many answers."""
    REFUSING = enum.auto()
    """As SERVING, but it refuses load: its entries are held until it accepts one piece as a probe (`Refusal`)."""
    ON_TRIAL = enum.auto()
    """It answered a probe after it was left out: it gets some entries and delays no caller (`Trial`)."""
    LEFT_OUT = enum.auto()
    """It gets only probes (`Probe`)."""
    FAILED = enum.auto()
    """It failed, and gets nothing: the current ensemble change replaces it, or leaves it out."""


@dataclass(slots=True)
class Refusal:
    """A bookie refuses load (TOOMANYREQUESTS): the sends held for it, and when it is tried again."""

    since_ns: int
    """When it began to refuse, or was last kept because there was no spare. Set by `Slot.hold` and ensemble changes."""
    pause_ns: int
    """The present pause; doubles with each refused probe, up to `refusal_pause_ns_max`."""
    retry_at_ns: int
    """When the pause is over."""
    probed: int = NO_ENTRY
    """The last entry of the piece that was sent as a probe; NO_ENTRY while no probe is in flight."""
    held: list[effects.SendAdds] = field(default_factory=list)
    """The sends to repeat when the probe is accepted, in entry order."""


@dataclass(slots=True)
class Slot:
    """One place of an ensemble. Its methods keep `phase`, `refusal`, `trial` and `owed` consistent."""

    number: int
    """Its position in the ensemble: 0 to E - 1. Constant."""
    bit: np.uint64
    """The slot as a mask of one bit. Constant."""
    stripe: Stripe
    """Which entries it stores. Constant."""
    bookie: str
    """The bookie that the ensemble names here. Changed by `replace` alone."""
    answered_to: int
    """The highest entry that the bookie answered for since it began to take part; initially the entry below its
    first."""
    phase: Phase = Phase.SERVING
    """How the bookie takes part. Changed by this class's methods alone."""
    owed: Runs = ()
    """The entries sent since the bookie began to take part and not answered: runs of ranks of `stripe`.

    Probes of a bookie that is left out are not in it. `send` adds to it, `count_answers` removes from it; cleared when
    the bookie is replaced, left out, taken back or fails.
    """
    progress_ns: int = 0
    """When the bookie last answered anything, or began to owe something."""
    resent_ns: int = 0
    """When entries older than the newest were last sent to it: their waiting times begin then."""
    is_congested: bool = False
    """Whether its connection had too many unsent bytes at the last tick."""
    lag_since_ns: int | None = None
    """Since when it has lagged at every tick; None: it does not lag. Set by ticks, None unless it is SERVING or
    REFUSING."""
    needs_replacement: bool = False
    """Whether the current ensemble change seeks another bookie for it; False while there is no change.

    FAILED implies it, until the writer has ended. A bookie that only lags or refuses still gets entries meanwhile; one
    that is left out stays so.
    """
    is_reported: bool = False
    """Whether a `FindBookies` has named the bookie as failed since it began to take part."""
    refusal: Refusal | None = None
    """The sends that are held for the bookie. Not None exactly while REFUSING."""
    trial: Trial | None = None
    """The trial of the bookie. Not None exactly while ON_TRIAL."""
    probe: Probe | None = None
    """The probes of the bookie while LEFT_OUT, and the pause before the next one. None: it was never left out."""
    sought_from_ns: int = 0
    """While LEFT_OUT, the time from which a spare is sought in its place; otherwise 0."""
    was_unregistered: bool = False
    """Whether it was LEFT_OUT and not registered when bookies were last looked up."""
    last_synced: int = NO_ENTRY
    """Relaxed durability: all its entries up to this one are synced. Grows, except in `replace`."""
    complete_from: int = 0
    """Relaxed durability: it was sent every entry that it stores from this one on, on one connection."""
    asked_to_sync: int | None = None
    """Relaxed durability: while it owes the answer to a force, the entry up to which it had answered before that;
    otherwise None."""

    # ---- facts ----

    @property
    def takes_part(self) -> bool:
        """Whether callers wait for the bookie when it owes too many answers: it is neither left out nor on trial."""
        return self.phase is not Phase.LEFT_OUT and self.phase is not Phase.ON_TRIAL

    @property
    def outstanding(self) -> int:
        """How many entries the bookie owes answers for."""
        count = 0
        for begin, end in self.owed:
            count += end - begin
        return count

    @property
    def oldest_owed(self) -> int | None:
        """The first entry that the bookie owes an answer for."""
        return self.stripe.entry(self.owed[0][0]) if self.owed else None

    @property
    def reached(self) -> int:
        """The entry up to which the bookie has answered for all that it stores."""
        oldest = self.oldest_owed
        return self.answered_to if oldest is None else min(self.answered_to, oldest - 1)

    @property
    def is_probed(self) -> bool:
        """Whether the bookie owes the answer to a probe."""
        return self.probe is not None and self.probe.is_under_way

    @property
    def is_excused(self) -> bool:
        """Whether the bookie is alive although a replacement is sought: it refuses load or lags."""
        return self.phase is Phase.REFUSING or self.lag_since_ns is not None

    def has_skipped(self, entry_id: int) -> bool:
        """Return whether the bookie, which owes an answer for an entry, has answered for later ones."""
        return self.phase is not Phase.REFUSING and entry_id <= self.answered_to

    def retains(self, last_entry: int) -> bool:
        """Return whether the bookie may still refuse an entry of the batch that ends at `last_entry`."""
        # A rank is at most the entry's id.
        if not self.owed or self.owed[0][0] > last_entry or self.phase is Phase.ON_TRIAL:
            return False
        return self.stripe.entry(self.owed[0][0]) <= last_entry

    # ---- sending and answers ----

    def send(self, entries: SealedEntries, first_entry: int, now_ns: int) -> list[effects.SendAdds]:
        """Return the send of the slot's entries among `entries`, from `first_entry` on; the bookie then owes answers
        for them.

        Empty if the slot stores none of them.
        """
        begin = max(0, first_entry - entries.first_entry)
        first_rank, positions, count = entries.first_entry, None, entries.end_entry - entries.first_entry
        if begin or not self.stripe.is_whole:
            first_rank, positions = self.stripe.part(first_rank, begin, count)
            count = len(positions)
            if not count:
                return []
        if not self.owed:
            self.progress_ns = now_ns
        self.owed = with_sent(self.owed, first_rank, first_rank + count)
        return [effects.SendAdds(self.number, self.bookie, entries, positions)]

    def hold_new(self, entries: SealedEntries, first_entry: int, now_ns: int) -> None:
        """As `send`, but hold the send, because the bookie refuses load."""
        assert self.refusal is not None
        self.refusal.held += self.send(entries, first_entry, now_ns)

    def send_on_trial(self, entries: SealedEntries, first_entry: int, now_ns: int) -> list[effects.SendAdds]:
        """As `send`, if the window of a bookie on trial has room for the entries."""
        assert self.trial is not None
        before = self.outstanding
        if not self.trial.has_room(before, len(entries), len(entries.buffer)):
            return []
        sends = self.send(entries, first_entry, now_ns)
        self.trial = self.trial.with_sent(self.outstanding - before)
        return sends

    def count_answers(self, entry_ids: np.ndarray, span: tuple[int, int] | None) -> None:
        """Record that the bookie answered for these entries, at least one. `span`: from `consecutive`."""
        self.answered_to = max(self.answered_to, entry_ids.item(-1))
        run = span if self.stripe.is_whole else self.stripe.run(entry_ids)
        if run is not None:
            self.owed = without_run(self.owed, run[0], run[1])
        else:
            self.owed = without_answered(self.owed, self.stripe.ranks(entry_ids))

    # ---- refusals ----

    def hold(
        self, entry_ids: np.ndarray, sends: Collection[effects.SendAdds], limits: WriterLimits, now_ns: int
    ) -> Refusal:
        """Record that the bookie refused these entries; hold the sends of retained ones until a pause is over."""
        refusal = self.refusal
        if refusal is None:
            pause_ns = limits.refusal_pause_ns_min
            refusal = self.refusal = Refusal(now_ns, pause_ns, now_ns + pause_ns)
            self.phase = Phase.REFUSING
        elif (entry_ids == refusal.probed).any():
            # A refusal of entries that were sent before the probe does not refuse the probe.
            refusal.probed = NO_ENTRY
            refusal.pause_ns = min(2 * refusal.pause_ns, limits.refusal_pause_ns_max)
            refusal.retry_at_ns = now_ns + refusal.pause_ns
        refusal.held += sends
        # In entry order again, so that the answers show how far the bookie has come.
        refusal.held.sort(key=_first_sent)
        return refusal

    def probe_refusal(self, now_ns: int) -> list[effects.SendAdds]:
        """Send one held piece as a probe, if it is due; the rest waits for the answer."""
        refusal = self.refusal
        if refusal is None or not refusal.held or refusal.probed != NO_ENTRY or refusal.retry_at_ns > now_ns:
            return []
        probe = refusal.held.pop(0)
        refusal.probed = _last_sent(probe)
        self.progress_ns = now_ns
        return [probe]

    def take_again(self, entry_ids: np.ndarray, now_ns: int) -> list[effects.SendAdds]:
        """If the probe is among these answers, the bookie no longer refuses: return the held sends."""
        refusal = self.refusal
        if refusal is None or not (entry_ids == refusal.probed).any():
            return []
        self.phase = Phase.SERVING
        self.refusal = None
        self.resent_ns = now_ns
        self.needs_replacement = self.is_reported = False
        return refusal.held

    # ---- how the bookie takes part ----

    def fail(self) -> None:
        """The bookie failed."""
        self._begin(Phase.FAILED)
        self.needs_replacement = True
        self.owed = ()

    def leave_out(self) -> None:
        """Continue without the bookie; it gets probes."""
        self._begin(Phase.LEFT_OUT)
        self.owed = ()

    def take_back(self, first_entry: int, now_ns: int) -> None:
        """Let the bookie take part again; it will get the slot's entries from `first_entry` on."""
        self._begin(Phase.SERVING)
        self._begin_at(first_entry, now_ns)

    def begin_trial(self, next_entry: int, now_ns: int) -> None:
        """The bookie, just taken back, is on trial."""
        self.phase = Phase.ON_TRIAL
        self.trial = Trial(now_ns, self.stripe.rank(next_entry))

    def replace(self, bookie: str, first_entry: int, lac: int, now_ns: int) -> None:
        """Put another bookie into the slot; it will get the slot's entries from `first_entry` on."""
        self.bookie = bookie
        self.probe = None
        self.was_unregistered = self.is_congested = False
        self.last_synced = lac
        self._begin(Phase.SERVING)
        self._begin_at(first_entry, now_ns)

    def keep(self, now_ns: int) -> None:
        """Keep the bookie, which is alive, because there is no spare: callers wait for it without a limit."""
        if self.refusal is not None:
            self.refusal.since_ns = now_ns
        self.lag_since_ns = None
        self.needs_replacement = self.is_reported = False

    def end(self) -> None:
        """Drop what is held: the writer has ended."""
        if self.refusal is not None:
            self._begin(Phase.FAILED)

    def _begin(self, phase: Phase) -> None:
        """Enter another phase: clear the state of the previous one."""
        self.phase = phase
        self.refusal = self.trial = self.lag_since_ns = None
        self.needs_replacement = False
        self.sought_from_ns = 0

    def _begin_at(self, first_entry: int, now_ns: int) -> None:
        self.owed = ()
        self.answered_to = first_entry - 1
        self.complete_from = first_entry
        self.resent_ns = now_ns
        self.is_reported = False


class Slots:
    """The slots of an ensemble, in order, and values derived from all of them."""

    def __init__(self, metadata: LedgerMetadata, lac: int) -> None:
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        self.write_quorum = quorum
        """Qw. Constant."""
        self.ack_quorum = metadata.ack_quorum
        """Qa. Constant."""
        self.is_striped = quorum < size
        """Whether entries are stored in some of the slots only. Constant."""
        self.all = [
            Slot(number, np.uint64(1 << number), stripe(number, size, quorum), bookie, lac)
            for number, bookie in enumerate(metadata.last_fragment.bookies)
        ]
        """The slots, in order. The list is constant."""

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies of the slots, in the order of the slots."""
        return tuple([slot.bookie for slot in self.all])

    def may_hold_back(self, number: int) -> bool:
        """Return whether callers wait for the bookie in a slot when it owes too much."""
        return self.all[number].takes_part

    @property
    def outstanding_max(self) -> int:
        """Unanswered entries at the slowest bookie that may delay callers."""
        most = 0
        for slot in self.all:
            if slot.owed and slot.takes_part:
                most = max(most, slot.outstanding)
        return most

    def numbers(self, is_so: Callable[[Slot], bool]) -> set[int]:
        """Return the numbers of the slots for which `is_so` is true."""
        return {slot.number for slot in self.all if is_so(slot)}

    @property
    def left_out(self) -> list[Slot]:
        """The slots whose bookie is left out."""
        return [slot for slot in self.all if slot.phase is Phase.LEFT_OUT]

    @property
    def to_replace(self) -> list[Slot]:
        """The slots for which the current ensemble change seeks a bookie."""
        return [slot for slot in self.all if slot.needs_replacement]

    def leave_too_few(self, missing: Collection[int]) -> bool:
        """Return whether a write set without the missing slots has less than Qa bookies."""
        size = len(self.all)
        gone = write_set_masks(np.arange(size), size, self.write_quorum) & np.uint64(mask_of(tuple(missing)))
        return bool((np.bitwise_count(gone) > self.write_quorum - self.ack_quorum).any())

    def can_do_without(self, slot: Slot) -> bool:
        """Return whether every write set has Qa bookies without this one and those that are missing already."""
        missing = self.numbers(lambda it: it.phase is Phase.LEFT_OUT or it.needs_replacement)
        return not self.leave_too_few({*missing, slot.number})

    def probe_refusals(self, now_ns: int) -> list[effects.WriterEffect]:
        """Send due probes to bookies that refuse load; request a call when more will be due."""
        done: list[effects.WriterEffect] = []
        waits = []
        for slot in self.all:
            done += slot.probe_refusal(now_ns)
            refusal = slot.refusal
            if refusal is not None and refusal.probed == NO_ENTRY and refusal.retry_at_ns > now_ns:
                waits.append(refusal.retry_at_ns - now_ns)
        return [*done, effects.CallAfter(min(waits))] if waits else done


def _first_sent(send: effects.SendAdds) -> int:
    return send.entries.first_entry + (0 if send.positions is None else int(send.positions[0]))


def _last_sent(send: effects.SendAdds) -> int:
    return send.entries.first_entry + (len(send.entries) - 1 if send.positions is None else int(send.positions[-1]))


def consecutive(entry_ids: np.ndarray) -> tuple[int, int] | None:
    """Return (first, after the last) of consecutive entries, at least one; None if they are not consecutive."""
    first, end = entry_ids.item(0), entry_ids.item(-1) + 1
    count = end - first
    is_span = count == len(entry_ids) and (count < 2 or bool((entry_ids[1:] > entry_ids[:-1]).all()))
    return (first, end) if is_span else None


def with_sent(runs: Runs, first: int, end: int) -> Runs:
    """Return the runs with ranks [first, end) added, which are above all of them."""
    if runs and runs[-1][1] == first:
        return (*runs[:-1], (runs[-1][0], end))
    return (*runs, (first, end))


def without_answered(runs: Runs, ranks: np.ndarray) -> Runs:
    """Return the runs without these ranks, which may be in any order, repeated, or not in the runs."""
    if not len(ranks):
        return runs
    span = consecutive(ranks)
    if span is not None:
        return without_run(runs, *span)
    ranks = np.unique(ranks)
    starts = np.flatnonzero(np.append(True, np.diff(ranks) != 1))
    ends = np.append(starts[1:], len(ranks)) - 1
    for first, last in zip(ranks[starts].tolist(), ranks[ends].tolist()):
        runs = without_run(runs, first, last + 1)
    return runs


def without_run(runs: Runs, first: int, end: int) -> Runs:
    """As `without_answered`, for the ranks [first, end)."""
    if not runs:
        return runs
    begin, stop = runs[0]
    if first == begin and end <= stop:
        # The case of a bookie that answers in order.
        return ((end, stop), *runs[1:]) if end < stop else runs[1:]
    low = bisect.bisect_right(runs, first, key=_stop_of)
    high = bisect.bisect_left(runs, end, key=_begin_of)
    touched = runs[low:high]
    if not touched:
        return runs
    left = ((touched[0][0], first),) if touched[0][0] < first else ()
    right = ((end, touched[-1][1]),) if touched[-1][1] > end else ()
    return (*runs[:low], *left, *right, *runs[high:])


def _begin_of(run: tuple[int, int]) -> int:
    return run[0]


def _stop_of(run: tuple[int, int]) -> int:
    return run[1]
