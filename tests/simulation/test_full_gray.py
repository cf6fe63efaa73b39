"""A writer goes on without a bookie that does not do its work, and takes it back: random schedules of the full tier."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.full_gray import GRAY_KINDS, TwoGraySchedule, run_gray
from tests.simulation.planted_gray import GRAY_MUTANTS, GrayMutant

SCHEDULES = 12
MUTANT_SCHEDULES = 24


@pytest.mark.long(reason="11 s of processor time; the hunts below run the same schedules, and .ci/run has this one")
def test_writer_is_not_held_back_by_a_gray_bookie_and_takes_it_back() -> None:
    faults: Counter[str] = Counter()
    for seed in range(1, SCHEDULES + 1):
        outcome = run_gray(seed)
        assert outcome.violations == [], f"seed {seed}"
        faults.update(outcome.history.faults)
    assert set(faults) <= set(GRAY_KINDS)
    assert len(faults) >= len(GRAY_KINDS) - 1


@pytest.mark.parametrize("seed", range(1, 5))
def test_writer_is_not_held_back_by_two_gray_bookies_and_takes_both_back(seed: int) -> None:
    assert TwoGraySchedule(seed).run().violations == []


@pytest.mark.parametrize("mutant", GRAY_MUTANTS, ids=lambda mutant: mutant.name)
def test_defect_is_noticed_by_random_schedules(mutant: GrayMutant) -> None:
    with mutant.plant():
        seeds = range(mutant.first_seed, mutant.first_seed + MUTANT_SCHEDULES)
        assert any(run_gray(seed).violations for seed in seeds)
