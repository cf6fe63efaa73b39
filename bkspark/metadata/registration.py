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
HTTP_ID, HTTP_PROTOCOL = "httpserver", "http"
TLS = "tls"
"""The endpoint extension that marks TLS."""
VERSION, REASON, INDEX_PROBLEM = "bkspark.version", "bkspark.reason", "bkspark.index"
"""Properties of our bookies: their version, why they are read-only, and of which ledgers the index is out of reach or
takes no changes."""
RESTARTED_FOR = "bkspark.restarted"
"""Property of a bookie that was restarted by a plan: the word of the plan (`BookiePlan.restart`)."""


@dataclass(frozen=True)
class BookieAddress:
    """Where a bookie serves, and what else its registration says."""

    host: str
    """A name or an IP address, with `port`: where clients connect."""
    port: int
    properties: dict[str, str] = field(default_factory=dict)
    """Further facts of the registration, by name."""
    http: tuple[str, int] | None = None
    """Host and port of the HTTP server, if there is one."""
    extensions: tuple[str, ...] = ()
    """The extensions of the endpoint for clients, such as "tls"."""
    http_tls: bool = False
    """Whether the HTTP server has TLS."""


def encode(address: BookieAddress) -> bytes:
    """Return the registration node's bytes."""
    message = BookieServiceInfoFormat()
    message.endpoints.add(
        id="bookie", port=address.port, host=address.host, protocol=PROTOCOL, extensions=address.extensions
    )
    if address.http is not None:
        http_host, http_port = address.http
        extensions = (TLS,) if address.http_tls else ()
        message.endpoints.add(id=HTTP_ID, port=http_port, host=http_host, protocol=HTTP_PROTOCOL, extensions=extensions)
    for key, value in address.properties.items():
        message.properties[key] = value
    return message.SerializeToString(deterministic=True)


def decode(data: bytes, bookie_id: str) -> BookieAddress:
    """Return where a registered bookie serves.

    Raises:
        MetadataFormat: damaged, without a bookie endpoint, or empty with an id that is not host:port.
    """
    try:
        if not data:
            return BookieAddress(*parse_host_port(bookie_id))
        message = BookieServiceInfoFormat.FromString(data)
        server = next((each for each in message.endpoints if each.id == HTTP_ID), None)
        http = None if server is None else (_text(server.host, "a host"), server.port)
        http_tls = server is not None and TLS in server.extensions
        for endpoint in message.endpoints:
            if endpoint.protocol == PROTOCOL:
                host = _text(endpoint.host, "its host")
                properties = {key: _text(value, "a property") for key, value in message.properties.items()}
                extensions = tuple(_text(name, "an extension") for name in endpoint.extensions)
                return BookieAddress(host, endpoint.port, properties, http, extensions, http_tls)
    except (ValueError, DecodeError) as error:
        raise MetadataFormat(f"the registration of bookie {bookie_id} cannot be read: {error}") from None
    raise MetadataFormat(f"the registration of bookie {bookie_id} has no endpoint with protocol {PROTOCOL}")


def _text(value: str | bytes, what: str) -> str:
    # protobuf hands over bytes where a string is not UTF-8.
    if isinstance(value, bytes):
        raise ValueError(f"{what} is not text")
    return value


def is_elsewhere(data: bytes, bookie_id: str, address: BookieAddress) -> bool:
    """Return whether a registration node has another host or port than `address`, or cannot be read."""
    try:
        stored = decode(data, bookie_id)
    except MetadataFormat:
        return True
    return (stored.host, stored.port) != (address.host, address.port)
