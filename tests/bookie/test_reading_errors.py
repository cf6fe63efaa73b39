"""What reads of several kinds answer in part, beside each other, and where the disk fails (docs/protocol.md §1.6)."""

from __future__ import annotations

import struct
from itertools import product

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.engine.reads import ReadOptions, View
from bookie_service.engine.turns import ENDLESS, Turn, TurnLimits
from bookie_service.metrics.requests import READ_ENTRY, RequestTimes
from bookie_service.network.v2_batch_read import BatchRead
from bookie_service.network.v3_long_poll import LongPollRead, PiggybackResponses
from bookie_service.storage.ledgers.interface import Ledger
from tests.bookie import readings
from tests.bookie.readings import (
    BOTH,
    DENSE,
    LARGE,
    SPARSE,
    UNKNOWN,
    Bench,
    Peer,
    check_lac,
    entry,
    lac_reads,
    of_v2,
)
from tests.bookie.serving import adds
from tests.bookie.simulated_connections import ServedBookie
from tests.bookie.v3_peer import PIGGYBACK, request
from tests.crash.twins import BookieTwin
from tests.security.authorized import ask, statuses
from tests.security.sasl_serving import auth_v2

twin = readings.twin


def test_batch_read_from_a_failing_disk_is_an_error_and_not_a_defect(
    twin: BookieTwin, caplog: pytest.LogCaptureFixture
) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(BatchRead(peer, LARGE, 0, 9, 4, 1 << 20))
    bench.fail_one()
    (frame,) = peer.frames()
    assert struct.unpack_from(">iqqq", frame, 8) == (of_v2(Status.EIO), LARGE, 0, 9)
    assert not [record for record in caplog.records if record.exc_info]


