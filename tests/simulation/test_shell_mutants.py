"""The full tier notices defects in the client's shells; one that misses them proves less than it says."""

from __future__ import annotations

import pytest

from bkspark.wire.adds import AddSealer
from tests.planting import replaced
from tests.simulation.full_schedule import run_full
from tests.simulation.mutants import Mutant, complaint_of, hunt
from tests.simulation.shell_mutants import DIRECTED, EQUIVALENT, MUTANTS

QUICK_SCHEDULES = 600


def violations_of(seed: int) -> list[str]:
    return run_full(seed).violations


@pytest.mark.parametrize("mutant", [it for it in MUTANTS if it.name not in DIRECTED], ids=lambda mutant: mutant.name)
def test_defect_of_a_shell_is_noticed_by_random_schedules(mutant: Mutant) -> None:
    kill = hunt(mutant, mutant.first_seed, QUICK_SCHEDULES, violations_of)
    assert kill.seed is not None, f"{mutant.bug}: nothing noticed it"
    # What notices it is the defect: the schedule is right without it.
    assert violations_of(kill.seed) == []


@pytest.mark.parametrize("mutant", [it for it in MUTANTS if it.name in DIRECTED], ids=lambda mutant: mutant.name)
def test_defect_that_schedules_hardly_notice_fails_its_directed_test(mutant: Mutant) -> None:
    assert complaint_of(DIRECTED[mutant.name]) is None
    with mutant.plant():
        assert complaint_of(DIRECTED[mutant.name]) is not None


def test_planted_function_that_does_not_take_the_products_arguments_is_not_a_kill() -> None:
    """Four defects of what a writer seals counted as noticed, because each schedule ended with this error."""
    unfitting = Mutant("unfitting", "", lambda: replaced(AddSealer, "seal", lambda self, batch: None))
    with pytest.raises(TypeError, match="unfitting: exception: TypeError"):
        hunt(unfitting, 1, QUICK_SCHEDULES, violations_of)


def test_defects_have_names_of_their_own_and_the_equivalent_ones_an_argument() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 35
    assert DIRECTED.keys() <= set(names)
    assert all(len(argument) > 40 for argument in EQUIVALENT.values())
