"""Round robin and coverage against their definitions, by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bkspark.core.quorum import has_coverage, negatives_needed
from bkspark.core.striping import mask_of, write_set, write_set_masks

SIZES = [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize(("size", "write_quorum"), sorted({(e, w) for e, w, _ in SIZES}))
def test_write_set_is_round_robin_also_for_ids_above_32_bits(size, write_quorum):
    for entry_id in [0, 1, 5, 6, 2**31 - 1, 2**31, 2**40 + 3]:
        expected = tuple((entry_id + i) % size for i in range(write_quorum))
        assert write_set(entry_id, size, write_quorum) == expected
        masks = write_set_masks(np.array([entry_id]), size, write_quorum)
        assert int(masks[0]) == mask_of(expected)


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), SIZES)
def test_coverage_holds_exactly_when_no_write_set_can_reach_qa_among_the_unknown(size, write_quorum, ack_quorum):
    """protocol.md, Fencing: (Qw - Qa) + 1 bookies of every write set; P10: checked over all vote vectors."""
    for known in itertools.chain.from_iterable(itertools.combinations(range(size), n) for n in range(size + 1)):
        unknown_can_ack = any(
            sum(slot not in known for slot in write_set(entry, size, write_quorum)) >= ack_quorum
            for entry in range(size)
        )
        assert has_coverage(known, size, write_quorum, ack_quorum) == (not unknown_can_ack)


def test_negatives_that_prove_absence_leave_fewer_than_qa_others():
    for _, write_quorum, ack_quorum in SIZES:
        assert write_quorum - negatives_needed(write_quorum, ack_quorum) == ack_quorum - 1
