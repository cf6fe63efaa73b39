"""Requests that change nothing, against a dictionary: whatever waits for the disk, for its peer or for its turn.

The real storage on a simulated disk whose entry logs are never in the page cache, the real readings, and peers that
take their replies only now and then.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable

import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.engine.reads import Reading, ReadOptions, ids_of
from bookie_service.engine.single_reads import SingleReads
from bookie_service.engine.turns import TurnLimits
from bookie_service.network.response_encoders import V2_RESPONSES
from bookie_service.network.v2_batch_read import BatchRead
from tests.bookie import readings
from tests.bookie.readings import (
    BAD_END,
    BOTH,
    DENSE,
    EMPTY_LIMBO,
    ENTRIES,
    EXPLICIT,
    LARGE,
    LIMBO,
    ONLY_LAC,
    SPARSE,
    UNKNOWN,
    Bench,
    Peer,
    absence,
    check_lac,
    check_v3,
    lac_reads,
    of_v2,
    single,
    v2_answer,
    v2_expected,
    v2_reads,
    v3_reads,
)
from tests.crash.twins import BookieTwin

# ---- what is expected ----

twin = readings.twin


def batch(ledger_id: int, first_entry: int, count_max: int, bytes_max: int) -> tuple[Status, bytes]:
    held = ENTRIES.get(ledger_id, [])
    if first_entry == v2.LAST_ENTRY:
        first_entry, count_max = (held[-1] if held and ledger_id != LIMBO else -1), 1
    status, found = single(ledger_id, first_entry) if first_entry >= 0 else (absence(ledger_id), b"")
    if status != Status.EOK:
        return status, b""
    items, room = b"", bytes_max - 36
    while status == Status.EOK and (not items or len(items) + 4 + len(found) <= room):
        items += len(found).to_bytes(4, "big") + found
        first_entry, count_max = first_entry + 1, count_max - 1
        if not count_max:
            break
        status, found = single(ledger_id, first_entry)
    return Status.EOK, items


# ---- requests ----


def any_read(choice: random.Random) -> tuple[int, int]:
    ledger_id = choice.choice([*ENTRIES, *ENTRIES, *EXPLICIT, EMPTY_LIMBO, UNKNOWN, UNKNOWN + choice.randrange(5)])
    return ledger_id, choice.choice([-2, -1, 0, 1, 2, 3, 4, 7, 8, 19, 20, 29, 30, choice.randrange(31)])


def runs(choice: random.Random, count: int) -> list[tuple[int, int]]:
    """Return reads as clients send them: runs of consecutive entries among single ones and unknown ledgers."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        ledger_id, first = any_read(choice)
        found += [(ledger_id, first + i) for i in range(choice.choice([1, 1, 1, 3, 12]) if first >= 0 else 1)]
    return found


class MixedReads:
    """Reads of all kinds by some peers, what must be answered to each, and whether it was."""

    def __init__(self, peers: list[Peer], choice: random.Random) -> None:
        self.peers = peers
        self._choice = choice
        self._expected: list[Counter[object]] = [Counter() for _ in peers]
        self._v3: dict[int, tuple[int, int]] = {}
        self._lacs: dict[int, int] = {}
        self._batches: dict[int, tuple[int, int, int, int]] = {}

    def ask(self, number: int) -> tuple[Peer, Reading]:
        """Return a reading and who asks for it."""
        choice, first_txn_id = self._choice, 1000 * (number + 1)
        kind, asked = choice.randrange(4), runs(choice, choice.randrange(1, 40))
        at = choice.randrange(len(self.peers))
        peer, expected = self.peers[at], self._expected[at]
        if kind == 0:
            expected.update(v2_expected(*each) for each in asked)
            return peer, v2_reads(peer, *asked)
        if kind == 1:
            self._v3.update((first_txn_id + i, each) for i, each in enumerate(asked))
            expected.update(range(first_txn_id, first_txn_id + len(asked)))
            return peer, v3_reads(peer, first_txn_id, *asked)
        if kind == 2:
            self._lacs.update((first_txn_id + i, each[0]) for i, each in enumerate(asked))
            expected.update(range(first_txn_id, first_txn_id + len(asked)))
            return peer, lac_reads(peer, first_txn_id, *(ledger_id for ledger_id, _ in asked))
        limits = (choice.choice([0, 1, 2, 5, 100]), choice.choice([0, 36, 100, 150, 2000, 1 << 20]))
        self._batches[number] = (*asked[0], *limits)
        expected[-1 - number] += 1
        return peer, BatchRead(peer, *asked[0], number, *limits)

    def check(self) -> None:
        """Check the answers: each once, and right."""
        for peer, expected in zip(self.peers, self._expected):
            expected.subtract(map(self._checked, peer.frames()))
            assert not any(expected.values()), expected

    def _checked(self, frame: bytes) -> object:
        """Check an answer; return what it answers."""
        if frame[4] == v2.VERSION:
            return v2_answer(frame) if frame[5] == v2.READ else self._checked_batch(frame)
        txn_id = protocol.Response.FromString(frame[4:]).header.txnId
        if txn_id in self._v3:
            check_v3(frame, self._v3[txn_id])
        else:
            check_lac(frame, self._lacs[txn_id])
        return txn_id

    def _checked_batch(self, frame: bytes) -> object:
        assert frame[5] == v2.BATCH_READ
        status, ledger_id, first_entry, number = struct.unpack_from(">iqqq", frame, 8)
        asked = self._batches[number]
        found = batch(asked[0], asked[1], asked[2] or 1 << 30, asked[3])
        assert (ledger_id, first_entry) == asked[:2]
        items = frame[4 + v2.BATCH_REPLY_BYTES :]
        assert status == of_v2(found[0]), asked
        if asked[0] in (LARGE, BAD_END):
            # They are in several logs. A client that reads on is answered from the next one.
            assert found[1].startswith(items), asked
            assert bool(items) == bool(found[1]), asked
        else:
            assert items == found[1], asked
        return -1 - number


