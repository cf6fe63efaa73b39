"""Requests of a peer that has not yet proved what the bookie requires: TLS, authentication, or both.

START_TLS and AUTH are served; START_TLS is answered EBADREQ where there is no TLS to begin. Any other request is
answered as Apache's bookies answer it before authentication: EUA, where its protocol has an answer for that, without
the operation's message; otherwise the connection is closed. With `tlsRequired` and `authenticationRequired` the first
such request closes the connection, after its answer. Only ids are decoded, for the answer, so no storage is touched.

If the port offers TLS, the first AUTH message in clear waits a moment for START_TLS (`gate`). If START_TLS comes, the
message is answered inside TLS, as if it had come after START_TLS. Any other request ends the wait. If the port requires
nothing, this wait is all that happens here, and the first other request is served as usual.

An AUTH message goes to the exchange of the connection. If the exchange fails, a V3 peer is answered EUA, and the
connection is closed. The last message of an exchange may have no answer (GSSAPI). Requests that follow it in the same
buffer are served as usual.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from bkspark.errors import ProtocolError
from bkspark.security.mechanism import PLUGIN_NAME, SaslFailure
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import LENGTH_BYTES, FrameTable
from bkspark.wire.status import Status
from bookie_service.engine.containment import end_undecodable
from bookie_service.engine.responses import Parts
from bookie_service.engine.turns import ENDLESS, Turn
from bookie_service.network import v3_responses
from bookie_service.network.gate import BYTES_MAX, Gate
from bookie_service.network.v2_requests import NO_AUTHENTICATION

_ANSWERED = (v2.ADD, v2.READ)
"""V2 operations that can be refused. On other operations the connection is closed, as by Apache's bookies."""
_OTHER_AUTH = "it sent an AUTH message of another plugin, or in clear where TLS is demanded"


_Request: TypeAlias = protocol.Request | v2.Requests


class GatedClient(Protocol):
    """The part of a connection that this module uses."""

    @property
    def is_open(self) -> bool:
        """False once the connection is closed."""

    def send(self, parts: Parts) -> None:
        """Send the parts back to back."""

    def begin_tls(self, answer: bytes, end: int) -> bool:
        """Answer START_TLS, which ends at `end` in the receive buffer, and begin TLS; False: no TLS can begin."""

    def wait_for_start_tls(self, seconds: float) -> None:
        """Answer the AUTH message that waits after this time."""

    def admit(self, principal: Principal, end: int) -> None:
        """Serve the requests from `end` in the receive buffer on, because the peer has proved what it must."""

    def give_up(self, why: str, kind: Hashable = None) -> None:
        """Close the connection and log the reason."""


