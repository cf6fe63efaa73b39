"""Ledger metadata in the tree: ids, compare-and-set, lost connections (M1), listing."""

from __future__ import annotations

import asyncio

import pytest

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import LedgerExists, MetadataError, MetadataVersion, NoSuchLedger
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.uri import MetadataUri

METADATA = LedgerMetadata(3, 3, 2, (Fragment(0, ("b:1", "b:2", "b:3")),), custom_metadata={"k": b"v"})


async def store_of(tree, uri):
    await BookieRegistry(tree, uri).initialize_cluster()
    return LedgerStore(tree, uri)


async def listed(ledgers):
    return [ledger_id async for ledger_id in ledgers.ids()]


def test_ledger_is_read_as_it_was_created_and_changed(trees):
    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        ledger_id, created = await ledgers.create(METADATA)
        stored = await ledgers.read(ledger_id)
        assert stored.metadata == created.metadata
        assert stored.metadata.ctoken > 0
        closed = await ledgers.write(ledger_id, stored.metadata.closed(9, 90), stored.version)
        assert (await ledgers.read(ledger_id)).metadata == closed.metadata
        with pytest.raises(MetadataVersion):
            await ledgers.write(ledger_id, stored.metadata.in_recovery(), stored.version)

    trees.run(test)


@pytest.mark.parametrize("scheme", ["hierarchical", "flat", "longhierarchical"])
def test_ids_of_both_sizes_are_listed_and_deleted_without_a_trace(trees, scheme):
    async def test(tree):
        uri = MetadataUri(trees.uri.hosts, trees.uri.root, MetadataUri.parse(f"zk+{scheme}://h/l").manager)
        ledgers = await store_of(tree, uri)
        before = await tree.children(uri.root)
        ids = [0, 5, 12345, 2147483646, 2147483647, 4294967296, 4294967301]
        for ledger_id in ids:
            await ledgers.create(METADATA, ledger_id=ledger_id)
        assert sorted(await listed(ledgers)) == ids
        with pytest.raises(LedgerExists):
            await ledgers.create(METADATA, ledger_id=5)
        for ledger_id in ids:
            await ledgers.delete(ledger_id)
            with pytest.raises(NoSuchLedger):
                await ledgers.read(ledger_id)
        assert await listed(ledgers) == []
        assert await tree.children(uri.root) == before

    trees.run(test)


def test_generated_ids_are_distinct_and_go_long_where_the_cluster_has(trees):
    async def test(tree):
        ledgers = await store_of(tree, trees.uri)
        short = [(await ledgers.create(METADATA))[0] for _ in range(3)]
        await tree.create(f"{trees.uri.root}/idgen-long")
        later = LedgerStore(tree, trees.uri)
        long = [(await later.create(METADATA))[0] for _ in range(3)]
        assert len({*short, *long}) == 6
        assert all(ledger_id >> 32 == 1 for ledger_id in long)
        assert set(await listed(ledgers)) == {*short, *long}

    trees.run(test)


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("call", range(6))
def test_lost_connection_at_any_write_never_leaves_a_wrong_answer(fault, call):
    """M1: a creation, change or deletion whose answer was lost is found out by looking, never guessed."""

    async def test():
        store = MemoryStore()
        uri = MetadataUri.parse("zk://h:1/ledgers")
        tree = store.session()
        ledgers = await store_of(tree, uri)
        store.faults[store.writes + call] = fault
        stored = None
        try:
            ledger_id, stored = await ledgers.create(METADATA)
        except MetadataError:
            assert await listed(ledgers) == []
            return
        assert await listed(ledgers) == [ledger_id]
        try:
            written = await ledgers.write(ledger_id, stored.metadata.closed(3, 30), stored.version)
            assert (await ledgers.read(ledger_id)).metadata == written.metadata
        except MetadataError:
            assert (await ledgers.read(ledger_id)).version == stored.version
        try:
            await ledgers.delete(ledger_id)
            assert await listed(ledgers) == []
        except MetadataError:
            assert await listed(ledgers) == [ledger_id]

    asyncio.run(test())


def test_uri_that_names_another_manager_than_layout_is_refused(trees):
    async def test(tree):
        await store_of(tree, trees.uri)
        other = MetadataUri(trees.uri.hosts, trees.uri.root, MetadataUri.parse("zk+flat://h/l").manager)
        with pytest.raises(MetadataError, match="hierarchical"):
            await LedgerStore(tree, other).manager()

    trees.run(test)


def test_root_without_a_cluster_is_an_error_that_says_what_to_do(trees):
    async def test(tree):
        with pytest.raises(MetadataError, match="cluster init"):
            await LedgerStore(tree, trees.uri).create(METADATA)

    trees.run(test)
