"""Chooses bookies for an ensemble: at random, across hosts and racks, preferably without avoided bookies.

A write set is Qw slots in a row of the ensemble (`striping`), which is regarded as a ring. There are two promises; if
both cannot be kept, the first takes precedence:

* Each write set spans `Topology.racks_min` racks, or as many as Qw and the cluster allow: then the loss of one rack
  never loses all copies of an entry.
* No two bookies of a write set are on one host while enough hosts exist: then the loss of a host, which may run several
  bookies, costs an entry one copy.

`choose_ensemble` gives every write set that many racks and hosts if any ensemble does, otherwise as many as it can;
`choose_replacements` keeps this for as many write sets as any choice can. Both are searches with a named limit, exact
except for large ensembles over many unequal racks and hosts.

The random source is an argument, so that a seed determines the result. Without racks, and with one bookie on each host,
all bookies are equally likely.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from bkspark.core.striping import write_set
from bkspark.errors import NotEnoughBookies

RACK_DEFAULT = "/default-rack"
"""The rack of a bookie that is not in the rack map; Apache's default."""

SEARCH_STEPS_MAX = 10_000
"""Slots tried before the search for an arrangement of places gives up."""

RANDOM_STEPS_MAX = 1_000
"""Slots tried at random before the fullest places are tried first. A random search that needs more rarely ends."""

COMBINATIONS_MAX = 4096
"""Limit of the combinations of replacements that are compared; if there are more, slots are replaced group by group."""

RANGE_BITS_MAX = 63
"""Bits of the number of ways from which one is drawn: Python counts no longer range."""

_T = TypeVar("_T")


class RandomSource(Protocol):
    """The random source of placement; `random.Random` is one."""

    def sample(self, population: Sequence[_T], k: int) -> list[_T]: ...


class Place(NamedTuple):
    """Where a bookie runs. `host` is "" if hosts do not matter, because no two bookies share one."""

    rack: str
    """A network location, such as "/default-rack". Copies go to several racks."""
    host: str


@dataclass(frozen=True, slots=True)
class Topology:
    """The racks and hosts of bookies, and which bookies to avoid.

    `racks` maps bookies to racks (others are in RACK_DEFAULT); `hosts` maps bookies to hosts (others are on the host
    that their id `host:port` names; an id without a port is a host of its own); `avoided` bookies are chosen only if no
    others are left; `racks_min` is Apache's minNumRacksPerWriteQuorum, 1 for a choice without regard to racks.
    """

    racks: Mapping[str, str] = field(default_factory=dict)
    avoided: frozenset[str] = frozenset()
    racks_min: int = 2
    hosts: Mapping[str, str] = field(default_factory=dict)

    def rack_of(self, bookie: str) -> str:
        return self.racks.get(bookie, RACK_DEFAULT)

    def host_of(self, bookie: str) -> str:
        return self.hosts.get(bookie) or bookie.rpartition(":")[0] or bookie


FLAT = Topology()
"""One rack, no bookie avoided."""


class _Spans(NamedTuple):
    """How many racks and hosts a write set should span."""

    racks: int
    hosts: int


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
    place_of = _places(usable, topology)
    bookies = _by_place(usable, place_of)
    for wanted in _wanted(bookies, write_quorum, topology):
        counts = {place: len(some) for place, some in bookies.items()}
        order = _Arrangement(counts, ensemble_size, write_quorum, wanted).find(random)
        if order:
            return _fill(order, bookies, random)
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
    kept = [bookie for slot, bookie in enumerate(ensemble) if slot not in failed_slots]
    usable = _preferred(spare, len(slots), random, topology, kept)
    place_of = _places([*usable, *kept], topology)
    bookies = _by_place(usable, place_of)
    hosts_matter = any(place.host for place in bookies)
    wanted = _Spans(min(topology.racks_min, write_quorum), write_quorum if hosts_matter else 1)
    if len(bookies) == 1 or wanted == (1, 1):
        return dict(zip(slots, random.sample(usable, len(slots))))
    standing: list[Place | None] = [
        None if slot in failed_slots else place_of[bookie] for slot, bookie in enumerate(ensemble)
    ]
    chosen: list[Place] = []
    # As many slots at once as the number of combinations allows.
    group = max(1, int(math.log(COMBINATIONS_MAX, len(bookies))))
    for begin in range(0, len(slots), group):
        some = slots[begin : begin + group]
        left = {place: len(there) - chosen.count(place) for place, there in bookies.items()}
        best = best_places(standing, some, left, write_quorum, wanted, random)
        for slot, place in zip(some, best):
            standing[slot] = place
        chosen += best
    return dict(zip(slots, _fill(chosen, bookies, random)))


