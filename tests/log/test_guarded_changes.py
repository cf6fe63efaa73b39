"""What each guard of a log's changes prevents: ledgers that are no longer pending, places that are gone, other logs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from bkspark.errors import DataLoss
from bkspark.log.formats import LOGS_ROOT, PAGES, SegmentFacts, SegmentOwner, encode_head
from bkspark.log.positions import Position
from bkspark.log.store import LogStore
from bkspark.log.times import OpenTimes, TimeIndex, TimePageRef
from bkspark.metadata.tree import ANY_VERSION
from tests.log.paged_logs import Paged
from tests.log.world import PrecededTransaction, World, closed, in_world, slice_of

WRITER, OTHER = "a" * 16, "b" * 16
SHARER = SegmentOwner("query", "q1")


async def share(world: World, first_entry: int, last_entry: int) -> None:
    """Publish entries of ledger 5, of which more will follow."""
    await world.store.append_ledgers("x", [slice_of(5, first_entry, last_entry)], shared=[5])


@pytest.mark.parametrize("removes", ["overwrite", "truncation"])
def test_no_more_of_a_shared_ledger_is_published_once_it_was_taken_out_of_the_log(removes: str) -> None:
    """It is deleted: what were published of it now would be lost."""

    @in_world
    async def test(world: World) -> None:
        await world.stage(5, owner=SHARER)
        await share(world, 0, 4)
        await world.publish(6)
        if removes == "overwrite":
            await world.stage(7)
            await world.store.replace_ledgers("x", closed(7), closed=())
        else:
            assert await world.store.truncate("x", Position(0, 5, 5), at_ledger_end=True, closed=()) == 1
        with pytest.raises(DataLoss):
            await share(world, 5, 9)

    test()


@in_world
async def test_writer_gets_no_ledger_that_was_condemned_before_it_was_added(world: World) -> None:
    await world.stage(1)
    assert await world.store.open_writer("x", 1, WRITER, ()) == 0
    with pytest.raises(DataLoss):
        await world.store.add_writer_ledger("x", 2, WRITER, ())
    with pytest.raises(DataLoss):
        await world.store.open_writer("x", 3, OTHER, [(0, SegmentFacts(1, 4, 50))])
    assert await world.ids() == [1]


@in_world
async def test_start_of_a_log_never_goes_back(world: World) -> None:
    await world.publish(1, 2)
    start = Position(0, 1, 5)
    await world.store.truncate("x", start, at_ledger_end=False, closed=())
    await world.store.truncate("x", Position(0, 1, 3), at_ledger_end=False, closed=())
    assert (await world.store.snapshot("x")).start == start


@in_world
async def test_reader_is_registered_from_the_start_of_a_log_on_and_not_before_it_in_the_same_ledger(
    world: World,
) -> None:
    await world.publish(1, 2)
    await world.store.truncate("x", Position(0, 1, 5), at_ledger_end=False, closed=())
    with pytest.raises(DataLoss, match="begins at"):
        await world.store.consumers.register("x", "etl", Position(0, 1, 4), 60_000)
    assert await world.store.consumers.all("x") == []
    await world.store.consumers.register("x", "etl", Position(0, 1, 5), 60_000)


@in_world
async def test_end_of_a_ledger_of_a_former_log_is_not_recorded_in_a_new_one_of_its_name(world: World) -> None:
    await world.publish(1)
    await world.stage(2)
    assert await world.store.open_writer("x", 2, WRITER, [(0, SegmentFacts(9, 3, 40))]) == 1
    listed = await (await world.store.snapshot("x")).ledgers()
    assert [(each.ledger_id, each.last_entry) for each in listed] == [(1, 9), (2, None)]


@in_world
async def test_times_that_a_writer_notes_while_its_ledger_is_recorded_as_closed_are_kept(world: World) -> None:
    noted, world.store.clock_ms = OpenTimes(), lambda: 500

    async def note(end_entry: int, ms: int) -> None:
        noted.note(noted.until, end_entry, ms)
        await world.store.note_times("x", 1, noted)

    await world.stage(1, 2)
    await world.store.open_writer("x", 1, WRITER, ())
    await note(3, 1_000)
    late = LogStore(PrecededTransaction(world.server, partial(note, 10, 2_000)), "/ledgers", lambda: 9_000)
    assert await late.open_writer("x", 2, OTHER, [(0, SegmentFacts(1, 9, 90))]) == 1
    timeline = await (await world.store.snapshot("x")).times((0, 0), (1, 0))
    assert timeline.of_entries(0, 0, 10) == ((0, 1_000), (3, 2_000))


def test_page_that_was_truncated_meanwhile_is_not_taken_for_a_later_one() -> None:
    async def test() -> None:
        paged = Paged(0, 20, 21)
        await paged.write_pages()
        gone, left = paged.head.pages
        newer = replace(paged.head, first_ordinal=10, start=Position.beginning(10), pages=(left,))
        await paged.tree.set(f"{LOGS_ROOT}/x", encode_head(newer), ANY_VERSION)
        await paged.tree.delete(f"{LOGS_ROOT}/x/{PAGES}/{gone.name}")
        with pytest.raises(DataLoss, match="was truncated"):
            await paged.snapshot.ledger(3)

    asyncio.run(test())


@in_world
async def test_first_entry_of_a_page_of_times_is_found_without_the_page(world: World) -> None:
    head = replace(Paged(0, 0, 9).head, times=TimeIndex((TimePageRef(1, 0, 1_000, 5, "t"),), ()))
    snapshot = world.store.snapshot_of("x", head)
    assert await snapshot.first_at(1_000) == (1, 0)
