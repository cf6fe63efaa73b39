"""RecoveryCore: coverage, forward reading, negatives, rewriting and closing, event by event."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.recovery import WINDOW_BYTES_MAX, WINDOW_ENTRIES_MAX, WINDOW_FIRST, RecoveryCore, RecoveryState
from bkspark.core.recovery_window import Response
from bkspark.core.striping import write_set
from bkspark.errors import BookieUnavailable, LedgerRecoveryFailed, ReadFailed, RequestTimeout, UnauthorizedAccess
from tests.core.recovering import AWAY, BOOKIES, ONE_FRAGMENT, Recovery, closed_at, held, read_answer


@pytest.mark.parametrize("tells_last", [True, False])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 300, 1000])
def test_ledger_is_closed_at_its_last_entry_and_length(count, tells_last):
    recovery = Recovery(held(b1=count, b2=count, b3=count))
    recovery.tells_last = tells_last
    assert closed_at(recovery) == count - 1
    assert recovery.outcome.metadata.length == 10 * count
    assert recovery.rewritten == list(range(count))


def test_reading_begins_after_the_highest_lac_heard_and_that_is_what_rewritten_entries_carry():
    """X1: the LAC is frozen for the whole recovery."""
    recovery = Recovery(held(b1=9, b2=9, b3=9), lacs={"b1": 3, "b2": 5, "b3": 4})
    assert closed_at(recovery) == 8
    assert recovery.rewritten[0] in (4, 6)  # coverage needs two answers; a third may come too late to count
    assert recovery.lac_written == recovery.rewritten[0] - 1


def test_reading_never_goes_below_the_last_fragment():
    """P02: LAC floor is first entry of the last fragment - 1."""
    fragments = (Fragment(0, BOOKIES), Fragment(1000, ("b4", "b5", "b6")))
    recovery = Recovery({}, fragments=fragments)
    assert closed_at(recovery) == 999
    assert all(bookie in ("b4", "b5", "b6") and min(ids) >= 1000 for bookie, ids in recovery.reads)
    assert recovery.outcome.metadata.length == 777


def test_entry_on_qa_bookies_is_kept_wherever_they_are():
    """I1: an entry that was acknowledged has Qa copies; (Qw - Qa) + 1 negatives cannot come together then."""
    for absent in BOOKIES:
        holders = {bookie: {0, 1, 2} for bookie in BOOKIES if bookie != absent}
        assert closed_at(Recovery(holders)) == 2


def test_single_copy_that_is_heard_first_is_kept():
    """Generous on positives: one valid copy makes an entry part of the ledger."""
    assert closed_at(Recovery({"b1": {0}})) == 0


def test_one_dead_bookie_of_three_does_not_hinder_and_is_asked_once():
    for dead in BOOKIES:
        recovery = Recovery(held(b1=50, b2=50, b3=50), dead=[dead])
        assert closed_at(recovery) == 49
        assert sum(bookie == dead for bookie, _ in recovery.reads) <= 1


def test_too_few_fences_fail_and_leave_the_ledger_in_recovery():
    recovery = Recovery(held(b1=5, b2=5, b3=5), dead=["b1", "b2"])
    outcome = recovery.run()
    assert isinstance(outcome.error, LedgerRecoveryFailed)
    assert recovery.core.metadata.state is LedgerState.IN_RECOVERY


def test_error_is_not_a_negative_answer_and_an_entry_that_might_exist_fails_the_recovery():
    """Coverage by two of three, then one of them fails: one negative of the two needed decides nothing."""
    core = RecoveryCore(5, LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES),)), 0)
    core.on_metadata_written(core.start()[0].metadata, 1)
    core.on_fence_answer(0, Response.NEGATIVE)
    todo = core.on_fence_answer(1, Response.NEGATIVE)
    core.on_fence_answer(2, Response.FAILED, error=AWAY)
    outcome = None
    while todo:
        effect = todo.pop(0)
        if isinstance(effect, effects.RecoveryRead):
            answer = Response.NEGATIVE if effect.slot == 0 else Response.FAILED
            error = None if effect.slot == 0 else ReadFailed("EIO")
            todo += read_answer(core, effect.slot, effect.entry_ids, answer, error=error)
        else:
            outcome = effect
    assert isinstance(outcome, effects.Fail)
    assert isinstance(outcome.error, LedgerRecoveryFailed)


def test_digest_failure_of_one_replica_is_not_a_vote_and_the_others_are_asked():
    """P37."""
    core = RecoveryCore(5, LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES),)), 0)
    core.on_metadata_written(core.start()[0].metadata, 1)
    core.on_fence_answer(0, Response.FOUND, -1, 10)
    todo = core.on_fence_answer(1, Response.FOUND, -1, 10)
    rewritten = []
    while todo:
        effect = todo.pop(0)
        if isinstance(effect, effects.RecoveryRead):
            for entry in effect.entry_ids.tolist():
                if entry > 0:
                    todo += read_answer(core, effect.slot, entry, Response.NEGATIVE)
                elif effect.slot == 0:
                    todo += read_answer(core, 0, 0, Response.FAILED, error=ReadFailed("digest"))
                else:
                    todo += read_answer(core, effect.slot, 0, Response.FOUND)
        elif isinstance(effect, effects.RewriteEntries):
            rewritten.append(effect.payloads.first_entry)
            todo += core.on_rewritten()
        elif isinstance(effect, effects.WriteMetadata):
            assert effect.metadata.last_entry == 0
            todo += core.on_metadata_written(effect.metadata, 2)
    assert rewritten == [0]
    assert core.state is RecoveryState.DONE


def test_wrong_password_at_a_bookie_is_decisive():
    core = RecoveryCore(5, LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES),)), 0)
    core.on_metadata_written(core.start()[0].metadata, 1)
    done = core.on_fence_answer(1, Response.FAILED, error=UnauthorizedAccess("no"))
    assert isinstance(done[0].error, UnauthorizedAccess)


def test_closed_ledger_is_taken_as_it_is_and_another_recoverers_close_is_adopted():
    metadata = LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES),))
    closed = metadata.closed(7, 70)
    assert RecoveryCore(5, closed, 3).start() == [effects.Recovered(closed)]
    core = RecoveryCore(5, metadata, 0)
    core.start()
    assert core.on_metadata_conflict(closed, 2) == [effects.Recovered(closed)]


def test_conflict_that_leaves_the_ledger_open_begins_again_from_what_is_stored():
    metadata = LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES),))
    core = RecoveryCore(5, metadata, 0)
    core.start()
    other = metadata.with_ensemble(10, ("b4", "b2", "b3")).in_recovery()
    done = core.on_metadata_conflict(other, 4)
    assert done[0] == effects.AbandonRewriting()
    assert [effect.bookie for effect in done[1:]] == ["b4", "b2", "b3"]
    assert core.lac == 9


def test_failed_rewrite_is_a_failed_recovery():
    """P07."""
    recovery = Recovery(held(b1=3, b2=3, b3=3))
    error = BookieUnavailable("no bookie to rewrite to")
    recovery.core.on_rewritten = lambda: recovery.core.on_rewrite_failed(error)
    assert recovery.run() == effects.Fail(error)


def test_recovery_that_failed_stays_so_whatever_its_compare_and_set_came_to():
    recovery = Recovery(held(b1=0, b2=0, b3=0))
    todo = recovery.core.start()
    failed = recovery.core.on_fence_answer(0, Response.FAILED, error=UnauthorizedAccess("another key"))
    assert isinstance(failed[0], effects.Fail)
    assert recovery.core.on_metadata_written(todo[0].metadata, 1) == []
    assert recovery.core.on_metadata_conflict(recovery.metadata.in_recovery(), 1) == []


def test_failure_of_the_rewriting_writer_after_its_entries_are_safe_changes_nothing():
    recovery = Recovery(held(b1=3, b2=3, b3=3))
    todo = list(recovery.core.start())
    while recovery.core.state is not RecoveryState.CLOSING:
        todo += recovery.perform(todo.pop(0))
    assert recovery.core.on_rewrite_failed(BookieUnavailable("no bookie left")) == []
    assert recovery.core.state is RecoveryState.CLOSING


def test_bookies_that_refuse_load_are_asked_again_until_they_answer():
    for refusals in ({"b1": 9, "b2": 9, "b3": 9}, {"b1": 300, "b2": 20}):
        recovery = Recovery(held(b1=40, b2=40, b3=39), refusals=dict(refusals))
        assert closed_at(recovery) == 39
        assert recovery.rewritten == list(range(40))


def test_refusal_is_not_an_answer_and_covers_nothing():
    recovery = Recovery(held(), dead={"b3"})
    core = recovery.core
    todo = core.start()
    fences = core.on_metadata_written(todo[0].metadata, 1)
    assert len(fences) == 3
    assert core.on_fence_answer(0, Response.NEGATIVE) == []
    (rest,) = core.on_fence_answer(1, Response.REFUSED)
    assert core.on_fence_answer(2, Response.FAILED, error=AWAY) == []
    assert core.state is RecoveryState.FENCING
    assert core.on_backoff_over(rest.slot) == [effects.Fence(1, "b2")]


def test_pause_doubles_up_to_its_limit_and_starts_again_after_an_answer():
    recovery = Recovery(held(b1=4, b2=4, b3=4), refusals={"b1": 12})
    core = recovery.core
    todo = core.start()
    core.on_metadata_written(todo[0].metadata, 1)
    pauses = []
    for _ in range(10):
        (rest,) = core.on_fence_answer(0, Response.REFUSED)
        pauses.append(rest.delay_ns // 1_000_000)
        core.on_backoff_over(0)
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 500, 500, 500]
    core.on_fence_answer(0, Response.NEGATIVE)
    core.on_fence_answer(1, Response.NEGATIVE)
    (rest,) = [effect for effect in read_answer(core, 0, 0, Response.REFUSED) if isinstance(effect, effects.BackOff)]
    assert rest.delay_ns == 5_000_000


def test_dead_bookie_is_asked_for_one_window_whatever_the_number_of_entries():
    """A dead bookie costs at most one time-out, not one per entry."""
    recovery = Recovery(held(b1=2000, b2=2000, b3=2000), dead={"b1"})
    assert closed_at(recovery) == 1999
    assert [bookie for bookie, _ in recovery.reads].count("b1") == 0
    # One that dies after the fence is asked once more, for one window.
    dying = Recovery(held(b1=2000, b2=2000, b3=2000))
    perform = dying.perform

    def dies_after_the_fence(effect):
        if isinstance(effect, effects.RecoveryRead):
            dying.dead.add("b1")
        return perform(effect)

    dying.perform = dies_after_the_fence
    assert closed_at(dying) == 1999
    assert [bookie for bookie, _ in dying.reads].count("b1") == 1


def test_entries_that_the_fences_reported_are_one_window_with_its_end():
    recovery = Recovery(held(b1=3000, b2=3000, b3=2990))
    assert closed_at(recovery) == 2999
    assert recovery.windows == [3000]


def test_entries_after_those_that_the_fences_reported_are_found():
    """The bookie that has more was not heard, the other two were coverage; it is asked first for entry 5."""
    recovery = Recovery(held(b1=5, b2=5, b3=40))
    assert closed_at(recovery) == 5
    assert recovery.windows == [6]


@pytest.mark.parametrize("tells_last", [True, False])
def test_window_is_bounded_in_entries_and_in_bytes(tells_last):
    many = Recovery(held(b1=20_000, b2=20_000, b3=20_000))
    many.tells_last = tells_last
    assert closed_at(many) == 19_999
    assert WINDOW_ENTRIES_MAX // 2 < max(many.windows) <= WINDOW_ENTRIES_MAX
    large = Recovery(held(b1=60, b2=60, b3=60))
    large.tells_last, large.entry = tells_last, bytes(WINDOW_BYTES_MAX // 7)
    assert closed_at(large) == 59
    assert max(large.windows) == 7


def test_lost_entry_in_the_middle_is_the_end_whatever_follows():
    """Entries above the first missing one were never acknowledged."""
    recovery = Recovery({bookie: set(range(100)) - {40} for bookie in BOOKIES})
    assert closed_at(recovery) == 39


def fenced_with(lies, fragments=ONE_FRAGMENT):
    """Play a recovery whose bookies answer the fence with `lies`, (last entry, LAC, length), and hold nothing."""
    core = RecoveryCore(5, LedgerMetadata(3, 3, 2, fragments, state=LedgerState.IN_RECOVERY), 0)
    todo = list(core.start())
    while todo:
        effect = todo.pop(0)
        if isinstance(effect, effects.Fence):
            last_entry, lac, length = lies[effect.slot]
            todo += core.on_fence_answer(effect.slot, Response.FOUND, lac, length, last_entry=last_entry)
        elif isinstance(effect, effects.RecoveryRead):
            todo += read_answer(core, effect.slot, effect.entry_ids, Response.NEGATIVE)
        elif isinstance(effect, effects.ReadLength):
            todo += core.on_length(None)
        elif isinstance(effect, effects.WriteMetadata):
            todo += core.on_metadata_written(effect.metadata, 1)
        else:
            return core, effect
    return core, None


@pytest.mark.parametrize("lac", [3, 10**12, 2**62, 2**63 - 1, -2, -(2**63)])
def test_lac_that_is_not_below_its_own_entry_is_not_an_answer_to_a_fence(lac):
    """One bit flipped in a header without a digest closed the ledger at 1,000,000,000,000."""
    core, outcome = fenced_with([(3, lac, 5), (3, 2, 5), (3, 2, 5)])
    assert isinstance(outcome, effects.Recovered)
    assert core.lac == 2
    assert outcome.metadata.last_entry == 2
    core, outcome = fenced_with([(3, lac, 5), (3, lac, 5), (3, 2, 5)])
    assert isinstance(outcome, effects.Fail)
    assert "carries LAC" in str(outcome.error)


def test_copy_of_an_earlier_entry_at_a_bookie_of_the_last_fragment_is_an_answer():
    """Apache's re-replication seals a copy with the LAC of its handle. Such a copy may be a bookie's last entry."""
    fragments = (Fragment(0, BOOKIES), Fragment(10, ("b4", "b5", "b6")))
    core, outcome = fenced_with([(4, 12, 5), (4, 12, 5), (4, 12, 5)], fragments)
    assert outcome.metadata.last_entry == 9
    assert core.lac == 9


def test_highest_entry_id_is_recovered_without_arithmetic_beyond_63_bits():
    top = 2**63 - 2
    recovery = Recovery({bookie: {top} for bookie in BOOKIES}, fragments=(Fragment(0, BOOKIES), Fragment(top, BOOKIES)))
    recovery.lacs = dict.fromkeys(BOOKIES, top - 1)
    assert closed_at(recovery) == top
    assert recovery.reads == [("b1", [top])]


@pytest.mark.parametrize("length", [-5, -(2**63), 2**63 - 1])
def test_impossible_length_in_an_entry_does_not_end_the_recovery(length):
    _, outcome = fenced_with([(3, 2, length)] * 3)
    assert outcome.metadata.last_entry == 2
    assert 0 <= outcome.metadata.length < 2**63
    core = RecoveryCore(5, LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),), state=LedgerState.IN_RECOVERY), 0)
    core.start()
    core.on_fence_answer(0, Response.FOUND, -1, 10, last_entry=0)
    found = np.array([Response.FOUND, Response.NEGATIVE], np.uint8)
    (rewrite,) = core.on_read_answers(0, np.arange(2), found, [b"x" * 10, None], np.array([length, 0]))
    assert rewrite.length_before >= 0
    (written,) = core.on_rewritten()
    assert 0 <= written.metadata.length < 2**63


def fencing(quorums=(3, 3, 2), first_entry=0):
    """A core whose ledger is claimed, waiting for fences."""
    fragments = (Fragment(0, BOOKIES),) if not first_entry else (Fragment(0, BOOKIES), Fragment(first_entry, BOOKIES))
    core = RecoveryCore(5, LedgerMetadata(*quorums, fragments, state=LedgerState.IN_RECOVERY), 0)
    fences = core.start()
    assert fences == [effects.Fence(slot, bookie) for slot, bookie in enumerate(BOOKIES)]
    return core


@pytest.mark.parametrize("lacs", [(5, 3), (3, 5), (5, 5)])
def test_lac_never_falls_with_a_later_answer(lacs):
    core = fencing()
    core.on_fence_answer(0, Response.FOUND, lacs[0], 70, last_entry=6)
    core.on_fence_answer(1, Response.FOUND, lacs[1], 70, last_entry=6)
    assert core.state is RecoveryState.READING
    assert core.lac == 5
    assert core.last_entry == 5


def test_lac_below_the_last_fragment_does_not_lower_where_reading_begins():
    core = fencing(first_entry=100)
    for slot in range(2):
        core.on_fence_answer(slot, Response.FOUND, 40, 500, last_entry=101)
    assert (core.lac, core.last_entry) == (99, 99)


def test_length_is_that_of_the_entry_with_the_highest_lac():
    """It is the ledger's length when nothing is rewritten and no bookie has the last entry any more."""
    core = fencing()
    core.on_fence_answer(0, Response.FOUND, 4, 55, last_entry=5)
    todo = core.on_fence_answer(1, Response.FOUND, 3, 44, last_entry=4)
    while core.state is RecoveryState.READING:
        read = todo.pop(0)
        todo += read_answer(core, read.slot, read.entry_ids, Response.NEGATIVE)
    assert core.state is RecoveryState.MEASURING
    (written,) = core.on_length(None)
    assert (written.metadata.last_entry, written.metadata.length) == (4, 55)


