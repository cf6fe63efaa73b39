"""Autorecovery on virtual time: no replica count falls, everything is repaired, and planted defects are noticed."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import Mutant, complaint_of, hunt
from tests.simulation.repairs import DIRECTED, MUTANTS, run_seeds, violations_of

SCHEDULES = 40
_PARTS = 2
QUICK_SCHEDULES = 40
QUICK = ("acks not awaited", "only first slots")
"""Noticed within a few schedules; the command hunts them all."""


@pytest.mark.long_except("0", reason="more seeds of the same schedules")
@pytest.mark.parametrize("part", range(_PARTS))
def test_a1_to_a5_hold_in_every_schedule_with_lost_bookies(part: int) -> None:
    tally = run_seeds(1 + part, _PARTS, SCHEDULES // _PARTS, None)
    assert tally.failing == {}
    assert tally.schedules > SCHEDULES / _PARTS / 4
    assert tally.swaps > tally.schedules


def test_a_new_bookie_that_is_lost_before_it_is_named_had_its_copies() -> None:
    """The checker looked for them on a disk that was gone since a millisecond before the compare-and-set."""
    assert violations_of(120551) == []


def test_copies_of_a_calm_schedule_span_as_many_racks_as_possible() -> None:
    """Its connections were reset in the middle of a copy, as if there were faults to heal."""
    assert violations_of(112514) == []


@pytest.mark.parametrize("mutant", [it for it in MUTANTS if it.name in QUICK], ids=lambda mutant: mutant.name)
def test_planted_defect_of_autorecovery_is_noticed(mutant: Mutant) -> None:
    assert hunt(mutant, mutant.first_seed, QUICK_SCHEDULES, violations_of).seed is not None, (
        f"{mutant.bug}: nothing noticed it"
    )


@pytest.mark.parametrize("mutant", [it for it in MUTANTS if it.name in DIRECTED], ids=lambda mutant: mutant.name)
def test_planted_defect_that_no_schedule_notices_fails_its_directed_test(mutant: Mutant) -> None:
    assert complaint_of(DIRECTED[mutant.name]) is None
    with mutant.plant():
        assert complaint_of(DIRECTED[mutant.name]) is not None


def test_defects_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
