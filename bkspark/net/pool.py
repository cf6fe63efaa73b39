"""BookiePool: the connections of a client to bookies.

Each bookie has one shared channel; recoveries reserve further ones. `channel` returns one for adds and reads, which
speaks the pool's protocol. `v3_channel` returns one for requests that V2 lacks; it is the same channel if the pool's
protocol is V3. Connections are made on first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from bkspark.core.speeds import ReadSpeeds
from bkspark.entries import EntryBatch
from bkspark.errors import BookieUnavailable, ClientClosed
from bkspark.net.authentication import Authentication
from bkspark.net.channel import BookieChannel
from bkspark.net.local_reads import LocalReads
from bkspark.net.start_tls import connect_with_tls
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.options import DAY_S, bounded, check
from bkspark.security.sasl import SaslClient, SaslClientOptions
from bkspark.tls.contexts import TlsContext
from bkspark.tls.options import TlsOptions
from bkspark.wire.adds import WireProtocol
from bkspark.wire.digest import EntryDigest
from bkspark.wire.framing import FRAME_BYTES_MAX
from bkspark.wire.v3 import TxnIds

Resolve = Callable[[str], Awaitable[tuple[str, int]]]
Channel = BookieChannel | BookieV3Channel
_Protocol = TypeVar("_Protocol", bound=asyncio.BufferedProtocol)
_Channel = TypeVar("_Channel", BookieChannel, BookieV3Channel)

AVOID_FAILED_S = 10.0
"""How long readers prefer other replicas after a bookie could not be reached."""


@dataclass(frozen=True, slots=True)
class NetOptions:
    """Limits and security of connections to bookies; seconds and bytes.

    `speculative_read_s`: a read that takes longer is also sent to the next replica; the first answer counts. It is sent
    earlier if the speeds of the replicas are known (`bkspark.core.speeds`).
    `local_reads`: scans of a bookie on this host read its entry logs, if the bookie allows it. Not with TLS.
    `tls`: every connection uses TLS, or fails; None: no connection does.
    `sasl`: every connection authenticates, or fails; None: no connection does.
    """

    connect_timeout_s: float = bounded(5.0, 0.001, DAY_S, "seconds")
    """For a connection of TCP, and with TLS for its handshakes, too."""
    read_timeout_s: float = bounded(5.0, 0.001, DAY_S, "seconds")
    """How long a request may wait for its answer; a group of reads, for its next answer. Adds have a limit of their
    own."""
    speculative_read_s: float = bounded(1.0, 0.0, DAY_S, "seconds")
    frame_bytes_max: int = bounded(FRAME_BYTES_MAX, 1024, FRAME_BYTES_MAX, "bytes")
    """A larger frame of a bookie ends the connection."""
    local_reads: bool = True
    tls: TlsOptions | None = None
    sasl: SaslClientOptions | None = None

    def __post_init__(self) -> None:
        check(self)


def resolver(addresses: Mapping[str, tuple[str, int]]) -> Resolve:
    """Return a `Resolve` that looks bookies up in given addresses, (host, port) by id, without a metadata store."""

    async def resolve(bookie: str) -> tuple[str, int]:
        if bookie not in addresses:
            raise BookieUnavailable(f"bookie {bookie} had no address when the read was planned", bookie=bookie)
        return addresses[bookie]

    return resolve


class BookiePool:
    """Connects to bookies on demand and keeps the connections; `resolve` turns a bookie id into (host, port)."""

    def __init__(
        self,
        resolve: Resolve,
        options: NetOptions,
        protocol: WireProtocol = WireProtocol.V2,
        *,
        asks_again: bool = False,
    ) -> None:
        """`asks_again`: `resolve` knows the present registrations, and is asked once more after each connection.

        Raises:
            ConfigurationError: a key or trust store, or a JAAS file, cannot be used.
        """
        self._tls = None if options.tls is None else TlsContext(options.tls, is_server=False)
        self._sasl = None if options.sasl is None else SaslClient(options.sasl)
        self.options = options
        self.protocol = protocol
        self.txn_ids = TxnIds()
        self.speeds = ReadSpeeds()
        """How fast bookies answer reads."""
        self._resolve = resolve
        self._asks_again = asks_again
        self._channels: dict[tuple[str, int], asyncio.Task[BookieChannel]] = {}
        """V2 connections, made or being made, by bookie and index. A lost one is replaced by the next caller."""
        self._v3_channels: dict[tuple[str, int], asyncio.Task[BookieV3Channel]] = {}
        """V3 connections, with the same meaning as `_channels`."""
        self._reserved: dict[int, set[int]] = {}
        """Indexes of reserved connections, by ledger. Changed by `reserve_connection` and `release`."""
        self._failed_at: dict[str, float] = {}
        """When a bookie last could not be reached. A success removes it."""
        self.without_lists: set[str] = set()
        """Bookies that did not send a list of entries in time, and have sent none since."""
        self._local_reads: dict[str, LocalReads] = {}
        """Local reads of each bookie on this host."""
        self._is_closed = False
        """Whether `close` was called. Set once."""

    @property
    def avoided(self) -> frozenset[str]:
        """Bookies that could not be reached recently: readers ask them last."""
        if not self._failed_at:
            return frozenset()
        now = asyncio.get_running_loop().time()
        return frozenset(bookie for bookie, at in self._failed_at.items() if now - at < AVOID_FAILED_S)

    def reserve_connection(self, ledger_id: int) -> int:
        """Return the index of a connection (1 or above) that no other caller uses for this ledger, until `release`.

        Connection 0 is shared. V2 replies do not name their request, so a fencing read and a plain read of one entry,
        or the owner's add and a recovery's, must not use one connection.
        """
        taken = self._reserved.setdefault(ledger_id, set())
        connection_index = next(index for index in range(1, len(taken) + 2) if index not in taken)
        taken.add(connection_index)
        return connection_index

    def release(self, ledger_id: int, connection_index: int) -> None:
        """Release a reserved connection."""
        self._reserved[ledger_id].discard(connection_index)
        if not self._reserved[ledger_id]:
            del self._reserved[ledger_id]

    def channel(self, bookie: str, connection_index: int = 0) -> Coroutine[Any, Any, Channel]:
        """Return, when awaited, a connected channel to `bookie` for adds and reads.

        Raises:
            BookieUnavailable: it has no address or cannot be reached in time.
        """
        if self.protocol is WireProtocol.V3:
            return self.v3_channel(bookie, connection_index)
        return self._connected(self._channels, bookie, connection_index, BookieChannel)

    def v3_channel(self, bookie: str, connection_index: int = 0) -> Coroutine[Any, Any, BookieV3Channel]:
        """Return, when awaited, a connected V3 channel to `bookie`. Raises as `channel`."""

        def make(name: str, frame_bytes_max: int, read_timeout_s: float) -> BookieV3Channel:
            return BookieV3Channel(name, frame_bytes_max, read_timeout_s, self.txn_ids)

        return self._connected(self._v3_channels, bookie, connection_index, make)

    async def read_local(
        self, bookie: str, ledger_id: int, first_entry: int, count_max: int, bytes_max: int, digest: EntryDigest
    ) -> EntryBatch | None:
        """Return a prefix of some entries, read on this host; None: read them over the network. See `LocalReads`.

        Raises:
            BookieUnavailable: as `channel`.
        """
        if self._tls is not None or self._sasl is not None:
            return None
        channel = await self.channel(bookie)
        local = self._local_reads.get(bookie)
        if local is None or local.channel is not channel:
            replaced, options = local, self.options
            local = LocalReads(channel, options.read_timeout_s, options.speculative_read_s)
            self._local_reads[bookie] = local
            if replaced is not None:
                await replaced.close()
        return await local.read(ledger_id, first_entry, count_max, bytes_max, digest)

    async def _connected(
        self,
        channels: dict[tuple[str, int], asyncio.Task[_Channel]],
        bookie: str,
        connection_index: int,
        make: Callable[[str, int, float], _Channel],
    ) -> _Channel:
        if self._is_closed:
            raise ClientClosed("the client is closed")
        key = (bookie, connection_index)
        task = channels.get(key)
        if task is None or (task.done() and (task.exception() is not None or task.result().lost is not None)):
            # If no caller waits any more, the next one, or `close`, retrieves its failure.
            task = channels[key] = asyncio.ensure_future(self._connect(bookie, make))
        try:
            # Shielded: the cancellation of one caller must not close the connection that others wait for.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClientClosed("the client was closed") from None
            raise

    async def _connect(self, bookie: str, make: Callable[[str, int, float], _Channel]) -> _Channel:
        options = self.options
        protocol = partial(make, bookie, options.frame_bytes_max, options.read_timeout_s)
        try:
            address = await self._resolve(bookie)
            if self._tls is None and self._sasl is None:
                # Not by `_open`, because the first read of each worker comes here: one call less.
                async with asyncio.timeout(options.connect_timeout_s):
                    _, channel = await asyncio.get_running_loop().create_connection(protocol, *address)
            else:
                channel = await self._open_protected(bookie, address, protocol, is_v3=make is not BookieChannel)
            if self._asks_again:
                await self._check_address(bookie, address, channel)
        except BookieUnavailable:
            # It has no address of its own, or no longer, or TLS or authentication failed.
            self._failed_at[bookie] = asyncio.get_running_loop().time()
            raise
        except TimeoutError:
            self._failed_at[bookie] = asyncio.get_running_loop().time()
            raise BookieUnavailable(
                f"bookie {bookie} did not accept a connection in {options.connect_timeout_s:g} s", bookie=bookie
            ) from None
        except (OSError, OverflowError, ValueError) as error:
            # Not only network errors: a bookie's registration may have an invalid host or port.
            self._failed_at[bookie] = asyncio.get_running_loop().time()
            raise BookieUnavailable(f"bookie {bookie} cannot be reached: {error}", bookie=bookie) from None
        self._failed_at.pop(bookie, None)
        return channel

    async def _check_address(self, bookie: str, address: tuple[str, int], channel: Channel) -> None:
        """Close a channel whose address is not that of its bookie any more.

        Another bookie may have begun to serve at the address since `resolve` was asked. It would truly say that it has
        none of the entries. A bookie registers before it listens, Apache's too, so that is known by now.
        """
        try:
            now = await self._resolve(bookie)
            if now != address:
                old, new = (f"{host}:{port}" for host, port in (address, now))
                raise BookieUnavailable(f"bookie {bookie} moved from {old} to {new} just now: try again", bookie=bookie)
        except BaseException:
            channel.close(BookieUnavailable(f"bookie {bookie} is not at its address any more", bookie=bookie))
            raise

    async def _open_protected(
        self, bookie: str, address: tuple[str, int], make: Callable[[], _Channel], *, is_v3: bool
    ) -> _Channel:
        """Return a channel that is connected inside TLS, or authenticated, or both."""
        if self._sasl is None:
            return await self._open(bookie, address, make)
        authentication = Authentication(bookie, address[0], self._sasl, self._next_txn_id if is_v3 else None)
        await self._open(bookie, address, lambda: authentication)
        return await authentication.complete(make)

    async def _open(self, bookie: str, address: tuple[str, int], make: Callable[[], _Protocol]) -> _Protocol:
        """Return a protocol that is connected, inside TLS if the client has TLS."""
        timeout_s = self.options.connect_timeout_s
        if self._tls is not None:
            return await connect_with_tls(make, bookie, address, self._tls, self._next_txn_id(), timeout_s)
        async with asyncio.timeout(timeout_s):
            _, opened = await asyncio.get_running_loop().create_connection(make, *address)
        return opened

    def _next_txn_id(self) -> int:
        return self.txn_ids.reserve(1)

    async def close(self) -> None:
        """Drop every connection."""
        self._is_closed = True
        tasks: list[asyncio.Task[Any]] = [*self._channels.values(), *self._v3_channels.values()]
        self._channels.clear()
        self._v3_channels.clear()
        error = ClientClosed("the client was closed")
        for task in tasks:
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task.exception() is None:
                # Before anything is awaited: if the caller is cancelled there, no connection is left open.
                task.result().close(error)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Channel):
                result.close(error)
        for local in self._local_reads.values():
            await local.close()
