"""Tails, explicit LACs and relaxed durability over V3: the shipped client on the bookie's storage, on virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from bkspark.core.metadata import LedgerType
from tests.simulation.full_tails import TailSchedule, run_tail
from tests.simulation.planted_tails import TAIL_MUTANTS, TailMutant

SCHEDULES = 60
MUTANT_SCHEDULES = 30


@pytest.mark.long(reason="14 s of processor time; the hunts below run the same schedules, and .ci/run has this one")
def test_no_checker_complains_of_readers_that_follow_and_of_ledgers_with_relaxed_durability() -> None:
    early, faults, types = 0, Counter[str](), Counter[LedgerType]()
    for seed in range(1, SCHEDULES + 1):
        schedule = TailSchedule(seed)
        outcome = schedule.run()
        assert outcome.violations == [], f"seed {seed}"
        early += schedule.reported_early
        faults.update(outcome.history.faults)
        types[schedule.ledger_type] += 1
    assert early > SCHEDULES
    assert faults["power"] > 0
    assert set(types) == set(LedgerType)


@pytest.mark.parametrize("mutant", TAIL_MUTANTS, ids=lambda mutant: mutant.name)
def test_defect_is_noticed_by_random_schedules(mutant: TailMutant) -> None:
    with mutant.plant():
        assert any(run_tail(seed).violations for seed in range(1, MUTANT_SCHEDULES + 1))
