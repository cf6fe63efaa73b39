"""An add whose LAC no correct client sends is refused with EBADREQ, and leaves no trace.

A writer seals entry e with a LAC below e, and never below -1: of a durable or a relaxed ledger, with ids that the
caller chooses, and in a recovery. Only Apache's re-replication sends another one, with the recovery flag: its copies
carry the LAC of its read handle, which for a closed ledger is the last entry (`bkspark.wire.lac`).

Apache's bookies take any LAC, and have no status for it; EBADREQ is what they answer to adds that are malformed in
another way, such as ids below 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bkspark.ids import LAST_ENTRY_MAX
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bkspark.wire.v3 import StatusCode
from tests.bookie.serving import KEY, Peer, Serving, service_options
from tests.bookie.v3_peer import PIGGYBACK, RECOVERY, V3Peer

LEDGER = 5
IMPOSSIBLE = [7, 8, 5000, 1 << 40, 1 << 62, (1 << 63) - 1, -2, -(1 << 63)]
"""LACs that an add of entry 7 cannot have."""
COPIED = [7, 8, 5000, LAST_ENTRY_MAX]
"""Those of them that a copy of entry 7 can have."""


def entry(entry_id: int, lac: int, ledger_id: int = LEDGER) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, lac, 1) + b"\0\0\0\0x"


def frame(entry_id: int, lac: int, flags: int = 0, ledger_id: int = LEDGER) -> bytes:
    body = entry(entry_id, lac, ledger_id)
    return struct.pack(">ii", 24 + len(body), v2.header_word(v2.ADD, flags)) + KEY + body


def cut(entry_id: int, size: int) -> bytes:
    """The frame of an add whose entry is cut to this size."""
    body = entry(entry_id, entry_id - 1)[:size]
    return struct.pack(">ii", 24 + len(body), v2.header_word(v2.ADD)) + KEY + body


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(service_options(tmp_path)) as serving:
        yield serving


@pytest.fixture
def peer(serving: Serving) -> Iterator[Peer]:
    with serving.connect() as peer:
        yield peer


def added(peer: Peer, *frames: bytes) -> list[int]:
    """Send adds at once; return their statuses by entry."""
    peer.send(b"".join(frames))
    return [reply.status for reply in sorted(peer.replies(len(frames)), key=lambda reply: reply.entry_id)]


@pytest.mark.parametrize("lac", IMPOSSIBLE)
def test_a_single_add_is_refused(peer: Peer, lac: int) -> None:
    assert added(peer, frame(6, 5)) == [Status.EOK]
    assert added(peer, frame(7, lac)) == [Status.EBADREQ]
    assert peer.read(LEDGER, 7).status == Status.ENOENTRY
    assert peer.read(LEDGER, -1).body == entry(6, 5)
    assert added(peer, frame(7, 6)) == [Status.EOK], "the connection goes on"


@pytest.mark.parametrize("lac", IMPOSSIBLE)
def test_it_is_refused_alone_among_others(peer: Peer, lac: int) -> None:
    frames = [frame(entry_id, lac if entry_id == 7 else entry_id - 1) for entry_id in range(12)]
    right = [Status.EOK] * 12
    right[7] = Status.EBADREQ
    assert added(peer, *frames) == right
    assert [peer.read(LEDGER, entry_id).status for entry_id in (6, 7, 8)] == [Status.EOK, Status.ENOENTRY, Status.EOK]


def test_a_ledger_is_not_made_by_an_add_that_is_refused(peer: Peer) -> None:
    assert added(peer, frame(0, 0)) == [Status.EBADREQ]
    assert peer.read(LEDGER, 0).status == Status.ENOLEDGER


@pytest.mark.parametrize("lac", IMPOSSIBLE)
@pytest.mark.parametrize("flags", [v2.RECOVERY_ADD, v2.RECOVERY_ADD | v2.HIGH_PRIORITY])
def test_a_recovery_add_may_be_a_copy_of_re_replication_and_nothing_else(peer: Peer, lac: int, flags: int) -> None:
    expected = Status.EOK if lac in COPIED or 0 <= lac < LAST_ENTRY_MAX else Status.EBADREQ
    assert added(peer, frame(7, lac, flags)) == [expected]
    assert added(peer, frame(0, -1, flags), frame(7, lac, flags), frame(8, 7, flags)) == [
        Status.EOK,
        expected,
        Status.EOK,
    ]


@pytest.mark.parametrize("lac", IMPOSSIBLE)
@pytest.mark.parametrize("write_flags", [0, v3.DEFERRED_SYNC])
def test_v3_adds_are_refused(serving: Serving, lac: int, write_flags: int) -> None:
    """Adds to durable and to relaxed ledgers."""
    with V3Peer(serving.port) as peer:
        for number, priority in enumerate((0, v3.URGENT_PRIORITY)):
            ledger_id = LEDGER + number
            answer = peer.call(
                protocol.ADD_ENTRY,
                priority,
                ledgerId=ledger_id,
                entryId=7,
                masterKey=KEY,
                body=entry(7, lac, ledger_id),
                writeFlags=write_flags,
            )
            assert answer.status == StatusCode.EBADREQ
            assert peer.read_entry(ledger_id, 7).status == StatusCode.ENOLEDGER


@pytest.mark.parametrize("lac", [*COPIED, -2])
def test_v3_recovery_adds(serving: Serving, lac: int) -> None:
    with V3Peer(serving.port) as peer:
        answer = peer.call(
            protocol.ADD_ENTRY, ledgerId=LEDGER, entryId=7, masterKey=KEY, body=entry(7, lac), flag=RECOVERY
        )
        assert answer.status == (StatusCode.EOK if lac in COPIED else StatusCode.EBADREQ)


@pytest.mark.parametrize("lac", COPIED)
def test_no_lac_above_the_last_entry_is_reported(serving: Serving, lac: int) -> None:
    """No digest covers the LAC in a response, and Apache's clients use it. A copy proves its own confirmation."""
    with V3Peer(serving.port) as peer:
        peer.call(protocol.ADD_ENTRY, ledgerId=LEDGER, entryId=7, masterKey=KEY, body=entry(7, lac), flag=RECOVERY)
        assert peer.read_entry(LEDGER, 7).maxLAC == 7
        assert peer.read_entry(LEDGER, -1, flag=PIGGYBACK, previousLAC=0, timeOut=1).maxLAC == 7


