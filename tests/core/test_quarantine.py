"""Quarantine: how many failures, in what time, for how long."""

from __future__ import annotations

from bkspark.core.quarantine import Quarantine

SECOND = 1_000_000_000


def quarantine():
    return Quarantine(failures_max=3, window_ns=60 * SECOND, quarantine_ns=1800 * SECOND)


def test_bookie_is_out_after_the_limit_of_failures_and_back_when_its_time_is_over():
    it = quarantine()
    for second in (0, 10):
        it.on_failure("a", second * SECOND)
    it.on_failure("b", 15 * SECOND)
    assert it.members(19 * SECOND) == frozenset()
    it.on_failure("a", 20 * SECOND)
    assert it.members(20 * SECOND) == {"a"}
    assert it.members(1819 * SECOND) == {"a"}
    assert it.members(1820 * SECOND) == frozenset()
    it.on_failure("a", 1821 * SECOND)
    assert it.members(1821 * SECOND) == frozenset()


def test_bookie_that_fails_all_through_its_quarantine_is_back_at_its_end():
    it = quarantine()
    for second in range(0, 400, 10):
        it.on_failure("a", second * SECOND)
    assert it.members(1819 * SECOND) == {"a"}
    assert it.members(1820 * SECOND) == frozenset()


def test_failures_farther_apart_than_the_window_do_not_add_up():
    it = quarantine()
    for second in range(0, 400, 31):
        it.on_failure("a", second * SECOND)
    assert it.members(400 * SECOND) == frozenset()


def test_connection_that_a_thousand_writers_lose_at_once_is_one_failure():
    it = quarantine()
    for number in range(1000):
        it.on_failure("a", 5 * SECOND + number)
    assert it.members(6 * SECOND) == frozenset()


def test_failures_in_quarantine_do_not_prolong_it():
    it = quarantine()
    for second in (0, 2, 4, 6, 1000, 1800):
        it.on_failure("a", second * SECOND)
    assert it.members(1805 * SECOND) == frozenset()


def test_failures_of_one_incident_count_once_also_when_it_is_not_the_first():
    it = quarantine()
    for second in (0, 5, 5.5, 5.9):
        it.on_failure("a", round(second * SECOND))
    assert it.members(6 * SECOND) == frozenset()
    it.on_failure("a", 7 * SECOND)
    assert it.members(7 * SECOND) == {"a"}


def test_failure_as_old_as_the_window_counts_no_more():
    for last_ns, members in ((60 * SECOND - 1, {"a"}), (60 * SECOND, set())):
        it = quarantine()
        for now_ns in (0, 10 * SECOND, last_ns):
            it.on_failure("a", now_ns)
        assert it.members(last_ns) == members
