"""Lists the logs of one cluster: the metadata store may also have logs of other clusters, with other ledgers roots."""

from __future__ import annotations

from collections.abc import AsyncIterator

from bkspark.errors import BookKeeperError, ConfigurationError, MetadataAccessDenied, MetadataFormat
from bkspark.ledger import Cluster
from bkspark.log.log import store_of
from bkspark.log.snapshot import LogSnapshot


async def own_logs(cluster: Cluster) -> AsyncIterator[tuple[str, LogSnapshot | BookKeeperError]]:
    """Yield each log of a cluster by name, with its current list, or with the error if its node cannot be read: it may
    belong to another cluster then. Logs of other clusters, and those that are deleted meanwhile, are left out.
    """
    store = await store_of(cluster)
    for name in await store.names():
        try:
            found: LogSnapshot | BookKeeperError | None = await store.find(name)
        except (MetadataFormat, MetadataAccessDenied, ConfigurationError) as error:
            found = error
        if found is not None:
            yield name, found
