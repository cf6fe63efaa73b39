"""The full tier's world: the client as it is shipped, sockets aside, against the real bookie code and storage.

A connection is a pair of queues of bytes with delays (`full_links`); a bookie is `tests.crash.twins.BookieTwin` on a
simulated disk, whose journal is made durable and whose checkpoints run after simulated delays. A crash takes a legal
crash image of the disk. The metadata store is the in-memory tree with delays, with answers lost before or after the
change.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from bkspark.errors import MetadataError
from bkspark.metadata.bookies import BookieRegistry
from bkspark.metadata.memory import Fault, MemoryStore, MemoryTree
from bkspark.metadata.registration import RESTARTED_FOR, BookieAddress
from bkspark.metadata.tree import Operation, Set, Stat
from bkspark.metadata.uri import MetadataUri
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.status import Status
from tests.crash import history as storage_history
from tests.crash.images import Loss, crash_image
from tests.crash.simulated_files import Directory, Inode
from tests.crash.twins import BookieTwin, Setup
from tests.simulation.full_links import Link, Observer
from tests.simulation.virtual_loop import run_in_virtual_time

T = TypeVar("T")

URI = "zk://simulated:2181/ledgers"
HOST = "127.0.0.1"
_FIRST_PORT = 1
_ENTRY_HEAD_BYTES = 36
"""Ledger, entry, LAC, length and digest (CRC32C), before the payload."""
SOCKET_BYTES = 64 * 1024
"""What the buffers of both sockets of a link have room for."""


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
        # What reads and fences are answered with instead, and adds.
        self.read_error: Status | None = None
        self.add_error: Status | None = None
        # The share of its replies that it does not send.
        self.forgets = 0.0
        # The process does nothing, and its session lives on; `wake` ends it.
        self.is_hung = False
        # Its journal's disk does nothing; by what factor it is slower than others.
        self.is_journal_hung = False
        self.slowness = 1.0
        # (ledger, entry) that is damaged on its disk.
        self.damaged: set[tuple[int, int]] = set()
        # Its disk is gone for ever.
        self.is_lost = False
        # The word of the plan that restarted it last; its registration says so.
        self.restarted_for = ""
        # When it first crashed since this was reset to None, on the event loop's clock.
        self.crashed_s: float | None = None
        self.setup = Setup()
        self.disk = self.setup.new_disk()
        self._cluster = cluster
        self._tree: MemoryTree | None = None
        self._is_working = False
        # The sync under way, if it began while the journal was slow.
        self._slow_sync: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the storage as it is on the disk, serve and register."""
        if self.twin is not None or self.is_lost:
            return
        self.life += 1
        self.twin = BookieTwin(self.disk, self.setup, storage_history.History())
        self._is_working = False
        self._slow_sync = None
        self._tree = self._cluster.store.session()
        await self._register()

    async def _register(self) -> None:
        assert self._tree is not None
        registry = BookieRegistry(self._tree, MetadataUri.parse(URI))
        address = BookieAddress(HOST, self.port, {RESTARTED_FOR: self.restarted_for} if self.restarted_for else {})
        while True:
            try:
                await registry.register(self.id, address, read_only=self.is_read_only, take_over=True)
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
        if not self._is_working and self.twin is not None and not self.is_hung and not self.is_journal_hung:
            self._is_working = True
            seconds = self.slowness * self._cluster.sync_s()
            sync = asyncio.get_running_loop().call_later(seconds, self._work, self.life)
            self._slow_sync = sync if self.slowness > 1.0 else None

    def _work(self, life: int) -> None:
        twin = self.twin
        if twin is None or life != self.life:
            return
        self._is_working = False
        self._slow_sync = None
        if self.is_hung or self.is_journal_hung:
            return
        for journal in twin.journals:
            if not journal.is_idle:
                journal.step()
        if not twin.checkpoints.is_idle:
            twin.checkpoints.step()
        elif self._cluster.random.random() < 0.03:
            twin.bookie.checkpoint()
        if any(not journal.is_idle for journal in twin.journals) or not twin.checkpoints.is_idle:
            self.work()

    def mend(self) -> None:
        """The journal's disk is as quick as others again, also for a sync that began while it was slow."""
        self.slowness = 1.0
        if self._slow_sync is not None:
            self._slow_sync.cancel()
            self._slow_sync = None
            self._is_working = False
        self.wake()

    def wake(self) -> None:
        """The process, or its journal's disk, goes on."""
        self.is_hung = self.is_journal_hung = False
        for link in sorted((it for it in self._cluster.links if it.bookie is self), key=lambda it: it.number):
            link.served.wake()
        self.work()

    async def crash(self, loss: Loss, lingers_s: float = 0.0) -> None:
        """Die at once; of what was not synced the disk keeps what the policy says.

        Args:
            lingers_s: how long its session at the metadata store lives on, and with it its registration.
        """
        if self.twin is None:
            return
        self.life += 1
        self.twin = None
        self.is_hung = self.is_journal_hung = False
        self.crashed_s = self.crashed_s or asyncio.get_running_loop().time()
        self.disk = crash_image(self.disk, loss, self._cluster.random)
        for link in sorted((it for it in self._cluster.links if it.bookie is self), key=lambda it: it.number):
            link.abort()
        if self._tree is not None:
            if lingers_s:
                self._cluster.ending.add(task := asyncio.ensure_future(_close_later(self._tree, lingers_s)))
                task.add_done_callback(self._cluster.ending.discard)
            else:
                await self._tree.close()

    def settle(self) -> None:
        """Make everything durable."""
        if self.twin is not None:
            self.twin.settle()

    # ---- what is on the disk ----

    def is_fenced(self, ledger_id: int) -> bool:
        """Whether the process refuses adds to a ledger by its owner."""
        ledger = self.twin.store.ledger(ledger_id) if self.twin is not None else None
        return ledger is not None and ledger.fenced

    def is_fenced_durably(self, ledger_id: int) -> bool:
        """Whether it would also do so after a crash now."""
        if self.twin is None:
            header = BookieTwin(self._image(), self.setup, storage_history.History()).header(ledger_id)
            return header is not None and header.fenced
        ledger = self.twin.store.ledger(ledger_id)
        # `fence_sequence` is that of the journal record, 0 where the fence was there when the process began.
        return ledger is not None and ledger.fenced and ledger.fence_sequence <= self.twin.bookie._journals[0].durable

    def _image(self) -> Any:
        return crash_image(self.disk, Loss.LOST, self._cluster.random)

    def holds_durably(self, ledger_id: int, entry_id: int, payload: bytes) -> bool:
        """Whether a crash now would leave an entry on the disk: its bytes, in a file whose name is durable."""
        head = struct.pack(">qq", ledger_id, entry_id)
        for inode in _durable_files(self.disk.root):
            at = inode.durable.find(head)
            while at >= 0:
                begin = at + _ENTRY_HEAD_BYTES
                if inode.durable[begin : begin + len(payload)] == payload:
                    return True
                at = inode.durable.find(head, at + 1)
        return False

    def damage(self, ledger_id: int, entry_id: int) -> bool:
        """Change the last byte of an entry in the entry log; return False where it is not there."""
        if self.twin is None:
            return False
        self.twin.checkpoint()
        found = False
        for path, inode in self.disk.visible_files().items():
            if not path.endswith(".log"):
                continue
            at = inode.cached.find(struct.pack(">qq", ledger_id, entry_id))
            if at < LENGTH_BYTES or at + _ENTRY_HEAD_BYTES > len(inode.cached):
                continue
            end = at + int.from_bytes(inode.cached[at - LENGTH_BYTES : at], "big")
            for content in (inode.cached, inode.durable):
                if at + _ENTRY_HEAD_BYTES < end <= len(content):
                    content[end - 1] ^= 1
                    found = True
        if found:
            self.damaged.add((ledger_id, entry_id))
        return found


