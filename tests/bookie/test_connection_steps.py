"""What a connection does with one receive, one error or one long wait: without sockets and without time."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from bkspark.security.digest_md5 import DigestClient
from bkspark.security.principal import Principal
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import scan_frames
from bkspark.wire.start_tls import encode_start_tls
from bkspark.wire.status import Status
from bkspark.wire.v3_adds import AddRequests
from bookie_service.engine.turns import TurnLimits
from bookie_service.network.add_decoders import v3_add_batch
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.connection import Connection
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.connections import LOOKS, ConnectionLimits, Connections
from bookie_service.network.gate import REQUESTS_MAX, Gate
from bookie_service.network.gated_requests import GatedRequests
from bookie_service.network.memory_budget import UNCOUNTED_BYTES, WINDOW_BYTES
from bookie_service.network.tls_handshakes import ListenerTls
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import LimitedBookie, ServedBookie, SimulatedSocket, replies
from tests.bookie.v3_peer import add_frames, request
from tests.security.authorized import ask, statuses
from tests.security.certificates import Authority
from tests.security.half_handshakes import known
from tests.security.sasl_serving import PASSWORD, USER, auth_v2, auth_v3, by_digest
from tests.security.tls_serving import listener, trusting

KIB = 1024


def reads(count: int, ledger_id: int = 5) -> bytes:
    """Return V2 reads of entry 0."""
    return v2.encode_reads(ledger_id, np.zeros(count, np.int64))


# ---- receiving ----


class BrokenSocket(SimulatedSocket):
    """A socket whose network fails."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def recv_into(self, buffer: memoryview) -> int:
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [errno.ECONNRESET, errno.EHOSTUNREACH, errno.ETIMEDOUT])
def test_network_error_ends_its_connection_and_nothing_else(code: int) -> None:
    served = ServedBookie()
    broken, other = served.connect_over(BrokenSocket(code)), served.connect()
    broken.received += b"something"
    served.turns_until(lambda: broken.is_closed, 5)
    assert served.failures == []
    assert statuses(ask(served, other, adds(5, 0, [b"x"]))) == [Status.EOK]


def test_frame_does_not_age_while_there_is_no_room_for_the_rest_of_it() -> None:
    """Its peer cannot send it."""
    served = ServedBookie()
    connected = served.connect(options=ConnectionOptions(frame_s_max=20.0))
    connection = served.connections[connected]
    budget = served.memory_budget
    assert budget.take(budget.received.room)
    frame = adds(5, 0, [bytes(4 * UNCOUNTED_BYTES)])
    connected.received += frame
    for _ in range(4):
        served.turn()
    assert len(connected.received) == len(frame) - UNCOUNTED_BYTES
    served.loop.now += 21
    connection.close_if_stalled(served.loop.now)
    assert connection.is_open
    budget.give_back(budget.received.used)
    served.turns_until(lambda: bool(connected.sent), 20)
    assert statuses(bytes(connected.sent)) == [Status.EOK]


@pytest.mark.parametrize("is_completed", [True, False])
def test_age_of_a_frame_is_that_of_its_own_first_byte(is_completed: bool) -> None:
    """Further bytes of a frame do not renew it; a frame that follows one which was served is new."""
    served = ServedBookie()
    connected = served.connect(options=ConnectionOptions(frame_s_max=20.0))
    connection = served.connections[connected]
    frame = adds(5, 0, [bytes(100)])
    ask(served, connected, frame[:50])
    served.loop.now += 15
    ask(served, connected, frame[50:] + frame[:50] if is_completed else frame[50:60])
    served.loop.now += 10
    connection.close_if_stalled(served.loop.now)
    assert connection.is_open == is_completed


