"""Lists the logs of one cluster: the metadata store may also have logs of other clusters, with other ledgers roots."""

from __future__ import annotations

from collections.abc import AsyncIterator

from bkspark.ledger import Cluster
from bkspark.log.log import store_of
from bkspark.log.snapshot import LogSnapshot


async def own_logs(cluster: Cluster) -> AsyncIterator[LogSnapshot]:
    """Yield the current list of each log of a cluster, by name; logs of other clusters, and those that are deleted
    meanwhile, are left out.

    Raises:
        MetadataFormat: a log's node cannot be decoded.
    """
    store = await store_of(cluster)
    for name in await store.names():
        snapshot = await store.find(name)
        if snapshot is not None:
            yield snapshot
