"""Events of the cores that come together, late, or while something else is under way."""

from __future__ import annotations

import numpy as np

from bkspark.core import effects
from bkspark.core.explicit_lac import ExplicitLac
from bkspark.core.holes import held_parts
from bkspark.core.left_out import LeftOutBookies
from bkspark.core.limits import WriterLimits
from bkspark.core.metadata import Fragment
from bkspark.core.pending import PendingEntries
from bkspark.core.pipeline import WriterState
from bkspark.core.probing import Probe, Trial
from bkspark.core.recovery import RecoveryState
from bkspark.core.recovery_window import Response
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.slots import Phase, Slot, Slots
from bkspark.core.striping import Stripe
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import ClientClosed, LedgerClosed, LedgerFenced
from bkspark.wire.entry_lists import EntryRuns
from bkspark.wire.status import Status
from tests.core.recovering import Recovery
from tests.core.writing import Writer, entries, sent_to

LIMITS = WriterLimits.of(WriterOptions())


# ---- answers to adds ----


def test_fence_ends_the_writer_also_in_the_answer_of_a_bookie_that_refuses_load() -> None:
    """A fenced writer that only replaced the bookie could go on until the metadata show the recovery (§5.4)."""
    writer = Writer()
    writer.add(2)
    statuses = np.array([Status.ETOOMANYREQUESTS, Status.EFENCED])
    writer.take(writer.core.on_add_replies(0, "b1", np.array([0, 1]), statuses, 0))
    assert isinstance(writer.core.error, LedgerFenced)


def test_late_answer_of_a_bookie_that_is_left_out_counts_as_its_vote() -> None:
    """Entries are acknowledged once Qa different slots have acknowledged them (§5.4)."""
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    for slot in (2, 0):
        writer.reply(slot, 0)
    assert writer.acknowledged == 0


def test_answers_for_entries_that_were_never_sent_change_nothing() -> None:
    writer = Writer()
    writer.add(2)
    for slot in range(3):
        writer.reply(slot, 5, 90_000, 7, 80_000)
    assert writer.acknowledged == -1
    writer.add(8)
    assert not writer.core.pending.votes.any()


def test_votes_are_kept_while_more_entries_are_added_than_there_was_room_for() -> None:
    writer = Writer()
    writer.add(1000)
    writer.reply(0, *range(1000))
    writer.add(1000)
    writer.reply(1, *range(1000))
    assert writer.acknowledged == 999


def test_votes_from_before_a_bookie_was_left_out_do_not_count_when_it_is_back() -> None:
    """It may be a blank one at the same address by now: only what it gets from now on counts."""
    writer = Writer()
    writer.add()
    writer.reply(2, 0)
    writer.fail(2)
    writer.change_to()
    writer.add()
    writer.take(writer.core.on_tick(1))
    due_ns = writer.core.slots.all[2].probe.due_ns
    assert sent_to(writer.take(writer.core.on_tick(due_ns))) == {"b3": [1]}
    writer.reply(2, 1, now_ns=due_ns)
    assert writer.core.slots.all[2].phase is Phase.ON_TRIAL
    writer.reply(0, 0, now_ns=due_ns)
    assert writer.acknowledged == -1
    writer.reply(1, 0, now_ns=due_ns)
    assert writer.acknowledged == 0


def test_bookie_whose_probe_is_answered_during_an_ensemble_change_is_probed_again() -> None:
    writer = Writer((4, 4, 2))
    writer.add()
    writer.fail(3)
    writer.change_to()
    writer.add()
    writer.take(writer.core.on_tick(1))
    due_ns = writer.core.slots.all[3].probe.due_ns
    assert sent_to(writer.take(writer.core.on_tick(due_ns))) == {"b4": [1]}
    writer.fail(0, due_ns)
    assert writer.core.state is WriterState.CHANGING
    writer.reply(3, 1, now_ns=due_ns)
    slot = writer.core.slots.all[3]
    assert (slot.phase, slot.is_probed) == (Phase.LEFT_OUT, False)
    assert slot.probe.due_ns > due_ns


# ---- bookies that fail together ----


def test_silent_bookies_and_those_that_are_left_out_count_together() -> None:
    writer = Writer()
    writer.add()
    writer.fail(2)
    writer.change_to()
    done = writer.take(writer.core.on_silent({1: "b2"}, 5))
    assert [effect.failed for effect in done if isinstance(effect, effects.FindBookies)] == [("b2",)]