def test_length_is_that_of_an_entry_that_confirms_just_the_entries_before_the_fragment():
    fragments = (Fragment(0, BOOKIES), Fragment(100, ("b1", "b2", "b4")))
    _, outcome = fenced_with([(100, 99, 500), (100, 99, 500), (100, 99, 500)], fragments)
    assert (outcome.metadata.last_entry, outcome.metadata.length) == (99, 500)


def test_bookie_that_reaches_less_far_makes_no_window_smaller():
    for others in ({"b1": range(200), "b2": range(100)}, {"b1": range(100), "b2": range(200)}):
        recovery = Recovery({**others, "b3": range(200)})
        assert closed_at(recovery) == 199
        assert recovery.windows == [200]


def test_recovery_fails_while_the_last_entry_may_be_held_by_a_bookie_that_is_not_heard():
    """The length heard is that of a later entry: the ledger would be closed with bytes that it does not have."""
    core = fencing()
    core.on_fence_answer(0, Response.FOUND, 0, 100, last_entry=9)
    todo = core.on_fence_answer(1, Response.NEGATIVE)
    while core.state is RecoveryState.READING:
        read = todo.pop(0)
        todo += read_answer(core, read.slot, read.entry_ids, Response.NEGATIVE)
    assert core.state is RecoveryState.MEASURING
    (failed,) = core.on_length(None, RequestTimeout("b1 is silent", bookie="b1"))
    assert isinstance(failed.error, LedgerRecoveryFailed)
    assert "entry 0, the last one, could not be read (b1 is silent)" in str(failed.error)


