"""The rate from which the time left is estimated: that of the last minute."""

from __future__ import annotations

from bookie_service.replication.recent_rate import WINDOW_S, RecentRate


def test_rate_is_unknown_at_first_and_then_that_of_what_was_seen() -> None:
    rate = RecentRate()
    assert rate.update(100.0, 0) == 0
    assert rate.update(100.25, 50) == 200
    assert rate.update(101.0, 100) == 100
    assert rate.update(103.0, 600) == 200


def test_what_was_long_ago_does_not_count() -> None:
    rate = RecentRate()
    total = 0
    for second in range(600):
        total += 1000
        rate.update(float(second), total)
    for second in range(600, 600 + 2 * int(WINDOW_S)):
        slow = rate.update(float(second), total := total + 10)
    assert slow == 10
    for second in range(1000, 1000 + int(WINDOW_S)):
        still = rate.update(float(second), total)
    assert still == 0


def test_after_a_pause_of_the_process_only_what_comes_then_counts() -> None:
    rate = RecentRate()
    rate.update(0.0, 0)
    assert rate.update(1.0, 1000) == 1000
    assert rate.update(3600.0, 1000) == 0, "not that of an hour in which the process was stopped"
    assert rate.update(3601.0, 2000) == 1000


def test_total_that_falls_has_no_rate() -> None:
    rate = RecentRate()
    rate.update(0.0, 500)
    assert rate.update(1.0, 400) == 0


def test_look_of_exactly_a_minute_ago_still_counts() -> None:
    rate = RecentRate()
    rate.update(0.0, 0)
    assert rate.update(WINDOW_S, 600) == 10


def test_looks_in_quick_succession_are_not_kept() -> None:
    rate = RecentRate()
    for number in range(1000):
        rate.update(number / 1000, number)
    assert len(rate._seen) == 2
