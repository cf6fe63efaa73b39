"""How a connection ends, step by step: with its last reply, for a stalled peer, and without being counted any more."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.engine.turns import TurnLimits
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.tls_handshakes import ListenerTls
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket
from tests.bookie.v3_peer import PIGGYBACK, request
from tests.security.certificates import Authority
from tests.security.sasl_serving import by_digest
from tests.security.tls_serving import listener

_MIB = 1 << 20
REPLY = bytes(range(100))
V2_READ = v2.encode_reads(5, np.array([0]))
V3_READ = v3.encode_message(request(protocol.READ_ENTRY, 7, ledgerId=5, entryId=0))


class LeavingSocket(SimulatedSocket):
    """A socket whose peer has closed its side, and takes what it is sent."""

    def recv_into(self, buffer: memoryview) -> int:
        self.received.clear()
        return 0


def leave(connected: SimulatedSocket) -> None:
    """Let the peer close its side."""
    connected.__class__ = LeavingSocket
    connected.received += b"end"


def test_connection_ends_with_its_last_reply_when_the_peer_has_closed_its_side() -> None:
    served = ServedBookie()
    connected = served.connect()
    connected.takes = 10
    served.connections[connected].send((REPLY,))
    leave(connected)
    served.turn()
    served.turn()
    assert not connected.is_closed
    connected.takes = 1 << 40
    served.turn()
    assert connected.is_closed
    assert connected.sent == REPLY


class BrokenSocket(SimulatedSocket):
    """A socket over which nothing can be sent any more."""

    def send(self, data: bytes | memoryview) -> int:
        raise ConnectionResetError


def test_connection_that_breaks_while_its_last_request_is_answered_does_not_end_the_bookie() -> None:
    served = ServedBookie()
    connected = served.connect_over(BrokenSocket())
    connected.received += V2_READ
    served.turns_until(lambda: connected.is_closed)
    assert served.failures == []


def test_peer_that_takes_replies_slowly_is_not_stalled() -> None:
    served = ServedBookie()
    connected = served.connect(options=ConnectionOptions(stalled_s_max=10))
    connection = served.connections[connected]
    connected.takes = 0
    connection.send((REPLY,))
    for _ in range(5):
        served.loop.now += 8
        connected.takes = 1
        served.turn()
        connection.close_if_stalled(served.loop.now)
        assert connection.is_open
    served.loop.now += 10.1
    connection.close_if_stalled(served.loop.now)
    assert not connection.is_open


def test_peer_that_takes_no_replies_is_closed_although_more_of_them_come() -> None:
    """Otherwise a peer that goes on asking and reads nothing keeps its replies in memory for ever."""
    served = ServedBookie()
    connected = served.connect(options=ConnectionOptions(stalled_s_max=10))
    connection = served.connections[connected]
    connected.takes = 0
    for _ in range(3):
        connection.send((REPLY,))
        served.loop.now += 4
    connection.close_if_stalled(served.loop.now)
    assert not connection.is_open


def test_v3_request_after_a_v2_request_ends_the_connection() -> None:
    served = ServedBookie()
    connected = served.connect()
    connected.received += V3_READ
    served.turns_until(lambda: bool(connected.sent))
    del connected.sent[:]
    connected.received += V2_READ
    served.turns_until(lambda: bool(connected.sent))
    del connected.sent[:]
    connected.received += V3_READ
    served.turns_until(lambda: connected.is_closed)
    assert not connected.sent
    assert served.failures == []


def test_closed_connection_has_no_unfinished_handshake(tmp_path: Path) -> None:
    tls = ListenerTls(listener(Authority(tmp_path).issue("bookie")))
    served = ServedBookie(tls=tls)
    connected = served.connect()
    connected.received += encode_start_tls(7)
    served.turns_until(lambda: len(tls.owing) == 1)
    served.connections[connected].close()
    assert len(tls.owing) == 0


def test_handshake_does_not_begin_while_a_reply_in_clear_is_unsent(tmp_path: Path) -> None:
    """What follows the answer to START_TLS is TLS, and a late reply in clear would break it."""
    served = ServedBookie(tls=ListenerTls(listener(Authority(tmp_path).issue("bookie"))))
    connected = served.connect()
    connected.takes = 0
    connected.received += encode_start_tls(7)
    served.turns_until(lambda: connected.is_closed, 20)
    assert served.failures == []


def test_closed_connection_is_not_waited_for_to_authenticate(tmp_path: Path) -> None:
    authentication = ListenerAuthentication(by_digest(tmp_path, required=True))
    served = ServedBookie(authentication=authentication)
    connected = served.connect()
    assert len(authentication.waiting) == 1
    served.connections[connected].close()
    assert len(authentication.waiting) == 0


# ---- what an open connection still has to do ----


def unsent(size: int) -> tuple[ServedBookie, SimulatedSocket]:
    """Return a connection with this many bytes of replies, of which its peer takes nothing yet."""
    served = ServedBookie()
    connected = served.connect()
    connected.takes = 0
    served.connections[connected].send((bytes(size),))
    return served, connected


def test_who_waits_to_send_is_called_when_a_quarter_of_a_mebibyte_is_unsent() -> None:
    served, connected = unsent(_MIB + 1)
    called: list[bool] = []
    served.connections[connected].when_taking(lambda: called.append(True))
    connected.takes = _MIB - _MIB // 4
    for _ in range(3):
        served.turn()
    assert called == []
    connected.takes = 1
    for _ in range(3):
        served.turn()
    assert called == [True]


def test_connection_takes_requests_as_long_as_no_more_than_a_mebibyte_is_unsent() -> None:
    served, connected = unsent(_MIB)
    assert served.connections[connected].is_taking
    served.connections[connected].send((b"x",))
    assert not served.connections[connected].is_taking


def test_requests_that_waited_for_their_peer_are_served_when_it_takes_replies_again() -> None:
    served, connected = unsent(_MIB + 1)
    connected.received += V2_READ
    served.turn()
    served.turn()
    assert not connected.received
    connected.takes = 1 << 40
    served.turns_until(lambda: len(connected.sent) > _MIB + 1, 20)


def test_add_that_comes_alone_waits_too_while_its_peer_takes_no_replies() -> None:
    served = ServedBookie()
    connected = served.connect()
    connected.received += adds(5, 0, [b"x"])
    served.turns_until(lambda: bool(connected.sent), 20)
    connected.takes = 0
    served.connections[connected].send((bytes(_MIB + 1),))
    connected.received += adds(5, 1, [b"x"])
    for _ in range(5):
        served.turn()
    assert not connected.received
    assert served.memory_budget.replies.used == _MIB + 1
    del connected.sent[:]
    connected.takes = 1 << 40
    served.turns_until(lambda: len(connected.sent) > _MIB + 1, 20)


def test_who_wants_to_send_on_a_closed_connection_is_called_in_the_next_turn() -> None:
    served, connected = unsent(_MIB + 1)
    connection = served.connections[connected]
    connection.close()
    called: list[bool] = []
    connection.when_taking(lambda: called.append(True))
    served.turn()
    assert called == [True]


def idle_s(served: ServedBookie, connected: SimulatedSocket) -> float:
    """Let ten seconds pass between two looks at a connection, without a turn."""
    connection = served.connections[connected]
    connection.idle_s(served.loop.now, is_owed=served.bookie.owes(connection))
    served.loop.now += 10.0
    return connection.idle_s(served.loop.now, is_owed=served.bookie.owes(connection))


def test_connection_that_waits_for_a_later_entry_is_not_idle() -> None:
    """It may make room for another connection only when nothing is due."""
    served = ServedBookie()
    connected = served.connect()
    connected.received += adds(5, 0, [b"x"])
    served.turns_until(lambda: bool(connected.sent), 20)
    assert idle_s(served, connected) == 10.0
    polling = served.connect()
    poll = request(protocol.READ_ENTRY, 7, ledgerId=5, entryId=-1, previousLAC=0, timeOut=60_000, flag=PIGGYBACK)
    polling.received += v3.encode_message(poll)
    served.turns_until(lambda: served.bookie.owes(served.connections[polling]), 20)
    assert not polling.sent
    assert idle_s(served, polling) == 0.0


def test_connection_with_unread_replies_is_not_idle() -> None:
    served, connected = unsent(1)
    assert idle_s(served, connected) == 0.0


def test_connection_whose_requests_wait_for_their_turn_is_not_idle() -> None:
    served = ServedBookie(TurnLimits(requests=1))
    connected = served.connect()
    connected.received += V2_READ * 5
    served.turn()
    assert not connected.received
    assert idle_s(served, connected) == 0.0


# ---- the age of a frame ----

ADD = adds(5, 0, [b"x"])


def test_frame_has_no_age_of_the_frame_before_it() -> None:
    served = ServedBookie()
    connected = served.connect(options=ConnectionOptions(frame_s_max=20))
    connection = served.connections[connected]
    connected.received += ADD
    served.turns_until(lambda: bool(connected.sent), 20)
    del connected.sent[:]
    connected.received += ADD[:10]
    served.turn()
    served.loop.now = 15.0
    connected.received += ADD[10:]
    served.turns_until(lambda: bool(connected.sent), 20)
    connected.received += ADD[:10]
    served.turn()
    connection.close_if_stalled(34.9)
    assert connection.is_open
    connection.close_if_stalled(35.1)
    assert not connection.is_open


def test_frame_that_is_complete_but_waits_has_no_age() -> None:
    served = ServedBookie()
    connected = served.connect(options=ConnectionOptions(frame_s_max=20, stalled_s_max=1000))
    connection = served.connections[connected]
    connected.received += V2_READ[:10]
    served.turn()
    connected.takes = 0
    connection.send((bytes(_MIB + 1),))
    connected.received += V2_READ[10:]
    served.turn()
    assert not connected.received
    connection.close_if_stalled(100.0)
    assert connection.is_open


def test_closed_connection_gives_back_the_memory_of_its_unfinished_frame() -> None:
    served = ServedBookie()
    connected = served.connect()
    connected.received += (1 << 20).to_bytes(4, "big") + bytes(1 << 19)
    served.turns_until(lambda: not connected.received, 100)
    assert served.memory_budget.received.used > 0
    served.connections[connected].close()
    assert served.memory_budget.received.used == 0
