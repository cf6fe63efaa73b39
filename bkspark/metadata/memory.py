"""MemoryTree: the metadata store in memory, with versions, sessions, sequences, transactions and watches.

`MemoryStore` is the server; `MemoryStore.session()` returns a MemoryTree. The caller injects faults: `faults` maps the
number of a write (counted from 0) to its fault, so that each fault can be tried at each write.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from bkspark.errors import MetadataError, MetadataVersion, NodeExists, NoSuchNode, SessionExpired
from bkspark.metadata.tree import (
    ANY_VERSION,
    Callback,
    Check,
    Create,
    Delete,
    Operation,
    Set,
    Stat,
    Tree,
    listed,
    parent_of,
)


class Fault(enum.Enum):
    """The fault of one write."""

    LOST_BEFORE = enum.auto()
    """The connection is lost; the write has not taken effect."""
    LOST_AFTER = enum.auto()
    """The connection is lost after the write took effect."""


@dataclass(slots=True)
class _Node:
    data: bytes
    """Data of the node."""
    ctime_ms: int
    """When it was created."""
    mtime_ms: int
    """When it was last written."""
    creation: int
    """The number of the change that created it."""
    owner: int = 0
    """The session that owns an ephemeral node; 0 for a persistent one."""
    version: int = 0
    """How often it was written."""
    sequence: int = 0
    """The number of the next sequential child. Only grows."""
    children: set[str] = field(default_factory=set)
    """The names of its children."""

    def stat(self) -> Stat:
        children = len(self.children)
        # Each child was created, and those that are gone were deleted.
        return Stat(
            self.version,
            self.ctime_ms,
            self.mtime_ms,
            self.owner,
            children,
            2 * self.sequence - children,
            self.creation,
        )


class MemoryStore:
    """The tree that sessions share. `now_ms` is the creation and change time of nodes."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.faults: dict[int, Fault] = {}
        """Faults of writes to come, by the number of the write. Each is used once."""
        self.writes = 0
        """The number of writes so far."""
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0)}
        """All nodes, by path. A node's parent exists."""
        self._creations = 0
        """How many nodes were created, also by changes that were undone."""
        self._next_session = 1
        """The id that the next session gets."""
        self._watches: list[tuple[str, bool, Callback]] = []
        """Watches that are set, with their path and whether they are for children. Each fires once."""
        self._sessions: dict[int, MemoryTree] = {}
        """Open sessions, by id."""

    def session(self, timeout_s: float = 10.0) -> MemoryTree:
        """Return a new session."""
        session_id = self._next_session
        self._next_session += 1
        tree = MemoryTree(self, session_id, timeout_s)
        self._sessions[session_id] = tree
        return tree

    def expire(self, tree: MemoryTree) -> None:
        """End a session as the server ends a silent one; the tree continues with a new one."""
        self._end(tree.session_id)
        tree._begin(self._next_session)
        self._sessions[self._next_session] = tree
        self._next_session += 1

    def _end(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)
        for path in [path for path, node in self._nodes.items() if node.owner == session_id]:
            self._remove(path)

    # ---- called by sessions ----

    def node(self, path: str) -> _Node:
        if path not in self._nodes:
            raise NoSuchNode(f"metadata node {path} does not exist")
        return self._nodes[path]

    def find(self, path: str) -> _Node | None:
        return self._nodes.get(path)

    def write(self, operations: Sequence[Operation], owner: int, sequential: bool) -> list[str]:
        """Apply all or none; return the paths created."""
        fault = self.faults.pop(self.writes, None)
        self.writes += 1
        if fault is Fault.LOST_BEFORE:
            raise MetadataError("the connection to the metadata store was lost")
        undo: list[tuple[str, _Node | None]] = []
        created = []
        try:
            for operation in operations:
                at = operation.path
                created += self._apply(operation, owner, sequential, undo)
        except MetadataError as error:
            error.node = at
            for path, node in reversed(undo):
                self._restore(path, node)
            raise
        self._notify([path for path, _ in undo])
        if fault is Fault.LOST_AFTER:
            raise MetadataError("the connection to the metadata store was lost")
        return created

    def add_watch(self, path: str, of_children: bool, callback: Callback) -> Callback:
        watch = (path, of_children, callback)
        self._watches.append(watch)
        return lambda: self._watches.remove(watch) if watch in self._watches else None

    @property
    def watched(self) -> list[str]:
        """The path of each watch that is set."""
        return [path for path, *_ in self._watches]

    def lose_watches(self) -> None:
        """Forget all watches, as a server does that loses the events of its clients."""
        self._watches.clear()

    # ---- inside ----

    def _apply(
        self, operation: Operation, owner: int, sequential: bool, undo: list[tuple[str, _Node | None]]
    ) -> list[str]:
        if isinstance(operation, Create):
            parent = self.node(parent_of(operation.path))
            path = f"{operation.path}{parent.sequence:010d}" if sequential else operation.path
            if path in self._nodes:
                raise NodeExists(f"metadata node {path} exists already")
            parent.sequence += 1
            parent.children.add(path.rpartition("/")[2])
            self._creations += 1
            self._nodes[path] = _Node(operation.data, self.now_ms, self.now_ms, self._creations, owner)
            undo.append((path, None))
            return [path]
        node = self.node(operation.path)
        if operation.version not in (ANY_VERSION, node.version):
            raise MetadataVersion(
                f"metadata node {operation.path} has version {node.version}, not the expected {operation.version}"
            )
        if isinstance(operation, Set):
            before = _Node(node.data, node.ctime_ms, node.mtime_ms, node.creation, node.owner, node.version)
            undo.append((operation.path, before))
            node.data = operation.data
            node.mtime_ms = self.now_ms
            node.version += 1
        elif isinstance(operation, Delete):
            if node.children:
                raise NodeExists(f"metadata node {operation.path} has children")
            undo.append((operation.path, node))
            self._nodes.pop(operation.path)
            self._nodes[parent_of(operation.path)].children.discard(operation.path.rpartition("/")[2])
        else:
            assert isinstance(operation, Check)
        return []

    def _restore(self, path: str, before: _Node | None) -> None:
        siblings, name = self._nodes[parent_of(path)].children, path.rpartition("/")[2]
        if before is None:
            self._nodes.pop(path)
            siblings.discard(name)
        elif path in self._nodes:
            node = self._nodes[path]
            node.data, node.version = before.data, before.version
        else:
            self._nodes[path] = before
            siblings.add(name)

    def _remove(self, path: str) -> None:
        self._nodes.pop(path)
        self._nodes[parent_of(path)].children.discard(path.rpartition("/")[2])
        self._notify([path])

    def _notify(self, paths: list[str]) -> None:
        changed, parents = set(paths), {parent_of(path) for path in paths}
        for path, of_children, callback in tuple(self._watches):
            if path in (parents if of_children else changed):
                asyncio.get_running_loop().call_soon(callback)


