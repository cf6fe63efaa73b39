"""TLS between our client and our bookie, and against peers that break its rules. The bookie runs in this process."""

from __future__ import annotations

import gc
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509

from bkspark.errors import AuthenticationFailed, BookieUnavailable, TlsFailed
from bkspark.net.pool import BookiePool
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.adds import WireProtocol
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.tls_handshakes import ListenerTls
from bookie_service.network.tls_socket import CLEAR_MESSAGES_MAX, TlsSocket
from tests.bookie.serving import DIGEST, KEY, Peer, Serving, adds, stored
from tests.bookie.simulated_connections import ServedBookie
from tests.polling import wait_until
from tests.security.authorized import ask
from tests.security.certificates import UNREADABLE_NAME, Authority, Leaf
from tests.security.peers import Middle, StandIn
from tests.security.tls_serving import (
    ID,
    TlsPeer,
    client_options,
    is_closed,
    listener,
    read_all,
    serving,
    trusting,
    v3_request,
    with_pool,
)

PAYLOADS = [b"one", b"two", b"three"]


@pytest.fixture
def bookie(tmp_path: Path, leaf: Leaf) -> Iterator[Serving]:
    with serving(tmp_path, listener(leaf)) as served:
        yield served


@pytest.mark.parametrize("wire_protocol", list(WireProtocol))
def test_our_client_reads_inside_tls_what_was_added_inside_tls(
    bookie: Serving, authority: Authority, wire_protocol: WireProtocol
) -> None:
    with TlsPeer(bookie.port, trusting(authority)) as peer:
        assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
        assert peer.read(1, 2).body == stored(1, 2, b"three")
    assert with_pool(bookie.port, client_options(authority), read_all, wire_protocol) == PAYLOADS


def test_large_batches_pass_through_tls_in_both_directions(bookie: Serving, authority: Authority) -> None:
    """They are many records long, so records are cut by every receive and by every send."""
    payloads = [bytes([number]) * 300_000 for number in range(40)]
    with TlsPeer(bookie.port, trusting(authority)) as peer:
        assert peer.add(1, 0, payloads) == [v2.Status.EOK] * len(payloads)
        for entry_id in range(len(payloads)):
            peer.send(v2.encode_reads(1, _ids(entry_id), 0, None))
        for entry_id, payload in enumerate(payloads):
            assert peer.reply().body == stored(1, entry_id, payload)


def test_bookie_with_tls_serves_clear_clients_too_as_apaches_do(bookie: Serving) -> None:
    with bookie.connect() as peer:
        assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
    assert with_pool(bookie.port, None, read_all) == PAYLOADS


def test_second_start_tls_inside_tls_is_refused_and_the_connection_goes_on(
    bookie: Serving, authority: Authority
) -> None:
    with TlsPeer(bookie.port, trusting(authority)) as peer:
        peer.send(encode_start_tls(8))
        body = peer.frame()
        assert body is not None
        assert v3.decode_response(body).status == v3.StatusCode.EBADREQ
        assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3


def test_memory_of_closed_connections_is_released(bookie: Serving, authority: Authority) -> None:
    """Also of those that wait for more bytes in the middle of a handshake, or of a record."""
    context = trusting(authority)
    for _ in range(5):
        with TlsPeer(bookie.port, context) as peer:
            peer.add(1, 0, PAYLOADS)
        with Peer(bookie.port) as half:
            half.send(encode_start_tls(7))
            assert half.frame() is not None
            half.send(b"\x16\x03\x01")
    wait_until(lambda: not bookie.service.connection_count, "the connections to be closed")

    def left() -> int:
        gc.collect()
        return sum(isinstance(each, TlsSocket) for each in gc.get_objects())

    # `Turns.note` remembers the last connection that was served as its requests came.
    wait_until(lambda: bookie.call(left) <= 1, "the memory to be free")


# ---- certificates ----


def test_client_with_a_certificate_is_served_where_one_is_required(tmp_path: Path, authority: Authority) -> None:
    writer = authority.issue("writer", unit="0:writer;1:test")
    with serving(tmp_path, listener(authority.issue("bookie"), authority)) as bookie:
        with TlsPeer(bookie.port, trusting(authority, writer)) as peer:
            assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
        assert with_pool(bookie.port, client_options(authority, writer), read_all) == PAYLOADS


