"""A cluster in memory of which some bookies are slow, and a client that uses it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

from bkspark.client import Client, LedgerWriter
from bkspark.core.writer_options import WriterOptions
from bkspark.net.pool import NetOptions
from bkspark.wire.framing import scan_frames
from tests.simulation.full_cluster import URI, Cluster, FullBookie
from tests.simulation.full_links import Link

# The defaults, ten times as fast, so that six seconds are a minute.
OPTIONS = WriterOptions(
    lag_entries_max=64,
    add_timeout_s=0.5,
    replacement_retry_s=0.1,
    slow_lag_s=0.5,
    hold_back_s_max=0.2,
    probe_pause_s_min=0.1,
    probe_pause_s_max=1.0,
    trial_s=0.2,
)
NET = NetOptions(connect_timeout_s=0.5, read_timeout_s=0.5)


class GrayLink(Link):
    """A connection to the victim. TCP loses nothing: what does not arrive now does when the network is whole again."""

    def __init__(self, cluster: GrayCluster, bookie: FullBookie, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__(cluster, bookie, protocol)
        self._gray = cluster
        self._held: list[tuple[int, Callable[[bytes], None], bytes]] = []
        self._free_at = 0.0
        self._replies = itertools.count()

    def _deliver(self, way: int, deliver: Callable[[bytes], None], data: bytes) -> None:
        if way in self._gray.cut:
            self._held.append((way, deliver, data))
            return
        if way == 0 and self._gray.frame_s:
            loop = asyncio.get_running_loop()
            frames = len(scan_frames(bytearray(data), len(data)))
            self._free_at = max(self._free_at, loop.time()) + frames * self._gray.frame_s
            loop.call_at(self._free_at, deliver, data)
            return
        if way == 1 and self._gray.skips:
            table = scan_frames(bytearray(data), len(data))
            kept = [row for row in range(len(table)) if next(self._replies) % 2]
            data = b"".join(data[table.starts[row] - 4 : table.ends[row]] for row in kept)
        deliver(data)

    def heal(self) -> None:
        held, self._held = self._held, []
        for way, deliver, data in held:
            self._deliver(way, deliver, data)


class GrayCluster(Cluster):
    """Three bookies, and spares; the first one, `victim`, turns gray."""

    def __init__(self, spares: int = 0) -> None:
        super().__init__(Random(7), 3 + spares)
        self.network_s = self.journal_s = self.metadata_s = 0.0005
        self.victim = self.bookies[0]
        # The ways on which nothing arrives (0: at the victim, 1: from it); whether it skips requests.
        self.cut: frozenset[int] = frozenset()
        self.skips = False
        # How long the victim takes for a request more than the others.
        self.frame_s = 0.0

    def delay_s(self) -> float:
        # No long tails: the p99 of a hundred adds is to say something.
        return (0.5 + self.random.random()) * self.network_s

    def sync_s(self) -> float:
        return (0.5 + self.random.random()) * self.journal_s

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Link, Any]:
        if port != self.victim.port:
            return await super().connect(factory, host, port)
        while len(self.cut) == 2:
            await asyncio.sleep(0.1)
        protocol = factory()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        link = GrayLink(self, self.victim, protocol)
        self.links.add(link)
        protocol.connection_made(link)
        return link, protocol

    def heal(self) -> None:
        """Let the victim work again."""
        self.cut, self.frame_s, self.skips = frozenset(), 0.0, False
        if vars(self.victim).pop("work", None):
            self.victim.work()
        for link in tuple(self.links):
            if isinstance(link, GrayLink):
                link.heal()


def play_with_client(test: Callable[[GrayCluster, Client], Any], spares: int = 0, **options: Any) -> None:
    """Run a test's coroutine with a client of the cluster."""
    cluster = GrayCluster(spares)
    settings = {"writer": OPTIONS, "net": NET, **options}

    async def call() -> None:
        await cluster.start()
        async with Client(URI, tree=cluster.session(), **settings) as client:
            await test(cluster, client)

    cluster.run(call())


def takes_part(writer: LedgerWriter, cluster: GrayCluster) -> bool:
    return writer.core.slots.may_hold_back(writer.core.slots.ensemble.index(cluster.victim.id))
