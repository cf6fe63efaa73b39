"""Gate: the TLS handshakes of an asyncio server: a connection reaches its protocol when the handshake is complete.

Every connection uses the current context, so changed certificates take effect without a new listener. Peers that do not
complete handshakes, or begin very many, cost little:

* a handshake ends within `handshake_s`, or its connection is closed;
* at most `handshakes` are unfinished, and a quarter of them from one address. Above that the oldest is closed, if
  possible one from the same address;
* one handshake begins every `PACE_S`, because each costs the event loop up to some milliseconds of processor time;
* RECEIVE_BYTES are decrypted at once, because small records cost as much as large ones, and a peer may send very many.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable

from bkspark.tasks import start_kept
from bkspark.tls.contexts import TlsContext, has_expired
from bkspark.tls.failures import why_failed

logger = logging.getLogger(__name__)

PACE_S = 0.01
CLOSING_S = 2.0
"""How long a closing connection waits for the peer to end TLS."""
RECEIVE_BYTES = 16 * 1024
"""Ciphertext that is received at once: some hundred records at most. asyncio's own limit is 256 KiB."""
MakeProtocol = Callable[[], asyncio.Protocol]


class TlsGate:
    """Handshakes of one listener. For one event loop."""

    def __init__(self, context: TlsContext, handshake_s: float, handshakes: int) -> None:
        self._context = context
        self._handshake_s = handshake_s
        self._handshakes_max = handshakes
        self._per_address_max = max(1, handshakes // 4)
        self._unfinished: dict[_Arrival, None] = {}
        """Handshakes that are not complete, oldest first."""
        self._waiting: deque[_Arrival] = deque()
        """Connections whose handshake has not begun, oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        """Begins the next handshake; None if that may begin at once."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Handshakes in progress."""

    def protocol(self, make: MakeProtocol) -> asyncio.Protocol:
        """Return the protocol for an accepted connection; `make` makes the protocol that it gets after the
        handshake."""
        return _Arrival(self, make)

    def close(self) -> None:
        """Close the connections whose handshake is not complete."""
        if self._timer is not None:
            self._timer.cancel()
        for each in list(self._unfinished):
            each.abort()

    def admit(self, arrival: _Arrival) -> None:
        """Begin a handshake when it is its turn."""
        of_address = [each for each in self._unfinished if each.address == arrival.address]
        if len(of_address) >= self._per_address_max:
            self._give_up(of_address[0])
        elif len(self._unfinished) >= self._handshakes_max:
            self._give_up(next(iter(self._unfinished)))
        self._unfinished[arrival] = None
        self._waiting.append(arrival)
        if self._timer is None:
            self._begin_next()

    def forget(self, arrival: _Arrival) -> None:
        """Remove a connection from the unfinished ones: it is gone, or its handshake is complete."""
        self._unfinished.pop(arrival, None)

    def _give_up(self, arrival: _Arrival) -> None:
        self.forget(arrival)
        arrival.abort()
        logger.info("closed the connection from %s: its TLS handshake is the oldest unfinished one", arrival.address)

    def _begin_next(self) -> None:
        """Begin the next handshake, and again after `PACE_S` as long as connections wait."""
        self._timer = None
        while self._waiting:
            arrival = self._waiting.popleft()
            if arrival in self._unfinished:
                start_kept(self._shake_hands(arrival), self._tasks)
                self._timer = asyncio.get_running_loop().call_later(PACE_S, self._begin_next)
                return

    async def _shake_hands(self, arrival: _Arrival) -> None:
        loop = asyncio.get_running_loop()
        # `start_tls` has put its protocol in place by then, and receives nothing before.
        loop.call_soon(arrival.receive_little)
        try:
            transport = await loop.start_tls(
                arrival.transport,
                arrival,
                self._context.current(),
                server_side=True,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=CLOSING_S,
            )
        except (OSError, ssl.SSLError) as error:
            if isinstance(error, ssl.SSLError):
                reason = why_failed(error, "the peer", "this server")
            else:
                reason = str(error) or type(error).__name__
            logger.info("closed the connection from %s: no TLS (%s)", arrival.address, reason)
            arrival.abort()
            return
        except ValueError:
            # Its names may be any bytes, because an authority signs everything that it is given.
            logger.info("closed the connection from %s: no TLS (its certificate cannot be read)", arrival.address)
            arrival.abort()
            return
        finally:
            self.forget(arrival)
        if transport is None or transport.is_closing():
            return
        if has_expired(transport.get_extra_info("ssl_object")):
            logger.info("closed the connection from %s: no TLS (its certificate has expired)", arrival.address)
            transport.abort()
            return
        arrival.hand_over(transport)


class _Arrival(asyncio.Protocol):
    """A connection until its handshake is complete. It keeps bytes that arrive before its protocol is set."""

    def __init__(self, gate: TlsGate, make: MakeProtocol) -> None:
        self._gate = gate
        self._make = make
        self._early: list[bytes] = []
        """Bytes that arrived before the protocol was set."""
        self.address = ""
        """The peer's address; set when the connection is made."""
        self.transport: asyncio.Transport
        """The connection without TLS; set when it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        # Nothing is read before the handshake begins.
        transport.pause_reading()
        self._gate.admit(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._gate.forget(self)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def receive_little(self) -> None:
        """Give the present protocol of the connection RECEIVE_BYTES at once."""
        protocol = self.transport.get_protocol()
        # Another arrival may have pushed this one out meanwhile: a transport that is closed has no protocol.
        if isinstance(protocol, asyncio.BufferedProtocol):
            self.transport.set_protocol(_Little(protocol))

    def abort(self) -> None:
        """Close the connection."""
        self.transport.abort()

    def hand_over(self, transport: asyncio.Transport) -> None:
        """Pass the connection to its protocol, with the bytes that have arrived."""
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._early:
            protocol.data_received(data)


class _Little(asyncio.BufferedProtocol):
    """Passes everything to another protocol, at most RECEIVE_BYTES at once."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        self._protocol = protocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._protocol.get_buffer(sizehint))[:RECEIVE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)
