"""100 bookies on 25 hosts in 5 racks lose a host and a rack: data and placement hold, repair takes bytes / rate."""

from __future__ import annotations

import pytest

from tests.simulation.full_racks import BOOKIES_PER_HOST, HOSTS_PER_RACK, RackSchedule
from tests.simulation.mutants import Mutant, hunt
from tests.simulation.racks import MUTANTS, SCHEDULES_MAX, violations_of


@pytest.mark.long_except("1", reason="other seeds repeat the same losses")
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_host_and_then_a_rack_are_lost_and_everything_is_repaired(seed: int) -> None:
    schedule = RackSchedule(seed, 100)
    assert schedule.run().violations == []
    host, rack = schedule.repairs
    assert (host.bookies, host.kind) == (BOOKIES_PER_HOST, "host")
    assert rack.kind == "rack"
    # The host may have been one of that rack.
    assert rack.bookies in (BOOKIES_PER_HOST * (HOSTS_PER_RACK - 1), BOOKIES_PER_HOST * HOSTS_PER_RACK)
    assert host.copies > 0
    assert schedule.open_ledgers() > 0
    assert rack.copies > 20


@pytest.mark.long_except("hosts ignored", reason="the same schedules and checkers notice this one and the others")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_defect_of_placement_or_repair_is_noticed(mutant: Mutant) -> None:
    found = hunt(mutant, mutant.first_seed, SCHEDULES_MAX, violations_of)
    assert found.seed is not None, f"{mutant.bug}: nothing noticed it"


def test_same_seed_is_the_same_schedule() -> None:
    first, second = RackSchedule(5, 10), RackSchedule(5, 10)
    assert first.run().events == second.run().events
    assert first.repairs == second.repairs
