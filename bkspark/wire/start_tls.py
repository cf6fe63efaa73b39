"""START_TLS: the V3 request with which clients begin TLS, also those of V2, and the answer to it. Both are in clear."""

from __future__ import annotations

from bkspark.errors import ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.framing import LENGTH_BYTES

ANSWER_BYTES_MAX = 1024
"""Limit of the answer's body; it has less than 30 bytes."""
_V3, _V2_AUTH_WORDS = v3.FIRST_BYTE, (bytes((2, 3)), bytes((1, 3)), bytes((0, 3)))


def encode_start_tls(txn_id: int) -> bytes:
    """Return the frame of the request."""
    header = v3.header(protocol.START_TLS, txn_id)
    return v3.encode_message(protocol.Request(header=header, startTLSRequest=protocol.StartTLSRequest()))


def take_answer(received: bytes | bytearray, txn_id: int) -> v3.StatusCode | None:
    """Return the status of the answer that `received` holds, None while it is not complete.

    Raises:
        ProtocolError: it is not the answer, or something follows it in clear.
    """
    if len(received) < LENGTH_BYTES:
        return None
    size = int.from_bytes(received[:LENGTH_BYTES], "big", signed=True)
    if not 0 < size <= ANSWER_BYTES_MAX:
        raise ProtocolError(f"it answers START_TLS with a frame of {size} bytes")
    if len(received) < LENGTH_BYTES + size:
        return None
    if len(received) > LENGTH_BYTES + size:
        raise ProtocolError("it sends bytes in clear after its answer to START_TLS")
    response = v3.decode_response(bytes(received[LENGTH_BYTES:]))
    if response.header.operation != protocol.START_TLS or response.header.txnId != txn_id:
        raise ProtocolError("it answers START_TLS with the response to another request")
    try:
        status = v3.StatusCode(response.status)
    except ValueError:
        raise ProtocolError(f"it answers START_TLS with the unknown status {response.status}") from None
    if status is v3.StatusCode.EOK and not response.HasField("startTLSResponse"):
        raise ProtocolError("its answer to START_TLS lacks the message")
    return status


def is_refusal(body: bytes) -> bool:
    """Return whether the body of a frame says that START_TLS failed.

    Apache's bookies say so inside TLS to a client that is not authenticated, in V3 whatever the client speaks.
    """
    if body[:1] != bytes((_V3,)):
        return False
    try:
        response = v3.decode_response(body)
    except ProtocolError:
        return False
    return bool(response.header.operation == protocol.START_TLS and response.status != v3.StatusCode.EOK)


def is_auth_request(body: bytes) -> bool:
    """Return whether the body of a frame is an AUTH request, of V3 or V2."""
    if body[:2] in _V2_AUTH_WORDS:
        return True
    if not body or body[0] != _V3:
        return False
    try:
        return bool(v3.decode_request(body).header.operation == protocol.AUTH)
    except ProtocolError:
        return False
