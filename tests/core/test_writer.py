"""WriterCore: acknowledgement, ensemble change, fencing and closing, event by event."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bkspark.core import effects
from bkspark.core.add_pipeline import WriterLimits
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.writer import WriterCore, WriterState
from bkspark.errors import LedgerClosed, LedgerFenced, MetadataError, NotEnoughBookies, UnauthorizedAccess
from bkspark.wire.digest import SealedEntries
from bkspark.wire.v2 import Status

SECOND_NS = 1_000_000_000


def entries(first_entry, count):
    return SealedEntries(memoryview(bytes(count)), np.arange(count + 1), first_entry)


class Writer:
    """A core and the effects it returned; acknowledged entries and sends are read off those."""

    def __init__(self, quorums=(3, 3, 2), **options):
        ensemble_size, write_quorum, ack_quorum = quorums
        bookies = tuple(f"b{number}" for number in range(1, ensemble_size + 1))
        self.metadata = LedgerMetadata(ensemble_size, write_quorum, ack_quorum, (Fragment(0, bookies),))
        self.core = WriterCore(5, self.metadata, 0, random.Random(1), **options)
        self.log = []

    def add(self, count=1, now_ns=0):
        return self.take(self.core.add(entries(self.core.next_entry, count), count, now_ns))

    def reply(self, slot, *ids, status=Status.EOK, bookie=None, now_ns=0):
        bookie = bookie or self.core.ensemble[slot]
        statuses = np.full(len(ids), status)
        return self.take(self.core.on_add_replies(slot, bookie, np.array(ids, np.int64), statuses, now_ns))

    def fail(self, slot, now_ns=0):
        return self.take(self.core.on_bookie_failed(slot, self.core.ensemble[slot], now_ns))

    def change_to(self, *writable):
        """Answer FindBookies, and the compare-and-set that follows."""
        done = self.take(self.core.on_writable_bookies({*self.core.ensemble, *writable}))
        for effect in [effect for effect in done if isinstance(effect, effects.WriteMetadata)]:
            done += self.take(self.core.on_metadata_written(effect.metadata, effect.expected_version + 1))
        return done

    def take(self, done):
        self.log += done
        return list(done)

    @property
    def acknowledged(self):
        return max((effect.last_entry for effect in self.log if isinstance(effect, effects.Acknowledge)), default=-1)


def sent_to(done):
    result = {}
    for effect in done:
        if isinstance(effect, effects.SendAdds):
            first = effect.entries.first_entry
            positions = range(len(effect.entries)) if effect.positions is None else effect.positions.tolist()
            result.setdefault(effect.bookie, []).extend(first + position for position in positions)
    return result


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
    """P13: E2 Qw1 Qa1; entry 1 is complete behind entry 0 when its only bookie dies."""
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
    assert writer.core.ensemble == ("b4", "b5", "b3")
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


def test_bookie_left_out_that_registers_again_gets_what_is_pending():
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.take(writer.core.on_writable_bookies({"b1", "b2"}))
    writer.take(writer.core.on_tick(10 * SECOND_NS))
    done = writer.take(writer.core.on_writable_bookies({"b1", "b2", "b3"}))
    assert sent_to(done) == {"b3": [0]}


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


def test_unreachable_metadata_during_a_change_ends_the_writer():
    writer = Writer()
    writer.add()
    writer.fail(2)
    done = writer.take(writer.core.on_metadata_failed(MetadataError("away")))
    assert isinstance(done[-1], effects.Fail)


def test_silent_bookie_is_replaced_after_the_time_out_and_not_before():
    writer = Writer(limits=WriterLimits(add_timeout_ns=5 * SECOND_NS))
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
        ("in recovery", WriterState.FAILED),
        ("open, repaired", WriterState.CLOSING),
    ],
)
def test_lost_closing_compare_and_set_has_four_cases(theirs, outcome):
    """protocol.md, Closing a ledger as a writer."""
    writer = Writer()
    writer.add(2)
    for slot in (0, 1):
        writer.reply(slot, 0, 1)
    writer.take(writer.core.close())
    current = {
        "closed here": writer.metadata.closed(1, 2),
        "closed elsewhere": writer.metadata.closed(0, 1),
        "in recovery": writer.metadata.in_recovery(),
        "open, repaired": writer.metadata,
    }[theirs]
    writer.take(writer.core.on_metadata_conflict(current, 9))
    assert writer.core.state is outcome


def test_recovery_keeps_ensemble_changes_to_itself():
    """P03: they are published by the closing compare-and-set only."""
    writer = Writer(is_recovery=True, lac=-1)
    writer.add()
    writer.fail(2)
    done = writer.take(writer.core.on_writable_bookies({"b4"}))
    assert not any(isinstance(effect, effects.WriteMetadata) for effect in done)
    assert sent_to(done) == {"b4": [0]}
    assert writer.core.fragments == (Fragment(0, ("b1", "b2", "b4")),)


REFUSING = WriterLimits(add_timeout_ns=5 * SECOND_NS, refusal_pause_ns_min=10_000_000, refusal_pause_ns_max=40_000_000)


def overloaded(writer, slot, *ids, now_ns=0):
    return writer.reply(slot, *ids, status=Status.ETOOMANYREQUESTS, now_ns=now_ns)


def test_refused_load_is_tried_again_after_a_pause_and_fails_nobody():
    """Issue 5 A: a writer never fails a healthy ledger because one bookie said TOOMANYREQUESTS."""
    writer = Writer(limits=REFUSING)
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
    assert writer.core.kept_bytes == 0


def test_what_comes_for_a_bookie_that_refuses_load_waits_until_it_takes_one_piece():
    writer = Writer(limits=REFUSING)
    writer.add(1)
    overloaded(writer, 2, 0)
    assert sent_to(writer.add(1)) == {"b1": [1], "b2": [1]}
    assert sent_to(writer.add(1)) == {"b1": [2], "b2": [2]}
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b3": [0]}
    assert sent_to(writer.reply(2, 0)) == {"b3": [1, 2]}
    assert sent_to(writer.add(1)) == {"b1": [3], "b2": [3], "b3": [3]}


def test_pause_before_the_next_try_doubles_up_to_its_limit():
    writer = Writer(limits=REFUSING)
    writer.add(1)
    now_ns, pauses = 0, []
    for _ in range(4):
        done = overloaded(writer, 2, 0, now_ns=now_ns)
        pauses += [effect.delay_ns for effect in done if isinstance(effect, effects.CallAfter)]
        now_ns += pauses[-1]
        assert sent_to(writer.take(writer.core.on_tick(now_ns))) == {"b3": [0]}
    assert pauses == [10_000_000, 20_000_000, 40_000_000, 40_000_000]


def test_ledger_whose_every_bookie_refuses_load_goes_on_when_they_take_it():
    writer = Writer(limits=REFUSING)
    writer.add(3)
    for slot in range(3):
        overloaded(writer, slot, 0, 1, 2)
    done = writer.take(writer.core.on_tick(10_000_000))
    assert sent_to(done) == {"b1": [0, 1, 2], "b2": [0, 1, 2], "b3": [0, 1, 2]}
    writer.reply(0, 0, 1, 2)
    writer.reply(1, 0, 1, 2)
    assert writer.acknowledged == 2


def test_bookie_that_only_refuses_is_replaced_by_a_spare_one():
    writer = Writer(limits=REFUSING)
    writer.add(1)
    overloaded(writer, 2, 0)
    writer.take(writer.core.on_tick(10_000_000))
    overloaded(writer, 2, 0, now_ns=6 * SECOND_NS)
    assert effects.FindBookies() in writer.take(writer.core.on_tick(6 * SECOND_NS))
    assert sent_to(writer.change_to("b4")) == {"b4": [0]}


def test_bookies_that_only_refuse_stay_where_there_is_no_spare_and_nothing_added_meanwhile_is_forgotten():
    writer = Writer(limits=REFUSING)
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
        assert sent_to(done) == {writer.core.ensemble[slot]: [1]}
        writer.reply(slot, 1, now_ns=13 * SECOND_NS)
    assert writer.acknowledged == 1


def test_bytes_are_kept_until_the_slowest_bookie_has_answered():
    writer = Writer(limits=REFUSING)
    writer.add(4)
    writer.add(4)
    for slot in (0, 1):
        writer.reply(slot, *range(8))
    assert writer.acknowledged == 7
    assert writer.core.kept_bytes == 8
    writer.reply(2, 0, 1, 2, 3)
    assert writer.core.kept_bytes == 4
    overloaded(writer, 2, 4, 5, 6, 7)
    assert sent_to(writer.take(writer.core.on_tick(10_000_000))) == {"b3": [4, 5, 6, 7]}


def test_lost_connection_to_a_bookie_that_refuses_load_is_a_failure():
    writer = Writer(limits=REFUSING)
    writer.add(1)
    overloaded(writer, 2, 0)
    assert effects.FindBookies() in writer.fail(2)
    assert sent_to(writer.change_to("b4")) == {"b4": [0]}


DELAYED = WriterLimits(delay_ensemble_change=True)


def test_delayed_change_leaves_a_failed_bookie_out_while_qa_others_answer():
    writer = Writer((3, 3, 2), limits=DELAYED)
    writer.add(2)
    assert writer.fail(2, now_ns=SECOND_NS) == []
    assert sent_to(writer.add()) == {"b1": [2], "b2": [2]}
    writer.reply(0, 0, 1, 2)
    writer.reply(1, 0, 1, 2)
    assert writer.acknowledged == 2
    assert writer.take(writer.core.on_tick(30 * SECOND_NS)) == []


def test_delayed_change_is_made_when_its_time_is_over():
    writer = Writer((3, 3, 2), limits=DELAYED)
    writer.fail(2, now_ns=SECOND_NS)
    writer.add(now_ns=30 * SECOND_NS)
    assert writer.take(writer.core.on_tick(32 * SECOND_NS)) == [effects.FindBookies()]
    done = writer.change_to("b4")
    assert sent_to(done) == {"b4": [0]}
    assert writer.core.ensemble == ("b1", "b2", "b4")


def test_delayed_change_is_made_for_all_at_once_when_too_few_would_be_left():
    writer = Writer((3, 3, 2), limits=DELAYED)
    writer.add()
    writer.fail(2)
    assert [type(effect) for effect in writer.fail(0)] == [effects.FindBookies]
    done = writer.change_to("b4", "b5")
    assert sorted(sent_to(done)) == ["b4", "b5"]
    assert len([effect for effect in done if isinstance(effect, effects.WriteMetadata)]) == 1


def test_delay_is_counted_from_the_first_bookie_left_out():
    """E6 Qw2 Qa1: bookies two apart share no write set, so both are left out."""
    writer = Writer((6, 2, 1), limits=DELAYED)
    assert writer.fail(0, now_ns=SECOND_NS) == []
    assert writer.fail(3, now_ns=20 * SECOND_NS) == []
    assert writer.take(writer.core.on_tick(32 * SECOND_NS)) == [effects.FindBookies()]
    writer.change_to("b7", "b8")
    assert set(writer.core.ensemble) & {"b1", "b4"} == set()


def test_change_that_was_delayed_is_looked_for_soon_where_no_bookie_was_spare():
    writer = Writer((3, 3, 2), limits=DELAYED)
    writer.fail(2, now_ns=SECOND_NS)
    writer.take(writer.core.on_tick(32 * SECOND_NS))
    assert writer.take(writer.core.on_writable_bookies({"b1", "b2"})) == []
    assert writer.take(writer.core.on_tick(34 * SECOND_NS)) == [effects.FindBookies()]


def test_recovery_never_delays_a_change():
    writer = Writer((3, 3, 2), limits=DELAYED, is_recovery=True)
    assert [type(effect) for effect in writer.fail(2)] == [effects.FindBookies]


@pytest.mark.parametrize(("failed", "goes_on"), [((0, 3), True), ((0, 1), False), ((0, 5), False), ((0, 2, 4), True)])
def test_striped_writer_goes_on_while_every_write_set_has_qa_bookies(failed, goes_on):
    """E6 Qw2 Qa1, no bookie spare: a write set is two neighbours of the ring."""
    writer = Writer((6, 2, 1))
    for slot in failed:
        writer.fail(slot)
        writer.take(writer.core.on_writable_bookies({"b2", "b3"} - {writer.core.ensemble[it] for it in failed}))
        if writer.core.state is WriterState.ACTIVE:
            writer.add()
    assert (writer.core.state is WriterState.ACTIVE) == goes_on


SLOW = WriterLimits(slow_lag_entries=10, slow_lag_ns=2 * SECOND_NS)


def lagging_writer(quorums=(3, 3, 2), limits=SLOW):
    """A writer whose third bookie has answered for one entry of twenty, and answers on."""
    writer = Writer(quorums, limits=limits)
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
    assert writer.core.ensemble == ("b1", "b2", "b3")
    assert writer.core.state is WriterState.ACTIVE
    assert writer.core.outstanding_max == 20
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


def test_bookie_that_catches_up_in_time_stays():
    writer = lagging_writer()
    writer.take(writer.core.on_tick(1 * SECOND_NS))
    writer.reply(2, *range(1, 15))
    writer.take(writer.core.on_tick(2 * SECOND_NS))
    assert writer.take(writer.core.on_tick(4 * SECOND_NS)) == []


def test_lag_counts_bytes_too_and_what_is_not_acknowledged_is_no_lag():
    limits = WriterLimits(slow_lag_entries=10**9, slow_lag_bytes=15, slow_lag_ns=SECOND_NS)
    writer = Writer((3, 3, 2), limits=limits)
    for _ in range(4):
        writer.add(10)
    writer.reply(0, *range(40))
    writer.reply(2, 0)
    assert writer.take(writer.core.on_tick(0)) + writer.take(writer.core.on_tick(2 * SECOND_NS)) == []
    writer.reply(1, *range(40), now_ns=2 * SECOND_NS)
    writer.take(writer.core.on_tick(2 * SECOND_NS))
    (search,) = writer.take(writer.core.on_tick(4 * SECOND_NS))
    assert search.failed == ("b3",)
