"""How a connection ends, step by step: with its last reply, for a stalled peer, and without being counted any more."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.start_tls import encode_start_tls
from bookie_service.network.authentication import ListenerAuthentication
from bookie_service.network.connection_options import ConnectionOptions
from bookie_service.network.tls_handshakes import ListenerTls
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket
from tests.bookie.v3_peer import request
from tests.security.certificates import Authority
from tests.security.sasl_serving import by_digest
from tests.security.tls_serving import listener

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


def test_closed_connection_is_not_waited_for_to_authenticate(tmp_path: Path) -> None:
    authentication = ListenerAuthentication(by_digest(tmp_path, required=True))
    served = ServedBookie(authentication=authentication)
    connected = served.connect()
    assert len(authentication.waiting) == 1
    served.connections[connected].close()
    assert len(authentication.waiting) == 0
