"""What a peer in clear cannot do beside TLS, what a closed connection no longer owes, and which rights are needed."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.local_reads import socket_name
from bkspark.wire.start_tls import encode_start_tls
from bkspark.wire.status import Status
from bookie_service.network.authentication import ListenerAuthentication, ListenerAuthenticationOptions
from bookie_service.network.gate import BYTES_MAX, REQUESTS_MAX, REQUIRED_START_TLS_WAIT_S, START_TLS_WAIT_S, Gate
from bookie_service.network.tls_handshakes import ListenerTls
from tests.bookie.serving import Serving, adds, service_options
from tests.bookie.simulated_connections import ServedBookie
from tests.bookie.v3_peer import PIGGYBACK, add_frames, request
from tests.security.authorized import AuthorizedBookie, Metadata, facts
from tests.security.certificates import Authority
from tests.security.sasl_serving import by_digest
from tests.security.tls_serving import listener

START_TLS = encode_start_tls(7)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(authority: Authority) -> ListenerTls:
    return ListenerTls(listener(authority.issue("bookie")))


def test_a_closed_connection_owes_neither_a_login_nor_a_handshake(tls: ListenerTls, tmp_path: Path) -> None:
    """Otherwise peers that come and go would close the connections of others at the limit."""
    authentication = ListenerAuthentication(by_digest(tmp_path))
    served = ServedBookie(tls=tls, authentication=authentication)
    connected = served.connect()
    connected.received += START_TLS
    served.turns_until(lambda: len(tls.owing) == 1)
    assert len(authentication.waiting) == 1
    served.connections[connected].close()
    assert (len(tls.owing), len(authentication.waiting)) == (0, 0)


def test_a_handshake_that_was_asked_for_must_be_completed_in_time(tls: ListenerTls) -> None:
    served = ServedBookie(tls=tls)
    connected = served.connect()
    connection = served.connections[connected]
    connected.received += START_TLS
    served.turns_until(lambda: len(tls.owing) == 1)
    connection.close_if_stalled(served.loop.now + tls.options.handshake_s - 1)
    assert connection.is_open
    connection.close_if_stalled(served.loop.now + tls.options.handshake_s + 1)
    assert not connection.is_open


def test_a_request_that_comes_with_start_tls_is_not_served_in_clear(tls: ListenerTls) -> None:
    """A stranger on the way could put it there: it is part of the handshake, and not of one."""
    served = ServedBookie(tls=tls)
    connected = served.connect()
    connected.received += add_frames(4, 0, [b"before"], 1)
    served.turns_until(lambda: bool(connected.sent))
    connected.received += START_TLS + add_frames(5, 0, [b"after"], 2)
    for _ in range(6):
        served.turn()
    assert served.bookie.view.ledger(4) is not None
    assert served.bookie.view.ledger(5) is None


def test_tls_does_not_begin_while_an_answer_is_due(tls: ListenerTls) -> None:
    """The answer would come in clear in the middle of the handshake."""
    served = ServedBookie(tls=tls)
    adding, polling = served.connect(), served.connect()
    adding.received += adds(5, 0, [b"one"])
    served.turns_until(lambda: bool(adding.sent))
    connection = served.connections[polling]
    poll = request(protocol.READ_ENTRY, 7, ledgerId=5, entryId=-1, previousLAC=0, timeOut=60_000, flag=PIGGYBACK)
    polling.received += v3.encode_message(poll)
    served.turns_until(lambda: served.bookie.owes(connection))
    polling.received += START_TLS
    served.turns_until(lambda: not connection.is_open, 20)


def test_tls_does_not_begin_while_an_add_waits_for_its_sync(tls: ListenerTls, caplog: pytest.LogCaptureFixture) -> None:
    served = ServedBookie(tls=tls)
    adding = served.connect()
    adding.received += add_frames(5, 0, [b"one"], 1) + START_TLS
    served.loop.turn()
    served.loop.turn()
    assert not served.connections[adding].is_open
    assert not adding.sent, "the request for TLS has no answer either"
    assert "it asks for TLS while earlier requests are unanswered" in caplog.text


@pytest.mark.parametrize("is_too_long", [False, True])
def test_the_beginning_of_a_large_frame_before_the_login_closes_the_connection(
    tmp_path: Path, is_too_long: bool
) -> None:
    served = ServedBookie(authentication=ListenerAuthentication(by_digest(tmp_path, required=True)))
    connected = served.connect()
    connected.received += (1 << 20).to_bytes(4, "big") + bytes(BYTES_MAX - 4 + is_too_long)
    for _ in range(6):
        served.turn()
    assert served.connections[connected].is_open != is_too_long


# ---- the gate ----


def test_a_peer_may_use_all_that_it_is_given_before_the_login_and_no_more() -> None:
    gate = Gate(None, needs_tls=True)
    assert gate.spend(BYTES_MAX) == ""
    assert f"more than {BYTES_MAX} bytes before it was in TLS" in gate.spend(1)
    gate = Gate(None, needs_tls=True)
    assert [gate.spend(1) for _ in range(REQUESTS_MAX)] == [""] * REQUESTS_MAX
    assert f"more than {REQUESTS_MAX} requests" in gate.spend(1)


def test_what_was_sent_in_clear_does_not_count_for_the_login_inside_tls(tmp_path: Path) -> None:
    gate = Gate(ListenerAuthentication(by_digest(tmp_path)), offers_tls=True, needs_tls=True)
    assert [gate.spend(1) for _ in range(REQUESTS_MAX)] == [""] * REQUESTS_MAX
    assert not gate.opens_with_tls(None)
    assert gate.spend(BYTES_MAX) == ""
    assert f"more than {BYTES_MAX} bytes before it was authenticated" in gate.spend(1)


@pytest.mark.parametrize(
    ("needs_tls", "with_sasl", "required", "refuses", "closes"),
    [
        (False, False, False, False, False),
        (True, False, False, True, True),
        (False, True, False, True, False),
        (False, True, True, True, True),
        (True, True, False, True, True),
    ],
)
def test_a_request_is_refused_before_a_proof_and_closes_the_connection_if_one_is_required(
    tmp_path: Path, needs_tls: bool, with_sasl: bool, required: bool, refuses: bool, closes: bool
) -> None:
    authentication = ListenerAuthentication(by_digest(tmp_path, required=required)) if with_sasl else None
    gate = Gate(authentication, offers_tls=True, needs_tls=needs_tls)
    assert (gate.refuses, gate.closes) == (refuses, closes)


def test_one_login_waits_for_start_tls_once() -> None:
    gate = Gate(None, offers_tls=True, needs_tls=True)
    assert gate.hold(b"login") == REQUIRED_START_TLS_WAIT_S
    assert gate.hold(b"another") == 0.0
    assert (gate.take_held(), gate.take_held()) == (b"login", b"")
    assert gate.hold(b"a third") == 0.0
    assert Gate(None, offers_tls=True).hold(b"login") == START_TLS_WAIT_S
    assert Gate(None).hold(b"login") == 0.0
    secured = Gate(None, offers_tls=True)
    assert secured.opens_with_tls(None)
    assert secured.hold(b"login") == 0.0, "TLS has begun already"


# ---- rights ----


@pytest.mark.parametrize(
    ("rights", "status"), [("write", Status.EUA), ("fence", Status.EUA), ("write,fence", Status.EOK)]
)
def test_an_add_of_a_recovery_needs_the_right_to_write_and_the_right_to_fence(rights: str, status: int) -> None:
    bookie = AuthorizedBookie(f"anonymous {rights} *", Metadata([facts(5)]))
    answer = bookie.ask(bookie.connect(), adds(5, 0, [b"one"], v2.RECOVERY_ADD))
    assert int.from_bytes(answer[8:12], "big") == status


def test_batch_read_before_the_login_closes_the_connection_though_none_is_required(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answer has no place for a refusal, so a client would wait for ever."""
    served = ServedBookie(authentication=ListenerAuthentication(by_digest(tmp_path)))
    connected = served.connect()
    connected.received += v2.encode_batch_read(5, 0, 1, 10, 1000)
    served.turns_until(lambda: connected.is_closed)
    assert not connected.sent
    assert "before it was authenticated, and its kind of request cannot be refused" in caplog.text
    assert "authenticationRequired" not in caplog.text


@pytest.mark.parametrize(
    ("closed_by", "is_offered"),
    [("nothing", True), ("TLS that is not required", True), ("TLS", False), ("SASL", False), ("certificates", False)],
)
def test_bookie_that_demands_a_proof_offers_no_local_reads(
    tmp_path: Path, authority: Authority, closed_by: str, is_offered: bool
) -> None:
    """docs/security.md: a descriptor of an entry log would bypass the check of certificates, and the login."""
    changes: dict[str, object] = {}
    if closed_by == "SASL":
        changes["authentication"] = by_digest(tmp_path)
    elif closed_by == "certificates":
        changes["authentication"] = ListenerAuthenticationOptions(required=True)
        changes["tls"] = listener(authority.issue("bookie"), authority)
    elif closed_by != "nothing":
        changes["tls"] = listener(authority.issue("bookie"), required=closed_by == "TLS")
    with (
        Serving(service_options(tmp_path, **changes)) as bookie,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer,
    ):
        bookie.call(lambda: bookie.service.start_local_reads("us:1"))
        refused = contextlib.nullcontext() if is_offered else pytest.raises(ConnectionRefusedError)
        with refused:
            peer.connect(socket_name(bookie.port))
