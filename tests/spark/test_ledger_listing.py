"""What a selection of ledgers costs the driver, beside many other ledgers: a model of ZooKeeper makes these up."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from benchmarks.made_up_ledgers import URI, MadeUpTree, made_up_tree
from bkspark.client import Client
from bkspark.errors import NoSuchLedger
from bkspark.spark.ledger_offsets import LedgerIds
from bkspark.spark.option_values import EVERY_LEDGER, parse_ledgers
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.stored_ledgers import every_ledger

MANY = 300_000
MEMORY_MAX = 4 << 20
"""Fewer bytes than `MANY` ids take in a list."""

T = TypeVar("T")


class CountedTree(MadeUpTree):
    """Counts the listings of folders that hold ids of ledgers, 10,000 each."""

    listings = 0

    async def children(self, path: str) -> list[str]:
        self.listings += re.fullmatch(r"/ledgers/[0-9]{2}/[0-9]{4}", path) is not None
        return await super().children(path)


def on_cluster(ledgers: int, look: Callable[[Client, CountedTree], Awaitable[T]]) -> T:
    """Run `look` on a cluster that has ledgers 0 to `ledgers` - 1."""

    async def run() -> T:
        tree = await made_up_tree(ledgers)
        tree.__class__ = CountedTree
        assert isinstance(tree, CountedTree)
        async with Client(URI, tree=tree) as client:
            return await look(client, tree)

    return asyncio.run(run())


def planner(client: Client, **given: str) -> ReadPlanner:
    return ReadPlanner(client, SourceOptions.parse({"uri": URI, **given}).for_batch_read())


def test_a_range_is_listed_as_far_as_it_reaches() -> None:
    async def look(client: Client, tree: CountedTree) -> tuple[int, int]:
        ranges = await planner(client, ledgers="29998-30001").chosen(parse_ledgers("29998-30001"))
        return len(ranges), tree.listings

    found, listings = on_cluster(MANY, look)
    assert found == 4
    # Those of its first two ids and of the others, and the one that comes next at most.
    assert listings <= 3


def test_a_range_without_ledgers_is_named() -> None:
    async def look(client: Client, tree: CountedTree) -> None:
        await planner(client, ledgers="50-60").chosen(parse_ledgers("50-60"))

    with pytest.raises(NoSuchLedger, match="names 50-60, but no ledger has such an id"):
        on_cluster(10, look)


def test_ledgers_that_a_stream_has_finished_cost_its_triggers_no_memory() -> None:
    async def look(client: Client, tree: CountedTree) -> tuple[list[int], int]:
        finished = LedgerIds([(0, 99_998), (100_000, MANY - 1)])
        await planner(client, ledgers="0-9").chosen(parse_ledgers("0-9"))
        tracemalloc.start()
        try:
            found, after = await planner(client, ledgers="*").followed([EVERY_LEDGER], finished, (), is_begin=False)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert after.ranges == finished.ranges
        return [each.extent.ledger_id for each in found], peak

    found, peak = on_cluster(MANY, look)
    assert found == [99_999]
    assert peak < MEMORY_MAX


def test_ledgers_of_another_selection_are_finished_at_once() -> None:
    async def look(client: Client, tree: CountedTree) -> tuple[int, LedgerIds]:
        chosen = planner(client, ledgers="*", **{"ledgerMetadata.team": "x"})
        found, finished = await chosen.followed([EVERY_LEDGER], LedgerIds(), (), is_begin=False)
        return len(found), finished

    found, finished = on_cluster(12_000, look)
    assert found == 0
    assert finished.ranges == ((0, 11_999),)


def test_the_table_of_ledgers_keeps_no_list_of_all() -> None:
    async def look(client: Client, tree: CountedTree) -> tuple[int, int]:
        count = 0
        async for ledger_id, _ in every_ledger(client):
            assert ledger_id == count
            count += 1
            if count == 1000:
                break
        return count, tree.listings

    assert on_cluster(MANY, look) == (1000, 2)  # one is read ahead
