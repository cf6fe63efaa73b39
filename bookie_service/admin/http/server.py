"""The HTTP server of a bookie or of autorecovery: HTTP/1.1 on the process's own event loop, with h11 as its parser.

Everything that a peer may use up has a limit (`HttpLimits`): connections, bytes of a request's head and body, and time
for a request to come, for a response to be taken, and between requests. A request that exceeds a limit, or is not HTTP,
is answered with a status if possible, and the connection is closed. If there are too many connections, one that waits
for its peer is closed, so silent peers cannot block others. A connection serves one request at a time, and reads the
next one only after the response. A handler that fails unexpectedly is answered 500 and logged. Whether that ends the
process is decided where state is changed (`operation.changes`).

`HttpAccess` determines which caller sends a request, and what it may do. With TLS a connection is served after its
handshake (`bkspark.tls.gate`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import h11

from bkspark.errors import BookKeeperError, ConfigurationError
from bkspark.log_limit import no_digits, place_of
from bkspark.security.web import authority_of
from bkspark.tasks import start_kept
from bkspark.tls.gate import TlsGate
from bookie_service.admin.http.access import HttpAccess
from bookie_service.admin.http.messages import HttpError, HttpRequest, HttpResponse, failed, target_of
from bookie_service.settings.http_options import HttpLimits

logger = logging.getLogger(__name__)

STEP_BYTES = 4096
"""The parser gets at most this many bytes at once: it refuses a head that is too large before it parses all of it."""
CHUNKS_MAX = 256
"""A body may come in this many chunks. The parser takes as long for a chunk of one byte as for a large one: a body of
the largest size would keep the bookie's event loop from its clients for seconds."""
METHOD_MAX, PATH_MAX = 20, 200
"""At most this many characters of a request's method and path are logged."""
_QUOTED = re.compile(r""":? (?:b['"]|bytearray\().*""", re.DOTALL)
"""The end of a parser's message that quotes what the peer sent, which may contain a token."""
Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]

_REFUSALS = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.TOO_MANY_REQUESTS,
)


@asynccontextmanager
async def serving(
    host: str,
    port: int,
    keys: str,
    handler: Handler,
    limits: HttpLimits,
    access: HttpAccess,
    gate: TlsGate | None = None,
) -> AsyncIterator[int]:
    """Serve inside the context, which yields the port.

    Args:
        keys: the names of the configuration keys of host and port, for messages.
        gate: completes the handshakes of connections; None: there is no TLS.

    Raises:
        ConfigurationError: the address cannot be used. The message says what to change.
    """
    loop = asyncio.get_running_loop()
    connections: set[_Connection] = set()

    def connection() -> asyncio.Protocol:
        return _Connection(handler, limits, connections, access)

    def accepted() -> asyncio.Protocol:
        return connection() if gate is None else gate.protocol(connection)

    try:
        server = await loop.create_server(accepted, host, port, family=socket.AF_UNSPEC, backlog=128)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError(f"{keys}={host}:{port} cannot be used ({why}): free it or choose another") from None
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if gate is not None:
            gate.close()
        for each in list(connections):
            each.abort()


