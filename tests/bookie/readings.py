"""A bookie with ledgers of all kinds, and what reads of them return."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.status import Status
from bookie_service.engine.reads import ReadOptions, Reads, View
from bookie_service.engine.single_reads import SingleReads
from bookie_service.engine.turns import TurnLimits, Turns
from bookie_service.network.response_encoders import V2_RESPONSES, V3Responses
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
        self.reads = Reads(self.view, self.fetch, self.turns, self._note_room)

    def fetch(self, place: FileRange, callback: Callable[[Fetched], None]) -> None:
        self.fetches.append((place, callback))

    def _note_room(self) -> None:
        self.rooms += 1

    def fetch_one(self, number: int = 0) -> None:
        place, callback = self.fetches.pop(number)
        callback(Fetched(place, self.bytes_of(place)))

    def bytes_of(self, place: FileRange) -> bytes:
        file = SimulatedFiles(self.twin.disk).open(place.path)
        found = file.read(place.size, place.offset)
        file.close()
        return found

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


def known_lac(ledger_id: int) -> int:
    if ledger_id == BAD_END:
        return -1  # only the last entry is looked at
    return max(ENTRIES[ledger_id][-1] - 1, EXPLICIT.get(ledger_id, -1))


def of_v2(status: int) -> int:
    return v2.code_of(status)


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


class EventLoopTurns:
    """Reads on an event loop whose turns are as long as a test says."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._now = self._began = 0.0
        turns = Turns(
            lambda _, callback: bench.queue.append(callback),
            lambda: self._now,
            loop_turn_began=lambda: self._began,
        )
        self.reads = Reads(bench.view, bench.fetch, turns, lambda: None)

    def use_up(self) -> None:
        """Let the turn of the event loop last so long that reads wait for the next one."""
        self._now += TurnLimits().crowded_seconds * 2

    def next(self) -> None:
        """Begin the next turn of the event loop."""
        self._began = self._now
        self.bench.step()
