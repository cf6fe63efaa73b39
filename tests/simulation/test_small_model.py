"""Every behaviour of a small cluster keeps what was acknowledged; the search finds a planted defect."""

from __future__ import annotations

import pytest

from tests.simulation.small_model import Model, ModelWithoutFencingReads, search


@pytest.mark.parametrize(("losses", "crashes"), [(1, 0), (0, 1)])
def test_every_state_of_two_of_two_with_a_fault_is_right(losses: int, crashes: int) -> None:
    """With more faults: `python -m tests.simulation.small_model`."""
    found = search(Model((2, 2, 2), 1, losses, crashes), 100_000)
    assert found.wrong == ""
    assert found.is_complete


def test_nearest_states_of_three_of_two_with_two_losses_and_a_crash_are_right() -> None:
    assert search(Model((3, 3, 2), entries=1), 8_000).wrong == ""


def test_search_finds_that_recovery_reads_must_fence() -> None:
    """P01, #2614: the shortest way has fifteen steps."""
    found = search(ModelWithoutFencingReads((3, 3, 2), entries=1, losses=0, crashes=0), 100_000)
    assert "was acknowledged, the ledger ends at" in found.wrong
    assert len(found.path) == 15
