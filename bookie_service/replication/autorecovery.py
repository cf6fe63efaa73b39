"""AutoRecovery: an auditor and a replication worker in one process, until `stop`.

It has its own metadata session and bookie connections, so their failures do not affect a bookie in the same process.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bkspark.ledger import Cluster
from bkspark.metadata.repair_reports import RepairReports
from bkspark.metadata.underreplication import UnderreplicationStore
from bkspark.net.pool import NetOptions
from bkspark.tasks import end_all
from bookie_service.replication.auditor import Auditor
from bookie_service.replication.cluster_parts import ClusterParts
from bookie_service.replication.options import AutoRecoveryOptions
from bookie_service.replication.unexpected_errors import UnexpectedErrors
from bookie_service.replication.worker import ReplicationWorker


@dataclass(frozen=True, slots=True)
class RepairedCluster(ClusterParts):
    """A cluster's parts, and what repairs it: auditors and workers."""

    @classmethod
    async def of(cls, cluster: Cluster, unexpected: UnexpectedErrors | None = None) -> RepairedCluster:
        """Return a view of the cluster that repairs. Raises MetadataError."""
        tree = await cluster.tree()
        store = UnderreplicationStore(tree, cluster.uri)
        await store.prepare()
        return cls(cluster.uri, await cluster.context(), tree, store, unexpected or UnexpectedErrors())

    def auditor(self, who: str, options: AutoRecoveryOptions) -> Auditor:
        return Auditor(self, who, options.audit)

    def worker(self, who: str, options: AutoRecoveryOptions) -> ReplicationWorker:
        return ReplicationWorker(self, who, options.repair, RepairReports(self.tree, self.uri))


class AutoRecovery:
    """Runs in the background of an event loop from `start` until `stop`. No error ends it.

    It owns the cluster, and closes it at the end.
    """

    def __init__(self, cluster: Cluster, who: str, options: AutoRecoveryOptions) -> None:
        self._cluster = cluster
        self._who = who
        """The name of this process in the election and in locks."""
        self._options = options
        self._tasks: list[asyncio.Task[None]] = []
        """The tasks of auditor and worker; empty before `start`."""
        self.auditor: Auditor | None = None
        """The auditor; None before `start`."""
        self.worker: ReplicationWorker | None = None
        """The worker; None before `start`."""
        self.defect: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Receives the first unexpected error, which was logged. Work continues."""

    @classmethod
    def of_cluster(cls, uri: str, who: str, options: AutoRecoveryOptions) -> AutoRecovery:
        """Return an autorecovery for the cluster at a metadata URI."""
        net = NetOptions(tls=options.tls, sasl=options.sasl)
        return cls(Cluster(uri, net=net, zookeeper=options.zookeeper), who, options)

    async def start(self) -> None:
        """Begin. Raises MetadataError if there is no cluster, or its store cannot be reached."""
        cluster = await RepairedCluster.of(self._cluster, UnexpectedErrors(self._note_defect))
        self.auditor = cluster.auditor(self._who, self._options)
        self.worker = cluster.worker(self._who, self._options)
        for part in (self.auditor, self.worker):
            self._tasks.append(asyncio.ensure_future(part.run()))

    def set_options(self, options: AutoRecoveryOptions) -> None:
        """Use other rates and pauses from now on."""
        if self.worker is not None:
            self.worker.set_options(options.repair)

    def _note_defect(self, error: Exception) -> None:
        if not self.defect.done():
            self.defect.set_result(error)

    async def stop(self) -> None:
        """End. The session's locks and candidacy end with it."""
        await end_all(self._tasks)
        await self._cluster.close()
