"""The bookie's sync cursor: against a set of ids, and its bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bookie_service.engine.sync_cursor import RANGES_MAX, RUNS_MAX, SyncCursor, SyncCursors, ranges_of


def cursor_after(*runs, lac=-1):
    cursor = SyncCursor()
    cursor.on_confirmed(lac)
    cursor.on_synced(runs)
    return cursor


def test_cursor_follows_what_is_synced_in_order():
    assert cursor_after((0, 4), (5, 9)).last_synced == 9


def test_cursor_stops_before_an_entry_that_is_not_synced_and_passes_once_it_is():
    cursor = cursor_after((0, 1), (3, 5), (7, 8))
    assert (cursor.last_synced, cursor.ranges) == (1, ((3, 5), (7, 8)))
    cursor.on_synced([(2, 2)])
    assert (cursor.last_synced, cursor.ranges) == (5, ((7, 8),))
    cursor.on_synced([(6, 6)])
    assert (cursor.last_synced, cursor.ranges) == (8, ())


def test_ranges_that_touch_are_one():
    cursor = cursor_after((5, 6), (9, 10), (3, 4), (7, 7))
    assert cursor.ranges == ((3, 7), (9, 10))
    cursor.on_synced([(8, 8)])
    assert cursor.ranges == ((3, 10),)


def test_cursor_that_was_used_last_is_not_the_one_that_is_forgotten():
    cursors = SyncCursors(cursors_max=2)
    first, second = cursors.of(1), cursors.of(2)
    assert cursors.of(1) is first
    cursors.of(3)
    assert cursors.of(1) is first
    assert cursors.of(2) is not second


def test_lac_that_comes_with_an_add_moves_the_cursor_over_what_others_have():
    cursor = cursor_after((3, 5), (8, 9))
    cursor.on_confirmed(1)
    assert cursor.last_synced == 1
    cursor.on_confirmed(2)
    assert (cursor.last_synced, cursor.ranges) == (5, ((8, 9),))
    cursor.on_confirmed(3)
    assert cursor.last_synced == 5


def test_entry_taken_again_counts_as_not_synced_until_it_is():
    cursor = cursor_after((0, 9))
    cursor.on_taken([(4, 5)])
    assert (cursor.last_synced, cursor.ranges) == (3, ((6, 9),))
    cursor.on_synced([(4, 5)])
    assert cursor.last_synced == 9


@pytest.mark.parametrize("seed", range(40))
def test_cursor_agrees_with_a_set_of_synced_ids(seed):
    chance = random.Random(seed)
    cursor, synced = SyncCursor(), set()
    for _ in range(120):
        first = chance.randrange(60)
        run = (first, first + chance.randrange(6))
        kind = chance.random()
        if kind < 0.6:
            cursor.on_synced([run])
            synced.update(range(run[0], run[1] + 1))
        elif kind < 0.9:
            cursor.on_taken([run])
            synced.difference_update(range(run[0], run[1] + 1))
        else:
            cursor.on_confirmed(first - 30)
            synced.update(range(first - 29))
        prefix = next(entry for entry in range(100) if entry not in synced) - 1
        beyond = {entry for first, last in cursor.ranges for entry in range(first, last + 1)}
        assert cursor.last_synced == prefix
        assert beyond == {entry for entry in synced if entry > prefix}
        flat = [bound for run in cursor.ranges for bound in run]
        assert flat == sorted(flat)


def test_ranges_are_bounded_and_forgotten_ones_are_reported_as_not_synced():
    cursor = SyncCursor()
    for entry in range(2, 10 * RANGES_MAX, 2):
        cursor.on_synced([(entry, entry)])
    assert len(cursor.ranges) == RANGES_MAX
    cursor.on_synced([(0, 1)])
    cursor.on_synced([(entry, entry) for entry in range(3, 10 * RANGES_MAX, 2)])
    assert cursor.last_synced < 10 * RANGES_MAX


def test_cursors_are_bounded_and_a_forgotten_one_starts_again():
    cursors = SyncCursors(cursors_max=3)
    cursors.of(1).on_synced([(0, 5)])
    for ledger_id in (2, 3, 4):
        cursors.of(ledger_id)
    assert len(cursors) == 3
    assert cursors.of(1).last_synced == -1


@pytest.mark.parametrize(
    ("ids", "runs"),
    [([7], [(7, 7)]), ([0, 1, 2], [(0, 2)]), ([0, 2, 3, 5], [(0, 0), (2, 3), (5, 5)]), ([4, 3], [(4, 4), (3, 3)])],
)
def test_runs_are_what_came(ids, runs):
    assert ranges_of(np.array(ids)) == runs


def test_only_the_first_runs_between_many_gaps_are_tracked():
    assert ranges_of(np.arange(0, 1000, 2)) == [(entry, entry) for entry in range(0, 2 * RUNS_MAX, 2)]
