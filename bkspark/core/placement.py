"""Chooses bookies for an ensemble: at random, across racks, preferably without avoided bookies.

A write set is Qw slots in a row of the ensemble (`striping`), the ensemble taken as a ring. Each should span
`Topology.racks_min` racks, or as many as Qw and the cluster allow: then the loss of one rack never loses all copies of
an entry. `choose_ensemble` gives every write set that many racks if any ensemble does, otherwise as many as it can;
`choose_replacements` keeps this for as many write sets as any choice can. Both are searches with a named limit, exact
for all but large ensembles over many unequal racks.

The random source is an argument, so that a seed determines the result. Without racks every bookie is as likely as any
other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bkspark.core.striping import write_set
from bkspark.errors import NotEnoughBookies

RACK_DEFAULT = "/default-rack"
"""The rack of a bookie that is not in the rack map; Apache's default."""

SEARCH_STEPS_MAX = 10_000
"""Slots tried before a search for an arrangement of racks gives up."""

COMBINATIONS_MAX = 4096
"""Limit of the combinations of replacements that are compared; if there are more, slots are replaced group by group."""


class RandomSource(Protocol):
    """The random source of placement; `random.Random` is one."""

    def sample(self, population: Sequence[str], k: int) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Topology:
    """The racks of bookies, and which bookies to avoid.

    `racks` maps bookies to racks (others are in RACK_DEFAULT); `avoided` bookies are chosen only if no others are left;
    `racks_min` is Apache's minNumRacksPerWriteQuorum, 1 for a choice at random.
    """

    racks: Mapping[str, str] = field(default_factory=dict)
    avoided: frozenset[str] = frozenset()
    racks_min: int = 2

    def rack_of(self, bookie: str) -> str:
        return self.racks.get(bookie, RACK_DEFAULT)


FLAT = Topology()
"""One rack, no bookie avoided."""


def choose_ensemble(
    writable: Collection[str],
    ensemble_size: int,
    write_quorum: int,
    random: RandomSource,
    topology: Topology = FLAT,
) -> tuple[str, ...]:
    """Return E distinct bookies out of the writable ones; avoided ones only if the others do not suffice.

    Raises:
        NotEnoughBookies: fewer than E are writable.
    """
    if len(writable) < ensemble_size:
        raise NotEnoughBookies(
            f"an ensemble of {ensemble_size} needs as many writable bookies, there are {len(writable)}: "
            "start more bookies or lower the ensemble size"
        )
    usable = _preferred(writable, ensemble_size, random, topology)
    racks = _by_rack(usable, topology)
    for wanted in range(min(topology.racks_min, write_quorum, len(racks)), 1, -1):
        arrangement = _Arrangement({rack: len(bookies) for rack, bookies in racks.items()}, ensemble_size, write_quorum)
        order = arrangement.find(wanted, random)
        if order:
            return _fill(order, racks, random)
    return tuple(random.sample(usable, ensemble_size))


def choose_replacements(
    ensemble: Sequence[str],
    failed_slots: Collection[int],
    writable: Collection[str],
    write_quorum: int,
    random: RandomSource,
    topology: Topology = FLAT,
) -> Mapping[int, str]:
    """Return a new bookie for as many failed slots as spares exist; no new bookie is in the ensemble yet."""
    spare = set(writable) - set(ensemble)
    slots = sorted(failed_slots)[: len(spare)]
    if not slots:
        return {}
    usable = _preferred(spare, len(slots), random, topology)
    racks = _by_rack(usable, topology)
    wanted = min(topology.racks_min, write_quorum)
    if len(racks) == 1 or wanted == 1:
        return dict(zip(slots, random.sample(usable, len(slots))))
    standing: list[str | None] = [
        None if slot in failed_slots else topology.rack_of(bookie) for slot, bookie in enumerate(ensemble)
    ]
    chosen: list[str] = []
    # As many slots at once as the number of combinations allows.
    group = max(1, int(math.log(COMBINATIONS_MAX, len(racks))))
    for begin in range(0, len(slots), group):
        some = slots[begin : begin + group]
        left = {rack: len(bookies) - chosen.count(rack) for rack, bookies in racks.items()}
        best = _best_racks(standing, some, left, write_quorum, wanted, random)
        for slot, rack in zip(some, best):
            standing[slot] = rack
        chosen += best
    return dict(zip(slots, _fill(chosen, racks, random)))


def _preferred(bookies: Collection[str], count: int, random: RandomSource, topology: Topology) -> list[str]:
    """Return the bookies that are not avoided, and as many avoided ones as `count` requires."""
    good = sorted(bookie for bookie in bookies if bookie not in topology.avoided)
    if len(good) >= count:
        return good
    others = sorted(set(bookies) - set(good))
    return sorted([*good, *random.sample(others, count - len(good))])


