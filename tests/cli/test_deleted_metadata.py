"""A deletion of all metadata that is interrupted, and repeated with the same confirmation."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkspark.cli.cluster_metadata import delete_all, format_all
from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import ConfigurationError, MetadataError, NoSuchLedger
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.uri import MetadataUri
from tests.ledger.in_process import URI

LEDGER = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),))


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
@pytest.mark.parametrize("command", [delete_all, format_all])
def test_deletion_that_is_interrupted_anywhere_is_confirmed_by_the_same_instance_id(
    command: Callable[[Client, argparse.Namespace], Awaitable[object]], fault: Fault
) -> None:
    """The id was deleted before most of the rest: the repetition asked for `--instance None`."""

    async def is_interrupted_at(write: int) -> bool:
        store, uri = MemoryStore(), MetadataUri.parse(URI)
        async with Client(URI, tree=store.session()) as client:
            registry = BookieRegistry(await client.tree(), uri)
            await registry.initialize_cluster()
            ledgers = (await client.context()).ledgers
            ledger_id, _ = await ledgers.create(LEDGER)
            before = await registry.instance_id()
            confirmed = argparse.Namespace(instance=before, force=False)
            first = store.writes
            store.faults[first + write] = fault
            try:
                await command(client, confirmed)
            except MetadataError:
                await command(client, confirmed)
            was_reached = store.writes > first + write
            store.faults.clear()
            with pytest.raises(NoSuchLedger):
                await ledgers.read(ledger_id)
            is_there = await (await client.tree()).exists(uri.root) is not None
            assert is_there == (command is format_all)
            if is_there:
                assert await registry.instance_id() not in (None, before)
                assert not await registry.initialize_cluster()
            return was_reached

    async def test() -> None:
        write = 0
        while await is_interrupted_at(write):
            write += 1
        assert write > 5

    asyncio.run(test())


def test_formatted_cluster_is_not_deleted_by_the_earlier_instance_id_once_it_has_ledgers() -> None:
    """An interrupted format is continued by the earlier id only until the new cluster is complete."""

    async def test() -> None:
        tree, uri = MemoryStore().session(), MetadataUri.parse(URI)
        registry = BookieRegistry(tree, uri)
        await registry.initialize_cluster()
        async with Client(URI, tree=tree) as client:
            confirmed = argparse.Namespace(instance=await registry.instance_id(), force=False)
            await format_all(client, confirmed)
            await (await client.context()).ledgers.create(LEDGER)
            with pytest.raises(ConfigurationError, match="confirm with --instance"):
                await format_all(client, confirmed)

    asyncio.run(test())


def test_cluster_without_an_instance_id_is_deleted_by_force() -> None:
    async def test() -> None:
        tree, uri = MemoryStore().session(), MetadataUri.parse(URI)
        await BookieRegistry(tree, uri).initialize_cluster()
        await tree.delete(f"{uri.root}/INSTANCEID")
        async with Client(URI, tree=tree) as client:
            with pytest.raises(ConfigurationError, match="the cluster has no id, so confirm with --force"):
                await delete_all(client, argparse.Namespace(instance="any", force=False))
            await delete_all(client, argparse.Namespace(instance=None, force=True))
            assert await tree.exists(uri.root) is None

    asyncio.run(test())
