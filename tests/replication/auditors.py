"""An auditor on a loop of its own, and the cluster that it audits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bkspark.client import Client
from bkspark.errors import MetadataError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import MemoryStore, MemoryTree
from bkspark.metadata.tree import Stat
from bkspark.metadata.uri import MetadataUri
from bookie_service.replication.auditor import Auditor
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.options import AuditOptions, AutoRecoveryOptions
from tests.ledger.in_process import URI
from tests.replication.worker_parts import CLOSED, LOST
from tests.simulation.virtual_loop import refused_connections, run_in_virtual_time

DELAY_S = 100.0
ROOT = MetadataUri.parse(URI).root


class SlowTree(MemoryTree):
    """A session in which the metadata of ledgers are not answered while `hangs`, nor anything while `is_away`."""

    def __init__(self, store: MemoryStore) -> None:
        session = store.session()
        super().__init__(store, session.session_id, session.session_timeout_s)
        store._sessions[session.session_id] = self
        self.hangs = False
        self.is_away = False
        self.before_cookies: Callable[[], Awaitable[None]] | None = None
        """What happens once before the next reading of the list of cookies."""

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if self.is_away:
            raise MetadataError("the store is away")
        if self.hangs and path.startswith(f"{ROOT}/00"):
            await asyncio.get_running_loop().create_future()
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        act = self.before_cookies
        if path == f"{ROOT}/cookies" and act is not None:
            self.before_cookies = None
            await act()
            await asyncio.sleep(0)
        return await super().children(path)


class Process:
    """A process that takes part in the election of auditors."""

    def __init__(self, tree: SlowTree, client: Client, cluster: RepairedCluster, auditor: Auditor) -> None:
        self.tree = tree
        self.client = client
        self.cluster = cluster
        self.auditor = auditor

    async def listed(self) -> list[int]:
        return [ledger_id async for ledger_id in self.cluster.store.ids()]


class World:
    """A metadata store with one ledger, whose only bookie is lost since the beginning."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.processes: list[Process] = []
        self.ledger_id = -1

    async def prepare(self) -> None:
        await BookieRegistry(self.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        await self.store.session().create(f"{ROOT}/cookies/{LOST}", b"4\n", make_parents=True)

    async def process(self, **options: float) -> Process:
        """Return a new candidate."""
        tree = SlowTree(self.store)
        client = Client(URI, tree=tree)
        cluster = await RepairedCluster.of(client)
        audit = AuditOptions(**{"bookie_check_interval_s": 0, "ledger_check_interval_s": 0, **options})  # type: ignore[arg-type]
        auditor = cluster.auditor(f"process {len(self.processes)}", AutoRecoveryOptions(audit=audit))
        self.processes.append(Process(tree, client, cluster, auditor))
        if self.ledger_id < 0:
            self.ledger_id, _ = await cluster.context.ledgers.create(CLOSED)
        return self.processes[-1]

    def expire(self, process: Process) -> None:
        """Let a process lose its session."""
        self.store.expire(process.tree)


def play(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await world.prepare()
        try:
            await test(world)
        finally:
            for process in world.processes:
                await process.client.close()

    run_in_virtual_time(run(), refused_connections)
