"""Half handshakes: peers that send START_TLS and their ClientHello, and nothing more.

The answer to a ClientHello has the bookie's signature, which costs as much processor time as many adds. However many
ask for one, a turn of the event loop signs once, and the addresses of those who ask take turns.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.framing import LENGTH_BYTES, scan_frames
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.tls_handshakes import ListenerTls
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket, replies
from tests.floods.requests import half_handshake, read
from tests.security.certificates import Authority
from tests.security.tls_serving import listener, trusting, v3_request

FLOOD, HONEST, OTHER = "10.0.0.9", "10.0.0.2", "10.0.0.3"
HELLOS = 40
ANSWER_BYTES = 100
"""More than the answer to START_TLS has, and less than a ServerHello with its certificate."""
AUTH = v3_request(protocol.AUTH, authRequest=protocol.AuthMessage(authPluginName="x", payload=b""))


@pytest.fixture
def tls(tmp_path: Path) -> ListenerTls:
    return ListenerTls(listener(Authority(tmp_path).issue("bookie")))


@pytest.mark.parametrize("between", [b"", AUTH], ids=["", "AUTH in clear"])
def test_client_may_send_its_client_hello_before_start_tls_is_answered(tmp_path: Path, between: bytes) -> None:
    authority = Authority(tmp_path)
    served = ServedBookie(tls=ListenerTls(listener(authority.issue("bookie"))))
    connected = served.connect()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")

    def take(more_than: int) -> bytes:
        """Return what the bookie has sent, once it is more than this."""
        served.turns_until(lambda: len(connected.sent) > more_than)
        taken = bytes(connected.sent)
        connected.sent.clear()
        return taken

    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    connected.received += encode_start_tls(7) + between + outgoing.read()
    taken = take(ANSWER_BYTES)
    end = LENGTH_BYTES + int.from_bytes(taken[:LENGTH_BYTES], "big")
    assert v3.decode_response(taken[LENGTH_BYTES:end]).HasField("startTLSResponse")
    incoming.write(taken[end:])
    client.do_handshake()
    client.write(adds(1, 0, [b"x"]))
    connected.received += outgoing.read()
    answers = b""
    while len(scan_frames(answers, len(answers))) < 1 + bool(between):
        incoming.write(take(0))
        answers += client.read()
    assert (b"AuthDisabledPlugin" in answers) == bool(between)
    assert served.failures == []


def signed(peers: Sequence[SimulatedSocket]) -> int:
    """Return how many of some peers have the bookie's signature."""
    return sum(len(peer.sent) > ANSWER_BYTES for peer in peers)


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


def test_turn_of_the_event_loop_signs_once_however_many_handshakes_begin(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    known(served)
    peers = begin(served, FLOOD, HELLOS)
    most = before = 0
    while before < HELLOS:
        served.turn()
        most, before = max(most, signed(peers) - before), signed(peers)
    assert most == 1
    assert len(tls.owing) == HELLOS, "each of them owes the other half"
    assert served.failures == []


def test_known_client_waits_for_one_signature_at_most(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    honest = known(served)
    peers = begin(served, FLOOD, HELLOS)
    served.turns_until(lambda: signed(peers) > 0)
    for number in range(1, 9):
        before = signed(peers)
        honest.received += read(1, 0)
        served.turns_until(lambda: replies(honest) > number)  # noqa: B023
        assert signed(peers) - before <= 1
    assert signed(peers) < HELLOS, "the others waited meanwhile"


def test_addresses_take_turns_to_have_their_handshakes_signed(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    known(served)
    flood = begin(served, FLOOD, HELLOS)
    served.turns_until(lambda: signed(flood) > 0)
    before = signed(flood)
    other = begin(served, OTHER, 1)
    served.turns_until(lambda: signed(other) == 1)
    # The one whose turn it is, and one before each of its two steps, that of START_TLS and that of the handshake.
    assert signed(flood) - before <= 3
