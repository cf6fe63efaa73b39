"""ReadSpeeds: which bookies count as slow, when they are asked again, and when a further one is asked."""

from __future__ import annotations

import pytest

from bkspark.core.reader import EntrySpan, groups
from bkspark.core.speeds import (
    FORGOTTEN_S,
    KNOWN_ANSWERS_MIN,
    SLOWER_MAX,
    SMALL_BYTES,
    SPECULATIVE_DELAY_FACTOR,
    SPECULATIVE_DELAY_S_MIN,
    SPECULATIVE_SAVED_MAX,
    SPECULATIVE_SHARE,
    TRY_AGAIN_S,
    ReadSpeeds,
)

BOOKIES = ("b1", "b2", "b3")
MILLISECOND = 0.001


def speeds_of(**milliseconds: float) -> ReadSpeeds:
    """Return speeds where each bookie has answered a small read once, at time 0."""
    speeds = ReadSpeeds()
    for bookie, took in milliseconds.items():
        speeds.on_answer(bookie, 100, took * MILLISECOND, 0.0)
    return speeds


def test_bookie_is_slow_if_it_takes_three_times_as_long_as_the_fastest_of_its_write_set() -> None:
    speeds = speeds_of(b1=1, b2=2.9, b3=10)
    assert speeds.slow(BOOKIES, 100, 1.0) == {"b3"}
    assert speeds.slow(("b2", "b3"), 100, 1.0) == {"b3"}
    assert speeds.slow(("b3",), 100, 1.0) == frozenset()


def test_bookie_that_takes_exactly_three_times_as_long_is_not_slow_yet() -> None:
    speeds = ReadSpeeds()
    for bookie, seconds_per_byte in (("b1", 1.0), ("b2", SLOWER_MAX), ("b3", SLOWER_MAX + 1)):
        speeds.on_answer(bookie, 100, seconds_per_byte * (SMALL_BYTES + 100), 0.0)
    assert speeds.slow(BOOKIES, 100, 1.0) == {"b3"}


def test_difference_below_a_millisecond_makes_no_bookie_slow() -> None:
    assert speeds_of(b1=0.1, b2=1.0).slow(BOOKIES, 100, 1.0) == frozenset()


def test_one_slow_answer_makes_no_bookie_slow_and_two_do() -> None:
    speeds = speeds_of(b1=2, b2=2)
    speeds.on_answer("b2", 100, 1.0, 1.0)
    assert speeds.slow(BOOKIES, 100, 1.0) == frozenset()
    speeds.on_answer("b2", 100, 1.0, 1.0)
    assert speeds.slow(BOOKIES, 100, 1.0) == {"b2"}


def test_large_answers_have_speeds_of_their_own() -> None:
    speeds = speeds_of(b1=1, b2=1)
    for bookie, took in (("b1", 2), ("b2", 50)):
        speeds.on_answer(bookie, 1 << 20, took * MILLISECOND, 0.0)
    assert speeds.slow(BOOKIES, 1 << 20, 1.0) == {"b2"}
    assert speeds.slow(BOOKIES, 100, 1.0) == frozenset()


def test_bookie_that_was_overtaken_is_slow_without_an_answer() -> None:
    speeds = speeds_of(b1=1)
    speeds.on_overtaken("b2", 100, 10 * MILLISECOND, 0.0)
    assert speeds.slow(BOOKIES, 100, 1.0) == {"b2"}
    # What was waited for it says nothing when it is known to take longer.
    speeds.on_overtaken("b2", 100, 1 * MILLISECOND, 1.0)
    assert speeds.slow(BOOKIES, 100, 1.0) == {"b2"}


def test_slow_bookie_that_is_overtaken_again_and_again_stays_known() -> None:
    """Once it was forgotten, it would be asked first again, and a read would wait for it."""
    speeds = speeds_of(b1=1, b2=100)
    for number in range(1, 9):
        now_s = number * FORGOTTEN_S / 4
        speeds.on_answer("b1", 100, 1 * MILLISECOND, now_s)
        speeds.on_overtaken("b2", 100, 10 * MILLISECOND, now_s)
        assert speeds.slow(BOOKIES, 100, now_s) == {"b2"}


