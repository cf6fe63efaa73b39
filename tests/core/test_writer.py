"""WriterCore: acknowledgement, ensemble change, fencing and closing, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.pipeline import WriterState
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import ClientClosed, LedgerClosed, LedgerFenced, MetadataError, NotEnoughBookies, UnauthorizedAccess
from bkspark.wire.status import Status
from tests.core.writing import SECOND_NS, Writer, sent_to


def test_entry_is_sent_to_its_write_set():
    assert sent_to(Writer((3, 3, 2)).add(2)) == {"b1": [0, 1], "b2": [0, 1], "b3": [0, 1]}
    assert sent_to(Writer((3, 2, 2)).add(4)) == {"b1": [0, 2, 3], "b2": [0, 1, 3], "b3": [1, 2]}


def test_entry_is_acknowledged_at_qa_and_only_after_every_lower_one():
    """protocol.md, Writing to ledgers: Qa bookies have it, and all entries below it are acknowledged."""
    writer = Writer()
    writer.add(3)
    writer.reply(0, 0, 1, 2)
    assert writer.acknowledged == -1
    writer.reply(1, 2, 1)
    assert writer.acknowledged == -1
    writer.reply(2, 0)
    assert writer.acknowledged == 2


def test_two_answers_of_one_bookie_are_one_vote():
    writer = Writer()
    writer.add()
    writer.reply(0, 0)
    writer.reply(0, 0)
    assert writer.acknowledged == -1


def test_answer_from_outside_the_write_set_does_not_count():
    writer = Writer((3, 2, 2))
    writer.add()
    writer.reply(2, 0)
    writer.reply(0, 0)
    assert writer.acknowledged == -1
    writer.reply(1, 0)
    assert writer.acknowledged == 0


def test_ensemble_change_begins_at_lac_plus_one_and_resends_what_is_pending():
    writer = Writer()
    writer.add(3)
    writer.reply(0, 0)
    writer.reply(1, 0)
    assert [type(effect) for effect in writer.fail(2)] == [effects.FindBookies]
    done = writer.change_to("b4")
    written = next(effect.metadata for effect in done if isinstance(effect, effects.WriteMetadata))
    assert written.fragments == (Fragment(0, ("b1", "b2", "b3")), Fragment(1, ("b1", "b2", "b4")))
    assert sent_to(done) == {"b4": [1, 2]}


def test_change_at_the_first_entry_of_the_last_fragment_replaces_it():
    writer = Writer()
    writer.add()
    writer.fail(0)
    done = writer.change_to("b4")
    written = next(effect.metadata for effect in done if isinstance(effect, effects.WriteMetadata))
    assert written.fragments == (Fragment(0, ("b4", "b2", "b3")),)


def test_nothing_is_acknowledged_between_the_decision_and_the_compare_and_set():
    """P11, P15: acknowledgements of the old ensemble must not move the LAC under a change that begins at LAC + 1."""
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.reply(0, 0)
    writer.reply(1, 0)
    assert writer.acknowledged == -1
    done = writer.take(writer.core.on_writable_bookies({"b1", "b2", "b4"}))
    assert [type(effect) for effect in done] == [effects.WriteMetadata]
    assert writer.acknowledged == -1
    writer.take(writer.core.on_metadata_written(done[0].metadata, 1))
    assert writer.acknowledged == 0


def test_votes_of_a_replaced_bookie_are_withdrawn_from_every_entry_before_any_is_released():
    """P13: E2 Qw1 Qa1; entry 1 is complete after entry 0 when its only bookie dies."""
    writer = Writer((2, 1, 1))
    writer.add(4)
    writer.reply(1, 1, 3)
    writer.reply(0, 2)
    assert writer.acknowledged == -1
    writer.fail(1)
    done = writer.change_to("b3")
    assert sent_to(done) == {"b3": [1, 3]}
    writer.reply(0, 0)
    assert writer.acknowledged == 0
    writer.reply(1, 1, 3)
    assert writer.acknowledged == 3


def test_ack_from_replaced_bookie_stops_counting():
    writer = Writer()
    writer.add()
    writer.reply(2, 0)
    writer.fail(2)
    writer.change_to("b4")
    writer.reply(0, 0)
    assert writer.acknowledged == -1
    writer.reply(2, 0, bookie="b3")
    assert writer.acknowledged == -1
    writer.reply(2, 0)
    assert writer.acknowledged == 0


def test_bookie_that_fails_during_a_change_is_replaced_by_the_next_one():
    writer = Writer()
    writer.add()
    writer.fail(0)
    done = writer.take(writer.core.on_writable_bookies({"b4"}))
    writer.fail(1)
    done = writer.take(writer.core.on_metadata_written(done[0].metadata, 1))
    assert effects.FindBookies() in done
    assert writer.core.state is WriterState.CHANGING
    writer.change_to("b5")
    assert writer.core.slots.ensemble == ("b4", "b5", "b3")
    assert writer.core.state is WriterState.ACTIVE


def test_new_bookie_that_fails_at_once_is_replaced_again():
    """P16: failures carry the bookie; a change that leaves the ensemble as it is must not leave the writer stuck."""
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to("b4")
    writer.fail(2)
    writer.change_to("b5")
    writer.reply(2, 0)
    writer.reply(0, 0)
    assert writer.acknowledged == 0


def test_failure_after_the_entry_was_acknowledged_still_changes_the_ensemble():
    writer = Writer()
    writer.add()
    writer.reply(0, 0)
    writer.reply(1, 0)
    done = writer.reply(2, 0, status=Status.EIO)
    assert effects.FindBookies() in done
    done = writer.change_to("b4")
    written = next(effect.metadata for effect in done if isinstance(effect, effects.WriteMetadata))
    assert written.last_fragment == Fragment(1, ("b1", "b2", "b4"))


def test_without_a_spare_bookie_the_ledger_goes_on_with_qa_others_and_takes_a_spare_later():
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    assert writer.core.state is WriterState.ACTIVE
    assert set(sent_to(writer.add())) == {"b1", "b2"}
    writer.reply(0, 0, 1)
    writer.reply(1, 0, 1)
    assert writer.acknowledged == 1
    done = writer.take(writer.core.on_tick(10 * SECOND_NS))
    assert effects.FindBookies() in done
    done = writer.take(writer.core.on_writable_bookies({"b1", "b2", "b4"}))
    assert done[0].metadata.last_fragment == Fragment(2, ("b1", "b2", "b4"))


def test_registered_bookie_is_taken_back_unasked_only_where_the_writer_would_fail_without_it():
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    writer.reply(0, 0)
    writer.fail(1)
    done = writer.take(writer.core.on_writable_bookies({"b1", "b3"}))
    assert sent_to(done) == {"b3": [0]}
    writer.reply(2, 0)
    assert writer.acknowledged == 0


def test_too_few_bookies_left_fails_every_pending_add_and_the_writer():
    writer = Writer((3, 3, 3))
    writer.add()
    writer.fail(2)
    done = writer.change_to()
    assert isinstance(done[-1].error, NotEnoughBookies)
    with pytest.raises(NotEnoughBookies):
        writer.core.check_open()


@pytest.mark.parametrize(("status", "error"), [(Status.EFENCED, LedgerFenced), (Status.EUA, UnauthorizedAccess)])
def test_refusal_ends_the_writer_and_nothing_is_acknowledged_after_it(status, error):
    """I12: fenced at the owner means that the outcome of its pending adds is unknown; the handle is dead."""
    writer = Writer()
    writer.add()
    done = writer.reply(0, 0, status=status)
    assert isinstance(done[-1].error, error)
    writer.reply(1, 0)
    writer.reply(2, 0)
    assert writer.acknowledged == -1


@pytest.mark.parametrize("closed", [True, False])
def test_lost_compare_and_set_against_a_recovery_ends_the_writer(closed):
    """P05: on a conflict the writer goes on only if the ledger is still OPEN and the last fragment is its own."""
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.take(writer.core.on_writable_bookies({"b4"}))
    theirs = writer.metadata.closed(-1, 0) if closed else writer.metadata.in_recovery()
    done = writer.take(writer.core.on_metadata_conflict(theirs, 1))
    assert isinstance(done[-1].error, LedgerClosed if closed else LedgerFenced)


def test_lost_compare_and_set_against_rereplication_of_an_earlier_fragment_is_tried_again():
    """P06."""
    writer = Writer()
    writer.add(2)
    for slot in (0, 1):
        writer.reply(slot, 0)
    writer.fail(2)
    writer.change_to("b4")
    writer.fail(0)
    writer.take(writer.core.on_writable_bookies({"b5"}))
    repaired = writer.core.metadata
    fragments = (Fragment(0, ("b1", "b2", "b9")), repaired.fragments[1])
    moved = LedgerMetadata(3, 3, 2, fragments)
    assert writer.take(writer.core.on_metadata_conflict(moved, 7)) == [effects.FindBookies()]
    done = writer.take(writer.core.on_writable_bookies({"b5"}))
    assert done[0].expected_version == 7
    assert done[0].metadata.fragments == (fragments[0], Fragment(1, ("b5", "b2", "b4")))


def test_change_whose_answer_was_lost_and_that_rereplication_followed_is_in_force():
    writer = Writer()
    writer.add(2)
    for slot in (0, 1):
        writer.reply(slot, 0)
    writer.fail(2)
    (written,) = writer.take(writer.core.on_writable_bookies({"b4"}))
    fragments = (Fragment(0, ("b1", "b2", "b9")), written.metadata.fragments[1])
    done = writer.take(writer.core.on_metadata_conflict(LedgerMetadata(3, 3, 2, fragments), 9))
    assert sent_to(done) == {"b4": [1]}
    assert (writer.core.state, writer.core.version) == (WriterState.ACTIVE, 9)
    assert writer.core.change.fragments == fragments


def test_unreachable_metadata_during_a_change_ends_the_writer():
    writer = Writer()
    writer.add()
    writer.fail(2)
    done = writer.take(writer.core.on_metadata_failed(MetadataError("away")))
    assert isinstance(done[-1], effects.Fail)


def test_silent_bookie_is_replaced_after_the_time_out_and_not_before():
    writer = Writer(options=WriterOptions(add_timeout_s=5.0))
    writer.add(now_ns=SECOND_NS)
    writer.reply(0, 0, now_ns=SECOND_NS)
    writer.reply(1, 0, now_ns=SECOND_NS)
    assert writer.take(writer.core.on_tick(6 * SECOND_NS)) == []
    assert effects.FindBookies() in writer.take(writer.core.on_tick(7 * SECOND_NS))


def test_close_writes_the_last_acknowledged_entry():
    writer = Writer()
    writer.add(2)
    for slot in (0, 1):
        writer.reply(slot, 0, 1)
    done = writer.take(writer.core.close())
    assert (done[0].metadata.last_entry, done[0].metadata.length) == (1, 2)
    writer.take(writer.core.on_metadata_written(done[0].metadata, 1))
    with pytest.raises(LedgerClosed):
        writer.core.check_open()


@pytest.mark.parametrize(
    ("theirs", "outcome"),
    [
        ("closed here", WriterState.CLOSED),
        ("closed elsewhere", WriterState.FAILED),
        ("closed beyond", WriterState.FAILED),
        ("in recovery", WriterState.FAILED),
        ("open, repaired", WriterState.CLOSING),
    ],
)
def test_lost_closing_compare_and_set_has_five_cases(theirs, outcome):
    """protocol.md, Closing a ledger as a writer."""
    writer = Writer()
    writer.add(2)
    for slot in (0, 1):
        writer.reply(slot, 0, 1)
    writer.take(writer.core.close())
    current = {
        "closed here": writer.metadata.closed(1, 2),
        "closed elsewhere": writer.metadata.closed(0, 1),
        "closed beyond": writer.metadata.closed(2, 3),
        "in recovery": writer.metadata.in_recovery(),
        "open, repaired": writer.metadata,
    }[theirs]
    writer.take(writer.core.on_metadata_conflict(current, 9))
    assert writer.core.state is outcome


def test_close_that_is_repeated_is_conditional_on_what_was_stored_meanwhile():
    """protocol.md, Closing a ledger as a writer: every write of the metadata is a compare-and-set."""
    writer = Writer()
    writer.core.close()
    [again] = writer.core.on_metadata_conflict(replace(writer.metadata, ctoken=7), 9)
    assert (again.metadata, again.expected_version) == (replace(writer.metadata, ctoken=7).closed(-1, 0), 9)


def test_recovery_keeps_ensemble_changes_to_itself():
    """P03: they are published by the closing compare-and-set only."""
    writer = Writer(is_recovery=True, lac=-1)
    writer.add()
    writer.fail(2)
    done = writer.take(writer.core.on_writable_bookies({"b4"}))
    assert not any(isinstance(effect, effects.WriteMetadata) for effect in done)
    assert sent_to(done) == {"b4": [0]}
    assert writer.core.change.fragments == (Fragment(0, ("b1", "b2", "b4")),)


@pytest.mark.parametrize(("failed", "goes_on"), [((0, 3), True), ((0, 1), False), ((0, 5), False), ((0, 2, 4), True)])
def test_striped_writer_goes_on_while_every_write_set_has_qa_bookies(failed, goes_on):
    """E6 Qw2 Qa1, no bookie spare: a write set is two neighbours of the ring."""
    writer = Writer((6, 2, 1))
    for slot in failed:
        writer.fail(slot)
        writer.take(writer.core.on_writable_bookies({"b2", "b3"} - {writer.core.slots.ensemble[it] for it in failed}))
        if writer.core.state is WriterState.ACTIVE:
            writer.add()
    assert (writer.core.state is WriterState.ACTIVE) == goes_on


def test_failure_of_a_bookie_that_was_replaced_changes_nothing():
    writer = Writer()
    writer.add(2)
    writer.fail(1)
    writer.change_to("b9")
    assert list(writer.core.slots.ensemble) == ["b1", "b9", "b3"]
    assert writer.take(writer.core.on_bookie_failed(1, "b2", 0)) == []
    assert writer.take(writer.core.on_silent({1: "b2"}, 0)) == []
    writer.reply(0, 0, 1)
    writer.reply(1, 0, 1)
    assert writer.acknowledged == 1


def test_thousands_of_entries_in_flight_are_acknowledged_in_order_whichever_bookie_answers_first():
    writer = Writer()
    for _ in range(40):
        writer.add(250)
    writer.reply(0, *range(5_000))
    writer.reply(1, *range(5_000, 10_000))
    assert writer.acknowledged == -1
    writer.reply(1, *range(2_500))
    assert writer.acknowledged == 2_499
    writer.add(3)
    writer.reply(2, *range(10_003))
    assert writer.acknowledged == 9_999
    writer.reply(0, *range(10_000, 10_003))
    assert writer.acknowledged == 10_002


def test_votes_of_bookies_outside_the_write_set_release_nothing():
    writer = Writer((3, 2, 2))
    writer.add(2)
    writer.reply(0, 0)
    assert writer.reply(2, 0) == []
    assert writer.acknowledged == -1
    assert [type(effect) for effect in writer.reply(1, 0)] == [effects.Acknowledge]


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
def test_metadata_that_are_no_longer_open_end_a_writer_that_is_not_closing(state):
    writer = Writer()
    stored = writer.metadata.in_recovery() if state is LedgerState.IN_RECOVERY else writer.metadata.closed(-1, 0)
    assert writer.core.on_metadata_seen(writer.metadata) == []
    (failed,) = writer.core.on_metadata_seen(stored)
    assert isinstance(failed, effects.Fail)
    assert isinstance(failed.error, LedgerFenced)
    assert writer.core.on_metadata_seen(stored) == []
    closing = Writer()
    closing.core.close()
    assert closing.core.on_metadata_seen(stored) == []
    closing.core.on_metadata_written(closing.metadata.closed(-1, 0), 1)
    assert closing.core.on_metadata_seen(stored) == []
    assert closing.core.state is WriterState.CLOSED


def test_writer_that_is_closed_or_failed_cannot_be_closed_again():
    closed = Writer()
    closed.core.close()
    closed.core.on_metadata_written(closed.metadata.closed(-1, 0), 1)
    with pytest.raises(LedgerClosed):
        closed.core.close()
    failed = Writer()
    error = ClientClosed("the client was closed")
    (effect,) = failed.core.give_up(error)
    assert isinstance(effect, effects.Fail)
    assert effect.error is error
    with pytest.raises(ClientClosed):
        failed.core.close()


def test_writer_that_ended_cannot_be_given_up():
    closed = Writer()
    closed.core.close()
    closed.core.on_metadata_written(closed.metadata.closed(-1, 0), 1)
    assert closed.core.give_up(ClientClosed("late")) == []
    assert closed.core.state is WriterState.CLOSED
    assert closed.core.error is None
    failed = Writer()
    failed.core.give_up(ClientClosed("first"))
    assert failed.core.give_up(ClientClosed("second")) == []
    assert str(failed.core.error) == "first"


def test_bookie_that_is_to_be_replaced_is_not_there_to_do_without_another():
    writer = Writer()
    slots = writer.core.slots
    assert slots.can_do_without(slots.all[1])
    writer.add(1)
    writer.fail(2)
    assert slots.all[2].needs_replacement
    assert not slots.can_do_without(slots.all[1])
    assert slots.can_do_without(slots.all[2])


def test_failed_bookie_owes_nothing_and_is_not_waited_for():
    writer = Writer()
    writer.add(3)
    assert writer.core.has_outstanding(2)
    writer.fail(2)
    assert not writer.core.has_outstanding(2)
    assert writer.core.slots.all[2].owed == ()


def test_new_bookie_gets_what_is_retained_of_acknowledged_batches_but_not_what_is_acknowledged():
    """Its first entry is the first one above the LAC."""
    writer = Writer()
    writer.add(4)
    writer.reply(0, 0, 1)
    writer.reply(1, 0, 1)
    assert writer.core.pending.first_retained(writer.core.lac) == 2
    assert writer.core.pending.first_retained(-1) == 0
    writer.fail(2)
    assert sent_to(writer.change_to("b4")) == {"b4": [2, 3]}
    writer.reply(0, 2, 3)
    writer.reply(2, 2, 3)
    assert writer.acknowledged == 3
    empty = Writer()
    assert empty.core.pending.first_retained(-1) == 0
