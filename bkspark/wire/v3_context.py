"""The context of a V3 request: a name and a value, which a bookie may log.

A request may carry several. Ours carries one, with which tracing says whose child the bookie's span is. It is the last
field of a request: `c2 0c L  0a N name  12 V value`.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.v3_fields import varint

_TAG = b"\xc2\x0c"
CONTEXT_BYTES_MAX = 80
"""Upper bound of the bytes of a `traceparent`, as a field of a request."""


def encode_context(name: str, value: str) -> bytes:
    """Return the field of a request that carries a value."""
    pair = protocol.ContextPair(key=name, value=value).SerializeToString()
    return _TAG + varint(len(pair)) + pair


def context_value(pair: bytes, name: str) -> str:
    """Return the value that a field of a request carries; "": it has another name, or is damaged."""
    try:
        found = protocol.ContextPair.FromString(pair)
    except DecodeError:
        return ""
    return str(found.value) if found.key == name else ""
