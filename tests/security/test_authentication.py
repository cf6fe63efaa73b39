"""A bookie that authenticates its clients: by DIGEST-MD5 in AUTH messages, or by roles in certificates.

The answers before authentication are those of Apache's `AuthHandler.ServerSideHandler`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from bkspark.errors import ConfigurationError
from bkspark.security.digest_md5 import DigestClient
from bkspark.security.principal import ANONYMOUS, Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.authentication import ListenerAuthenticationOptions
from bookie_service.network.gate import BYTES_MAX, REQUESTS_MAX
from tests.bookie.serving import Serving, adds, service_options, stored
from tests.security.certificates import Authority
from tests.security.login_serving import EVERY_REQUEST, PROTOCOLS, V2_REQUESTS, Spy
from tests.security.principals import principals
from tests.security.sasl_serving import PASSWORD, USER, SaslPeer, auth_v2, auth_v3, by_digest
from tests.security.tls_serving import TlsPeer, is_closed, listener, trusting

PAYLOADS = [b"one", b"two", b"three"]


def serving(directory: Path, authentication: ListenerAuthenticationOptions, **changes: object) -> Serving:
    return Serving(service_options(directory, authentication=authentication, **changes))


@pytest.fixture
def bookie(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, by_digest(tmp_path)) as served:
        yield served


@pytest.fixture
def closed_bookie(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, by_digest(tmp_path, required=True)) as served:
        yield served


# ---- exchanges ----


@PROTOCOLS
def test_client_that_proves_its_password_is_served_and_has_a_principal(bookie: Serving, is_v3: bool) -> None:
    with bookie.connect() as peer:
        SaslPeer(peer, is_v3).authenticate()
        assert principals(bookie) == [Principal(USER, "digest")]
        assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
        assert peer.read(1, 2).body == stored(1, 2, b"three")


@PROTOCOLS
def test_requests_in_one_buffer_with_the_last_message_are_served(bookie: Serving, is_v3: bool) -> None:
    """Apache's client sends them so: it counts itself authenticated with the answer, and flushes what waited."""
    client = DigestClient(USER, PASSWORD, "cnonce")
    with bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        response = client.step(sasl.payload(b""))
        assert response is not None
        peer.send(sasl.frame(response) + sasl.frame(b"") + adds(1, 0, PAYLOADS))
        proof, last = sasl.answer(), sasl.answer()
        assert isinstance(proof, protocol.AuthMessage)
        assert isinstance(last, protocol.AuthMessage)
        client.step(proof.payload)
        assert last.authPluginName == "AuthDisabledPlugin"
        assert [reply.status for reply in peer.replies(3)] == [v2.Status.EOK] * 3


@PROTOCOLS
@pytest.mark.parametrize(
    ("user", "password"),
    [(USER, "wrong"), ("stranger", PASSWORD), ("reader", "another password")],
    ids=["wrong password", "unknown user", "user that is not allowed"],
)
def test_failed_exchange_closes_the_connection(bookie: Serving, is_v3: bool, user: str, password: str) -> None:
    """V3 is answered EUA first. `saslJaasClientAllowedIds` has Apache's default, so `reader` is refused."""
    client = DigestClient(user, password, "cnonce")
    with bookie.connect() as peer:
        sasl = SaslPeer(peer, is_v3)
        response = client.step(sasl.payload(b""))
        assert response is not None
        assert sasl.ask(response) == (v3.StatusCode.EUA if is_v3 else None)
        assert is_closed(peer.socket)
    with bookie.connect() as other:
        SaslPeer(other, is_v3).authenticate()


def test_allowed_ids_match_whole_names(tmp_path: Path) -> None:
    with serving(tmp_path, by_digest(tmp_path, allowed="read")) as bookie, bookie.connect() as peer:
        client = DigestClient("reader", "another password", "cnonce")
        sasl = SaslPeer(peer)
        response = client.step(sasl.payload(b""))
        assert response is not None
        assert sasl.ask(response) is None


def test_response_of_another_connection_proves_nothing(bookie: Serving) -> None:
    with bookie.connect() as one, bookie.connect() as other:
        response = DigestClient(USER, PASSWORD, "cnonce").step(SaslPeer(one).payload(b""))
        assert response is not None
        SaslPeer(other).payload(b"")
        assert SaslPeer(other).ask(response) is None