class WatchedSocket(SimulatedSocket):
    """A socket that notes how much it was asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def recv_into(self, buffer: memoryview) -> int:
        self.asked.append(len(buffer))
        return super().recv_into(buffer)


def test_less_is_received_at_once_after_requests_that_took_many_turns() -> None:
    """Receiving, dividing and keeping a whole window takes milliseconds, in which no other client is answered."""
    served = ServedBookie(TurnLimits(requests=2))
    connected = served.connect_over(WatchedSocket())
    assert len(statuses(ask(served, connected, adds(5, 0, [b"x"]) + reads(10)))) == 11
    assert len(statuses(ask(served, connected, reads(1)))) == 1
    assert connected.asked[0] > 64 * KIB
    after = connected.asked.index(64 * KIB)
    assert len(statuses(ask(served, connected, reads(1)))) == 1
    assert connected.asked[after + 1 :][-1] == min(WINDOW_BYTES, connected.asked[0])


def test_nothing_is_received_while_requests_wait_also_when_there_is_room_again() -> None:
    served = ServedBookie(TurnLimits(requests=1))
    connected = served.connect()
    assert statuses(ask(served, connected, adds(5, 0, [b"x"]))) == [Status.EOK]
    each_in_its_turn = v2.encode_batch_read(5, 0, 9, 1, KIB)
    connected.received += 4 * each_in_its_turn
    served.turns_until(lambda: bool(connected.sent))
    connected.received += each_in_its_turn
    served.connections[connected].go_on_receiving()
    served.turn()
    assert len(statuses(bytes(connected.sent))) < 4
    assert connected.received == each_in_its_turn
    served.turns_until(lambda: len(statuses(bytes(connected.sent))) == 5)


class NotingBookie(ServedBookie):
    """A bookie that notes which connections were noted for their first request."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Connection] = []
        self.discarded: list[Connection] = []

    def note_request(self, member: Connection) -> None:
        self.noted.append(member)

    def discard(self, member: Connection) -> None:
        self.discarded.append(member)


def test_first_request_of_a_connection_is_noted_once() -> None:
    served = NotingBookie()
    connected = served.connect()
    for entry_id in range(3):
        assert statuses(ask(served, connected, adds(5, entry_id, [b"x", b"y"]))) == [Status.EOK] * 2
    assert served.noted == [served.connections[connected]]


