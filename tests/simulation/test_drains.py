"""Drains and rolling restarts on virtual time: no entry has fewer than Qw copies at any moment (`full_drains`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.planting import Plant
from tests.simulation import planted_repairs as planted
from tests.simulation.full_drains import DrainSchedule

SCHEDULES = 40
TWO_OPERATORS = (7, 4, 12, 8)
"""Seeds of schedules in which two operators restart bookies, in addition."""
MUTANT_SCHEDULES = 40
_PARTS = 2


@pytest.mark.long_except("0", reason="more seeds of the same schedules; each defect has its own hunt")
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_ledger_is_below_its_write_quorum_during_drains_and_restarts(part: int) -> None:
    seen: Counter[str] = Counter()
    failing = {}
    schedules = [(seed, False) for seed in range(1 + part, SCHEDULES, _PARTS)]
    schedules += [(seed, True) for seed in TWO_OPERATORS[part::_PARTS]]
    for seed, has_two in schedules:
        outcome = DrainSchedule(seed, has_two_operators=has_two).run()
        seen.update(outcome.history.faults)
        if outcome.violations:
            failing[seed, has_two] = outcome.violations
    assert failing == {}
    faults = {"crash", "drain killed", "metadata", "second drain", "lost while drained", "one away", "two restarts"}
    missing = {"drained", "restart", "swaps", *faults} - set(seen)
    assert not missing, f"it did not happen: {missing}"


@pytest.mark.parametrize(
    ("plant", "first_seed"),
    [
        (planted.named_before_copied, 12),
        (planted.only_first_slots_copied, 12),
        (planted.maintenance_ignored, 10),
        (planted.return_not_awaited, 3),
        (planted.health_not_awaited, 21),
        (planted.leaving_bookies_stay, 9),
        (planted.other_plans_not_looked_at, 7),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_planted_defect_of_a_drain_or_restart_is_noticed(plant: Callable[[], Plant], first_seed: int) -> None:
    """Hunts begin near a schedule that notices the defect and is short with it."""
    has_two = plant is planted.other_plans_not_looked_at
    seeds = range(first_seed, first_seed + MUTANT_SCHEDULES)
    with plant():
        assert any(DrainSchedule(seed, has_two_operators=has_two).run().violations for seed in seeds)
