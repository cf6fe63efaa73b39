"""WriterCore in states that are rare: ended, closing, with many bookies or some that are left out."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.core import effects
from bkspark.core.limits import WriterLimits
from bkspark.core.pending import PendingEntries
from bkspark.core.pipeline import WriterState
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.slots import Phase
from bkspark.core.striping import ENSEMBLE_SIZE_MAX
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import (
    ClientClosed,
    LedgerFenced,
    NotEnoughBookies,
)
from bkspark.wire.status import Status
from tests.core.writing import Writer, entries, sent_to

LIMITS = WriterLimits.of(WriterOptions())


def test_late_answer_of_a_bookie_that_was_left_out_before_a_probe_changes_nothing() -> None:
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    assert writer.core.slots.all[2].phase is Phase.LEFT_OUT
    assert writer.core.slots.all[2].probe is None
    writer.reply(2, 0)
    assert writer.core.slots.all[2].phase is Phase.LEFT_OUT
    assert writer.acknowledged == -1


def test_newest_batch_is_what_a_bookie_that_is_left_out_is_probed_with() -> None:
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    writer.add(2)
    writer.add(3)
    writer.take(writer.core.on_tick(1))
    due_ns = writer.core.slots.all[2].probe.due_ns
    assert sent_to(writer.take(writer.core.on_tick(due_ns - 1))) == {}
    assert sent_to(writer.take(writer.core.on_tick(due_ns))) == {"b3": [5]}


def test_ensemble_may_have_as_many_bookies_as_a_mask_has_bits() -> None:
    writer = Writer((ENSEMBLE_SIZE_MAX, 2, 2))
    writer.add(ENSEMBLE_SIZE_MAX)
    writer.reply(ENSEMBLE_SIZE_MAX - 1, ENSEMBLE_SIZE_MAX - 2, ENSEMBLE_SIZE_MAX - 1)
    assert writer.core.pending.votes[-1] == 1 << (ENSEMBLE_SIZE_MAX - 1)
    with pytest.raises(ValueError, match="65 is above the limit of 64"):
        Writer((ENSEMBLE_SIZE_MAX + 1, 2, 2))


def test_metadata_that_are_not_open_end_the_writer_with_its_ledger_and_the_first_entry_in_doubt() -> None:
    writer = Writer()
    writer.add(3)
    for slot in (0, 1):
        writer.reply(slot, 0, 1)
    [failure] = writer.take(writer.core.on_metadata_seen(writer.metadata.in_recovery()))
    assert isinstance(failure.error, LedgerFenced)
    assert (failure.error.ledger_id, failure.error.entry_id) == (5, 2)


def test_writer_that_ends_keeps_no_bytes() -> None:
    writer = Writer()
    writer.add(3)
    assert writer.core.pending.kept_bytes == 3
    writer.take(writer.core.give_up(ClientClosed("over")))
    assert (len(writer.core.pending.batches), writer.core.pending.kept_bytes) == (0, 0)
    assert writer.core.pending.added_ns(0, 77) == 77


def test_lost_compare_and_set_of_a_writer_that_has_ended_changes_nothing() -> None:
    """The answer of the metadata store comes after `abandon`."""
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.take(writer.core.on_writable_bookies({"b4"}))
    assert writer.core.state is WriterState.CHANGING
    writer.take(writer.core.give_up(ClientClosed("over")))
    before = writer.core.metadata
    assert writer.core.on_metadata_conflict(writer.metadata.in_recovery(), 1) == []
    assert writer.core.on_metadata_conflict(writer.metadata, 1) == []
    assert isinstance(writer.core.error, ClientClosed)
    assert (writer.core.metadata, writer.core.version) == (before, 0)


def test_bookies_that_the_core_did_not_look_for_replace_none() -> None:
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    assert writer.core.state is WriterState.ACTIVE
    assert writer.take(writer.core.on_writable_bookies({"b1", "b2", "b4"})) == []
    assert writer.core.state is WriterState.ACTIVE
    assert not writer.core.slots.to_replace


def test_writer_without_enough_bookies_names_its_ledger_and_those_that_are_missing() -> None:
    writer = Writer((3, 3, 3))
    writer.add()
    writer.fail(1)
    done = writer.take(writer.core.on_writable_bookies({"b1", "b3"}))
    assert isinstance(done[-1].error, NotEnoughBookies)
    assert "ledger 5 lost bookies b2 " in str(done[-1].error)
    assert (done[-1].error.ledger_id, done[-1].error.entry_id) == (5, 0)


def test_entries_that_waited_only_for_a_failed_bookie_are_acknowledged_when_it_is_left_out_later() -> None:
    writer = Writer(options=WriterOptions(delay_ensemble_change=True))
    writer.add(2)
    writer.reply(0, 0, 1)
    writer.fail(2)
    assert writer.core.slots.all[2].phase is Phase.LEFT_OUT
    assert not writer.core.slots.to_replace
    assert writer.acknowledged == -1
    writer.reply(1, 0, 1)
    assert writer.acknowledged == 1
    assert writer.core.pending.kept_bytes == 0


def test_votes_have_room_for_any_number_of_entries() -> None:
    for count in (1, 63, 64, 65, 1023, 1024, 1025, 4096, 4097):
        pending = PendingEntries(-1)
        for first in range(0, count, 500):
            pending.add(entries(first, min(500, count - first)), 0)
        assert len(pending.votes) == count
        pending.vote(np.uint64(1), np.arange(count), (0, count))
        assert pending.votes.tolist() == [1] * count


def test_writer_that_ends_or_closes_looks_after_no_bookie() -> None:
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    writer.take(writer.core.give_up(ClientClosed("over")))
    assert writer.take(writer.core.on_tick(1 << 60)) == []
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    writer.add()
    for slot in (0, 1):
        writer.reply(slot, 0, 1)
    writer.take(writer.core.on_tick(1))
    writer.take(writer.core.close())
    assert sent_to(writer.take(writer.core.on_tick(1 << 60))) == {}
    writer = Writer()
    [closing] = writer.take(writer.core.close())
    assert isinstance(closing, effects.WriteMetadata)
    assert writer.fail(0) == []
    assert writer.core.state is WriterState.CLOSING
    assert writer.core.slots.all[0].phase is Phase.SERVING


def test_silence_of_a_bookie_that_was_replaced_counts_for_nothing() -> None:
    writer = Writer()
    assert writer.take(writer.core.on_silent({0: "b9", 1: "b2"}, 5)) == []
    assert writer.core.state is WriterState.ACTIVE
    done = writer.take(writer.core.on_silent({0: "b1", 1: "b2"}, 5))
    assert [effect.failed for effect in done if isinstance(effect, effects.FindBookies)] == [("b1",)]
    assert writer.core.slots.to_replace == writer.core.slots.all[:2]


def test_spare_bookie_takes_the_place_of_one_of_two_that_are_left_out() -> None:
    writer = Writer((5, 5, 3))
    writer.add()
    for slot in (3, 4):
        writer.fail(slot)
        writer.change_to()
    assert [slot.phase for slot in writer.core.slots.all[3:]] == [Phase.LEFT_OUT] * 2
    done = writer.take(writer.core.on_tick(LIMITS.replacement_retry_ns + 1))
    assert effects.FindBookies() in done
    writer.change_to("b6")
    assert writer.core.state is WriterState.ACTIVE
    assert writer.core.slots.to_replace == []
    assert sorted(slot.phase.name for slot in writer.core.slots.all[3:]) == ["LEFT_OUT", "SERVING"]
    assert "b6" in writer.core.slots.ensemble


def test_answers_to_forces_of_a_writer_that_ended_count_for_nothing() -> None:
    writer = Writer(relaxed=RelaxedDurability())
    writer.add()
    for slot in (0, 1, 2):
        writer.reply(slot, 0)
    forces = writer.take(writer.core.sync())
    assert [type(force) for force in forces] == [effects.Force] * 3
    writer.take(writer.core.on_forced(forces[0], 1))
    writer.take(writer.core.give_up(ClientClosed("over")))
    assert writer.core.on_forced(forces[1], 1) == []
    assert writer.core.on_force_lost(forces[2], 1) == []
    assert writer.core.lac == -1


def test_bookie_that_got_entries_late_has_its_whole_time_for_those_that_it_skips() -> None:
    writer = Writer((3, 3, 3))
    writer.add(2)
    for slot in (0, 1):
        writer.reply(slot, 0, 1)
    late_ns = 2 * LIMITS.add_timeout_ns
    writer.take(writer.core.on_bookie_failed(2, "b3", late_ns))
    assert sent_to(writer.change_to("b4")) == {"b4": [0, 1]}
    writer.reply(2, 1, now_ns=late_ns)
    assert writer.take(writer.core.on_tick(late_ns + LIMITS.add_timeout_ns)) == []
    (search,) = writer.take(writer.core.on_tick(late_ns + LIMITS.add_timeout_ns + 1))
    assert search.failed == ("b4",)


def test_bookie_that_takes_load_again_has_its_whole_time_for_what_it_gets_then() -> None:
    """What it refused was not sent to it meanwhile, so it cannot have skipped it before."""
    writer = Writer((3, 3, 3))
    for _ in range(3):
        writer.add()
    for slot in (0, 1):
        writer.reply(slot, 0, 1, 2)
    writer.reply(2, 0, 1, 2, status=Status.ETOOMANYREQUESTS)
    again_ns = LIMITS.add_timeout_ns
    assert sent_to(writer.take(writer.core.on_tick(again_ns))) == {"b3": [0]}
    assert sent_to(writer.reply(2, 0, now_ns=again_ns)) == {"b3": [1, 2]}
    writer.reply(2, 2, now_ns=again_ns + 1)
    assert writer.take(writer.core.on_tick(again_ns + LIMITS.add_timeout_ns)) == []
    (search,) = writer.take(writer.core.on_tick(again_ns + LIMITS.add_timeout_ns + 1))
    assert search.failed == ("b3",)


def test_probe_that_is_sent_long_after_it_was_due_has_its_whole_time() -> None:
    writer = Writer()
    writer.add()
    for slot in (0, 1, 2):
        writer.reply(slot, 0)
    writer.fail(2)
    writer.change_to()
    writer.take(writer.core.on_tick(1))
    late_ns = 2 * LIMITS.add_timeout_ns
    assert sent_to(writer.take(writer.core.on_tick(late_ns))) == {}, "there is no entry to send"
    writer.add(now_ns=late_ns)
    for slot in (0, 1):
        writer.reply(slot, 1, now_ns=late_ns)
    assert sent_to(writer.take(writer.core.on_tick(late_ns))) == {"b3": [1]}
    writer.take(writer.core.on_tick(late_ns + LIMITS.add_timeout_ns))
    writer.reply(2, 1, now_ns=late_ns + LIMITS.add_timeout_ns)
    assert writer.core.slots.all[2].phase is Phase.ON_TRIAL
