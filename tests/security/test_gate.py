"""Limits of what a peer may do before its requests are served: exactly so much, and not more."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.gate import BYTES_MAX, REQUESTS_MAX, Gate
from bookie_service.network.tls_socket import CLEAR_BYTES_MAX, CLEAR_MESSAGES_MAX, TlsFailure, TlsSocket
from bookie_service.network.waiting_peers import WaitingPeers
from tests.bookie.simulated_connections import SimulatedSocket, SteppedLoop
from tests.security.sasl_serving import by_digest


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(ListenerAuthentication(by_digest(tmp_path)), offers_tls=True, needs_tls=True)


def test_only_the_first_auth_message_waits_for_start_tls(gate: Gate) -> None:
    assert gate.hold(b"first") > 0
    assert gate.take_held() == b"first"
    assert gate.take_held() == b""
    assert gate.hold(b"second") == 0
    assert gate.take_held() == b""


def test_no_auth_message_waits_for_start_tls_inside_tls(gate: Gate) -> None:
    gate.opens_with_tls(None)
    assert gate.hold(b"first") == 0


def test_limits_before_authentication_count_again_inside_tls_and_end_a_peer_at_the_next_frame(gate: Gate) -> None:
    """What a man in the middle may have sent in clear does not use up the budget of the peer inside TLS."""
    for begins in (lambda: None, lambda: gate.opens_with_tls(None)):
        begins()
        assert [gate.spend(1) for _ in range(REQUESTS_MAX)] == [""] * REQUESTS_MAX
        assert f"it sent more than {REQUESTS_MAX} requests before it was {gate.missing}" in gate.spend(1)
    gate.opens_with_tls(None)
    assert gate.spend(BYTES_MAX) == ""
    assert f"it sent more than {BYTES_MAX} bytes before it was authenticated" in gate.spend(1)


class Peer:
    """A connection that waits; it has to close when there are too many."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.why = ""

    def make_room(self, why: str) -> None:
        self.why = why


@pytest.mark.parametrize(("all_max", "per_address_max", "key"), [(9, 2, "each"), (2, 9, "all")])
def test_oldest_unfinished_one_makes_room_from_the_limit_on(all_max: int, per_address_max: int, key: str) -> None:
    waiting = WaitingPeers("handshake", ("all", all_max), ("each", per_address_max))
    peers = [Peer() for _ in range(3)]
    for peer in peers[:2]:
        waiting.add(peer)
    assert [bool(peer.why) for peer in peers] == [False] * 3
    waiting.add(peers[2])
    assert [bool(peer.why) for peer in peers] == [True, False, False]
    assert peers[0].why.endswith(f"2 unfinished handshakes ({key})")
    assert len(waiting) == 2
    for peer in peers:
        waiting.discard(peer)
    assert len(waiting) == 0


def test_addresses_have_limits_of_their_own() -> None:
    waiting = WaitingPeers("handshake", ("all", 9), ("each", 1))
    peers = [Peer("10.0.0.1"), Peer("10.0.0.2")]
    for peer in peers:
        waiting.add(peer)
    assert [peer.why for peer in peers] == ["", ""]
    for peer in peers:
        waiting.discard(peer)
    assert waiting._of_address == {}, "an address that is gone takes no memory"


def start_with(received: bytes) -> TlsSocket:
    """Return what begins TLS after bytes in clear."""

    def no_context() -> None:
        raise AssertionError("no handshake begins")

    return TlsSocket(SimulatedSocket(), no_context, received, SteppedLoop(), lambda: None)  # type: ignore[arg-type]


AUTH = v2.encode_auth_reply(protocol.AuthMessage(authPluginName="sasl", payload=b"").SerializeToString())


def test_auth_messages_in_clear_after_start_tls_have_a_limit() -> None:
    assert not start_with(CLEAR_MESSAGES_MAX * AUTH).holds_received
    with pytest.raises(TlsFailure, match=f"more than {CLEAR_MESSAGES_MAX} AUTH messages"):
        start_with((CLEAR_MESSAGES_MAX + 1) * AUTH)


def test_bytes_in_clear_after_start_tls_have_a_limit() -> None:
    unfinished = (2 * CLEAR_BYTES_MAX).to_bytes(4, "big") + bytes(CLEAR_BYTES_MAX - 4)
    assert not start_with(unfinished).holds_received
    with pytest.raises(TlsFailure, match=f"more than {CLEAR_BYTES_MAX} bytes"):
        start_with(unfinished + b"x")
