"""Operations of a cluster whose bookies are registered, and do not exist, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from bkspark.ledger import Cluster
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.uri import MetadataUri
from bookie_service.operation.long_operations import LongOperations
from bookie_service.replication.cluster_commands import ClusterCommands
from tests.ledger.in_process import URI


class Operated(Protocol):
    """What tests make of the commands: paths of an HTTP interface, for example."""

    commands: ClusterCommands
    cluster: Cluster
    operations: LongOperations


OperatedT = TypeVar("OperatedT", bound=Operated)


def run_with(api: OperatedT, bookies: Sequence[str], test: Callable[[OperatedT], Awaitable[Any]]) -> None:
    """Run a test beside registered bookies, and end its operations."""

    async def running() -> None:
        await BookieRegistry(await api.cluster.tree(), MetadataUri.parse(URI)).initialize_cluster()
        registry = (await api.cluster.context()).registry
        for number, bookie in enumerate(bookies, 1):
            await registry.register(bookie, BookieAddress("127.0.0.1", number))
        try:
            await test(api)
        finally:
            await api.operations.close()
            await api.commands.close()

    asyncio.run(running())
