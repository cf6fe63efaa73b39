"""Registration data of a bookie: BookieServiceInfoFormat (dataformats.proto), binary.

The endpoint with protocol `bookie-rpc` is where clients connect. Empty data is the legacy form: the id itself is
host:port.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from bkspark.errors import MetadataFormat
from bkspark.ids import parse_host_port
from bkspark.metadata.dataformats_pb2 import BookieServiceInfoFormat

PROTOCOL = "bookie-rpc"


@dataclass(frozen=True)
class BookieAddress:
    """Where a bookie serves, and what else its registration says."""

    host: str
    port: int
    properties: dict[str, str] = field(default_factory=dict)


def encode(address: BookieAddress) -> bytes:
    """Return the registration node's bytes."""
    message = BookieServiceInfoFormat()
    message.endpoints.add(id="bookie", port=address.port, host=address.host, protocol=PROTOCOL)
    for key, value in address.properties.items():
        message.properties[key] = value
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, bookie_id: str) -> BookieAddress:
    """Return where a registered bookie serves.

    Raises:
        MetadataFormat: damaged, without a bookie endpoint, or empty with an id that is no host:port.
    """
    try:
        if not data:
            return BookieAddress(*parse_host_port(bookie_id))
        message = BookieServiceInfoFormat.FromString(data)
        for endpoint in message.endpoints:
            if endpoint.protocol == PROTOCOL:
                host = _text(endpoint.host, "its host")
                properties = {key: _text(value, "a property") for key, value in message.properties.items()}
                return BookieAddress(host, endpoint.port, properties)
    except (ValueError, DecodeError) as error:
        raise MetadataFormat(f"the registration of bookie {bookie_id} cannot be read: {error}") from None
    raise MetadataFormat(f"the registration of bookie {bookie_id} has no endpoint with protocol {PROTOCOL}")


def _text(value: str | bytes, what: str) -> str:
    # protobuf hands over bytes where a string is not UTF-8.
    if isinstance(value, bytes):
        raise ValueError(f"{what} is not text")
    return value
