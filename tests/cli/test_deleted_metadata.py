"""A deletion of all metadata that is interrupted, and repeated with the same confirmation."""

from __future__ import annotations

import argparse
import asyncio

import pytest

from bkspark.cli.cluster_metadata import delete_all
from bkspark.client import Client
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import ConfigurationError, MetadataError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import Fault, MemoryStore
from bkspark.metadata.uri import MetadataUri
from tests.ledger.in_process import URI

LEDGER = LedgerMetadata(1, 1, 1, (Fragment(0, ("b:1",)),))


def test_deletion_that_is_interrupted_anywhere_is_confirmed_by_the_same_instance_id() -> None:
    """The id was deleted before most of the rest: the repetition asked for `--instance None`."""

    async def is_interrupted_at(write: int) -> bool:
        store, uri = MemoryStore(), MetadataUri.parse(URI)
        async with Client(URI, tree=store.session()) as client:
            await BookieRegistry(await client.tree(), uri).initialize_cluster()
            await (await client.context()).ledgers.create(LEDGER)
            instance = await (await client.context()).registry.instance_id()
            confirmed = argparse.Namespace(instance=instance, force=False)
            store.faults[store.writes + write] = Fault.LOST_BEFORE
            try:
                await delete_all(client, confirmed)
            except MetadataError:
                await delete_all(client, confirmed)
                return True
            finally:
                assert await (await client.tree()).exists(uri.root) is None
            return False

    async def test() -> None:
        write = 0
        while await is_interrupted_at(write):
            write += 1
        assert write > 5

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
