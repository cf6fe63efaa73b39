"""What a seed does to real bookies and a real ZooKeeper: clients that connect through gates, and faults that strike and
heal."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import Executor
from random import Random

from bkspark.client import Client
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookieUnavailable
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper import open_tree
from bkspark.net.pool import NetOptions
from tests.chaos.network import Gate, RoutedTree, Seen
from tests.cluster import Cluster, ClusterBookie

CALL_TIMEOUT_S = 2.0
SECOND_NS = 1_000_000_000
FAULTS = (
    *("kill", "kill", "kill two", "pause", "pause", "pause two"),
    *("reset", "cut", "cut", "cut one way", "slow", "isolate"),
    *("zookeeper", "zookeeper killed"),
)
DELAYS_S = (0.05, 0.3, 1.5)
ZOOKEEPER_DOWN_S = 1.0
STARTED_WITHIN_S = 60.0
"""A bookie that ended because it found no ZooKeeper is started again for this long."""


class Site:
    """One client, its gates to the bookies and its link to ZooKeeper."""

    def __init__(self, name: str, cluster: Cluster, seen: Seen) -> None:
        self.name = name
        uri = MetadataUri.parse(cluster.uri)
        self._root = uri.root
        self._seen = seen
        self.zookeeper = Gate(*uri.hosts[0])
        self.gates = {bookie.id: Gate("127.0.0.1", int(bookie.id.rpartition(":")[2])) for bookie in cluster.bookies}
        self.client: Client

    async def start(self) -> None:
        for gate in (self.zookeeper, *self.gates.values()):
            await gate.start()
        uri = f"zk://127.0.0.1:{self.zookeeper.port}{self._root}"
        tree = await open_tree(MetadataUri.parse(uri), session_timeout_s=6.0, call_timeout_s=CALL_TIMEOUT_S)
        self.client = Client(
            uri,
            tree=RoutedTree(tree, self._root, self.gates, self._seen),
            net=NetOptions(connect_timeout_s=1.0, read_timeout_s=1.0),
            writer=WriterOptions(close_timeout_s=10.0, add_timeout_s=1.0, replacement_retry_s=0.5),
        )
        await self.client.connect()

    async def stop(self) -> None:
        await self.client.close()
        for gate in (self.zookeeper, *self.gates.values()):
            await gate.stop()

    def heal(self) -> None:
        for gate in (self.zookeeper, *self.gates.values()):
            gate.heal()


class Faults:
    """Strikes at random until it is stopped; each fault heals after a while, and `heal` ends all."""

    def __init__(self, random: Random, cluster: Cluster, sites: list[Site], starter: Executor) -> None:
        """`starter` starts ZooKeeper, which ends with the thread that does so: it must outlive the cluster."""
        self.struck: Counter[str] = Counter()
        self._random = random
        self._cluster = cluster
        self._sites = sites
        self._starter = starter
        self._busy: set[str] = set()
        self._zookeeper_runs = asyncio.Lock()
        """Held while it does not."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def strike_until(self, end_s: float, pause_s: float) -> None:
        """Strike again and again, `pause_s` in between on average, until the event loop's clock shows `end_s`."""
        loop = asyncio.get_running_loop()
        while loop.time() < end_s:
            await asyncio.sleep(pause_s * self._random.uniform(0.2, 1.8))
            kind = self._random.choice(FAULTS)
            self.struck[kind] += 1
            task = asyncio.ensure_future(self._strike(kind, self._random.choice((0.05, 0.4, 1.5, 3.0))))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def heal(self) -> None:
        """Wait until every fault is over, and everything runs and is connected."""
        await asyncio.gather(*tuple(self._tasks))
        for site in self._sites:
            site.heal()
        await asyncio.to_thread(self._cluster.revive)

    async def _strike(self, kind: str, seconds: float) -> None:
        site = self._random.choice(self._sites)
        bookie = self._random.choice(self._cluster.bookies)
        gate = site.gates[bookie.id]
        if kind in ("kill", "pause"):
            await self._stop(kind, bookie, seconds)
        elif kind in ("kill two", "pause two"):
            two = self._random.sample(self._cluster.bookies, 2)
            await asyncio.gather(*(self._stop(kind.partition(" ")[0], one, seconds) for one in two))
        elif kind == "zookeeper killed":
            await self._kill_zookeeper()
        elif kind == "slow":
            gate.delay_s = self._random.choice(DELAYS_S)
            await asyncio.sleep(seconds)
            gate.delay_s = 0.0
        elif kind == "reset":
            gate.reset()
        elif kind == "zookeeper":
            await self._shut([site.zookeeper], ("up", "down"), seconds)
        elif kind == "isolate":
            await self._shut([one for one in site.gates.values() if one is not gate], ("up", "down"), seconds)
        else:
            directions = ("up", "down") if kind == "cut" else (self._random.choice(("up", "down")),)
            await self._shut([gate], directions, seconds)

    async def _stop(self, kind: str, bookie: ClusterBookie, seconds: float) -> None:
        """Kill a bookie and start it again, or pause and resume it; one thing at a time happens to each."""
        if bookie.id in self._busy:
            return
        self._busy.add(bookie.id)
        try:
            if kind == "kill":
                bookie.kill()
                await asyncio.sleep(seconds)
                await self._restart(bookie)
            else:
                bookie.pause()
                await asyncio.sleep(seconds)
                bookie.resume()
        finally:
            self._busy.discard(bookie.id)

    async def _restart(self, bookie: ClusterBookie) -> None:
        """Start a bookie; one that finds no ZooKeeper ends, and is started again when there is one."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + STARTED_WITHIN_S
        while True:
            async with self._zookeeper_runs:
                pass
            try:
                return await asyncio.to_thread(bookie.restart)
            except BookieUnavailable:
                if loop.time() > end_s:
                    raise

    async def _kill_zookeeper(self) -> None:
        """Kill ZooKeeper and start it again on its files, before a session of a bookie is over."""
        async with self._zookeeper_runs:
            self._cluster.zookeeper.kill()
            await asyncio.sleep(ZOOKEEPER_DOWN_S)
            await asyncio.get_running_loop().run_in_executor(self._starter, self._cluster.zookeeper.start)

    async def _shut(self, gates: list[Gate], directions: tuple[str, ...], seconds: float) -> None:
        for gate in gates:
            gate.shut(*directions)
        await asyncio.sleep(seconds)
        for gate in gates:
            gate.heal()
            # What a partition of real networks leaves: connections that go on, or whose peers have given up.
            if self._random.random() < 0.5:
                gate.reset()


class Metadata:
    """Every version of every ledger's metadata that any client saw."""

    def __init__(self) -> None:
        self.seen: dict[int, dict[int, Versioned]] = {}

    def note(self, ledger_id: int, stored: Versioned) -> None:
        self.seen.setdefault(ledger_id, {})[stored.version] = stored