def test_connection_that_must_make_room_is_closed_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It may have to make room twice before its turn to close comes."""
    served = NotingBookie()
    connected = served.connect()
    connection = served.connections[connected]
    for _ in range(2):
        connection.make_room("others wait")
    served.turns_until(lambda: connected.is_closed, 5)
    served.turn()
    assert served.discarded == [connection]
    assert [record.getMessage() for record in caplog.records if "others wait" in record.getMessage()] == [
        "closed the connection from 10.0.0.1:1: others wait"
    ]


@pytest.mark.parametrize("what", ["silent", "with half a frame"])
def test_connections_whose_time_ends_at_once_are_closed_one_in_a_turn_of_the_event_loop(what: str) -> None:
    """5,000 silent connections that were made in one second ended in one turn, which took a third of a second."""
    served = ServedBookie()
    honest = known(served)
    connections = Connections(ConnectionLimits(), list, list, served.failures.append)
    peers = [served.connect("10.0.0.9") for _ in range(50)]
    for peer in peers:
        connections.add(served.connections[peer], served.loop.now)
        if what == "with half a frame":
            peer.received += adds(1, 0, [b"x"])[:10]
    served.turns_until(lambda: not any(peer.received for peer in peers))
    if what == "with half a frame":
        for peer in peers:
            connections.note_request(served.connections[peer])
    served.loop.now += 1000.0
    honest.received += reads(1, 1)
    served.turns_until(lambda: replies(honest) == 2)
    for _ in range(LOOKS):
        connections.watch(served.loop.now)
    closed = [0]
    while closed[-1] < len(peers) and len(closed) < 200:
        closed.append(sum(peer.is_closed for peer in peers))
        assert closed[-1] - closed[-2] <= 1
        served.turn()
    assert closed[-1] == len(peers)
    assert served.failures == []


def watch(served: LimitedBookie, honest: SimulatedSocket) -> None:
    """Serve a client, so that closings wait for their turns, and look at all connections."""
    before = replies(honest)
    honest.received += reads(1, 1)
    served.turns_until(lambda: replies(honest) == before + 1)
    for _ in range(LOOKS):
        served.members.watch(served.loop.now)


def enter(served: LimitedBookie) -> SimulatedSocket:
    peer = served.accept("10.0.0.9")
    assert peer is not None
    return peer


@pytest.mark.parametrize("what", ["silent", "with half a frame"])
def test_connection_waits_for_one_turn_to_be_closed_however_often_it_is_looked_at(what: str) -> None:
    """Closings come before steps for newcomers: thousands that had nothing to close would delay honest clients."""
    served = LimitedBookie()
    honest = known(served)
    peers = [enter(served) for _ in range(20)]
    if what == "with half a frame":
        for peer in peers:
            peer.received += adds(1, 0, [b"x"])[:10]
        served.turns_until(lambda: not any(peer.received for peer in peers))
    served.loop.now += 1000.0
    for _ in range(5):
        watch(served, honest)
    newcomer = served.connect("10.0.0.7")
    newcomer.received += adds(1, 1, [b"x"])
    taken = served.turns_until(lambda: bool(replies(newcomer)))
    assert len(peers) / 2 <= taken <= 1.5 * len(peers), "a part was closed while the client was served"
    assert all(peer.is_closed for peer in peers)
    assert served.failures == []


def test_first_request_that_comes_while_the_closing_waits_is_served_and_the_connection_stays() -> None:
    served = LimitedBookie()
    honest = known(served)
    peer, silent = enter(served), enter(served)
    served.loop.now += 61.0
    watch(served, honest)
    peer.received += adds(1, 1, [b"late"])
    served.turns_until(lambda: silent.is_closed)
    served.turns_until(lambda: bool(replies(peer)))
    assert not peer.is_closed
    assert served.failures == []


def test_peer_that_takes_its_replies_while_the_closing_waits_is_kept() -> None:
    served = LimitedBookie()
    honest = known(served)
    peers = [enter(served) for _ in range(3)]
    for peer in peers:
        peer.received += adds(1, 1, [b"x"])
        served.turns_until(lambda: bool(replies(peer)))  # noqa: B023
        peer.takes = 0
        served.connections[peer].send((bytes(100),))
    served.loop.now += 1000.0
    watch(served, honest)
    peers[-1].takes = 1 << 20
    served.turns_until(lambda: peers[0].is_closed and peers[1].is_closed)
    for _ in range(5):
        served.turn()
    assert not peers[-1].is_closed
    assert served.failures == []


# ---- adds ----


def test_add_of_an_unusual_form_that_ends_before_its_ids_is_refused_and_the_connection_goes_on() -> None:
    """docs/protocol.md §2.6: an entry has at least its two ids."""
    served = ServedBookie()
    connected = served.connect()
    for size in (0, 1, 8, 15):
        (frame,) = [add_frames(5, 0, [b"x"], 7, body=bytes(size))]
        body = frame[4:] + b"\xf8\x7f\x01"  # an unknown field
        for sent in (frame, len(body).to_bytes(4, "big") + body):
            assert statuses(ask(served, connected, sent)) == [v3.StatusCode.EBADREQ]
    assert not connected.is_closed
    assert served.failures == []


# ---- proofs ----


def authenticating(tmp_path: Path, limits: TurnLimits | None = None) -> ServedBookie:
    return ServedBookie(limits, authentication=ListenerAuthentication(by_digest(tmp_path)))


@pytest.mark.parametrize("auth", [auth_v3, auth_v2], ids=["v3", "v2"])
def test_login_that_failed_ends_the_connection(tmp_path: Path, auth: Callable[[bytes], bytes]) -> None:
    """docs/security.md: after a failed exchange, the bookie answers EUA (in V3) and closes the connection."""
    served = authenticating(tmp_path)
    connected = served.connect()
    ask(served, connected, auth(b""))
    assert not connected.is_closed
    answer = ask(served, connected, auth(b"this is not a response"))
    assert statuses(answer) == ([Status.EUA] if auth is auth_v3 else [])
    assert connected.is_closed
    assert served.failures == []


def test_time_for_the_login_ends_with_the_login(tmp_path: Path) -> None:
    served = ServedBookie(authentication=ListenerAuthentication(by_digest(tmp_path, timeout_s=10.0)))
    connected = served.connect()
    client = DigestClient(USER, PASSWORD, "cnonce")
    challenge = protocol.AuthMessage.FromString(ask(served, connected, auth_v2(client.first()))[8:])
    response = client.step(challenge.payload)
    assert response is not None
    ask(served, connected, auth_v2(response))
    served.loop.now += 11
    served.connections[connected].close_if_stalled(served.loop.now)
    assert statuses(ask(served, connected, adds(5, 0, [b"x"]))) == [Status.EOK]


def test_peer_without_a_login_may_send_few_requests(tmp_path: Path) -> None:
    served = authenticating(tmp_path)
    connected = served.connect()
    assert statuses(ask(served, connected, reads(REQUESTS_MAX))) == [Status.EUA] * REQUESTS_MAX
    assert not connected.is_closed
    assert ask(served, connected, reads(1)) == b""
    assert connected.is_closed


@pytest.mark.parametrize("required", [True, False])
def test_request_before_the_login_closes_the_connection_only_where_a_login_is_required(
    tmp_path: Path, required: bool
) -> None:
    """docs/security.md: a V2 batch read closes it in any case, because it cannot be refused."""
    v3_read = v3.encode_message(request(protocol.READ_ENTRY, 7, ledgerId=5, entryId=0))
    for sent, answer in (
        (v3_read, [Status.EUA]),
        (reads(1), [Status.EUA]),
        (v2.encode_batch_read(5, 0, 9, 1, KIB), []),
    ):
        served = ServedBookie(authentication=ListenerAuthentication(by_digest(tmp_path, required=required)))
        connected = served.connect()
        assert statuses(ask(served, connected, sent)) == answer
        assert connected.is_closed == (required or not answer)


def test_requests_that_are_refused_use_up_the_turn(tmp_path: Path) -> None:
    """A flood of them must not keep others from being answered."""
    served = authenticating(tmp_path, TurnLimits(requests=2))
    connected = served.connect()
    connected.received += reads(8)
    most = 0
    for _ in range(20):
        before = len(statuses(bytes(connected.sent)))
        served.turn()
        most = max(most, len(statuses(bytes(connected.sent))) - before)
    assert statuses(bytes(connected.sent)) == [Status.EUA] * 8
    assert most == 2


def test_frame_without_a_body_before_the_login_is_a_violation_and_not_a_defect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = authenticating(tmp_path)
    connected = served.connect()
    ask(served, connected, bytes(4))
    assert connected.is_closed
    assert "closed the connection" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_request_after_a_login_that_failed_is_not_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The login waited for START_TLS, and fails when another request comes in its place."""
    tls = ListenerTls(listener(Authority(tmp_path).issue("bookie")))
    served = ServedBookie(tls=tls, authentication=ListenerAuthentication(by_digest(tmp_path, required=True)))
    connected = served.connect()
    ask(served, connected, auth_v2(b"no login"), turns=2)
    ask(served, connected, reads(1))
    assert connected.is_closed
    assert caplog.text.count("closed the connection") == 1
    assert "its authentication failed" in caplog.text


