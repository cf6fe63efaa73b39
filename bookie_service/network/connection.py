"""One connection: bytes in, runs of requests to the bookie, buffers of replies out.

The socket is read into one buffer that all connections share (`receive_buffer`). One read may bring thousands of
frames, which are decoded together and passed on as runs of one kind. A connection reads nothing while a run cannot
continue: the bookie has no room, the peer does not take its replies, or the turn is over (`turns`). So neither a flood
of requests nor a slow reader makes this process grow. The memory of all connections together is limited, too
(`memory_budget`). A frame that violates the protocol closes the connection without a reply, as in Apache's bookies.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from bkspark.errors import ProtocolError
from bkspark.log_limit import no_digits, place_of
from bkspark.security.principal import ANONYMOUS, Principal, principal_of_certificate
from bkspark.wire import v2, v3, v3_single_add
from bkspark.wire.framing import NO_FRAMES, count_leading, scan_frames
from bookie_service.engine.authorization import Authorization
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.containment import end_undecodable
from bookie_service.engine.responses import Parts
from bookie_service.engine.turns import Turn, Turns
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.changes import add_needs
from bookie_service.network.closing import Closing
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.deadlines import NEVER, Deadlines
from bookie_service.network.gate import BYTES_MAX, Gate
from bookie_service.network.gated_requests import GatedRequests
from bookie_service.network.memory_budget import WINDOW_BYTES, MemoryBudget
from bookie_service.network.receive_buffer import ReceiveBuffer
from bookie_service.network.request_stream import RequestStream
from bookie_service.network.send_buffer import SendBuffer
from bookie_service.network.tls_handshakes import HandshakeStep, ListenerTls
from bookie_service.network.tls_socket import TlsSocket
from bookie_service.network.v2_requests import V2RequestStream
from bookie_service.network.v3_requests import V3RequestStream

logger = logging.getLogger(__name__)

_UNSENT_BYTES_MAX = 1024 * 1024
"""With more unsent bytes than this, the connection's next requests are not served,"""
_UNSENT_BYTES_LOW = 256 * 1024
"""until at most this many bytes are unsent."""
_COSTLY_WINDOW_BYTES = 64 * 1024
"""Bytes that are received at once after requests that took many turns. Receiving, dividing and keeping a whole window
takes milliseconds, in which no other client is answered."""


class ConnectionEvents(Protocol):
    """Receives the events of a connection."""

    def note_request(self, member: Connection) -> None:
        """The connection's first request has arrived."""

    def note_spare(self, member: Connection) -> None:
        """The connection can make room for others: its `closing` waits."""

    def discard(self, member: Connection) -> None:
        """The connection was closed."""

    def fail(self, error: BaseException) -> None:
        """An error occurred that the peer did not cause: the state of the bookie can no longer be trusted."""


@dataclass(frozen=True, slots=True)
class ConnectionParts:
    """What the connections of one port share."""

    bookie: Bookie
    memory_budget: MemoryBudget
    turns: Turns
    options: ConnectionOptions
    events: ConnectionEvents
    tls: ListenerTls | None = None
    """TLS for peers that ask for it; None: there is no TLS."""
    authentication: ListenerAuthentication | None = None
    """How peers must authenticate; None: they need not."""
    authorization: Authorization | None = None
    """Decides which requests are served; None: all."""


