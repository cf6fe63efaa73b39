"""GroupRead: which replica is asked for which entry, and what a failure of all means."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.reader import AdaptiveReadSize, EntrySpan, GroupRead, groups, next_span
from bkspark.core.striping import write_set
from bkspark.errors import BookieUnavailable, NoSuchEntry, ProtocolError, ReadFailed

NOT_THERE = NoSuchEntry("not there")
AWAY = BookieUnavailable("away")


def read(held, replicas, count):
    """Play a group against replicas that hold what `held` says; return who gave which entry, and the error."""
    group = GroupRead(5, np.arange(count), replicas)
    given = []
    while len(group.missing):
        bookie = group.next_replica()
        if bookie is None:
            return given, group.error()
        answers = held[bookie]
        if answers is None:
            group.on_failure(AWAY)
            continue
        run = group.missing.tolist()
        run = run[: next((i for i, entry_id in enumerate(run) if entry_id not in answers), len(run))]
        given += [(entry_id, bookie) for entry_id in run]
        if run:
            group.on_entries(bookie, len(run), NOT_THERE)
        else:
            group.on_failure(NOT_THERE)
    return given, None


def test_replica_that_lacked_one_entry_is_asked_for_the_next():
    """With Qa < Qw replicas lack different entries, and each is readable while one bookie has it."""
    given, error = read({"b1": {1, 3}, "b2": {0, 2}}, ["b1", "b2"], 4)
    assert error is None
    assert [entry_id for entry_id, _ in given] == [0, 1, 2, 3]


def test_entry_that_no_replica_has_is_certainly_absent_whichever_lacked_earlier_ones():
    _, error = read({"b1": {1}, "b2": {0}}, ["b1", "b2"], 3)
    assert isinstance(error, NoSuchEntry)
    assert error.entry_id == 2


def test_absence_is_not_certain_while_a_replica_is_away():
    given, error = read({"b1": {0}, "b2": None, "b3": set()}, ["b1", "b2", "b3"], 2)
    assert given == [(0, "b1")]
    assert isinstance(error, ReadFailed)
    assert "away" in str(error)


def test_slow_replica_is_asked_beside_the_next_and_the_faster_one_becomes_the_first_to_ask():
    group = GroupRead(5, np.arange(4), ["b1", "b2", "b3"])
    assert (group.preferred_bookie, group.next_replica(), group.next_replica()) == ("b1", "b1", "b2")
    group.on_entries("b2", 2)
    assert group.missing.tolist() == [2, 3]
    assert [group.next_replica() for _ in range(4)] == ["b2", "b3", "b1", None]


def test_error_is_that_of_the_entry_that_is_missing_and_not_of_one_before_it():
    group = GroupRead(5, np.arange(2), ["b1", "b2"])
    assert [group.next_replica(), group.next_replica()] == ["b1", "b2"]
    group.on_failure(ReadFailed("of the first entry"))
    group.on_entries("b2", 1)
    assert [group.next_replica(), group.next_replica()] == ["b2", "b1"]
    group.on_failure(ReadFailed("of the second entry"))
    group.on_failure(NOT_THERE)
    assert "of the second entry" in str(group.error())


def test_absence_is_certain_only_when_slow_replicas_have_said_so_too():
    group = GroupRead(5, np.arange(1), ["b1", "b2"])
    assert [group.next_replica() for _ in range(3)] == ["b1", "b2", None]
    group.on_failure(NOT_THERE)
    assert isinstance(group.error(), ReadFailed)
    group.on_failure(NOT_THERE)
    assert isinstance(group.error(), NoSuchEntry)


def test_refusals_of_an_entry_are_final_whatever_failed_for_an_earlier_one():
    group = GroupRead(5, np.arange(2), ["b1", "b2"])
    group.next_replica()
    group.on_failure(ReadFailed("b1 is away"))
    group.next_replica()
    group.on_entries("b2", 1)
    for bookie in ("b2", "b1"):
        refusal = ReadFailed(f"{bookie} does not let this client read")
        refusal.is_refusal = True
        assert group.next_replica() == bookie
        group.on_failure(refusal)
    assert group.error().is_refusal


def test_group_takes_no_more_entries_than_it_asked_for():
    group = GroupRead(5, np.arange(3, 6), ["b1"])
    group.next_replica()
    with pytest.raises(ProtocolError, match="returned 4 entries of ledger 5 from 3 on, but 3 were requested"):
        group.on_entries("b1", 4)


def test_pace_goes_by_the_largest_entry_and_grows_to_twice_as_many_at_most() -> None:
    pace = AdaptiveReadSize(1000, 50)
    assert pace.entries == 8
    seen = []
    for largest in (10, 10, 10, 10, 100, 2000, 1, 1, 0, 0, 0, 0, 0, 0, 999):
        pace.on_entries(largest)
        seen.append(pace.entries)
    assert seen == [16, 32, 50, 50, 10, 1, 2, 4, 8, 16, 32, 50, 50, 50, 1]
    assert AdaptiveReadSize(1000, 3).entries == 3
    assert AdaptiveReadSize(1000, 500, 256).entries == 256
    # Entries of no bytes are as many as there may be, and no division by nothing.
    few = AdaptiveReadSize(5, 50)
    few.on_entries(0)
    assert few.entries == 5


# ---- which replicas are asked in which order ----

FIVE = ("b0", "b1", "b2", "b3", "b4")


def orders(span, write_quorum, preferred=None, **others):
    return {group.missing.item(0): list(group.replicas) for group in groups(span, 5, write_quorum, preferred, **others)}


@pytest.mark.parametrize("write_quorum", [1, 2, 3, 4])
def test_replicas_of_a_striped_entry_are_its_write_set_in_order(write_quorum):
    span = EntrySpan(7, 12, FIVE)
    expected = {entry: [FIVE[slot] for slot in write_set(entry, 5, write_quorum)] for entry in range(7, 12)}
    assert orders(span, write_quorum) == expected
    all_groups = groups(EntrySpan(7, 30, FIVE), 5, write_quorum, None)
    assert sorted(entry for group in all_groups for entry in group.missing.tolist()) == [*range(7, 30)]
    assert {(entry % 5) for entry in all_groups[1].missing.tolist()} == {8 % 5}


def test_preferred_replica_comes_first_slow_ones_later_and_those_that_failed_last():
    span = EntrySpan(0, 1, FIVE[:3])
    assert orders(span, 3) == {0: ["b0", "b1", "b2"]}
    assert orders(span, 3, "b2") == {0: ["b2", "b0", "b1"]}
    assert orders(span, 3, "b4") == {0: ["b0", "b1", "b2"]}
    assert orders(span, 3, avoided=frozenset({"b0"})) == {0: ["b1", "b2", "b0"]}
    assert orders(span, 3, slow=frozenset({"b0"})) == {0: ["b1", "b2", "b0"]}
    assert orders(span, 3, "b0", avoided=frozenset({"b0"}), slow=frozenset({"b1"})) == {0: ["b2", "b1", "b0"]}


def test_span_ends_with_its_fragment_and_has_that_ones_bookies():
    metadata = LedgerMetadata(1, 1, 1, (Fragment(0, ("a",)), Fragment(10, ("b",)), Fragment(20, ("c",))))
    assert next_span(metadata, 0, 100, 1000) == EntrySpan(0, 10, ("a",))
    assert next_span(metadata, 9, 100, 1000) == EntrySpan(9, 10, ("a",))
    assert next_span(metadata, 10, 100, 1000) == EntrySpan(10, 20, ("b",))
    assert next_span(metadata, 10, 15, 1000) == EntrySpan(10, 15, ("b",))
    assert next_span(metadata, 12, 100, 3) == EntrySpan(12, 15, ("b",))
    assert next_span(metadata, 25, 100, 1000) == EntrySpan(25, 100, ("c",))
