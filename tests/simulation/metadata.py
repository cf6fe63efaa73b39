"""A simulated ZooKeeper: the product's in-memory tree with a network, with every change on record.

Each client has a session, `SimulatedTree`. A call takes a way there and a way back. It may be lost before the server
applied it or after, the session may expire under it, and a first read may come from a server that lags behind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bkspark.errors import MetadataError, MetadataVersion, SessionExpired
from bkspark.metadata import encoding, layout, paths
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.memory import MemoryStore
from bkspark.metadata.tree import ANY_VERSION, Callback, Create, Operation, Stat, Tree
from bkspark.metadata.uri import LedgerManager, MetadataUri
from tests.simulation.history import History
from tests.simulation.world import EXPONENTIAL, MILLISECOND, Node, Pause, World, place, run_now

ROOT = "/ledgers"
URI = MetadataUri.parse(f"zk+flat://simulated:2181{ROOT}")
AVAILABLE = f"{ROOT}/{paths.AVAILABLE}"
_LAYOUT = layout.encode(LedgerManager.FLAT)


_decoded = functools.lru_cache(maxsize=512)(encoding.decode)


class Metadata:
    """The server. `history` gets every change of a ledger."""

    def __init__(self, world: World, history: History, salt: int) -> None:
        self.world = world
        self.history = history
        self.store = MemoryStore()
        self.delay_mean = MILLISECOND
        self.stalled_until = 0
        # What happens to the calls of a client, by its name: consumed one by one.
        self.planned: dict[str, list[str]] = {}
        self.lag = 0
        self.on_change: Callable[[str, Versioned, str], None] = lambda path, stored, by: None
        self._versions: dict[str, list[tuple[int, bytes, Stat]]] = {}
        self._inner = self.store.session()
        self._salt = salt
        self._count = 0
        operations = [Create(ROOT), Create(f"{ROOT}/{paths.LAYOUT}", _LAYOUT), Create(AVAILABLE)]
        self.store.write(operations, 0, False)

    def register(self, bookie: str) -> None:
        """A bookie's ephemeral node appears."""
        path = f"{AVAILABLE}/{bookie}"
        if self.store.find(path) is None:
            self.store.write([Create(path)], 0, False)

    def unregister(self, bookie: str) -> None:
        """The bookie's session is over."""
        if self.store.find(f"{AVAILABLE}/{bookie}") is not None:
            run_now(self._inner.delete(f"{AVAILABLE}/{bookie}"))

    def current(self, ledger_id: int) -> Versioned:
        """Return the present contents."""
        data, stat = run_now(self._inner.get(ROOT + paths.ledger_path(ledger_id, LedgerManager.FLAT)))
        return Versioned(_decoded(data, ledger_id), stat.version, stat.ctime_ms, stat.mtime_ms)

    def call(self, client: Node, work: Callable[[], Any], resume: Callable[[Any, Exception | None], None]) -> None:
        """Carry a call to the server, and its result back."""
        world = self.world
        self._count += 1
        where = place(self._salt, self._count)
        arrival = max(world.now + int(EXPONENTIAL[where] * self.delay_mean), self.stalled_until)
        back = int(EXPONENTIAL[where ^ 1] * self.delay_mean)
        world.at(arrival, client, self._arrive, client, work, resume, back)

    def _arrive(
        self,
        client: Node,
        work: Callable[[], Any],
        resume: Callable[[Any, Exception | None], None],
        back: int,
    ) -> None:
        planned = self.planned.get(client.name)
        fault = planned.pop(0) if planned else ""
        result: Any = None
        error: Exception | None = None
        if not fault.endswith("before"):
            try:
                result = work()
            except MetadataError as refused:
                error = refused
        if fault:
            self.history.count_fault(f"metadata {fault}")
            kind = SessionExpired if fault.startswith("expired") else MetadataError
            result, error = None, kind("the connection to the metadata store was lost")
        self.world.at(self.world.now + back, client, resume, result, error)

    # ---- what sessions do, once arrived ----

    def set(self, client: str, path: str, data: bytes, version: int) -> Stat:
        stat = run_now(self._inner.set(path, data, version))
        self._note(client, path, data, stat)
        return stat

    def create(self, client: str, path: str, data: bytes) -> tuple[str, Stat]:
        created, stat = run_now(self._inner.create(path, data, make_parents=True))
        self._note(client, path, data, stat)
        return created, stat

    def get(self, path: str, seen: int) -> tuple[bytes, Stat]:
        """Return a node as it is, or as a lagging server has it, never below version `seen`."""
        if self.lag:
            for when, data, stat in reversed(self._versions.get(path, ())):
                if when <= self.world.now - self.lag or stat.version <= seen:
                    return data, stat
        return run_now(self._inner.get(path))

    def children(self, path: str) -> list[str]:
        return run_now(self._inner.children(path))

    def listing(self, path: str) -> tuple[list[str], Stat]:
        return run_now(self._inner.listing(path))

    def exists(self, path: str, seen: int) -> Stat | None:
        """Return the Stat of a node that `get` returns; None if it does not exist."""
        return None if self.store.find(path) is None else self.get(path, seen)[1]

    def version(self, path: str) -> int:
        node = self.store.find(path)
        return -1 if node is None else node.version

    def _note(self, client: str, path: str, data: bytes, stat: Stat) -> None:
        self._versions.setdefault(path, []).append((self.world.now, data, stat))
        if path.startswith(f"{ROOT}/L"):
            ledger_id = int(path.rpartition("L")[2])
            stored = Versioned(_decoded(data, ledger_id), stat.version, stat.ctime_ms, stat.mtime_ms)
            self.history.metadata_written(ledger_id, stored, client, self.world.now)
            self.on_change(path, stored, client)


