"""What may be done to a ledger that lacks copies, and when metadata may say so (docs/reliability.md, A1 to A5, M2)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from bkspark.core.copies import settled_fragments, stored_entries
from bkspark.core.effects import WriteMetadata
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.placement import FLAT, Topology
from bkspark.core.striping import write_set
from bkspark.errors import BookieUnavailable, MetadataError, NoSuchLedger, NotEnoughBookies, ReadFailed
from bookie_service.replication.repair import (
    CONFLICTS_MAX,
    TARGETS_TRIED_MAX,
    CopyEntries,
    Effect,
    Ended,
    InspectCopies,
    Outcome,
    RecoverLedger,
    RepairBookies,
    RepairCore,
)
from bookie_service.replication.repair_targets import RepairTargets

ERROR = BookieUnavailable("it went away")


def closed(*fragments: tuple[int, str], last_entry: int = 29) -> LedgerMetadata:
    """A closed ledger with E = Qw = 3; each fragment is its first entry and its bookies, one letter each."""
    return opened(*fragments, state=LedgerState.CLOSED, last_entry=last_entry, length=7 * (last_entry + 1))


def opened(*fragments: tuple[int, str], **facts: object) -> LedgerMetadata:
    rows = tuple(Fragment(first_entry, tuple(bookies)) for first_entry, bookies in fragments)
    return LedgerMetadata(3, 3, 2, rows, **{"custom_metadata": {"k": b"v"}, "ctime": 5, **facts})


def core(metadata: LedgerMetadata, *, lost: str = "a", alive: str = "bcdef", **more: object) -> RepairCore:
    of_bookies = {name: more.pop(name) for name in ("writable", "registered", "leaving") if name in more}
    facts = {"reported": lost, "writable": alive, "registered": alive, **of_bookies}
    topology = more.pop("topology", FLAT)
    bookies = RepairBookies(**{name: frozenset(ids) for name, ids in facts.items()}, topology=topology)
    return RepairCore(7, metadata, 3, bookies, RepairTargets(more.pop("random", Random(1))), **more)


def only(todo: list[Effect]) -> Effect:
    assert len(todo) == 1
    return todo[0]


def outcome(todo: list[Effect]) -> Outcome:
    ended = only(todo)
    assert isinstance(ended, Ended)
    assert (ended.error is not None) == (ended.outcome is Outcome.DEFERRED)
    return ended.outcome


def test_a1_metadata_name_the_new_bookie_only_once_it_has_acknowledged_every_entry() -> None:
    repair = core(closed((0, "abc")), alive="bcd")
    copy = only(repair.start())
    assert isinstance(copy, CopyEntries)
    assert (copy.fragment.first_entry, copy.end_entry) == (0, 30)
    assert [(each.slot, each.target, each.missing) for each in copy.copies] == [(0, "d", None)]
    write = only(repair.on_copied())
    assert isinstance(write, WriteMetadata)
    assert write.expected_version == 3
    assert write.metadata == closed((0, "dbc"))
    assert outcome(repair.on_metadata_written(write.metadata, 4)) is Outcome.COMPLETE


def test_m2_only_names_of_bookies_change() -> None:
    before = closed((0, "abc"), (10, "bcd"), (20, "cab"))
    repair = core(before)
    todo = repair.start()
    while not isinstance(only(todo), Ended):
        effect = only(todo)
        if isinstance(effect, WriteMetadata):
            assert replace(effect.metadata, fragments=before.fragments) == before
            assert [row.first_entry for row in effect.metadata.fragments] == [0, 10, 20]
            todo = repair.on_metadata_written(effect.metadata, effect.expected_version + 1)
        else:
            todo = repair.on_copied()
    assert outcome(todo) is Outcome.COMPLETE
    assert repair.metadata.fragments[1] == before.fragments[1]
    assert all("a" not in row.bookies and len(set(row.bookies)) == 3 for row in repair.metadata.fragments)


def test_a3_open_last_fragment_is_left_alone_for_the_grace_period_and_the_others_are_not() -> None:
    repair = core(opened((0, "abc"), (10, "abd")), alive="bcde")
    copy = only(repair.start())
    assert (copy.fragment.first_entry, copy.end_entry) == (0, 10)
    write = only(repair.on_copied())
    assert "a" not in write.metadata.fragments[0].bookies
    assert write.metadata.fragments[1].bookies == tuple("abd")
    assert outcome(repair.on_metadata_written(write.metadata, 4)) is Outcome.OPEN


def claimed(metadata: LedgerMetadata, *, alive: str) -> RepairCore:
    """Return the repair of an open ledger that it has claimed for recovery."""
    repair = core(metadata, alive=alive, may_recover=True)
    claim = only(repair.start())
    assert claim == WriteMetadata(replace(metadata, state=LedgerState.IN_RECOVERY), 3)
    assert isinstance(only(repair.on_metadata_written(claim.metadata, 4)), RecoverLedger)
    return repair


def test_a3_an_owner_that_leaves_the_lost_bookie_at_the_last_moment_is_not_fenced() -> None:
    repair = core(opened((0, "abc")), alive="bcd", may_recover=True)
    only(repair.start())
    copy = only(repair.on_metadata_conflict(opened((0, "abc"), (5, "dbc")), 4))
    assert (copy.fragment.first_entry, copy.end_entry) == (0, 5)
    write = only(repair.on_copied())
    assert outcome(repair.on_metadata_written(write.metadata, 5)) is Outcome.COMPLETE
    # It left another bookie: the fragment is a new one, and so is its grace period.
    repair = core(opened((0, "abc")), alive="bcd", may_recover=True)
    only(repair.start())
    assert outcome(repair.on_metadata_conflict(opened((0, "adc")), 4)) is Outcome.OPEN


def test_a3_a_claim_that_another_change_of_the_metadata_met_is_made_again_at_once() -> None:
    """The last fragment is the same, so its owner has not replaced the lost bookie: the grace period is over."""
    repair = core(opened((0, "bcd"), (5, "abc")), alive="bcd", may_recover=True)
    only(repair.start())
    current = opened((0, "ecd"), (5, "abc"))
    assert only(repair.on_metadata_conflict(current, 4)) == WriteMetadata(
        replace(current, state=LedgerState.IN_RECOVERY), 4
    )


def test_a3_a_bookie_that_was_not_reported_is_not_a_reason_to_fence_a_ledger() -> None:
    """It may be stopped for maintenance, and an operator has another one moved."""
    repair = core(opened((0, "xbc")), lost="a", alive="bcd", may_recover=True)
    assert outcome(repair.start()) is Outcome.COMPLETE


def test_a3_a_bookie_that_serves_and_does_not_answer_us_is_not_a_reason_to_fence_a_ledger() -> None:
    repair = core(opened((0, "abc"), (5, "abd")), alive="abcde", may_recover=True)
    look = only(repair.start())
    copy = only(repair.on_inspected(look, None))
    assert copy.copies[0].slot == 0
    write = only(repair.on_copied())
    assert outcome(repair.on_metadata_written(write.metadata, 4)) is Outcome.COMPLETE


def test_a3_a_ledger_that_another_client_began_to_recover_is_recovered_at_once() -> None:
    repair = core(opened((0, "abc"), state=LedgerState.IN_RECOVERY), alive="bcd", may_recover=True)
    assert isinstance(only(repair.start()), RecoverLedger)


def test_a3_after_the_grace_period_the_ledger_is_closed_first_and_repaired_then() -> None:
    repair = claimed(opened((0, "abc")), alive="bcdef")
    todo = repair.on_recovered(closed((0, "abc"), last_entry=4), 5)
    for slot in (1, 2):
        assert (only(todo).slot, only(todo).end_entry) == (slot, 5)
        todo = repair.on_inspected(only(todo), np.empty(0, np.int64))
    copy = only(todo)
    assert (copy.fragment.first_entry, copy.end_entry) == (0, 5)
    assert only(repair.on_copied()).expected_version == 5


def test_every_bookie_of_a_recovered_fragment_gets_its_missing_entries() -> None:
    """A recovery ends with Qa copies, and may itself have put a bookie into the ensemble that has not everything."""
    repair = claimed(opened((0, "bcd"), (10, "abc")), alive="bcd")
    todo = repair.on_recovered(closed((0, "bcd"), (10, "dbc"), last_entry=19), 5)
    looked = []
    for _ in range(3):
        look = only(todo)
        assert isinstance(look, InspectCopies)
        looked.append((look.fragment.first_entry, look.slot))
        todo = repair.on_inspected(look, np.array([12, 13] if look.slot == 0 else [], np.int64))
    assert looked == [(10, 0), (10, 1), (10, 2)]
    assert [(copy.slot, copy.target, copy.missing.tolist()) for copy in only(todo).copies] == [(0, "d", [12, 13])]
    assert outcome(repair.on_copied()) is Outcome.COMPLETE


def test_every_fragment_that_a_recovery_made_of_the_last_one_is_checked() -> None:
    """It may have replaced a bookie in the middle of it: the entries before that have Qa copies, too."""
    repair = claimed(opened((0, "bcd"), (10, "abc")), alive="bcd")
    todo = repair.on_recovered(closed((0, "bcd"), (10, "abc"), (15, "dbc"), last_entry=19), 5)
    looked = []
    while isinstance(only(todo), InspectCopies):
        look = only(todo)
        looked.append((look.fragment.first_entry, look.slot))
        todo = repair.on_inspected(look, np.empty(0, np.int64))
        if isinstance(only(todo), CopyEntries):
            assert [(copy.slot, copy.target) for copy in only(todo).copies] == [(0, "d")]
            todo = repair.on_metadata_written(only(repair.on_copied()).metadata, 6)
    assert looked == [(10, 1), (10, 2), (10, 0), (15, 0), (15, 1), (15, 2)]
    assert outcome(todo) is Outcome.COMPLETE


def test_open_ledger_whose_last_fragment_names_no_lost_bookie_is_complete_and_never_fenced() -> None:
    repair = core(opened((0, "abc"), (10, "bcd")), may_recover=True)
    only(repair.start())
    write = only(repair.on_copied())
    assert outcome(repair.on_metadata_written(write.metadata, 4)) is Outcome.COMPLETE


@pytest.mark.parametrize("rows", [((0, "abc"),), ((0, "bcd"), (10, "abc"))], ids=["empty ledger", "empty fragment"])
def test_s36_where_nothing_is_to_be_copied_only_metadata_change(rows: tuple[tuple[int, str], ...]) -> None:
    repair = core(closed(*rows, last_entry=rows[-1][0] - 1))
    write = only(repair.start())
    assert isinstance(write, WriteMetadata)
    assert "a" not in write.metadata.last_fragment.bookies
    assert outcome(repair.on_metadata_written(write.metadata, 4)) is Outcome.COMPLETE


def test_s36_a_fragment_that_no_bookie_returns_does_not_keep_the_others_from_being_repaired() -> None:
    repair = core(closed((0, "abc"), (10, "abd"), (20, "abe")))
    only(repair.start())
    second = only(repair.on_unreadable(ReadFailed("entry 3 is damaged everywhere")))
    assert second.fragment.first_entry == 10
    todo = repair.on_copied()
    third = only(repair.on_metadata_written(only(todo).metadata, 4))
    assert third.fragment.first_entry == 20
    todo = repair.on_copied()
    ended = only(repair.on_metadata_written(only(todo).metadata, 5))
    assert ended.outcome is Outcome.DEFERRED
    assert "entry 3" in str(ended.error)
    assert repair.metadata.fragments[0].bookies == tuple("abc")


def test_a4_a_slot_that_another_worker_repaired_meanwhile_keeps_its_bookie() -> None:
    repair = core(closed((0, "abc")), alive="bcd")
    only(repair.start())
    only(repair.on_copied())
    assert outcome(repair.on_metadata_conflict(closed((0, "ebc")), 9)) is Outcome.COMPLETE


def test_a4_what_others_changed_elsewhere_is_kept_and_the_swap_is_tried_again_on_it() -> None:
    repair = core(closed((0, "abc"), (10, "bcd")), alive="bcd")
    only(repair.start())
    only(repair.on_copied())
    write = only(repair.on_metadata_conflict(closed((0, "abc"), (10, "xyd")), 9))
    assert write == WriteMetadata(closed((0, "dbc"), (10, "xyd")), 9)


def test_a_bookie_that_others_put_into_the_ensemble_meanwhile_is_not_named_twice() -> None:
    repair = core(closed((0, "abc")), alive="bde", lost="ac")
    first, second = (copy.target for copy in only(repair.start()).copies)
    only(repair.on_copied())
    copy = only(repair.on_metadata_conflict(closed((0, f"ab{first}")), 9))
    assert [(each.slot, each.target) for each in copy.copies] == [(0, second)]


def test_a_fragment_whose_end_moved_is_copied_again() -> None:
    repair = core(closed((0, "abc"), last_entry=9), alive="bcd")
    only(repair.start())
    only(repair.on_copied())
    again = only(repair.on_metadata_conflict(closed((0, "abc"), last_entry=19), 9))
    assert isinstance(again, CopyEntries)
    assert again.end_entry == 20


def test_a5_lost_compare_and_sets_end_some_time() -> None:
    repair = core(closed((0, "abc")), alive="bcd")
    only(repair.start())
    todo = repair.on_copied()
    for version in range(CONFLICTS_MAX):
        assert isinstance(only(todo), WriteMetadata)
        todo = repair.on_metadata_conflict(closed((0, "abc")), version)
    assert outcome(todo) is Outcome.DEFERRED


def test_a5_bookies_that_take_no_copies_are_left_for_others_a_few_times() -> None:
    repair = core(closed((0, "abc")), alive="bcdefgh")
    tried = []
    todo = repair.start()
    for _ in range(TARGETS_TRIED_MAX):
        target = only(todo).copies[0].target
        tried.append(target)
        todo = repair.on_copy_failed(target, ERROR)
    assert len(set(tried)) == TARGETS_TRIED_MAX
    assert outcome(todo) is Outcome.DEFERRED


def test_without_a_spare_bookie_the_ledger_is_deferred_and_the_operator_gets_a_remedy() -> None:
    ended = only(core(closed((0, "abc")), alive="bc").start())
    assert ended.outcome is Outcome.DEFERRED
    assert isinstance(ended.error, NotEnoughBookies)
    assert "start more bookies" in str(ended.error)


def test_a5_deleted_ledger_is_over() -> None:
    repair = core(closed((0, "abc")))
    only(repair.start())
    assert outcome(repair.on_gone()) is Outcome.GONE
    assert outcome(repair.on_metadata_failed(NoSuchLedger("deleted while its metadata were written"))) is Outcome.GONE
    assert outcome(claimed(opened((0, "abc")), alive="bcd").on_gone()) is Outcome.GONE


def test_failed_metadata_store_and_busy_bookie_defer() -> None:
    for fail in (RepairCore.on_metadata_failed, RepairCore.on_busy):
        repair = core(closed((0, "abc")))
        repair.start()
        assert outcome(fail(repair, MetadataError("away"))) is Outcome.DEFERRED


def test_a_bookie_that_serves_is_looked_at_and_gets_what_it_lacks() -> None:
    repair = core(closed((0, "abc")), alive="abcd")
    look = only(repair.start())
    assert look == InspectCopies(Fragment(0, tuple("abc")), 30, 0)
    copy = only(repair.on_inspected(look, np.array([3, 4])))
    assert [(each.slot, each.target, each.missing.tolist()) for each in copy.copies] == [(0, "a", [3, 4])]
    assert outcome(repair.on_copied()) is Outcome.COMPLETE


def test_a_bookie_that_lacks_more_than_fits_into_memory_gets_all_entries_of_its_slot_again() -> None:
    repair = core(closed((0, "abc")), alive="abcd")
    copy = only(repair.on_most_missing(only(repair.start())))
    assert [(each.slot, each.target, each.missing) for each in copy.copies] == [(0, "a", None)]
    assert outcome(repair.on_copied()) is Outcome.COMPLETE


def test_a_bookie_that_serves_and_lacks_nothing_stays() -> None:
    repair = core(closed((0, "abc"), (10, "abd")), alive="abcd")
    for _ in range(2):
        look = only(todo := repair.start())
        todo = repair.on_inspected(look, np.empty(0, np.int64))
    assert outcome(todo) is Outcome.COMPLETE


@pytest.mark.parametrize("holes", [None, np.array([3])], ids=["cannot be asked", "takes no writes"])
def test_a_bookie_that_cannot_be_given_what_it_lacks_is_replaced(holes: np.ndarray | None) -> None:
    repair = core(closed((0, "abc")), lost="a", alive="bcd", registered="abcd")
    look = only(repair.start())
    copy = only(repair.on_inspected(look, holes))
    assert [(each.slot, each.target, each.missing) for each in copy.copies] == [(0, "d", None)]


def test_a_bookie_that_cannot_be_asked_in_one_fragment_gets_no_copies_of_another() -> None:
    repair = core(closed((0, "abc"), (10, "bcd")), lost="ad", alive="abc")
    look = only(repair.start())
    assert look == InspectCopies(Fragment(0, tuple("abc")), 10, 0)
    assert outcome(repair.on_inspected(look, None)) is Outcome.DEFERRED


def test_a_bookie_that_does_not_take_its_own_missing_copies_is_replaced() -> None:
    repair = core(closed((0, "abc")), alive="abcd")
    look = only(repair.start())
    only(repair.on_inspected(look, np.array([3])))
    copy = only(repair.on_copy_failed("a", ERROR))
    assert [(each.slot, each.target, each.missing) for each in copy.copies] == [(0, "d", None)]


def test_only_reported_bookies_are_replaced_and_without_a_report_all_that_do_not_serve() -> None:
    assert outcome(core(closed((0, "abc")), lost="x", alive="bcd").start()) is Outcome.COMPLETE
    copy = only(core(closed((0, "abc")), lost="", alive="cdef").start())
    assert [each.slot for each in copy.copies] == [0, 1]


def test_a_new_bookie_is_chosen_so_that_the_write_set_spans_racks() -> None:
    racks = {"b": "/1", "c": "/1", "d": "/1", "e": "/2", "f": "/1"}
    for seed in range(20):
        repair = core(closed((0, "abc")), topology=Topology(racks), random=Random(seed))
        assert only(repair.start()).copies[0].target == "e"


def test_the_entries_of_a_slot_are_those_whose_write_set_has_it() -> None:
    for size in range(1, 7):
        for quorum in range(1, size + 1):
            fragment = Fragment(5, tuple("abcdef"[:size]))
            for slot in range(size):
                wanted = [id for id in range(5, 23) if slot in write_set(id, size, quorum)]
                assert stored_entries(fragment, 23, slot, quorum).tolist() == wanted


def test_an_open_ledger_adds_entries_only_to_its_last_fragment() -> None:
    rows = ((0, "abc"), (10, "bcd"))
    assert [end for _, end in settled_fragments(closed(*rows))] == [10, 30]
    assert [end for _, end in settled_fragments(opened(*rows))] == [10]
    assert [end for _, end in settled_fragments(opened(*rows, state=LedgerState.IN_RECOVERY))] == [10]


# ---- a bookie that leaves, and serves meanwhile ----


def test_leaving_bookie_is_replaced_after_its_copies_are_acknowledged() -> None:
    """A drain gives up no copy first: metadata name the new bookie only after the copies."""
    ledger = closed((0, "abc"), (10, "bcd"), (20, "acd"))
    leaving = core(ledger, lost="a", alive="abcdef", writable="bcdef", leaving="a")
    todo = only(leaving.start())
    assert isinstance(todo, CopyEntries)
    assert todo.fragment.first_entry == 0
    ((copy,),) = (todo.copies,)
    assert copy.slot == 0
    assert copy.target in "def"
    written = only(leaving.on_copied())
    assert isinstance(written, WriteMetadata)
    assert written.metadata.fragments[0].bookies == (copy.target, "b", "c")
    todo = only(leaving.on_metadata_written(written.metadata, 4))
    assert isinstance(todo, CopyEntries)
    assert todo.fragment.first_entry == 20, "fragments that do not name it are left alone"


def test_leaving_bookie_is_never_a_target_even_if_it_is_writable() -> None:
    ledger = closed((0, "abc"))
    leaving = core(ledger, lost="a", alive="abcd", leaving="a")
    todo = only(leaving.start())
    assert isinstance(todo, CopyEntries)
    assert todo.copies[0].target == "d"
    todo = only(leaving.on_copy_failed("d", ERROR))
    assert isinstance(todo, Ended)
    assert isinstance(todo.error, NotEnoughBookies)


def test_bookie_that_leaves_gets_no_copies_of_another_one() -> None:
    for seed in range(20):
        leaving = core(closed((0, "abc")), lost="a", alive="abcde", writable="bcde", leaving="ad", random=Random(seed))
        assert only(leaving.start()).copies[0].target == "e"


def test_other_bookies_are_left_alone_when_one_leaves() -> None:
    """One that is stopped for maintenance meanwhile must not be replaced by a drain of another one."""
    ledger = closed((0, "xbc"))
    assert outcome(core(ledger, lost="a", alive="abcdef", leaving="a").start()) is Outcome.COMPLETE


def test_open_last_fragment_waits_for_its_writer_to_leave() -> None:
    ledger = opened((0, "abc"))
    leaving = core(ledger, lost="a", alive="abcdef", writable="bcdef", leaving="a")
    assert outcome(leaving.start()) is Outcome.OPEN
    closing = core(ledger, lost="a", alive="abcdef", writable="bcdef", leaving="a", may_recover=True)
    claim = only(closing.start())
    assert isinstance(claim, WriteMetadata)
    assert claim.metadata.state is LedgerState.IN_RECOVERY


def test_first_error_of_a_ledger_is_the_one_that_is_reported() -> None:
    """The others are often its consequences."""
    repair = core(closed((0, "abc"), (10, "abd")), lost="a", alive="abcd")
    todo = repair.start()
    for error in (ReadFailed("the first"), ReadFailed("the second")):
        inspected = only(todo)
        assert isinstance(inspected, InspectCopies)
        todo = repair.on_inspected(inspected, np.array([inspected.fragment.first_entry]))
        assert isinstance(only(todo), CopyEntries)
        todo = repair.on_unreadable(error)
    ended = only(todo)
    assert isinstance(ended, Ended)
    assert (ended.outcome, str(ended.error)) == (Outcome.DEFERRED, "the first")