@pytest.mark.parametrize("seed", range(3))
def test_runs_are_judged_as_single_adds_are(peer: Peer, seed: int) -> None:
    random = np.random.default_rng(seed)
    lacs = [int(random.choice([-2, -1, e - 1, e, e + 1, 1 << 62])) for e in range(300)]
    flags = [int(random.choice([0, 0, v2.RECOVERY_ADD])) for _ in range(300)]
    expected = [
        Status.EOK if -1 <= lac < e or (flag and lac >= -1) else Status.EBADREQ
        for e, (lac, flag) in enumerate(zip(lacs, flags))
    ]
    assert added(peer, *(frame(e, lac, flag) for e, (lac, flag) in enumerate(zip(lacs, flags)))) == expected


def test_entries_that_an_older_bookie_took_are_still_there_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journals and entry logs that hold such entries are replayed and read: clients judge what they get."""
    with monkeypatch.context() as older:
        older.setattr("bookie_service.engine.add_batch.AddBatch.lacs_are_right", lambda self, octets: True)
        with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
            assert added(peer, *(frame(e, 1 << 62) for e in range(5)), cut(5, 16)) == [Status.EOK] * 6
            serving.abandon()
    for _ in range(2):
        with Serving(service_options(tmp_path)) as serving, serving.connect() as peer:
            assert [peer.read(LEDGER, e).body for e in range(5)] == [entry(e, 1 << 62) for e in range(5)]
            assert peer.read(LEDGER, 5).body == entry(5, 4)[:16]


def test_an_explicit_lac_is_bounded_as_well(serving: Serving) -> None:
    with V3Peer(serving.port) as peer, serving.connect() as writer:
        assert added(writer, frame(0, -1)) == [Status.EOK]
        for lac, status in (
            (0, StatusCode.EOK),
            ((1 << 63) - 1, StatusCode.EBADREQ),
            (-2, StatusCode.EBADREQ),
        ):
            packet = struct.pack(">qq", LEDGER, lac) + bytes(4)
            answer = peer.call(protocol.WRITE_LAC, ledgerId=LEDGER, lac=lac, masterKey=KEY, body=packet)
            assert answer.status == status


@pytest.mark.parametrize("size", [16, 17, 23, 24, 31])
def test_an_entry_that_ends_before_its_lac_is_refused(serving: Serving, size: int) -> None:
    """Apache's storages read the LAC of an add, and answer EBADREQ if it is not there."""
    expected = Status.EOK if size >= 24 else Status.EBADREQ
    with serving.connect() as peer:
        assert added(peer, cut(7, size)) == [expected]
        assert added(peer, frame(6, 5), cut(7, size), frame(8, 7)) == [Status.EOK, expected, Status.EOK]
        assert peer.read(LEDGER, 7).body == (entry(7, 6)[:size] if size >= 24 else b"")
    with V3Peer(serving.port) as peer:
        answer = peer.call(protocol.ADD_ENTRY, ledgerId=LEDGER, entryId=9, masterKey=KEY, body=entry(9, 8)[:size])
        assert answer.status == (StatusCode.EOK if size >= 24 else StatusCode.EBADREQ)