def test_timer_of_an_auth_message_ends_with_its_connection(tmp_path: Path) -> None:
    tls = ListenerTls(listener(Authority(tmp_path).issue("bookie")))
    served = ServedBookie(tls=tls, authentication=ListenerAuthentication(by_digest(tmp_path)))
    connected = served.connect()
    before = len(served.loop._timers)
    assert ask(served, connected, auth_v3(b""), turns=2) == b"", "START_TLS may follow"
    (timer,) = served.loop._timers[before:]
    served.connections[connected].close()
    assert timer.is_cancelled


class SecuredPeer:
    """A client's side of TLS over a simulated socket."""

    def __init__(self, served: ServedBookie, connected: SimulatedSocket, context: ssl.SSLContext) -> None:
        self._served, self._connected = served, connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    def shake_hands(self) -> None:
        answer = protocol.Response.FromString(ask(self._served, self._connected, encode_start_tls(7))[4:])
        assert answer.status == v3.StatusCode.EOK
        for _ in range(10):
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange()
                continue
            self._exchange()
            return
        raise AssertionError("the handshake does not end")

    def _exchange(self) -> None:
        self._incoming.write(ask(self._served, self._connected, self._outgoing.read()))


def test_time_for_the_login_begins_when_tls_is_complete(tmp_path: Path) -> None:
    """A slow handshake must not use it up."""
    authority = Authority(tmp_path)
    tls = ListenerTls(listener(authority.issue("bookie"), required=True, handshake_s=30.0))
    authentication = ListenerAuthentication(by_digest(tmp_path, timeout_s=10.0))
    served = ServedBookie(tls=tls, authentication=authentication)
    connected = served.connect()
    connection = served.connections[connected]
    served.loop.now += 9
    SecuredPeer(served, connected, trusting(authority)).shake_hands()
    served.loop.now += 9
    connection.close_if_stalled(served.loop.now)
    assert connection.is_open
    served.loop.now += 2
    connection.close_if_stalled(served.loop.now)
    assert not connection.is_open


