"""Attempts: a ledger is published or condemned, never both; ledgers that can no longer be published are found and
deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from bkspark.errors import DataLoss, MetadataError, NodeExists
from bkspark.log.formats import PendingLedger, SegmentOwner
from bkspark.log.store import LogStore
from bkspark.metadata.memory import Fault
from tests.log.world import JOB, TurningTree, World, closed, everything, in_world


async def new_world() -> World:
    world = World()
    await world.store.create("x")
    return world


@in_world
async def test_a_pending_ledger_tells_its_owner_and_its_age(world: World) -> None:
    world.server.now_ms = 777
    await world.stage(5)
    assert await world.store.attempts.pending("x") == [PendingLedger(5, JOB, 0, 777)]


@in_world
async def test_two_attempts_never_share_a_ledger(world: World) -> None:
    await world.stage(5)
    with pytest.raises(NodeExists):
        await world.store.attempts.add("x", 5, SegmentOwner("job", "j1", partition=3, attempt=3))


@in_world
async def test_a_condemned_ledger_cannot_be_published_any_more(world: World) -> None:
    await world.stage(5)
    assert await world.store.attempts.condemn("x", everything) == [5]
    with pytest.raises(DataLoss, match="ledger 5 is not pending"):
        await world.store.append_ledgers("x", closed(5))
    assert await world.store.attempts.sweep("x", world.delete) == 1
    assert world.deleted == [5]
    assert await world.nodes("condemned") == []


@in_world
async def test_a_published_ledger_is_never_condemned_even_if_it_is_still_registered(world: World) -> None:
    """Its process has died, which would have published more of it."""
    await world.publish(1)
    await world.stage(5)
    assert (await world.store.append_ledgers("x", closed(5), shared=[5])).is_new
    assert await world.nodes("pending") == ["5"]
    assert await world.vacuum(created_before_ms=1) == []
    assert await world.nodes("pending") == []
    assert await world.ids() == [1, 5]


@pytest.mark.parametrize("seed", range(30))
def test_a_race_of_publishing_and_condemning_ends_with_one_of_them(seed: int) -> None:
    """Every order of their steps: each starts after a number of turns of the event loop."""

    async def later(turns: int, work: Awaitable[object]) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        try:
            await work
        except DataLoss:
            return

    async def run() -> None:
        world = await new_world()
        ids = list(range(5))
        await world.stage(*ids)
        publishing = LogStore(TurningTree(world.server), "/ledgers")
        condemning = LogStore(TurningTree(world.server), "/ledgers")
        await asyncio.gather(
            later(seed % 6, publishing.append_ledgers("x", closed(*ids))),
            later(seed // 6, condemning.attempts.vacuum("x", world.delete, created_before_ms=1)),
        )
        assert (await world.ids(), sorted(world.deleted)) in ((ids, []), ([], ids))
        assert await world.pending() == []

    asyncio.run(run())


@in_world
async def test_vacuum_takes_attempts_for_dead_by_age_and_by_their_querys_epoch(world: World) -> None:
    world.server.now_ms = 1_000
    await world.stage(1)
    world.server.now_ms = 2_000
    await world.stage(2)
    for ledger_id, epoch in ((3, 6), (4, 7), (5, 8)):
        await world.store.attempts.add("x", ledger_id, SegmentOwner("query", "q", epoch=epoch, partition=0, attempt=0))
    await world.store.attempts.add("x", 6, SegmentOwner("query", "other", epoch=0))
    await world.store.append_ledgers("x", [], publisher=("q", 7))
    assert await world.vacuum(created_before_ms=1_500) == [1, 3, 4]
    assert await world.pending() == [2, 5, 6]


@in_world
async def test_vacuum_finishes_what_an_interrupted_sweep_left(world: World) -> None:
    await world.stage(*range(3))
    await world.store.attempts.condemn("x", everything)
    assert await world.vacuum() == [0, 1, 2]
    assert await world.vacuum() == []


@in_world
async def test_vacuum_removes_pages_that_no_head_names_and_no_other(world: World) -> None:
    await world.stage(*range(201))
    world.server.faults[world.server.writes + 1] = Fault.LOST_BEFORE  # the page is written, the head is not
    await world.store.append_ledgers("x", closed(*range(201)))
    assert len(await world.nodes("pages")) == 2
    await world.vacuum()
    head = (await world.store.snapshot("x")).head
    assert await world.nodes("pages") == [ref.name for ref in head.pages]
    assert len(await world.ids()) == 201


@pytest.mark.parametrize("fault", list(Fault))
def test_a_vacuum_interrupted_at_any_write_is_finished_by_the_next(fault: Fault) -> None:
    async def run(at: int) -> bool:
        world = await new_world()
        await world.stage(*range(3))
        first = world.server.writes
        world.server.faults[first + at] = fault
        try:
            await world.vacuum(created_before_ms=1)
        except MetadataError:
            await world.vacuum(created_before_ms=1)
        assert sorted(set(world.deleted)) == [0, 1, 2]
        assert await world.nodes("pending") == []
        await world.vacuum()
        assert await world.nodes("condemned") == []
        return world.server.writes - first > at

    at = 0
    while asyncio.run(run(at)):
        at += 1
    assert at > 3


@in_world
async def test_many_pending_ledgers_are_condemned_in_transactions_of_bounded_size(world: World) -> None:
    await world.stage(*range(1_200))
    assert len(await world.vacuum(created_before_ms=1)) == 1_200
    assert (await world.store.snapshot("x")).version == 4
