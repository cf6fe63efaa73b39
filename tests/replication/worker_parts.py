"""A worker on a metadata store with ledgers of a lost bookie."""

from __future__ import annotations

from dataclasses import replace

from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AutoRecoveryOptions
from bookie_service.replication.worker import ReplicationWorker

LOST, ALSO_LOST, SPARE = "10.0.0.1:3181", "10.0.0.3:3181", "10.0.0.2:3181"

OPENED = LedgerMetadata(1, 1, 1, (Fragment(0, (LOST,)),))

CLOSED = replace(OPENED, state=LedgerState.CLOSED, last_entry=9, length=70)


class Bench:
    """A metadata store with ledgers of a lost bookie, and a worker."""

    def __init__(self, cluster: RepairedCluster, options: AutoRecoveryOptions) -> None:
        self.cluster = cluster
        self.worker: ReplicationWorker = cluster.worker("a worker", options)

    async def listed(self) -> list[int]:
        return [ledger_id async for ledger_id in self.cluster.store.ids()]

    async def new(self, metadata: LedgerMetadata) -> int:
        """Return a listed ledger."""
        ledger_id, _ = await self.cluster.context.ledgers.create(metadata)
        await self.cluster.store.mark(ledger_id, [LOST], 0)
        return ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.cluster.context.ledgers.read(ledger_id)).metadata
