"""Client: the public entry point of the asyncio client. It adds logs to the ledgers of `Cluster`."""

from __future__ import annotations

from bkspark.ledger.cluster import Cluster
from bkspark.log.log import Log, log_names


class Client(Cluster):
    """A connection to one cluster: its ledgers, as `bkspark.ledger.Cluster` has them, and its logs."""

    def log(self, name: str) -> Log:
        """Return the log of that name, whether or not it exists yet. The metadata store is not asked.

        Raises:
            ConfigurationError: the name is not valid for a log.
        """
        return Log(self, name)

    async def logs(self) -> list[str]:
        """Return the names of all logs in the metadata store, sorted."""
        return await log_names(self)