def _preferred(
    bookies: Collection[str], count: int, random: RandomSource, topology: Topology, kept: Sequence[str] = ()
) -> list[str]:
    """Return the bookies that are not avoided, and as many avoided ones as `count` requires.

    Avoided ones are those that add racks and hosts to the others and to the `kept` members of the ensemble.
    """
    chosen = sorted(bookie for bookie in bookies if bookie not in topology.avoided)
    if len(chosen) >= count:
        return chosen
    racks = Counter(topology.rack_of(bookie) for bookie in (*chosen, *kept))
    hosts = Counter(topology.host_of(bookie) for bookie in (*chosen, *kept))

    def crowding(bookie: str) -> tuple[bool, int, int]:
        rack = racks[topology.rack_of(bookie)]
        return rack > 0, hosts[topology.host_of(bookie)], rack

    others = sorted(set(bookies) - set(chosen))
    untaken = random.sample(others, len(others))
    for _ in range(count - len(chosen)):
        best = min(untaken, key=crowding)
        untaken.remove(best)
        chosen.append(best)
        racks[topology.rack_of(best)] += 1
        hosts[topology.host_of(best)] += 1
    return sorted(chosen)


def _places(bookies: Sequence[str], topology: Topology) -> dict[str, Place]:
    """Return the place of each bookie, without hosts if every bookie has its own: racks alone are a smaller search."""
    hosts = {bookie: topology.host_of(bookie) for bookie in bookies}
    is_shared = len(set(hosts.values())) < len(hosts)
    return {bookie: Place(topology.rack_of(bookie), hosts[bookie] if is_shared else "") for bookie in bookies}


def _by_place(bookies: Sequence[str], place_of: Mapping[str, Place]) -> dict[Place, list[str]]:
    places: dict[Place, list[str]] = {}
    for bookie in sorted(bookies):
        places.setdefault(place_of[bookie], []).append(bookie)
    return places


def _wanted(places: Collection[Place], write_quorum: int, topology: Topology) -> Iterator[_Spans]:
    """Yield what write sets should span, best first, down to what every choice fulfils."""
    hosts_max = min(write_quorum, len({place.host for place in places}))
    for racks in range(min(topology.racks_min, write_quorum, len({place.rack for place in places})), 0, -1):
        # Bookies of two racks are on two hosts.
        for hosts in range(hosts_max, min(racks, hosts_max) - 1, -1):
            if (racks, hosts) > (1, 1):
                yield _Spans(racks, hosts)


def _fill(order: Sequence[Place], bookies: Mapping[Place, list[str]], random: RandomSource) -> tuple[str, ...]:
    """Return a bookie of each place in `order`, no bookie twice."""
    drawn = {place: random.sample(bookies[place], order.count(place)) for place in sorted(set(order))}
    return tuple(drawn[place].pop() for place in order)