def test_states_of_a_recovery_are_reported_as_it_runs():
    metadata = LedgerMetadata(3, 3, 2, (Fragment(0, BOOKIES),))
    closed = RecoveryCore(5, metadata.closed(7, 70), 3)
    closed.start()
    assert closed.state is RecoveryState.DONE
    core = RecoveryCore(5, metadata, 0)
    (claim,) = core.start()
    assert (core.state, claim.metadata.state, claim.expected_version) == (
        RecoveryState.CLAIMING,
        LedgerState.IN_RECOVERY,
        0,
    )
    core.on_metadata_written(claim.metadata, 8)
    assert (core.state, core.version) == (RecoveryState.FENCING, 8)
    core.on_metadata_conflict(metadata.closed(7, 70), 9)
    assert core.state is RecoveryState.DONE


def test_recovery_fails_when_the_metadata_store_cannot_be_asked():
    core = fencing()
    assert core.on_metadata_failed(AWAY) == [effects.Fail(AWAY)]
    assert core.state is RecoveryState.FAILED
    assert core.on_fence_answer(0, Response.NEGATIVE) == []
    assert core.on_fence_answer(1, Response.NEGATIVE) == []
    assert core.state is RecoveryState.FAILED


def reading(last_entry=3):
    """A core that reads entries from 0 on; slots 0 and 1 are fenced."""
    core = fencing()
    for slot in range(2):
        core.on_fence_answer(slot, Response.FOUND, -1, 10 * (last_entry + 1), last_entry=last_entry)
    assert core.state is RecoveryState.READING
    return core


