"""Mutated bytes in each state of a connection: after START_TLS, in the handshake, and in requests inside TLS."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Iterator

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.start_tls import encode_start_tls
from tests.bookie.serving import Peer, Serving, adds
from tests.floods.requests import half_handshake
from tests.fuzzing.mutated_bytes import mutated
from tests.security.certificates import Authority
from tests.security.tls_serving import TlsPeer, listener, serving, trusting, v3_request

CONNECTIONS = 150


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=[False, True], ids=["TLS", "TLS required"])
def bookie(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    tls = listener(authority.issue("bookie"), required=request.param, handshake_s=2.0)
    with serving(tmp_path_factory.mktemp("bookie"), tls) as served:
        yield served
    assert served.failure is None


def send_and_leave(connected: socket.socket, data: bytes) -> None:
    """Send all, then read until the bookie has answered what it answers, and leave."""
    try:
        connected.sendall(data)
        connected.settimeout(0.01)
        while connected.recv(65536):
            pass
    except OSError:
        pass
    connected.close()


def honest_works(bookie: Serving, authority: Authority, ledger_id: int) -> None:
    with TlsPeer(bookie.port, trusting(authority)) as peer:
        assert peer.add(ledger_id, 0, [b"x"]) == [v2.Status.EOK]


START_TLS = encode_start_tls(0)
HELLO = half_handshake()[len(START_TLS) :]
AUTH = v3_request(protocol.AUTH, authRequest=protocol.AuthMessage(authPluginName="x", payload=b""))
STATES: dict[str, Callable[[random.Random], bytes]] = {
    "START_TLS and the ClientHello": lambda source: mutated(START_TLS + HELLO, source),
    "the ClientHello": lambda source: START_TLS + mutated(HELLO, source),
    "AUTH in clear after START_TLS": lambda source: START_TLS + mutated(AUTH, source) + HELLO,
}


@pytest.mark.parametrize("state", STATES)
def test_bookie_survives_mutated_bytes_before_tls(bookie: Serving, authority: Authority, state: str) -> None:
    source = random.Random(state)
    for _ in range(CONNECTIONS):
        with Peer(bookie.port) as peer:
            send_and_leave(peer.socket, STATES[state](source))
    honest_works(bookie, authority, 1)


def test_bookie_survives_mutated_requests_inside_tls(bookie: Serving, authority: Authority) -> None:
    source = random.Random(20)
    frames = adds(2, 0, [b"y"] * 3) + v3_request(protocol.READ_LAC, readLacRequest=protocol.ReadLacRequest(ledgerId=2))
    context = trusting(authority)
    for _ in range(CONNECTIONS):
        with TlsPeer(bookie.port, context) as peer:
            send_and_leave(peer.socket, mutated(frames, source))
    honest_works(bookie, authority, 3)


def test_bookie_survives_mutated_records(bookie: Serving, authority: Authority) -> None:
    """The handshake is complete, and then a record is broken, as by a man in the middle."""
    source = random.Random(21)
    context = trusting(authority)
    for _ in range(CONNECTIONS):
        with Peer(bookie.port) as peer:
            peer.send(encode_start_tls(7))
            assert peer.frame() is not None
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    peer.socket.sendall(outgoing.read())
                    incoming.write(peer.socket.recv(65536))
            peer.socket.sendall(outgoing.read())
            tls.write(adds(4, 0, [b"z"]))
            send_and_leave(peer.socket, mutated(outgoing.read(), source))
    honest_works(bookie, authority, 5)
