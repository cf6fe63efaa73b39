"""Shares of places, runs of deferred adds, and the ranges of a sync cursor, each called directly and at its limits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from bkspark.errors import ConfigurationError
from bookie_service.engine.deferrals import Deferrals
from bookie_service.engine.shares import ShareLimits, Shares
from bookie_service.engine.sync_cursor import SyncCursor
from bookie_service.engine.turns import TurnLimits


@dataclass(frozen=True)
class Client:
    """A connection."""

    name: str
    address: str


ONE, SAME, OTHER = Client("one", "10.0.0.1"), Client("same", "10.0.0.1"), Client("other", "10.0.0.2")


def taken(shares: Shares, *peers: Client) -> list[bool]:
    return [shares.take(peer) for peer in peers]


# ---- shares ----


@pytest.mark.parametrize(
    ("places", "per_address", "expected"),
    [
        (1, 0, (1, 1, 1)),
        (2, 0, (2, 1, 1)),
        (3, 0, (3, 1, 1)),
        (40, 0, (40, 20, 10)),
        (40, 9, (40, 9, 4)),
        (7, 9, (7, 7, 3)),
    ],
)
def test_one_address_has_half_of_all_places_and_one_connection_half_of_those(
    places: int, per_address: int, expected: tuple[int, int, int]
) -> None:
    assert ShareLimits.of(places, per_address) == ShareLimits(*expected)


def test_each_limit_is_reached_by_itself() -> None:
    assert taken(Shares(ShareLimits(9, 9, 2)), ONE, ONE, ONE, SAME, SAME, SAME) == [True, True, False] * 2
    assert taken(Shares(ShareLimits(9, 3, 9)), ONE, SAME, ONE, SAME, OTHER) == [True, True, True, False, True]
    assert taken(Shares(ShareLimits(2, 9, 9)), ONE, OTHER, SAME, OTHER) == [True, True, False, False]


def test_place_that_is_given_back_can_be_taken_again() -> None:
    shares = Shares(ShareLimits(3, 2, 1))
    assert taken(shares, ONE, SAME, OTHER) == [True] * 3
    assert len(shares) == 3
    shares.give(ONE)
    assert (len(shares), taken(shares, SAME, ONE, ONE)) == (2, [False, True, False])
    for peer in (ONE, SAME, OTHER):
        shares.give(peer)
    assert len(shares) == 0
    assert taken(shares, ONE, SAME, OTHER) == [True] * 3


def test_nothing_is_kept_of_peers_that_have_no_place() -> None:
    shares = Shares(ShareLimits(1, 1, 1))
    assert taken(shares, ONE, OTHER, SAME) == [True, False, False]
    assert (list(shares._by_connection), list(shares._by_address)) == ([ONE], [ONE.address])
    shares.give(ONE)
    assert (len(shares._by_connection), len(shares._by_address)) == (0, 0)
    with pytest.raises(AssertionError):
        shares.give(ONE)


def test_limits_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="0"):
        ShareLimits(0, 1, 1)
    with pytest.raises(ConfigurationError, match="0"):
        TurnLimits(requests=0)


# ---- deferred adds ----


def ids(*entry_ids: int) -> np.ndarray:
    return np.array(entry_ids, np.int64)


def test_each_add_is_answered_with_what_is_synced_of_its_own_ledger() -> None:
    deferrals = Deferrals(1)
    adds = deferrals.take([(4, ids(0, 1), -1), (5, ids(0, 1, 2), -1)])
    deferrals.journaled(0, 1, adds)
    deferrals.on_durable(0, 1)
    assert adds.last_synced(ids(4, 5, 4, 6)).tolist() == [1, 2, 1, -1]
    one = deferrals.take([(4, ids(7), -1)])
    assert one.last_synced(ids(4, 4)).tolist() == [1, 1]
    assert one.last_synced(ids(4, 6, 4)).tolist() == [1, -1, 1], "adds of ledger 6 were refused"
    assert one.last_synced(ids(4)).dtype == np.int64
    both = deferrals.take([(4, ids(8), -1), (5, ids(8), -1)])
    assert both.last_synced(ids(5, 5)).tolist() == [2, 2]


def test_lac_in_an_add_counts_below_the_newest_entry_of_its_runs() -> None:
    deferrals = Deferrals(1)
    assert deferrals.take([(4, ids(3, 4, 9), 7)]).last_synced(ids(4)).tolist() == [7]
    assert deferrals.take([(5, ids(3, 4), 3)]).last_synced(ids(5)).tolist() == [3]
    assert deferrals.take([(6, ids(3, 4), 99)]).last_synced(ids(6)).tolist() == [3]


def test_adds_count_in_the_order_of_their_records_and_up_to_what_is_durable() -> None:
    deferrals = Deferrals(1)
    for sequence in (1, 2, 5):
        deferrals.journaled(0, sequence, deferrals.take([(4, ids(sequence - 1), -1)]))
    reached = []
    for durable in (0, 1, 4, 5):
        deferrals.on_durable(0, durable)
        reached.append([len(deferrals.waiting[0]), int(deferrals.take([(4, ids(99), -1)]).last_synced(ids(4))[0])])
    assert reached == [[3, -1], [2, 0], [1, 1], [0, 1]]


def test_runs_that_bypass_the_journal_and_continue_each_other_are_one() -> None:
    deferrals = Deferrals(1)
    for first in (0, 2, 5, 7, 8):
        deferrals.bypassed(deferrals.take([(4, ids(first, first + 1), -1)]))
    assert deferrals._unflushed[4][1] == [(0, 3), (5, 8), (8, 9)]
    deferrals.on_flush_begun()
    deferrals.on_flush_done(lambda ledger_id: False)
    assert deferrals.take([(4, ids(99), -1)]).last_synced(ids(4)).tolist() == [3]


# ---- the ranges of a cursor ----


def test_any_three_ranges_are_joined_exactly_where_they_touch() -> None:
    ranges = [(first, last) for first in range(2, 8) for last in range(first, 8)]
    for runs in itertools.product(ranges, repeat=3):
        cursor = SyncCursor()
        cursor.on_synced(runs)
        synced = {entry for first, last in runs for entry in range(first, last + 1)}
        expected = tuple(
            (first, next(last for last in range(first, 9) if last + 1 not in synced))
            for first in sorted(synced)
            if first - 1 not in synced
        )
        assert (cursor.last_synced, cursor.ranges) == (-1, expected)
