"""Answers to frames that are not storage requests: the AUTH exchange, and V3 frames, which are not served.

Without an authentication plugin every AUTH message is answered at once with the name that Apache's clients take as "the
bookie asks for none". A V3 request is answered in V3 with EBADVERSION, which a Java client reports as
`BKProtocolVersionException`: the one status that says what the matter is. The connection stays usable.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from bkspark.errors import ProtocolError
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2

V3_FIRST_BYTE = 0x0A
"""A V3 body begins with the tag of its header field; a V2 body begins with its version, 0 to 2."""

_NO_AUTHENTICATION = protocol.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"").SerializeToString()


def auth_reply() -> bytes:
    """Return the V2 frame that tells a client with an authentication plugin to go on without."""
    return v2.encode_auth_reply(_NO_AUTHENTICATION)


def refuse_v3(body: bytes) -> bytes:
    """Return the V3 frame that refuses a request: same operation and txnId, status EBADVERSION.

    Raises:
        ProtocolError: the body is not a V3 request.
    """
    try:
        header = protocol.Request.FromString(body).header
    except DecodeError as error:
        raise ProtocolError(f"a frame of {len(body)} bytes is neither V2 nor V3") from error
    response = protocol.Response(
        header=protocol.BKPacketHeader(version=protocol.VERSION_THREE, operation=header.operation, txnId=header.txnId),
        status=protocol.EBADVERSION,
    ).SerializeToString()
    return len(response).to_bytes(4, "big") + response