def test_batch_read_of_the_last_entry_has_one_entry_whatever_it_asks_for(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(BatchRead(peer, SPARSE, v2.LAST_ENTRY, 9, 5, 1 << 20))
    bench.finish()
    (frame,) = peer.frames()
    items = frame[4 + v2.BATCH_REPLY_BYTES :]
    assert len(items) == 4 + int.from_bytes(items[:4], "big")
    assert struct.unpack_from(">qq", items, 4) == (SPARSE, 20)


class DamagedView(View):
    """What readings see of a bookie whose ledgers cannot be looked up."""

    def __init__(self, twin: BookieTwin, error: Exception) -> None:
        super().__init__(twin.store, twin.disks.known_space, ReadOptions())
        self._error = error
        self.ledger = self._fail

    def _fail(self, ledger_id: int) -> Ledger | None:
        raise self._error


class FullPolls:
    """Long polls of which no more may wait; they note how long one wanted to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def wait(self, poll: LongPollRead, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


@pytest.mark.parametrize("error", [StorageDamaged("its index file is damaged"), OSError(5, "Input/output error")])
def test_long_poll_does_not_deny_a_ledger_that_cannot_be_looked_up(twin: BookieTwin, error: Exception) -> None:
    view, peer = DamagedView(twin, error), Peer()
    asked = request(protocol.READ_ENTRY, 7, ledgerId=DENSE, entryId=-1, flag=PIGGYBACK, previousLAC=0, timeOut=1000)
    LongPollRead(FullPolls(), peer, asked).proceed(view, None, ENDLESS)  # type: ignore[arg-type]
    (frame,) = peer.frames()
    assert protocol.Response.FromString(frame[4:]).readResponse.status == v3.StatusCode.EIO


@pytest.mark.parametrize("time_out_ms", [0, 1500])
def test_long_poll_waits_as_long_as_it_asks_for_and_not_at_all_without_a_time(
    twin: BookieTwin, time_out_ms: int
) -> None:
    """§2.7: absent means not at all; such a read needs no place among those that wait."""
    view, peer, polls = View(twin.store, twin.disks.known_space, ReadOptions()), Peer(), FullPolls()
    asked = request(protocol.READ_ENTRY, 7, ledgerId=SPARSE, entryId=-1, flag=PIGGYBACK, previousLAC=19)
    asked.readRequest.timeOut = time_out_ms
    LongPollRead(polls, peer, asked).proceed(view, None, ENDLESS)  # type: ignore[arg-type]
    (frame,) = peer.frames()
    answer = protocol.Response.FromString(frame[4:]).readResponse
    assert polls.seconds == ([1.5] if time_out_ms else [])
    assert answer.status == (v3.StatusCode.ETOOMANYREQUESTS if time_out_ms else v3.StatusCode.EOK)


def test_long_poll_whose_ledger_is_gone_says_so() -> None:
    poll = request(protocol.READ_ENTRY, 7, ledgerId=5, entryId=-1, previousLAC=0)
    ids = np.array([5])
    frame = PiggybackResponses(poll, {"maxLAC": 3}, lambda: None).not_found(0, Status.ENOLEDGER, ids, ids)
    assert protocol.Response.FromString(frame[4:]).readResponse.status == v3.StatusCode.ENOLEDGER


@pytest.mark.parametrize(("asked", "allowed"), [(1 << 20, 200), (200, 1 << 20)], ids=["bookie", "request"])
def test_batch_read_has_no_more_bytes_than_the_bookie_and_the_request_allow(
    twin: BookieTwin, asked: int, allowed: int
) -> None:
    bench, peer = Bench(twin, options=ReadOptions(batch_bytes_max=allowed)), Peer()
    bench.reads.enqueue(BatchRead(peer, DENSE, 20, 9, 10, asked))
    bench.finish()
    (frame,) = peer.frames()
    items = frame[4 + v2.BATCH_REPLY_BYTES :]
    assert 0 < len(items) <= 200 - v2.BATCH_ACCOUNT_BYTES
    assert len(items) + 4 + len(entry(DENSE, 20)) + 8 > 200 - v2.BATCH_ACCOUNT_BYTES, "as many as have room"


def test_request_for_a_lac_from_a_failing_disk_is_an_error_and_not_a_defect(
    twin: BookieTwin, caplog: pytest.LogCaptureFixture
) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(lac_reads(peer, 50, LARGE))
    bench.fail_one()
    (frame,) = peer.frames()
    assert protocol.Response.FromString(frame[4:]).status == v3.StatusCode.EIO
    assert not [record for record in caplog.records if record.exc_info]


def test_turn_ends_with_the_requests_for_lacs_that_it_has_time_for(twin: BookieTwin) -> None:
    """Absent ledgers cost a fraction of a request."""
    bench, peer = Bench(twin), Peer()
    assert not bench.reads.answer(lac_reads(peer, 50, DENSE, SPARSE, DENSE), Turn(lambda: 0.0, 2, 1.0))
    assert len(peer.frames()) == 2
    absent = Peer()
    assert bench.reads.answer(lac_reads(absent, 50, *[UNKNOWN] * 16), Turn(lambda: 0.0, 2, 1.0))
    assert len(absent.frames()) == 16


def test_requests_for_lacs_that_are_refused_are_those_after_the_ones_that_may_wait() -> None:
    """Also if the first of them were answered before."""
    peer = Peer()
    reads = lac_reads(peer, 50, LARGE, BOTH, DENSE, SPARSE)
    reads.row = 1
    reads.refuse_beyond(2, Status.ETOOMANYREQUESTS)
    (refused,) = [protocol.Response.FromString(frame[4:]) for frame in peer.frames()]
    assert (refused.header.txnId, refused.readLacResponse.ledgerId) == (53, SPARSE)
    assert (reads.txn_ids.tolist(), reads.ledgers().tolist()) == ([50, 51, 52], [BOTH, DENSE])


def test_answers_with_lacs_are_sent_in_pieces_of_the_size_that_is_configured(twin: BookieTwin) -> None:
    asked = [BOTH, DENSE, UNKNOWN, SPARSE]
    for limit, pieces in ((1, 4), (1 << 20, 1)):
        bench, peer = Bench(twin, options=ReadOptions(replies_bytes_max=limit)), Peer()
        bench.reads.enqueue(lac_reads(peer, 50, *asked))
        bench.finish()
        assert len(peer.pieces) == pieces
        for frame, ledger_id in zip(peer.frames(), asked, strict=True):
            check_lac(frame, ledger_id)


KINDS = {
    v2.ADD: lambda entry_id: adds(5, entry_id, [b"x"]),
    v2.READ: lambda entry_id: v2.encode_reads(5, np.array([entry_id])),
    v2.BATCH_READ: lambda entry_id: v2.encode_batch_read(5, entry_id, entry_id, 1, 1 << 10),
    v2.AUTH: lambda entry_id: auth_v2(b"", "any"),
}


@pytest.mark.parametrize("count", [2, 3])
def test_each_request_of_a_burst_is_answered_in_its_own_kind(count: int) -> None:
    """docs/protocol.md §1.5: the opcode of an answer is that of its request."""
    served = ServedBookie()
    connected = served.connect()
    ask(served, connected, adds(5, 0, [b"x"]))
    for kinds in product(KINDS, repeat=count):
        answer = ask(served, connected, b"".join(KINDS[kind](number) for number, kind in enumerate(kinds)), turns=6)
        found = []
        while answer:
            end = 4 + int.from_bytes(answer[:4], "big")
            opcode = answer[5]
            entry_id = -1 if opcode == v2.AUTH else struct.unpack_from(">q", answer, 20)[0]
            found.append((opcode, entry_id))
            answer = answer[end:]
        expected = [(kind, -1 if kind == v2.AUTH else number) for number, kind in enumerate(kinds)]
        assert sorted(found) == sorted(expected), kinds


class Clock:
    """A clock that goes on by a millisecond with each look."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def wait(self) -> None:
        """Let a minute pass."""
        self.now_ns += 60_000_000_000


SOON_US = 1_000_000
"""Less than a minute, and more than a request takes here."""


def test_times_of_adds_begin_when_their_bytes_came() -> None:
    """docs/operations.md: the time of an add is that from its receipt to its answer."""
    clock = Clock()
    times = RequestTimes(clock)
    served = ServedBookie(times=times)
    connected = served.connect()
    ask(served, connected, adds(-5, 0, [b"refused"]))
    assert times.failed_adds.count(0) == 1
    assert 1000 <= times.failed_adds.sum(0) < SOON_US
    for entry_id in range(3):
        clock.wait()
        ask(served, connected, adds(5, entry_id, [b"x"]))
    times.fold()
    whole, row = times.whole_add
    assert whole.count(row) == 3
    assert 3000 <= whole.sum(row) < SOON_US


def test_time_of_a_request_that_waits_for_its_turn_is_not_that_of_others_which_came_later() -> None:
    clock = Clock()
    times = RequestTimes(clock)
    served = ServedBookie(TurnLimits(requests=1), times=times)
    waiting, other = served.connect(), served.connect()
    ask(served, other, adds(5, 0, [b"x"]))
    waiting.received += KINDS[v2.AUTH](0) + 8 * KINDS[v2.BATCH_READ](0) + adds(-5, 0, [b"refused"])
    served.turns_until(lambda: bool(waiting.sent))
    clock.wait()
    other.received += KINDS[v2.READ](0)
    del other.sent[:]
    served.turns_until(lambda: bool(other.sent))
    assert times.failed_adds.count(0) == 0, "it still waits"
    served.turns_until(lambda: times.failed_adds.count(0) == 1)
    assert times.failed_adds.sum(0) > SOON_US


def test_read_whose_fence_is_refused_is_counted_as_a_failure() -> None:
    times = RequestTimes(Clock())
    served = ServedBookie(times=times)
    connected = served.connect()
    ask(served, connected, adds(5, 0, [b"x"]))
    fencing = v2.encode_reads(5, np.array([0]), v2.DO_FENCING, b"k" * 20)
    (answer,) = statuses(ask(served, connected, fencing))
    times.fold()
    assert (answer, times.failed.count(READ_ENTRY), times.succeeded.count(READ_ENTRY)) == (Status.EUA, 1, 0)