def test_speed_that_is_old_is_not_known() -> None:
    assert speeds_of(b1=1, b2=10).slow(BOOKIES, 100, FORGOTTEN_S) == frozenset()


def test_one_answer_counts_where_the_last_one_is_long_ago() -> None:
    speeds = speeds_of(b1=1, b2=100)
    for bookie in ("b1", "b2"):
        speeds.on_answer(bookie, 100, 1 * MILLISECOND, TRY_AGAIN_S)
    assert speeds.slow(BOOKIES, 100, TRY_AGAIN_S) == frozenset()


def test_bookies_are_compared_after_exactly_as_many_answers_as_make_one_known() -> None:
    speeds = ReadSpeeds()
    for _ in range(KNOWN_ANSWERS_MIN):
        assert speeds.to_try(BOOKIES, 100, 0.0) is None
        speeds.on_answer("b1", 100, 1 * MILLISECOND, 0.0)
    assert speeds.to_try(BOOKIES, 100, 0.0) == "b2"


def test_client_that_reads_much_asks_each_other_bookie_once_in_ten_seconds() -> None:
    speeds = speeds_of(b1=1)
    assert speeds.to_try(BOOKIES, 100, 0.0) is None
    for _ in range(KNOWN_ANSWERS_MIN):
        speeds.on_answer("b1", 100, 1 * MILLISECOND, 0.0)
    assert [speeds.to_try(BOOKIES, 100, 0.0) for _ in range(3)] == ["b2", "b3", None]
    # Neither answered; they are not asked again before the time is over.
    later = TRY_AGAIN_S / 2
    speeds.on_answer("b1", 100, 1 * MILLISECOND, later)
    assert speeds.to_try(BOOKIES, 100, later) is None
    assert [speeds.to_try(BOOKIES, 100, TRY_AGAIN_S) for _ in range(3)] == ["b2", "b3", None]


def test_further_bookie_is_asked_after_some_times_the_usual_time_of_the_fastest() -> None:
    speeds = speeds_of(b1=10, b2=100)
    assert speeds.speculative_delay_s(BOOKIES, 100, 1.0) == pytest.approx(SPECULATIVE_DELAY_FACTOR * 10 * MILLISECOND)
    assert speeds_of(b1=0.1).speculative_delay_s(BOOKIES, 100, 1.0) == SPECULATIVE_DELAY_S_MIN
    assert ReadSpeeds().speculative_delay_s(BOOKIES, 100, 1.0) is None


def test_requests_to_further_bookies_are_limited_to_a_share() -> None:
    speeds = speeds_of(b1=1)
    for _ in range(int(SPECULATIVE_SAVED_MAX)):
        assert speeds.speculative_delay_s(BOOKIES, 100, 1.0) is not None
        speeds.on_speculative_read()
    assert speeds.speculative_delay_s(BOOKIES, 100, 1.0) is None
    for _ in range(int(1 / SPECULATIVE_SHARE) + 1):
        speeds.on_answer("b1", 100, 1 * MILLISECOND, 1.0)
    assert speeds.speculative_delay_s(BOOKIES, 100, 1.0) is not None


def test_slow_replicas_are_asked_after_the_others_and_before_those_that_failed() -> None:
    span = EntrySpan(0, 10, BOOKIES)
    (group,) = groups(span, 5, 3, "b1", frozenset({"b2"}), frozenset({"b1"}))
    assert [group.next_replica() for _ in range(3)] == ["b3", "b1", "b2"]


def test_client_that_knew_enough_of_one_bookie_still_does_after_a_pause():
    speeds = ReadSpeeds()
    for number in range(KNOWN_ANSWERS_MIN):
        assert not speeds.is_informed
        speeds.on_answer("a", 100, 0.001, float(number) / 100)
    assert speeds.is_informed
    speeds.on_answer("a", 100, 0.001, 10 * TRY_AGAIN_S)
    assert speeds.is_informed
