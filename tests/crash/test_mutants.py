"""The campaigns notice planted defects; a harness that misses one proves less than it says."""

from __future__ import annotations

import pytest

from tests.crash.mutants import EQUIVALENT, MUTANTS, Mutant, killed_by


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    assert killed_by(mutant) is not None, f"{mutant.bug}: nothing noticed it"


def test_there_are_at_least_thirty_and_each_has_its_own_name() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 30
    assert all(len(argument) > 40 for argument in EQUIVALENT.values())
