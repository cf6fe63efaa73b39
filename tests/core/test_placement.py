"""Ensembles and replacements: random, over racks, around the quarantine; held against brute force."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter

import pytest

from bkspark.core import placement
from bkspark.core.placement import (
    COMBINATIONS_MAX,
    RACK_DEFAULT,
    RANDOM_STEPS_MAX,
    Topology,
    choose_ensemble,
    choose_replacements,
)
from bkspark.core.striping import write_set
from bkspark.errors import NotEnoughBookies

SHAPES = [(e, w) for e in range(1, 7) for w in range(1, e + 1)]
RACK_SIZES = [(6,), (1, 1), (3, 3), (1, 5), (2, 2, 2), (1, 1, 4), (1, 2, 3), (4, 1, 1, 1), (2, 2, 1, 1), (1,) * 6]


def cluster(sizes):
    """Bookies named by rack, and their racks."""
    return {f"r{rack}b{number}": f"/r{rack}" for rack, size in enumerate(sizes) for number in range(size)}


def spans(racks, write_quorum):
    """Number of racks of each entry's write set; a None is not a bookie."""
    size = len(racks)
    return [len({racks[slot] for slot in write_set(first, size, write_quorum)} - {None}) for first in range(size)]


@functools.cache
def arrangements(sizes, size):
    """Every sequence of racks that has a bookie for each slot."""
    return [
        racks
        for racks in itertools.product(range(len(sizes)), repeat=size)
        if all(racks.count(rack) <= bookies for rack, bookies in enumerate(sizes))
    ]


@functools.cache
def widest(sizes, size, write_quorum):
    """How many racks the narrowest write set spans in the best arrangement."""
    return max(min(spans(racks, write_quorum)) for racks in arrangements(sizes, size))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", RACK_SIZES)
@pytest.mark.parametrize("racks_min", [2, 3])
def test_every_write_set_spans_as_many_racks_as_any_ensemble_gives_all_of_them(sizes, racks_min):
    where = cluster(sizes)
    source = random.Random(5)
    for size, write_quorum in SHAPES:
        if size > len(where):
            continue
        best = widest(sizes, size, write_quorum)
        for _ in range(3):
            ensemble = choose_ensemble(set(where), size, write_quorum, source, Topology(where, racks_min=racks_min))
            assert len(set(ensemble)) == size
            assert min(spans([where[bookie] for bookie in ensemble], write_quorum)) >= min(best, racks_min)


@pytest.mark.parametrize("sizes", RACK_SIZES)
def test_replacements_keep_as_many_write_sets_over_two_racks_as_any_choice_does(sizes):
    where = cluster(sizes)
    source = random.Random(6)
    for size, write_quorum in SHAPES:
        for failed_count in range(1, size + 1):
            if size > len(where):
                continue
            ensemble = source.sample(sorted(where), size)
            failed = source.sample(range(size), failed_count)
            chosen = choose_replacements(ensemble, failed, set(where), write_quorum, source, Topology(where))
            spare = sorted(set(where) - set(ensemble))
            assert sorted(chosen) == sorted(failed)[: len(spare)]
            assert len(set(chosen.values())) == len(chosen)
            assert set(chosen.values()) <= set(spare)

            def reached(replacements, ensemble=ensemble, failed=failed, write_quorum=write_quorum):
                racks = [
                    where[replacements[slot]] if slot in replacements else None if slot in failed else where[bookie]
                    for slot, bookie in enumerate(ensemble)
                ]
                return sum(span >= min(2, write_quorum) for span in spans(racks, write_quorum))

            choices = itertools.permutations(spare, len(chosen)) if len(chosen) < 4 else []
            assert all(reached(chosen) >= reached(dict(zip(sorted(chosen), choice))) for choice in choices)


def test_striped_ensemble_of_forty_over_unequal_racks_spans_them_everywhere():
    where = cluster((20, 12, 8, 4))
    for seed in range(5):
        ensemble = choose_ensemble(set(where), 40, 3, random.Random(seed), Topology(where))
        assert min(spans([where[bookie] for bookie in ensemble], 3)) == 2


def test_search_that_finds_nothing_ends_and_still_returns_an_ensemble():
    # Two racks for write sets that want three; and 63 bookies in one rack of 64.
    for sizes, size, write_quorum in (((32, 32), 64, 5), ((63, 1), 64, 3)):
        where = cluster(sizes)
        topology = Topology(where, racks_min=3)
        assert set(choose_ensemble(set(where), size, write_quorum, random.Random(1), topology)) == set(where)


def test_every_bookie_is_chosen_about_as_often_as_any_other_where_racks_are_equal():
    where = cluster((4, 4, 4))
    source = random.Random(7)
    counts = Counter(b for _ in range(2000) for b in choose_ensemble(set(where), 3, 3, source, Topology(where)))
    assert set(counts) == set(where)
    assert min(counts.values()) > 0.8 * max(counts.values())


