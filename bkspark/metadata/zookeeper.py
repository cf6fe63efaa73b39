"""ZooKeeperTree: the metadata tree in ZooKeeper. The only module that knows kazoo.

kazoo runs threads of its own; each call here is kazoo's asynchronous one, whose outcome comes back to the event loop.
Every call has a time limit: kazoo queues requests while it is disconnected, for as long as that lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import ZnodeStat

from bkspark.errors import MetadataError, MetadataVersion, NodeExists, NoSuchNode, SessionExpired
from bkspark.metadata.tree import ANY_VERSION, Callback, Create, Delete, Operation, Set, Stat, Tree
from bkspark.metadata.uri import MetadataUri

SESSION_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 10.0

# Whoever configures logging sees what kazoo says; nobody else gets it on stderr, where our own one-line errors go.
_logger = logging.getLogger("bkspark.kazoo")
_logger.addHandler(logging.NullHandler())


async def open_tree(
    uri: MetadataUri, *, session_timeout_s: float = SESSION_TIMEOUT_S, call_timeout_s: float = CALL_TIMEOUT_S
) -> ZooKeeperTree:
    """Connect to the URI's ZooKeeper.

    Raises:
        MetadataError: no server answered in `call_timeout_s`; names the address.
    """
    tree = ZooKeeperTree(uri, session_timeout_s, call_timeout_s)
    await tree.connect()
    return tree


class ZooKeeperTree(Tree):
    """One ZooKeeper session; a new one follows by itself when it expires."""

    def __init__(self, uri: MetadataUri, session_timeout_s: float, call_timeout_s: float) -> None:
        self._address = uri.connect_string
        self._call_timeout_s = call_timeout_s
        self._session_timeout_s = session_timeout_s
        self._loop = asyncio.get_running_loop()
        self._client = KazooClient(hosts=uri.connect_string, timeout=session_timeout_s, logger=_logger)
        self._client.add_listener(self._on_state)
        self._connected: asyncio.Future[None] | None = None
        self._expired: list[Callback] = []
        self._rearm: dict[object, Callable[[], None]] = {}
        self._was_disconnected = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Start the session. Raises MetadataError when no server answers in time."""
        self._connected = self._loop.create_future()
        self._client.start_async()
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._connected
        except TimeoutError:
            await self.close()
            raise MetadataError(
                f"no ZooKeeper answers at {self._address} (waited {self._call_timeout_s:g} s): start it, or correct "
                "the metadata URI"
            ) from None

    # ---- the session ----

    @property
    def session_id(self) -> int:
        identity = self._client.client_id
        return identity[0] if identity else 0

    @property
    def session_timeout_s(self) -> float:
        return self._session_timeout_s

    def on_session_expired(self, callback: Callback) -> None:
        self._expired.append(callback)

    def _on_state(self, state: str) -> None:
        # On a thread of kazoo's.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._state_changed, state)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.LOST:
            self._was_disconnected = True
            for callback in self._expired:
                callback()
        elif state == KazooState.SUSPENDED:
            self._was_disconnected = True
        elif state == KazooState.CONNECTED:
            if self._connected is not None and not self._connected.done():
                self._connected.set_result(None)
            if self._was_disconnected:
                # Watches set before are gone, and changes made meanwhile were not told.
                self._was_disconnected = False
                for rearm in tuple(self._rearm.values()):
                    rearm()

    async def close(self) -> None:
        self._rearm.clear()
        self._expired.clear()
        for task in self._tasks:
            task.cancel()
        client = self._client

        def stop() -> None:
            client.stop()
            client.close()

        await self._loop.run_in_executor(None, stop)

    # ---- calls ----

    async def _call(self, what: str, path: str, start: Callable[[], Any]) -> Any:
        """Run one of kazoo's asynchronous calls and translate its outcome."""
        outcome: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if outcome.done():
                return
            if result.exception is not None:
                outcome.set_exception(result.exception)
            else:
                outcome.set_result(result.value)

        def linked(result: Any) -> None:
            # On a thread of kazoo's; the loop may have ended while the call was queued.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(settle, result)

        try:
            start().rawlink(linked)
            async with asyncio.timeout(self._call_timeout_s):
                return await outcome
        except TimeoutError:
            raise MetadataError(
                f"ZooKeeper at {self._address} did not answer {what} of {path} in {self._call_timeout_s:g} s"
            ) from None
        except kazoo_errors.KazooException as error:
            raise self._translated(error, what, path) from None

    def _translated(self, error: Exception, what: str, path: str) -> MetadataError:
        if isinstance(error, kazoo_errors.NoNodeError):
            return NoSuchNode(f"metadata node {path} does not exist")
        if isinstance(error, kazoo_errors.NodeExistsError):
            return NodeExists(f"metadata node {path} exists already")
        if isinstance(error, kazoo_errors.NotEmptyError):
            return NodeExists(f"metadata node {path} has children")
        if isinstance(error, kazoo_errors.BadVersionError):
            return MetadataVersion(f"metadata node {path} has another version than the expected one")
        if isinstance(error, kazoo_errors.SessionExpiredError):
            return SessionExpired(f"the session at ZooKeeper {self._address} expired during {what} of {path}")
        detail = str(error) or type(error).__name__
        return MetadataError(f"ZooKeeper at {self._address} failed {what} of {path}: {detail}")

    async def get(self, path: str) -> tuple[bytes, Stat]:
        data, stat = await self._call("the read", path, lambda: self._client.get_async(path))
        return data, _stat(stat)

    async def exists(self, path: str) -> Stat | None:
        stat = await self._call("the look-up", path, lambda: self._client.exists_async(path))
        return None if stat is None else _stat(stat)

    async def children(self, path: str) -> list[str]:
        return sorted(await self._call("the listing", path, lambda: self._client.get_children_async(path)))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        created: str = await self._call(
            "the creation",
            path,
            lambda: self._client.create_async(
                path, data, ephemeral=ephemeral, sequence=sequential, makepath=make_parents
            ),
        )
        return created

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        return _stat(await self._call("the write", path, lambda: self._client.set_async(path, data, version)))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._call("the deletion", path, lambda: self._client.delete_async(path, version))

    async def transaction(self, operations: Sequence[Operation]) -> None:
        request = self._client.transaction()
        for operation in operations:
            if isinstance(operation, Create):
                request.create(operation.path, operation.data)
            elif isinstance(operation, Set):
                request.set_data(operation.path, operation.data, operation.version)
            elif isinstance(operation, Delete):
                request.delete(operation.path, operation.version)
            else:
                request.check(operation.path, operation.version)
        results = await self._call("a transaction", operations[0].path, request.commit_async)
        for operation, result in zip(operations, results):
            # Operations before and after the one that failed carry these two; they say nothing of their own.
            uninformative = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
            if isinstance(result, Exception) and not isinstance(result, uninformative):
                raise self._translated(result, "a transaction", operation.path)

    # ---- watches ----

    async def watch(self, path: str, callback: Callback) -> Callback:
        return await self._watch(path, callback, lambda on_event: self._client.exists_async(path, watch=on_event))

    async def watch_children(self, path: str, callback: Callback) -> Callback:
        return await self._watch(path, callback, lambda on_event: self._client.get_children_async(path, watch=on_event))

    async def _watch(self, path: str, callback: Callback, arm: Callable[[Callable[[Any], None]], Any]) -> Callback:
        """Keep a one-shot watch armed, telling `callback` each time it fires."""
        key = object()

        def on_event(_: Any) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(fired)

        def fired() -> None:
            if key in self._rearm:
                self._spawn(again())

        async def again() -> None:
            # Armed first and told then: a change in between fires the new watch.
            try:
                await self._call("a watch", path, lambda: arm(on_event))
            except NoSuchNode:
                self._rearm.pop(key, None)
            except MetadataError:
                return  # disconnected; the reconnection arms it
            callback()

        self._rearm[key] = fired
        try:
            await self._call("a watch", path, lambda: arm(on_event))
        except MetadataError:
            del self._rearm[key]
            raise
        return lambda: self._rearm.pop(key, None) and None

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.ctime, stat.ephemeralOwner, stat.numChildren)
