"""BookieConnection: the part of a connection to a bookie that V2 and V3 share: receive buffer, frames, add listeners.

All replies in a receive buffer are decoded in one call. The buffer's contents are valid only during that call.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from bkspark.errors import (
    AuthenticationFailed,
    BookieUnavailable,
    BookKeeperError,
    ProtocolError,
    RequestTimeout,
    TlsFailed,
)
from bkspark.net.responses import EntryResponses, ReadGroup
from bkspark.tls.failures import why_bookie_refuses
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, scan_frames
from bkspark.wire.start_tls import is_refusal

_Response = TypeVar("_Response")

RECEIVE_BYTES_FIRST = 256 * 1024
RECEIVE_ROOM_MIN = 64 * 1024


@dataclass(slots=True)
class AddListener:
    """Receives the add replies of one ledger on one connection.

    on_replies: gets entry ids, V2's statuses, and the LastAddSynced in the newest reply, or None.
    """

    on_replies: Callable[[np.ndarray, np.ndarray, int | None], None]
    on_lost: Callable[[BookKeeperError], None]
    """Called once, when the connection is lost."""


class BookieConnection(asyncio.BufferedProtocol):
    """One connection to one bookie. The subclass of a protocol decodes frames and completes the waiting callers."""

    RECEIVE_BYTES = RECEIVE_BYTES_FIRST
    """Size of the receive buffer, unless a frame is larger."""

    def __init__(self, bookie: str, frame_bytes_max: int, read_timeout_s: float) -> None:
        self.bookie = bookie
        self.lost: BookKeeperError | None = None
        """Why the connection ended; None while it is open. Set once."""
        self.connected_at = 0.0
        """When the connection was made, by the event loop's clock."""
        self.has_authenticated = False
        """Whether it began with authentication. The bookie may still refuse it: GSSAPI's last message has no answer."""
        self._received_at = 0.0
        """When bytes were last received, by the event loop's clock."""
        self._frame_bytes_max = frame_bytes_max
        """As `NetOptions.frame_bytes_max`, and below `NetOptions.read_timeout_s`."""
        self._read_timeout_s = read_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        """None before the connection is made."""
        self._pass_on: Callable[[bytes | memoryview], None] | None = None
        """Sends a piece, or keeps it while the transport is paused; None before the connection is made."""
        self._kept: deque[bytes | memoryview] = deque()
        """Pieces that wait until the transport is not paused, in order. Not copies: their bytes never change."""
        self._kept_bytes = 0
        """Bytes of `_kept`."""
        self._buffer = bytearray(self.RECEIVE_BYTES)
        """The receive buffer. Replaced by a larger one for a large frame."""
        self._filled = 0
        """How many bytes at the beginning of `_buffer` are an unfinished frame."""
        self._adds: dict[int, AddListener] = {}
        """The add listener of each ledger: a connection has at most one writer of a ledger."""

    @abstractmethod
    def _take_single(self) -> bool:
        """Deliver the receive buffer's contents if they are exactly one add reply; return whether they are."""

    @abstractmethod
    def _take_frames(self, table: FrameTable) -> None:
        """Decode the frames of the receive buffer and deliver their contents. Raises ProtocolError."""

    @abstractmethod
    def _waiting(self) -> Iterator[asyncio.Future[Any]]:
        """Yield the futures that callers wait for."""

    @property
    def address_on_this_host(self) -> tuple[str, int] | None:
        """The address of the bookie that the connection was made to, over IPv4, if it is an address of this host."""
        if self._transport is None:
            return None
        own, peer = self._transport.get_extra_info("sockname"), self._transport.get_extra_info("peername")
        is_here = isinstance(own, tuple) and isinstance(peer, tuple) and len(peer) == 2 and own[0] == peer[0]
        return peer if is_here else None

    # ---- adds ----

    @property
    def unsent_bytes(self) -> int:
        """Bytes accepted by `send_adds` that the socket has not taken yet."""
        return self._kept_bytes + self._transport.get_write_buffer_size() if self._transport else 0

    def close_if_silent(self) -> None:
        """Drop the connection if it has received nothing for `read_timeout_s`: it may be half-open.

        For callers whose request timed out: otherwise their next requests would time out, too.
        """
        if self._loop.time() - self._received_at > self._read_timeout_s:
            self.close()

    def listen_adds(self, ledger_id: int, listener: AddListener) -> None:
        """Deliver the add replies of one ledger to `listener` from now on."""
        assert ledger_id not in self._adds, "two writers of one ledger need two connections"
        self._adds[ledger_id] = listener

    def unlisten_adds(self, ledger_id: int) -> None:
        self._adds.pop(ledger_id, None)

    def send_adds(self, frames: bytes | memoryview) -> None:
        """Send ready-made ADD frames of this protocol; their replies go to the ledger's listener.

        The frames must not change: they wait without a copy.
        """
        if self.lost is not None or self._pass_on is None:
            raise self._not_connected()
        self._pass_on(frames)

    def _deliver_adds(
        self,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
        statuses: np.ndarray,
        last_synced: np.ndarray | None = None,
    ) -> None:
        first = ledger_ids.item(0)
        if (ledger_ids == first).all():
            listener = self._adds.get(first)
            if listener is not None:
                listener.on_replies(entry_ids, statuses, None if last_synced is None else last_synced.item(-1))
            return
        for ledger_id in np.unique(ledger_ids).tolist():
            listener = self._adds.get(ledger_id)
            if listener is not None:
                mine = ledger_ids == ledger_id
                newest = None if last_synced is None else last_synced[mine].item(-1)
                listener.on_replies(entry_ids[mine], statuses[mine], newest)

    # ---- requests ----

    def close(self, error: BookKeeperError | None = None) -> None:
        """Drop the connection; waiting callers get `error`, if there is one."""
        message = f"the connection to bookie {self.bookie} was closed"
        self._lose(error or BookieUnavailable(message, bookie=self.bookie))

    def _send(self, data: bytes | memoryview) -> None:
        if self.lost is not None or self._pass_on is None:
            raise self._not_connected()
        self._pass_on(data)

    def _not_connected(self) -> BookKeeperError:
        return self.lost or BookieUnavailable(f"bookie {self.bookie} is not connected", bookie=self.bookie)

    async def _answered_all(self, group: ReadGroup, what: str) -> EntryResponses:
        """Return a group's answers. The time-out of a busy bookie runs from one answer to the next, not over all."""
        timeout_s = self._read_timeout_s
        try:
            async with asyncio.timeout(timeout_s) as deadline:

                def on_progress() -> None:
                    deadline.reschedule(self._loop.time() + timeout_s)

                group.on_progress = on_progress
                return await group.future
        except TimeoutError:
            raise RequestTimeout(
                f"bookie {self.bookie} stopped answering {what} for {timeout_s:g} s", bookie=self.bookie
            ) from None

    async def _answered(self, future: asyncio.Future[_Response], what: str, waits_s: float = 0.0) -> _Response:
        """Return the future's result, which may take `waits_s` longer than an ordinary answer."""
        timeout_s = self._read_timeout_s + waits_s
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimeout(
                f"bookie {self.bookie} did not answer {what} in {timeout_s:g} s", bookie=self.bookie
            ) from None

    def _lose(self, error: BookKeeperError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        self._kept.clear()
        self._kept_bytes = 0
        if self._transport is not None:
            self._transport.abort()
        for future in tuple(self._waiting()):
            if not future.done():
                future.set_exception(error)
        listeners = list(self._adds.values())
        self._adds.clear()
        for listener in listeners:
            listener.on_lost(error)

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pass_on = transport.write
        self.connected_at = self._received_at = self._loop.time()
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f": {why_bookie_refuses(exc) if isinstance(exc, ssl.SSLError) else exc}" if exc else ""
        # In TLS 1.3 a bookie that refuses the client's certificate says so after the client's part of the handshake.
        kind: type[BookieUnavailable] = TlsFailed if isinstance(exc, ssl.SSLError) else BookieUnavailable
        if kind is BookieUnavailable and self._transport is not None and self._received_at == self.connected_at:
            cause += " before it answered anything"
            if self.has_authenticated:
                kind = AuthenticationFailed
                cause += "; it refuses this user"
            else:
                # If the bookie serves only TLS, say so: otherwise it would look like one without batch reads.
                is_clear = self._transport.get_extra_info("ssl_object") is None
                cause += f"; it may serve only {'TLS, or ' if is_clear else ''}authenticated clients"
        self._lose(kind(f"bookie {self.bookie} dropped the connection{cause}", bookie=self.bookie))

    def pause_writing(self) -> None:
        # A transport of Python 3.11 copies what it is given. The entries of a writer wait for all its bookies in the
        # same memory, and would occupy it once more for each slow bookie. So they wait here while it has enough.
        self._pass_on = self._keep

    def _keep(self, piece: bytes | memoryview) -> None:
        self._kept.append(piece)
        self._kept_bytes += len(piece)

    def resume_writing(self) -> None:
        if self._transport is None:
            return
        self._pass_on = self._transport.write
        # A write may pause the transport again.
        while self._kept and self._pass_on != self._keep:
            piece = self._kept.popleft()
            self._kept_bytes -= len(piece)
            self._transport.write(piece)

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self._buffer) - self._filled < RECEIVE_ROOM_MIN:
            # Grows to one frame of the largest size plus room; scan_frames refuses larger ones.
            grown = bytearray(2 * len(self._buffer))
            grown[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = grown
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._received_at = self._loop.time()
        if self._take_single():
            self._filled = 0
            return
        try:
            table = scan_frames(self._buffer, self._filled, self._frame_bytes_max)
            if len(table.starts):
                self._take_frames(table)
        except ProtocolError as error:
            size = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if is_refusal(bytes(self._buffer[LENGTH_BYTES : min(LENGTH_BYTES + size, self._filled)])):
                self._lose(self._refused())
            else:
                self._lose(ProtocolError(f"bookie {self.bookie}: {error}", bookie=self.bookie))
            return
        rest = self._filled - table.consumed
        if table.consumed:
            self._buffer[:rest] = self._buffer[table.consumed : self._filled]
            self._filled = rest
        if rest >= LENGTH_BYTES:
            self._make_room(int.from_bytes(self._buffer[:LENGTH_BYTES], "big") + LENGTH_BYTES)

    def _refused(self) -> AuthenticationFailed:
        why = "refuses this client's certificate, or demands a login: it authenticates its clients"
        return AuthenticationFailed(f"bookie {self.bookie} {why}", bookie=self.bookie)

    def _make_room(self, frame_bytes: int) -> None:
        """Grow to the size of the present frame at once, instead of by doubling."""
        if frame_bytes + RECEIVE_ROOM_MIN > len(self._buffer):
            grown = bytearray(frame_bytes + RECEIVE_BYTES_FIRST)
            grown[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = grown

    def eof_received(self) -> bool:
        return False
