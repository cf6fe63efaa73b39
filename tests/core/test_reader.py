"""GroupRead: which replica is asked for which entry, and what a failure of all means."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.core.reader import AdaptiveReadSize, GroupRead
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


def test_absence_is_certain_only_when_slow_replicas_have_said_so_too():
    group = GroupRead(5, np.arange(1), ["b1", "b2"])
    assert [group.next_replica() for _ in range(3)] == ["b1", "b2", None]
    group.on_failure(NOT_THERE)
    assert isinstance(group.error(), ReadFailed)
    group.on_failure(NOT_THERE)
    assert isinstance(group.error(), NoSuchEntry)


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
