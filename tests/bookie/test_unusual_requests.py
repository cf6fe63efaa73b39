"""V3 requests that no client is known to send mean what the protocol says (docs/protocol.md)."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.network.v3_long_poll import PiggybackResponses
from tests.bookie.serving import KEY, adds
from tests.bookie.simulated_connections import ServedBookie
from tests.bookie.v3_peer import FENCE, RECOVERY, add_frames, request
from tests.security.authorized import ask, statuses

UNKNOWN_FIELD = b"\xf8\x7f\x01"
"""Field 2047 of a message: 1. With it a request is decoded by protobuf's classes."""


def unusual(frame: bytes) -> bytes:
    body = frame[4:] + UNKNOWN_FIELD
    return len(body).to_bytes(4, "big") + body


def fenced_bookie() -> ServedBookie:
    """Return a bookie with entry 0 of the fenced ledger 5."""
    served = ServedBookie()
    peer = served.connect()
    assert statuses(ask(served, peer, adds(5, 0, [b"x"]))) == [Status.EOK]
    assert statuses(ask(served, peer, v2.encode_reads(5, np.array([0]), v2.DO_FENCING, KEY))) == [Status.EOK]
    return served


@pytest.mark.parametrize("frame_of", [unusual, bytes], ids=["with an unknown field", "usual"])
def test_fenced_ledger_takes_adds_of_its_recovery_alone(frame_of: type[bytes]) -> None:
    """An add without a flag belongs to a writer, although RECOVERY_ADD is the first value of the flag."""
    served = fenced_bookie()
    peer = served.connect()
    assert statuses(ask(served, peer, frame_of(add_frames(5, 1, [b"x"], 1)))) == [v3.StatusCode.EFENCED]
    assert statuses(ask(served, peer, frame_of(add_frames(5, 1, [b"x"], 2, flag=RECOVERY)))) == [Status.EOK]


@pytest.mark.parametrize("frame_of", [unusual, bytes], ids=["with an unknown field", "usual"])
def test_read_only_bookie_takes_urgent_adds_of_a_recovery_alone(frame_of: type[bytes]) -> None:
    """docs/protocol.md §6.11: those of high priority, as long as the reserve lasts."""
    served = ServedBookie()
    peer = served.connect()
    served.twin.disks.set_read_only("an operator")
    served.bookie.look_at_disks()
    for priority, status in ((0, v3.StatusCode.EREADONLY), (100, Status.EOK)):
        frame = frame_of(add_frames(5, 0, [b"x"], 1, priority, flag=RECOVERY))
        assert statuses(ask(served, peer, frame)) == [status]


@pytest.mark.parametrize("ledger_id", [5, 6], ids=["known", "unknown"])
def test_fencing_read_with_a_key_of_another_length_is_refused_and_fences_nothing(ledger_id: int) -> None:
    served = ServedBookie()
    peer = served.connect()
    assert statuses(ask(served, peer, add_frames(5, 0, [b"x"], 1))) == [Status.EOK]
    for key in (KEY[:-1], KEY + b"x", b""):
        read = request(protocol.READ_ENTRY, 7, ledgerId=ledger_id, entryId=0, flag=FENCE, masterKey=key)
        assert statuses(ask(served, peer, v3.encode_message(read))) == [Status.EUA]
    assert statuses(ask(served, peer, add_frames(ledger_id, 1, [b"x"], 2))) == [Status.EOK]


def test_read_that_fences_never_waits_for_a_later_entry() -> None:
    served = ServedBookie()
    peer = served.connect()
    assert statuses(ask(served, peer, add_frames(5, 0, [b"x"], 1))) == [Status.EOK]
    read = request(
        protocol.READ_ENTRY, 7, ledgerId=5, entryId=0, flag=FENCE, masterKey=KEY, previousLAC=9, timeOut=60_000
    )
    assert statuses(ask(served, peer, v3.encode_message(read))) == [Status.EOK]
    assert statuses(ask(served, peer, add_frames(5, 1, [b"x"], 2))) == [v3.StatusCode.EFENCED]


@pytest.mark.parametrize("status", [Status.EIO, Status.EUNKNOWNLEDGERSTATE, Status.ETOOMANYREQUESTS])
def test_long_poll_whose_entry_could_not_be_read_does_not_say_that_it_is_not_there(status: Status) -> None:
    poll = request(protocol.READ_ENTRY, 7, ledgerId=5, entryId=-1, previousLAC=0)
    answers = PiggybackResponses(poll, {"maxLAC": 3}, lambda: None)
    ids = np.array([5])
    assert statuses(answers.not_found(0, status, ids, ids)) == [v3.code_of(status)]
    assert statuses(answers.not_found(0, Status.ENOENTRY, ids, ids)) == [v3.StatusCode.EOK]
