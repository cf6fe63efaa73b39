"""Drains and rolling restarts on virtual time: no entry has fewer than Qw copies at any moment (`full_drains`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.planting import Plant
from tests.simulation import planted_repairs as planted
from tests.simulation.full_drains import DrainSchedule

SCHEDULES = 40
MUTANT_SCHEDULES = 40
_PARTS = 2


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_ledger_is_below_its_write_quorum_during_drains_and_restarts(part: int) -> None:
    seen: Counter[str] = Counter()
    failing = {}
    for seed in range(1 + part, SCHEDULES, _PARTS):
        outcome = DrainSchedule(seed).run()
        seen.update(outcome.history.faults)
        if outcome.violations:
            failing[seed] = outcome.violations
    assert failing == {}
    faults = {"crash", "drain killed", "metadata", "second drain", "lost while drained", "one away"}
    missing = {"drained", "restart", "swaps", *faults} - set(seen)
    assert not missing, f"it did not happen: {missing}"


@pytest.mark.parametrize(
    "plant",
    [
        planted.named_before_copied,
        planted.only_first_slots_copied,
        planted.maintenance_ignored,
        planted.return_not_awaited,
        planted.health_not_awaited,
        planted.leaving_bookies_stay,
    ],
    ids=lambda plant: plant.__name__,
)
def test_planted_defect_of_a_drain_or_restart_is_noticed(plant: Callable[[], Plant]) -> None:
    with plant():
        assert any(DrainSchedule(seed).run().violations for seed in range(1, MUTANT_SCHEDULES))
