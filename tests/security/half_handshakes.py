"""Peers of a simulated bookie that begin handshakes and do not finish them, beside a client that has been served."""

from __future__ import annotations

from collections.abc import Sequence

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket, replies
from tests.floods.requests import SIGNED_BYTES, half_handshake
from tests.security.tls_serving import v3_request

FLOOD, HONEST, OTHER = "10.0.0.9", "10.0.0.2", "10.0.0.3"
AUTH = v3_request(protocol.AUTH, authRequest=protocol.AuthMessage(authPluginName="x", payload=b""))


def signed(peers: Sequence[SimulatedSocket]) -> int:
    """Return how many of some peers have the bookie's signature."""
    return sum(len(peer.sent) > SIGNED_BYTES for peer in peers)


def begin(served: ServedBookie, address: str, count: int) -> list[SimulatedSocket]:
    """Return peers of an address that send half a handshake each."""
    peers = [served.connect(address) for _ in range(count)]
    for peer in peers:
        peer.received += half_handshake()
    return peers


def known(served: ServedBookie) -> SimulatedSocket:
    """Return a client that has been served."""
    peer = served.connect(HONEST)
    peer.received += adds(1, 0, [b"honest"])
    served.turns_until(lambda: replies(peer) == 1)
    return peer
