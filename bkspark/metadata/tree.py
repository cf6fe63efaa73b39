"""Tree: the interface of a metadata store: the operations of a versioned znode tree that bkspark uses.

`zookeeper.ZooKeeperTree` uses ZooKeeper; `memory.MemoryTree` is its equivalent in memory. All code above uses this
interface. Paths are absolute. Errors are those of `bkspark.errors`: NoSuchNode, NodeExists, MetadataVersion,
SessionExpired, and MetadataError for a store that cannot be reached; then a write may or may not have taken effect.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

ANY_VERSION = -1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stat:
    """Facts of a node.

    version: of its data. ctime_ms, mtime_ms: when it was created, and when its data last changed, since the epoch.
    session_owner: the session with which it ends; 0: it is persistent.
    children: how many there are. child_changes: how often one was created or deleted; a write that failed may count.
    creation: the number of the change that created it, which no other node has; 0: unknown.
    """

    version: int
    ctime_ms: int
    mtime_ms: int
    session_owner: int
    children: int
    child_changes: int
    creation: int = 0


def milliseconds_of(moment: datetime, *, rounds_up: bool = False) -> int:
    """Return a time as a `Stat` has it, rounded down unless `rounds_up`; one without zone is UTC."""
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    millisecond = timedelta(milliseconds=1)
    return -((_EPOCH - moment) // millisecond) if rounds_up else (moment - _EPOCH) // millisecond


@dataclass(frozen=True, slots=True)
class Create:
    """In a transaction: create a persistent node."""

    path: str
    data: bytes = b""
    """The node's contents."""


@dataclass(frozen=True, slots=True)
class Set:
    """In a transaction: replace data if the version is the expected one."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """In a transaction: delete a node without children if the version is the expected one."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """In a transaction: succeed only if the node has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check
Callback = Callable[[], None]


class Tree(ABC):
    """A versioned tree of nodes; one object is one session. All calls are coroutines of one event loop."""

    @property
    @abstractmethod
    def session_id(self) -> int:
        """The session that owns ephemeral nodes created here."""

    @property
    @abstractmethod
    def session_timeout_s(self) -> float:
        """How long the store keeps a silent session."""

    @abstractmethod
    async def get(self, path: str) -> tuple[bytes, Stat]:
        """Return a node's data and Stat. Raises NoSuchNode."""

    @abstractmethod
    async def exists(self, path: str) -> Stat | None:
        """Return the Stat of a node; None if it does not exist."""

    @abstractmethod
    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children, sorted. Raises NoSuchNode."""

    @abstractmethod
    async def listing(self, path: str) -> tuple[list[str], Stat]:
        """Return the names of a node's children, sorted, and the node's Stat at that moment. Raises NoSuchNode."""

    @abstractmethod
    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        """Create a node and return its path (`sequential` appends ten digits) and Stat.

        Raises:
            NodeExists: the path is taken.
            NoSuchNode: the parent is missing, unless `make_parents`.
        """

    @abstractmethod
    async def set(self, path: str, data: bytes, version: int) -> Stat:
        """Replace data if the version is the expected one (-1: any). Raises MetadataVersion, NoSuchNode."""

    @abstractmethod
    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises NoSuchNode, MetadataVersion, NodeExists (it has children)."""

    @abstractmethod
    async def transaction(self, operations: Sequence[Operation]) -> None:
        """Do all or nothing. Raises the error of the first operation that cannot be done; `node` names its path."""

    async def catch_up(self) -> None:
        """Return when this session sees everything that any client wrote before the call.

        A ZooKeeper server answers reads from its own copy, which may lag: a write that another process has just
        completed and reported to us may be missing. A write, even an empty one, is answered after all writes before it.
        """
        await self.transaction([Check("/", ANY_VERSION)])

    @abstractmethod
    async def watch(self, path: str, callback: Callback) -> Callback:
        """Call `callback()` whenever the node may have been changed, created or deleted; return what ends the watch.

        It may be called more than once for a change, and once for several; after a reconnection it is called without a
        change.
        """

    @abstractmethod
    async def watch_children(self, path: str, callback: Callback) -> Callback:
        """As `watch`, for the list of children. The watch ends when the node is deleted. Raises NoSuchNode."""

    @abstractmethod
    def on_session_expired(self, callback: Callback) -> Callback:
        """Call `callback()` when the session and its ephemeral nodes have ended; a new session begins by itself.

        Returns a function that ends this.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the session; its ephemeral nodes are deleted."""


def listed(callbacks: list[Callback], callback: Callback) -> Callback:
    """Add a callback to a list; return a function that removes it. A second call of that function is harmless."""
    callbacks.append(callback)

    def remove() -> None:
        with contextlib.suppress(ValueError):
            callbacks.remove(callback)

    return remove


def parent_of(path: str) -> str:
    """Return the path above.

    >>> parent_of("/a/b"), parent_of("/a")
    ('/a', '/')
    """
    return path.rpartition("/")[0] or "/"
