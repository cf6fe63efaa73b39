"""The small parts of the cores at their boundaries, each called directly: runs, slots, probes, speeds, replicas."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from bkspark.core import effects
from bkspark.core.last_confirmed import wrong_lac
from bkspark.core.left_out import LeftOutBookies
from bkspark.core.limits import WriterLimits
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.pending import PendingEntries
from bkspark.core.placement import Topology, choose_ensemble
from bkspark.core.probing import (
    FORGIVEN_PAUSES,
    TRIAL_BYTES_MAX,
    TRIAL_ENTRIES_MAX,
    TRIAL_PACE_MIN,
    Pauses,
    Probe,
    Trial,
)
from bkspark.core.quarantine import Quarantine
from bkspark.core.reader import GroupRead, next_span
from bkspark.core.slots import Phase, Slot, Slots, consecutive, without_run
from bkspark.core.speeds import FORGOTTEN_S, KNOWN_ANSWERS_MIN, TRY_AGAIN_S, ReadSpeeds
from bkspark.core.striping import Stripe, write_set
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import (
    BookieUnavailable,
    ReadFailed,
)
from tests.core.writing import SECOND_NS, entries

QUORUMS = [(1, 1), (3, 3), (3, 2), (3, 1), (5, 3), (6, 4)]
LIMITS = WriterLimits.of(WriterOptions())
THREE = LedgerMetadata(3, 3, 2, (Fragment(0, ("b1", "b2", "b3")),))


def slot_of(size: int = 3, quorum: int = 3) -> Slot:
    return Slot(0, np.uint64(1), Stripe(0, size, quorum), "b1", -1)


# ---- ids and runs ----


def test_ids_are_consecutive_if_each_follows_the_one_before() -> None:
    for count in range(1, 5):
        for ids in itertools.product(range(6), repeat=count):
            is_run = list(ids) == list(range(ids[0], ids[0] + count))
            assert consecutive(np.array(ids)) == ((ids[0], ids[0] + count) if is_run else None), ids


def test_run_takes_away_what_it_covers_of_any_runs() -> None:
    for owed in itertools.product((False, True), repeat=7):
        ranks = {rank for rank, is_owed in enumerate(owed) if is_owed}
        runs = tuple(
            (begin, next(end for end in range(begin, 9) if end not in ranks))
            for begin in sorted(ranks)
            if begin - 1 not in ranks
        )
        for first, end in itertools.combinations(range(8), 2):
            left = without_run(runs, first, end)
            taken = ranks & set(range(first, end))
            assert all(begin < stop for begin, stop in left)
            assert [rank for begin, stop in left for rank in range(begin, stop)] == sorted(ranks - taken)


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_part_of_a_batch_is_what_the_slot_stores_of_it(quorums: tuple[int, int]) -> None:
    for slot in range(quorums[0]):
        stripe = Stripe(slot, *quorums)
        for first, begin, end in [(0, 0, 9), (7, 2, 9), (7, 3, 3), (11, 4, 5)]:
            stored = [at for at in range(begin, end) if slot in write_set(first + at, *quorums)]
            rank, positions = stripe.part(first, begin, end)
            assert positions.tolist() == stored
            assert rank == stripe.rank(first + begin)
            if stored:
                assert rank == stripe.rank(first + stored[0])


# ---- slots ----


def test_new_bookie_of_a_slot_has_no_probe_and_is_asked_for_its_entries_on() -> None:
    slot = slot_of()
    slot.send(entries(0, 8), 0, 1)
    slot.probe = Probe(10, 20).sent(3, 15)
    slot.is_reported = True
    slot.replace("b4", 5, 4, 30)
    assert (slot.bookie, slot.probe, slot.is_probed, slot.owed) == ("b4", None, False, ())
    assert (slot.answered_to, slot.reached, slot.last_synced, slot.complete_from) == (4, 4, 4, 5)
    assert not slot.is_reported


def test_bookie_refuses_load_until_it_takes_the_last_entry_of_the_probe() -> None:
    """It may take the first entries of a probe and refuse the others."""
    slot, ids = slot_of(3, 2), np.array([0, 2, 3, 5])
    slot.hold(ids, slot.send(entries(0, 6), 0, 1), LIMITS, 1)
    due_ns = 1 + LIMITS.refusal_pause_ns_min
    assert len(slot.probe_refusal(due_ns)) == 1
    slot.take_again(ids[:-1], due_ns)
    assert slot.phase is Phase.REFUSING
    slot.take_again(ids[-1:], due_ns)
    assert slot.phase is Phase.SERVING


def test_trial_counts_what_was_sent_in_it() -> None:
    slot = slot_of()
    slot.take_back(5, 1)
    slot.begin_trial(5, 1)
    assert len(slot.send_on_trial(entries(5, 3), 5, 2)) == 1
    assert len(slot.send_on_trial(entries(8, 4), 8, 2)) == 1
    assert slot.trial == Trial(1, 5, sent=7)
    assert slot.send_on_trial(entries(12, TRIAL_ENTRIES_MAX), 12, 2) == []
    assert slot.trial == Trial(1, 5, sent=7)


def test_bookie_that_owes_nothing_retains_nothing() -> None:
    slot = slot_of()
    assert not slot.retains(5)
    slot.send(entries(3, 2), 3, 1)
    assert [slot.retains(last) for last in (2, 3, 4)] == [False, True, True]


def test_probe_of_a_refusing_bookie_is_answered_by_its_last_entry() -> None:
    slot = slot_of()
    held = effects.SendAdds(0, "b1", entries(0, 3), None)
    slot.hold(np.array([0]), [held], LIMITS, 0)
    assert slot.probe_refusal(LIMITS.refusal_pause_ns_min - 1) == []
    assert slot.probe_refusal(LIMITS.refusal_pause_ns_min) == [held]
    assert slot.refusal is not None
    assert slot.refusal.probed == 2
    assert slot.take_again(np.array([1]), 5) == []
    assert slot.phase is Phase.REFUSING
    assert slot.probe_refusal(1 << 60) == [], "one probe is under way"
    assert slot.take_again(np.array([2]), 5) == []
    assert slot.phase is Phase.SERVING


def test_refusing_bookie_for_which_nothing_is_held_gets_no_probe() -> None:
    slot = slot_of()
    slot.hold(np.array([0]), [], LIMITS, 0)
    assert slot.probe_refusal(1 << 60) == []
    assert slot.refusal is not None
    assert slot.refusal.probed == -1


def test_entries_that_callers_wait_for_are_the_most_that_one_bookie_owes() -> None:
    slots = Slots(THREE, -1)
    assert slots.outstanding_max == 0
    slots.all[0].send(entries(0, 4), 0, 1)
    slots.all[1].send(entries(0, 9), 0, 1)
    assert slots.outstanding_max == 9
    slots.all[1].leave_out()
    assert slots.outstanding_max == 4


# ---- trials and probes ----


def test_bookie_on_trial_has_room_up_to_the_limits_and_for_one_batch_of_any_size() -> None:
    trial = Trial(0, 0)
    assert trial.has_room(0, 10 * TRIAL_ENTRIES_MAX, 10 * TRIAL_BYTES_MAX)
    assert trial.has_room(TRIAL_ENTRIES_MAX - 10, 10, 0)
    assert not trial.has_room(TRIAL_ENTRIES_MAX - 9, 10, 0)
    large = TRIAL_BYTES_MAX // 4
    assert trial.has_room(3, 1, large)
    assert not trial.has_room(4, 1, large)
    assert not trial.has_room(3, 1, large + 1)


def test_bookie_keeps_up_that_has_answered_for_its_share_or_owes_nothing() -> None:
    trial = Trial(0, 100).with_sent(10)
    assert trial.has_kept_up(100 + 9 * TRIAL_PACE_MIN, 1)
    assert not trial.has_kept_up(101 + 9 * TRIAL_PACE_MIN, 1)
    assert trial.has_kept_up(10_000, 0)


def test_pause_before_the_first_probe_is_longer_if_the_bookie_came_back_not_long_ago() -> None:
    pauses = Pauses(10, 80)
    assert Probe.begun(None, pauses, 1000) == Probe(10, 1010)
    back = Probe(20, 0).answered(1000)
    forgiven = 1000 + FORGIVEN_PAUSES * 80
    assert Probe.begun(back, pauses, forgiven - 1) == Probe(40, forgiven + 39)
    assert Probe.begun(back, pauses, forgiven) == Probe(10, forgiven + 10)
    assert Probe.begun(Probe(80, 0).answered(1000), pauses, 1001).pause_ns == 80
    assert Probe.begun(Probe(20, 0), pauses, 1001) == Probe(10, 1011)


def test_bookie_that_registers_again_is_probed_soon_and_one_that_stays_away_is_not() -> None:
    slots = Slots(THREE, -1)
    left_out = LeftOutBookies(slots, PendingEntries(-1), LIMITS)
    slot = slots.all[2]
    left_out.on_left_out(slot)
    slot.probe = Probe(10, 1000)
    left_out.note_registered({"b3"}, 5)
    assert slot.probe.due_ns == 1000, "it was registered all the time"
    left_out.note_registered({"b1"}, 5)
    left_out.note_registered({"b1"}, 6)
    assert slot.probe.due_ns == 1000
    left_out.note_registered({"b3"}, 7)
    assert slot.probe.due_ns == 7
    left_out.note_registered({"b3"}, 8)
    assert slot.probe.due_ns == 7


def test_bookie_that_was_away_before_it_was_left_out_is_not_probed_sooner() -> None:
    slots = Slots(THREE, -1)
    left_out = LeftOutBookies(slots, PendingEntries(-1), LIMITS)
    slot = slots.all[2]
    left_out.note_registered({"b1", "b2"}, 5)
    left_out.on_left_out(slot)
    slot.probe = Probe(10, 1000)
    left_out.note_registered({"b1", "b2", "b3"}, 6)
    assert slot.probe.due_ns == 1000, "the pause before its first probe begins when it is left out"


def test_spare_bookies_are_looked_for_when_their_times_have_come() -> None:
    slots = Slots(THREE, -1)
    left_out = LeftOutBookies(slots, PendingEntries(-1), LIMITS)
    left_out.on_left_out(slots.all[1])
    slots.all[1].sought_from_ns = 50
    assert (left_out.sought(49), left_out.sought(50)) == ([], [slots.all[1]])
    delay_ns, retry_ns = LIMITS.ensemble_change_delay_ns_max, LIMITS.replacement_retry_ns
    left_out.begin_delay(100)
    assert (left_out.is_search_due(100 + delay_ns), left_out.is_search_due(101 + delay_ns)) == (False, True)
    left_out.begin_search(200)
    assert (left_out.is_search_due(200 + retry_ns), left_out.is_search_due(201 + retry_ns)) == (False, True)
    left_out.note_search(300)
    assert (left_out.is_search_due(300 + retry_ns), left_out.is_search_due(301 + retry_ns)) == (False, True)


def test_bookie_lags_from_the_limit_of_entries_on() -> None:
    for size, quorum in ((3, 3), (3, 2)):
        metadata = LedgerMetadata(size, quorum, 2, THREE.fragments)
        limits, slots, pending = (
            WriterLimits.of(WriterOptions(slow_lag_entries=12)),
            Slots(metadata, -1),
            PendingEntries(-1),
        )
        left_out = LeftOutBookies(slots, pending, limits)
        pending.add(entries(0, 60), 0)
        slots.all[0].send(entries(0, 60), 0, 0)
        first_late = 12 * size // quorum + slots.all[0].reached
        assert not left_out.lags(slots.all[0], first_late - 1)
        assert left_out.lags(slots.all[0], first_late)
        assert not left_out.lags(slots.all[1], first_late), "it owes nothing"
        slots.all[0].is_congested = slots.all[1].is_congested = True
        assert left_out.lags(slots.all[0], -1)
        assert not left_out.lags(slots.all[1], -1)


def test_bookie_holds_up_once_its_oldest_answer_is_due_for_longer_than_it_may_take() -> None:
    slots, pending = Slots(THREE, -1), PendingEntries(-1)
    left_out, sent_ns, count = (
        LeftOutBookies(slots, pending, LIMITS),
        10 * LIMITS.add_timeout_ns,
        LIMITS.hold_up_entries,
    )
    pending.add(entries(0, count), sent_ns)
    for slot in slots.all:
        slot.send(entries(0, count), 0, sent_ns)
    slots.all[1].count_answers(np.arange(count), (0, count))
    due_ns = sent_ns + LIMITS.add_timeout_ns
    assert [left_out.holds_up(slots.all[0], now_ns) for now_ns in (due_ns, due_ns + 1)] == [False, True]


def test_bookie_that_registers_before_its_first_probe_is_planned_has_no_probe_to_hasten() -> None:
    slots = Slots(THREE, -1)
    left_out = LeftOutBookies(slots, PendingEntries(-1), LIMITS)
    left_out.on_left_out(slots.all[2])
    left_out.note_registered({"b1"}, 5)
    left_out.note_registered({"b3"}, 6)
    assert slots.all[2].probe is None


def test_failure_between_two_probes_leaves_the_next_probe_as_it_was_planned() -> None:
    slots = Slots(THREE, -1)
    left_out, slot = LeftOutBookies(slots, PendingEntries(-1), LIMITS), slots.all[2]
    left_out.on_left_out(slot)
    assert left_out.on_probe_failed(slot, 5) == []
    slot.probe = planned = Probe(10, 20)
    assert left_out.on_probe_failed(slot, 15) == []
    assert slot.probe == planned


def test_trial_fails_after_twice_its_time_or_a_silence() -> None:
    slots, pending = Slots(THREE, -1), PendingEntries(-1)
    left_out, slot = LeftOutBookies(slots, pending, LIMITS), slots.all[0]
    slot.begin_trial(0, 100)
    assert not left_out.fails(slot, 100 + 2 * LIMITS.trial_ns - 1)
    assert left_out.fails(slot, 100 + 2 * LIMITS.trial_ns)
    assert not left_out.passes(slot, 100 + LIMITS.trial_ns - 1)
    assert left_out.passes(slot, 100 + LIMITS.trial_ns)
    slot.send(entries(0, 1), 0, 100)
    assert not left_out.fails(slot, 100 + LIMITS.hold_back_ns_max)
    assert left_out.fails(slot, 101 + LIMITS.hold_back_ns_max)
    slot.is_congested = True
    assert left_out.fails(slot, 101)
    assert not left_out.passes(slot, 100 + LIMITS.trial_ns)


def test_bytes_between_two_entries_are_those_of_batches_that_begin_there() -> None:
    pending = PendingEntries(-1)
    for first, count in ((0, 3), (3, 4), (7, 5)):
        pending.add(entries(first, count), first)
    assert [pending.bytes_between(-1, last) for last in (-1, 0, 2, 3, 6, 7)] == [0, 3, 3, 7, 7, 12]
    assert [pending.bytes_between(after, 9) for after in (-1, 0, 2, 3, 7)] == [12, 9, 9, 5, 0]
    assert [pending.added_ns(entry, 99) for entry in (0, 2, 3, 6, 7, 11, 12)] == [0, 0, 3, 3, 7, 7, 99]


def test_first_retained_entry_is_above_the_lac_and_without_any_it_is_the_next_one() -> None:
    pending = PendingEntries(-1)
    pending.add(entries(0, 4), 0)
    assert [pending.first_retained(lac) for lac in (-1, 1, 3)] == [0, 2, 4]
    pending.clear()
    assert pending.first_retained(1) == 4


def test_batch_for_probes_is_kept_while_any_bookie_is_left_out() -> None:
    slots, pending = Slots(THREE, -1), PendingEntries(-1)
    left_out = LeftOutBookies(slots, pending, LIMITS)
    pending.add(entries(0, 1), 0)
    for slot in slots.all[1:]:
        left_out.on_left_out(slot)
        slot.probe = Probe(10, 0)
    slots.all[1].take_back(1, 5)
    left_out.on_taken_back()
    assert [effect.entries.first_entry for effect in left_out.probe(slots.all[2], 20)] == [0]
    slots.all[2].take_back(1, 5)
    left_out.on_taken_back()
    slots.all[2].probe = Probe(10, 0)
    assert left_out.probe(slots.all[2], 20) == []


def test_batch_for_probes_is_given_up_with_the_writer() -> None:
    slots, pending = Slots(THREE, -1), PendingEntries(-1)
    left_out = LeftOutBookies(slots, pending, LIMITS)
    pending.add(entries(0, 1), 0)
    left_out.on_left_out(slots.all[2])
    slots.all[2].probe = Probe(10, 0)
    left_out.on_ended()
    assert left_out.probe(slots.all[2], 20) == []


# ---- speeds ----


def test_speed_of_a_bookie_that_was_overtaken_stays_known() -> None:
    speeds = ReadSpeeds()
    for bookie, seconds in (("b1", 0.001), ("b2", 0.01)):
        speeds.on_answer(bookie, 100, seconds, 0.0)
    speeds.on_overtaken("b2", 100, 0.001, 20.0)
    speeds.on_answer("b1", 100, 0.001, 20.0)
    assert speeds.slow(("b1", "b2"), 100, 20.0 + FORGOTTEN_S - 1) == {"b2"}
    assert speeds.slow(("b1", "b2"), 100, 20.0 + FORGOTTEN_S) == frozenset()


def test_bookies_of_unknown_speed_are_not_compared() -> None:
    assert ReadSpeeds().to_try(("b1", "b2"), 100, 5.0) is None


def test_speeds_are_of_use_when_two_are_known_or_one_well() -> None:
    speeds = ReadSpeeds()
    for number in range(KNOWN_ANSWERS_MIN):
        assert not speeds.is_informed
        speeds.on_answer("b1", 100, 0.001, 1.0 + number / 100)
    assert speeds.is_informed
    speeds = ReadSpeeds()
    speeds.on_answer("b1", 100, 0.001, 0.0)
    assert not speeds.is_informed
    speeds.on_answer("b2", 100, 0.001, 0.0)
    assert speeds.is_informed


def test_speed_is_forgotten_by_the_time_since_the_last_answer_and_not_by_the_clock() -> None:
    speeds = ReadSpeeds()
    for number in range(3):
        speeds.on_answer("b1", 100, 0.001, 1000.0 + number * (TRY_AGAIN_S - 1))
    assert speeds._speeds["b1", False].answers == 3
    speeds.on_answer("b1", 100, 0.5, 2000.0)
    assert speeds._speeds["b1", False].answers == 1


# ---- reading ----


def test_group_asks_each_replica_once_and_the_one_that_answers_first() -> None:
    group = GroupRead(7, np.array([3, 5, 7]), ["a", "b", "c"])
    assert (group.step, group.is_asked) == (2, False)
    assert GroupRead(7, np.array([4]), ["a"]).step == 1
    assert (group.next_replica(), group.is_asked) == ("a", True)
    assert group.next_replica() == "b"
    group.on_entries("b", 1)
    assert (group.missing.tolist(), group.replicas, group.is_asked) == ([5, 7], ["b", "c", "a"], False)
    group.on_entries("b", 1, BookieUnavailable("no more", bookie="b"))
    assert (group.is_asked, group.next_replica(), group.next_replica(), group.next_replica()) == (True, "c", "a", None)
    group.on_failure(BookieUnavailable("another", bookie="c"))
    error = group.error()
    assert isinstance(error, ReadFailed)
    assert error.bookie == "b"
    assert "no more" in str(error)
    group.on_entries("c", 1, BookieUnavailable("too late", bookie="c"))
    assert not group.is_asked


def test_span_ends_with_its_fragment() -> None:
    fragments = tuple(Fragment(first, (f"b{first}",)) for first in (0, 4, 9))
    metadata = LedgerMetadata(1, 1, 1, fragments)
    for first in range(12):
        span = next_span(metadata, first, 12, 100)
        ends = [end for end in (4, 9, 12) if end > first]
        begins = [begin for begin in (0, 4, 9) if begin <= first]
        assert (span.first_entry, span.end_entry, span.bookies) == (first, ends[0], (f"b{begins[-1]}",))


def test_entry_with_a_wrong_lac_names_its_bookie() -> None:
    error = wrong_lac(5, 7, 9, "b1")
    assert (error.ledger_id, error.entry_id, error.bookie) == (5, 7, "b1")


def test_entry_below_zero_has_no_fragment_and_a_closed_ledger_stays_as_it_is() -> None:
    with pytest.raises(ValueError, match="entry -1 is negative"):
        THREE.fragment_of(-1)
    closed = THREE.closed(3, 40)
    with pytest.raises(ValueError, match="stays closed"):
        closed.closed(3, 40)
    with pytest.raises(ValueError, match="stays closed"):
        closed.in_recovery()


# ---- placement ----


def test_write_sets_in_one_rack_span_hosts() -> None:
    hosts = {f"h{host}b{number}": f"h{host}" for host in range(2) for number in range(3)}
    for seed in range(20):
        chosen = choose_ensemble(set(hosts), 2, 2, random.Random(seed), Topology(hosts=hosts))
        assert {hosts[bookie] for bookie in chosen} == {"h0", "h1"}


@pytest.mark.parametrize("sizes", [(1, 1, 2), (2, 2, 2), (1, 2, 3), (2, 2, 1, 1)])
def test_ensemble_of_all_bookies_has_each_once_and_spans_racks_where_that_can_be(sizes: tuple[int, ...]) -> None:
    racks = {f"r{rack}b{number}": f"/r{rack}" for rack, size in enumerate(sizes) for number in range(size)}
    size = len(racks)
    for write_quorum, seed in itertools.product((2, 3), range(15)):
        chosen = choose_ensemble(set(racks), size, write_quorum, random.Random(seed), Topology(racks, racks_min=2))
        assert sorted(chosen) == sorted(racks)
        for first in range(size):
            assert len({racks[chosen[slot]] for slot in write_set(first, size, write_quorum)}) >= 2


# ---- quarantine ----


def test_bookie_starts_at_zero_after_its_quarantine() -> None:
    quarantine = Quarantine(failures_max=2, window_ns=20 * SECOND_NS, quarantine_ns=SECOND_NS)
    begin = 1000 * SECOND_NS
    quarantine.on_failure("b1", begin)
    assert quarantine.members(begin) == frozenset()
    quarantine.on_failure("b1", begin + 2 * SECOND_NS)
    assert quarantine.members(begin + 3 * SECOND_NS - 1) == {"b1"}
    quarantine.on_failure("b1", begin + 3 * SECOND_NS)
    assert quarantine.members(begin + 3 * SECOND_NS) == frozenset()
    quarantine.on_failure("b1", begin + 4 * SECOND_NS)
    assert quarantine.members(begin + 4 * SECOND_NS) == {"b1"}