@pytest.mark.parametrize("kind", ["none", "of another authority", "expired"])
def test_client_without_a_valid_certificate_is_refused(tmp_path: Path, authority: Authority, kind: str) -> None:
    shown = {
        "none": None,
        "of another authority": Authority(tmp_path, "other").issue("stranger"),
        "expired": authority.issue("old", days=-1),
    }[kind]
    context = trusting(authority, shown)
    with serving(tmp_path, listener(authority.issue("bookie"), authority)) as bookie:
        # In TLS 1.3 the client learns it from its first read.
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate|unknown ca"), TlsPeer(bookie.port, context) as peer:
            peer.add(1, 0, PAYLOADS)
        with bookie.connect() as peer:
            assert peer.read(1, 0).status == v2.Status.ENOLEDGER


def test_certificate_that_cannot_be_read_closes_its_own_connection_only(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The authority vouches for it, OpenSSL takes it, and its names are not text."""
    strange = authority.issue_to("strange", x509.Name([]), [UNREADABLE_NAME])
    with serving(tmp_path, listener(authority.issue("bookie"), authority)) as bookie:
        with TlsPeer(bookie.port, trusting(authority, strange)) as peer:
            assert is_closed(peer.socket)
        with TlsPeer(bookie.port, trusting(authority, authority.issue("client"))) as peer:
            assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
    assert "the peer's certificate cannot be read" in caplog.text


def test_our_client_without_the_required_certificate_gets_a_clear_error(tmp_path: Path, authority: Authority) -> None:
    served = serving(tmp_path, listener(authority.issue("bookie"), authority))
    said = r"the bookie demands a certificate from this client \(certificate required\): tlsKeyStore and "
    with served as bookie, pytest.raises(TlsFailed, match=said) as caught:
        with_pool(bookie.port, client_options(authority), read_all)
    assert "_ssl.c" not in str(caught.value)


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_a_refused_certificate_is_a_clear_error_on_both_sides(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    """It was an alert with OpenSSL's name and place, and did not say whose certificate was refused."""
    stranger = Authority(tmp_path, "other").issue("stranger")
    with serving(tmp_path, listener(authority.issue("bookie"), authority)) as bookie:
        refused = r"the bookie refuses the certificate of this client \(unknown ca\): tlsKeyStore"
        with pytest.raises(TlsFailed, match=refused) as caught:
            with_pool(bookie.port, client_options(authority, stranger, protocols=(protocol,)), read_all)
        assert "_ssl.c" not in str(caught.value)
        said = "the peer's certificate is refused: unable to get local issuer certificate"
        wait_until(lambda: said in caplog.text, "the bookie to log why it refuses")
        with pytest.raises(TlsFailed, match="its certificate is refused"):
            with_pool(bookie.port, client_options(Authority(tmp_path, "third"), protocols=(protocol,)), read_all)
        said = "the peer refuses the certificate of this bookie (unknown ca)"
        wait_until(lambda: said in caplog.text, "the bookie to log why the client left")


@pytest.mark.parametrize(
    ("host", "days", "message"),
    [
        ("elsewhere.example", 10, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ("127.0.0.1", 10, None),
    ],
)
def test_client_checks_the_name_in_the_certificate(
    tmp_path: Path, authority: Authority, host: str, days: int, message: str | None
) -> None:
    leaf = authority.issue("bookie", [host], days=days)
    with serving(tmp_path, listener(leaf)) as bookie:
        with bookie.connect() as peer:
            peer.add(1, 0, PAYLOADS)
        if message is None:
            assert with_pool(bookie.port, client_options(authority), read_all) == PAYLOADS
            return
        with pytest.raises(TlsFailed, match=message):
            with_pool(bookie.port, client_options(authority), read_all)
        unchecked = client_options(authority, verify_host_name=False)
        assert with_pool(bookie.port, unchecked, read_all) == PAYLOADS


def test_client_refuses_a_bookie_of_another_authority(tmp_path: Path, bookie: Serving) -> None:
    with pytest.raises(TlsFailed, match="its certificate is refused: unable to get local issuer certificate"):
        with_pool(bookie.port, client_options(Authority(tmp_path, "other")), read_all)


def test_client_refuses_an_expired_certificate_even_without_host_names(tmp_path: Path, authority: Authority) -> None:
    expired = "its certificate is refused: certificate has expired"
    with StandIn(authority.issue("bookie", days=-1)) as port, pytest.raises(TlsFailed, match=expired):
        with_pool(port, client_options(authority, verify_host_name=False), read_all)


@pytest.mark.parametrize("wire_protocol", list(WireProtocol))
def test_bookie_of_apaches_that_refuses_the_clients_role_is_a_clear_error(
    authority: Authority, leaf: Leaf, wire_protocol: WireProtocol
) -> None:
    """It says so in V3, to a V2 client, too, and leaves the connection open (section 2.1 of the reference)."""
    with StandIn(leaf, refuses=True) as port, pytest.raises(AuthenticationFailed, match="refuses this client's certif"):
        with_pool(port, client_options(authority), read_all, wire_protocol)


def test_self_signed_certificate_in_the_trust_store_is_an_anchor_as_in_java(
    tmp_path: Path, authority: Authority, leaf: Leaf, bookie: Serving
) -> None:
    """A certificate that no authority issued, trusted by itself."""
    with bookie.connect() as peer:
        peer.add(1, 0, PAYLOADS)
    _, chain = leaf.pem()
    assert with_pool(bookie.port, replace(client_options(authority), trust_store=chain), read_all) == PAYLOADS


# ---- fail closed ----


def test_client_with_tls_sends_only_start_tls_to_a_bookie_without(tmp_path: Path, authority: Authority) -> None:
    with serving(tmp_path, None) as bookie:
        with pytest.raises(TlsFailed, match="it has no TLS, and this client is configured to use nothing else"):
            with_pool(bookie.port, client_options(authority), read_all)
        with bookie.connect() as peer:
            peer.send(encode_start_tls(7))
            body = peer.frame()
            assert body is not None
            assert v3.decode_response(body).status == v3.StatusCode.EBADREQ
            assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3, "the connection stays open, as at Apache's"


_ANSWERS = {
    "EBADREQ": protocol.Response(header=v3.header(protocol.START_TLS, 0), status=v3.StatusCode.EBADREQ),
    "EUA": protocol.Response(header=v3.header(protocol.START_TLS, 0), status=v3.StatusCode.EUA),
    "the answer to another request": protocol.Response(header=v3.header(protocol.AUTH, 0), status=v3.StatusCode.EOK),
    "EOK without the message": protocol.Response(header=v3.header(protocol.START_TLS, 0), status=v3.StatusCode.EOK),
}


_REASONS = {
    "EBADREQ": "it has no TLS, and this client is configured to use nothing else",
    "EUA": "it answers START_TLS with EUA",
    "the answer to another request": "it answers START_TLS with the response to another request",
    "EOK without the message": "its answer to START_TLS lacks the message",
    "clear bytes after EOK": "it sends bytes in clear after its answer to START_TLS",
    "no TLS after EOK": "the handshake failed",
    "nothing after EOK": "it did not complete the handshake in 0.3 s",
    "nothing": "it did not answer START_TLS in 0.3 s",
    "garbage": "it answers START_TLS with a frame of",
}


@pytest.mark.parametrize("answer", _REASONS)
def test_man_in_the_middle_who_strips_start_tls_sees_no_request(
    authority: Authority, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    """Answers in place of the bookie, and records what the client sends in clear."""
    started = protocol.Response(
        header=v3.header(protocol.START_TLS, 0), status=v3.StatusCode.EOK, startTLSResponse=protocol.StartTLSResponse()
    )
    if answer in _ANSWERS:
        sent = v3.encode_message(_ANSWERS[answer])
    elif answer == "clear bytes after EOK":
        sent = v3.encode_message(started) * 2
    elif answer.endswith("after EOK"):
        sent = v3.encode_message(started)
    else:
        sent = b"" if answer == "nothing" else b"\xff" * 40
    with Middle(sent, follows=b"HTTP/1.1 400\r\n\r\n" if answer == "no TLS after EOK" else b"") as middle:
        with pytest.raises(TlsFailed, match=f"TLS with bookie {ID} failed: {_REASONS[answer]}"):
            with_pool(middle.port, client_options(authority, start_tls_timeout_s=0.3), read_all)
        received = middle.received()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
    request = encode_start_tls(0)
    assert received[: len(request)] == request
    # Then nothing, or the handshake: no byte of a request.
    assert received[len(request) : len(request) + 1] in (b"", b"\x16", b"\x15")


def test_required_tls_refuses_every_clear_request_before_any_storage(tmp_path: Path, authority: Authority) -> None:
    with serving(tmp_path, listener(authority.issue("bookie"), required=True)) as bookie:
        before = _files(tmp_path)
        for request, answer in [
            (adds(1, 0, [b"x"]), v2.ADD),
            (v2.encode_reads(1, _ids(0), v2.DO_FENCING, KEY), v2.READ),
            (v2.encode_reads(1, _ids(0), 0, None), v2.READ),
        ]:
            with bookie.connect() as peer:
                peer.send(request)
                reply = peer.reply()
                assert (reply.opcode, reply.status, reply.ledger_id) == (answer, v2.Status.EUA, 1)
                assert peer.frame() is None
        with bookie.connect() as peer:
            peer.send(v2.encode_batch_read(1, 0, 9, 10, 1 << 20))
            assert peer.frame() is None
        for operation, message in _V3_REQUESTS.items():
            with bookie.connect() as peer:
                peer.send(v3_request(operation, **message))
                body = peer.frame()
                assert body is not None
                response = v3.decode_response(body)
                assert (response.status, response.header.txnId) == (v3.StatusCode.EUA, 9)
                assert peer.frame() is None
        assert _files(tmp_path) == before
        with TlsPeer(bookie.port, trusting(authority)) as peer:
            assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
        with pytest.raises(BookieUnavailable, match="before it answered anything; it may serve only TLS"):
            with_pool(bookie.port, None, batch_read)


_V3_REQUESTS = {
    protocol.ADD_ENTRY: {"addRequest": protocol.AddRequest(ledgerId=1, entryId=0, masterKey=KEY, body=b"x" * 32)},
    protocol.READ_ENTRY: {"readRequest": protocol.ReadRequest(ledgerId=1, entryId=0)},
    protocol.WRITE_LAC: {"writeLacRequest": protocol.WriteLacRequest(ledgerId=1, lac=0, masterKey=KEY, body=b"x")},
    protocol.READ_LAC: {"readLacRequest": protocol.ReadLacRequest(ledgerId=1)},
    protocol.GET_BOOKIE_INFO: {"getBookieInfoRequest": protocol.GetBookieInfoRequest(requested=3)},
    protocol.FORCE_LEDGER: {"forceLedgerRequest": protocol.ForceLedgerRequest(ledgerId=1)},
    protocol.GET_LIST_OF_ENTRIES_OF_LEDGER: {
        "getListOfEntriesOfLedgerRequest": protocol.GetListOfEntriesOfLedgerRequest(ledgerId=1)
    },
}


def test_request_in_clear_together_with_start_tls_closes_the_connection(bookie: Serving) -> None:
    """Otherwise a man in the middle could put a request before those of the client."""
    with bookie.connect() as peer:
        peer.send(encode_start_tls(7) + adds(1, 0, [b"injected"]))
        peer.frame()
        assert peer.frame() is None
    with bookie.connect() as peer:
        assert peer.read(1, 0).status == v2.Status.ENOLEDGER


@pytest.mark.parametrize("is_v2", [True, False], ids=["V2", "V3"])
def test_auth_together_with_a_later_start_tls_is_answered_once_inside_tls(
    bookie: Serving, authority: Authority, is_v2: bool
) -> None:
    """The peer was served in clear before, so both are ordinary requests."""
    message = protocol.AuthMessage(authPluginName="sasl", payload=b"")
    v2_auth = v2.encode_auth_reply(message.SerializeToString())
    request = v2_auth if is_v2 else v3_request(protocol.AUTH, authRequest=message)
    with bookie.connect() as peer:
        peer.send(v3_request(protocol.READ_ENTRY, readRequest=protocol.ReadRequest(ledgerId=1, entryId=0)))
        assert peer.frame() is not None
        peer.send(encode_start_tls(7) + request)
        body = peer.frame()
        assert body is not None
        assert v3.decode_response(body).HasField("startTLSResponse")
        with trusting(authority).wrap_socket(peer.socket, server_hostname="localhost") as secured:
            peer.go_on_over(secured)
            body = peer.frame()
            assert body is not None
            answer = protocol.AuthMessage.FromString(body[4:]) if is_v2 else v3.decode_response(body).authResponse
            assert answer.authPluginName == "AuthDisabledPlugin"
            assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3


@pytest.mark.parametrize("is_v2", [True, False], ids=["V2", "V3"])
@pytest.mark.parametrize("burst", [True, False], ids=["in one burst", "later"])
def test_auth_in_clear_after_start_tls_is_answered_inside_tls(
    bookie: Serving, authority: Authority, is_v2: bool, burst: bool
) -> None:
    """Apache's clients with SASL and TLS send it so (trap 1 of the reference)."""
    message = protocol.AuthMessage(authPluginName="sasl", payload=b"")
    v2_auth = v2.encode_auth_reply(message.SerializeToString())
    request = v2_auth if is_v2 else v3_request(protocol.AUTH, authRequest=message)
    if burst:
        peer = TlsPeer(bookie.port, trusting(authority), first=request)
    else:
        plain = Peer(bookie.port)
        plain.send(encode_start_tls(7))
        plain.frame()
        plain.send(request)
        plain.go_on_over(trusting(authority).wrap_socket(plain.socket, server_hostname="localhost"))
        peer = plain  # type: ignore[assignment]
    with peer:
        body = peer.frame()
        assert body is not None
        if is_v2:
            answer = protocol.AuthMessage.FromString(body[4:])
        else:
            answer = v3.decode_response(body).authResponse
        assert answer.authPluginName == "AuthDisabledPlugin"
        assert peer.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3


def test_many_auth_messages_in_clear_after_start_tls_close_the_connection(tmp_path: Path, leaf: Leaf) -> None:
    """Each is decoded again whenever bytes come, until the handshake begins: a byte at a time would cost much."""
    message = protocol.AuthMessage(authPluginName="sasl", payload=b"")
    one = v3_request(protocol.AUTH, authRequest=message)
    with serving(tmp_path, listener(leaf, handshake_s=600.0)) as bookie, bookie.connect() as peer:
        peer.socket.settimeout(20)
        peer.send(encode_start_tls(7))
        assert peer.frame() is not None
        peer.send(one * CLEAR_MESSAGES_MAX + one[:5])
        peer.send(one[5:])
        assert is_closed(peer.socket)


# ---- handshakes that do not end ----


def test_stuck_handshake_is_closed_after_its_time(tmp_path: Path, leaf: Leaf) -> None:
    with serving(tmp_path, listener(leaf, handshake_s=0.2)) as bookie, bookie.connect() as peer:
        peer.send(encode_start_tls(7))
        peer.frame()
        assert is_closed(peer.socket)


def test_connection_of_required_tls_has_the_same_time_before_start_tls(tmp_path: Path, leaf: Leaf) -> None:
    auth = v3_request(protocol.AUTH, authRequest=protocol.AuthMessage(authPluginName="x", payload=b""))
    with serving(tmp_path, listener(leaf, handshake_s=0.2, required=True)) as bookie, bookie.connect() as peer:
        peer.send(auth)
        assert is_closed(peer.socket)


def test_oldest_unfinished_handshake_of_an_address_makes_room(tmp_path: Path, authority: Authority, leaf: Leaf) -> None:
    with serving(tmp_path, listener(leaf, handshakes_per_address_max=10)) as bookie:
        stuck = [bookie.connect() for _ in range(30)]
        for peer in stuck:
            peer.send(encode_start_tls(7))
            assert peer.frame() is not None
        # All except the newest ten are closed, and an honest client is served.
        assert all(is_closed(peer.socket) for peer in stuck[:20])
        with TlsPeer(bookie.port, trusting(authority)) as honest:
            assert honest.add(1, 0, PAYLOADS) == [v2.Status.EOK] * 3
        for peer in stuck:
            peer.close()


def test_peer_that_has_proved_nothing_does_not_make_turns_short(leaf: Leaf) -> None:
    """Otherwise handshakes are taken one by one where no client is disturbed by them, and new clients wait for long."""
    served = ServedBookie(tls=ListenerTls(listener(leaf)))
    assert ask(served, served.connect(), encode_start_tls(7))
    assert not served.turns.must_queue("another", is_demanding=True)
    assert ask(served, served.connect(), adds(1, 0, [b"x"]))
    assert served.turns.must_queue("another", is_demanding=True)


def test_handshake_of_too_many_bytes_is_closed(bookie: Serving) -> None:
    """A ClientHello that never ends: each of its records is well-formed."""
    record = b"\x16\x03\x01\x40\x00"
    hello = b"\x01\x01\xff\xff" + b"\0" * (0x4000 - 4)
    with bookie.connect() as peer:
        peer.send(encode_start_tls(7))
        peer.frame()
        peer.socket.sendall(record + hello)
        assert _sends_until_closed(peer.socket, record + b"\0" * 0x4000)


# ---- helpers ----


def _sends_until_closed(connected: socket.socket, data: bytes) -> bool:
    for _ in range(100):
        try:
            connected.sendall(data)
        except OSError:
            return True
    return is_closed(connected)


async def batch_read(pool: BookiePool) -> None:
    await (await pool.channel(ID)).batch_read(1, 0, 10, 1 << 20, DIGEST)


def _ids(*ids: int) -> np.ndarray:
    return np.array(ids)


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