class SimulatedTree(Tree):
    """One client's session. It never sees a node older than it saw before."""

    def __init__(self, metadata: Metadata, client: Node) -> None:
        self._metadata = metadata
        self._client = client
        self._seen: dict[str, int] = {}

    @property
    def session_id(self) -> int:
        return 1

    @property
    def session_timeout_s(self) -> float:
        return 10.0

    def _call(self, work: Callable[[], Any]) -> Pause:
        return Pause(lambda resume: self._metadata.call(self._client, work, resume))

    async def get(self, path: str) -> tuple[bytes, Stat]:
        data, stat = await self._call(lambda: self._metadata.get(path, self._seen.get(path, -1)))
        self._seen[path] = stat.version
        return data, stat

    async def exists(self, path: str) -> Stat | None:
        stat = await self._call(lambda: self._metadata.exists(path, self._seen.get(path, -1)))
        if stat is not None:
            self._seen[path] = stat.version
        return stat

    async def children(self, path: str) -> list[str]:
        return await self._call(lambda: self._metadata.children(path))

    async def listing(self, path: str) -> tuple[list[str], Stat]:
        return await self._call(lambda: self._metadata.listing(path))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        assert not ephemeral
        assert not sequential
        return await self._call(lambda: self._metadata.create(self._client.name, path, data))

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        try:
            stat = await self._call(lambda: self._metadata.set(self._client.name, path, data, version))
        except MetadataVersion:
            # The refusal is answered after the write that it lost against.
            self._seen[path] = self._metadata.version(path)
            raise
        self._seen[path] = stat.version
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        raise NotImplementedError

    async def transaction(self, operations: Sequence[Operation]) -> None:
        """Only checks come here: a write of nothing, after which this session lags no more."""

        def catch_up() -> None:
            for path in self._metadata.history.paths:
                self._seen[path] = self._metadata.version(path)

        await self._call(catch_up)

    async def watch(self, path: str, callback: Callback) -> Callback:
        raise NotImplementedError

    async def watch_children(self, path: str, callback: Callback) -> Callback:
        raise NotImplementedError

    def on_session_expired(self, callback: Callback) -> Callback:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError
