"""Every behaviour of a small cluster keeps what was acknowledged; the search finds a planted defect."""

from __future__ import annotations

import pytest

from tests.simulation.small_model import Model, ModelWithoutFencingReads, search


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
