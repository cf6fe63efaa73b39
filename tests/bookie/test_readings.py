"""Requests that change nothing, against a dictionary: whatever waits for the disk, for its peer or for its turn.

The real storage on a simulated disk whose entry logs are never in the page cache, the real readings, and peers that
take their replies only now and then.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.engine.reads import Reading, ReadOptions, Reads, View, ids_of
from bookie_service.engine.single_reads import SingleReads
from bookie_service.engine.turns import TurnLimits, Turns
from bookie_service.network.response_encoders import V2_RESPONSES, V3Responses
from bookie_service.network.v2_batch_read import BatchRead
from bookie_service.network.v3_lac_reads import LacReads
from bookie_service.storage.io.byte_source import Fetched, FileRange
from tests.crash.history import History
from tests.crash.simulated_files import SimulatedFile, SimulatedFiles
from tests.crash.twins import SILENT, BookieTwin, Setup, add_frame, lac_packet, sealed

DENSE, SPARSE, LARGE, DAMAGED, ONLY_LAC, BOTH, LIMBO, EMPTY_LIMBO, BAD_END, UNKNOWN = 5, 6, 7, 8, 9, 10, 11, 12, 13, 100
KEY = b"k" * 20
ENTRIES: dict[int, list[int]] = {
    DENSE: list(range(30)),
    SPARSE: [2, 3, 7, 8, 20],
    LARGE: [0, 1, 2, 3],
    DAMAGED: list(range(6)),
    BOTH: [0, 1],
    LIMBO: [0, 1, 4],
    BAD_END: list(range(8)),
}
EXPLICIT = {ONLY_LAC: 7, BOTH: 1, LIMBO: 3}
BROKEN = {(DAMAGED, 3), (BAD_END, 7)}


def entry(ledger_id: int, entry_id: int) -> bytes:
    size = 700 if ledger_id in (LARGE, BAD_END) else 1 + (ledger_id + entry_id) % 7
    return sealed(struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + bytes([entry_id]) * size)


class Peer:
    """A connection that takes replies only while the test allows it."""

    address = "simulated"

    def __init__(self) -> None:
        self.is_open = self.is_taking = True
        self.sent = b""
        self.pieces: list[int] = []
        """How many bytes each call of `send` had."""
        self._waiting: list[Callable[[], None]] = []

    def send(self, parts: Any) -> None:
        assert self.is_open
        self.pieces.append(sum(map(len, parts)))
        self.sent += b"".join(parts)

    def when_taking(self, callback: Callable[[], None]) -> None:
        assert not self.is_taking
        self._waiting.append(callback)

    def give_up(self, why: str) -> None:
        raise AssertionError(why)

    def take(self, *, is_taking: bool) -> None:
        self.is_taking = is_taking
        if is_taking:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def close(self) -> None:
        self.is_open = False
        self.take(is_taking=True)

    def frames(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.sent):
            end = at + 4 + int.from_bytes(self.sent[at : at + 4], "big")
            found.append(self.sent[at:end])
            at = end
        assert at == len(self.sent)
        return found


@dataclass
class Bench:
    """Readings of one bookie whose entry logs are cold; `fetches` and `queue` are what the test must carry out."""

    twin: BookieTwin
    limits: TurnLimits = field(default_factory=lambda: TurnLimits(1 << 20, 1.0))
    options: ReadOptions = field(default_factory=ReadOptions)
    fetches: list[tuple[FileRange, Callable[[Fetched], None]]] = field(default_factory=list)
    queue: list[Callable[[], None]] = field(default_factory=list)
    rooms: int = 0

    def __post_init__(self) -> None:
        self.view = View(self.twin.store, self.twin.disks.known_space, self.options)
        # Every turn is as long as the limits say, whichever clients there are.
        limits = self.limits
        limits = TurnLimits(*[limits.requests, limits.seconds, 512] * 2, shared_seconds=0.0)
        self.turns = Turns(lambda _, callback: self.queue.append(callback), lambda: 0.0, limits)
        self.reads = Reads(self.view, self._fetch, self.turns, self._note_room)

    def _fetch(self, place: FileRange, callback: Callable[[Fetched], None]) -> None:
        self.fetches.append((place, callback))

    def _note_room(self) -> None:
        self.rooms += 1

    def fetch_one(self, number: int = 0) -> None:
        place, callback = self.fetches.pop(number)
        file = SimulatedFiles(self.twin.disk).open(place.path)
        callback(Fetched(place, file.read(place.size, place.offset)))
        file.close()

    def fail_one(self) -> None:
        place, callback = self.fetches.pop(0)
        callback(Fetched(place, error=OSError(5, "Input/output error", place.path)))

    def step(self) -> None:
        queued, self.queue[:] = list(self.queue), []
        for callback in queued:
            callback()

    def finish(self) -> None:
        while self.fetches or self.queue:
            self.step()
            if self.fetches:
                self.fetch_one()


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> BookieTwin:
    setup = Setup()
    made = BookieTwin(setup.new_disk(), setup, History())
    for ledger_id, entry_ids in ENTRIES.items():
        frames = b"".join(add_frame(KEY, entry(ledger_id, entry_id)) for entry_id in entry_ids if entry_id < 20)
        made.serve(SILENT, frames)
        made.settle()
    for ledger_id, lac in EXPLICIT.items():
        made.serve_lac(SILENT, ledger_id, lac, KEY)
    made.checkpoint()
    for ledger_id, entry_ids in ENTRIES.items():
        frames = b"".join(add_frame(KEY, entry(ledger_id, entry_id)) for entry_id in entry_ids if entry_id >= 20)
        if frames:
            made.serve(SILENT, frames)
    made.settle()
    files = SimulatedFiles(made.disk)
    paths = [f"/ledgers0/current/{name}" for name in files.names("/ledgers0/current") if name.endswith(".log")]
    for damaged in BROKEN:
        found = [(path, files.read_all(path).find(entry(*damaged))) for path in paths]
        ((path, at),) = [(path, at) for path, at in found if at >= 0]
        file = files.open(path)
        file.write([b"\xff"], at)
        file.close()
    made.store.limbo.begin([LIMBO, EMPTY_LIMBO])

    def nothing(self: SimulatedFile, buffer: memoryview, offset: int) -> int:
        return 0

    monkeypatch.setattr(SimulatedFile, "read_cached", nothing)
    return made


# ---- what is expected ----


def absence(ledger_id: int) -> Status:
    if ledger_id in (LIMBO, EMPTY_LIMBO):
        return Status.EUNKNOWNLEDGERSTATE
    return Status.ENOENTRY if ledger_id in ENTRIES or ledger_id in EXPLICIT else Status.ENOLEDGER


def single(ledger_id: int, entry_id: int) -> tuple[Status, bytes]:
    held = ENTRIES.get(ledger_id, [])
    if entry_id == v2.LAST_ENTRY:
        entry_id = held[-1] if held and ledger_id != LIMBO else -1
    if (ledger_id, entry_id) in BROKEN:
        return Status.EIO, b""
    return (Status.EOK, entry(ledger_id, entry_id)) if entry_id in held else (absence(ledger_id), b"")


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


def known_lac(ledger_id: int) -> int:
    if ledger_id == BAD_END:
        return -1  # only the last entry is looked at
    return max(ENTRIES[ledger_id][-1] - 1, EXPLICIT.get(ledger_id, -1))


def of_v2(status: int) -> int:
    return v2.code_of(status)


# ---- requests ----


def v2_reads(peer: Peer, *asked: tuple[int, int]) -> SingleReads:
    return SingleReads(peer, V2_RESPONSES, *np.array(asked, np.int64).reshape(-1, 2).T.copy())


def v3_reads(peer: Peer, first_txn_id: int, *asked: tuple[int, int]) -> SingleReads:
    txn_ids = np.arange(first_txn_id, first_txn_id + len(asked))
    return SingleReads(peer, V3Responses(txn_ids), *np.array(asked, np.int64).T.copy())


def lac_reads(peer: Peer, first_txn_id: int, *asked: int) -> LacReads:
    return LacReads(peer, np.arange(first_txn_id, first_txn_id + len(asked)), np.array(asked, np.int64))


def v2_answer(frame: bytes) -> tuple[int, int, int, bytes]:
    """Return (ledger id, entry id, status, entry)."""
    _, _, status, ledger_id, entry_id = struct.unpack_from(">iiiqq", frame)
    return ledger_id, entry_id, status, frame[28:]


def v2_expected(ledger_id: int, entry_id: int) -> tuple[int, int, int, bytes]:
    status, found = single(ledger_id, entry_id)
    return ledger_id, entry_id, of_v2(status), found


def check_v3(frame: bytes, asked: tuple[int, int]) -> None:
    response = protocol.Response.FromString(frame[4:])
    status, found = single(*asked)
    assert response.status == v3.code_of(status), asked
    assert (response.readResponse.ledgerId, response.readResponse.entryId) == asked
    assert response.readResponse.body == found
    assert response.readResponse.HasField("maxLAC") == bool(found)
    if found:
        assert response.readResponse.maxLAC == known_lac(asked[0])


def check_lac(frame: bytes, ledger_id: int) -> None:
    response = protocol.Response.FromString(frame[4:])
    answer = response.readLacResponse
    status, found = single(ledger_id, v2.LAST_ENTRY)
    packet = lac_packet(ledger_id, EXPLICIT[ledger_id]) if ledger_id in EXPLICIT else b""
    if status in (Status.ENOENTRY, Status.ENOLEDGER):
        status = Status.EOK if packet else Status.ENOENTRY
    assert answer.ledgerId == ledger_id
    assert response.status == v3.code_of(status), ledger_id
    assert answer.lastEntryBody == found
    assert answer.lacBody == (packet if status == Status.EOK else b"")


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
