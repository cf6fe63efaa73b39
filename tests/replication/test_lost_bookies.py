"""When a bookie counts as lost (docs/protocol.md §7.2)."""

from __future__ import annotations

from bookie_service.replication.lost_bookies import AuditDecision, LostBookies, lost_in

ALL = ("a", "b", "c", "d")
NOTHING = AuditDecision(frozenset(), None)


def test_one_lost_bookie_gets_the_delay_to_come_back():
    lost = LostBookies()
    assert lost.decide(ALL, ALL, 0, 60) == NOTHING
    assert lost.decide(ALL, "abc", 100, 60) == AuditDecision(frozenset(), 60)
    assert lost.decide(ALL, "abc", 130, 60) == AuditDecision(frozenset(), 30)
    assert lost.decide(ALL, ALL, 140, 60) == NOTHING
    assert lost.decide(ALL, "abc", 150, 60) == AuditDecision(frozenset(), 60)
    assert lost.decide(ALL, "abc", 210, 60) == AuditDecision(frozenset("d"), None)


def test_without_a_delay_and_upon_a_second_lost_bookie_the_audit_is_at_once():
    assert LostBookies().decide(ALL, "abc", 0, 0) == AuditDecision(frozenset("d"), None)
    lost = LostBookies()
    assert not lost.decide(ALL, "abc", 0, 60).audit
    assert lost.decide(ALL, "ab", 1, 60) == AuditDecision(frozenset("cd"), None)


def test_bookies_restarted_one_after_the_other_are_never_audited():
    lost = LostBookies()
    for moment, away in enumerate("abcd" * 5):
        assert lost.decide(ALL, set(ALL) - {away}, moment * 59, 60).audit == frozenset()


def test_an_audit_is_not_repeated_until_asked_for_or_the_bookie_was_back():
    lost = LostBookies()
    assert lost.decide(ALL, "abc", 0, 0).audit == frozenset("d")
    assert lost.decide(ALL, "abc", 1, 0).audit == frozenset("d"), "it failed: no report said that it was done"
    lost.on_audited("d")
    assert lost.decide(ALL, "abc", 2, 0) == NOTHING
    lost.forget_audits()
    assert lost.decide(ALL, "abc", 3, 0).audit == frozenset("d")
    lost.on_audited("d")
    lost.decide(ALL, ALL, 4, 0)
    assert lost.decide(ALL, "abc", 5, 0).audit == frozenset("d")


def test_operator_ends_the_delay():
    lost = LostBookies()
    lost.decide(ALL, "abc", 0, 3600)
    lost.end_delay()
    assert lost.decide(ALL, "abc", 1, 3600).audit == frozenset("d")


def test_decommissioned_bookie_is_not_lost():
    assert LostBookies().decide("abc", "abc", 0, 0) == NOTHING


def test_lost_bookies_of_a_ledger_and_those_without_cookie_and_registration_are_missing():
    assert lost_in([("a", "b"), ("c", "gone")], {"a", "d"}, "abcd", "bc") == ["a", "gone"]
    assert lost_in([("a", "b")], {"a"}, "ab", "ab") == []
    # Lost, but not for long enough: known, and not among those to act upon.
    assert lost_in([("a", "b")], set(), "ab", "b") == []
