"""Times of entries that a log's writer has not noted, or has noted while many others published."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

import pytest

from bkspark.log.formats import SegmentFacts, SegmentOwner
from bkspark.log.times import OpenTimes
from bkspark.log.unnamed import remove_unnamed
from tests.log.world import World

WRITER = "a" * 16


def test_read_from_a_time_on_has_entries_that_a_writer_has_not_noted_before_others_published() -> None:
    """They may have been written after that time: when the ledger's end is recorded, they get that of what follows."""

    async def test() -> None:
        world = World()
        world.store.clock_ms = partial(next, itertools.count(1_000, 1_000))
        await world.store.create("x")
        await world.stage(5, owner=SegmentOwner("writer", WRITER))
        assert await world.store.open_writer("x", 5, WRITER, []) == 0
        await world.publish(6)
        await world.publish(7)
        snapshot = await world.store.snapshot("x")
        assert [await snapshot.first_at(ms) for ms in (1_500, 2_000, 2_001, 3_000)] == [(0, 0), (0, 0), (2, 0), (2, 0)]
        await world.store.record_closed("x", WRITER, [(0, SegmentFacts(5, 9, 100))], is_end=True)
        snapshot = await world.store.snapshot("x")
        assert [await snapshot.first_at(ms) for ms in (1_500, 2_000, 2_001, 3_000)] == [(0, 0), (0, 0), (2, 0), (2, 0)]

    asyncio.run(test())


def test_writer_that_died_while_many_others_published_leaves_its_entries_the_times_that_it_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The times of what others published have moved to pages. The time at which the ledger entered the list is too
    early: reads from a time on would miss its entries, and retention would remove them before their time."""
    monkeypatch.setattr("bkspark.log.times.RECENT_MAX", 4)
    monkeypatch.setattr("bkspark.log.times.PAGE_MARKS_MAX", 3)

    async def test() -> None:
        world = World()
        world.store.clock_ms = partial(next, itertools.count(1_000, 1_000))
        await world.store.create("x")
        await world.publish(1)
        await world.stage(5, owner=SegmentOwner("writer", WRITER))
        assert await world.store.open_writer("x", 5, WRITER, []) == 1
        for ledger_id in range(6, 18):
            await world.publish(ledger_id)
        noted = OpenTimes()
        noted.note(0, 10, 5_500)
        noted.note(10, 20, 5_600)
        await world.store.note_times("x", 5, noted)
        snapshot = await world.store.snapshot("x")
        assert snapshot.head.times.pages
        wanted = {1_001: (1, 0), 5_500: (1, 0), 5_501: (1, 10), 5_601: (1, 20), 6_001: (6, 0), 13_500: (13, 0)}
        assert {ms: await snapshot.first_at(ms) for ms in wanted} == wanted
        await world.store.record_closed("x", WRITER, [(1, SegmentFacts(5, 29, 100))], is_end=True)
        snapshot = await world.store.snapshot("x")
        assert snapshot.open_ordinals == ()
        assert len(snapshot.head.times.marks) <= 4
        assert {ms: await snapshot.first_at(ms) for ms in wanted} == wanted
        await remove_unnamed(world.store.heads, "x")
        again = await world.another_store().snapshot("x")
        assert {ms: await again.first_at(ms) for ms in wanted} == wanted

    asyncio.run(test())
