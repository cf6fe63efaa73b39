"""Messages of a login in a wrong order, twice, after its end, and mixed with requests and START_TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkspark.security.digest_md5 import DigestClient
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.start_tls import encode_start_tls
from tests.bookie.serving import Peer, Serving, adds, service_options
from tests.security.certificates import Authority
from tests.security.principals import principals
from tests.security.sasl_serving import PASSWORD, USER, USERS, SaslPeer, auth_v2, auth_v3, by_digest
from tests.security.tls_serving import TlsPeer, is_closed, listener, trusting

PROTOCOLS = pytest.mark.parametrize("is_v3", [False, True], ids=["V2", "V3"])


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Serving]:
    with Serving(service_options(tmp_path, authentication=by_digest(tmp_path, allowed=".*"))) as served:
        yield served
    assert served.failure is None


def response(challenge: bytes, user: str = USER, password: str = PASSWORD) -> bytes:
    found = DigestClient(user, password, "cnonce").step(challenge)
    assert found is not None
    return found


def never_proves(bookie: Serving, is_v3: bool, send: Callable[[SaslPeer], None]) -> None:
    """Check that a login fails, closes its connection, and gives no principal; and that another client can log in."""
    with bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        send(sasl)
        answer = sasl.answer()
        assert answer == (v3.StatusCode.EUA if is_v3 else None)
        assert is_closed(peer.socket)
    with bookie.connect() as peer:
        SaslPeer(peer, is_v3).authenticate()
        assert Principal(USER, "digest") in principals(bookie)


@PROTOCOLS
def test_response_before_any_challenge_proves_nothing(bookie: Serving, is_v3: bool) -> None:
    with bookie.connect() as other:
        early = response(SaslPeer(other).payload(b""))
    never_proves(bookie, is_v3, lambda sasl: sasl.peer.send(sasl.frame(early)))


@PROTOCOLS
def test_second_first_message_proves_nothing(bookie: Serving, is_v3: bool) -> None:
    def send(sasl: SaslPeer) -> None:
        sasl.payload(b"")
        sasl.peer.send(sasl.frame(b""))

    never_proves(bookie, is_v3, send)


@PROTOCOLS
def test_proof_of_the_server_sent_back_proves_nothing(bookie: Serving, is_v3: bool) -> None:
    """A client that answers the challenge with a challenge, or with `rspauth`, has no password."""

    def send(sasl: SaslPeer) -> None:
        challenge = sasl.payload(b"")
        sasl.peer.send(sasl.frame(challenge))

    never_proves(bookie, is_v3, send)
    never_proves(bookie, is_v3, lambda sasl: sasl.peer.send(sasl.frame(b"rspauth=0123456789abcdef0123456789abcdef")))


@PROTOCOLS
def test_responses_of_two_users_in_one_burst_make_the_first_one_the_principal(bookie: Serving, is_v3: bool) -> None:
    """The second one comes after the login, and is answered as Apache's bookies answer it."""
    with bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        challenge = sasl.payload(b"")
        peer.send(sasl.frame(response(challenge, "reader", USERS["reader"])) + sasl.frame(response(challenge)))
        first, second = sasl.answer(), sasl.answer()
        assert isinstance(first, protocol.AuthMessage)
        assert isinstance(second, protocol.AuthMessage)
        assert (first.authPluginName, second.authPluginName) == ("sasl", "AuthDisabledPlugin")
        assert principals(bookie) == [Principal("reader", "digest")]


@PROTOCOLS
def test_login_after_a_login_changes_nothing(bookie: Serving, is_v3: bool) -> None:
    with bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        sasl.authenticate("reader", USERS["reader"])
        for payload in (b"", response(b'realm="bookkeeper",nonce="x",qop="auth",algorithm=md5-sess'), b"\xff" * 100):
            answer = sasl.ask(payload)
            assert isinstance(answer, protocol.AuthMessage)
            assert (answer.authPluginName, answer.payload) == ("AuthDisabledPlugin", b"")
        assert principals(bookie) == [Principal("reader", "digest")]
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]


def test_messages_of_one_login_may_come_in_both_protocols(bookie: Serving) -> None:
    with bookie.connect() as peer:
        challenge = SaslPeer(peer, is_v3=True).payload(b"")
        proof = SaslPeer(peer).payload(response(challenge))
        assert proof.startswith(b"rspauth=")
        assert principals(bookie) == [Principal(USER, "digest")]


@PROTOCOLS
def test_request_between_the_messages_of_a_login_is_refused_and_the_login_goes_on(bookie: Serving, is_v3: bool) -> None:
    with bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        challenge = sasl.payload(b"")
        peer.send(adds(1, 0, [b"x"]))
        assert peer.reply().status == v2.Status.EUA
        assert principals(bookie) == [ANONYMOUS]
        sasl.payload(response(challenge))
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]


@pytest.mark.parametrize("second", ["START_TLS", "ADD", "AUTH of another protocol"])
def test_start_tls_twice_in_clear_closes_the_connection(tmp_path: Path, second: str) -> None:
    """Only AUTH messages may follow START_TLS in clear; they are answered inside TLS, in either protocol."""
    authority = Authority(tmp_path)
    follows = {"START_TLS": encode_start_tls(8), "ADD": adds(1, 0, [b"x"]), "AUTH of another protocol": auth_v2(b"")}
    with Serving(service_options(tmp_path, tls=listener(authority.issue("bookie")))) as bookie:
        if second == "AUTH of another protocol":
            with TlsPeer(bookie.port, trusting(authority), first=auth_v3(b"") + follows[second]) as secured:
                bodies = secured.frame(), secured.frame()
                assert None not in bodies
            return
        for is_one_burst in (True, False):
            with bookie.connect() as peer:
                _send(peer, encode_start_tls(7), follows[second], is_one_burst=is_one_burst)
                peer.frame()
                assert is_closed(peer.socket)


def _send(peer: Peer, first: bytes, second: bytes, *, is_one_burst: bool) -> None:
    if is_one_burst:
        peer.send(first + second)
    else:
        peer.send(first)
        peer.send(second)