async def _close_later(tree: MemoryTree, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await tree.close()


def _durable_files(directory: Directory) -> list[Inode]:
    """Return the files below a directory whose names no crash takes away."""
    found: list[Inode] = []
    for node in directory.durable.values():
        found += [node] if isinstance(node, Inode) else _durable_files(node)
    return found


class ObservedStore(MemoryStore):
    """A metadata store that tells of changed data: `observe(path, before, after, version)`."""

    def __init__(self, observe: Callable[[str, bytes, bytes, int], None]) -> None:
        super().__init__()
        self._observe = observe

    def write(self, operations: Sequence[Operation], owner: int, sequential: bool) -> list[str]:
        before = {it.path: node.data for it in operations if isinstance(it, Set) and (node := self.find(it.path))}
        try:
            return super().write(operations, owner, sequential)
        finally:
            # Also when only the answer is lost.
            for path, data in before.items():
                node = self.find(path)
                if node is not None and node.data != data:
                    self._observe(path, data, node.data, node.version)


class Cluster:
    """Bookies and a metadata store; delays and faults come from one random source."""

    def __init__(self, random: Random, bookies: int) -> None:
        self.random = random
        self.store = MemoryStore()
        self.links: set[Link] = set()
        # Sessions of bookies that have died, which live on for a while.
        self.ending: set[asyncio.Future[None]] = set()
        self.observer = Observer()
        self.observes = False
        # How often a bookie answers twice; how much the sockets' buffers take.
        self.repeats = 0.0
        self.socket_bytes = SOCKET_BYTES
        self._links_made = 0
        self.bookies = [FullBookie(self, _FIRST_PORT + i) for i in range(bookies)]
        self.network_s = random.choice((0.0005, 0.002, 0.01))
        # What it takes to connect, without the network's delay.
        self.connect_s = 0.0
        self.journal_s = random.choice((0.0005, 0.002, 0.02))
        self.metadata_s = random.choice((0.0005, 0.005, 0.05))

    async def start(self) -> None:
        """Initialize the metadata store, and start all bookies."""
        await BookieRegistry(self.store.session(), MetadataUri.parse(URI)).initialize_cluster()
        for bookie in self.bookies:
            await bookie.start()

    def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run a program on a loop of its own, whose connections are those of this cluster."""
        return run_in_virtual_time(program, self.connect)

    def bookie(self, name: str) -> FullBookie:
        """Return a bookie by its id."""
        return next(bookie for bookie in self.bookies if bookie.id == name)

    def count_link(self) -> int:
        self._links_made += 1
        return self._links_made

    def delay_s(self) -> float:
        return self.random.expovariate(1.0) * self.network_s

    def sync_s(self) -> float:
        return self.random.expovariate(1.0) * self.journal_s

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple[Link, Any]:
        """Connect a client, as the event loop's `create_connection`."""
        await asyncio.sleep(self.connect_s + self.delay_s())
        bookie = self.bookies[port - _FIRST_PORT]
        if bookie.twin is None:
            raise ConnectionRefusedError(f"no process listens at {host}:{port}")
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