def test_failure_of_a_bookie_is_reported_once_however_often_another_one_is_looked_for() -> None:
    """A few failures put a bookie into quarantine."""
    writer = Writer((4, 4, 2))
    writer.add()
    writer.fail(3)
    writer.change_to()
    writer.take(writer.core.on_tick(LIMITS.replacement_retry_ns + 1))
    writer.change_to()
    writer.take(writer.core.on_tick(2 * LIMITS.replacement_retry_ns + 2))
    found = [effect.failed for effect in writer.log if isinstance(effect, effects.FindBookies)]
    assert found == [("b4",), (), ()]


def test_bookies_are_looked_up_once_at_a_time() -> None:
    """The second answer would choose again while the first choice is being stored."""
    writer = Writer((5, 5, 3))
    writer.add()
    writer.fail(4)
    writer.change_to()
    seeking = writer.take(writer.core.on_tick(LIMITS.replacement_retry_ns + 1))
    assert effects.FindBookies() in seeking
    assert [effect for effect in writer.fail(3) if isinstance(effect, effects.FindBookies)] == []
    assert writer.core.state is WriterState.CHANGING
    writer.change_to("b6")
    assert writer.core.state is WriterState.ACTIVE
    assert writer.core.slots.ensemble == ("b1", "b2", "b3", "b6", "b5")


def test_bookies_that_are_left_out_are_taken_back_if_the_writer_cannot_do_without_them() -> None:
    writer = Writer((4, 4, 3))
    writer.add()
    writer.fail(3)
    writer.change_to()
    for slot in (1, 2):
        writer.fail(slot)
    writer.change_to()
    slots = writer.core.slots
    assert [slot.phase for slot in slots.all] == [Phase.SERVING, Phase.LEFT_OUT, Phase.LEFT_OUT, Phase.SERVING]
    writer.take(writer.core.on_tick(LIMITS.replacement_retry_ns + 1))
    assert writer.core.state is WriterState.CHANGING
    writer.change_to()
    assert [slot.phase for slot in slots.all] == [Phase.SERVING] * 4


def test_refusing_bookie_without_a_spare_is_kept_for_another_whole_time() -> None:
    writer = Writer()
    writer.add()
    writer.reply(0, 0, status=Status.ETOOMANYREQUESTS)
    for slot in (1, 2):
        writer.reply(slot, 0)
    first_ns = LIMITS.add_timeout_ns + 1

    def searches(now_ns: int) -> int:
        done = writer.take(writer.core.on_tick(now_ns))
        return sum(isinstance(effect, effects.FindBookies) for effect in done)

    assert searches(first_ns) == 1
    writer.change_to()
    assert (writer.core.state, writer.core.slots.all[0].phase) == (WriterState.ACTIVE, Phase.REFUSING)
    assert searches(first_ns + LIMITS.add_timeout_ns) == 0


# ---- metadata ----


def test_stored_ensemble_does_not_bring_back_a_writer_that_has_ended() -> None:
    writer = Writer()
    writer.add()
    writer.fail(2)
    (write,) = writer.take(writer.core.on_writable_bookies({"b4"}))
    writer.take(writer.core.give_up(ClientClosed("over")))
    assert writer.core.on_metadata_written(write.metadata, 1) == []
    assert writer.core.state is WriterState.FAILED
    assert writer.core.slots.ensemble == ("b1", "b2", "b3")


def test_ledger_whose_last_fragment_another_client_changed_is_not_closed_over_it() -> None:
    """C7: only this writer changes the last fragment of its open ledger."""
    writer = Writer()
    writer.take(writer.core.close())
    other = writer.metadata.with_ensemble(0, ("b1", "b2", "b9"))
    (failed,) = writer.take(writer.core.on_metadata_conflict(other, 1))
    assert isinstance(failed, effects.Fail)
    assert isinstance(failed.error, LedgerClosed | LedgerFenced)


def test_relaxed_writer_forces_nothing_while_its_ensemble_changes() -> None:
    """A bookie that is being replaced would be waited for."""
    writer = Writer(relaxed=RelaxedDurability(changes_ensemble=True))
    writer.add()
    for slot in range(3):
        writer.reply(slot, 0)
    writer.fail(2)
    assert writer.core.state is WriterState.CHANGING
    assert writer.take(writer.core.sync()) == []
    done = writer.change_to("b4")
    assert {effect.bookie for effect in done if isinstance(effect, effects.Force)} == {"b1", "b2", "b4"}


