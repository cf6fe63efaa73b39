"""The list of under-replicated ledgers where others change it at the same time; in memory (docs/protocol.md §4.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.errors import MetadataError, NoSuchNode
from bkspark.ids import LEDGER_ID_MAX
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.underreplication import RecoveryDelay, UnderreplicationStore
from bkspark.metadata.uri import MetadataUri
from tests.metadata.meanwhile import Meanwhile

URI = MetadataUri.parse("zk://127.0.0.1:2181/ledgers")
ROOT = "/ledgers/underreplication"


def run(test: Callable[[MemoryStore, UnderreplicationStore], Awaitable[None]]) -> None:
    async def call() -> None:
        store = MemoryStore()
        tree = store.session()
        await BookieRegistry(tree, URI).initialize_cluster()
        listing = UnderreplicationStore(tree, URI)
        await listing.prepare()
        await test(store, listing)

    asyncio.run(call())


def test_bookies_that_two_processes_report_at_once_are_both_listed() -> None:
    """M2: the change is a compare-and-set, so neither report replaces the other."""

    async def test(store: MemoryStore, listing: UnderreplicationStore) -> None:
        await listing.mark(5, ["a:1"], 1)

        async def another_report() -> None:
            await listing.mark(5, ["b:1"], 2)

        await UnderreplicationStore(Meanwhile(store, set=another_report), URI).mark(5, ["c:1"], 3)
        found = await listing.find(5)
        assert found is not None
        assert (found.missing, found.ctime_ms) == (("a:1", "b:1", "c:1"), 1)

    run(test)


def test_ledger_is_listed_though_its_empty_parent_is_removed_at_that_moment() -> None:
    async def test(store: MemoryStore, listing: UnderreplicationStore) -> None:
        async def removed() -> None:
            raise NoSuchNode("the parent does not exist")

        await UnderreplicationStore(Meanwhile(store, create=removed), URI).mark(5, ["a:1"], 1)
        found = await listing.find(5)
        assert found is not None
        assert found.missing == ("a:1",)

    run(test)


def test_contents_that_cannot_be_read_are_replaced_by_the_report() -> None:
    async def test(store: MemoryStore, listing: UnderreplicationStore) -> None:
        await listing.mark(5, ["a:1"], 1)
        path = f"{ROOT}/ledgers/0000/0000/0000/0005/urL0000000005"
        await store.session().set(path, b"\xff", -1)
        await listing.mark(5, ["b:1"], 7)
        found = await listing.find(5)
        assert found is not None
        assert (found.missing, found.ctime_ms) == (("b:1",), 7)

    run(test)


def test_ids_ascend_and_are_ids_of_ledgers() -> None:
    async def test(store: MemoryStore, listing: UnderreplicationStore) -> None:
        ids = [1, 2, 0xFFFF, 0x10000, 1 << 40, LEDGER_ID_MAX]
        for ledger_id in reversed(ids):
            await listing.mark(ledger_id, ["a:1"], 1)
        for name in (f"urL{LEDGER_ID_MAX + 1}", "urL1", "ur0000000003"):
            await store.session().create(f"{ROOT}/ledgers/0000/0000/0000/0001/{name}")
        assert [each async for each in listing.ids()] == ids
        assert await listing.count() == len(ids)
        assert [group async for group in listing.groups(4)] == [ids[:4], ids[4:]]
        assert [group async for group in listing.groups(3)] == [ids[:3], ids[3:]]

    run(test)


def test_delay_may_be_negative_as_with_apaches_auditor() -> None:
    async def test(store: MemoryStore, listing: UnderreplicationStore) -> None:
        await store.session().create(f"{ROOT}/lostBookieRecoveryDelay", b"-1")
        assert await listing.lost_bookie_recovery_delay() == RecoveryDelay(-1, 0)

    run(test)


def test_layout_of_a_later_version_is_refused() -> None:
    async def test(store: MemoryStore, listing: UnderreplicationStore) -> None:
        await store.session().set(f"{ROOT}/LAYOUT", b'type: "BASIC"\nversion: 2\n', -1)
        with pytest.raises(MetadataError, match="has layout BASIC version 2; known is BASIC version 1") as refused:
            await listing.prepare()
        assert not refused.value.is_outage

    run(test)
