"""START_TLS and the first AUTH message in each order: Apache's client writes them independently of each other.

Its V2 client takes the answer to START_TLS for V3 only as long as nothing in V2 has come. So the bookie must not answer
an AUTH message in clear while START_TLS may still follow it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bkspark.security.digest_md5 import DigestClient, DigestServer
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network import gate
from bookie_service.network.connection import Connection
from tests.bookie.serving import KEY, Peer, Serving, adds, service_options
from tests.bookie.v3_peer import add_frames
from tests.polling import wait_until
from tests.security.certificates import Authority
from tests.security.login_serving import EVERY_REQUEST, PROTOCOLS, Spy
from tests.security.principals import principals
from tests.security.sasl_serving import PASSWORD, USER, USERS, SaslPeer, auth_v2, auth_v3, by_digest
from tests.security.tls_serving import is_closed, listener, trusting

TLS_REQUIRED = pytest.mark.parametrize("tls_required", [False, True], ids=["TLS optional", "TLS required"])
SASL = pytest.mark.parametrize("with_sasl", [False, True], ids=["no SASL", "SASL"])
START_TLS = encode_start_tls(7)
LONG_S = 60.0
"""Longer than a test takes."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bookie wait for START_TLS as long as a slow test needs."""
    monkeypatch.setattr(gate, "START_TLS_WAIT_S", LONG_S)
    monkeypatch.setattr(gate, "REQUIRED_START_TLS_WAIT_S", LONG_S)


def bookie_of(directory: Path, authority: Authority, with_sasl: bool, tls_required: bool) -> Serving:
    tls = listener(authority.issue("bookie"), required=tls_required)
    authentication = by_digest(directory, required=True) if with_sasl else None
    return Serving(service_options(directory, tls=tls, authentication=authentication))


def auth(is_v3: bool, payload: bytes = b"") -> bytes:
    return (auth_v3 if is_v3 else auth_v2)(payload)


def connections(bookie: Serving) -> list[Connection]:
    return bookie.call(lambda: list(bookie.service.connections.all()))  # type: ignore[arg-type]


def wait_until_received(bookie: Serving, receptions: int = 1) -> None:
    """Wait until the only connection has received something this often, and served it or kept it."""
    wait_until(
        lambda: [each._deadlines.receptions for each in connections(bookie)] == [receptions], "the bytes to arrive", 20
    )


def secure(peer: Peer, authority: Authority) -> None:
    """Take the answer to START_TLS, which must be the first one, and go on inside TLS."""
    body = peer.frame()
    assert body is not None, "the bookie closed the connection"
    assert body[0] == v3.FIRST_BYTE, f"the first answer is no answer to START_TLS: {body!r}"
    answer = v3.decode_response(body)
    assert (answer.header.operation, answer.status) == (protocol.START_TLS, v3.StatusCode.EOK)
    peer.go_on_over(trusting(authority).wrap_socket(peer.socket, server_hostname="localhost"))


ORDERS = (
    "START_TLS and AUTH together",
    "START_TLS and the beginning of AUTH together",
    "START_TLS before AUTH",
    "AUTH and START_TLS together",
    "AUTH before START_TLS",
    "AUTH before START_TLS in pieces",
)


def send_in_order(order: str, bookie: Serving, peer: Peer, first: bytes) -> None:
    match order:
        case "START_TLS and AUTH together":
            peer.send(START_TLS + first)
        case "START_TLS and the beginning of AUTH together":
            peer.send(START_TLS + first[:5])
            wait_until_received(bookie)
            peer.send(first[5:])
        case "START_TLS before AUTH":
            peer.send(START_TLS)
            wait_until_received(bookie)
            peer.send(first)
        case "AUTH and START_TLS together":
            peer.send(first + START_TLS)
        case "AUTH before START_TLS":
            peer.send(first)
            wait_until_received(bookie)
            peer.send(START_TLS)
        case "AUTH before START_TLS in pieces":
            peer.send(first[:5])
            wait_until_received(bookie)
            peer.send(first[5:] + START_TLS[:3])
            wait_until_received(bookie, 2)
            peer.send(START_TLS[3:9])
            wait_until_received(bookie, 3)
            peer.send(START_TLS[9:])


