"""Floods: what a peer without any right can send to a bookie as fast as it can.

python -m tests.soak.floods KIND PORT SECONDS

unread     batch reads of megabytes, of which nothing is taken
missing    reads, V3 reads and LAC reads of ledgers that do not exist
wrong-key  adds with a wrong master key
polls      long polls that wait for ever
pipeline   adds of the same entries, one behind the other
fences     fences of ledgers that do not exist
"""

from __future__ import annotations

import random
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.digest import master_key
from tests.bookie.serving import Peer, adds
from tests.bookie.v3_peer import request

_UNKNOWN = 1 << 50
"""Ledger ids from here on belong to nobody."""
_PIECE_BYTES = 1 << 18
_WAIT_S = 0.1


@dataclass(frozen=True)
class Flood:
    """What each of some connections sends again and again, and whether it takes the answers."""

    connections: int
    data: bytes
    takes_answers: bool = True
    once: bool = False


def unread(peer: Peer) -> Flood:
    ledger_id = _some_ledger()
    for entry_id in range(32):
        peer.add(ledger_id, entry_id, [bytes(200_000)])
    reads = [v2.encode_batch_read(ledger_id, 0, number, 64, 5 << 20, 0, None) for number in range(50)]
    return Flood(40, b"".join(reads), takes_answers=False, once=True)


def missing(peer: Peer) -> Flood:
    frames = []
    for number in range(4_000):
        ledger_id = _some_ledger()
        frames.append(v2.encode_reads(ledger_id, np.array([number])))
    return Flood(4, b"".join(frames))


def missing_v3(peer: Peer) -> Flood:
    frames = []
    for number in range(2_000):
        ledger_id = _some_ledger()
        reading = {"ledgerId": ledger_id, "entryId": number}
        frames.append(v3.encode_message(request(protocol.READ_ENTRY, 2 * number, **reading)))
        frames.append(v3.encode_message(request(protocol.READ_LAC, 2 * number + 1, ledgerId=ledger_id)))
    return Flood(4, b"".join(frames))


def wrong_key(peer: Peer) -> Flood:
    ledger_id = _some_ledger()
    peer.add(ledger_id, 0, [b"mine"])
    return Flood(4, adds(ledger_id, 1, [b"not mine"] * 2_000, key=master_key(b"wrong")))


def polls(peer: Peer) -> Flood:
    ledger_id = _some_ledger()
    peer.add(ledger_id, 0, [b"mine"])
    waiting = {"ledgerId": ledger_id, "entryId": v2.LAST_ENTRY, "flag": protocol.ReadRequest.ENTRY_PIGGYBACK}
    frames = [
        v3.encode_message(request(protocol.READ_ENTRY, number, **waiting, previousLAC=0, timeOut=1 << 62))
        for number in range(12_000)
    ]
    return Flood(1, b"".join(frames), once=True)


def pipeline(peer: Peer) -> Flood:
    return Flood(2, adds(_some_ledger(), 0, [b"x" * 20] * 20_000))


def fences(peer: Peer) -> Flood:
    key = master_key(b"nobody's")
    frames = [v2.encode_reads(_some_ledger(), np.array([v2.LAST_ENTRY]), v2.DO_FENCING, key) for _ in range(500)]
    return Flood(1, b"".join(frames), once=True)


KINDS: dict[str, Callable[[Peer], Flood]] = {
    "unread": unread,
    "missing": missing,
    "missing-v3": missing_v3,
    "wrong-key": wrong_key,
    "polls": polls,
    "pipeline": pipeline,
    "fences": fences,
}


def _some_ledger() -> int:
    return _UNKNOWN + random.randrange(1 << 40)


def run(kind: str, port: int, seconds: float) -> int:
    """Flood the bookie at a port; return the bytes that were sent."""
    peer = Peer(port)
    flood = KINDS[kind](peer)
    peer.close()
    connections = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(flood.connections)]
    left = {connection: memoryview(flood.data) for connection in connections}
    for connection in connections:
        connection.setblocking(False)
    sent, end_s = 0, time.monotonic() + seconds
    while left and time.monotonic() < end_s:
        unsent = [connection for connection, data in left.items() if data]
        readable, writable, _ = select.select(list(left) if flood.takes_answers else [], unsent, [], _WAIT_S)
        for connection in readable:
            if not _take(connection):
                del left[connection]
        for connection in set(writable) & left.keys():
            count = _send(connection, left[connection])
            if count is None:
                del left[connection]
                continue
            sent += count
            rest = left[connection][count:]
            left[connection] = rest if rest or flood.once else memoryview(flood.data)
    for connection in connections:
        connection.close()
    return sent


def _take(connection: socket.socket) -> bool:
    """Take what has come; return whether the connection is open."""
    try:
        return bool(connection.recv(_PIECE_BYTES))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _send(connection: socket.socket, data: memoryview) -> int | None:
    """Send as much as is taken at once; return how much, None when the connection is closed."""
    try:
        return connection.send(data[:_PIECE_BYTES])
    except BlockingIOError:
        return 0
    except OSError:
        return None


if __name__ == "__main__":
    print(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
