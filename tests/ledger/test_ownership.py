"""A writer that connects to a bookie again first makes sure that the ledger is still its own."""

from __future__ import annotations

from bkspark.client import Client
from bkspark.errors import LedgerFenced, MetadataError
from bkspark.metadata.ledgers import LedgerStore
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.digest import DigestType, EntryDigest
from tests.ledger.in_process import URI, InProcessCluster, run
from tests.polling import until


class Away(MemoryTree):
    """A session that cannot read the metadata of ledgers while `is_away`, and counts how often that was tried."""

    is_away = False
    tried = 0

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store, 1 << 40, 10.0)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if self.is_away and "/L" in path:
            self.tried += 1
            raise MetadataError("the metadata store does not answer")
        return await super().get(path)


def test_new_connection_gets_no_add_before_the_store_says_that_the_ledger_is_ours(tmp_path):
    """The bookie may be another one than before, and not fenced as the one before was."""

    async def test(cluster: InProcessCluster) -> None:
        tree = Away(cluster.store)
        client = Client(URI, tree=tree)
        try:
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            await writer.append(b"one")
            restarted = cluster.bookie(writer.core.slots.ensemble[0])
            await restarted.stop()
            restarted.wipe()
            await restarted.start()
            # Another client recovers the ledger; two bookies have not heard of it.
            ledgers = LedgerStore(cluster.store.session(), MetadataUri.parse(URI))
            stored = await ledgers.read(writer.ledger_id)
            await ledgers.write(writer.ledger_id, stored.metadata.in_recovery(), stored.version)
            tree.is_away = True
            await writer.append(b"two")
            await until(lambda: tree.tried >= 3, "the writer to ask several times")
            assert writer.core.error is None
            context = await cluster.client().context()
            channel = await context.pool.channel(restarted.id)
            answer = await channel.read_last_entry(writer.ledger_id, EntryDigest(DigestType.CRC32C, b""))
            assert answer.entry is None
            tree.is_away = False
            await until(lambda: writer.core.error is not None, "the writer to learn that it is fenced")
            assert isinstance(writer.core.error, LedgerFenced)
            writer.abandon()
        finally:
            await client.close()

    run(tmp_path, test)
