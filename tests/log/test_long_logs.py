"""The log store with logs of thousands of ledgers: nodes stay small, and no change or read touches all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bkspark.errors import (
    DataLoss,
)
from bkspark.log.formats import (
    LAST_EPOCHS_MAX,
    PAGE_LEDGERS_MAX,
    TAIL_LEDGERS_MAX,
    PageRef,
    SegmentFacts,
    encode_head,
)
from bkspark.log.positions import Position
from bkspark.log.store import LogStore
from tests.log.world import CountingTree, World, closed, in_world


@in_world
async def test_a_log_of_5000_ledgers_reads_back_in_order_and_its_nodes_stay_small(world: World) -> None:
    ids = list(range(10**18, 10**18 + 5_000))
    for start in range(0, 4_000, 150):
        await world.publish(*ids[start : min(start + 150, 4_000)])
    await world.publish(*ids[4_000:])
    assert await world.ids() == ids
    snapshot = await world.store.snapshot("x")
    assert [ref.first_ordinal for ref in snapshot.head.pages] == [0, PAGE_LEDGERS_MAX, 2 * PAGE_LEDGERS_MAX]
    tree = world.server.session()
    pages = await tree.children("/bkspark/logs/x/pages")
    assert sorted(pages) == sorted(ref.name for ref in snapshot.head.pages)
    sizes = [len((await tree.get(f"/bkspark/logs/x/pages/{page}"))[0]) for page in pages]
    assert max(sizes) < 200_000
    assert len((await tree.get("/bkspark/logs/x"))[0]) < 20_000


@in_world
async def test_part_of_a_long_log_is_read_without_its_other_pages(world: World) -> None:
    await world.publish(*range(6_500))
    counting = CountingTree(world.server)
    snapshot = await LogStore(counting, "/ledgers").snapshot("x")
    assert [ledger.ledger_id for ledger in await snapshot.ledgers(2_500, 2_503)] == [2_500, 2_501, 2_502]
    assert (await snapshot.ledger(2_499)).ledger_id == 2_499
    assert counting.reads == ["/bkspark/logs/x", f"/bkspark/logs/x/pages/{snapshot.head.pages[1].name}"]


@in_world
async def test_appending_to_a_long_log_reads_and_writes_no_full_page(world: World) -> None:
    await world.publish(*range(6_000))
    full = (await world.store.snapshot("x")).head.pages
    counting = CountingTree(world.server)
    store = LogStore(counting, "/ledgers")
    for start in range(10_000, 10_900, 100):
        await world.stage(*range(start, start + 100))
        await store.append_ledgers("x", closed(*range(start, start + 100)))
    snapshot = await store.snapshot("x")
    assert snapshot.head.pages[:3] == full[:3]
    read = {path.rpartition("/")[2] for path in counting.reads if "/pages/" in path}
    assert not read & {ref.name for ref in full[:3]}
    assert [ledger.ledger_id for ledger in await snapshot.ledgers(5_999, 6_101)] == [
        5_999,
        *range(10_000, 10_100),
        10_100,
    ]


@in_world
async def test_a_million_ledgers_fit_into_the_head(world: World) -> None:
    """Built by hand from full pages: only their names are in the head."""
    head = (await world.store.snapshot("x")).head
    pages = tuple(PageRef(f"{first}-{'a' * 16}") for first in range(0, 1_000_000, PAGE_LEDGERS_MAX))
    epochs = tuple((f"{'q' * 190}{number}", 1 << 62) for number in range(LAST_EPOCHS_MAX))
    largest = SegmentFacts((1 << 63) - 1, (1 << 63) - 2, (1 << 63) - 1)
    full = replace(
        head,
        pages=pages,
        tail_ordinal=1_000_000,
        tail=(largest,) * TAIL_LEDGERS_MAX,
        last_epochs=epochs,
        changes=("a",) * 32,
    )
    assert len(encode_head(full)) < 400_000


@in_world
async def test_a_snapshot_reads_on_when_its_last_page_was_rewritten(world: World) -> None:
    await world.publish(*range(300))
    before = await world.another_store().snapshot("x")
    await world.publish(*range(300, 600))
    assert [ledger.ledger_id for ledger in await before.ledgers()] == list(range(300))


@in_world
async def test_a_snapshot_of_what_was_truncated_meanwhile_says_so(world: World) -> None:
    await world.publish(*range(4_100))
    before = await world.another_store().snapshot("x")
    await world.store.truncate("x", Position(3_000, 3_000, 5), at_ledger_end=False, closed=())
    with pytest.raises(DataLoss, match="truncated"):
        await before.ledgers()
    assert (await before.ledger(4_050)).ledger_id == 4_050


@in_world
async def test_the_list_is_read_backwards_from_any_ordinal(world: World) -> None:
    await world.publish(*range(2_300))
    await world.publish(5_000)
    snapshot = await world.store.snapshot("x")
    backwards = [ledger.ledger_id async for ledger in snapshot.last_before(2_301)]
    assert backwards == [5_000, *range(2_299, -1, -1)]
    assert [ledger.ledger_id async for ledger in snapshot.last_before(2)] == [1, 0]