@PROTOCOLS
@TLS_REQUIRED
@SASL
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.usefixtures("patient")
def test_start_tls_is_answered_first_and_auth_inside_tls_in_every_order(
    tmp_path: Path, authority: Authority, is_v3: bool, tls_required: bool, with_sasl: bool, order: str
) -> None:
    with bookie_of(tmp_path, authority, with_sasl, tls_required) as bookie, bookie.connect() as peer:
        send_in_order(order, bookie, peer, auth(is_v3))
        secure(peer, authority)
        sasl = SaslPeer(peer, is_v3)
        answer = sasl.answer()
        assert isinstance(answer, protocol.AuthMessage)
        if with_sasl:
            client = DigestClient(USER, PASSWORD, "cnonce")
            response = client.step(answer.payload)
            assert response is not None
            client.step(sasl.payload(response))
            assert client.is_complete
        else:
            assert answer.authPluginName == "AuthDisabledPlugin"
        assert principals(bookie) == [Principal(USER, "digest") if with_sasl else ANONYMOUS]
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]


@PROTOCOLS
@pytest.mark.usefixtures("hurried")
def test_auth_message_without_start_tls_is_refused_where_tls_is_required(
    tmp_path: Path, authority: Authority, is_v3: bool
) -> None:
    with bookie_of(tmp_path, authority, with_sasl=True, tls_required=True) as bookie, bookie.connect() as peer:
        spy = Spy(bookie)
        assert SaslPeer(peer, is_v3).ask(b"") == (v3.StatusCode.EUA if is_v3 else None)
        assert is_closed(peer.socket)
        assert spy.calls() == []


@PROTOCOLS
@pytest.mark.usefixtures("hurried")
def test_defect_in_the_answer_to_a_message_that_waited_closes_its_connection_only(
    tmp_path: Path, authority: Authority, is_v3: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("planted")

    with bookie_of(tmp_path, authority, with_sasl=True, tls_required=False) as bookie:
        with bookie.connect() as peer, monkeypatch.context() as planting:
            planting.setattr(DigestServer, "step", fail)
            peer.send(auth(is_v3))
            assert is_closed(peer.socket)
        with bookie.connect() as peer:
            SaslPeer(peer, is_v3).authenticate()


@PROTOCOLS
@SASL
@pytest.mark.usefixtures("hurried")
def test_auth_message_without_start_tls_is_answered_in_clear_where_tls_is_optional(
    tmp_path: Path, authority: Authority, is_v3: bool, with_sasl: bool
) -> None:
    with bookie_of(tmp_path, authority, with_sasl, tls_required=False) as bookie, bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        if with_sasl:
            sasl.authenticate()
        else:
            answer = sasl.ask(b"")
            assert isinstance(answer, protocol.AuthMessage)
            assert answer.authPluginName == "AuthDisabledPlugin"
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]


@PROTOCOLS
@pytest.mark.usefixtures("hurried")
def test_start_tls_long_after_an_answered_auth_message_still_begins_tls(
    tmp_path: Path, authority: Authority, is_v3: bool
) -> None:
    """The exchange goes on inside TLS."""
    with bookie_of(tmp_path, authority, with_sasl=True, tls_required=False) as bookie, bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        client = DigestClient(USER, PASSWORD, "cnonce")
        response = client.step(sasl.payload(b""))
        peer.send(START_TLS)
        secure(peer, authority)
        assert response is not None
        client.step(sasl.payload(response))
        assert client.is_complete
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]


