"""V3 responses that are built one by one, with protobuf's classes.

The outer and the inner status are equal. If an operation has no message, or its request lacks the message, the response
is only the header and a status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3

# Operation: its request message, its response message, and the ids that the response repeats.
_MESSAGES = {
    protocol.READ_ENTRY: ("readRequest", "readResponse", ("ledgerId", "entryId")),
    protocol.ADD_ENTRY: ("addRequest", "addResponse", ("ledgerId", "entryId")),
    protocol.WRITE_LAC: ("writeLacRequest", "writeLacResponse", ("ledgerId",)),
    protocol.READ_LAC: ("readLacRequest", "readLacResponse", ("ledgerId",)),
    protocol.FORCE_LEDGER: ("forceLedgerRequest", "forceLedgerResponse", ("ledgerId",)),
    protocol.GET_LIST_OF_ENTRIES_OF_LEDGER: (
        "getListOfEntriesOfLedgerRequest",
        "getListOfEntriesOfLedgerResponse",
        ("ledgerId",),
    ),
    protocol.GET_BOOKIE_INFO: ("getBookieInfoRequest", "getBookieInfoResponse", ()),
}


def has_message(request: protocol.Request) -> bool:
    """Return whether the operation has a message and the request contains it."""
    names = _MESSAGES.get(request.header.operation)
    return names is not None and request.HasField(names[0])


def response(request: protocol.Request, status: int, found: Mapping[str, Any] | None = None, **messages: Any) -> bytes:
    """Return the frame of the response to a request. `status` is V3's.

    Args:
        found: more fields of the operation's response message, or values in place of the requested ids.
        messages: more messages of the response.
    """
    header = v3.header(request.header.operation, request.header.txnId)
    response = protocol.Response(header=header, status=status, **messages)
    if has_message(request):
        asked_name, answered_name, ids = _MESSAGES[request.header.operation]
        asked = getattr(request, asked_name)
        fields = {name: getattr(asked, name) for name in ids} | dict(found or {})
        message = getattr(response, answered_name)
        message.status = status
        for name, value in fields.items():
            setattr(message, name, value)
    return v3.encode_message(response)


def started_tls(request: protocol.Request) -> bytes:
    """Return the frame of the response to START_TLS, after which both sides speak TLS."""
    return response(request, v3.StatusCode.EOK, startTLSResponse=protocol.StartTLSResponse())


def refusal(request: protocol.Request, status: int) -> bytes:
    """Return the frame of a response that contains only a status, which may be EOK."""
    return response(request, v3.code_of(status))