def best_places(
    standing: Sequence[Place | None],
    slots: Sequence[int],
    left: Mapping[Place, int],
    write_quorum: int,
    wanted: _Spans,
    random: RandomSource,
) -> tuple[Place, ...]:
    """Return places for `slots` with which the most write sets span what is wanted. All such choices of bookies are
    equally likely, so a place is as likely as it has bookies."""
    touched = [sets for sets in write_sets(len(standing), write_quorum) if any(slot in slots for slot in sets)]
    scarce = {place for place, count in left.items() if count < len(slots)}
    kinds = _kinds(left, [place for place in standing if place is not None])
    scores: dict[tuple[object, ...], tuple[int, ...]] = {}
    best: tuple[int, ...] = (-1,)
    found: list[tuple[Place, ...]] = []
    candidates = sorted(place for place, count in left.items() if count)
    for places in itertools.product(candidates, repeat=len(slots) - 1):
        in_racks, on_hosts = _firsts(place.rack for place in places), _firsts(place.host for place in places)
        alike = (
            tuple(kinds[place] for place in places),
            tuple(in_racks[place.rack] for place in places),
            tuple(on_hosts[place.host] for place in places),
        )
        for last in candidates:
            if scarce and any(
                place in scarce and (*places, last).count(place) > left[place] for place in (*places, last)
            ):
                continue
            # In a large cluster most choices are alike: their racks and hosts have no bookie of the ensemble yet, and
            # the same slots share a rack or a host.
            key = alike, kinds[last], in_racks.get(last.rack), on_hosts.get(last.host)
            score = scores.get(key)
            if score is None:
                score = scores[key] = _score(standing, dict(zip(slots, (*places, last))), touched, wanted)
            if score > best:
                best, found = score, []
            if score == best:
                found.append((*places, last))
    ways = [_ways(places, left) for places in found]
    ends, divisor = list(itertools.accumulate(ways)), math.gcd(*ways)
    total = ends[-1] // divisor
    # The lowest bits of so large a number hardly change what is chosen.
    shift = max(0, total.bit_length() - RANGE_BITS_MAX)
    (drawn,) = random.sample(range(total >> shift), 1)
    return found[bisect_right(ends, (drawn << shift) * divisor)]


def _ways(places: Sequence[Place], left: Mapping[Place, int]) -> int:
    """Return in how many ways the bookies that places have left can fill them."""
    return math.prod(left[place] - places[:number].count(place) for number, place in enumerate(places))


def _kinds(places: Iterable[Place], standing: Collection[Place]) -> dict[Place, tuple[str | None, str | None]]:
    """Return the rack and the host of each place, None instead of one that has none of the `standing` bookies."""
    racks, hosts = {place.rack for place in standing}, {place.host for place in standing}
    return {
        place: (place.rack if place.rack in racks else None, place.host if place.host in hosts else None)
        for place in places
    }


def _firsts(names: Iterable[str]) -> dict[str, int]:
    """Return where each name is first."""
    firsts: dict[str, int] = {}
    for number, name in enumerate(names):
        firsts.setdefault(name, number)
    return firsts


def _score(
    standing: Sequence[Place | None],
    chosen: Mapping[int, Place],
    touched: Sequence[Sequence[int]],
    wanted: _Spans,
) -> tuple[int, ...]:
    """Return how well the write sets in `touched` span racks and hosts with the chosen places; more is better."""
    filled = [chosen.get(slot, place) for slot, place in enumerate(standing)]
    there = [[known for slot in sets if (known := filled[slot]) is not None] for sets in touched]
    racks = [len({place.rack for place in some}) for some in there]
    hosts = [len({place.host for place in some}) for some in there]
    return (
        sum(span >= wanted.racks for span in racks),
        sum(span >= wanted.hosts for span in hosts),
        sum(min(span, wanted.racks) for span in racks),
        sum(hosts),
    )


def write_sets(size: int, write_quorum: int) -> list[tuple[int, ...]]:
    # All choices are equal if every bookie has every entry.
    return [write_set(first, size, write_quorum) for first in range(size if write_quorum < size else 1)]


