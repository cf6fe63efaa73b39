"""When a bookie counts as lost (docs/protocol.md §7.2)."""

from __future__ import annotations

from bkspark.core.placement import FLAT, Topology
from bookie_service.replication.lost_bookies import AuditDecision, LostBookies, lost_in

ALL = ("a", "b", "c", "d")
NOTHING = AuditDecision(frozenset(), None)
host_of = FLAT.host_of


def test_one_lost_bookie_gets_the_delay_to_come_back():
    lost = LostBookies()
    assert lost.decide(ALL, ALL, 0, 60, host_of) == NOTHING
    assert lost.decide(ALL, "abc", 100, 60, host_of) == AuditDecision(frozenset(), 60)
    assert lost.decide(ALL, "abc", 130, 60, host_of) == AuditDecision(frozenset(), 30)
    assert lost.decide(ALL, ALL, 140, 60, host_of) == NOTHING
    assert lost.decide(ALL, "abc", 150, 60, host_of) == AuditDecision(frozenset(), 60)
    assert lost.decide(ALL, "abc", 210, 60, host_of) == AuditDecision(frozenset("d"), None)


def test_without_a_delay_and_upon_a_second_lost_bookie_the_audit_is_at_once():
    assert LostBookies().decide(ALL, "abc", 0, 0, host_of) == AuditDecision(frozenset("d"), None)
    lost = LostBookies()
    assert not lost.decide(ALL, "abc", 0, 60, host_of).audit
    assert lost.decide(ALL, "ab", 1, 60, host_of) == AuditDecision(frozenset("cd"), None)


def test_bookies_of_one_host_that_restarts_get_the_delay_together():
    """The host is one failure domain: writers leave no two copies of an entry there (docs/operations.md)."""
    host, other = {"h:1", "h:2", "h:3"}, {"i:1", "i:2", "i:3"}
    lost = LostBookies()
    assert lost.decide(host | other, other | {"h:2", "h:3"}, 0, 60, host_of) == AuditDecision(frozenset(), 60)
    assert lost.decide(host | other, other, 1, 60, host_of) == AuditDecision(frozenset(), 59)
    assert lost.decide(host | other, other | {"h:1"}, 30, 60, host_of) == AuditDecision(frozenset(), 31)
    assert lost.decide(host | other, other | host, 50, 60, host_of) == NOTHING
    assert lost.decide(host | other, other, 60, 60, host_of) == AuditDecision(frozenset(), 60)
    assert lost.decide(host | other, other, 120, 60, host_of).audit == host
    # The second host is a second loss, also while the first one is known to be lost.
    lost.on_audited(host)
    assert lost.decide(host | other, other - {"i:2"}, 121, 60, host_of).audit == host | {"i:2"}


def test_hosts_of_bookies_without_an_address_in_their_ids_are_those_of_the_rack_map():
    topology = Topology(hosts={"north-1": "north", "north-2": "north"})
    bookies = ("north-1", "north-2", "south-1", "south-2")
    assert not LostBookies().decide(bookies, bookies[2:], 0, 60, topology.host_of).audit
    assert LostBookies().decide(bookies, bookies[:2], 0, 60, topology.host_of).audit == set(bookies[2:])


def test_bookies_restarted_one_after_the_other_are_never_audited():
    lost = LostBookies()
    for moment, away in enumerate("abcd" * 5):
        assert lost.decide(ALL, set(ALL) - {away}, moment * 59, 60, host_of).audit == frozenset()


def test_an_audit_is_not_repeated_until_asked_for_or_the_bookie_was_back():
    lost = LostBookies()
    assert lost.decide(ALL, "abc", 0, 0, host_of).audit == frozenset("d")
    assert lost.decide(ALL, "abc", 1, 0, host_of).audit == frozenset("d"), "it failed: no report said that it was done"
    lost.on_audited("d")
    assert lost.decide(ALL, "abc", 2, 0, host_of) == NOTHING
    lost.forget_audits()
    assert lost.decide(ALL, "abc", 3, 0, host_of).audit == frozenset("d")
    lost.on_audited("d")
    lost.decide(ALL, ALL, 4, 0, host_of)
    assert lost.decide(ALL, "abc", 5, 0, host_of).audit == frozenset("d")


def test_operator_ends_the_delay():
    lost = LostBookies()
    lost.decide(ALL, "abc", 0, 3600, host_of)
    lost.end_delay()
    assert lost.decide(ALL, "abc", 1, 3600, host_of).audit == frozenset("d")


def test_decommissioned_bookie_is_not_lost():
    assert LostBookies().decide("abc", "abc", 0, 0, host_of) == NOTHING


def test_lost_bookies_of_a_ledger_and_those_without_cookie_and_registration_are_missing():
    assert lost_in([("a", "b"), ("c", "gone")], {"a", "d"}, "abcd", "bc") == ["a", "gone"]
    assert lost_in([("a", "b")], {"a"}, "ab", "ab") == []
    # Lost, but not for long enough: known, and not among those to act upon.
    assert lost_in([("a", "b")], set(), "ab", "b") == []