def test_message_of_another_plugin_is_refused_as_by_apaches_bookies(bookie: Serving) -> None:
    with bookie.connect() as peer:
        assert SaslPeer(peer, is_v3=True).ask(b"", "other") == v3.StatusCode.EUA
        SaslPeer(peer, is_v3=True).authenticate()
    with bookie.connect() as peer:
        assert SaslPeer(peer).ask(b"", "other") is None


# ---- before authentication ----


@pytest.mark.parametrize("name", EVERY_REQUEST)
def test_request_before_authentication_is_refused_as_by_apaches_bookies(bookie: Serving, name: str) -> None:
    """EUA with ids in V2, without the operation's message in V3; the connection stays open, but for V2 batch reads."""
    spy = Spy(bookie)
    with bookie.connect() as peer:
        for _ in range(2):
            peer.send(EVERY_REQUEST[name])
            if "batch" in name:
                assert is_closed(peer.socket)
                break
            if name.startswith("V2"):
                reply = peer.reply()
                assert (reply.status, reply.ledger_id, reply.entry_id) == (v2.Status.EUA, 1, 0)
            else:
                body = peer.frame()
                assert body is not None
                response = v3.decode_response(body)
                assert response.status == v3.StatusCode.EUA
                assert [field.name for field, _ in response.ListFields()] == ["header", "status"]
        else:
            SaslPeer(peer).authenticate()
        assert spy.calls() == []


@pytest.mark.parametrize("required", [False, True])
def test_start_tls_before_authentication_is_answered_that_there_is_none(tmp_path: Path, required: bool) -> None:
    """TLS needs no authentication: a client that asks for it learns that there is no TLS, and may go on in clear."""
    with serving(tmp_path, by_digest(tmp_path, required=required)) as bookie, bookie.connect() as peer:
        for txn_id in (7, 8):
            peer.send(encode_start_tls(txn_id))
            body = peer.frame()
            assert body is not None
            response = v3.decode_response(body)
            assert (response.header.operation, response.header.txnId) == (protocol.START_TLS, txn_id)
            assert response.status == v3.StatusCode.EBADREQ
        SaslPeer(peer).authenticate()
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]


def test_refusal_before_authentication_has_the_header_of_the_request(bookie: Serving) -> None:
    header = protocol.BKPacketHeader(version=1, operation=protocol.READ_ENTRY, txnId=9, priority=5)
    asked = protocol.Request(header=header, readRequest=protocol.ReadRequest(ledgerId=1, entryId=0))
    with bookie.connect() as peer:
        peer.send(v3.encode_message(asked))
        body = peer.frame()
        assert body is not None
        assert v3.decode_response(body) == protocol.Response(header=header, status=v3.StatusCode.EUA)


@pytest.mark.parametrize("name", EVERY_REQUEST)
@pytest.mark.parametrize("first", [b"", auth_v2(b""), auth_v3(b""), auth_v3(b"", "other")], ids=range(4))
def test_required_authentication_closes_at_the_first_request_and_touches_no_storage(
    closed_bookie: Serving, name: str, first: bytes
) -> None:
    """In each state before authentication; a single add after another frame takes the way of single adds otherwise."""
    spy = Spy(closed_bookie)
    with closed_bookie.connect() as peer:
        if first:
            peer.send(first)
            assert peer.frame() is not None
        peer.send(EVERY_REQUEST[name])
        while peer.frame() is not None:
            pass
    assert spy.calls() == []


def test_spy_sees_what_an_authenticated_peer_does(closed_bookie: Serving) -> None:
    """Otherwise the tests of refusals would pass with any bookie."""
    spy = Spy(closed_bookie)
    with closed_bookie.connect() as peer:
        SaslPeer(peer).authenticate()
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]
    assert "create_ledger" in spy.calls()


def test_peer_may_not_send_many_requests_or_bytes_before_it_is_authenticated(bookie: Serving) -> None:
    with bookie.connect() as peer:
        peer.send(V2_REQUESTS["read"] * (REQUESTS_MAX + 5))
        assert [peer.reply().status for _ in range(REQUESTS_MAX)] == [v2.Status.EUA] * REQUESTS_MAX
        assert is_closed(peer.socket)
    with bookie.connect() as peer:
        peer.send((1 << 20).to_bytes(4, "big") + bytes(BYTES_MAX + 4))
        assert is_closed(peer.socket)
    with bookie.connect() as peer:
        peer.send(auth_v2(bytes(BYTES_MAX)))
        assert is_closed(peer.socket)