@pytest.mark.parametrize("seed", range(6))
def test_readings_are_answered_as_a_dictionary_would_whatever_they_wait_for(twin: BookieTwin, seed: int) -> None:
    choice = random.Random(seed)
    requests = choice.choice([1, 3, 1 << 20])
    options = ReadOptions(replies_bytes_max=choice.choice([1, 200, 1 << 20]))
    bench = Bench(twin, TurnLimits(requests, 1.0), options)
    reads = MixedReads([Peer() for _ in range(3)], choice)
    waiting = [reads.ask(number) for number in range(40)]

    def offer() -> None:
        peer, reading = waiting[0]
        turn = bench.turns.begin(peer)
        if choice.random() < 0.3 or not peer.is_taking:
            bench.reads.enqueue(reading, turn)
        elif not bench.reads.answer(reading, turn):
            return
        del waiting[0]

    while waiting or bench.queue or bench.fetches or not all(peer.is_taking for peer in reads.peers):
        what = choice.random()
        if what < 0.3 and waiting:
            offer()
        elif what < 0.5 and bench.fetches:
            bench.fetch_one(choice.randrange(len(bench.fetches)))
        elif what < 0.7:
            bench.step()
        else:
            choice.choice(reads.peers).take(is_taking=not waiting or choice.random() < 0.6)
    assert bench.reads._waiting == 0
    reads.check()


def test_read_whose_ledger_ends_in_a_damaged_entry_far_away_is_answered(twin: BookieTwin) -> None:
    """It never was where nothing stays in the page cache: the entry and the last one were fetched in turn, for ever."""
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(v3_reads(peer, 1, (BAD_END, 0)))
    for _ in range(8):
        if bench.fetches:
            bench.fetch_one()
    assert not bench.fetches
    (frame,) = peer.frames()
    check_v3(frame, (BAD_END, 0))


# ---- limits ----


def test_requests_beyond_those_that_may_wait_are_refused_and_the_others_answered(twin: BookieTwin) -> None:
    bench, peer = Bench(twin, options=ReadOptions(waiting_max=5)), Peer()
    asked = [(DENSE, entry_id) for entry_id in range(12)]
    bench.reads.enqueue(v2_reads(peer, *asked))
    assert [v2_answer(frame) for frame in peer.frames()] == [
        (DENSE, entry_id, Status.ETOOMANYREQUESTS, b"") for entry_id in range(5, 12)
    ]
    bench.reads.enqueue(lac_reads(peer, 50, LARGE, BOTH))
    bench.reads.enqueue(BatchRead(peer, LARGE, 0, 9, 1, 5000))
    bench.reads.enqueue(v3_reads(peer, 70, (BOTH, 0)))
    refused = [protocol.Response.FromString(frame[4:]) for frame in peer.frames()[7:] if frame[4] != v2.VERSION]
    assert [(it.header.txnId, it.status) for it in refused] == [
        (50, v3.code_of(Status.ETOOMANYREQUESTS)),
        (51, v3.code_of(Status.ETOOMANYREQUESTS)),
        (70, v3.code_of(Status.ETOOMANYREQUESTS)),
    ]
    (refused_batch,) = [frame for frame in peer.frames() if frame[5] == v2.BATCH_READ]
    assert struct.unpack_from(">iqqq", refused_batch, 8) == (Status.ETOOMANYREQUESTS, LARGE, 0, 9)
    count = len(peer.frames())
    bench.finish()
    assert [v2_answer(frame) for frame in peer.frames()[count:]] == [v2_expected(*each) for each in asked[:5]]
    # There is room again, for exactly this many.
    bench.reads.enqueue(v2_reads(peer, *asked[:5]))
    assert len(peer.frames()) == count + 5
    bench.finish()
    assert [v2_answer(frame) for frame in peer.frames()[count + 5 :]] == [v2_expected(*each) for each in asked[:5]]


