"""Open connections: what peers may use up that send or take nothing: a number of connections, and time.

A connection waits for its peer except while a request is being handled and the peer takes the response. When it has
waited for `idle_s`, it is closed: for a request's head, for the peer to take a response, or for the next request. If
there are too many connections, one that waits is closed, so silent peers cannot block others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

from bkspark.cli.console_limits import ConsoleLimits

logger = logging.getLogger(__name__)

LIMITS = web.AppKey("LIMITS", ConsoleLimits)
"""The limits of an application."""


class OpenConnections:
    """The connections of one listener. For one event loop."""

    def __init__(self, limits: ConsoleLimits) -> None:
        self._idle_s = limits.idle_s
        """How long a connection may wait for its peer."""
        self._connections_max = limits.connections
        """How many may be open."""
        self._open: dict[asyncio.BaseTransport, _Connection] = {}
        """Connections that have been admitted and have not ended."""

    def add_to(self, app: web.Application) -> None:
        """Let the requests of an application take their time. Call it before other middlewares are added."""

        @web.middleware
        async def middleware(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            connection = None if request.transport is None else self._open.get(request.transport)
            if connection is None:
                return await handler(request)
            connection.begin_request()
            try:
                return await handler(request)
            finally:
                connection.end_request()

        app.middlewares.append(middleware)

    def guarded(self, protocol: asyncio.Protocol) -> asyncio.Protocol:
        """Return the protocol of a new connection, which passes everything to `protocol`."""
        return _Connection(self, protocol, self._idle_s)

    def admit(self, connection: _Connection) -> bool:
        """Take a new connection; return whether there is room for it."""
        if len(self._open) >= self._connections_max and not self._make_room():
            logger.warning("refused a connection from %s: there are %d", connection.address, len(self._open))
            return False
        self._open[connection.transport] = connection
        return True

    def forget(self, connection: _Connection) -> None:
        """Remove a connection that has ended."""
        self._open.pop(connection.transport, None)

    def _make_room(self) -> bool:
        """Close the connection that has waited for longest, of the address with most connections; False: none waits."""
        waiting = [(each, due_s) for each in self._open.values() if (due_s := each.due_s) is not None]
        if not waiting:
            return False
        counts = Counter(each.address for each in self._open.values())
        closed, _ = max(waiting, key=lambda one: (counts[one[0].address], -one[1]))
        logger.info("closed a silent connection from %s: there are %d", closed.address, len(self._open))
        self.forget(closed)
        closed.transport.abort()
        return True


class _Connection(asyncio.Protocol):
    """One connection. It passes everything to another protocol, unless there is no room for it."""

    def __init__(self, connections: OpenConnections, protocol: asyncio.Protocol, idle_s: float) -> None:
        self._connections = connections
        self._protocol = protocol
        self._idle_s = idle_s
        """How long it may wait for its peer."""
        self._is_admitted = False
        """Whether there was room for it."""
        self._is_served = False
        """Whether a request is being handled."""
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection; None while it does not wait for its peer."""
        self.address = ""
        """The peer's address; set when the connection is made."""
        self.transport: asyncio.Transport
        """Set when the connection is made."""

    @property
    def due_s(self) -> float | None:
        """When it is closed if the peer does nothing; None: it does not wait for the peer."""
        return None if self._timer is None else self._timer.when()

    def begin_request(self) -> None:
        """A request's head has come."""
        self._is_served = True
        self._stop_waiting()

    def end_request(self) -> None:
        """The response to the request has been determined."""
        self._is_served = False
        if not self.transport.is_closing():
            self._wait()

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self._is_admitted = self._connections.admit(self)
        if not self._is_admitted:
            transport.abort()
            return
        self._wait()
        self._protocol.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.forget(self)
        self._stop_waiting()
        if self._is_admitted:
            self._protocol.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._wait()
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._is_served:
            self._stop_waiting()
        self._protocol.resume_writing()

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        logger.debug("closed the connection from %s: nothing happened for %g s", self.address, self._idle_s)
        self.transport.abort()
