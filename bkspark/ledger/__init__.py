"""Ledgers of one cluster, asyncio: create, append, read, follow, recover and delete them.

`bkspark.client.Client` is a `Cluster` that also has logs.

async with Cluster("zk://127.0.0.1:2181/ledgers") as cluster:
    async with await cluster.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        await writer.append_many([b"one", b"two"])
"""

from bkspark.ledger.advanced import AdvancedLedgerWriter
from bkspark.ledger.cluster import Cluster
from bkspark.ledger.reader import LedgerReader, SnapshotReader
from bkspark.ledger.writer import LedgerWriter

__all__ = ["AdvancedLedgerWriter", "Cluster", "LedgerReader", "LedgerWriter", "SnapshotReader"]