class _Arrangement:
    """The search for an order of places in which every write set spans enough racks and hosts."""

    def __init__(self, counts: Mapping[Place, int], size: int, write_quorum: int, wanted: _Spans) -> None:
        self._counts = counts
        """How many bookies each place has. Constant."""
        self._size = size
        """The ensemble size. Constant."""
        self._write_quorum = write_quorum
        """Qw of the ledger. Constant."""
        self._wanted = wanted
        """How many racks and hosts each write set must span. Constant."""
        self._rack_bits = _bits(place.rack for place in counts)
        """One bit for each rack, by rack, so that sets of racks are integers. Constant."""
        self._host_bits = _bits(place.host for place in counts)
        """One bit for each host, by host. Constant."""
        places_of = Counter(place.host for place in counts)
        self._hosts_of_several = frozenset(host for host, places in places_of.items() if places > 1)
        """Hosts that have bookies in several racks, or all hosts if hosts do not matter. Constant."""
        sets = write_sets(size, write_quorum)
        self._sets_of = [[slots for slots in sets if slot in slots] for slot in range(size)]
        """The write sets of each slot. Constant."""

    def find(self, random: RandomSource) -> list[Place]:
        """Return a place for each slot, each place at most as often as it has bookies; [] if no such order is found."""
        for wanted, domain in ((self._wanted.racks, "rack"), (self._wanted.hosts, "host")):
            # A rack fills at most Qw - wanted + 1 slots of any Qw in a row, hence this share of the ring; a host too.
            share = self._size * (self._write_quorum - wanted + 1) // self._write_quorum
            counts: dict[str, int] = {}
            for place, count in self._counts.items():
                name = getattr(place, domain)
                counts[name] = counts.get(name, 0) + count
            if sum(min(count, share) for count in counts.values()) < self._size:
                return []

        def any_order(left: Mapping[Place, int]) -> Iterator[Place]:
            # Every bookie is equally likely, so a place is as likely as it has bookies. One number is drawn for each
            # place that is tried: to draw all bookies in turn takes long in a large cluster.
            untried = {place: count for place, count in left.items() if count}
            while untried:
                ends = list(itertools.accumulate(untried.values()))
                (drawn,) = random.sample(range(ends[-1]), 1)
                place = next(itertools.islice(untried, bisect_right(ends, drawn), None))
                del untried[place]
                yield place

        found = self._search(any_order, RANDOM_STEPS_MAX)
        if found is None:
            found = self._search(self._fullest_first, SEARCH_STEPS_MAX)
        return found or []

    def _fullest_first(self, left: Mapping[Place, int]) -> Iterator[Place]:
        """Yield the places that have bookies left. Only one of several that are alike and not used yet."""
        alike: dict[tuple[str, int], Place] = {}
        others = []
        for place, count in left.items():
            if count and count == self._counts[place] and place.host not in self._hosts_of_several:
                first = alike.setdefault((place.rack, count), place)
                alike[place.rack, count] = min(first, place)
            elif count:
                others.append(place)
        return iter(sorted([*alike.values(), *others], key=lambda place: (-left[place], place)))

    def _search(self, order: Callable[[Mapping[Place, int]], Iterator[Place]], steps_max: int) -> list[Place] | None:
        """Search depth first, slot by slot.

        Args:
            order: returns the places to try at a slot; it gets how many bookies each place has left.

        Returns:
            An order; []: there is none; None: none was found in `steps_max` steps.
        """
        left = dict(self._counts)
        chosen: list[Place] = []
        untried = [order(left)]
        for _ in range(steps_max):
            place = next(untried[-1], None)
            if place is None:
                untried.pop()
                if not chosen:
                    return []
                left[chosen.pop()] += 1
                continue
            chosen.append(place)
            if not self._may_do(chosen):
                chosen.pop()
                continue
            left[place] -= 1
            if len(chosen) == self._size:
                return chosen
            untried.append(order(left))
        return None

    def _may_do(self, chosen: list[Place]) -> bool:
        """Return whether the write sets of the slot filled last can still span what is wanted."""
        known = len(chosen)
        for slots in self._sets_of[known - 1]:
            racks, hosts, free = 0, 0, 0
            for slot in slots:
                if slot < known:
                    racks |= self._rack_bits[chosen[slot].rack]
                    hosts |= self._host_bits[chosen[slot].host]
                else:
                    free += 1
            if racks.bit_count() + free < self._wanted.racks or hosts.bit_count() + free < self._wanted.hosts:
                return False
        return True


def _bits(names: Iterable[str]) -> dict[str, int]:
    return {name: 1 << number for number, name in enumerate(sorted(set(names)))}
