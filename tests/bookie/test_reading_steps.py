"""Single steps of readings: what one turn answers, in which pieces, what is counted, and what an error leaves."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.status import Status
from bookie_service.engine.pacing import pause_s
from bookie_service.engine.reads import ReadOptions, Reads, View
from bookie_service.engine.turns import ENDLESS, Turn
from bookie_service.metrics.requests import (
    GET_BOOKIE_INFO,
    OPERATIONS,
    READ_ENTRY,
    READ_LAC,
    ROWS_MAX,
    RequestTimes,
)
from bookie_service.network.known_responses import KnownResponse, SpaceRead
from bookie_service.network.v2_batch_read import BatchRead
from bookie_service.storage.io.byte_source import Fetched
from bookie_service.storage.ledgers.base import BaseLedgerStorage
from bookie_service.storage.ledgers.interface import Ledger
from tests.bookie import collecting, readings
from tests.bookie.faulty_files import FaultyFiles
from tests.bookie.readings import (
    BAD_END,
    DENSE,
    KEY,
    LARGE,
    SPARSE,
    UNKNOWN,
    Bench,
    EventLoopTurns,
    Peer,
    check_v3,
    entry,
    lac_reads,
    v2_answer,
    v2_expected,
    v2_reads,
    v3_reads,
)
from tests.bookie.v3_peer import request
from tests.crash.twins import SILENT, BookieTwin, add_frame
from tests.planting import Plant, around

twin = readings.twin
HELD = (DENSE, 20), (DENSE, 21), (SPARSE, 20)
"""Entries that are in the write cache."""


def turn_of(requests: int) -> Turn:
    return Turn(lambda: 0.0, requests, 1.0)


def answers(peer: Peer) -> list[tuple[int, int, int]]:
    """Return (ledger id, entry id, status) of each V2 reply."""
    return [v2_answer(frame)[:3] for frame in peer.frames()]


def failing(method: str, error: Exception, when: Callable[..., bool] = lambda *_: True) -> Plant:
    """Let a method of the storage fail for some arguments."""

    def fail(old: Any, self: BaseLedgerStorage, *arguments: Any) -> Any:
        if when(*arguments):
            raise error
        return old(self, *arguments)

    return around(BaseLedgerStorage, method, fail)


class ClosingPeer(Peer):
    """A connection that is closed by the first answer."""

    def send(self, parts: Any) -> None:
        super().send(parts)
        self.is_open = False


# ---- turns ----


def test_turn_that_is_over_answers_nothing_and_the_requests_wait_for_the_next(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(v2_reads(peer, (UNKNOWN, 0)), turn_of(0))
    assert (peer.sent, bench.reads.waiting) == (b"", 1)
    bench.step()
    assert (answers(peer), bench.reads.waiting) == ([(UNKNOWN, 0, Status.ENOLEDGER)], 0)


def test_turn_ends_after_the_look_that_uses_it_up(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    reading = v2_reads(peer, (DENSE, 20), (UNKNOWN, 0), (SPARSE, 20))
    assert not bench.reads.answer(reading, turn_of(1))
    assert answers(peer) == [(DENSE, 20, 0), (SPARSE, 20, 0)]
    assert bench.reads.answer(reading, turn_of(1))
    assert answers(peer)[2:] == [(UNKNOWN, 0, Status.ENOLEDGER)]


def test_answers_for_absent_ledgers_cost_a_fraction_of_a_request(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    assert bench.reads.answer(v2_reads(peer, *((UNKNOWN + number, 0) for number in range(40))), turn_of(4))
    assert {status for _, _, status in answers(peer)} == {Status.ENOLEDGER}
    assert len(peer.frames()) == 40


@pytest.mark.parametrize("seed", range(20))
def test_absent_ledgers_among_others_are_found_whatever_their_order(twin: BookieTwin, seed: int) -> None:
    choice = random.Random(seed)
    present = {UNKNOWN + number for number in choice.sample(range(60), 12)}
    for ledger_id in present:
        twin.store.create_ledger(ledger_id, KEY)
    bench, peer = Bench(twin), Peer()
    asked = [(UNKNOWN + choice.randrange(60), choice.randrange(2)) for _ in range(100)]
    reading = v2_reads(peer, *asked)
    while len(reading):
        bench.reads.answer(reading, turn_of(choice.choice([1, 3, 100])))
    status = {True: Status.ENOENTRY, False: Status.ENOLEDGER}
    assert sorted(answers(peer)) == sorted((*each, status[each[0] in present]) for each in asked)


def test_requests_of_ledgers_that_alternate_are_found_by_one_look(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(v2_reads(peer, (SPARSE, 20), (DENSE, 20), (SPARSE, 20), (DENSE, 21)))
    assert answers(peer) == [(DENSE, 20, 0), (DENSE, 21, 0), (SPARSE, 20, 0), (SPARSE, 20, 0)]
    assert bench.view.hits == 1
    bench.reads.enqueue(v2_reads(peer, (DENSE, 22), (DENSE, 23)))
    assert bench.view.hits == 2


def test_answers_are_sent_in_pieces_of_the_size_that_is_configured(twin: BookieTwin) -> None:
    bench, peer = Bench(twin, options=ReadOptions(replies_bytes_max=1)), Peer()
    bench.reads.enqueue(v2_reads(peer, *((DENSE, entry_id) for entry_id in range(20, 26))))
    assert answers(peer) == [(DENSE, entry_id, 0) for entry_id in range(20, 26)]
    assert len(peer.pieces) == 6


def test_batch_that_was_fetched_for_a_peer_that_takes_nothing_now_is_fetched_again_when_it_does(
    twin: BookieTwin,
) -> None:
    """Such a response has megabytes."""
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(BatchRead(peer, LARGE, 0, 9, 1, 5000))
    peer.take(is_taking=False)
    bench.fetch_one()
    assert (peer.sent, bench.reads.waiting) == (b"", 1)
    peer.take(is_taking=True)
    bench.finish()
    assert (len(peer.pieces), bench.reads.waiting) == (1, 0)


def test_piece_of_exactly_the_configured_size_gets_no_other_answer(twin: BookieTwin) -> None:
    peer = Peer()
    Bench(twin).reads.enqueue(v2_reads(peer, (DENSE, 20)))
    size = len(peer.sent)
    bench, peer = Bench(twin, options=ReadOptions(replies_bytes_max=size)), Peer()
    bench.reads.enqueue(v2_reads(peer, *[(DENSE, 20)] * 4))
    assert peer.pieces == [size] * 4


def test_entries_after_a_refusal_fill_no_more_than_the_configured_size(twin: BookieTwin) -> None:
    sizes = []
    for asked in ((UNKNOWN, 0), (DENSE, 20)):
        peer = Peer()
        Bench(twin).reads.enqueue(v2_reads(peer, asked))
        sizes.append(len(peer.sent))
    bench, peer = Bench(twin, options=ReadOptions(replies_bytes_max=sum(sizes))), Peer()
    bench.reads.enqueue(v2_reads(peer, (UNKNOWN, 0), *[(DENSE, 20)] * 6))
    assert peer.pieces[0] == sum(sizes)
    assert len(answers(peer)) == 7


def test_ledger_that_began_after_an_earlier_turn_looked_for_it_is_found(twin: BookieTwin) -> None:
    """X1: a negative answer is true at the moment at which it is given."""
    twin.serve(SILENT, add_frame(KEY, entry(UNKNOWN + 2, 0)))
    twin.settle()
    bench, peer = Bench(twin), Peer()
    reading = v2_reads(peer, *((UNKNOWN + number, 0) for number in range(5)))
    assert not bench.reads.answer(reading, turn_of(2))
    assert [status for *_, status in answers(peer)] == [Status.ENOLEDGER, Status.ENOLEDGER, Status.EOK]
    twin.serve(SILENT, add_frame(KEY, entry(UNKNOWN + 4, 0)))
    twin.settle()
    assert bench.reads.answer(reading, turn_of(9))
    assert [status for *_, status in answers(peer)][3:] == [Status.ENOLEDGER, Status.EOK]


def test_ledger_in_limbo_among_unknown_ones_is_not_certainly_absent(twin: BookieTwin) -> None:
    """B2, P29: the bookie may have lost all that it knew of it. V2 has no status for that but an error."""
    twin.store.limbo.begin([UNKNOWN + 3])
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(v2_reads(peer, *((UNKNOWN + number, 0) for number in range(6))))
    assert [status for *_, status in answers(peer)] == [
        Status.EIO if number == 3 else Status.ENOLEDGER for number in range(6)
    ]


def test_absent_ledgers_are_looked_up_several_at_once(twin: BookieTwin) -> None:
    looks: list[int] = []

    def absent(old: Any, self: BaseLedgerStorage, ledger_ids: np.ndarray) -> Any:
        looks.append(len(ledger_ids))
        return old(self, ledger_ids)

    with around(BaseLedgerStorage, "absent", absent):
        bench, peer = Bench(twin), Peer()
        bench.reads.enqueue(v2_reads(peer, *((UNKNOWN + number, 0) for number in range(40))))
    assert len(peer.frames()) == 40
    # The first one is looked up alone.
    assert looks == [16, 16, 7]


def test_more_requests_than_are_sorted_at_once_are_all_answered(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    asked = [HELD[number % 3] for number in range(9000)]
    bench.reads.enqueue(v2_reads(peer, *asked))
    bench.finish()
    assert sorted(answers(peer)) == sorted((*each, Status.EOK) for each in asked)


# ---- what waits ----


def test_requests_that_wait_are_copied_out_of_the_receive_buffer(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    reading = v2_reads(peer, (LARGE, 0), (LARGE, 1))
    ledgers, entries = reading.ledger_ids, reading.entry_ids
    assert bench.reads.answer(reading, ENDLESS)
    ledgers[:], entries[:] = UNKNOWN, 77
    bench.finish()
    assert [v2_answer(frame) for frame in peer.frames()] == [v2_expected(LARGE, 0), v2_expected(LARGE, 1)]


def test_requests_that_wait_keep_their_transactions_when_those_after_them_are_refused(twin: BookieTwin) -> None:
    bench, peer = Bench(twin, options=ReadOptions(waiting_max=3)), Peer()
    assert bench.reads.refused == 0
    asked = [(LARGE, entry_id % 4) for entry_id in range(5)]
    bench.reads.enqueue(v3_reads(peer, 70, *asked))
    bench.finish()
    responses = {it.header.txnId: it for it in (protocol.Response.FromString(frame[4:]) for frame in peer.frames())}
    assert sorted(responses) == list(range(70, 75))
    for number, response in sorted(responses.items()):
        is_refused = number >= 73
        assert response.status == (v3.code_of(Status.ETOOMANYREQUESTS) if is_refused else protocol.EOK)
        assert response.readResponse.entryId == asked[number - 70][1]
    assert bench.reads.refused == 2


def test_reads_that_are_refused_because_too_many_wait_are_counted_as_failures(twin: BookieTwin) -> None:
    """The share of successful reads, which published dashboards show, stayed at 1 while a bookie refused reads."""
    times = RequestTimes(lambda: 5_000_000_000)
    bench, peer = Bench(twin), Peer()
    view = View(twin.store, twin.disks.known_space, ReadOptions(waiting_max=3))
    reads = Reads(view, bench.fetch, bench.turns, lambda: None, times)
    for _ in range(400):
        reads.enqueue(v2_reads(peer, *[(LARGE, entry_id % 4) for entry_id in range(5)]))
        assert len(times.reads.rows) < ROWS_MAX
    times.fold()
    assert (times.failed.count(READ_ENTRY), reads.refused) == (400 * 5 - 3, 400 * 5 - 3)


def test_nothing_waits_any_more_for_a_connection_that_is_closed(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(v2_reads(peer, (LARGE, 0), (DENSE, 0)))
    assert bench.reads.waiting == 2
    peer.close()
    bench.finish()
    assert (bench.reads.waiting, peer.sent) == (0, b"")


def test_connection_that_is_closed_by_an_answer_gets_no_other(twin: BookieTwin) -> None:
    bench, peer = Bench(twin, options=ReadOptions(replies_bytes_max=1)), ClosingPeer()
    bench.reads.enqueue(v2_reads(peer, (LARGE, 0), (LARGE, 1), (LARGE, 2)))
    bench.finish()
    assert answers(peer) == [(LARGE, 0, 0)]
    assert bench.reads.waiting == 0


# ---- LACs ----


def test_each_of_several_ledgers_is_answered_with_its_own_lac(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(v3_reads(peer, 70, *HELD))
    for frame in peer.frames():
        check_v3(frame, HELD[protocol.Response.FromString(frame[4:]).header.txnId - 70])
    assert (len(peer.frames()), bench.view.hits) == (3, 1)


def test_lac_of_a_damaged_last_entry_is_that_which_is_known_from_the_first_answer_on(twin: BookieTwin) -> None:
    twin.serve(SILENT, add_frame(KEY, entry(BAD_END, 3)))
    twin.settle()
    bench, peer = Bench(twin), Peer()
    for txn_id in (70, 71):
        bench.reads.enqueue(v3_reads(peer, txn_id, (BAD_END, 3)))
        bench.finish()
    for frame in peer.frames():
        check_v3(frame, (BAD_END, 3))
    assert len(peer.frames()) == 2


def test_entry_is_read_with_the_lac_that_is_known_where_the_disk_of_the_last_entry_fails(
    twin: BookieTwin, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = twin.store.ledger(LARGE)
    error = OSError(5, "Input/output error")
    with failing("read", error, lambda asked, first_entry, *_: first_entry == ledger.last_entry):
        bench, peer = Bench(twin), Peer()
        bench.reads.enqueue(v3_reads(peer, 70, (LARGE, 0)))
        bench.finish()
    (frame,) = peer.frames()
    response = protocol.Response.FromString(frame[4:])
    assert (response.status, response.readResponse.maxLAC) == (protocol.EOK, -1)
    assert not [record for record in caplog.records if record.exc_info]


# ---- errors ----


def test_failing_disk_is_not_logged_as_a_defect(twin: BookieTwin, caplog: pytest.LogCaptureFixture) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(v2_reads(peer, (LARGE, 0)))
    bench.fail_one()
    assert answers(peer) == [(LARGE, 0, Status.EIO)]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("error", [StorageDamaged("its index file is damaged"), OSError(5, "Input/output error")])
def test_ledger_that_cannot_be_looked_up_is_not_logged_as_a_defect(
    twin: BookieTwin, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with failing("ledger", error, lambda ledger_id: ledger_id == DENSE):
        bench, peer = Bench(twin), Peer()
        bench.reads.enqueue(v2_reads(peer, (DENSE, 20), (DENSE, 21), (SPARSE, 20)))
    assert [status for *_, status in answers(peer)] == [Status.EIO, Status.EIO, Status.EOK]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("failed", [DENSE, SPARSE, 101])
def test_ledger_that_cannot_be_looked_up_is_an_error_for_its_own_requests_alone(twin: BookieTwin, failed: int) -> None:
    twin.store.create_ledger(101, KEY)
    error = OSError(5, "Input/output error")
    with failing("ledger", error, lambda ledger_id: ledger_id == failed):
        bench, peer = Bench(twin), Peer()
        bench.reads.enqueue(v2_reads(peer, (DENSE, 20), (SPARSE, 20), (SPARSE, 20), (101, 0), (DENSE, 21)))
    status = {DENSE: Status.EOK, SPARSE: Status.EOK, 101: Status.ENOENTRY, failed: Status.EIO}
    expected = [(DENSE, 20), (DENSE, 21), (SPARSE, 20), (SPARSE, 20), (101, 0)]
    assert sorted(answers(peer)) == sorted((*each, status[each[0]]) for each in expected)
    for frame in peer.frames():
        ledger_id, entry_id, found, body = v2_answer(frame)
        assert body == (entry(ledger_id, entry_id) if found == Status.EOK else b"")


def test_ledger_that_cannot_be_looked_up_costs_a_request(twin: BookieTwin) -> None:
    peer = Peer()
    reading = v2_reads(peer, (DENSE, 20), (DENSE, 21), (SPARSE, 20), (SPARSE, 20))
    with failing("ledger", OSError(5, "Input/output error")):
        bench = Bench(twin)
        assert not bench.reads.answer(reading, turn_of(1))
    assert answers(peer) == [(DENSE, 20, Status.EIO), (DENSE, 21, Status.EIO)]


@pytest.mark.parametrize(
    ("error", "is_defect"), [(OSError(5, "Input/output error"), False), (ValueError("a defect"), True)], ids=str
)
def test_look_at_several_ledgers_that_fails_is_repeated_for_each_and_a_defect_is_logged(
    twin: BookieTwin, caplog: pytest.LogCaptureFixture, error: Exception, is_defect: bool
) -> None:
    def several(ledgers: Sequence[Ledger], *_: object) -> bool:
        return len(ledgers) > 1

    with failing("read_each", error, several):
        bench, peer = Bench(twin), Peer()
        bench.reads.enqueue(v2_reads(peer, *HELD))
    assert answers(peer) == [(*each, Status.EOK) for each in HELD]
    assert [record.exc_info is not None for record in caplog.records] == [True] * is_defect


def test_request_with_an_unexpected_error_is_answered_once(twin: BookieTwin) -> None:
    with failing("read", ValueError("a defect")):
        bench, peer = Bench(twin), Peer()
        bench.reads.enqueue(BatchRead(peer, DENSE, 20, 9, 1, 5000))
    (frame,) = peer.frames()
    assert struct.unpack_from(">i", frame, 8) == (Status.EIO,)


def test_requests_that_fail_one_after_the_other_end_a_turn_as_others_do(twin: BookieTwin) -> None:
    peer = Peer()
    reading = v2_reads(peer, *((DENSE, entry_id) for entry_id in range(20, 26)))
    with failing("ledger", ValueError("a defect")):
        bench = Bench(twin)
        assert not bench.reads.answer(reading, turn_of(2))
    assert answers(peer) == [(DENSE, entry_id, Status.EIO) for entry_id in (20, 21)]


def test_reading_that_was_refused_has_no_requests_left(twin: BookieTwin) -> None:
    peer = Peer()
    reading = v2_reads(peer, *HELD)
    reading.refuse(Status.EUA)
    assert (len(reading), answers(peer)) == (0, [(*each, Status.EUA) for each in HELD])


# ---- what is counted ----


def test_view_counts_looks_entries_bytes_and_misses(twin: BookieTwin) -> None:
    bench = Bench(twin)
    view, ledger = bench.view, twin.store.ledger(DENSE)

    def counted() -> tuple[int, int, int, int]:
        return view.hits, view.entries_read, view.bytes_read, view.misses

    assert counted() == (0, 0, 0, 0)
    size = 4 + len(entry(DENSE, 20))
    assert view.read(ledger, 20, 1, 0, None)
    assert counted() == (1, 1, size, 0)
    assert view.read(ledger, 21, 2, 1000, None)
    sizes = size + sum(4 + len(entry(DENSE, entry_id)) for entry_id in (21, 22))
    assert counted() == (2, 3, sizes, 0)
    view.read_each([ledger], [2], np.array([20, 23]), 1000, None)
    sizes += sum(4 + len(entry(DENSE, entry_id)) for entry_id in (20, 23))
    assert counted() == (3, 5, sizes, 0)
    peer = Peer()
    bench.reads.enqueue(v2_reads(peer, (LARGE, 0)))
    bench.reads.enqueue(v2_reads(peer, (LARGE, 0), (LARGE, 1)))
    assert counted() == (3, 5, sizes, 2)
    # What came from the disk is not a hit. It counted as a miss and as a hit.
    bench.finish()
    assert counted()[0::3] == (3, 2)
    bench.reads.enqueue(v2_reads(peer, *HELD[:1]))
    assert counted()[0::3] == (4, 2)


def test_times_of_reads_begin_when_they_were_received_and_say_how_many_failed(twin: BookieTwin) -> None:
    now_ns = 5_000_000_000
    times = RequestTimes(lambda: now_ns)
    bench = Bench(twin)
    view = View(twin.store, twin.disks.known_space, ReadOptions())
    reads = Reads(view, bench.fetch, bench.turns, lambda: None, times)
    peer = Peer()
    reads.enqueue(v2_reads(peer, *HELD))
    reads.enqueue(v2_reads(peer, (DENSE, 20), (SPARSE, 9), (SPARSE, 10)))
    times.fold()
    assert (times.succeeded.count(READ_ENTRY), times.failed.count(READ_ENTRY)) == (4, 2)
    # None was received earlier than it was answered.
    assert (times.succeeded.sum(READ_ENTRY), times.failed.sum(READ_ENTRY)) == (0, 0)
    times.received_ns = now_ns
    reads.enqueue(v2_reads(peer, (LARGE, 0)))
    now_ns += 3_000_000
    bench.fetch_one()
    times.fold()
    assert times.read_stages.count(1) == 1
    assert times.read_stages.sum(1) == times.succeeded.sum(READ_ENTRY) == 3000


def test_failures_of_other_readings_are_counted_as_failures(twin: BookieTwin) -> None:
    """They were counted as successes, also the answer that there is no such ledger."""
    times = RequestTimes(lambda: 5)
    bench, peer = Bench(twin), Peer()

    def failing_space() -> NoReturn:
        raise OSError("the disk is gone")

    view = View(twin.store, failing_space, ReadOptions())
    reads = Reads(view, bench.fetch, bench.turns, lambda: None, times)
    reads.enqueue(lac_reads(peer, 1, UNKNOWN, DENSE, UNKNOWN))
    reads.enqueue(SpaceRead(peer, request(protocol.GET_BOOKIE_INFO, 7)))
    bench.finish()
    times.fold()
    assert (times.succeeded.count(READ_LAC), times.failed.count(READ_LAC)) == (1, 2)
    assert (times.succeeded.count(GET_BOOKIE_INFO), times.failed.count(GET_BOOKIE_INFO)) == (0, 1)


def test_no_times_of_reads_are_kept_while_they_are_off(twin: BookieTwin) -> None:
    times = RequestTimes()
    bench, peer = Bench(twin), Peer()
    Reads(bench.view, bench.fetch, bench.turns, lambda: None, times).enqueue(v2_reads(peer, *HELD))
    assert (len(peer.frames()), times.reads.rows) == (3, [])


def test_responses_of_no_operation_have_no_times(twin: BookieTwin) -> None:
    times = RequestTimes(lambda: 5)
    bench, peer = Bench(twin), Peer()
    Reads(bench.view, bench.fetch, bench.turns, lambda: None, times).enqueue(KnownResponse(peer, b"response"))
    times.fold()
    assert peer.sent == b"response"
    assert [times.succeeded.count(operation) for operation in range(len(OPERATIONS))] == [0] * len(OPERATIONS)


# ---- pace ----


@pytest.mark.parametrize(
    ("done", "per_second", "elapsed_s", "expected"),
    [(10, 5, 0.5, 1.5), (10, 5, 2.0, 0.0), (10, 5, 3.0, 0.0), (10, 0, 0.0, 0.0), (1, 1, 0.0, 1.0)],
)
def test_background_work_pauses_until_its_rate_holds(
    done: int, per_second: int, elapsed_s: float, expected: float
) -> None:
    assert pause_s(done, per_second, elapsed_s) == expected


def test_last_entry_that_cannot_be_read_is_not_read_again_for_every_lac(tmp_path: Path) -> None:
    """With an empty page cache a read would fetch this entry and its own in alternation."""
    files = FaultyFiles()
    bench = collecting.Bench(tmp_path, files)
    bench.put(1, range(3))
    bench.flush()
    bench.reopen()
    view = View(bench.store, lambda: files.space(str(tmp_path)), ReadOptions())
    ledger = view.ledger(1)
    assert ledger is not None
    files.fault = lambda operation, path: operation == "read" and path.endswith(".log")
    assert view.known_lac(ledger) == NO_ENTRY
    files.fault = None
    files.operations.clear()
    assert view.known_lac(ledger) == NO_ENTRY
    assert [path for operation, path in files.operations if path.endswith(".log")] == []
    bench.store.close()


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
def test_what_was_fetched_in_a_long_turn_of_the_event_loop_is_answered_in_the_next(
    twin: BookieTwin, leaves: bool
) -> None:
    """Several fetches may end at the same time, and a reply to a batch read has up to 5 MiB."""
    loop, peers = EventLoopTurns(Bench(twin)), [Peer(), Peer()]
    for peer in peers:
        loop.reads.enqueue(v2_reads(peer, (DENSE, 0)))
    loop.bench.fetch_one()
    assert [bool(peer.sent) for peer in peers] == [True, False]
    loop.use_up()
    loop.bench.fetch_one()
    assert not peers[1].sent
    if leaves:
        peers[1].close()
    loop.next()
    assert bool(peers[1].sent) is not leaves
    assert loop.reads.waiting == 0


def test_bytes_that_were_fetched_and_wait_for_a_turn_are_limited(twin: BookieTwin) -> None:
    """`ReadOptions`: "queued_bytes_max: bytes that were fetched and wait for a turn of their connection." Each queued
    batch read kept up to 5 MiB, and one connection may have tens of thousands of them."""
    limit = 20_000
    loop, peer = EventLoopTurns(Bench(twin, options=ReadOptions(queued_bytes_max=limit))), Peer()
    bench = loop.bench
    for number in range(40):
        loop.reads.enqueue(BatchRead(peer, LARGE, 0, number, 4, 5000))
    loop.use_up()
    fetched: list[bytes] = []
    for place, callback in list(bench.fetches):
        fetched.append(bench.bytes_of(place))
        callback(Fetched(place, fetched[-1]))
    bench.fetches.clear()
    # The list, the name, and the argument of the call refer to each; whatever else does is Reads.
    held = sum(len(data) for data in fetched if sys.getrefcount(data) > 3)
    assert limit / 2 < held <= limit < sum(map(len, fetched)) / 2
    assert (peer.sent, loop.reads.waiting) == (b"", 40)
    while bench.queue or bench.fetches:
        loop.next()
        loop.use_up()
        while bench.fetches:
            bench.fetch_one()
    assert (len(peer.frames()), loop.reads.waiting) == (40, 0)


def test_fetched_bytes_beyond_the_limit_wait_for_a_turn_where_nothing_else_does(twin: BookieTwin) -> None:
    """Where the file system cannot tell what is cached, a read would be fetched again for ever."""
    loop, peer = EventLoopTurns(Bench(twin, options=ReadOptions(queued_bytes_max=0))), Peer()
    bench = loop.bench
    for number in range(2):
        loop.reads.enqueue(BatchRead(peer, LARGE, 0, number, 4, 5000))
    loop.use_up()
    bench.fetch_one()
    bench.fetch_one()
    bench.step()
    bench.step()
    assert (len(peer.frames()), len(bench.fetches), loop.reads.waiting) == (1, 1, 1)
