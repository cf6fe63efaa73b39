"""One connection: bytes in, runs of requests to the bookie, buffers of replies out.

The socket is read into one buffer that stays; a read may bring thousands of frames, which are decoded together and
handed on as runs of equal opcode. While a run cannot go on (the bookie has no room, or the peer does not take its
replies) nothing more is read, so neither a flood of requests nor a slow reader makes this process grow.

A frame that is not the protocol closes the connection, as Apache's bookies do; there is no reply to it.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bkspark.errors import ProtocolError
from bkspark.wire import v2
from bkspark.wire.framing import FRAME_BYTES_MAX, LENGTH_BYTES, FrameTable, scan_frames
from bkspark.wire.v2 import Requests
from bookie_service import handshake
from bookie_service.bookie import Bookie, Parts

logger = logging.getLogger(__name__)

_RECEIVE_BYTES_MIN = 256 * 1024
_RECEIVE_BYTES_MAX = 1024 * 1024
"""The receive buffer doubles while reads fill it, up to here; a larger frame makes it as large as that needs."""
_SEND_BYTES_MAX = 1024 * 1024
"""With more than this unsent, no further request of the connection is served."""
_JOIN_BYTES_MAX = 128 * 1024
"""Smaller parts of a reply are joined: copying them costs less than a system call."""


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Limits of one connection, bytes, and what its socket does."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    no_delay: bool = True
    keep_alive: bool = True


class Connection(asyncio.BufferedProtocol):
    """Feeds a bookie from a socket. Begins as "V2 or V3"; the first V2 frame settles it for good."""

    def __init__(
        self,
        bookie: Bookie,
        options: ConnectionOptions,
        on_closed: Callable[[Connection], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure` gets an error that is not the peer's: the state of the bookie is then not to be trusted."""
        self._bookie = bookie
        self._options = options
        self._on_closed = on_closed
        self._on_failure = on_failure
        self._transport: asyncio.Transport | None = None
        # Memory of an empty array costs nothing until it is touched.
        self._octets = np.empty(_RECEIVE_BYTES_MIN, np.uint8)
        self._end = 0
        self._consumed = 0
        self._requests: Requests | None = None
        self._row = 0
        self._run_ends: list[int] = []
        self._is_v2 = False
        self._is_writable = True

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connected = transport.get_extra_info("socket")
        # asyncio does this only for sockets made with proto=TCP. Without, a reply behind an unacknowledged one waits
        # for the peer's delayed acknowledgement: 40 ms.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(self._options.no_delay))
        # A peer whose machine is gone is noticed, and its connection does not count against the limit for ever.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(self._options.keep_alive))
        transport.set_write_buffer_limits(high=_SEND_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._requests = None
        self._on_closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._octets.data[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._go_on()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self.resume()

    # ---- called by the bookie ----

    def send(self, parts: Parts) -> None:
        """Send the parts back to back; nothing happens when the connection is gone."""
        if self._transport is None:
            return
        joined: list[bytes | memoryview] = []
        for part in parts:
            if len(part) < _JOIN_BYTES_MAX:
                joined.append(part)
                continue
            if joined:
                self._transport.write(b"".join(joined))
                joined = []
            self._transport.write(part)
        if joined:
            self._transport.write(b"".join(joined) if len(joined) > 1 else joined[0])

    def resume(self) -> None:
        """Go on with requests that could not be served."""
        if self._requests is not None:
            self._go_on()

    def close(self) -> None:
        """Drop the connection with whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()

    # ---- requests ----

    def _go_on(self) -> None:
        """Serve what the buffer holds, as far as possible; read on only when all of it is served."""
        try:
            if self._requests is None:
                self._requests = self._decode()
            is_done = self._serve(self._requests)
        except ProtocolError as error:
            logger.warning("closed the connection from %s: %s", self._peer(), error)
            self.close()
            return
        except Exception as error:
            self._on_failure(error)
            return
        if self._transport is None:
            return
        if is_done:
            self._requests = None
            self._make_room()
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _decode(self) -> Requests:
        """Return the V2 requests in the buffer; V3 requests in front of them are refused."""
        table = scan_frames(self._octets.data, self._end, self._options.frame_bytes_max)
        self._consumed = table.consumed
        first = 0
        while not self._is_v2 and first < len(table):
            body = self._octets[int(table.starts[first]) : int(table.ends[first])]
            if len(body) and body[0] == handshake.V3_FIRST_BYTE:
                self.send((handshake.refuse_v3(body.tobytes()),))
                first += 1
            else:
                self._is_v2 = True
        if first:
            table = FrameTable(table.starts[first:], table.ends[first:], table.consumed)
        requests = v2.decode_requests(self._octets.data, table)
        self._row = 0
        breaks = np.flatnonzero(requests.opcodes[1:] != requests.opcodes[:-1]) + 1
        self._run_ends = [*breaks.tolist(), len(requests)]
        return requests

    def _serve(self, requests: Requests) -> bool:
        """Hand requests on in runs of one opcode; return False when the rest must wait."""
        while self._row < len(requests):
            if not self._is_writable:
                return False
            start = self._row
            end = self._run_ends[bisect.bisect_right(self._run_ends, start)]
            opcode = int(requests.opcodes[start])
            if opcode == v2.ADD:
                taken = self._bookie.add(self, self._octets, requests, start, end)
                if not taken:
                    return False
                self._row += taken
            elif opcode == v2.READ:
                self._row += self._bookie.read(self, self._octets, requests, start, end)
            else:
                if opcode == v2.BATCH_READ:
                    self._bookie.batch_read(self, self._octets, requests, start)
                else:
                    self.send((handshake.auth_reply(),))
                self._row += 1
        return True

    def _make_room(self) -> None:
        """Move the unfinished frame to the front, into a larger buffer if it or the traffic needs one."""
        tail = self._octets[self._consumed : self._end]
        wanted = len(self._octets)
        if self._end == len(self._octets):
            wanted = min(2 * wanted, max(wanted, _RECEIVE_BYTES_MAX))
        if len(tail) >= LENGTH_BYTES:
            frame_bytes = LENGTH_BYTES + int.from_bytes(tail[:LENGTH_BYTES].tobytes(), "big")
            wanted = max(wanted, frame_bytes + _RECEIVE_BYTES_MIN)
        elif wanted > _RECEIVE_BYTES_MAX:
            wanted = _RECEIVE_BYTES_MAX
        if wanted != len(self._octets):
            larger = np.empty(wanted, np.uint8)
            larger[: len(tail)] = tail
            self._octets = larger
        elif self._consumed and len(tail):
            # numpy copies overlapping ranges as if through a temporary.
            self._octets[: len(tail)] = tail
        self._end = len(tail)
        self._consumed = 0

    def _peer(self) -> str:
        address = self._transport.get_extra_info("peername") if self._transport else None
        return f"{address[0]}:{address[1]}" if address else "a closed socket"
