"""The client for asyncio: ledgers and logs of one cluster. `bkspark.blocking` has blocking calls of the same names.

async with Client("zk://127.0.0.1:2181/ledgers") as client:
    async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        await writer.append_many([b"one", b"two"])
    reader = await client.open(writer.ledger_id)
    async for batch in reader.batches():
        ...
"""

from bkspark.client.client import Client
from bkspark.core.relaxed import RelaxedDurability
from bkspark.core.writer_options import WriterOptions
from bkspark.ledger import AdvancedLedgerWriter, LedgerReader, LedgerWriter, SnapshotReader
from bkspark.ledger.bookies import PlacementOptions
from bkspark.ledger.encryption import EncryptionOptions
from bkspark.metadata.zookeeper_options import ZooKeeperOptions
from bkspark.net.pool import NetOptions

__all__ = [
    "AdvancedLedgerWriter",
    "Client",
    "EncryptionOptions",
    "LedgerReader",
    "LedgerWriter",
    "NetOptions",
    "PlacementOptions",
    "RelaxedDurability",
    "SnapshotReader",
    "WriterOptions",
    "ZooKeeperOptions",
]