def test_answers_after_the_end_of_reading_change_nothing():
    core = reading(last_entry=0)
    (rewrite,) = [
        *core.on_read_answers(0, np.array([0]), np.full(1, Response.FOUND, np.uint8), [b"x" * 10], np.array([10])),
        *core.on_read_answers(1, np.array([1]), np.full(1, Response.NEGATIVE, np.uint8)),
        *core.on_read_answers(2, np.array([1]), np.full(1, Response.NEGATIVE, np.uint8)),
        *core.on_read_answers(0, np.array([1]), np.full(1, Response.NEGATIVE, np.uint8)),
    ][-1:]
    assert isinstance(rewrite, effects.RewriteEntries)
    assert core.state is RecoveryState.REWRITING
    assert core.on_read_answers(2, np.array([0, 1]), np.full(2, Response.NEGATIVE, np.uint8)) == []
    assert core.state is RecoveryState.REWRITING
    assert core.on_backoff_over(2) == []


def test_error_of_one_bookie_in_the_middle_of_reading_is_made_up_for_by_the_next():
    core = reading(last_entry=0)
    done = read_answer(core, 0, 0, Response.FAILED, error=AWAY)
    (read,) = [effect for effect in done if isinstance(effect, effects.RecoveryRead) and 0 in effect.entry_ids][:1]
    assert read.slot == 1


