"""The simulator notices planted defects; one that misses them proves less than it says."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import DIRECTED, EQUIVALENT, MUTANTS, Mutant, complaint_of, hunt
from tests.simulation.plan import plan_of
from tests.simulation.schedule import run_plan
from tests.simulation.shrink import complaint, shrink

QUICK_SCHEDULES = 4_000


@pytest.mark.parametrize("mutant", [it for it in MUTANTS if it.name not in DIRECTED], ids=lambda mutant: mutant.name)
def test_mutant_is_killed_by_random_schedules(mutant: Mutant) -> None:
    assert hunt(mutant, mutant.first_seed, QUICK_SCHEDULES).seed is not None, f"{mutant.bug}: nothing noticed it"


@pytest.mark.parametrize("mutant", [it for it in MUTANTS if it.name in DIRECTED], ids=lambda mutant: mutant.name)
def test_mutant_that_no_schedule_notices_fails_its_directed_test(mutant: Mutant) -> None:
    assert complaint_of(DIRECTED[mutant.name]) is None
    with mutant.plant():
        assert complaint_of(DIRECTED[mutant.name]) is not None


def test_there_are_at_least_thirty_five_and_each_has_its_own_name() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 35
    assert DIRECTED.keys() <= set(names)
    assert all(len(argument) > 40 for argument in EQUIVALENT.values())


@pytest.mark.parametrize("name", ["votes kept", "error is negative", "used before stored"])
def test_a_failing_schedule_shrinks_to_few_items_that_fail_alike(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    seed = hunt(mutant, 1, QUICK_SCHEDULES).seed
    assert seed is not None
    with mutant.plant():
        plan = plan_of(seed)
        small = shrink(plan)
        assert complaint(small) == complaint(plan)
        assert len(small.steps) + len(small.triggers) <= min(8, len(plan.steps) + len(plan.triggers))
    assert run_plan(small).violations == []