def test_every_replacement_is_chosen_about_as_often_as_any_other_where_hosts_have_different_numbers_of_bookies():
    """When a bookie is lost, all its writers choose at once: one that is alone on its host got four times its share."""
    racks = on_hosts(((4, 4, 4, 4), (4, 4, 4, 1)))
    source = random.Random(12)
    ensemble = ("r0h0:1", "r0h0:2", "r1h0:1")
    for failed in ([1], [0, 1]):
        kept = {bookie.partition(":")[0] for slot, bookie in enumerate(ensemble) if slot not in failed}
        others = {bookie for bookie in racks if bookie not in ensemble and bookie.partition(":")[0] not in kept}
        chosen = (choose_replacements(ensemble, failed, set(racks), 3, source, Topology(racks)) for _ in range(2000))
        received = Counter(bookie for choice in chosen for bookie in choice.values())
        share = received.total() / len(others)
        assert set(received) == others
        assert all(0.5 * share < each < 1.4 * share for each in received.values())


class Counting:
    """A random source that counts the members of its samples."""

    def __init__(self, seed):
        self._source = random.Random(seed)
        self.drawn = 0

    def sample(self, population, k):
        self.drawn += k
        return self._source.sample(population, k)


@pytest.mark.parametrize("per_host", [1, 2])
def test_draws_for_an_ensemble_do_not_grow_with_the_cluster(per_host):
    """A draw of all 1,000 bookies for each slot took milliseconds of the event loop, and 7 s in a hard search."""
    where = on_hosts((((per_host,) * (25 // per_host)),) * 40)
    source = Counting(3)
    for size in (3, 5):
        source.drawn = 0
        ensemble = choose_ensemble(set(where), size, 3, source, Topology(where))
        assert reached(ensemble, where, 3) >= (2, 3)
        assert source.drawn < 5 * size


def test_hard_search_draws_few_bookies():
    """Seven bookies of one rack are just enough for 20 slots: random orders use them up too early."""
    where = cluster((460, 7))
    source = Counting(4)
    ensemble = choose_ensemble(set(where), 20, 3, source, Topology(where))
    assert min(spans([where[bookie] for bookie in ensemble], 3)) == 2
    assert source.drawn <= RANDOM_STEPS_MAX + 20


def test_bookie_without_a_rack_is_in_the_default_one():
    assert Topology({"a": "/r1"}).rack_of("b") == RACK_DEFAULT
    for seed in range(20):
        ensemble = choose_ensemble({"a", "b", "c"}, 2, 2, random.Random(seed), Topology({"a": "/r1"}))
        assert "a" in ensemble


def test_avoided_bookies_are_chosen_only_where_too_few_others_are():
    topology = Topology(avoided=frozenset("ab"))
    for seed in range(20):
        source = random.Random(seed)
        assert set(choose_ensemble("abcde", 3, 3, source, topology)) == set("cde")
        with_one = set(choose_ensemble("abcd", 3, 3, source, topology))
        assert with_one > set("cd")
        assert len(with_one) == 3
        assert choose_replacements("cde", [0], "abcdef", 3, source, topology) == {0: "f"}
        assert set(choose_replacements("cde", [0], "abcde", 3, source, topology).values()) <= set("ab")


def test_ensembles_are_distinct_bookies_and_too_few_is_an_error():
    source = random.Random(1)
    ensemble = choose_ensemble({"a", "b", "c", "d"}, 3, 3, source)
    assert len(set(ensemble)) == 3
    with pytest.raises(NotEnoughBookies, match="2"):
        choose_ensemble({"a", "b"}, 3, 3, source)


def test_replacements_are_never_members_and_as_many_as_there_are():
    source = random.Random(1)
    assert choose_replacements(["a", "b", "c"], {0, 2}, {"a", "b", "c"}, 3, source) == {}
    assert choose_replacements(["a", "b", "c"], {0, 2}, {"a", "b", "c", "d"}, 3, source) == {0: "d"}
    both = choose_replacements(["a", "b", "c"], {0, 2}, {"d", "e"}, 3, source)
    assert set(both) == {0, 2}
    assert set(both.values()) == {"d", "e"}


def on_hosts(sizes):
    """Bookies `rRhH:PORT` of racks, each a tuple of how many bookies its hosts run; and their racks."""
    return {
        f"r{rack}h{host}:{port}": f"/r{rack}"
        for rack, hosts in enumerate(sizes)
        for host, count in enumerate(hosts)
        for port in range(1, count + 1)
    }


def reached(bookies, racks, write_quorum):
    """The least number of racks and of hosts that the write sets of these bookies span."""
    hosts = [bookie.partition(":")[0] for bookie in bookies]
    return min(spans([racks[bookie] for bookie in bookies], write_quorum)), min(spans(hosts, write_quorum))


HOSTS = [((3,),), ((2, 2),), ((2, 1, 1),), ((2, 2, 2),), ((3, 1), (1,)), ((2,), (2, 1)), ((2, 2), (2,)), ((4,), (1, 1))]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", HOSTS)
def test_ensembles_span_racks_first_and_then_as_many_hosts_as_any_ensemble_does(sizes):
    racks = on_hosts(sizes)
    source = random.Random(8)
    for size, write_quorum in SHAPES:
        if size > len(racks):
            continue
        wanted = min(2, write_quorum)
        best = max(
            (min(in_racks, wanted), on)
            for some in itertools.permutations(racks, size)
            for in_racks, on in [reached(some, racks, write_quorum)]
        )
        for _ in range(3):
            ensemble = choose_ensemble(set(racks), size, write_quorum, source, Topology(racks))
            assert len(set(ensemble)) == size
            in_racks, on = reached(ensemble, racks, write_quorum)
            assert (min(in_racks, wanted), on) >= best


@pytest.mark.parametrize("sizes", HOSTS)
def test_replacements_share_no_host_with_a_copy_where_any_choice_avoids_it(sizes):
    racks = on_hosts(sizes)
    source = random.Random(9)
    for size, write_quorum in SHAPES:
        if size >= len(racks):
            continue
        ensemble = source.sample(sorted(racks), size)
        for slot in range(size):
            chosen = choose_replacements(ensemble, [slot], set(racks), write_quorum, source, Topology(racks))

            def score(bookie, ensemble=ensemble, slot=slot, write_quorum=write_quorum):
                new = [*ensemble[:slot], bookie, *ensemble[slot + 1 :]]
                hosts = [each.partition(":")[0] for each in new]
                wide = [span >= min(2, write_quorum) for span in spans([racks[each] for each in new], write_quorum)]
                return sum(wide), sum(span >= write_quorum for span in spans(hosts, write_quorum))

            assert score(chosen[slot]) == max(map(score, set(racks) - set(ensemble)))


@pytest.mark.parametrize("sizes", HOSTS)
def test_avoided_bookies_fill_an_ensemble_as_widely_as_any_of_them_could(sizes):
    """ "No two bookies of a write set are on one host while enough hosts exist": avoided ones, too, fill it so."""
    racks = on_hosts(sizes)
    source = random.Random(10)
    for size in range(2, len(racks)):
        good = set(source.sample(sorted(racks), source.randrange(size)))
        topology = Topology(racks, avoided=frozenset(set(racks) - good))
        filled = [some for some in itertools.combinations(sorted(racks), size) if good <= set(some)]
        best = max((min(2, in_racks), on) for some in filled for in_racks, on in [reached(some, racks, size)])
        for _ in range(5):
            ensemble = choose_ensemble(set(racks), size, size, source, topology)
            assert good <= set(ensemble)
            in_racks, on = reached(ensemble, racks, size)
            assert (min(2, in_racks), on) == best


@pytest.mark.parametrize("sizes", HOSTS)
def test_avoided_replacements_share_no_host_with_a_copy_where_any_of_them_does_not(sizes):
    racks = on_hosts(sizes)
    source = random.Random(11)
    topology = Topology(racks, avoided=frozenset(racks))
    for size in range(2, len(racks)):
        ensemble = source.sample(sorted(racks), size)
        for slot in range(size):
            others = {bookie.partition(":")[0] for bookie in [*ensemble[:slot], *ensemble[slot + 1 :]]}
            spare = {bookie.partition(":")[0] for bookie in set(racks) - set(ensemble)}
            (chosen,) = choose_replacements(ensemble, [slot], set(racks), size, source, topology).values()
            in_racks = {racks[bookie] for bookie in [*ensemble[:slot], *ensemble[slot + 1 :]]}
            if len(in_racks) == 1 and any(racks[bookie] not in in_racks for bookie in set(racks) - set(ensemble)):
                assert racks[chosen] not in in_racks
            elif spare - others:
                assert chosen.partition(":")[0] not in others


def test_host_of_a_bookie_is_its_id_without_the_port_unless_it_is_known():
    topology = Topology(hosts={"first": "h1"})
    assert topology.host_of("10.0.0.1:3181") == topology.host_of("10.0.0.1:3182") == "10.0.0.1"
    assert topology.host_of("[::1]:3181") == "[::1]"
    assert topology.host_of("first") == "h1"
    assert topology.host_of("second") == "second"


def test_lost_hosts_and_racks_of_a_hundred_bookies_cost_one_copy_and_their_load_spreads():
    """25 hosts of 4 bookies in 5 racks: after each loss the lost slots are replaced, as repair does."""
    racks = on_hosts(((4,) * 5,) * 5)
    source = random.Random(10)
    topology = Topology(racks)
    ledgers = [list(choose_ensemble(set(racks), 3, 3, source, topology)) for _ in range(2000)]
    alive = set(racks)
    for lost in ("r0h0:", "r3h4:", "r1"):
        alive -= {bookie for bookie in alive if bookie.startswith(lost)}
        received = Counter()
        for ensemble in ledgers:
            failed = [slot for slot, bookie in enumerate(ensemble) if bookie not in alive]
            assert len(failed) <= (2 if lost == "r1" else 1)
            for slot, bookie in choose_replacements(ensemble, failed, alive, 3, source, topology).items():
                ensemble[slot] = bookie
                received[bookie] += 1
            in_racks, on = reached(ensemble, racks, 3)
            assert (in_racks >= 2, on) == (True, 3)
        assert max(received.values()) <= 2 * sum(received.values()) / len(alive) + 8
    held = Counter(bookie for ensemble in ledgers for bookie in ensemble)
    assert max(held.values()) <= 2 * sum(held.values()) / len(alive)


def test_replacements_are_found_where_there_are_more_places_than_combinations_are_tried():
    where = {f"b{number}": f"/r{number}" for number in range(COMBINATIONS_MAX + 10)}
    topology = Topology(where, racks_min=2)
    spare = set(where) - {"b0", "b1", "b2"}
    found = choose_replacements(("b0", "b1", "b2"), (0, 2), spare, 3, random.Random(1), topology)
    assert set(found) == {0, 2}
    assert len(set(found.values())) == 2
    assert set(found.values()) <= spare


def test_replacements_are_drawn_where_there_are_more_ways_than_a_machine_counts():
    """Six slots of four racks of a thousand bookies and more: beyond 2^63 ways, and no rack is left out."""
    racks = cluster((1013, 1217, 1439, 1601))
    ensemble = ("r0b0", "r1b0", "r2b0", "r3b0", "r0b1", "r1b1", "r2b1")
    drawn = Counter()
    for seed in range(4):
        found = choose_replacements(ensemble, range(6), set(racks), 2, random.Random(seed), Topology(racks))
        assert len(set(found.values()) - set(ensemble)) == 6
        assert min(spans([racks[found.get(slot, ensemble[slot])] for slot in range(7)], 2)) == 2
        drawn.update(racks[bookie] for bookie in found.values())
    assert set(drawn) == set(racks.values())


def best_places_one_by_one(standing, slots, left, write_quorum, wanted, source):
    """The rule of `best_places`: the score of each choice by itself."""
    size = len(standing)
    touched = [sets for sets in placement.write_sets(size, write_quorum) if any(slot in slots for slot in sets)]
    best, found = (-1,), []
    filled = list(standing)
    for places in itertools.product(sorted(place for place, count in left.items() if count), repeat=len(slots)):
        if any(places.count(place) > left[place] for place in places):
            continue
        for slot, place in zip(slots, places):
            filled[slot] = place
        there = [[filled[slot] for slot in sets if filled[slot] is not None] for sets in touched]
        in_racks = [len({place.rack for place in some}) for some in there]
        on_hosts = [len({place.host for place in some}) for some in there]
        score = (
            sum(span >= wanted.racks for span in in_racks),
            sum(span >= wanted.hosts for span in on_hosts),
            sum(min(span, wanted.racks) for span in in_racks),
            sum(on_hosts),
        )
        if score > best:
            best, found = score, []
        if score == best:
            found.append(places)
    ways = [math.prod(math.perm(left[place], places.count(place)) for place in set(places)) for places in found]
    everyone = [places for places, count in zip(found, ways) for _ in range(count // math.gcd(*ways))]
    return everyone[source.sample(range(len(everyone)), 1)[0]]


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 40))])
def test_replacements_are_those_of_the_rule_that_looks_at_each_choice_by_itself(monkeypatch, seed):
    source = random.Random(seed)
    rule, compared = placement.best_places, []

    def both(*arguments):
        state = source.getstate()
        expected = best_places_one_by_one(*arguments)
        source.setstate(state)
        compared.append(expected)
        assert rule(*arguments) == expected
        return expected

    monkeypatch.setattr(placement, "best_places", both)
    while len(compared) < 20:
        hosts = [[source.randint(1, 3) for _ in range(source.randint(1, 5))] for _ in range(source.randint(1, 5))]
        if source.random() < 0.3:
            hosts = [[1] * len(some) for some in hosts]
        racks = on_hosts(hosts)
        size = source.randint(1, min(6, len(racks)))
        ensemble = source.sample(sorted(racks), size)
        failed = source.sample(range(size), source.randint(1, size))
        writable = set(source.sample(sorted(racks), source.randint(1, len(racks))))
        topology = Topology(racks, racks_min=source.randint(1, 3))
        choose_replacements(ensemble, failed, writable, source.randint(1, size), source, topology)
