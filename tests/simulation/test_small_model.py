"""Every behaviour of a small cluster keeps what was acknowledged; the search finds a planted defect."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bkspark.core.quorum import has_coverage, negatives_needed
from bkspark.core.striping import write_set, write_set_masks
from tests.simulation.small_model import Model, ModelWithoutFencingReads, search

ENSEMBLES = [
    (size, write_quorum, ack_quorum)
    for size in range(1, 7)
    for write_quorum in range(1, size + 1)
    for ack_quorum in range(1, write_quorum + 1)
]


def test_every_state_of_two_of_two_with_a_loss_is_right() -> None:
    found = search(Model((2, 2, 2), entries=1, losses=1, crashes=0), 100_000)
    assert found.wrong == ""
    assert found.is_complete


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2)])
def test_nearest_states_with_two_losses_and_a_crash_are_right(quorums: tuple[int, int, int]) -> None:
    """The rest: `python -m tests.simulation.small_model`."""
    assert search(Model(quorums, entries=1), 8_000).wrong == ""


def test_search_finds_that_recovery_reads_must_fence() -> None:
    """P01, #2614: the shortest way has fifteen steps."""
    found = search(ModelWithoutFencingReads((3, 3, 2), entries=1, losses=0, crashes=0), 100_000)
    assert "was acknowledged, the ledger ends at" in found.wrong
    assert len(found.path) == 15


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), ENSEMBLES)
def test_coverage_is_that_no_write_set_can_reach_qa_among_the_unheard(
    size: int, write_quorum: int, ack_quorum: int
) -> None:
    """P10: against brute force, over every set of bookies that answered."""
    for known in itertools.chain.from_iterable(itertools.combinations(range(size), n) for n in range(size + 1)):
        unheard = set(range(size)) - set(known)
        can_acknowledge = any(
            set(acknowledging) <= unheard
            for entry_id in range(size)
            for acknowledging in itertools.combinations(write_set(entry_id, size, write_quorum), ack_quorum)
        )
        assert has_coverage(set(known), size, write_quorum, ack_quorum) is not can_acknowledge


@pytest.mark.parametrize(("size", "write_quorum", "ack_quorum"), ENSEMBLES)
def test_negatives_needed_are_the_fewest_that_rule_an_acknowledgement_out(
    size: int, write_quorum: int, ack_quorum: int
) -> None:
    """Over every vector of votes (has it, has it not) of a write set."""
    fewest = negatives_needed(write_quorum, ack_quorum)
    for votes in itertools.product((True, False), repeat=write_quorum):
        if votes.count(False) >= fewest:
            assert votes.count(True) < ack_quorum
    assert write_quorum - (fewest - 1) >= ack_quorum


@pytest.mark.parametrize(("size", "write_quorum"), sorted({(size, quorum) for size, quorum, _ in ENSEMBLES}))
def test_masks_name_the_slots_of_each_write_set(size: int, write_quorum: int) -> None:
    ids = np.array([0, 1, 5, 17, 2**31 + 3, 2**40 + 1])
    for entry_id, mask in zip(ids.tolist(), write_set_masks(ids, size, write_quorum).tolist()):
        assert {slot for slot in range(size) if mask >> slot & 1} == {
            (entry_id + i) % size for i in range(write_quorum)
        }
