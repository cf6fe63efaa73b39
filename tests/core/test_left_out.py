"""WriterCore and gray failures: who is left out, who is probed, and who takes part again (findings M1 and M3)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bkspark.core import effects
from bkspark.core.limits import WriterLimits
from bkspark.core.pipeline import WriterState
from bkspark.core.probing import TRIAL_ENTRIES_MAX, Pauses, Probe
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import LedgerFenced, MetadataError
from bkspark.wire.status import Status
from tests.core.writing import SECOND_NS, Writer, sent_to

SECOND = SECOND_NS
LIMITS = WriterOptions(slow_lag_entries=10)
LAGGING = 20


def hung_writer(quorums=(3, 3, 2), options=LIMITS):
    """A writer whose third bookie takes everything and answers nothing, with its lag full since second 0."""
    writer = Writer(quorums, options=options)
    writer.add(LAGGING)
    for slot in (0, 1):
        writer.reply(slot, *range(LAGGING))
    assert writer.acknowledged == LAGGING - 1
    return writer


def tick(writer, seconds):
    return writer.take(writer.core.on_tick(round(seconds * SECOND)))


def left_out(quorums=(3, 3, 2), options=LIMITS):
    writer = hung_writer(quorums, options)
    tick(writer, 2.1)
    assert not writer.core.slots.may_hold_back(2)
    return writer


def append(writer, now, *answering, count=1):
    """Add entries at a time, and let some slots acknowledge them."""
    first = writer.core.pending.next_entry
    done = writer.add(count, round(now * SECOND))
    for slot in answering:
        done += writer.reply(slot, *range(first, first + count), now_ns=round(now * SECOND))
    return done


def probed(done):
    """Return (slot, entry) of the probe among some effects: one entry, sent to one slot."""
    sends = [effect for effect in done if isinstance(effect, effects.SendAdds)]
    assert len(sends) <= 1
    for send in sends:
        assert send.positions is not None
        return send.slot, send.entries.first_entry + send.positions.item(0)
    return None


def returned(writer, now):
    """Let the third bookie of a writer that left it out at 2.1 s answer a probe; return what it gets."""
    append(writer, now, 0, 1)
    tick(writer, now)
    slot, entry = probed(tick(writer, now + 1))
    assert slot == 2
    return writer.reply(slot, entry, now_ns=round((now + 1) * SECOND))


def test_bookie_that_hangs_holds_callers_back_for_two_seconds_and_no_longer():
    """With 3/3/2 and no spare one hung bookie stopped the writer 34 of 40 seconds."""
    writer = hung_writer()
    assert writer.core.slots.outstanding_max == LAGGING
    tick(writer, 1.9)
    assert writer.core.slots.outstanding_max == LAGGING
    assert effects.DropIfSilent("b3") in tick(writer, 2.1)
    assert writer.core.state is WriterState.ACTIVE
    assert (writer.core.slots.outstanding_max, writer.core.pending.kept_bytes) == (0, 0)
    assert sent_to(append(writer, 2.2, 0, 1)) == {"b1": [20], "b2": [20]}
    assert writer.acknowledged == 20


@pytest.mark.parametrize("quorums", [(3, 3, 3), (2, 2, 2), (1, 1, 1)], ids=str)
def test_bookie_that_qa_needs_is_waited_for(quorums):
    writer = Writer(quorums, options=LIMITS)
    writer.add(LAGGING)
    for slot in range(quorums[0] - 1):
        writer.reply(slot, *range(LAGGING))
    tick(writer, 2.1)
    assert writer.core.slots.may_hold_back(quorums[0] - 1)


def test_bookie_that_is_only_slower_than_the_others_sets_the_pace():
    """It lags all the time, by less than two seconds of adds: its copies are worth the wait."""
    writer = Writer((3, 3, 2), options=LIMITS)
    for step in range(100):
        now = round(step * SECOND / 10)
        writer.add(10, now)
        first = 10 * step
        for slot in (0, 1):
            writer.reply(slot, *range(first, first + 10), now_ns=now)
        if step >= 15:
            writer.reply(2, *range(first - 150, first - 140), now_ns=now)
        tick(writer, step / 10)
        assert writer.core.slots.may_hold_back(2)
    assert writer.core.slots.outstanding_max == 150


def test_registered_bookie_is_not_taken_back_before_it_has_answered_a_probe():
    writer = left_out()
    append(writer, 3, 0, 1)
    for now in (3, 5, 8, 13, 21, 30):
        done = tick(writer, now)
        if any(isinstance(effect, effects.FindBookies) for effect in done):
            writer.take(writer.core.on_writable_bookies({"b1", "b2", "b3"}))
        assert set(sent_to(append(writer, now, 0, 1))) == {"b1", "b2"}
        assert writer.core.state is WriterState.ACTIVE


def test_probes_are_single_entries_after_pauses_that_double_up_to_a_limit():
    writer = left_out()
    times = []
    now = 2.1
    while now < 100:
        if probed(tick(writer, now)):
            times.append(now)
        append(writer, now, 0, 1)
        now = round(now + 0.1, 1)
    # A probe counts as unanswered after the add time-out of 5 s; then the pause of 2, 4, 8, 10, 10 ... begins.
    assert [round(later - earlier) for earlier, later in itertools.pairwise(times)][:5] == [7, 9, 13, 15, 15]


def test_failed_probe_closes_a_connection_that_is_silent():
    writer = left_out()
    append(writer, 3, 0, 1)
    tick(writer, 3)
    assert probed(tick(writer, 4.1)) == (2, 20)
    assert writer.core.has_outstanding(2)  # the loss of its connection is news
    assert effects.DropIfSilent("b3") in tick(writer, 9.2)
    assert not writer.core.has_outstanding(2)
    # The same holds for a bookie that cannot be reached.
    assert probed(tick(writer, 12)) is not None
    assert writer.fail(2, now_ns=12 * SECOND) == [effects.DropIfSilent("b3")]
    assert writer.core.state is WriterState.ACTIVE


def test_answer_to_the_probe_begins_a_trial_and_all_that_is_pending_goes_out_at_its_end():
    writer = left_out()
    append(writer, 3, 0, 1)
    writer.add(2, 3 * SECOND)
    tick(writer, 3)
    slot, entry = probed(tick(writer, 4.1))
    assert writer.reply(slot, entry, now_ns=5 * SECOND) == []
    assert set(sent_to(writer.add(1, 5 * SECOND))) == {"b1", "b2", "b3"}
    writer.reply(2, 23, now_ns=6 * SECOND)
    assert sent_to(tick(writer, 6.9)) == {}
    assert sent_to(tick(writer, 7)) == {"b3": [21, 22, 23]}
    assert writer.core.slots.may_hold_back(2)


def test_late_answers_to_earlier_entries_bring_no_bookie_back():
    writer = left_out()
    append(writer, 3, 0, 1)
    tick(writer, 3)
    assert probed(tick(writer, 4.1)) == (2, 20)
    assert writer.reply(2, *range(LAGGING), now_ns=5 * SECOND) == []
    assert set(sent_to(writer.add(1, 5 * SECOND))) == {"b1", "b2"}


@pytest.mark.parametrize("status", [Status.ETOOMANYREQUESTS, Status.EREADONLY, Status.EIO])
def test_refused_probe_is_an_unanswered_one(status):
    writer = left_out()
    append(writer, 3, 0, 1)
    tick(writer, 3)
    slot, entry = probed(tick(writer, 4.1))
    writer.reply(slot, entry, status=status, now_ns=5 * SECOND)
    assert writer.core.state is WriterState.ACTIVE
    assert set(sent_to(writer.add(1, 5 * SECOND))) == {"b1", "b2"}
    assert probed(tick(writer, 6.9)) is None
    assert probed(tick(writer, 7.1)) is not None


def test_probe_of_a_fenced_ledger_ends_the_writer():
    writer = left_out()
    append(writer, 3, 0, 1)
    tick(writer, 3)
    slot, entry = probed(tick(writer, 4.1))
    writer.reply(slot, entry, status=Status.EFENCED, now_ns=5 * SECOND)
    assert isinstance(writer.core.error, LedgerFenced)


def test_bookie_on_trial_holds_no_caller_back_and_gets_no_more_than_a_window():
    writer = left_out()
    returned(writer, 3)
    sent = 0
    for step in range(100):
        done = append(writer, 4.1 + step / 100, 0, 1, count=100)
        sent += len(sent_to(done).get("b3", ()))
        assert (writer.core.slots.outstanding_max, writer.core.pending.kept_bytes) == (0, 0)
    assert sent == TRIAL_ENTRIES_MAX // 100 * 100
    # Silent as before: it is left out again.
    tick(writer, 6.2)
    assert set(sent_to(append(writer, 6.3, 0, 1))) == {"b1", "b2"}


@pytest.mark.parametrize(("share", "passes"), [(100, False), (5, False), (3, True), (1, True)])
def test_bookie_on_trial_passes_when_it_keeps_a_quarter_of_the_pace(share, passes):
    writer = left_out()
    returned(writer, 3)
    owed: list[int] = []
    for step in range(200):
        now = 4.1 + step / 100
        owed += sent_to(append(writer, now, 0, 1, count=100)).get("b3", ())
        count = 100 // share
        if owed:
            writer.reply(2, *owed[:count], now_ns=round(now * SECOND))
            owed = owed[count:]
        tick(writer, now)
    assert writer.core.slots.may_hold_back(2) is passes


def test_bookie_on_trial_that_skips_entries_is_left_out():
    """One that answers every second request answers every second probe, too."""
    writer = left_out()
    returned(writer, 3)
    now = 4.1
    while now < 8.2:
        for entry in sent_to(append(writer, now, 0, 1, count=2)).get("b3", ())[::2]:
            writer.reply(2, entry, now_ns=round(now * SECOND))
        tick(writer, now)
        assert not writer.core.slots.may_hold_back(2)
        now += 0.1
    assert set(sent_to(append(writer, now, 0, 1))) == {"b1", "b2"}


def test_bookie_on_trial_that_refuses_load_is_left_out_at_once():
    writer = left_out()
    returned(writer, 3)
    append(writer, 4.1, 0, 1)
    writer.reply(2, 21, status=Status.ETOOMANYREQUESTS, now_ns=round(4.1 * SECOND))
    assert set(sent_to(append(writer, 4.2, 0, 1))) == {"b1", "b2"}


@pytest.mark.parametrize("how", ["tick", "refusal"])
def test_bookie_on_trial_that_is_needed_gets_all_that_is_pending(how):
    writer = left_out()
    returned(writer, 3)
    writer.add(3, round(4.1 * SECOND))
    writer.add(1500, round(4.1 * SECOND))
    writer.fail(1, now_ns=round(4.2 * SECOND))
    writer.take(writer.core.on_writable_bookies({"b1", "b3"}))
    assert writer.core.state is WriterState.ACTIVE
    if how == "tick":
        done = tick(writer, 4.3)
    else:
        done = writer.reply(2, 21, status=Status.ETOOMANYREQUESTS, now_ns=round(4.3 * SECOND))
    assert sent_to(done)["b3"] == [*range(21, 1524)]
    assert writer.core.slots.may_hold_back(2)


def test_bookie_that_passes_its_trial_may_hold_callers_back_again():
    writer = left_out()
    returned(writer, 3)
    for step in range(40):
        append(writer, 4.1 + step / 20, 0, 1, 2)
        tick(writer, 4.1 + step / 20)
    assert writer.core.slots.may_hold_back(2)
    append(writer, 7, 0, 1, count=LAGGING)
    assert writer.core.slots.outstanding_max == LAGGING


def test_pause_grows_for_a_bookie_that_comes_back_and_fails_again_soon_and_is_forgiven_later():
    pauses = Pauses(1 * SECOND, 8 * SECOND)
    probe = Probe.begun(None, pauses, 0)
    lengths = []
    for now in range(6):
        lengths.append(probe.pause_ns // SECOND)
        probe = Probe.begun(probe.sent(1, now * SECOND).answered(now * SECOND), pauses, (now + 1) * SECOND)
    assert lengths == [1, 2, 4, 8, 8, 8]
    late = 5 * SECOND + 4 * 8 * SECOND
    assert Probe.begun(probe.answered(5 * SECOND), pauses, late).pause_ns == 1 * SECOND


def test_bookie_that_registers_again_is_probed_at_once():
    writer = Writer(options=LIMITS)
    append(writer, 0, 0, 1)
    writer.fail(2)
    writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    for now in (1, 2.1, 8, 12, 20):
        tick(writer, now)
        append(writer, now, 0, 1)
        writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    tick(writer, 21.5)
    assert probed(tick(writer, 22)) is None
    writer.take(writer.core.on_writable_bookies({"b1", "b2", "b3"}))
    assert probed(tick(writer, 22.1)) is None or writer.core.has_outstanding(2)
    assert writer.core.has_outstanding(2)


def test_search_for_a_spare_holds_no_acknowledgement_back_and_its_failure_ends_nothing():
    """A look-up takes as long as the metadata store does, once a second: adds must not wait for it."""
    writer = left_out()
    append(writer, 3, 0, 1)
    search = [effect for effect in tick(writer, 8) if isinstance(effect, effects.FindBookies)]
    assert search == [effects.FindBookies()]
    assert search[0].failed == ("b3",)
    append(writer, 8.1, 0, 1)
    assert writer.acknowledged == 21
    assert writer.take(writer.core.on_metadata_failed(MetadataError("away"))) == []
    assert writer.core.state is WriterState.ACTIVE
    assert effects.FindBookies() in tick(writer, 10)
    append(writer, 10, 0)
    done = writer.take(writer.core.on_writable_bookies({"b1", "b2", "b4"}))
    assert done[0].metadata.last_fragment.bookies == ("b1", "b2", "b4")
    writer.reply(1, 22, now_ns=11 * SECOND)
    assert writer.acknowledged == 21  # from this decision on nothing is released


def test_spare_is_looked_for_only_when_a_slow_bookie_stays_away():
    writer = left_out()
    for now in (3, 4, 5, 6, 7):
        assert effects.FindBookies() not in tick(writer, now)
    assert effects.FindBookies() in tick(writer, 7.2)


def test_search_that_takes_long_does_not_delay_the_next_one():
    writer = left_out()
    assert effects.FindBookies() in tick(writer, 8)
    assert effects.FindBookies() not in tick(writer, 20), "it is not answered yet"
    writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    assert effects.FindBookies() in tick(writer, 20.1)


def test_bookie_that_skips_an_entry_and_answers_on_has_failed_after_the_time_out():
    """A request or an answer was lost on the way; with Qa = Qw no other bookie will make up for it."""
    writer = Writer((1, 1, 1), options=LIMITS)
    writer.add(1, 0)
    for second in range(1, 5):
        writer.add(1, second * SECOND)
        writer.reply(0, second, now_ns=second * SECOND)
        assert tick(writer, second) == []
    writer.add(1, 5 * SECOND)
    writer.reply(0, 5, now_ns=5 * SECOND)
    assert effects.FindBookies() in tick(writer, 5.1)


def test_bookie_that_answers_slowly_and_in_order_has_not_failed():
    writer = Writer((1, 1, 1), options=LIMITS)
    writer.add(20, 0)
    for second in range(1, 20):
        writer.reply(0, second - 1, now_ns=second * SECOND)
        assert tick(writer, second) == []


def test_what_a_bookie_owes_follows_from_ids_and_not_from_a_count_of_answers():
    """Ten late answers made a bookie that owed one entry look as if it owed nothing, for ever."""
    writer = Writer(options=WriterOptions())
    writer.add(10)
    writer.reply(1, *range(10))
    writer.reply(2, *range(10))
    assert effects.FindBookies() in tick(writer, 5.5)
    writer.take(writer.core.on_writable_bookies({"b1", "b2", "b3"}))
    append(writer, 5.6, 1, 2)
    tick(writer, 5.7)
    slot, entry = probed(tick(writer, 6.8))
    writer.reply(slot, entry, now_ns=7 * SECOND)
    writer.add(1, 7 * SECOND)
    writer.reply(0, *range(10), now_ns=7 * SECOND)
    assert writer.core.has_outstanding(0)
    writer.reply(1, 11, now_ns=7 * SECOND)
    writer.fail(2, now_ns=7 * SECOND)
    writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    # Its silence is noticed, and the one pending entry does not wait for ever.
    assert effects.FindBookies() in tick(writer, 13)
    writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    assert writer.core.state is WriterState.FAILED


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (5, 2, 1)], ids=str)
def test_repeated_answers_settle_nothing_twice(quorums):
    writer = Writer(quorums)
    writer.add(30)
    sent = next(send.positions for send in writer.log if isinstance(send, effects.SendAdds) and send.slot == 0)
    ids = np.arange(30) if sent is None else sent
    for _ in range(3):
        writer.reply(0, *ids[:4].tolist())
    assert writer.core.has_outstanding(0)
    writer.reply(0, *ids.tolist())
    assert not writer.core.has_outstanding(0)


def test_bookie_left_out_while_another_one_is_taken_back_is_probed_though_nothing_is_added():
    writer = left_out()
    writer.add(1, round(2.2 * SECOND))
    writer.fail(1, now_ns=round(2.2 * SECOND))
    writer.take(writer.core.on_writable_bookies({"b1", "b3"}))
    assert [writer.core.slots.may_hold_back(slot) for slot in range(3)] == [True, False, True]
    assert probed(tick(writer, 2.3)) is None
    assert probed(tick(writer, 3.4)) == (1, LAGGING)


def test_slot_whose_connection_takes_no_bytes_is_left_out_too():
    """Many writers share a connection: none of them need lag much for its buffer to be full."""
    writer = Writer(options=WriterOptions())
    writer.add(5)
    for slot in (0, 1):
        writer.reply(slot, *range(5))
    writer.take(writer.core.on_tick(3 * SECOND))
    assert writer.core.slots.may_hold_back(2)
    writer.take(writer.core.on_tick(3 * SECOND, congested=[2]))
    assert not writer.core.slots.may_hold_back(2)


def test_limits_of_callers_bound_what_counts_as_lag():
    limits = WriterLimits.of(WriterOptions(lag_entries_max=1000, lag_bytes_max=1 << 20))
    assert (limits.slow_lag_entries, limits.slow_lag_bytes) == (500, 1 << 19)
    limits = WriterLimits.of(WriterOptions(slow_lag_entries=7, slow_lag_bytes=8))
    assert (limits.slow_lag_entries, limits.slow_lag_bytes) == (7, 8)


def test_smallest_limits_of_callers_make_one_entry_or_one_byte_a_lag():
    limits = WriterLimits.of(
        WriterOptions(lag_entries_max=1, lag_bytes_max=1, pending_entries_max=1, pending_bytes_max=1)
    )
    assert (limits.slow_lag_entries, limits.slow_lag_bytes) == (1, 1)
    assert (limits.hold_up_entries, limits.hold_up_bytes) == (1, 1)


def test_bookie_lags_from_exactly_the_bytes_of_the_limit_on():
    for count, lags in ((2, False), (3, True)):
        writer = Writer(options=WriterOptions(slow_lag_bytes=3))
        writer.add(count)
        for slot in (0, 1):
            writer.reply(slot, *range(count))
        assert (effects.DropIfSilent("b3") in tick(writer, 2.1)) == lags


def test_bookie_holds_callers_back_for_exactly_the_time_of_the_limit():
    for late_ns, is_left_out in ((0, False), (1, True)):
        writer = hung_writer()
        now_ns = round(LIMITS.hold_back_s_max * SECOND) + late_ns
        assert (effects.DropIfSilent("b3") in writer.take(writer.core.on_tick(now_ns))) == is_left_out


def test_probe_is_answered_among_other_entries():
    writer = left_out()
    append(writer, 3, 0, 1)
    tick(writer, 3)
    assert probed(tick(writer, 4.1)) == (2, 20)
    writer.reply(2, 18, 19, 20, now_ns=5 * SECOND)
    assert set(sent_to(writer.add(1, 5 * SECOND))) == {"b1", "b2", "b3"}


def test_bookie_that_fails_its_trial_is_probed_after_a_pause_as_one_whose_probe_was_answered():
    writer = left_out()
    returned(writer, 3)
    append(writer, 4.1, 0, 1)
    drops = tick(writer, 6.3)
    assert not writer.core.slots.all[2].takes_part
    assert effects.DropIfSilent("b3") in drops
    append(writer, 6.4, 0, 1)
    # No probe is under way that could expire; the next one has its pause from now on.
    assert writer.core.slots.all[2].probe is None or not writer.core.slots.all[2].probe.is_under_way
    assert probed(tick(writer, 6.5)) is None
    assert probed(tick(writer, 8.6)) is not None


def test_bookie_that_refuses_load_has_skipped_nothing():
    """It may have taken later entries; what it refused is sent again."""
    writer = Writer(options=LIMITS)
    writer.add(6)
    writer.reply(2, 3, status=Status.ETOOMANYREQUESTS)
    writer.reply(2, 5)
    slot = writer.core.slots.all[2]
    assert slot.answered_to == 5
    assert not slot.has_skipped(3)
    serving = writer.core.slots.all[1]
    writer.reply(1, 5)
    assert serving.has_skipped(3)
    assert not serving.has_skipped(6)


def test_no_trial_ends_while_the_ensemble_changes():
    writer = left_out()
    returned(writer, 3)
    for step in range(40):
        append(writer, 4.1 + step / 100, 0, 1, 2)
    append(writer, 4.6, 0, 1, 2)
    writer.fail(1, now_ns=round(4.7 * SECOND))
    assert writer.core.state is WriterState.CHANGING
    assert sent_to(tick(writer, 7)) == {}
    assert writer.core.state is WriterState.CHANGING
    assert not writer.core.slots.may_hold_back(2)
    writer.take(writer.core.on_writable_bookies({"b1", "b3"}))
    tick(writer, 7.1)
    assert writer.core.slots.may_hold_back(2)
