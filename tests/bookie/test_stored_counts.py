"""The counts of stored ledgers and entries, which the metrics show."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from bkspark.errors import StorageDamaged
from bookie_service.operation.stored_counts import StoredCounts


@pytest.mark.parametrize(
    "failure", [OSError(errno.EIO, os.strerror(errno.EIO), "positions"), StorageDamaged("positions: wrong digest")]
)
def test_last_counts_stay_while_a_disk_fails(failure: Exception) -> None:
    failures: list[Exception] = []

    def count() -> tuple[int, int]:
        if failures:
            raise failures[0]
        return 3, 40

    now_s = 0.0
    counts = StoredCounts(count, lambda: now_s)

    async def refresh() -> None:
        nonlocal now_s
        await counts.refresh()
        failures.append(failure)
        now_s += 3600
        await counts.refresh()

    asyncio.run(refresh())
    assert (counts.ledgers, counts.entries) == (3, 40)


class Clock:
    """A clock that goes on by as much as each count takes."""

    def __init__(self, counting_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.counting_s = counting_s
        self.counted = 0
        self.counts = StoredCounts(self._count, lambda: self.now_s)

    def _count(self) -> tuple[int, int]:
        self.counted += 1
        self.now_s += self.counting_s
        return self.counted, 0

    def refresh_at(self, now_s: float) -> int:
        """Ask for the counts at this time; return how often they were counted so far."""
        self.now_s = now_s
        asyncio.run(self.counts.refresh())
        return self.counted


def test_counts_are_taken_again_from_the_fifth_second_on() -> None:
    clock = Clock()
    assert [clock.refresh_at(now_s) for now_s in (0.0, 4.9, 5.0, 9.9, 10.0)] == [1, 1, 2, 2, 3]


def test_counting_takes_at_most_half_a_percent_of_the_time() -> None:
    """A count of a second comes again 200 s after its end."""
    clock = Clock(counting_s=1.0)
    assert [clock.refresh_at(now_s) for now_s in (0.0, 200.9, 201.0, 401.9, 402.0)] == [1, 1, 2, 2, 3]


def test_those_who_ask_at_once_share_one_count() -> None:
    counted = 0

    def count() -> tuple[int, int]:
        nonlocal counted
        counted += 1
        return counted, 0

    async def refresh() -> None:
        counts = StoredCounts(count, lambda: 0.0)
        await asyncio.gather(*(counts.refresh() for _ in range(3)))

    asyncio.run(refresh())
    assert counted == 1