def test_peer_that_does_not_authenticate_in_time_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path, by_digest(tmp_path, timeout_s=0.2)) as bookie, bookie.connect() as honest:
        SaslPeer(honest).authenticate()
        with bookie.connect() as silent:
            assert is_closed(silent.socket)
        with bookie.connect() as half:
            SaslPeer(half).payload(b"")
            assert is_closed(half.socket)
        assert honest.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3


def test_address_has_a_limit_of_unauthenticated_connections_and_the_oldest_is_closed(tmp_path: Path) -> None:
    options = by_digest(tmp_path, waiting_per_address_max=3)
    with serving(tmp_path, options) as bookie, bookie.connect() as honest:
        SaslPeer(honest).authenticate()
        peers = [bookie.connect() for _ in range(4)]
        assert is_closed(peers[0].socket)
        for peer in peers[1:]:
            SaslPeer(peer).authenticate()
        assert honest.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
        for peer in peers:
            peer.close()


def test_mutated_messages_end_their_own_connection_only(bookie: Serving, caplog: pytest.LogCaptureFixture) -> None:
    """In each state of a connection: new, challenged, authenticated."""
    chance = random.Random(8)
    with bookie.connect() as honest:
        SaslPeer(honest).authenticate()
        for number in range(300):
            with bookie.connect() as peer:
                sasl = SaslPeer(peer, is_v3=bool(number & 1))
                client = DigestClient(USER, PASSWORD, "cnonce")
                state = number % 3
                message = b""
                if state:
                    message = client.step(sasl.payload(b"")) or b""
                if state == 2:
                    sasl.payload(message)
                frame = bytearray(sasl.frame(message))
                for _ in range(chance.randrange(1, 4)):
                    at = chance.randrange(4, len(frame))
                    frame[at : at + chance.randrange(2)] = chance.randbytes(chance.randrange(3))
                frame[:4] = (len(frame) - 4).to_bytes(4, "big")
                peer.send(frame)
                peer.socket.shutdown(1)
                while peer.socket.recv(4096):
                    pass
            assert honest.add(1, number, [b"x"]) == [v2.Status.EOK]
    assert "defect" not in caplog.text


def test_neither_passwords_nor_responses_are_logged(bookie: Serving, caplog: pytest.LogCaptureFixture) -> None:
    client = DigestClient(USER, "wrong password", "cnonce")
    with bookie.connect() as peer:
        sasl = SaslPeer(peer)
        response = client.step(sasl.payload(b""))
        assert response is not None
        assert sasl.ask(response) is None
    assert "its authentication failed: the user is unknown, or the password is wrong" in caplog.text
    assert PASSWORD not in caplog.text
    assert "wrong password" not in caplog.text
    assert "cnonce" not in caplog.text


# ---- with TLS ----


@PROTOCOLS
def test_first_message_in_clear_after_start_tls_is_answered_inside_tls(tmp_path: Path, is_v3: bool) -> None:
    """Apache's clients with both send START_TLS and the first AUTH message in one burst."""
    authority = Authority(tmp_path)
    tls = listener(authority.issue("bookie"), required=True)
    client = DigestClient(USER, PASSWORD, "cnonce")
    first = (auth_v3 if is_v3 else auth_v2)(b"")
    served = serving(tmp_path, by_digest(tmp_path, required=True), tls=tls)
    with served as bookie, TlsPeer(bookie.port, trusting(authority), first) as peer:
        sasl = SaslPeer(peer, is_v3)
        challenge = sasl.answer()
        assert isinstance(challenge, protocol.AuthMessage)
        response = client.step(challenge.payload)
        assert response is not None
        client.step(sasl.payload(response))
        assert client.is_complete
        assert principals(bookie) == [Principal(USER, "digest")]
        assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3


@PROTOCOLS
def test_bookie_that_demands_tls_takes_no_authentication_in_clear(tmp_path: Path, is_v3: bool) -> None:
    authority = Authority(tmp_path)
    tls = listener(authority.issue("bookie"), required=True)
    with serving(tmp_path, by_digest(tmp_path), tls=tls) as bookie, bookie.connect() as peer:
        assert SaslPeer(peer, is_v3).ask(b"") == (v3.StatusCode.EUA if is_v3 else None)
        assert is_closed(peer.socket)