def test_recovery_closes_the_ledger_with_the_bookies_that_got_its_entries() -> None:
    """I3: every entry has Qa copies on bookies that the metadata name."""
    fragments = (Fragment(0, ("b1", "b2", "b9")),)

    class Changing(Recovery):
        def perform(self, effect: object) -> list[effects.RecoveryEffect]:
            if isinstance(effect, effects.RewriteEntries):
                self.core.on_ensemble_changed(fragments)
            return super().perform(effect)  # type: ignore[no-any-return]

    outcome = Changing({"b1": [0], "b2": [0], "b3": [0]}).run()
    assert isinstance(outcome, effects.Recovered)
    assert outcome.metadata.fragments == fragments


def test_bookie_that_refuses_its_fence_when_the_others_suffice_is_not_asked_again() -> None:
    core = Recovery({}).core
    core.start()
    core.on_metadata_written(core.metadata.in_recovery(), 1)
    for slot in (0, 1):
        core.on_fence_answer(slot, Response.NEGATIVE)
    assert core.state is not RecoveryState.FENCING
    assert core.on_fence_answer(2, Response.REFUSED) == []


# ---- small parts ----


def test_explicit_lac_of_one_round_counts_for_no_other() -> None:
    core, ensemble = ExplicitLac(3, 3, 2), ("b0", "b1", "b2")
    for slot in (0, 1):
        assert len(core.on_interval(4, ensemble)) == 3
        core.on_written(slot)
        core.on_failed()
        core.on_failed()
    assert len(core.on_interval(4, ensemble)) == 3


def test_trial_counts_the_entries_that_the_slot_stores() -> None:
    slot = Slot(0, np.uint64(1), Stripe(0, 3, 2), "b1", -1)
    slot.take_back(0, 1)
    slot.begin_trial(0, 1)
    slot.send_on_trial(entries(0, 6), 0, 2)
    assert slot.trial == Trial(1, 0, sent=4)


def test_bookie_that_is_left_out_again_has_no_time_of_before() -> None:
    slot = Slot(0, np.uint64(1), Stripe(0, 3, 3), "b1", -1)
    slot.leave_out()
    slot.sought_from_ns = 1 << 60
    slot.take_back(0, 1)
    slot.leave_out()
    assert slot.sought_from_ns == 0


def test_writer_looks_again_when_the_first_of_the_refusing_bookies_is_due() -> None:
    slots = Slots(Writer().metadata, -1)
    for number, now_ns in ((0, 500), (1, 100)):
        held = effects.SendAdds(number, f"b{number + 1}", entries(0, 1), None)
        slots.all[number].hold(np.array([0]), [held], LIMITS, now_ns)
    assert slots.probe_refusals(600) == [effects.CallAfter(LIMITS.refusal_pause_ns_min - 500)]


def test_bookie_on_trial_does_not_pass_while_its_connection_is_congested() -> None:
    slots = Slots(Writer().metadata, -1)
    left_out, slot = LeftOutBookies(slots, PendingEntries(-1), LIMITS), slots.all[0]
    slot.begin_trial(0, 0)
    assert left_out.passes(slot, LIMITS.trial_ns)
    slot.is_congested = True
    assert not left_out.passes(slot, LIMITS.trial_ns)


def test_answered_probe_of_a_bookie_that_may_not_return_yet_is_repeated_after_a_longer_pause() -> None:
    slots = Slots(Writer().metadata, -1)
    left_out, slot = LeftOutBookies(slots, PendingEntries(-1), LIMITS), slots.all[0]
    slot.probe = Probe(10, 0).sent(3, 5)
    left_out.on_probe_answered(slot, 100, may_return=False)
    assert slot.probe == Probe(20, 120)


def test_parts_with_entries_are_divided_by_gaps_of_the_least_size_and_not_within_a_longer_run() -> None:
    def runs(*pairs: tuple[int, int]) -> EntryRuns:
        return EntryRuns(np.array([start for start, _ in pairs]), np.array([size for _, size in pairs]))

    assert held_parts([runs((0, 10), (110, 5))], 0, 500, 100) == [(0, 10), (110, 115)]
    assert held_parts([runs((0, 10), (109, 5))], 0, 500, 100) == [(0, 114)]
    assert held_parts([runs((0, 200)), runs((5, 10), (250, 1))], 0, 500, 100) == [(0, 251)]