@pytest.mark.usefixtures("hurried")
def test_login_in_clear_counts_for_nothing_inside_tls(tmp_path: Path, authority: Authority) -> None:
    """Otherwise a man in the middle who logs in before START_TLS gives its own name to the client that goes on."""
    authentication = by_digest(tmp_path, allowed=".*", required=True)
    tls = listener(authority.issue("bookie"))
    with Serving(service_options(tmp_path, tls=tls, authentication=authentication)) as bookie:
        for logs_in in (False, True):
            with bookie.connect() as peer:
                SaslPeer(peer, is_v3=True).authenticate("reader", USERS["reader"])
                # A request that is served at once, without the way on which a closed gate is found.
                peer.send(lone_add(0))
                assert answered_status(peer) == v3.StatusCode.EOK
                peer.send(START_TLS)
                secure(peer, authority)
                assert principals(bookie) == [ANONYMOUS]
                if logs_in:
                    SaslPeer(peer, is_v3=True).authenticate()
                    assert principals(bookie) == [Principal(USER, "digest")]
                peer.send(lone_add(1))
                assert answered_status(peer) == (v3.StatusCode.EOK if logs_in else v3.StatusCode.EUA)
            wait_until(lambda: not connections(bookie), "the bookie to notice that the peer has left")


def lone_add(entry_id: int) -> bytes:
    return add_frames(1, entry_id, [b"x"], 7, masterKey=KEY)


def answered_status(peer: Peer) -> int:
    body = peer.frame()
    assert body is not None, "the bookie closed the connection"
    return int(v3.decode_response(body).status)


@pytest.mark.usefixtures("patient")
def test_request_that_follows_a_waiting_auth_message_ends_the_wait(tmp_path: Path, authority: Authority) -> None:
    """A request other than START_TLS shows that none comes; answers keep the order of the requests."""
    with bookie_of(tmp_path, authority, with_sasl=False, tls_required=False) as bookie, bookie.connect() as peer:
        peer.send(auth_v2(b"") + adds(1, 0, [b"one"]))
        answer = SaslPeer(peer).answer()
        assert isinstance(answer, protocol.AuthMessage)
        assert peer.reply().status == v2.Status.EOK


@PROTOCOLS
@pytest.mark.usefixtures("patient")
def test_second_auth_message_in_clear_ends_the_wait(tmp_path: Path, authority: Authority, is_v3: bool) -> None:
    with bookie_of(tmp_path, authority, with_sasl=True, tls_required=True) as bookie, bookie.connect() as peer:
        peer.send(auth(is_v3) * 2)
        assert SaslPeer(peer, is_v3).answer() == (v3.StatusCode.EUA if is_v3 else None)
        assert is_closed(peer.socket)


@PROTOCOLS
@SASL
@pytest.mark.usefixtures("patient")
def test_peer_that_sends_no_more_gets_the_answer_to_its_auth_message(
    tmp_path: Path, authority: Authority, is_v3: bool, with_sasl: bool
) -> None:
    with bookie_of(tmp_path, authority, with_sasl, tls_required=False) as bookie, bookie.connect() as peer:
        peer.send(auth(is_v3))
        peer.socket.shutdown(1)
        assert isinstance(SaslPeer(peer, is_v3).answer(), protocol.AuthMessage)
        assert is_closed(peer.socket)


@pytest.mark.parametrize("name", [name for name in EVERY_REQUEST if "START_TLS" not in name])
@PROTOCOLS
@pytest.mark.usefixtures("patient")
def test_request_after_a_waiting_auth_message_touches_no_storage(
    tmp_path: Path, authority: Authority, name: str, is_v3: bool
) -> None:
    with bookie_of(tmp_path, authority, with_sasl=True, tls_required=True) as bookie, bookie.connect() as peer:
        spy = Spy(bookie)
        peer.send(auth(is_v3) + EVERY_REQUEST[name])
        while (body := peer.frame()) is not None:
            assert body[0] != v3.FIRST_BYTE or v3.decode_response(body).status == v3.StatusCode.EUA
        assert spy.calls() == []


@pytest.fixture
def disconnected(tmp_path: Path, authority: Authority) -> Iterator[Serving]:
    with bookie_of(tmp_path, authority, with_sasl=True, tls_required=False) as bookie:
        yield bookie
        assert bookie.failure is None


@pytest.mark.usefixtures("hurried")
def test_peer_that_leaves_while_its_auth_message_waits_costs_nothing(disconnected: Serving) -> None:
    for _ in range(20):
        with disconnected.connect() as peer:
            peer.send(auth_v2(b""))
    wait_until(lambda: not connections(disconnected), "the connections to be closed")
    with disconnected.connect() as peer:
        SaslPeer(peer).authenticate()