def _by_rack(bookies: Collection[str], topology: Topology) -> dict[str, list[str]]:
    racks: dict[str, list[str]] = {}
    for bookie in sorted(bookies):
        racks.setdefault(topology.rack_of(bookie), []).append(bookie)
    return racks


def _fill(order: Sequence[str], racks: Mapping[str, list[str]], random: RandomSource) -> tuple[str, ...]:
    """Return a bookie of each rack in `order`, none twice."""
    drawn = {rack: random.sample(racks[rack], order.count(rack)) for rack in sorted(set(order))}
    return tuple(drawn[rack].pop() for rack in order)


def _best_racks(
    standing: Sequence[str | None],
    slots: Sequence[int],
    left: Mapping[str, int],
    write_quorum: int,
    wanted: int,
    random: RandomSource,
) -> tuple[str, ...]:
    """Return racks for `slots` with which the most write sets span `wanted` racks; among equal choices, any."""
    size = len(standing)
    touched = [sets for sets in _write_sets(size, write_quorum) if any(slot in slots for slot in sets)]
    best: tuple[int, int] = (-1, -1)
    found: dict[str, tuple[str, ...]] = {}
    for racks in itertools.product(sorted(rack for rack, count in left.items() if count), repeat=len(slots)):
        if any(racks.count(rack) > left[rack] for rack in racks):
            continue
        filled = list(standing)
        for slot, rack in zip(slots, racks):
            filled[slot] = rack
        spans = [len({filled[slot] for slot in sets} - {None}) for sets in touched]
        score = (sum(span >= wanted for span in spans), sum(min(span, wanted) for span in spans))
        if score > best:
            best, found = score, {}
        if score == best:
            found[str(len(found))] = racks
    return found[random.sample(list(found), 1)[0]]


def _write_sets(size: int, write_quorum: int) -> list[tuple[int, ...]]:
    # All choices are equal if every bookie has every entry.
    return [write_set(first, size, write_quorum) for first in range(size if write_quorum < size else 1)]


class _Arrangement:
    """The search for an order of racks in which every write set spans enough of them."""

    def __init__(self, counts: Mapping[str, int], size: int, write_quorum: int) -> None:
        self._counts = counts
        self._size = size
        self._write_quorum = write_quorum
        self._bits = {rack: 1 << number for number, rack in enumerate(sorted(counts))}
        sets = _write_sets(size, write_quorum)
        self._sets_of = [[slots for slots in sets if slot in slots] for slot in range(size)]

    def find(self, wanted: int, random: RandomSource) -> list[str] | None:
        """Return a rack for each slot, no rack more often than it has bookies; None if there is no such order."""
        # A rack fills at most Qw - wanted + 1 slots of any Qw in a row, hence this share of the ring.
        share = self._size * (self._write_quorum - wanted + 1) // self._write_quorum
        if sum(min(count, share) for count in self._counts.values()) < self._size:
            return None

        def at_random(left: dict[str, int]) -> list[str]:
            # Every bookie is equally likely: a rack comes as early as the first of its bookies in random order.
            bookies = [rack for rack, count in left.items() for _ in range(count)]
            return list(dict.fromkeys(random.sample(bookies, len(bookies))))

        def fullest_first(left: dict[str, int]) -> list[str]:
            return sorted((rack for rack in left if left[rack]), key=lambda rack: (-left[rack], rack))

        return self._search(wanted, at_random) or self._search(wanted, fullest_first)

    def _search(self, wanted: int, order: Callable[[dict[str, int]], list[str]]) -> list[str] | None:
        """Depth first, slot by slot, for at most SEARCH_STEPS_MAX steps."""
        left = dict(self._counts)
        chosen: list[str] = []
        untried = [order(left)]
        for _ in range(SEARCH_STEPS_MAX):
            if not untried[-1]:
                untried.pop()
                if not chosen:
                    return None
                left[chosen.pop()] += 1
                continue
            rack = untried[-1].pop(0)
            chosen.append(rack)
            if not self._may_do(chosen, wanted):
                chosen.pop()
                continue
            left[rack] -= 1
            if len(chosen) == self._size:
                return chosen
            untried.append(order(left))
        return None

    def _may_do(self, chosen: list[str], wanted: int) -> bool:
        """Whether the write sets of the newest slot can still get `wanted` racks."""
        known = len(chosen)
        for slots in self._sets_of[known - 1]:
            mask, free = 0, 0
            for slot in slots:
                if slot < known:
                    mask |= self._bits[chosen[slot]]
                else:
                    free += 1
            if mask.bit_count() + free < wanted:
                return False
        return True