def test_lacs_beyond_those_that_may_wait_are_refused_alone(twin: BookieTwin) -> None:
    bench, peer = Bench(twin, options=ReadOptions(waiting_max=2)), Peer()
    bench.reads.enqueue(lac_reads(peer, 50, LARGE, BOTH, DENSE, SPARSE))
    refused = [protocol.Response.FromString(frame[4:]) for frame in peer.frames()]
    # The last entries of two are in the write cache, after those that must be fetched.
    assert [(it.header.txnId, it.status) for it in refused] == [
        (52, v3.code_of(Status.ETOOMANYREQUESTS)),
        (53, v3.code_of(Status.ETOOMANYREQUESTS)),
    ]
    bench.finish()
    check_lac(peer.frames()[2], LARGE)
    check_lac(peer.frames()[3], BOTH)


def test_client_that_waits_for_room_is_called_once_when_few_enough_reads_are_in_flight(twin: BookieTwin) -> None:
    bench, peer = Bench(twin, options=ReadOptions(in_flight_max=3)), Peer()
    bench.reads.enqueue(v2_reads(peer, (DENSE, 0), (DENSE, 1)))
    assert not bench.reads.is_full
    bench.finish()
    assert bench.rooms == 0
    bench.reads.enqueue(v2_reads(peer, (DENSE, 0), (DENSE, 1)))
    bench.reads.enqueue(v2_reads(peer, (BOTH, 0)))
    assert bench.reads.is_full
    bench.finish()
    assert not bench.reads.is_full
    assert bench.rooms == 1
    assert len(peer.frames()) == 5


def test_reads_of_a_connection_that_is_gone_make_room(twin: BookieTwin) -> None:
    bench, peer = Bench(twin, options=ReadOptions(in_flight_max=2)), Peer()
    bench.reads.enqueue(v2_reads(peer, (DENSE, 0), (DENSE, 1)))
    peer.close()
    assert bench.reads.is_full
    bench.finish()
    assert (bench.reads.is_full, bench.rooms, peer.sent) == (False, 1, b"")


def test_peer_that_takes_nothing_is_sent_nothing_until_it_does(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    peer.take(is_taking=False)
    bench.reads.enqueue(v2_reads(peer, (UNKNOWN, 0), (DENSE, 0)))
    bench.finish()
    assert peer.sent == b""
    peer.take(is_taking=True)
    bench.finish()
    assert [v2_answer(frame) for frame in peer.frames()] == [v2_expected(UNKNOWN, 0), v2_expected(DENSE, 0)]


# ---- errors of the disk ----


@pytest.mark.parametrize("ask", [v2_reads, lambda peer, *asked: v3_reads(peer, 1, *asked)])
def test_disk_that_fails_answers_an_error_for_what_it_could_not_read_alone(
    twin: BookieTwin, ask: Callable[..., SingleReads]
) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(ask(peer, (LARGE, 0), (UNKNOWN, 0), (DENSE, 20)))
    bench.fail_one()
    bench.finish()
    answers = peer.frames()
    assert len(answers) == 3
    if answers[0][4] == v2.VERSION:
        found = {(ledger_id, entry_id): status for ledger_id, entry_id, status, _ in map(v2_answer, answers)}
        assert found == {(LARGE, 0): Status.EIO, (UNKNOWN, 0): Status.ENOLEDGER, (DENSE, 20): Status.EOK}


def test_unreadable_last_entry_is_an_error_only_for_the_lac_and_the_end_of_its_ledger(twin: BookieTwin) -> None:
    bench, peer = Bench(twin), Peer()
    bench.reads.enqueue(lac_reads(peer, 50, BOTH, LARGE))
    bench.fail_one()
    bench.finish()
    failed, good = peer.frames()
    assert protocol.Response.FromString(failed[4:]).status == v3.code_of(Status.EIO)
    check_lac(good, LARGE)
    bench.reads.enqueue(BatchRead(peer, LARGE, 0, 9, 1, 5000))
    bench.fail_one()
    assert struct.unpack_from(">i", peer.frames()[2], 8) == (Status.EIO,)


def test_lac_at_hand_is_what_is_known_without_the_disk(twin: BookieTwin) -> None:
    view = Bench(twin).view
    assert view.lac_at_hand(UNKNOWN) == -1
    assert view.lac_at_hand(ONLY_LAC) == EXPLICIT[ONLY_LAC]
    assert view.lac_at_hand(DENSE) == 28
    assert view.lac_at_hand(LARGE) == -1  # its last entry is not at hand
    assert [view.is_in_limbo(ledger_id) for ledger_id in (LIMBO, EMPTY_LIMBO, DENSE, UNKNOWN)] == [
        True,
        True,
        False,
        False,
    ]


def test_readings_are_waited_for_until_the_last_of_their_client_is_answered_or_it_is_gone(twin: BookieTwin) -> None:
    bench, staying, leaving = Bench(twin), Peer(), Peer()
    for peer in (staying, leaving):
        for entry_id in (2, 3):
            bench.reads.enqueue(SingleReads(peer, V2_RESPONSES, *ids_of(SPARSE, entry_id)))
    assert set(bench.reads.clients()) == {staying, leaving}
    bench.fetch_one()
    assert set(bench.reads.clients()) == {staying, leaving}
    bench.fetch_one()
    assert set(bench.reads.clients()) == {leaving}
    leaving.close()
    bench.finish()
    assert set(bench.reads.clients()) == set()
    assert len(staying.frames()) == 2
