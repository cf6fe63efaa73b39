"""ZooKeeperTree: the metadata store in ZooKeeper. Only this module and `zookeeper_connection` import kazoo.

kazoo runs its own threads; each call here uses kazoo's asynchronous call and returns its result to the event loop.
Every call has a time limit, and begins only while the session is connected: kazoo would queue it while the server is
unreachable, and an abandoned write would take effect later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooState
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, Id

from bkspark.errors import (
    ConfigurationError,
    MetadataAccessDenied,
    MetadataError,
    MetadataVersion,
    NodeExists,
    NoSuchNode,
    SessionExpired,
)
from bkspark.metadata.acls import Acl, AclList
from bkspark.metadata.tree import ANY_VERSION, Callback, Create, Delete, Operation, Set, Stat, Tree, listed
from bkspark.metadata.uri import MetadataUri
from bkspark.metadata.zookeeper_connection import ConnectFailure, ConnectionSetup, ZooKeeperClient
from bkspark.metadata.zookeeper_login import login_of
from bkspark.metadata.zookeeper_options import ENABLE_SECURITY, JAAS_FILE, ZooKeeperOptions, in_keys_of_zookeeper
from bkspark.tasks import start_kept
from bkspark.tls.contexts import TlsContext

CLOSE_TIMEOUT_S = 2.0
REARM_PAUSE_S = 0.1
DENIED_PAUSE_S = 5.0
READ_TRIES_MAX = 5
"""Attempts of a read whose connection is lost."""
# For ever, and at most a second apart: a session outlives its connection only by seconds.
_RECONNECTION = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
REQUEST_BYTES_MAX = 0xFFFFF
"""ZooKeeper's jute.maxbuffer unless configured otherwise; it drops the connection of a longer request."""

_ANSWERS = (
    kazoo_errors.APIError,
    kazoo_errors.BadArgumentsError,
    kazoo_errors.EphemeralOnLocalSessionError,
    kazoo_errors.NoChildrenForEphemeralsError,
    kazoo_errors.QuotaExceededError,
    kazoo_errors.UnimplementedError,
)
"""Errors with which ZooKeeper refuses a request, in addition to those that have a class of ours. After others, it is
not certain whether the request took effect."""

Arm = Callable[[Callable[[Any], None]], Any]
"""Sends a read to kazoo that sets the given function as its watch."""

