"""Room for events that grows with time."""

from __future__ import annotations

from bkspark.buckets import Bucket


def test_burst_is_there_at_first_and_one_event_needs_room_for_one() -> None:
    bucket = Bucket(2.0, 3.0, 100.0)
    assert bucket.is_full(100.0)
    for _ in range(3):
        assert bucket.has_room(100.0)
        bucket.take(1.0)
        assert not bucket.is_full(100.0)
    assert not bucket.has_room(100.0)
    assert not bucket.has_room(100.49)
    assert bucket.has_room(100.5)


def test_room_grows_with_time_up_to_the_burst() -> None:
    bucket = Bucket(2.0, 3.0, 100.0)
    bucket.take(3.0)
    assert not bucket.is_full(101.25)
    assert bucket.is_full(101.5)
    bucket.take(3.0)
    assert bucket.is_full(1000.0)
    bucket.take(3.0)
    assert not bucket.has_room(1000.0), "a long time gives no more than the burst"
    # Looking at it several times gives no more than looking once.
    for at in range(1, 10):
        bucket.has_room(1000.0 + at / 20)
    assert not bucket.has_room(1000.49)
    assert bucket.has_room(1000.5)


def test_what_is_taken_in_excess_is_missing_later() -> None:
    bucket = Bucket(1.0, 2.0, 0.0)
    bucket.take(5.0)
    assert not bucket.has_room(3.9)
    assert bucket.has_room(4.0)
