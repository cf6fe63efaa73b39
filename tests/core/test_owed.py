"""Owed runs against sets: what a bookie owes follows from the ids that were sent to it and answered."""

import itertools
import random

import numpy as np
import pytest

from bkspark.core.slots import with_sent, without_answered
from bkspark.core.striping import Stripe, write_set


@pytest.mark.parametrize("quorums", [(1, 1), (3, 3), (3, 2), (3, 1), (5, 3), (6, 4)], ids=str)
def test_ranks_count_the_entries_that_a_slot_stores(quorums):
    for slot in range(quorums[0]):
        stripe = Stripe(slot, *quorums)
        stored = [entry for entry in range(60) if slot in write_set(entry, *quorums)]
        assert [stripe.rank(entry) for entry in stored] == list(range(len(stored)))
        assert [stripe.entry(rank) for rank in range(len(stored))] == stored
        assert stripe.ranks(np.arange(60)).tolist() == list(range(len(stored)))
        assert stripe.run(np.array(stored[3:11])) == (3, 11)
        assert stripe.run(np.array(stored[3:8] + stored[9:11])) is None
        assert stripe.run(np.array([stored[3], stored[3], stored[5]])) is None
        assert stripe.run(np.array(stored[3:11][::-1])) is None
        assert [stripe.rank(entry) for entry in range(60)] == [
            sum(other < entry for other in stored) for entry in range(60)
        ]


@pytest.mark.parametrize("seed", range(30))
def test_answers_in_any_order_take_away_what_was_owed(seed):
    chance = random.Random(seed)
    runs, owed, sent = (), set(), 0
    for _ in range(200):
        if chance.random() < 0.4:
            sent += chance.choice((0, 0, 1, 5))  # a gap: entries that were answered before it was left out
            count = chance.choice((1, 1, 4, 30))
            runs = with_sent(runs, sent, sent + count)
            owed.update(range(sent, sent + count))
            sent += count
            continue
        ids = sorted(owed) or [0]
        kind = chance.random()
        if kind < 0.4:
            answered = ids[: chance.randrange(1, len(ids) + 1)]
        elif kind < 0.7:
            answered = ids[chance.randrange(2) :: 2] or [sent + 5]
        else:
            answered = [chance.randrange(sent + 10) for _ in range(chance.randrange(1, 20))]
        runs = without_answered(runs, np.array(answered))
        owed -= set(answered)
        assert {rank for begin, end in runs for rank in range(begin, end)} == owed
        assert all(begin < end for begin, end in runs)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(runs))


def test_nothing_owed_is_taken_away_from():
    assert without_answered((), np.arange(3)) == ()
    assert without_answered(((5, 7),), np.arange(0)) == ((5, 7),)
    assert without_answered(((5, 7),), np.arange(0, 5)) == ((5, 7),)


def test_answers_with_any_ids_overflow_nothing():
    """A hostile bookie answers for entries that cannot exist."""
    with np.errstate(all="raise"):
        for ids in ([-(2**63), 5], [-(2**63), -(2**63) + 1, 2**63 - 1], [2**63 - 1, -(2**63)], [2**63 - 1]):
            expected = ((6, 8),) if 5 in ids else ((5, 8),)
            assert without_answered(((5, 8),), np.array(ids)) == expected
