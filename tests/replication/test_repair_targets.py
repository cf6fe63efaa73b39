"""Bookies that take the copies of repairs: each gets about its share, and hosts and racks come first."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bkspark.core.placement import FLAT, Topology
from bookie_service.replication.repair_targets import RepairTargets

BOOKIES = [f"host{number // 4}:{3181 + number % 4}" for number in range(100)]
LOST_HOST, SPARE = BOOKIES[:4], BOOKIES[4:]


def repaired(targets: list[RepairTargets], copies: int, seed: int) -> Counter[str]:
    """Return how many copies each bookie gets if all processes repair a lost host: one copy of each ledger is lost."""
    random, received = Random(seed), Counter(dict.fromkeys(SPARE, 0))
    for number in range(copies):
        ensemble = (random.choice(LOST_HOST), *random.sample(SPARE, 2))
        received.update(targets[number % len(targets)].choose(ensemble, [0], SPARE, 3, FLAT).values())
    return received


@pytest.mark.parametrize("processes", [1, 5])
@pytest.mark.parametrize("seed", range(5))
def test_no_bookie_receives_more_than_twice_its_share_of_a_few_hundred_copies(processes: int, seed: int) -> None:
    """At random, one of 96 bookies gets 2.5 to 3 times its share of 491 copies."""
    received = repaired([RepairTargets(Random(seed + number)) for number in range(processes)], 491, seed)
    assert received.total() == 491
    assert max(received.values()) <= 2 * 491 / len(SPARE)


def test_spreading_never_costs_a_rack() -> None:
    """A write set spans two racks if any choice does that; the emptiest bookies are in the rack of the others."""
    racks = {bookie: "left" if bookie in "abcd" else "right" for bookie in "abcdefgh"}
    topology = Topology(racks, frozenset(), 2, {})
    targets = RepairTargets(Random(1))
    for _ in range(50):
        (target,) = targets.choose("abx", [2], "cdefgh", 3, topology).values()
        assert target in "efgh"


def test_what_bookies_received_counts_half_as_much_with_each_pass() -> None:
    """A bookie that is new would otherwise take most copies, also while some ledger can never be repaired."""
    targets = RepairTargets(Random(1))
    for _ in range(400):
        targets.choose("xyz", [0], "abcd", 3, FLAT)
    for _ in range(10):
        targets.begin_pass()
    received = Counter(name for _ in range(50) for name in targets.choose("xyz", [0], "abcde", 3, FLAT).values())
    assert max(received.values()) <= 11


def test_slots_without_a_spare_stay_as_they_are() -> None:
    targets = RepairTargets(Random(1))
    assert targets.choose("xyz", [0, 1], "", 3, FLAT) == {}
    assert list(targets.choose("xyz", [0, 1], "a", 3, FLAT).values()) == ["a"]