class LeavingClient:
    """A connection as the requests before the login see it; it is closed when it is sent its second answer."""

    def __init__(self) -> None:
        self.is_open = True
        self.sent: list[bytes] = []
        self.admitted: list[Principal] = []

    def send(self, parts: Sequence[bytes]) -> None:
        self.sent.append(b"".join(parts))
        self.is_open = len(self.sent) < 2

    def admit(self, principal: Principal, end: int) -> None:
        self.admitted.append(principal)


def test_peer_that_leaves_before_the_answer_to_its_login_is_not_admitted(tmp_path: Path) -> None:
    client, exchange = LeavingClient(), DigestClient(USER, PASSWORD, "cnonce")
    gate = Gate(ListenerAuthentication(by_digest(tmp_path)))

    def serve(payload: bytes) -> protocol.AuthMessage:
        frame = auth_v2(payload)
        table = scan_frames(frame, len(frame))
        GatedRequests(client, gate, table).serve(np.frombuffer(frame, np.uint8))  # type: ignore[arg-type]
        return protocol.AuthMessage.FromString(client.sent[-1][8:])

    response = exchange.step(serve(exchange.first()).payload)
    assert response is not None
    serve(response)
    assert not client.is_open
    assert gate.exchange().principal is not None, "the login itself is right"
    assert client.admitted == []


# ---- how adds are understood ----


@pytest.mark.parametrize("is_recovery", [True, False])
@pytest.mark.parametrize("bypasses", [True, False])
@pytest.mark.parametrize("write_flags", [0, v3.DEFERRED_SYNC])
def test_only_deferred_adds_are_answered_early_and_only_these_may_bypass_the_journal(
    is_recovery: bool, bypasses: bool, write_flags: int
) -> None:
    """docs/relaxed-durability.md; recovery adds are always synced, because they close the ledger."""
    one = np.array([7])
    requests = AddRequests(one, one, one, one, one + 40, one + 80, 0, is_recovery, write_flags, bypasses)
    batch = v3_add_batch(requests)
    is_deferred = bool(write_flags) and not is_recovery
    assert (batch.is_deferred, batch.bypasses_journal) == (is_deferred, is_deferred and bypasses)
    assert batch.flags.tolist() == [v2.RECOVERY_ADD if is_recovery else 0]
