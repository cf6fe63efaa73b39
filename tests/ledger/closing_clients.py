"""A simulated cluster with one writer, whose metadata session a test holds up or lets fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from bkspark.client import Client, LedgerWriter
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import MetadataError
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from tests.simulation.full_cluster import URI, Cluster, DelayedTree, FullBookie


class HeldTree(DelayedTree):
    """A session whose writes take effect, and are answered when the test says so; or fail from then on."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, cluster.store)
        self.is_holding = self.is_failing = False
        self.written = asyncio.Event()
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        if self.is_failing:
            raise MetadataError("ZooKeeper did not answer")
        stat = await super().set(path, data, version)
        if self.is_holding:
            self.is_holding = False
            self.written.set()
            await self.answer
        return stat


class World:
    """Five bookies, and a writer of a 3/3/1 ledger whose metadata session is `tree`."""

    def __init__(self, cluster: Cluster, tree: HeldTree, writer: LedgerWriter) -> None:
        self.cluster = cluster
        self.tree = tree
        self.writer = writer

    @property
    def ensemble(self) -> list[FullBookie]:
        """The bookies of the writer, by slot."""
        by_id = {bookie.id: bookie for bookie in self.cluster.bookies}
        return [by_id[name] for name in self.writer.core.slots.ensemble]

    async def stored(self) -> LedgerMetadata:
        ledgers = LedgerStore(self.cluster.store.session(), MetadataUri.parse(URI))
        return (await ledgers.read(self.writer.ledger_id)).metadata


def play(test: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """Run a test with a writer that has these options."""
    cluster = Cluster(Random(5), 5)

    async def call() -> None:
        await cluster.start()
        tree, writing = HeldTree(cluster), WriterOptions(**{"close_timeout_s": 30.0, **options})
        async with Client(URI, tree=tree, writer=writing) as client:
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=1)
            await test(World(cluster, tree, writer))

    cluster.run(call())


def does_nothing(bookie: FullBookie) -> None:
    """Let a bookie's journal hang: it owes every answer."""
    instead: dict[str, Any] = {"work": lambda: None}
    vars(bookie).update(instead)