class MemoryTree(Tree):
    """One session of a MemoryStore."""

    def __init__(self, store: MemoryStore, session_id: int, timeout_s: float) -> None:
        self._store = store
        self._timeout_s = timeout_s
        """How long the session lives after its connection is lost."""
        self._expired: list[Callback] = []
        """Called when a session has expired."""
        self._watches: list[Callback] = []
        """Each ends a watch that was set here and is not ended."""
        self._session_id = session_id
        """Replaced by the store when the session expires."""
        self._is_closed = False
        """Whether `close` was called. Set once."""

    def _begin(self, session_id: int) -> None:
        self._session_id = session_id
        for callback in tuple(self._expired):
            asyncio.get_running_loop().call_soon(callback)

    @property
    def store(self) -> MemoryStore:
        """The server of this session, for tests that make it fail."""
        return self._store

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    def _check(self) -> None:
        if self._is_closed:
            raise SessionExpired("the metadata session is closed")

    async def get(self, path: str) -> tuple[bytes, Stat]:
        self._check()
        node = self._store.node(path)
        return node.data, node.stat()

    async def exists(self, path: str) -> Stat | None:
        self._check()
        node = self._store.find(path)
        return None if node is None else node.stat()

    async def children(self, path: str) -> list[str]:
        self._check()
        return sorted(self._store.node(path).children)

    async def listing(self, path: str) -> tuple[list[str], Stat]:
        self._check()
        node = self._store.node(path)
        return sorted(node.children), node.stat()

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        self._check()
        if make_parents:
            above = parent_of(path)
            missing = []
            while self._store.find(above) is None:
                missing.append(above)
                above = parent_of(above)
            for parent in reversed(missing):
                self._store.write([Create(parent)], 0, False)
        (created,) = self._store.write([Create(path, data)], self._session_id if ephemeral else 0, sequential)
        return created, self._store.node(created).stat()

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        self._check()
        self._store.write([Set(path, data, version)], 0, False)
        return self._store.node(path).stat()

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._check()
        self._store.write([Delete(path, version)], 0, False)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        self._check()
        self._store.write(operations, 0, False)

    async def watch(self, path: str, callback: Callback) -> Callback:
        return self._watch(path, False, callback)

    async def watch_children(self, path: str, callback: Callback) -> Callback:
        self._store.node(path)
        return self._watch(path, True, callback)

    def _watch(self, path: str, of_children: bool, callback: Callback) -> Callback:
        self._check()
        stop = self._store.add_watch(path, of_children, callback)
        forget = listed(self._watches, stop)

        def end() -> None:
            stop()
            forget()

        return end

    def on_session_expired(self, callback: Callback) -> Callback:
        return listed(self._expired, callback)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for stop in tuple(self._watches):
                stop()
            self._store._end(self._session_id)
