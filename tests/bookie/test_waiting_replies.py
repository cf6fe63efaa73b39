"""What waits for a journal or a flush on a bookie without threads, and goes on when it comes."""

from __future__ import annotations

import numpy as np

from bkspark.wire.framing import scan_frames
from bkspark.wire.status import Status
from bookie_service.engine.bookie_environment import BookieOptions
from bookie_service.network.v3_requests import V3RequestStream
from tests.bookie.changing import KEY, Client, add
from tests.bookie.deferred_adds import DEFERRED
from tests.bookie.taken_adds import after_crash, new_twin, offer, run_of, settle_journals
from tests.bookie.v3_peer import add_frames
from tests.crash.twins import SILENT, BookieTwin


def offer_v3(twin: BookieTwin, frames: bytes) -> bool:
    """Offer V3 requests once; return whether all were taken."""
    buffer = bytearray(frames)
    return V3RequestStream(twin.bookie, SILENT, scan_frames(buffer, len(buffer))).serve(np.frombuffer(buffer, np.uint8))


def test_connection_that_waits_for_deferred_adds_goes_on_when_they_are_written() -> None:
    """They are not synced then: nothing else needs a sync."""
    twin, other = new_twin(BookieOptions(adds_in_flight_max=1)), Client()
    assert add(twin, (5, 0)) == [Status.EOK]
    assert offer_v3(twin, add_frames(5, 1, [b"x"], 1, masterKey=KEY, **DEFERRED))
    assert not offer(twin, other, run_of(5, range(2, 4)))
    assert (twin.bookie.blocked_clients, other.resumed) == (1, 0)
    settle_journals(twin)
    assert (twin.bookie.blocked_clients, other.resumed, twin.bookie.adds_in_flight) == (0, 1, 0)


def test_checkpoint_moves_the_mark_of_each_journal_to_its_own_end() -> None:
    twin = new_twin(journals=2)
    held = [(4, entry_id) for entry_id in range(20)]
    assert add(twin, *held, (5, 0)) == [Status.EOK] * 21
    twin.checkpoint()
    assert add(twin, (5, 1), (4, 20)) == [Status.EOK] * 2
    reopened = after_crash(twin)
    for ledger_id, entry_id in (*held, (5, 0), (5, 1), (4, 20)):
        assert reopened.read(ledger_id, entry_id)[0] == Status.EOK
