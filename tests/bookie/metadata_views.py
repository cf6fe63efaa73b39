"""A bookie's view of the cluster's metadata over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Operation, Stat
from bkspark.metadata.uri import MetadataUri
from bookie_service.cluster.ledger_metadata_view import LedgerMetadataView

URI = MetadataUri.parse("zk://h/ledgers")
US, OTHER = "us:1", "other:1"


def with_cluster(test: Callable[[MemoryTree, LedgerStore, LedgerMetadataView], Awaitable[None]]) -> None:
    """Run a test on a new cluster, as the bookie US."""

    async def run() -> None:
        tree = MemoryStore().session()
        await BookieRegistry(tree, URI).initialize_cluster()
        metadata_view = LedgerMetadataView(tree, URI, US)
        await metadata_view.open()
        await test(tree, LedgerStore(tree, URI), metadata_view)

    asyncio.run(run())


def metadata(*bookies: str, closed: bool = True) -> LedgerMetadata:
    opened = LedgerMetadata(1, 1, 1, tuple(Fragment(10 * i, (bookie,)) for i, bookie in enumerate(bookies)))
    return opened.closed(99, 99) if closed else opened


class Follower(MemoryTree):
    """A session whose server lags: reads show an older state until this session writes."""

    lagging: MemoryTree | None = None

    async def get(self, path: str) -> tuple[bytes, Stat]:
        return await (super().get(path) if self.lagging is None else self.lagging.get(path))

    async def exists(self, path: str) -> Stat | None:
        return await (super().exists(path) if self.lagging is None else self.lagging.exists(path))

    async def children(self, path: str) -> list[str]:
        return await (super().children(path) if self.lagging is None else self.lagging.children(path))

    async def transaction(self, operations: list[Operation]) -> None:
        self.lagging = None
        await super().transaction(operations)