@pytest.mark.parametrize("name", ["V2 add", "V3 add"])
def test_add_in_clear_after_an_answered_auth_message_is_refused_where_tls_is_demanded(
    tmp_path: Path, name: str
) -> None:
    """A single add in a buffer of its own has a shorter way, which must not bypass `tlsRequired`."""
    authority = Authority(tmp_path)
    tls = listener(authority.issue("bookie"), required=True)
    with Serving(service_options(tmp_path, tls=tls)) as bookie, bookie.connect() as peer:
        spy = Spy(bookie)
        peer.send(auth_v3(b""))
        assert peer.frame() is not None
        peer.send(EVERY_REQUEST[name])
        while peer.frame() is not None:
            pass
        assert spy.calls() == []


def test_certificate_does_not_replace_sasl(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = listener(authority.issue("bookie"), authority)
    context = trusting(authority, authority.issue("writer"))
    with serving(tmp_path, by_digest(tmp_path), tls=tls) as bookie, TlsPeer(bookie.port, context) as peer:
        assert peer.read(1, 0).status == v2.Status.EUA
        SaslPeer(peer).authenticate()
        assert peer.read(1, 0).status == v2.Status.ENOLEDGER
        assert principals(bookie) == [Principal(USER, "digest")]


# ---- certificates in place of AUTH messages ----


@pytest.mark.parametrize(
    ("unit", "is_served"),
    [
        ("0:writer", True),
        ("1:x;0:writer,other", True),
        ("0:other,writer", False),
        ("0:Writer", False),
        ("1:writer", False),
        ("writer", False),
        ("", False),
    ],
)
def test_first_role_of_the_certificate_decides(tmp_path: Path, unit: str, is_served: bool) -> None:
    """`BookieAuthZFactory` compares the first role of OU code 0, exactly."""
    authority = Authority(tmp_path)
    leaf = authority.issue("writer", unit=unit)
    roles = ListenerAuthenticationOptions(roles=("writer", "admin"))
    with serving(tmp_path, roles, tls=listener(authority.issue("bookie"), authority)) as bookie:
        spy = Spy(bookie)
        with TlsPeer(bookie.port, trusting(authority, leaf)) as peer:
            expected = v2.Status.EOK if is_served else v2.Status.EUA
            assert peer.add(1, 0, [b"x"]) == [expected]
            assert peer.read(1, 0).status == expected
        with bookie.connect() as peer:
            assert peer.read(1, 0).status == v2.Status.EUA
            assert SaslPeer(peer).ask(b"", "BookieAuthZFactory") is None
        assert bool(spy.calls()) == is_served


def test_role_that_is_not_authorized_closes_where_authentication_is_required(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    leaf = authority.issue("writer", unit="0:reader")
    roles = ListenerAuthenticationOptions(roles=("writer",), required=True)
    served = serving(tmp_path, roles, tls=listener(authority.issue("bookie"), authority))
    with served as bookie, TlsPeer(bookie.port, trusting(authority, leaf)) as peer:
        assert peer.add(1, 0, [b"x"]) == [v2.Status.EUA]
        assert is_closed(peer.socket)


def test_required_authentication_without_a_plugin_demands_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    options = ListenerAuthenticationOptions(required=True)
    with serving(tmp_path, options, tls=listener(authority.issue("bookie"), authority)) as bookie:
        with bookie.connect() as peer:
            assert peer.read(1, 0).status == v2.Status.EUA
            assert is_closed(peer.socket)
        with TlsPeer(bookie.port, trusting(authority, authority.issue("writer"))) as peer:
            assert peer.add(1, 0, [b"x"]) == [v2.Status.EOK]
            assert principals(bookie) == [Principal("CN=writer", "certificate")]
        unnamed = authority.issue_to("unnamed", x509.Name([]), [x509.SubjectAlternativeName([x509.DNSName("writer")])])
        with TlsPeer(bookie.port, trusting(authority, unnamed)) as peer:
            assert peer.add(1, 1, [b"x"]) == [v2.Status.EOK], "any certificate of the trust store is enough"


def test_bookie_without_authentication_answers_auth_as_apaches_do(tmp_path: Path) -> None:
    with Serving(service_options(tmp_path)) as bookie, bookie.connect() as peer:
        answer = SaslPeer(peer).ask(b"")
        assert isinstance(answer, protocol.AuthMessage)
        assert answer.authPluginName == "AuthDisabledPlugin"
        assert principals(bookie) == [ANONYMOUS]


def test_bookie_does_not_start_without_its_credentials(tmp_path: Path) -> None:
    options = by_digest(tmp_path)
    (tmp_path / "bookie.jaas").write_text("Bookie { x required; };")
    with pytest.raises(ConfigurationError, match="must have one login module"), serving(tmp_path, options):
        pass