# Users who configure logging see kazoo's lines; others do not get them on stderr, where our own one-line errors go.
_logger = logging.getLogger("bkspark.kazoo")
for _name in ("bkspark.kazoo", "kazoo"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


def _shows_no_node(record: logging.LogRecord) -> bool:
    """Return False for lines that show requests or answers, with what nodes hold: passwords of ledgers."""
    return record.levelno > logging.DEBUG and not any(hasattr(each, "serialize") for each in record.args or ())


_logger.addFilter(_shows_no_node)


async def open_tree(
    uri: MetadataUri,
    options: ZooKeeperOptions = ZooKeeperOptions(),
    *,
    session_timeout_s: float | None = None,
    call_timeout_s: float | None = None,
) -> ZooKeeperTree:
    """Connect to the URI's ZooKeeper, and log in.

    Args:
        session_timeout_s, call_timeout_s: None: as `options` say.

    Raises:
        ConfigurationError: a file that the options name cannot be used.
        MetadataAccessDenied: every server refuses the login, or cannot be trusted.
        MetadataError: no server answered in `call_timeout_s`; the message has the address.
    """
    tree = ZooKeeperTree(uri, options, session_timeout_s or options.timeout_s, call_timeout_s or options.timeout_s)
    await tree.connect()
    return tree


class ZooKeeperTree(Tree):
    """A ZooKeeper session. When it expires, a new one begins by itself."""

    def __init__(
        self, uri: MetadataUri, options: ZooKeeperOptions, session_timeout_s: float, call_timeout_s: float
    ) -> None:
        self._address = uri.connect_string
        """The servers as kazoo takes them, for messages, too."""
        self._options = options
        new_login = login_of(options)
        self._logs_in = new_login is not None
        """Whether the connection begins with a login. Constant."""
        self._servers = len(uri.hosts)
        """How many servers the URI names. Constant."""
        self._failures: dict[str, ConnectFailure] = {}
        """How the last attempt to connect to each server failed, by address. Emptied by a success."""
        self._call_timeout_s = call_timeout_s
        self._session_timeout_s = session_timeout_s
        """After so long without a connection the servers end the session. `_call_timeout_s`: a call waits at most so
        long."""
        self._loop = asyncio.get_running_loop()
        self._client = ZooKeeperClient(
            hosts=uri.connect_string,
            timeout_s=session_timeout_s,
            logger=_logger,
            connection_retry=_RECONNECTION,
            acl=_kazoo_acls(options.new_node_acl),
            setup=ConnectionSetup(
                _context(options),
                new_login,
                on_ready=lambda: self._on_loop(self._state_changed, KazooState.CONNECTED),
                on_failure=lambda failure: self._on_loop(self._attempt_failed, failure),
            ),
        )
        self._client.add_listener(self._on_state)
        self._connected = asyncio.Event()
        """Set while there is a connection and a session."""
        self._was_connected = False
        """Whether a connection was ever made. Set once."""
        self._is_refused = False
        """Whether every server refused the login before a connection was made. Set once."""
        self._is_closed = False
        """Whether `close` was called. Set once."""
        self._expired: list[Callback] = []
        """Called when a session has expired."""
        self._watches: set[_Watch] = set()
        """Watches that callers have set and not ended. They are set again after a disconnection."""
        self._was_disconnected = False
        """Whether the connection is lost and was not made again yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that set watches again."""

    async def connect(self) -> None:
        """Start the session.

        Raises:
            MetadataAccessDenied: every server refuses this client, or cannot be trusted.
            MetadataError: no server answers in time.
        """
        self._client.start_async()
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._connected.wait()
        except TimeoutError:
            self._stop()
            raise MetadataError(
                f"no ZooKeeper answers at {self._address} (waited {self._call_timeout_s:g} s): start it, or correct "
                f"the metadata URI{self._why()}"
            ) from None
        except BaseException:
            # A cancelled caller has no tree to close, and kazoo would try to connect for ever.
            self._stop()
            raise
        if self._is_refused:
            self._stop()
            raise MetadataAccessDenied(f"no session at ZooKeeper {self._address}{self._why()}")

    def _attempt_failed(self, failure: ConnectFailure) -> None:
        self._failures[failure.address] = failure
        refusals = [each for each in self._failures.values() if each.is_refusal]
        if len(refusals) >= self._servers and not self._was_connected:
            # Only `connect` waits now. Waiting longer would not change the answer.
            self._is_refused = True
            self._connected.set()

    def _why(self) -> str:
        """Return how attempts to connect ended, for a message."""
        return "".join(f"; {each.address}: {each.reason}" for each in self._failures.values())

    # ---- the session ----

    @property
    def session_id(self) -> int:
        identity = self._client.client_id
        return identity[0] if identity else 0

    @property
    def session_timeout_s(self) -> float:
        return self._session_timeout_s

    def on_session_expired(self, callback: Callback) -> Callback:
        return listed(self._expired, callback)

    def _on_state(self, state: str) -> None:
        # kazoo is connected before the login; the connection reports when it is complete.
        if state != KazooState.CONNECTED:
            self._on_loop(self._state_changed, state)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop, from a thread of kazoo's; does nothing when the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def _state_changed(self, state: str) -> None:
        if self._is_closed:
            return
        if state == KazooState.CONNECTED:
            self._failures.clear()
            self._was_connected = True
            self._connected.set()
            if self._was_disconnected:
                # Earlier watches are gone, and changes made meanwhile were not reported.
                self._was_disconnected = False
                for watch in tuple(self._watches):
                    self._fired(watch)
            return
        self._connected.clear()
        self._was_disconnected = True
        if state == KazooState.LOST:
            for callback in tuple(self._expired):
                callback()

    async def close(self) -> None:
        stopped = self._stop()
        await asyncio.wait([stopped], timeout=CLOSE_TIMEOUT_S)

    def _stop(self) -> asyncio.Future[None]:
        """End the session on a separate thread: kazoo waits long for a silent server."""
        stopped = self._loop.create_future()
        self._is_closed = True
        self._connected.set()  # calls that wait for the connection find out that it is closed
        self._watches.clear()
        self._expired.clear()
        for task in self._tasks:
            task.cancel()

        def stop() -> None:
            try:
                self._client.stop()
                self._client.close()
            except kazoo_errors.KazooException as error:
                _logger.info("closing the session at %s: %r", self._address, error)
            self._on_loop(_set_done, stopped)

        threading.Thread(target=stop, name="bkspark-zookeeper-close", daemon=True).start()
        return stopped

    # ---- calls ----

    async def _call(
        self,
        what: str,
        path: str,
        start: Callable[[], Any],
        data_bytes: int = 0,
        *,
        is_read: bool = False,
        convert: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Run one of kazoo's asynchronous calls, which sends `data_bytes` of data, and translate its outcome.

        A read whose connection is lost is repeated within the same time limit: it changes nothing. Only the caller
        knows how to determine whether a write took effect. `convert` gets the value on kazoo's thread, and what it
        returns is returned.
        """
        try:
            async with asyncio.timeout(self._call_timeout_s):
                for losses_left in reversed(range(READ_TRIES_MAX if is_read else 1)):
                    try:
                        return await self._call_once(start, convert)
                    except kazoo_errors.ConnectionLoss:
                        if not losses_left:
                            raise
        except TimeoutError:
            raise MetadataError(
                f"ZooKeeper at {self._address} did not answer {what} of {path} in {self._call_timeout_s:g} s"
                f"{self._why()}"
            ) from None
        except kazoo_errors.KazooException as error:
            if isinstance(error, kazoo_errors.ConnectionLoss) and data_bytes > REQUEST_BYTES_MAX - 2 * len(path):
                raise _too_large(path, data_bytes) from None
            raise self._translated(error, what, path) from None

    async def _call_once(self, start: Callable[[], Any], convert: Callable[[Any], Any] | None) -> Any:
        outcome: asyncio.Future[Any] = self._loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if outcome.done():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(value)

        def on_result(result: Any) -> None:
            value, error = result.value, result.exception
            if error is None and convert is not None:
                value = convert(value)
            if error is not None and not isinstance(error, kazoo_errors.KazooException):
                error = MetadataError(f"ZooKeeper at {self._address} sent an answer that cannot be read: {error!r}")
            self._on_loop(settle, value, error)

        await self._connected.wait()
        if self._is_closed:
            raise SessionExpired(f"the session at ZooKeeper {self._address} is closed")
        start().rawlink(on_result)
        return await outcome

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
        if isinstance(error, kazoo_errors.NoAuthError):
            return MetadataAccessDenied(
                f"ZooKeeper at {self._address} refuses {what} of {path}: the access control list of it, or of the node "
                f"above, does not give {self._who()} the permission"
            )
        if isinstance(error, kazoo_errors.InvalidACLError):
            return MetadataAccessDenied(
                f"ZooKeeper at {self._address} refuses {what} of {path}: {ENABLE_SECURITY}=true closes new nodes to "
                f"all except this client, and the server sees no identity of {self._who()}. Turn SASL on at the server "
                "or let it demand certificates"
            )
        if isinstance(error, kazoo_errors.SessionClosedRequireSaslError):
            return MetadataAccessDenied(
                f"ZooKeeper at {self._address} refuses {what} of {path}: it takes requests only after a SASL login. "
                f"Name a JAAS file with the section {self._options.jaas_section} by {JAAS_FILE}"
            )
        detail = str(error) or type(error).__name__
        failure = MetadataError.answer if isinstance(error, _ANSWERS) else MetadataError
        return failure(f"ZooKeeper at {self._address} failed {what} of {path}: {detail}")

    def _who(self) -> str:
        """Return how this client identifies itself, in words, for messages."""
        options = self._options
        proofs = [f"the user in section {options.jaas_section} of {options.jaas_file}"] if self._logs_in else []
        if options.tls is not None and options.tls.client_authentication:
            proofs.append(f"the certificate in {options.tls.key_store}")
        return " or ".join(proofs) or f"this client, which names no JAAS file ({JAAS_FILE}) and shows no certificate,"

    async def get(self, path: str) -> tuple[bytes, Stat]:
        data, stat = await self._call("the read", path, lambda: self._client.get_async(path), is_read=True)
        return data, _stat(stat)

    async def exists(self, path: str) -> Stat | None:
        stat = await self._call("the look-up", path, lambda: self._client.exists_async(path), is_read=True)
        return None if stat is None else _stat(stat)

    async def children(self, path: str) -> list[str]:
        # Sorting 10,000 names takes 1.4 ms, in which the event loop would answer no client.
        names: list[str] = await self._call(
            "the listing", path, lambda: self._client.get_children_async(path), is_read=True, convert=sorted
        )
        return names

    async def listing(self, path: str) -> tuple[list[str], Stat]:
        names, stat = await self._call(
            "the listing",
            path,
            lambda: self._client.get_children_async(path, include_data=True),
            is_read=True,
            convert=lambda found: (sorted(found[0]), _stat(found[1])),
        )
        return names, stat

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> tuple[str, Stat]:
        created, stat = await self._call(
            "the creation",
            path,
            lambda: self._client.create_async(
                path, data, ephemeral=ephemeral, sequence=sequential, makepath=make_parents, include_data=True
            ),
            data_bytes=len(data),
        )
        return created, _stat(stat)

    async def set(self, path: str, data: bytes, version: int) -> Stat:
        stat = await self._call(
            "the write", path, lambda: self._client.set_async(path, data, version), data_bytes=len(data)
        )
        return _stat(stat)

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
        data_bytes = sum(len(operation.data) for operation in operations if isinstance(operation, Create | Set))
        results = await self._call("a transaction", operations[0].path, request.commit_async, data_bytes=data_bytes)
        for operation, result in zip(operations, results):
            # Operations before and after the failed one carry these two errors, which have no meaning of their own.
            uninformative = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
            if isinstance(result, Exception) and not isinstance(result, uninformative):
                error = self._translated(result, "a transaction", operation.path)
                error.node = operation.path
                raise error

    # ---- access control ----

    async def acl(self, path: str) -> tuple[AclList, int]:
        """Return the access control list of a node, and its version. Raises NoSuchNode, MetadataAccessDenied."""
        found, stat = await self._call(
            "the read of the ACL", path, lambda: self._client.get_acls_async(path), is_read=True
        )
        return tuple(Acl(each.id.scheme, each.id.id, each.perms) for each in found), stat.acl_version

    async def set_acl(self, path: str, acls: AclList, version: int) -> None:
        """Replace the access control list if its version is the expected one (-1: any).

        Raises:
            MetadataVersion: it has changed.
            NoSuchNode, MetadataAccessDenied.
        """
        await self._call(
            "the change of the ACL", path, lambda: self._client.set_acls_async(path, _kazoo_acls(acls), version)
        )

    async def identities(self) -> tuple[tuple[str, str], ...]:
        """Return (scheme, name) of all identities that the server grants this session. Raises MetadataError.

        It needs ZooKeeper 3.7 or newer.
        """
        return tuple(await self._call("the question who this client is", "/", self._client.who_am_i_async))

    # ---- watches ----

    async def watch(self, path: str, callback: Callback) -> Callback:
        return await self._watch(path, callback, lambda on_event: self._client.exists_async(path, watch=on_event))

    async def watch_children(self, path: str, callback: Callback) -> Callback:
        return await self._watch(path, callback, lambda on_event: self._client.get_children_async(path, watch=on_event))

    async def _watch(self, path: str, callback: Callback, arm: Arm) -> Callback:
        """Keep a one-shot watch armed, and call `callback` each time it fires."""

        def on_event(_: Any) -> None:
            self._on_loop(self._fired, watch)

        watch = _Watch(path, callback, lambda: arm(on_event))
        self._watches.add(watch)
        try:
            await self._call("a watch", path, watch.arm)
        except BaseException:
            # Also if it is cancelled: only what is returned below can end the watch.
            self._watches.discard(watch)
            raise

        def stop() -> None:
            watch.is_stopped = True
            self._watches.discard(watch)

        return stop

    def _fired(self, watch: _Watch) -> None:
        watch.has_fired = True
        if not watch.is_arming and watch in self._watches:
            watch.is_arming = True
            start_kept(self._rearm(watch), self._tasks)

    async def _rearm(self, watch: _Watch) -> None:
        while watch.has_fired and watch in self._watches:
            watch.has_fired = False
            try:
                # Armed before the call: a change in between fires the new watch.
                await self._call("a watch", watch.path, watch.arm)
            except NoSuchNode:
                self._watches.discard(watch)  # the node is gone, and the watch of its children ends with it
            except MetadataError as error:
                watch.has_fired = True
                await asyncio.sleep(DENIED_PAUSE_S if isinstance(error, MetadataAccessDenied) else REARM_PAUSE_S)
                continue
            if not watch.is_stopped:
                watch.callback()
        watch.is_arming = False


class _Watch:
    """One watch: its path, its callback, and whether it is being armed."""

    def __init__(self, path: str, callback: Callback, arm: Callable[[], Any]) -> None:
        self.path = path
        self.callback = callback
        self.arm = arm
        """Sets it at the server; a call of kazoo."""
        self.is_arming = False
        """Whether a request that sets it is under way."""
        self.has_fired = False
        """Whether it fired, or could not be set, and must be set again."""
        self.is_stopped = False
        """Whether its owner has ended it. Set once."""


def _context(options: ZooKeeperOptions) -> TlsContext | None:
    if options.tls is None:
        return None
    try:
        return TlsContext(options.tls, is_server=False)
    except ConfigurationError as error:
        raise in_keys_of_zookeeper(error) from None


def _too_large(path: str, data_bytes: int) -> MetadataError:
    # Each further try would cost all users of the session their connection again.
    return MetadataError.answer(
        f"metadata node {path} takes {data_bytes} bytes, more than ZooKeeper's limit (jute.maxbuffer, "
        f"{REQUEST_BYTES_MAX} unless configured)"
    )


def _kazoo_acls(acls: AclList) -> list[ACL]:
    return [ACL(each.permissions, Id(each.scheme, each.id)) for each in acls]


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.ctime, stat.mtime, stat.ephemeralOwner, stat.numChildren, stat.cversion, stat.czxid)
