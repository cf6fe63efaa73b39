"""The ledger client, asyncio. `bkspark.blocking` has the same calls, name for name, blocking.

async with Client("zk://127.0.0.1:2181/ledgers") as client:
    async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        await writer.append_many([b"one", b"two"])
    reader = await client.open(writer.ledger_id)
    async for batch in reader.batches():
        ...
"""

from bkspark.client.advanced import AdvancedLedgerWriter
from bkspark.client.client import Client
from bkspark.client.reader import LedgerReader, SnapshotReader
from bkspark.client.writer import LedgerWriter

__all__ = ["AdvancedLedgerWriter", "Client", "LedgerReader", "LedgerWriter", "SnapshotReader"]
