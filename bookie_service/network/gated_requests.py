"""Requests of a peer that has not proved yet what the bookie demands: TLS, authentication, or both.

START_TLS and AUTH are served. Any other request is answered as Apache's bookies answer it before authentication: EUA,
where its protocol has an answer for that, without the operation's message; otherwise the connection is closed. With
`tlsRequired` and `authenticationRequired` the first such request closes the connection, after its answer. Only ids are
decoded, for the answer, so no storage is touched.

An AUTH message goes to the exchange of the connection. If it fails, a V3 peer is answered EUA, and the connection is
closed. The last message of an exchange may have no answer (GSSAPI). Requests that follow it in the same buffer are
served as usual.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import numpy as np
from google.protobuf.message import DecodeError

from bkspark.errors import ProtocolError
from bkspark.security.mechanism import PLUGIN_NAME, SaslFailure
from bkspark.security.principal import Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import FrameTable
from bkspark.wire.status import Status
from bookie_service.engine.containment import end_undecodable
from bookie_service.engine.responses import Parts
from bookie_service.engine.turns import ENDLESS, Turn
from bookie_service.network import v3_responses
from bookie_service.network.gate import Gate
from bookie_service.network.v2_requests import NO_AUTHENTICATION

_ANSWERED = (v2.ADD, v2.READ)
"""V2 operations whose refusal has a form; Apache's bookies close the connection on the others, too."""
_OTHER_AUTH = "it sent an AUTH message of another plugin, or in clear where TLS is demanded"


class GatedClient(Protocol):
    """The part of a connection that this module uses."""

    @property
    def is_open(self) -> bool:
        """False once the connection is gone."""

    def send(self, parts: Parts) -> None:
        """Send the parts back to back."""

    def begin_tls(self, answer: bytes, end: int) -> bool:
        """Answer START_TLS, which ends at `end` in the receive buffer, and begin TLS; False: there is none to begin."""

    def admit(self, principal: Principal, end: int) -> None:
        """Serve the requests from `end` in the receive buffer on: the peer has proved its identity."""

    def give_up(self, why: str, kind: Hashable = None) -> None:
        """Close the connection and log the reason."""


class GatedRequests:
    """The requests of a receive buffer before the gate is open; takes the place of a `RequestStream`."""

    is_reading = False

    def __init__(self, client: GatedClient, gate: Gate, table: FrameTable) -> None:
        self._client = client
        self._gate = gate
        self._table = table
        self._row = 0
        self._why = ""
        """Why the exchange failed."""

    def serve(self, octets: np.ndarray, turn: Turn = ENDLESS) -> bool:
        """Serve or refuse the requests; False: the connection is gone, or the turn is over. Raises ProtocolError."""
        try:
            return self._serve(octets, turn)
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
            too_much = self._gate.spend(end - start)
            if too_much:
                self._client.give_up(too_much)
            elif octets.item(start) == v3.FIRST_BYTE:
                if self._serve_v3(octets[start:end].tobytes(), end):
                    return True
            elif self._serve_v2(octets, self._table.take(slice(self._row - 1, self._row))):
                return True
        return self._client.is_open

    def _serve_v3(self, body: bytes, end: int) -> bool:
        """Serve or refuse a V3 request; return whether what follows is for others to serve."""
        request = v3.decode_request(body)
        operation, client = request.header.operation, self._client
        if (
            operation == protocol.START_TLS
            and request.HasField("startTLSRequest")
            and client.begin_tls(v3_responses.started_tls(request), end)
        ):
            return True
        if operation != protocol.AUTH:
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

    def _serve_v2(self, octets: np.ndarray, table: FrameTable) -> bool:
        """Serve or refuse a V2 request; return whether what follows is for others to serve."""
        client = self._client
        requests = v2.decode_requests(octets.data, table)
        opcode = requests.opcodes.item(0)
        if opcode != v2.AUTH:
            if opcode in _ANSWERED:
                client.send((v2.encode_replies(opcode, Status.EUA, requests.ledger_ids, requests.entry_ids),))
            if opcode not in _ANSWERED or self._gate.closes:
                client.give_up(self._gate.reason)
            return False
        if self._has_no_plugin:
            client.send((v2.encode_auth_reply(NO_AUTHENTICATION.SerializeToString()),))
            return False
        start, end = table.starts.item(0) + v2.WORD_BYTES, table.ends.item(0)
        try:
            message = protocol.AuthMessage.FromString(octets[start:end].tobytes())
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
        """Whether AUTH is answered as Apache's bookies do that have no authentication."""
        return self._gate.authentication is None

    def _takes(self, message: protocol.AuthMessage) -> bool:
        """Return whether an AUTH message is for the plugin, and may be served now."""
        gate = self._gate
        assert gate.authentication is not None
        # Without TLS where it is demanded, a password could be guessed from what a listener records.
        return not gate.needs_tls and message.authPluginName == gate.authentication.plugin_name

    def _step(self, payload: bytes) -> tuple[protocol.AuthMessage, ...] | None:
        """Take a step of the exchange; return its answer, or none; None: it failed."""
        try:
            answer = self._gate.exchange().step(payload)
        except SaslFailure as failure:
            self._why = str(failure)
            return None
        return () if answer is None else (protocol.AuthMessage(authPluginName=PLUGIN_NAME, payload=answer),)

    def _fail(self) -> None:
        self._client.give_up(f"its authentication failed: {self._why}", "authentication failed")

    def _admit(self, end: int) -> bool:
        """Serve what follows, if the exchange has proved an identity; return whether it has."""
        principal = self._gate.exchange().principal
        if principal is None or not self._client.is_open:
            return False
        self._client.admit(principal, end)
        return True

    def _refuse_v3(self, request: protocol.Request) -> None:
        self._client.send((_refusal(request),))
        if self._gate.closes:
            self._client.give_up(self._gate.reason)


def _refusal(request: protocol.Request) -> bytes:
    # Without the operation's message, as Apache's bookies answer before authentication.
    header = v3.header(request.header.operation, request.header.txnId)
    return v3.encode_message(protocol.Response(header=header, status=v3.StatusCode.EUA))
