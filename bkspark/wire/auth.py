"""AUTH messages of a client: their frames in V2 and V3, and a bookie's answer.

V2: header word 0x02030000 and a serialised AuthMessage, both ways; there is no status. V3: an operation like others.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bkspark.errors import ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import LENGTH_BYTES

ANSWER_BYTES_MAX = 64 * 1024
"""Limit of an answer's body; a Kerberos token has some hundred bytes."""
DISABLED_PLUGIN = "AuthDisabledPlugin"
"""The plugin that a bookie without authentication names in its answer."""
_V2_AUTH = v2.header_word(v2.AUTH).to_bytes(v2.WORD_BYTES, "big")


@dataclass(frozen=True, slots=True)
class AuthAnswer:
    """A bookie's answer: its plugin and payload; `is_refusal`: it refuses the client."""

    plugin_name: str = ""
    """The bookie's plugin; DISABLED_PLUGIN: it does not authenticate clients."""
    payload: bytes = b""
    is_refusal: bool = False


def encode_auth(plugin_name: str, payload: bytes, txn_id: int | None) -> bytes:
    """Return the frame of an AUTH message, in V3 if it has a transaction id."""
    message = protocol.AuthMessage(authPluginName=plugin_name, payload=payload)
    if txn_id is None:
        return v2.encode_auth_reply(message.SerializeToString())
    return v3.encode_message(protocol.Request(header=v3.header(protocol.AUTH, txn_id), authRequest=message))


def take_auth_answer(received: bytearray, txn_id: int | None) -> AuthAnswer | None:
    """Remove the answer to an AUTH message from the beginning of `received` and return it; None: it is not complete.

    After a TLS handshake, Apache's bookies report to a client that is not authenticated yet that START_TLS failed
    (EIO), and continue; that response is removed, too.

    Raises:
        ProtocolError: what was received is not the answer, or something follows it.
    """
    while (body := _take_frame(received)) is not None:
        if body[0] == v3.FIRST_BYTE:
            response = v3.decode_response(body)
            if response.header.operation == protocol.START_TLS:
                continue
            answer = _of_v3(response, txn_id)
        else:
            answer = _of_v2(body, txn_id)
        if received:
            raise ProtocolError("it sends more than one answer to an AUTH message")
        return answer
    return None


def _take_frame(received: bytearray) -> bytes | None:
    if len(received) < LENGTH_BYTES:
        return None
    size = int.from_bytes(received[:LENGTH_BYTES], "big", signed=True)
    if not 0 < size <= ANSWER_BYTES_MAX:
        raise ProtocolError(f"it answers an AUTH message with a frame of {size} bytes")
    end = LENGTH_BYTES + size
    if len(received) < end:
        return None
    body = bytes(received[LENGTH_BYTES:end])
    del received[:end]
    return body


def _of_v2(body: bytes, txn_id: int | None) -> AuthAnswer:
    if txn_id is not None or body[: len(_V2_AUTH)] != _V2_AUTH:
        raise ProtocolError("it answers an AUTH message with another one")
    try:
        message = protocol.AuthMessage.FromString(body[len(_V2_AUTH) :])
    except DecodeError:
        raise ProtocolError("its answer to an AUTH message cannot be decoded") from None
    return AuthAnswer(message.authPluginName, message.payload)


def _of_v3(response: protocol.Response, txn_id: int | None) -> AuthAnswer:
    if txn_id is None or response.header.operation != protocol.AUTH or response.header.txnId != txn_id:
        raise ProtocolError("it answers an AUTH message with the response to another request")
    if response.status != v3.StatusCode.EOK:
        return AuthAnswer(is_refusal=True)
    if not response.HasField("authResponse"):
        raise ProtocolError("its answer to an AUTH message lacks the message")
    return AuthAnswer(response.authResponse.authPluginName, response.authResponse.payload)