def test_lengths_of_several_entries_together_stay_below_63_bits():
    core = RecoveryCore(5, LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),), state=LedgerState.IN_RECOVERY), 0)
    core.start()
    core.on_fence_answer(0, Response.FOUND, -1, 10, last_entry=2)
    found = np.array([Response.FOUND] * 3 + [Response.NEGATIVE], np.uint8)
    lengths = np.array([2**63 - 1] * 3 + [0])
    (rewrite,) = core.on_read_answers(0, np.arange(4), found, [b"x" * 10] * 3 + [None], lengths)
    assert rewrite.length_before == 2**63 - 1 - 30
    (written,) = core.on_rewritten()
    assert written.metadata.length == 2**63 - 1


def alone(last_entry, length):
    """A core with one bookie that reported its last entry; return it and the ids that it reads first."""
    core = RecoveryCore(5, LedgerMetadata(1, 1, 1, (Fragment(0, ("b1",)),), state=LedgerState.IN_RECOVERY), 0)
    core.start()
    (read,) = core.on_fence_answer(0, Response.FOUND, -1, length, last_entry=last_entry)
    return core, read.entry_ids.tolist()


@pytest.mark.parametrize(
    ("last_entry", "length", "count"),
    [
        (0, 10, 2),
        (100, WINDOW_BYTES_MAX, 102),
        (100, WINDOW_BYTES_MAX + 1, WINDOW_FIRST),
        (WINDOW_ENTRIES_MAX - 2, 10, WINDOW_ENTRIES_MAX),
        (WINDOW_ENTRIES_MAX - 1, 10, WINDOW_FIRST),
    ],
)
def test_all_entries_that_a_bookie_reported_are_one_window_unless_too_large(last_entry, length, count):
    assert alone(last_entry, length)[1] == list(range(count))


