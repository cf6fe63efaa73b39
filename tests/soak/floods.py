"""Floods: what a peer without any right can send to a bookie as fast as it can.

python -m tests.soak.floods KIND PORT SECONDS

unread     batch reads of megabytes, of which nothing is taken
missing    reads, V3 reads and LAC reads of ledgers that do not exist
wrong-key  adds with a wrong master key
polls      long polls that wait for ever
pipeline   adds of the same entries, one after the other
fences     fences of ledgers that do not exist
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from tests.bookie.serving import Peer, adds
from tests.bookie.v3_peer import PIGGYBACK, request
from tests.floods.clients import Flood, Sources
from tests.floods.requests import OTHER_KEY, many, read

_UNKNOWN = 1 << 50
"""Ledger ids from here on are unused: those of `tests.floods` are ledgers of the soak."""

Made = tuple[Flood, bytes]
"""What the connections do, and what each of them sends."""


def unread(peer: Peer) -> Made:
    ledger_id = _some_ledger()
    for entry_id in range(32):
        peer.add(ledger_id, entry_id, [bytes(200_000)])
    reads = [v2.encode_batch_read(ledger_id, 0, number, 64, 5 << 20, 0, None) for number in range(50)]
    return Flood("unread", 40, takes_replies=False, repeats=False), b"".join(reads)


def missing(peer: Peer) -> Made:
    return Flood("missing", 4), many(4_000, lambda number: read(_some_ledger(), number))


def missing_v3(peer: Peer) -> Made:
    frames = []
    for number in range(2_000):
        ledger_id = _some_ledger()
        reading = {"ledgerId": ledger_id, "entryId": number}
        frames.append(v3.encode_message(request(protocol.READ_ENTRY, 2 * number, **reading)))
        frames.append(v3.encode_message(request(protocol.READ_LAC, 2 * number + 1, ledgerId=ledger_id)))
    return Flood("missing-v3", 4), b"".join(frames)


def wrong_key(peer: Peer) -> Made:
    ledger_id = _some_ledger()
    peer.add(ledger_id, 0, [b"mine"])
    return Flood("wrong-key", 4), adds(ledger_id, 1, [b"not mine"] * 2_000, key=OTHER_KEY)


def polls(peer: Peer) -> Made:
    ledger_id = _some_ledger()
    peer.add(ledger_id, 0, [b"mine"])
    waiting = {"ledgerId": ledger_id, "entryId": v2.LAST_ENTRY, "flag": PIGGYBACK}
    frames = [
        v3.encode_message(request(protocol.READ_ENTRY, number, **waiting, previousLAC=0, timeOut=1 << 62))
        for number in range(12_000)
    ]
    return Flood("polls", 1, repeats=False), b"".join(frames)


def pipeline(peer: Peer) -> Made:
    return Flood("pipeline", 2), adds(_some_ledger(), 0, [b"x" * 20] * 20_000)


def fences(peer: Peer) -> Made:
    return Flood("fences", 1, repeats=False), many(500, lambda _: read(_some_ledger(), -1, v2.DO_FENCING, OTHER_KEY))


KINDS: dict[str, Callable[[Peer], Made]] = {
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
    """Flood the bookie at a port; return the bytes that it took."""
    with Peer(port) as peer:
        flood, data = KINDS[kind](peer)
    sources = Sources(port, flood, memoryview(data))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sources.step()
    sources.close()
    return sources.sent


if __name__ == "__main__":
    print(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