class Connection:
    """Feeds a bookie from a socket. Accepts V3 until the first V2 frame, and then only V2. For one event loop.

    Between two turns of the event loop it either reads or waits for one event: room to receive, its next turn, the
    bookie's `resume`, or room for replies at the peer.
    """

    principal: Principal = ANONYMOUS
    """The identity that the peer has proved. Set before the requests that follow the proof are served."""
    _has_ended = False
    """Whether the peer has closed its side. Set once."""
    _gate: Gate | None = None
    """What the peer must prove before its requests are served. None: nothing, or everything is proved."""
    _tls_socket: TlsSocket | None = None
    """TLS over the socket; None: there is no TLS. Set once, by `start_tls`."""
    _is_in_step = False
    """Whether a step of the handshake has begun, or waits for its turn. Set by `_receive`, cleared by `end_step`."""
    _wait: asyncio.TimerHandle | None = None
    """The timer that ends the wait of an AUTH message for START_TLS."""

    def __init__(self, connected: socket.socket, address: str, parts: ConnectionParts) -> None:
        """Begin to read from `connected`, which must be non-blocking; `address` is that of the peer's machine."""
        self._socket = connected
        self._fd = connected.fileno()
        """For the event loop. Given a socket that it does not watch yet, asyncio formats its `repr`, with two system
        calls for the addresses: a twentieth of a recovery's time, in which a connection pauses often."""
        self._transport: socket.socket | TlsSocket = connected
        """The source of request bytes: the socket, or TLS over it. Changed by `start_tls`."""
        self._is_called = False
        """Whether a call of `_receive_held` is planned."""
        self.address = address
        """The address of the peer's machine. Constant."""
        self._bookie, self._turns, self._options = parts.bookie, parts.turns, parts.options
        """Limits of this connection. These three, and the parts below, are those of `ConnectionParts`. Constant."""
        self._tls, self._authentication, self._authorization = parts.tls, parts.authentication, parts.authorization
        self._rights = None if parts.authorization is None else parts.authorization.enter(self)
        """Judges the peer's requests; None: every request is allowed. Constant."""
        self._events = parts.events
        self._memory_budget = memory_budget = parts.memory_budget
        self._began = memory_budget.loop.time()
        """When the connection began, by the event loop's clock. Constant."""
        self._deadlines = Deadlines(parts.options, self._began)
        """What the connection waits for, and until when."""
        self._receive_buffer = ReceiveBuffer(memory_budget, self)
        self._send_buffer = SendBuffer(connected, memory_budget, self)
        """Replies that the peer has not taken. Replaced when TLS begins."""
        self._scanned = 0
        """The offset in the receive buffer up to which it is divided into frames."""
        self._is_scanned = True
        """Whether no complete frame follows `_scanned`."""
        self._waiting: list[RequestStream | GatedRequests] = []
        """Requests in the receive buffer that are not all served yet. While there are any, nothing is received."""
        self._is_costly = False
        """Whether readings of the last received requests took more than one turn."""
        self._has_turn = False
        """Whether the connection waits for its next turn."""
        self._is_v2 = False
        """Whether a V2 frame has come, after which V3 is not accepted. Set once."""
        self.is_open = True
        """False once the connection is closed, for good."""
        self._is_reading = False
        """Whether the selector reports that bytes have come."""
        self.is_taking = True
        """False while too many replies wait for the peer. Changed by `send` and `_send_more`."""
        self._frames = 0
        """How many frames have come. Only grows."""
        self._is_known = False
        """Whether a request has come, and the peer has proved what it must."""
        self._takes_singles = False
        """Whether a receive buffer with one add may be served at once: the gate is open, and a frame has come."""
        self._received_ns = 0
        """When bytes last arrived, by the clock of `Bookie.times`."""
        self._wait_to_send: list[Callable[[], None]] = []
        """Callbacks for when the peer takes replies again, or the connection is closed."""
        if self._tls is not None or self._authentication is not None:
            self._begin_proofs(self._began)
        self.read_on()

    def _begin_proofs(self, now: float) -> None:
        """Make the gate, and set the deadlines for TLS and authentication."""
        tls, authentication = self._tls, self._authentication
        needs_tls = tls is not None and tls.options.required
        self._gate = Gate(authentication, offers_tls=tls is not None, needs_tls=needs_tls)
        if tls is not None and needs_tls:
            self._deadlines.expect_tls(now, tls.options.handshake_s)
        if authentication is not None:
            self._deadlines.expect_authentication(now, authentication.options.timeout_s)
            authentication.waiting.add(self)

    # ---- called by the event loop ----

    def guarded(self, step: Callable[[], None]) -> None:
        """Run a step. An error that the peer caused ends the connection; an error of our own ends the process."""
        try:
            step()
        except ProtocolError as error:
            self.give_up(str(error), place_of(error))
        except Exception as error:
            self._events.fail(error)

    def _receive(self) -> None:
        if self._tls_socket is not None and not self._tls_socket.is_secured:
            assert self._tls is not None
            self._pause()
            self._is_in_step = True
            HandshakeStep(self, self._tls, self._tls_socket, self._turns).take_later()
            return
        if self._turns.must_queue(self, is_demanding=self._is_costly or not self._is_known):
            # Others come first: this connection joins the queue, and the sockets are polled in between.
            self._pause()
            self._take_turn_later()
        else:
            self._receive_now()

    def _receive_now(self) -> None:
        space = self._receive_buffer.space(_COSTLY_WINDOW_BYTES if self._is_costly else WINDOW_BYTES)
        if space is None:
            self._deadlines.frame_since = NEVER
            self._pause()
            return
        try:
            received = self._transport.recv_into(space)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # A network error such as "no route to host" is treated as the end of the connection.
            received = 0
        if not received:
            self.end()
            return
        self._receive_buffer.end += received
        self._deadlines.receptions += 1
        times = self._bookie.times
        self._received_ns = times.received_ns = times.clock_ns()
        self._is_scanned = self._is_costly = False
        if self._takes_singles and self.is_taking and self._receive_buffer.end == received and self._add_single():
            self._receive_buffer.end = 0
        else:
            self._go_on(self._turns.begin(self))
        if not self._waiting and self._is_known:
            self._turns.note(self)
        if self._tls_socket is not None:
            self._receive_held_later(self._tls_socket)

    def end(self) -> None:
        """Handle the end of the peer's side: send the replies that are ready, then close."""
        self._pause()
        self._has_ended = True
        self._stop_waiting()
        if not self._send_buffer.size:
            self.close()

    def _send_more(self) -> None:
        try:
            if self._send_buffer.flush():
                self._deadlines.progress_at = self._memory_budget.loop.time()
        except OSError:
            self.close()
            return
        if not self._send_buffer.size:
            self._memory_budget.loop.remove_writer(self._fd)
            if self._has_ended:
                self.close()
        if not self.is_taking and self._send_buffer.size <= _UNSENT_BYTES_LOW:
            self.is_taking = True
            self._call_waiting()
            self.resume()

    # ---- called by the bookie and the service ----

    @property
    def connection(self) -> Connection:
        """Itself."""
        return self

    def send(self, parts: Parts) -> None:
        """Send the parts back to back; does nothing when the connection is closed."""
        if not self.is_open:
            return
        was_idle = not self._send_buffer.size
        try:
            has_room = self._send_buffer.send(parts)
        except OSError:
            self.close()
            return
        if not has_room:
            self.give_up(self._memory_budget.too_many_replies())
            return
        if was_idle and self._send_buffer.size:
            self._deadlines.progress_at = self._memory_budget.loop.time()
            self._memory_budget.loop.add_writer(self._fd, self.guarded, self._send_more)
        if self._send_buffer.size > _UNSENT_BYTES_MAX:
            self.is_taking = False

    def when_taking(self, callback: Callable[[], None]) -> None:
        """Call back once `is_taking`, or when the connection is closed."""
        if self.is_open and not self.is_taking:
            self._wait_to_send.append(callback)
        else:
            self._memory_budget.loop.call_soon(self.guarded, callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back after this time, even if the connection is closed by then."""
        return self._memory_budget.loop.call_later(seconds, self.guarded, callback)

    def resume(self) -> None:
        """Continue, in the next turn, with requests that could not be served before."""
        if self._waiting:
            self._take_turn_later()

    def _take_turn_later(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            if self._is_known:
                self._turns.go_on(self, self._take_turn)
            else:
                self._turns.go_on_with_newcomer(self.address, self._take_turn)

    def _take_turn(self, turn: Turn) -> None:
        self._has_turn = False
        if self._waiting:
            self.guarded(lambda: self._go_on(turn))
        elif self.is_open:
            self.read_on()
            # Steps of a handshake have turns of their own.
            if self._tls_socket is None or self._tls_socket.is_secured:
                self.guarded(self._receive_now)

    @functools.cached_property
    def closing(self) -> Closing:
        """How the connection is closed when it must make room, or its peer is late. Constant."""
        return Closing(self, self._turns, lambda: self._events.note_spare(self))

    def take_turn_now(self) -> None:
        """Serve what the peer has sent and waits for a turn, or for the loop to report it."""
        if self._has_turn or self._is_reading:
            self._take_turn(self._turns.begin(self))

    def go_on_receiving(self) -> None:
        """Receive again, because there is room now."""
        if self.is_open and not self._waiting:
            self.read_on()

    def close_if_stalled(self, now: float) -> None:
        """Close the connection, soon, if its peer has taken no replies, or has not completed a frame, for too long."""
        self.closing.plan_while(lambda: self._why_stalled(now))

    def _why_stalled(self, now: float) -> str:
        why = self._deadlines.overdue(now, self._send_buffer.size, self._receive_buffer.end)
        return why + self._tls.budget.why_held(self) if why and self._tls is not None else why

    def idle_s(self, now: float, *, is_owed: bool) -> float:
        """Return for how long nothing has arrived and the connection was not busy, as far as noticed; 0 while it is.

        Busy: requests wait to be served, the bookie owes an answer (`is_owed`), or replies wait for the peer.
        """
        return self._deadlines.idle_s(now, is_busy=bool(self._waiting or self._send_buffer.size or is_owed))

    def give_up(self, why: str, kind: Hashable = None) -> None:
        """Close the connection and log the reason.

        `kind`: log lines of one kind are counted together. By default these are lines that differ only in numbers.
        """
        logger.warning("closed the connection from %s: %s", self._peer(), why, extra={"kind": kind or no_digits(why)})
        self.close()

    def make_room(self, why: str) -> None:
        """Close the connection and log the reason, as a step of its own: it costs as much as accepting one."""
        self.closing.plan(why)

    def close(self) -> None:
        """Drop the connection and all unsent bytes."""
        if not self.is_open:
            return
        self.is_open = False
        self.closing.end()
        self._pause()
        self._memory_budget.loop.remove_writer(self._fd)
        self._waiting = []
        self._memory_budget.forget(self)
        self._bookie.forget(self)
        if self._authorization is not None:
            self._authorization.forget(self)
        if self._wait is not None:
            self._wait.cancel()
        if self._tls is not None:
            self._tls.forget(self)
        if self._authentication is not None:
            self._authentication.waiting.discard(self)
        self._receive_buffer.clear()
        self._send_buffer.clear()
        self._transport.close()
        self._call_waiting()
        self._turns.note_end(self._memory_budget.loop.time() - self._began)
        self._events.discard(self)

    def _call_waiting(self) -> None:
        """Resume those that wait to send. In a later call, because they send."""
        waiting, self._wait_to_send = self._wait_to_send, []
        for callback in waiting:
            self._memory_budget.loop.call_soon(self.guarded, callback)

    def read_on(self) -> None:
        if not self._is_reading and not self._has_ended and not self._is_in_step:
            self._is_reading = True
            self._memory_budget.loop.add_reader(self._fd, self.guarded, self._receive)
            if self._tls_socket is not None:
                self._receive_held_later(self._tls_socket)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._memory_budget.loop.remove_reader(self._fd)

    # ---- TLS ----

    def start_tls(self, answer: bytes, end: int) -> None:
        """Answer START_TLS in clear, and begin TLS with the bytes from `end` of the receive buffer on.

        Raises:
            ProtocolError: earlier requests are unanswered, or the bytes are not the beginning of TLS.
        """
        assert self._tls is not None
        # Not asked for a peer's first frame: with a stalled disk thousands connect again, and much is unanswered.
        is_owed = self._frames > 1 and self._bookie.owes(self)
        if not is_owed:
            self.send((answer,))
        if is_owed or self._send_buffer.size:
            raise ProtocolError("it asks for TLS while earlier requests are unanswered")
        if not self.is_open:
            return
        buffer, loop = self._receive_buffer, self._memory_budget.loop
        if self._authentication is not None and self._gate is None:
            self._forget_login(loop.time())
        self._deadlines.expect_tls(loop.time(), self._tls.options.handshake_s)
        held = b"" if self._gate is None else self._gate.take_held()
        held += buffer.octets[end : buffer.end].tobytes()
        secured = self._tls_socket = TlsSocket(self._socket, self._tls.context, held, loop, self._on_secured)
        self._transport, self._send_buffer = secured, SendBuffer(secured, self._memory_budget, self)
        del self._waiting[1:]
        self._scanned, self._is_scanned = buffer.end, True
        self._tls.owing.add(self)
        self._receive_held_later(secured)

    def _forget_login(self, now: float) -> None:
        """Demand a login again: the one in clear may have been that of a man in the middle."""
        self.principal = ANONYMOUS
        self._is_known = self._takes_singles = False
        self._begin_proofs(now)

    def _on_secured(self) -> None:
        assert self._tls_socket is not None
        self._deadlines.end_handshake()
        certificate = self._tls_socket.certificate()
        if self.principal == ANONYMOUS:
            self.principal = principal_of_certificate(certificate)
        if self._gate is None:
            return
        if self._gate.opens_with_tls(certificate):
            self._open_gate()
        elif self._authentication is not None:
            timeout_s = self._authentication.options.timeout_s
            self._deadlines.expect_authentication(self._memory_budget.loop.time(), timeout_s)

    def end_step(self) -> None:
        """Receive again, because a step of the handshake has ended."""
        self._is_in_step = False
        self.read_on()

    def _receive_held_later(self, tls_socket: TlsSocket) -> None:
        """Receive, in a later call, what TLS already holds: the selector does not see it."""
        if self._is_reading and tls_socket.holds_received and not self._is_called:
            self._is_called = True
            self._memory_budget.loop.call_soon(self.guarded, self._receive_held)

    def _receive_held(self) -> None:
        self._is_called = False
        # A step of the handshake may have taken it meanwhile.
        if self._is_reading and self._tls_socket is not None and self._tls_socket.holds_received:
            self._receive()

    # ---- authentication ----

    def begin_tls(self, answer: bytes, end: int) -> bool:
        """Begin TLS before the gate is open, as `start_tls`; False: there is no TLS, or it has begun."""
        if self._tls is None or self._tls_socket is not None:
            return False
        self.start_tls(answer, end)
        return True

    def wait_for_start_tls(self, seconds: float) -> None:
        """Answer the waiting AUTH message after this time, unless START_TLS or another request comes before."""
        self._wait = self.call_later(seconds, self._stop_waiting)

    def _stop_waiting(self) -> None:
        # Requests that wait for a turn came after the AUTH message: the next of them answers it.
        if self.is_open and self._gate is not None and not self._waiting:
            GatedRequests(self, self._gate, NO_FRAMES).answer_late()

    def admit(self, principal: Principal, end: int) -> None:
        """Serve the requests from byte `end` of the receive buffer on, because the peer has proved what it must."""
        self.principal = principal
        self._scanned, self._is_scanned = end, False
        self._open_gate()

    def _open_gate(self) -> None:
        self._gate = None
        self._is_known = self._frames > 0
        self._deadlines.end_authentication()
        if self._authentication is not None:
            self._authentication.waiting.discard(self)

    # ---- requests ----

    def _add_single(self) -> bool:
        """Serve the receive buffer if it holds exactly one add and the add is accepted."""
        octets = self._receive_buffer.octets
        decode = v2.decode_single_add if self._is_v2 else v3_single_add.decode_single_add
        add = decode(octets.data, self._receive_buffer.end, self._options.frame_bytes_max)
        if add is None:
            return False
        rights = self._rights
        if rights is not None and not rights.allows(add.ledger_id, add_needs(is_recovery=add.is_recovery)):
            return False
        return self._bookie.add_single(self, octets, add)

    def _go_on(self, turn: Turn) -> None:
        """Serve the requests in the receive buffer as far as possible; read on only when all are served."""
        self._bookie.times.received_ns = self._received_ns
        while self._serve(turn):
            if self._is_scanned:
                self._keep_rest()
                return
            self._scan(turn.frames)
        if self.is_open:
            self._receive_buffer.keep_all()
            self._deadlines.frame_since = NEVER
            self._pause()
            if turn.is_over:
                self._is_costly = self._is_costly or self._waiting[0].is_reading
                self.resume()

    def _serve(self, turn: Turn) -> bool:
        """Serve the requests that were found; return whether all are served and the connection is open."""
        while self._waiting:
            is_done = self._waiting[0].serve(self._receive_buffer.octets, turn)
            if not is_done or not self.is_open:
                return False
            self._waiting.pop(0)
        return self.is_open

    def _keep_rest(self) -> None:
        """Keep the beginning of an unfinished frame, and read on."""
        served, self._scanned = self._scanned, 0
        self._receive_buffer.keep(served)
        if not self._receive_buffer.end:
            self._deadlines.frame_since = NEVER
        else:
            self._deadlines.begin_frame(self._memory_budget.loop.time(), is_new=served > 0)
        self.read_on()

    def _scan(self, frames_max: int) -> None:
        """Find more requests in the receive buffer: in V3 until the first V2 frame, then in V2."""
        self._waiting = []
        try:
            self._waiting = self._runs(frames_max)
        except ProtocolError:
            raise
        except Exception as error:
            end_undecodable(self, error)

    def _runs(self, frames_max: int) -> list[RequestStream | GatedRequests]:
        buffer = self._receive_buffer
        if self._gate is not None:
            # What follows START_TLS may be a handshake, which has no frames.
            frames_max = 1
        table = scan_frames(buffer.octets.data, buffer.end, self._options.frame_bytes_max, self._scanned, frames_max)
        count = len(table.starts)
        if count and not self._frames:
            self._is_known = self._gate is None
            self._events.note_request(self)
        self._frames += count
        if self._rights is not None:
            self._rights.begin_requests()
        self._scanned = table.consumed
        self._is_scanned = count < frames_max
        if self._gate is not None:
            if self._gate.refuses and not count and buffer.end - self._scanned > BYTES_MAX:
                raise ProtocolError(
                    f"it began a frame of more than {BYTES_MAX} bytes before it was {self._gate.missing}"
                )
            return [GatedRequests(self, self._gate, table)] if count else []
        self._takes_singles = bool(count) or self._takes_singles
        start_tls = self.start_tls if self._tls is not None and self._tls_socket is None else None
        v3_frames = 0 if self._is_v2 else count_leading(buffer.octets, table, v3.FIRST_BYTE)
        self._is_v2 = self._is_v2 or v3_frames < count
        runs: list[RequestStream | GatedRequests] = []
        if v3_frames:
            runs.append(V3RequestStream(self._bookie, self, table.take(slice(0, v3_frames)), start_tls, self._rights))
        if self._is_v2:
            rest = table.take(slice(v3_frames, None)) if v3_frames else table
            runs.append(V2RequestStream(self._bookie, self, buffer.octets, rest, self._rights))
        return runs

    def _peer(self) -> str:
        try:
            host, port, *_ = self._socket.getpeername()
        except OSError:
            return "a peer that is gone"
        return f"{host}:{port}"