def test_bytes_that_were_read_already_do_not_count_for_the_next_window():
    """The length that a bookie tells is cumulative."""
    core, first = alone(WINDOW_FIRST + 99, WINDOW_BYTES_MAX + 10)
    found = np.full(len(first), Response.FOUND, np.uint8)
    payloads = [b"x"] * len(first)
    core.on_read_answers(0, np.array(first), found, payloads, np.arange(1, len(first) + 1) + 100)
    assert core.length == len(first) + 100
    (read,) = core.on_rewritten()
    assert read.entry_ids.tolist() == list(range(WINDOW_FIRST, WINDOW_FIRST + 101))


def test_entry_that_was_refused_is_read_again_after_the_pause():
    core, _ = alone(0, 10)
    answers = np.array([Response.FOUND, Response.REFUSED], np.uint8)
    (rest,) = core.on_read_answers(0, np.arange(2), answers, [b"x" * 10, None], np.array([10, 0]))
    assert rest == effects.BackOff(0, 5_000_000)
    (read,) = core.on_backoff_over(0)
    assert (read.slot, read.entry_ids.tolist()) == (0, [1])
    assert core.on_backoff_over(0) == []


def test_ensemble_too_large_for_masks_is_a_failed_recovery():
    """Other peers may store up to 1,000 bookies a fragment; ours recover up to 64."""
    metadata = LedgerMetadata(65, 3, 2, (Fragment(0, tuple(f"b{slot}:1" for slot in range(65))),))
    (failed,) = RecoveryCore(5, metadata, 0).start()
    assert isinstance(failed, effects.Fail)
    assert isinstance(failed.error, LedgerRecoveryFailed)
    assert "an ensemble of 65 bookies" in str(failed.error)