class _Connection(asyncio.Protocol):
    """One connection. It adds itself to `connections`."""

    def __init__(self, handler: Handler, limits: HttpLimits, connections: set[_Connection], access: HttpAccess) -> None:
        self._handler = handler
        self._access = access
        self._limits = limits
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._request: h11.Request | None = None
        """The request in progress; None: there is none."""
        self._body = bytearray()
        """The part of its body that has come."""
        self._chunks = 0
        """How many chunks of its body have come."""
        self._unread = bytearray()
        """What has come and the parser has not got yet."""
        self._has_ended = False
        """Whether the peer sends nothing more, and the parser has not got this yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The task that answers the request; empty: none does."""
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection if nothing happens; None while a request is answered."""
        self._may_write = asyncio.Event()
        """Cleared while the peer does not take what was sent."""
        self._may_write.set()
        self._transport: asyncio.Transport
        """Set when the connection is made."""
        self._peer = ""
        """The peer's address. Set when the connection is made."""
        self._is_tls = False
        """Whether the connection uses TLS. Set when it is made."""
        self._certificate: Mapping[str, Any] | None = None
        """The peer's certificate; None: it presented none."""

    # ---- called by the event loop ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        self._certificate = transport.get_extra_info("peercert")
        if len(self._connections) >= self._limits.connections and not self._make_room():
            logger.warning("refused an HTTP connection from %s: there are %d", self._peer, len(self._connections))
            transport.abort()
            return
        self._connections.add(self)
        self._begin_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._stop_waiting()
        self._may_write.set()
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._read_on()

    def eof_received(self) -> bool:
        self._has_ended = True
        self._read_on()
        # The current request is answered first. Then `_read_on`, or the end of the response, closes the connection.
        # TLS has no half-closed connections.
        return not self._is_tls and self._http.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def pause_writing(self) -> None:
        self._may_write.clear()
        self._begin_waiting()

    def resume_writing(self) -> None:
        self._may_write.set()
        self._stop_waiting()

    # ---- the request ----

    def _read_on(self) -> None:
        """Take events of the request until it is whole, or more bytes are needed."""
        try:
            while True:
                event = self._next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    if self._http.they_are_waiting_for_100_continue:
                        self._transport.write(
                            self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
                        )
                    return
                if isinstance(event, h11.Request):
                    self._request, self._body, self._chunks = event, bytearray(), 0
                    if _head_bytes(event) > self._limits.head_bytes:
                        self._end_with(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request's head is too large")
                        return
                    if _has_two_framings(event):
                        self._end_with(HTTPStatus.BAD_REQUEST, "it has both Content-Length and Transfer-Encoding")
                        return
                    if _announced_bytes(event) > self._limits.body_bytes:
                        self._end_with(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request's body is too large")
                        return
                elif isinstance(event, h11.Data):
                    if len(self._body) + len(event.data) > self._limits.body_bytes:
                        self._end_with(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request's body is too large")
                        return
                    self._body += event.data
                    self._chunks += event.chunk_end
                    if self._chunks > CHUNKS_MAX:
                        self._end_with(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request's body has more than {CHUNKS_MAX} chunks"
                        )
                        return
                elif isinstance(event, h11.EndOfMessage):
                    self._stop_waiting()
                    self._transport.pause_reading()
                    start_kept(self._serve(), self._tasks)
                    return
                else:
                    self._close()
                    return
        except h11.RemoteProtocolError as error:
            self._end_with(error.error_status_hint, f"this is not a request: {_QUOTED.sub('', str(error))}")

    def _next_event(self) -> Any:
        """Return the parser's next event; NEED_DATA: it has got all that has come."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._unread:
                self._http.receive_data(bytes(self._unread[:STEP_BYTES]))
                del self._unread[:STEP_BYTES]
            elif self._has_ended:
                self._has_ended = False
                self._http.receive_data(b"")
            else:
                break
        return event

    async def _serve(self) -> None:
        assert self._request is not None
        given = self._request
        method = given.method.decode("ascii")
        try:
            response = await self._answered(given, method)
            await self._send(response, has_body=method != "HEAD")
        except (OSError, asyncio.CancelledError, h11.LocalProtocolError):
            self._transport.abort()
            return
        except Exception as error:
            # A part of the response was sent. The end of the connection shows the peer that the rest is missing.
            what = _shown(method, given.target.decode("ascii").partition("?")[0])
            kind = {"kind": place_of(error)}
            if isinstance(error, BookKeeperError):
                logger.warning("%s failed, and was answered in part: %s", what, error, extra=kind)
            else:
                logger.exception("%s failed: this is a defect", what, extra=kind)
            self._transport.abort()
            return
        if self._transport.is_closing():
            return
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._request = None
            self._begin_waiting()
            self._transport.resume_reading()
            self._read_on()
        else:
            self._close()

    async def _answered(self, given: h11.Request, method: str) -> HttpResponse:
        headers = list(given.headers)
        target = given.target.decode("ascii")
        try:
            path, query = target_of(target)
        except ValueError as error:
            return failed(target, HttpError(HTTPStatus.BAD_REQUEST, f"the request cannot be used: {error}"))
        who = f"http:{self._peer}"
        try:
            caller = self._access.caller(self._peer, headers, self._certificate, authority_of(target))
            who = caller.who
            return await self._handler(
                HttpRequest(
                    method,
                    path,
                    query,
                    bytes(self._body),
                    who,
                    caller.principal,
                    caller.role,
                    caller.is_foreign,
                    _content_type(headers),
                )
            )
        except HttpError as error:
            self._log_refusal(error.status, who, method, path, error.text)
            return failed(path, error)
        except Exception as error:
            kind = {"kind": place_of(error)}
            logger.exception("%s failed: this is a defect", _shown(method, path), extra=kind)
            return failed(path, HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal Server Error"))

    def _log_refusal(self, status: int, who: str, method: str, path: str, why: str) -> None:
        if status in _REFUSALS:
            # Beyond a few lines a second they are counted together, because a peer may send very many.
            kind = {"kind": f"refused {status}"}
            logger.warning("refused %s to %s: %s", _shown(method, path), who, why, extra=kind)

    async def _send(self, response: HttpResponse, *, has_body: bool) -> None:
        headers = [("Content-Type", response.content_type), ("Cache-Control", "no-store"), *response.headers.items()]
        if response.pieces is None:
            headers.append(("Content-Length", str(len(response.body))))
        self._write(h11.Response(status_code=response.status, headers=headers, reason=_reason(response.status)))
        if has_body and response.body:
            self._write(h11.Data(data=response.body))
            await self._may_write.wait()
        if has_body and response.pieces is not None:
            async for piece in response.pieces:
                self._write(h11.Data(data=piece))
                await self._may_write.wait()
                if self._transport.is_closing():
                    return
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._transport.write(self._http.send(event) or b"")

    # ---- limits ----

    def _make_room(self) -> bool:
        """Close the connection that has waited for its peer for longest, of the address with most such connections.

        Returns:
            False: every connection has a request that is being served.
        """
        waiting = [(each, each._timer.when()) for each in self._connections if each._timer is not None]
        if not waiting:
            return False
        counts = Counter(each._peer for each in self._connections)
        closed, _ = max(waiting, key=lambda one: (counts[one[0]._peer], -one[1]))
        logger.info(
            "closed the HTTP connection from %s, a silent one: there are %d (httpServerMaxConnections)",
            closed._peer,
            len(self._connections),
        )
        self._connections.discard(closed)
        closed.abort()
        return True

    def _begin_waiting(self) -> None:
        self._stop_waiting()
        self._timer = self._loop.call_later(self._limits.idle_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        logger.debug("closed the HTTP connection from %s: nothing happened for %g s", self._peer, self._limits.idle_s)
        self.abort()

    def _end_with(self, status: int, text: str) -> None:
        """Answer and close. `text` contains nothing that the peer chose, except numbers."""
        logger.info("HTTP %d to %s: %s", status, self._peer, text, extra={"kind": no_digits(text)})
        self._stop_waiting()
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            path = "" if self._request is None else self._request.target.decode("ascii").partition("?")[0]
            response = failed(path, HttpError(status, text))
            headers = [("Content-Type", response.content_type), ("Connection", "close")]
            headers.append(("Content-Length", str(len(response.body))))
            self._write(h11.Response(status_code=status, headers=headers, reason=_reason(status)))
            if self._request is None or self._request.method != b"HEAD":
                self._write(h11.Data(data=response.body))
            self._write(h11.EndOfMessage())
        self._close()

    def _close(self) -> None:
        """Close the connection when the peer has taken what is unsent, but at the latest after `idle_s`."""
        self._transport.close()
        self._begin_waiting()

    def abort(self) -> None:
        """Close the connection at once, without sending what is unsent."""
        self._transport.abort()


def _shown(method: str, path: str) -> str:
    """Return a method and a path for the log. Peers choose both."""
    return f"{method[:METHOD_MAX]} {path[:PATH_MAX]}"


def _content_type(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the type of the body without parameters; "": none is given."""
    found = next((value for name, value in headers if name == b"content-type"), b"")
    return found.decode("latin-1").partition(";")[0].strip().lower()


def _head_bytes(request: h11.Request) -> int:
    """Return about how many bytes a request's head has. h11 limits only heads that come in several pieces."""
    return len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)


def _announced_bytes(request: h11.Request) -> int:
    """Return the announced length of a request's body, 0 if it is not announced. h11 has checked the number."""
    return int(next((value for name, value in request.headers if name == b"content-length"), b"0"))


def _has_two_framings(request: h11.Request) -> bool:
    """Return whether a proxy may see the request end elsewhere than h11 does, and then see another request."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}


def _reason(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()
