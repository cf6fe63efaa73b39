"""WriterCore and bookies that refuse load, fail with a delayed change, or lag behind the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bkspark.core import effects
from bkspark.core.pipeline import WriterState
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import MetadataError
from bkspark.wire.status import Status
from tests.core.writing import SECOND_NS, Writer, sent_to

REFUSING = WriterOptions(add_timeout_s=5.0, refusal_pause_s_min=0.01, refusal_pause_s_max=0.04)


def overloaded(writer, slot, *ids, now_ns=0):
    return writer.reply(slot, *ids, status=Status.ETOOMANYREQUESTS, now_ns=now_ns)


def test_refused_load_is_tried_again_after_a_pause_and_fails_no_bookie():
    """A writer never fails a healthy ledger because one bookie said TOOMANYREQUESTS."""
    writer = Writer(options=REFUSING)
    writer.add(2)
    assert overloaded(writer, 2, 0, 1) == [effects.CallAfter(10_000_000)]
    assert writer.core.state is WriterState.ACTIVE
    writer.reply(0, 0, 1)
    writer.reply(1, 0, 1)
    assert writer.acknowledged == 1
    assert sent_to(writer.take(writer.core.on_tick(9_000_000))) == {}
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b3": [0, 1]}
    writer.reply(2, 0, 1)
    assert not writer.core.has_outstanding(2)
    assert writer.core.pending.kept_bytes == 0


def test_what_comes_for_a_bookie_that_refuses_load_waits_until_it_takes_one_piece():
    writer = Writer(options=REFUSING)
    writer.add(1)
    overloaded(writer, 2, 0)
    assert sent_to(writer.add(1)) == {"b1": [1], "b2": [1]}
    assert sent_to(writer.add(1)) == {"b1": [2], "b2": [2]}
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b3": [0]}
    assert sent_to(writer.reply(2, 0)) == {"b3": [1, 2]}
    assert sent_to(writer.add(1)) == {"b1": [3], "b2": [3], "b3": [3]}


def test_pause_before_the_next_try_doubles_up_to_its_limit():
    writer = Writer(options=REFUSING)
    writer.add(1)
    now_ns, pauses = 0, []
    for _ in range(4):
        done = overloaded(writer, 2, 0, now_ns=now_ns)
        pauses += [effect.delay_ns for effect in done if isinstance(effect, effects.CallAfter)]
        now_ns += pauses[-1]
        assert sent_to(writer.take(writer.core.on_tick(now_ns))) == {"b3": [0]}
    assert pauses == [10_000_000, 20_000_000, 40_000_000, 40_000_000]


def test_refusal_of_an_entry_sent_before_the_probe_does_not_end_the_probe():
    """A refusal that was on its way says nothing of the probe: the bookie takes it, and gets the rest at once."""
    writer = Writer(options=REFUSING)
    writer.add(1)
    writer.add(2)
    overloaded(writer, 2, 0)
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b3": [0]}
    assert overloaded(writer, 2, 1, 2, now_ns=11_000_000) == []
    assert sent_to(writer.take(writer.core.on_tick(40_000_000))) == {}
    assert sent_to(writer.reply(2, 0, now_ns=41_000_000)) == {"b3": [1, 2]}
    assert sent_to(writer.add(1)) == {"b1": [3], "b2": [3], "b3": [3]}


def test_refusal_after_an_error_does_not_excuse_the_bookie_from_the_failed_entry():
    """The entry that the bookie answered with an error would never be sent to it again: its caller waits for ever."""
    writer = Writer((2, 2, 2), options=REFUSING)
    writer.add(2)
    writer.reply(1, 0, status=Status.EIO)
    assert overloaded(writer, 1, 1) == []
    writer.reply(0, 0, 1)
    done = writer.change_to("b1", "b2")
    assert [type(effect) for effect in done] == [effects.Fail]
    assert writer.core.state is WriterState.FAILED


def test_refusal_after_an_error_leaves_the_bookie_to_be_replaced():
    writer = Writer((2, 2, 2), options=REFUSING)
    writer.add(2)
    writer.reply(1, 0, status=Status.EIO)
    overloaded(writer, 1, 1)
    writer.reply(0, 0, 1)
    assert sent_to(writer.change_to("b1", "b2", "b3")) == {"b3": [0, 1]}
    writer.reply(1, 0, 1, bookie="b3")
    assert writer.acknowledged == 1


def test_pause_does_not_double_for_a_refusal_of_an_entry_sent_before_the_probe():
    writer = Writer(options=REFUSING)
    writer.add(1)
    writer.add(1)
    overloaded(writer, 2, 0)
    writer.take(writer.core.on_tick(10_000_000))
    overloaded(writer, 2, 1, now_ns=11_000_000)
    assert overloaded(writer, 2, 0, now_ns=12_000_000) == [effects.CallAfter(20_000_000)]
    assert sent_to(writer.take(writer.core.on_tick(31_999_999))) == {}
    assert sent_to(writer.take(writer.core.on_tick(32_000_000))) == {"b3": [0]}


def test_bookie_that_takes_the_end_of_its_probe_gets_what_it_refused_of_it():
    writer = Writer(options=REFUSING)
    writer.add(3)
    overloaded(writer, 2, 0, 1, 2)
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b3": [0, 1, 2]}
    overloaded(writer, 2, 0, now_ns=11_000_000)
    assert sent_to(writer.reply(2, 1, 2, now_ns=12_000_000)) == {"b3": [0]}


def test_ledger_whose_every_bookie_refuses_load_goes_on_when_they_take_it():
    writer = Writer(options=REFUSING)
    writer.add(3)
    for slot in range(3):
        overloaded(writer, slot, 0, 1, 2)
    done = writer.take(writer.core.on_tick(10_000_000))
    assert sent_to(done) == {"b1": [0, 1, 2], "b2": [0, 1, 2], "b3": [0, 1, 2]}
    writer.reply(0, 0, 1, 2)
    writer.reply(1, 0, 1, 2)
    assert writer.acknowledged == 2


def test_bookie_that_only_refuses_is_replaced_by_a_spare_one():
    writer = Writer(options=REFUSING)
    writer.add(1)
    overloaded(writer, 2, 0)
    writer.take(writer.core.on_tick(10_000_000))
    overloaded(writer, 2, 0, now_ns=6 * SECOND_NS)
    assert effects.FindBookies() in writer.take(writer.core.on_tick(6 * SECOND_NS))
    assert sent_to(writer.change_to("b4")) == {"b4": [0]}


@pytest.mark.parametrize("spares", [(), ("b4",)])
def test_bookie_that_takes_what_it_refused_while_a_spare_is_looked_for_stays_and_gets_every_entry(spares):
    writer = Writer(options=REFUSING)
    writer.add(1)
    for slot in (0, 1):
        writer.reply(slot, 0)
    overloaded(writer, 2, 0)
    writer.take(writer.core.on_tick(10_000_000))
    overloaded(writer, 2, 0, now_ns=6 * SECOND_NS)
    assert effects.FindBookies() in writer.take(writer.core.on_tick(6 * SECOND_NS))
    assert sent_to(writer.take(writer.core.on_tick(7 * SECOND_NS))) == {"b3": [0]}
    writer.reply(2, 0, now_ns=7 * SECOND_NS)
    assert sent_to(writer.add(1, now_ns=7 * SECOND_NS)) == {"b1": [1], "b2": [1], "b3": [1]}
    assert writer.change_to(*spares) == []
    assert writer.core.state is WriterState.ACTIVE
    assert writer.core.slots.ensemble == ("b1", "b2", "b3")
    assert writer.core.slots.may_hold_back(2)


def test_bookies_that_only_refuse_stay_where_there_is_no_spare_and_nothing_added_meanwhile_is_forgotten():
    writer = Writer(options=REFUSING)
    writer.add(1)
    for slot in range(3):
        overloaded(writer, slot, 0)
    writer.take(writer.core.on_tick(6 * SECOND_NS))
    writer.add(1, now_ns=6 * SECOND_NS)
    writer.change_to()
    for _ in range(3):
        for slot in range(3):
            overloaded(writer, slot, 0, now_ns=12 * SECOND_NS)
        writer.take(writer.core.on_tick(13 * SECOND_NS))
        writer.change_to()
    assert writer.core.state is WriterState.ACTIVE
    for slot in (0, 1):
        done = writer.reply(slot, 0, now_ns=13 * SECOND_NS)
        assert sent_to(done) == {writer.core.slots.ensemble[slot]: [1]}
        writer.reply(slot, 1, now_ns=13 * SECOND_NS)
    assert writer.acknowledged == 1


def test_bytes_are_kept_until_the_slowest_bookie_has_answered():
    writer = Writer(options=REFUSING)
    writer.add(4)
    writer.add(4)
    for slot in (0, 1):
        writer.reply(slot, *range(8))
    assert writer.acknowledged == 7
    assert writer.core.pending.kept_bytes == 8
    writer.reply(2, 0, 1, 2, 3)
    assert writer.core.pending.kept_bytes == 4
    overloaded(writer, 2, 4, 5, 6, 7)
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b3": [4, 5, 6, 7]}


def test_lost_connection_to_a_bookie_that_refuses_load_is_a_failure():
    writer = Writer(options=REFUSING)
    writer.add(1)
    overloaded(writer, 2, 0)
    assert effects.FindBookies() in writer.fail(2)
    assert sent_to(writer.change_to("b4")) == {"b4": [0]}


DELAYED = WriterOptions(delay_ensemble_change=True)


def test_delayed_change_leaves_a_failed_bookie_out_while_qa_others_answer():
    writer = Writer((3, 3, 2), options=DELAYED)
    writer.add(2)
    assert writer.fail(2, now_ns=SECOND_NS) == []
    assert sent_to(writer.add()) == {"b1": [2], "b2": [2]}
    writer.reply(0, 0, 1, 2)
    writer.reply(1, 0, 1, 2)
    assert writer.acknowledged == 2
    assert writer.take(writer.core.on_tick(30 * SECOND_NS)) == []


def test_delayed_change_is_made_when_its_time_is_over():
    writer = Writer((3, 3, 2), options=DELAYED)
    writer.fail(2, now_ns=SECOND_NS)
    writer.add(now_ns=30 * SECOND_NS)
    assert writer.take(writer.core.on_tick(32 * SECOND_NS)) == [effects.FindBookies()]
    done = writer.change_to("b4")
    assert sent_to(done) == {"b4": [0]}
    assert writer.core.slots.ensemble == ("b1", "b2", "b4")


def test_delayed_change_is_made_for_all_at_once_when_too_few_would_be_left():
    writer = Writer((3, 3, 2), options=DELAYED)
    writer.add()
    writer.fail(2)
    assert [type(effect) for effect in writer.fail(0)] == [effects.FindBookies]
    done = writer.change_to("b4", "b5")
    assert sorted(sent_to(done)) == ["b4", "b5"]
    assert len([effect for effect in done if isinstance(effect, effects.WriteMetadata)]) == 1


def test_delay_is_counted_from_the_first_bookie_left_out():
    """E6 Qw2 Qa1: bookies two apart share no write set, so both are left out."""
    writer = Writer((6, 2, 1), options=DELAYED)
    assert writer.fail(0, now_ns=SECOND_NS) == []
    assert writer.fail(3, now_ns=20 * SECOND_NS) == []
    assert writer.take(writer.core.on_tick(32 * SECOND_NS)) == [effects.FindBookies()]
    writer.change_to("b7", "b8")
    assert set(writer.core.slots.ensemble) & {"b1", "b4"} == set()


def test_change_that_was_delayed_is_looked_for_soon_where_no_bookie_was_spare():
    writer = Writer((3, 3, 2), options=DELAYED)
    writer.fail(2, now_ns=SECOND_NS)
    writer.take(writer.core.on_tick(32 * SECOND_NS))
    assert writer.take(writer.core.on_writable_bookies({"b1", "b2"})) == []
    assert writer.take(writer.core.on_tick(34 * SECOND_NS)) == [effects.FindBookies()]


def test_recovery_never_delays_a_change():
    writer = Writer((3, 3, 2), options=DELAYED, is_recovery=True)
    assert [type(effect) for effect in writer.fail(2)] == [effects.FindBookies]


SLOW = WriterOptions(slow_lag_entries=10, slow_lag_s=2.0, hold_back_s_max=3600.0)
"""Delay of a bookie that is slow, but not slow enough to be left out."""


def lagging_writer(quorums=(3, 3, 2), options=SLOW):
    """A writer whose third bookie has answered for one entry of twenty, and answers on."""
    writer = Writer(quorums, options=options)
    writer.add(20)
    writer.reply(0, *range(20))
    writer.reply(1, *range(20))
    writer.reply(2, 0)
    assert writer.acknowledged == 19
    return writer


def test_bookie_that_lags_for_long_is_replaced_by_a_spare_one():
    writer = lagging_writer()
    assert writer.take(writer.core.on_tick(1 * SECOND_NS)) == []
    writer.reply(2, 1, now_ns=3 * SECOND_NS)
    assert writer.take(writer.core.on_tick(3 * SECOND_NS)) == []
    (search,) = writer.take(writer.core.on_tick(4 * SECOND_NS))
    assert search.failed == ("b3",)
    assert sent_to(writer.add()) == {"b1": [20], "b2": [20], "b3": [20]}
    assert sent_to(writer.change_to("b4")) == {"b4": [20]}


def test_bookie_that_lags_stays_where_there_is_no_spare_and_gets_everything():
    writer = lagging_writer()
    writer.take(writer.core.on_tick(0))
    writer.take(writer.core.on_tick(3 * SECOND_NS))
    assert sent_to(writer.add(now_ns=3 * SECOND_NS)) == {"b1": [20], "b2": [20], "b3": [20]}
    writer.reply(0, 20, now_ns=3 * SECOND_NS)
    assert writer.change_to() == []
    assert writer.core.slots.ensemble == ("b1", "b2", "b3")
    assert writer.core.state is WriterState.ACTIVE
    assert writer.core.slots.outstanding_max == 20
    # It is looked for again, and each time it is reported.
    writer.take(writer.core.on_tick(4 * SECOND_NS))
    (search,) = writer.take(writer.core.on_tick(7 * SECOND_NS))
    assert search.failed == ("b3",)


def test_bookie_that_lags_and_then_fails_is_gone():
    writer = lagging_writer()
    writer.take(writer.core.on_tick(0))
    writer.take(writer.core.on_tick(3 * SECOND_NS))
    assert writer.fail(2) == []
    writer.change_to()
    assert sent_to(writer.add()) == {"b1": [20], "b2": [20]}


def test_no_spare_is_looked_for_while_the_metadata_are_written():
    """Its answer would be taken for one to this ensemble change, and the metadata be written twice at once."""
    writer = lagging_writer()
    writer.take(writer.core.on_tick(0))
    writer.fail(0)
    (write,) = writer.take(writer.core.on_writable_bookies({"b2", "b3", "b4"}))
    assert isinstance(write, effects.WriteMetadata)
    writer.reply(2, 1, now_ns=3 * SECOND_NS)
    assert writer.take(writer.core.on_tick(3 * SECOND_NS)) == []


def test_bookie_that_catches_up_in_time_stays():
    writer = lagging_writer()
    writer.take(writer.core.on_tick(1 * SECOND_NS))
    writer.reply(2, *range(1, 15))
    writer.take(writer.core.on_tick(2 * SECOND_NS))
    assert writer.take(writer.core.on_tick(4 * SECOND_NS)) == []


def test_bookie_that_lags_again_after_it_caught_up_has_its_whole_time_again():
    writer = lagging_writer()
    writer.take(writer.core.on_tick(0))
    writer.reply(2, *range(20), now_ns=SECOND_NS)
    writer.take(writer.core.on_tick(SECOND_NS))
    writer.add(20, now_ns=2 * SECOND_NS)
    for slot in (0, 1):
        writer.reply(slot, *range(20, 40), now_ns=2 * SECOND_NS)
    assert writer.take(writer.core.on_tick(3 * SECOND_NS)) == []
    assert writer.take(writer.core.on_tick(5 * SECOND_NS)) == []
    writer.reply(2, 20, now_ns=6 * SECOND_NS)
    (search,) = writer.take(writer.core.on_tick(6 * SECOND_NS))
    assert search.failed == ("b3",)


def held_up_writer(answered, options=SLOW):
    """A writer of forty entries. Its first bookie has answered for `answered` of them, the other two for one each."""
    writer = Writer((3, 3, 2), options=options)
    for _ in range(4):
        writer.add(10)
    writer.reply(0, *range(answered))
    for slot in (1, 2):
        writer.reply(slot, 0)
    return writer


def ticks_with_answers(writer, seconds):
    """Let the bookies that owe answers give one a second; return the searches for spares."""
    found = []
    for second in range(1, seconds + 1):
        for slot in writer.core.slots.all:
            if slot.owed:
                writer.reply(slot.number, slot.oldest_owed, now_ns=second * SECOND_NS)
        found += writer.take(writer.core.on_tick(second * SECOND_NS))
    return [effect for effect in found if isinstance(effect, effects.FindBookies)]


def test_slow_bookies_that_qa_needs_are_replaced_by_spare_ones():
    """Two of three are slow. Acknowledgements wait for one of them, so neither owes what is acknowledged."""
    writer = held_up_writer(40)
    assert ticks_with_answers(writer, 8) == []
    (search,) = writer.take(writer.core.on_tick(9 * SECOND_NS))
    assert search.failed == ("b2", "b3")
    writer.change_to("b4", "b5")
    assert set(writer.core.slots.ensemble) == {"b1", "b4", "b5"}
    writer.reply(1, *range(9, 40), now_ns=9 * SECOND_NS)
    assert writer.acknowledged == 39


def test_slow_bookies_that_qa_needs_stay_where_there_is_no_spare():
    writer = held_up_writer(40)
    assert len(ticks_with_answers(writer, 9)) == 1
    assert writer.change_to() == []
    assert (writer.core.slots.ensemble, writer.core.state) == (("b1", "b2", "b3"), WriterState.ACTIVE)
    writer.reply(1, *range(9, 40), now_ns=9 * SECOND_NS)
    assert writer.acknowledged == 39


def test_search_for_spares_delays_no_acknowledgement_and_its_failure_ends_no_writer():
    """The bookies answer, slowly, whether or not the metadata store does."""
    writer = held_up_writer(40)
    assert len(ticks_with_answers(writer, 9)) == 1
    before = writer.acknowledged
    writer.reply(1, before + 1, before + 2, now_ns=9 * SECOND_NS)
    assert writer.acknowledged == before + 2
    assert writer.take(writer.core.on_metadata_failed(MetadataError("the store is away"))) == []
    assert writer.core.state is WriterState.ACTIVE
    (search,) = writer.take(writer.core.on_tick(10 * SECOND_NS))
    assert search.failed == (), "they were reported with the first search"


def test_bookies_that_are_all_slow_stay_in_the_ensemble():
    """The load or the network delays all of them: spares would not be faster, and would get everything once more."""
    assert ticks_with_answers(held_up_writer(10), 9) == []


def test_bookie_holds_up_from_half_of_what_may_be_in_flight_on():
    options = replace(SLOW, slow_lag_entries=10**6, slow_lag_bytes=10**6)
    for entries, size, is_slow in ((80, 10**6, False), (60, 10**6, True), (10**6, 80, False), (10**6, 60, True)):
        writer = held_up_writer(40, replace(options, pending_entries_max=entries, pending_bytes_max=size))
        assert bool(ticks_with_answers(writer, 9)) == is_slow


def test_lag_counts_bytes_too_and_what_is_not_acknowledged_is_not_a_lag():
    options = replace(SLOW, slow_lag_entries=10**9, slow_lag_bytes=15, slow_lag_s=1.0)
    writer = Writer((3, 3, 2), options=options)
    for _ in range(4):
        writer.add(10)
    writer.reply(0, *range(40))
    writer.reply(2, 0)
    assert writer.take(writer.core.on_tick(0)) + writer.take(writer.core.on_tick(2 * SECOND_NS)) == []
    writer.reply(1, *range(40), now_ns=2 * SECOND_NS)
    writer.take(writer.core.on_tick(2 * SECOND_NS))
    (search,) = writer.take(writer.core.on_tick(4 * SECOND_NS))
    assert search.failed == ("b3",)


@pytest.mark.parametrize(("limit_bytes", "failed"), [(30, ["b3"]), (31, [])])
def test_bookie_lags_from_the_limit_of_bytes_on(limit_bytes, failed):
    """It owes answers for three batches of ten bytes that are acknowledged."""
    writer = Writer((3, 3, 2), options=replace(SLOW, slow_lag_entries=10**9, slow_lag_bytes=limit_bytes))
    for _ in range(4):
        writer.add(10)
    writer.reply(2, 0)
    for slot in (0, 1):
        writer.reply(slot, *range(40))
    done = writer.take(writer.core.on_tick(0)) + writer.take(writer.core.on_tick(3 * SECOND_NS))
    assert [bookie for search in done for bookie in search.failed] == failed


def test_probe_of_a_bookie_that_refused_part_of_a_batch_ends_with_that_part():
    writer = Writer(options=REFUSING)
    writer.add(3)
    writer.reply(0, 2)
    overloaded(writer, 0, 0, 1)
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b1": [0, 1]}
    assert sent_to(writer.add(2)) == {"b2": [3, 4], "b3": [3, 4]}
    assert sent_to(writer.reply(0, 0)) == {}
    assert sent_to(writer.reply(0, 1)) == {"b1": [3, 4]}


def test_whole_batch_that_waits_after_a_refusal_is_a_probe_too():
    writer = Writer(options=REFUSING)
    writer.add(1)
    overloaded(writer, 0, 0)
    writer.add(3)
    now = 10_000_000
    assert sent_to(writer.take(writer.core.on_tick(now))) == {"b1": [0]}
    writer.reply(0, 0)
    overloaded(writer, 0, 1, 2, 3, now_ns=now)
    assert sent_to(writer.take(writer.core.on_tick(now + 9_999_999))) == {}
    assert sent_to(writer.take(writer.core.on_tick(now + 10_000_000))) == {"b1": [1, 2, 3]}


def test_silence_of_bookies_counts_only_where_qa_needs_one_of_them():
    writer = Writer((3, 3, 2))
    writer.add(1)
    assert writer.take(writer.core.on_silent({1: "b2"}, 0)) == []
    assert not any(isinstance(effect, effects.FindBookies) for effect in writer.log)
    done = writer.take(writer.core.on_silent({1: "b2", 2: "b3"}, 0))
    assert any(isinstance(effect, effects.FindBookies) for effect in done)


@pytest.mark.parametrize("options", [WriterOptions(), WriterOptions(delay_ensemble_change=True)], ids=["", "delayed"])
def test_bytes_kept_for_a_bookie_that_is_lost_are_let_go_though_no_answer_is_to_come(options):
    """Callers who wait for room would wait for ever: the others have answered for all there is."""
    writer = Writer(options=options)
    writer.add(3)
    writer.reply(0, 0, 1, 2)
    writer.reply(1, 0, 1, 2)
    assert (writer.acknowledged, writer.core.pending.kept_bytes) == (2, 3)
    writer.fail(2)
    if options.delay_ensemble_change is False:
        writer.change_to()
    assert writer.core.pending.kept_bytes == 0