def test_striped_entries_are_asked_of_their_write_sets_alone():
    """3/2/2: bookie n mod 3 and the next one have entry n."""
    holders = {
        bookie: {entry for entry in range(9) if slot in write_set(entry, 3, 2)} for slot, bookie in enumerate(BOOKIES)
    }
    recovery = Recovery(holders, quorums=(3, 2, 2))
    assert closed_at(recovery) == 8
    for bookie, ids in recovery.reads:
        assert all(BOOKIES.index(bookie) in write_set(entry, 3, 2) for entry in ids)


def test_copy_of_the_last_entry_before_the_fragment_does_not_make_the_first_window_small():
    fragments = (Fragment(0, BOOKIES), Fragment(1000, ("b4", "b5", "b6")))
    recovery = Recovery({bookie: {999} for bookie in ("b4", "b5", "b6")}, fragments=fragments)
    assert closed_at(recovery) == 999
    asked = {entry for _, ids in recovery.reads for entry in ids}
    assert asked == {*range(1000, 1000 + WINDOW_FIRST)}


def test_answers_after_the_failure_of_a_recovery_change_nothing():
    recovery = Recovery(held(b1=3, b2=3, b3=3))
    core = recovery.core
    todo, reads = list(core.start()), []
    while todo:
        effect = todo.pop(0)
        if isinstance(effect, effects.RecoveryRead):
            reads.append(effect)
        else:
            todo += recovery.perform(effect)
    refusal = UnauthorizedAccess("not yours")
    (failed,) = read_answer(core, reads[0].slot, reads[0].entry_ids, Response.FAILED, error=refusal)
    assert isinstance(failed, effects.Fail)
    assert failed.error is refusal
    assert core.state is RecoveryState.FAILED
    for slot in range(3):
        for answer in (Response.NEGATIVE, Response.FOUND, Response.REFUSED):
            assert read_answer(core, slot, reads[0].entry_ids, answer) == []
        assert read_answer(core, slot, reads[0].entry_ids, Response.FAILED, error=refusal) == []
        assert core.on_fence_answer(slot, Response.FAILED, error=refusal) == []
    assert core.state is RecoveryState.FAILED


def test_recovery_that_fails_names_the_first_error_of_a_bookie():
    core = RecoveryCore(5, LedgerMetadata(3, 3, 2, ONE_FRAGMENT), 0)
    core.start()
    core.on_metadata_written(core.metadata.in_recovery(), 1)
    core.on_fence_answer(0, Response.FAILED, error=BookieUnavailable("the first", bookie="b1"))
    core.on_fence_answer(1, Response.FAILED, error=RequestTimeout("the second", bookie="b2"))
    (failed,) = core.on_fence_answer(2, Response.NEGATIVE)
    assert "the first" in str(failed.error)
    assert failed.error.bookie == "b1"


def test_length_that_cannot_be_read_fails_the_recovery_with_the_first_error_of_all():
    fragments = (Fragment(0, BOOKIES), Fragment(1000, ("b4", "b5", "b6")))
    for earlier in (None, BookieUnavailable("the first")):
        core = RecoveryCore(5, LedgerMetadata(3, 3, 2, fragments), 0)
        core.start()
        core.on_metadata_written(core.metadata.in_recovery(), 1)
        answer = Response.NEGATIVE if earlier is None else Response.FAILED
        core.on_fence_answer(0, answer, error=earlier)
        todo = [*core.on_fence_answer(1, Response.NEGATIVE), *core.on_fence_answer(2, Response.NEGATIVE)]
        while not isinstance(todo[0], effects.ReadLength):
            read = todo.pop(0)
            todo += read_answer(core, read.slot, read.entry_ids, Response.NEGATIVE)
        (failed,) = core.on_length(None, ReadFailed("the last one"))
        assert "entry 999, the last one, could not be read" in str(failed.error)
        assert ("the first" if earlier else "(the last one)") in str(failed.error)


def test_ensemble_that_is_too_large_to_be_recovered_is_an_error_at_its_first_entry():
    bookies = tuple(f"b{number}" for number in range(65))
    core = RecoveryCore(5, LedgerMetadata(65, 2, 2, (Fragment(0, bookies),)), 0)
    (failed,) = core.start()
    assert (failed.error.ledger_id, failed.error.entry_id) == (5, 0)
    assert core.state is RecoveryState.FAILED
