"""Requests that make a ledger without an entry: they are bounded, as any client may send them for any ledger id.

A fence creates the ledger that it fences (docs/protocol.md §1.6), and so does an
explicit LAC. No password is needed for a ledger that does not exist.
"""

from __future__ import annotations

import pytest

from bkspark.wire import v2
from bkspark.wire.framing import scan_frames
from tests.bookie.serving import KEY, adds
from tests.bookie.simulated_connections import ServedBookie, SimulatedSocket, replies
from tests.floods.requests import HELD, REQUESTS, read

HALF_BYTES = 1 << 20
LEDGERS_MAX = 2 * HALF_BYTES // 1024
FLOODS = ("V2 fences of unknown ledgers", "V3 explicit LACs of unknown ledgers")


def turns(served: ServedBookie, count: int) -> None:
    for _ in range(count):
        served.turn()


def flooded(served: ServedBookie, flood: str) -> SimulatedSocket:
    """Let a flood go on until nothing of it is served any more, as no flush ends."""
    peer = served.connect()
    peer.received += REQUESTS[flood](2 * LEDGERS_MAX)
    answered = -1
    while answered < replies(peer):
        answered = replies(peer)
        turns(served, 50)
    return peer


@pytest.mark.parametrize("flood", FLOODS)
def test_ledgers_without_entries_wait_for_room_as_adds_do(flood: str) -> None:
    """Between two flushes they took memory without end, and all of it while a flush was stuck."""
    served = ServedBookie(cache_half_bytes=HALF_BYTES)
    peer = flooded(served, flood)
    assert 0.9 * LEDGERS_MAX <= replies(peer) <= LEDGERS_MAX + 2
    while not served.twin.checkpoints.is_idle:
        assert served.twin.checkpoints.step()
        turns(served, 2 * LEDGERS_MAX)
    assert replies(peer) == 2 * LEDGERS_MAX


@pytest.mark.parametrize("flood", FLOODS)
def test_known_ledgers_are_read_and_fenced_while_unknown_ones_wait(flood: str) -> None:
    served = ServedBookie(cache_half_bytes=HALF_BYTES)
    honest = served.connect("10.0.0.2")
    honest.received += adds(HELD, 0, [b"held"])
    turns(served, 5)
    flooded(served, flood)
    honest.received += read(HELD, 0)
    honest.received += read(HELD, -1, v2.DO_FENCING, KEY)
    turns(served, 20)
    assert replies(honest) == 3


def test_unknown_ledgers_are_refused_while_a_flush_is_stuck() -> None:
    """Nothing makes room until there is space on the disks: waiting would look like a hang."""
    served = ServedBookie(cache_half_bytes=HALF_BYTES)
    peer = flooded(served, FLOODS[0])
    served.bookie.on_checkpoint_stuck()
    turns(served, 500)
    assert replies(peer) == 2 * LEDGERS_MAX
    answers = v2.decode_replies(bytes(peer.sent), scan_frames(bytes(peer.sent), len(peer.sent)))
    assert answers.statuses.tolist()[-1] == v2.Status.ETOOMANYREQUESTS
    assert served.twin.store.active.room <= 0