class GatedRequests:
    """The requests of a receive buffer before the gate is open. Used in place of a `RequestStream`."""

    is_reading = False

    def __init__(self, client: GatedClient, gate: Gate, table: FrameTable) -> None:
        self._client = client
        self._gate = gate
        self._table = table
        self._row = 0
        """The next request."""
        self._why = ""
        """Why the exchange failed."""

    def serve(self, octets: np.ndarray, turn: Turn = ENDLESS) -> bool:
        """Serve or refuse the requests; False: the connection is closed, or the turn is over. Raises ProtocolError."""
        try:
            return self._serve(octets, turn)
        except ProtocolError:
            raise
        except Exception as error:
            # Nothing here changes the bookie's state.
            end_undecodable(self._client, error)
            return False

    def _serve(self, octets: np.ndarray, turn: Turn) -> bool:
        while self._client.is_open and self._row < len(self._table):
            if turn.is_over:
                return False
            start, end = self._table.starts.item(self._row), self._table.ends.item(self._row)
            self._row += 1
            turn.spend()
            if end == start:
                raise ProtocolError("a frame without a body")
            too_much = self._gate.spend(end - start) if self._gate.refuses else ""
            if too_much:
                self._client.give_up(too_much)
            elif self._serve_frame(octets[start - LENGTH_BYTES : end], start - LENGTH_BYTES, end):
                return True
        return self._client.is_open

    def _serve_frame(self, frame: np.ndarray, begin: int, end: int) -> bool:
        """Serve, refuse or hold a frame; return whether a `RequestStream` must serve what follows."""
        client, gate = self._client, self._gate
        is_small = end - begin <= LENGTH_BYTES + BYTES_MAX
        request = _decode(frame) if is_small or gate.refuses else None
        if isinstance(request, protocol.Request) and self._begins_tls(request, end):
            return True
        if request is not None and _is_auth(request):
            wait_s = gate.hold(frame.tobytes())
            if wait_s:
                client.wait_for_start_tls(wait_s)
                return False
        if self._answer_held(begin):
            return True
        if not client.is_open:
            return False
        if request is None or not gate.refuses:
            client.admit(ANONYMOUS, begin)
            return True
        return self._serve_request(request, frame, end)

    def answer_late(self) -> None:
        """Answer the AUTH message that waits: START_TLS has not come in time. Raises ProtocolError."""
        try:
            self._answer_held(0)
        except ProtocolError:
            raise
        except Exception as error:
            end_undecodable(self._client, error)

    def _answer_held(self, end: int) -> bool:
        """Answer the AUTH message that waits, if one does, in clear; byte `end` of the receive buffer follows it.

        Returns whether a `RequestStream` must serve what follows.
        """
        held = self._gate.take_held()
        if not held:
            return False
        frame = np.frombuffer(held, np.uint8)
        has_opened = self._serve_request(_decode(frame), frame, end)
        if not has_opened and not self._gate.refuses:
            self._client.admit(ANONYMOUS, end)
            return True
        return has_opened

    def _begins_tls(self, request: protocol.Request, end: int) -> bool:
        return _is_start_tls(request) and self._client.begin_tls(v3_responses.started_tls(request), end)

    def _serve_request(self, request: _Request, frame: np.ndarray, end: int) -> bool:
        if isinstance(request, protocol.Request):
            return self._serve_v3(request, end)
        return self._serve_v2(request, frame, end)

    def _serve_v3(self, request: protocol.Request, end: int) -> bool:
        """Serve or refuse a V3 request; return whether a `RequestStream` must serve what follows."""
        client = self._client
        if _is_start_tls(request):
            # As after authentication: there is no TLS, or the connection has it already.
            client.send((v3_responses.response(request, v3.StatusCode.EBADREQ),))
            return False
        if request.header.operation != protocol.AUTH:
            self._refuse_v3(request)
            return False
        if self._has_no_plugin:
            client.send((v3_responses.response(request, v3.StatusCode.EOK, authResponse=NO_AUTHENTICATION),))
            return False
        if not self._takes(request.authRequest):
            self._refuse_v3(request)
            return False
        answer = self._step(request.authRequest.payload)
        if answer is None:
            client.send((_refusal(request),))
            self._fail()
        elif answer:
            client.send((v3_responses.response(request, v3.StatusCode.EOK, authResponse=answer[0]),))
        return self._admit(end)

    def _serve_v2(self, request: v2.Requests, frame: np.ndarray, end: int) -> bool:
        """Serve or refuse a V2 request; return whether a `RequestStream` must serve what follows."""
        client, opcode = self._client, request.opcodes.item(0)
        if opcode != v2.AUTH:
            if opcode in _ANSWERED:
                client.send((v2.encode_replies(opcode, Status.EUA, request.ledger_ids, request.entry_ids),))
            if opcode not in _ANSWERED or self._gate.closes:
                client.give_up(self._gate.reason)
            return False
        if self._has_no_plugin:
            client.send((v2.encode_auth_reply(NO_AUTHENTICATION.SerializeToString()),))
            return False
        try:
            message = protocol.AuthMessage.FromString(frame[LENGTH_BYTES + v2.WORD_BYTES :].tobytes())
        except DecodeError:
            raise ProtocolError("the message of an AUTH request is not one") from None
        if not self._takes(message):
            client.give_up(_OTHER_AUTH)
            return False
        answer = self._step(message.payload)
        if answer is None:
            self._fail()
        elif answer:
            client.send((v2.encode_auth_reply(answer[0].SerializeToString()),))
        return self._admit(end)

    @property
    def _has_no_plugin(self) -> bool:
        """Whether AUTH is answered as by Apache's bookies without authentication."""
        return self._gate.authentication is None

    def _takes(self, message: protocol.AuthMessage) -> bool:
        """Return whether an AUTH message is for the plugin, and may be served now."""
        gate = self._gate
        assert gate.authentication is not None
        # On a port that requires TLS, a password in clear could be guessed from a recording.
        return not gate.needs_tls and message.authPluginName == gate.authentication.plugin_name

    def _step(self, payload: bytes) -> tuple[protocol.AuthMessage, ...] | None:
        """Take a step of the exchange; return its answer as a tuple of at most one message, or None if it failed."""
        try:
            answer = self._gate.exchange().step(payload)
        except SaslFailure as failure:
            self._why = str(failure)
            return None
        return () if answer is None else (protocol.AuthMessage(authPluginName=PLUGIN_NAME, payload=answer),)

    def _fail(self) -> None:
        self._client.give_up(f"its authentication failed: {self._why}", "authentication failed")

    def _admit(self, end: int) -> bool:
        """Serve what follows if the exchange has proved an identity; return whether it has."""
        principal = self._gate.exchange().principal
        if principal is None or not self._client.is_open:
            return False
        self._client.admit(principal, end)
        return True

    def _refuse_v3(self, request: protocol.Request) -> None:
        self._client.send((_refusal(request),))
        if self._gate.closes:
            self._client.give_up(self._gate.reason)


def _decode(frame: np.ndarray) -> _Request:
    """Return the request of one frame. Raises ProtocolError: it is not one."""
    if frame.item(LENGTH_BYTES) == v3.FIRST_BYTE:
        return v3.decode_request(frame[LENGTH_BYTES:].tobytes())
    table = FrameTable(np.array((LENGTH_BYTES,)), np.array((len(frame),)), len(frame))
    return v2.decode_requests(frame.data, table)


def _is_auth(request: _Request) -> bool:
    if isinstance(request, protocol.Request):
        return bool(request.header.operation == protocol.AUTH)
    return bool(request.opcodes.item(0) == v2.AUTH)


def _is_start_tls(request: protocol.Request) -> bool:
    return bool(request.header.operation == protocol.START_TLS) and request.HasField("startTLSRequest")


def _refusal(request: protocol.Request) -> bytes:
    # The request's header and no message of the operation, as Apache's bookies answer before authentication.
    return v3.encode_message(protocol.Response(header=request.header, status=v3.StatusCode.EUA))
