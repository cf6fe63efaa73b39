"""The full tier's world: the client as it is shipped, sockets aside, against the real bookie code and storage.

A connection is a pair of queues of bytes with delays; a bookie is `tests.crash.twins.BookieTwin` on a simulated disk,
whose journal is made durable and whose checkpoints run after simulated delays. A crash takes a legal crash image of
the disk. The metadata store is the in-memory tree behind delays, with answers lost before or after the change.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from bkspark.errors import MetadataError, ProtocolError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.registration import BookieAddress
from bkspark.metadata.tree import Operation, Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wire import v2, v3
from bkspark.wire.framing import scan_frames
from bookie_service.adds import AddRun
from bookie_service.requests import Runs
from bookie_service.v2_requests import V2Runs
from bookie_service.v3_requests import V3Runs
from tests.crash import history as storage_history
from tests.crash.images import Loss, crash_image
from tests.crash.twins import BookieTwin, Setup, TakingClient

URI = "zk://simulated:2181/ledgers"
HOST = "127.0.0.1"
_FIRST_PORT = 1


class Link(asyncio.Transport):
    """The client's end of a connection; `BookieChannel` takes it for a TCP transport."""

    def __init__(self, cluster: Cluster, bookie: FullBookie, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.bookie = bookie
        self._cluster = cluster
        self._protocol = protocol
        self._served = Served(self, bookie)
        self._arrivals = [0.0, 0.0]
        self._is_open = True
        self.number = cluster.count_link()
        # Once set, nothing arrives any more on that way, and nobody is told: 0 to the bookie, 1 back.
        self.is_cut = [False, False]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _NoSocket()

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        if self._is_open:
            self._carry(0, self._served.receive, bytes(data))

    def answer(self, data: bytes) -> None:
        """Carry a reply to the client."""
        self._carry(1, self._hear, data)

    def _carry(self, way: int, deliver: Callable[[bytes], None], data: bytes) -> None:
        loop = asyncio.get_running_loop()
        arrival = max(self._arrivals[way], loop.time() + self._cluster.delay_s())
        self._arrivals[way] = arrival
        loop.call_at(arrival, self._arrive, way, deliver, data)

    def _arrive(self, way: int, deliver: Callable[[bytes], None], data: bytes) -> None:
        # What is on its way when the client drops a connection arrives all the same.
        if not self.is_cut[way]:
            deliver(data)

    def _hear(self, data: bytes) -> None:
        at = 0
        while at < len(data) and self._is_open:
            space = memoryview(self._protocol.get_buffer(len(data) - at))
            count = min(len(space), len(data) - at)
            space[:count] = data[at : at + count]
            self._protocol.buffer_updated(count)
            at += count

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            self._cluster.links.discard(self)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def close(self) -> None:
        self.abort()


class _NoSocket:
    def setsockopt(self, *_: Any) -> None:
        """There is nothing to set."""


class Served(TakingClient):
    """The bookie's end: frames to runs of requests, as `bookie_service.connection` does."""

    def __init__(self, link: Link, bookie: FullBookie) -> None:
        self._link = link
        self._bookie = bookie
        self._life = bookie.life
        self._waiting: list[tuple[np.ndarray, Runs]] = []
        self._is_v3 = False

    def receive(self, data: bytes) -> None:
        """Take whole frames: a client writes nothing else at once, and one protocol on a connection."""
        if self._bookie.twin is None or self._bookie.life != self._life:
            return
        buffer = bytearray(data)
        octets = np.frombuffer(buffer, np.uint8)
        door: Any = _Door(self._bookie)
        try:
            table = scan_frames(buffer, len(buffer))
            self._is_v3 = v3.count_frames(octets, table) == len(table)
            runs: Runs = V3Runs(door, self, table) if self._is_v3 else V2Runs(door, self, octets, table)
        except ProtocolError:
            self._link.abort()
            return
        self._waiting.append((octets, runs))
        self.resume()

    @property
    def is_open(self) -> bool:
        return self._bookie.twin is not None and self._bookie.life == self._life

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back after a time, if the process still runs then."""
        return asyncio.get_running_loop().call_later(seconds, lambda: callback() if self.is_open else None)

    def resume(self) -> None:
        """Serve what waits, as far as the bookie has room."""
        twin = self._bookie.twin
        if twin is None or self._bookie.life != self._life:
            return
        while self._waiting:
            octets, runs = self._waiting[0]
            if not runs.serve(octets):
                self._bookie.work()
                return
            self._waiting.pop(0)
        self._bookie.work()

    def send(self, parts: Sequence[Any]) -> None:
        """Send a reply."""
        if self._bookie.life == self._life:
            data = b"".join(bytes(part) for part in parts)
            self._link.answer(_damaged(data) if self._bookie.is_damaging and not self._is_v3 else data)


def _damaged(replies: bytes) -> bytes:
    """Return replies in which the last byte of every entry is another one."""
    buffer = bytearray(replies)
    frames = scan_frames(buffer, len(buffer))
    opcodes = v2.decode_replies(replies, frames).opcodes
    has_entries = (opcodes != v2.ADD) & (frames.ends - frames.starts > v2.BATCH_REPLY_BYTES)
    for end in frames.ends[has_entries].tolist():
        buffer[end - 1] ^= 1
    return bytes(buffer)


class _Door:
    """The bookie, as requests see it: at times it refuses adds."""

    def __init__(self, bookie: FullBookie) -> None:
        self._bookie = bookie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bookie.twin.bookie, name)

    def add(self, client: Served, octets: np.ndarray, run: AddRun) -> int:
        """Take adds, or refuse them."""
        if self._bookie.is_refusing:
            client.send((run.replies(v2.Status.ETOOMANYREQUESTS),))
            return len(run)
        if self._bookie.is_read_only and not (run.flags & v2.HIGH_PRIORITY).all():
            client.send((run.replies(v2.Status.EREADONLY),))
            return len(run)
        return self._bookie.twin.bookie.add(client, octets, run)


class FullBookie:
    """One bookie: its disk, and its process while it is up."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.id = f"{HOST}:{port}"
        self.port = port
        self.life = 0
        self.twin: BookieTwin | None = None
        # Adds are answered with TOOMANYREQUESTS, as Apache's bookies do under load.
        self.is_refusing = False
        # It has no space for adds, those of a recovery excepted, and is registered so.
        self.is_read_only = False
        # Reads are answered with damaged entries.
        self.is_damaging = False
        # Its disk is gone for ever.
        self.is_lost = False
        # When it crashed first since somebody said None here, on the event loop's clock.
        self.crashed_s: float | None = None
        self.setup = Setup()
        self.disk = self.setup.new_disk()
        self._cluster = cluster
        self._tree: MemoryTree | None = None
        self._is_working = False

    async def start(self) -> None:
        """Open the storage as it is on the disk, serve and register."""
        if self.twin is not None or self.is_lost:
            return
        self.life += 1
        self.twin = BookieTwin(self.disk, self.setup, storage_history.History())
        self._is_working = False
        self._tree = self._cluster.store.session()
        await self._register()

    async def _register(self) -> None:
        assert self._tree is not None
        registry = BookieRegistry(self._tree, MetadataUri.parse(URI))
        while True:
            try:
                await registry.register(self.id, BookieAddress(HOST, self.port), read_only=self.is_read_only)
                return await registry.unregister(self.id, read_only=not self.is_read_only)
            except MetadataError:
                # A fault that was meant for a client; each strikes once.
                continue

    async def change(self, *, read_only: bool) -> None:
        """Become read-only, or writable again."""
        self.is_read_only = read_only
        if self.twin is not None:
            await self._register()

    def work(self) -> None:
        """Let journal and checkpoints go on, a delay from now."""
        if not self._is_working and self.twin is not None:
            self._is_working = True
            asyncio.get_running_loop().call_later(self._cluster.sync_s(), self._work, self.life)

    def _work(self, life: int) -> None:
        twin = self.twin
        if twin is None or life != self.life:
            return
        self._is_working = False
        for journal in twin.journals:
            if not journal.is_idle:
                journal.step()
        if not twin.checkpoints.is_idle:
            twin.checkpoints.step()
        elif self._cluster.random.random() < 0.03:
            twin.bookie.checkpoint()
        if any(not journal.is_idle for journal in twin.journals) or not twin.checkpoints.is_idle:
            self.work()

    async def crash(self, loss: Loss) -> None:
        """Die at once; of what was not synced the disk keeps what the policy says."""
        if self.twin is None:
            return
        self.life += 1
        self.twin = None
        self.crashed_s = self.crashed_s or asyncio.get_running_loop().time()
        self.disk = crash_image(self.disk, loss, self._cluster.random)
        for link in sorted((it for it in self._cluster.links if it.bookie is self), key=lambda it: it.number):
            link.abort()
        if self._tree is not None:
            await self._tree.close()

    def settle(self) -> None:
        """Make everything durable."""
        if self.twin is not None:
            self.twin.settle()


class Cluster:
    """Bookies and a metadata store; delays and faults come from one random source."""

    def __init__(self, random: Random, bookies: int) -> None:
        self.random = random
        self.store = MemoryStore()
        self.links: set[Link] = set()
        self._links_made = 0
        self.bookies = [FullBookie(self, _FIRST_PORT + i) for i in range(bookies)]
        self.network_s = random.choice((0.0005, 0.002, 0.01))
        self.journal_s = random.choice((0.0005, 0.002, 0.02))
        self.metadata_s = random.choice((0.0005, 0.005, 0.05))

    def count_link(self) -> int:
        self._links_made += 1
        return self._links_made

    def delay_s(self) -> float:
        return self.random.expovariate(1.0) * self.network_s

    def sync_s(self) -> float:
        return self.random.expovariate(1.0) * self.journal_s

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Link, Any]:
        """Connect a client, as the event loop's `create_connection`."""
        await asyncio.sleep(self.delay_s())
        bookie = self.bookies[port - _FIRST_PORT]
        if bookie.twin is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        protocol = factory()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        link = Link(self, bookie, protocol)
        self.links.add(link)
        protocol.connection_made(link)
        return link, protocol

    def session(self) -> DelayedTree:
        """Return a client's session at the metadata store."""
        return DelayedTree(self, self.store)

    def lose_a_metadata_answer(self) -> None:
        """Lose the connection under the write after next, before or after it took effect."""
        number = self.store.writes + self.random.randrange(2)
        self.store.faults[number] = self.random.choice(list(Fault))


class DelayedTree(MemoryTree):
    """A session whose calls take a way there and a way back."""

    _ids = itertools.count(1_000_000)

    def __init__(self, cluster: Cluster, store: MemoryStore) -> None:
        super().__init__(store, next(self._ids), 10.0)
        self._cluster = cluster

    async def _on_the_way(self) -> None:
        await asyncio.sleep(self._cluster.random.expovariate(1.0) * self._cluster.metadata_s)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        await self._on_the_way()
        result = await super().get(path)
        await self._on_the_way()
        return result

    async def children(self, path: str) -> list[str]:
        await self._on_the_way()
        result = await super().children(path)
        await self._on_the_way()
        return result

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        await self._on_the_way()
        try:
            return await super().set(path, data, version)
        finally:
            await self._on_the_way()

    async def transaction(self, operations: Sequence[Operation]) -> None:
        await self._on_the_way()
        try:
            await super().transaction(operations)
        finally:
            await self._on_the_way()
