"""Targets with a state: a bookie that serves connections, and our client's channels that wait for answers.

Both are the product's own, without sockets: bytes come as an input cuts them. The bookie runs on a simulated disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import numpy as np

from bkspark.errors import BookKeeperError, ProtocolError
from bkspark.net.channel import BookieChannel
from bkspark.net.connection import AddListener, BookieConnection
from bkspark.net.responses import BatchResponse, EntryResponses
from bkspark.net.v3_channel import BookieV3Channel
from bkspark.wire import v2, v3, v3_reads
from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.framing import count_leading, scan_frames
from bkspark.wire.layout import ENTRY_BYTES_MIN
from bkspark.wire.status import Status
from bookie_service.engine import containment
from bookie_service.network.request_stream import RequestStream
from bookie_service.network.v2_requests import V2RequestStream
from bookie_service.network.v3_requests import V3RequestStream
from bookie_service.storage.io.framed_entries import FramedEntries
from tests.crash.history import History
from tests.crash.twins import BookieTwin, Setup, TakingClient
from tests.fuzzing.target import Draw, Target
from tests.fuzzing.wire_targets import framed, stored_entry, v2_request_seeds, v3_request_seeds

_LEDGER = 7
_DIGEST = EntryDigest(DigestType.CRC32C, b"")
_CONNECTIONS = 3
_ENTRY_ID_END = 1 << 16


# ---- a bookie ----


class _Contained(logging.Handler):
    """Collects what `containment` logs. A bookie survives these errors, and each is a defect nevertheless."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []
        containment.logger.addHandler(self)
        containment.logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def raise_first(self) -> None:
        """Raise the first error since the last call."""
        records, self.records = self.records, []
        for record in records:
            if record.exc_info and record.exc_info[1] is not None:
                raise record.exc_info[1]
            raise AssertionError(record.getMessage())


_CONTAINED: list[_Contained] = []


def _contained() -> _Contained:
    """Return what collects in this process; it is made with the first input."""
    if not _CONTAINED:
        _CONTAINED.append(_Contained())
    return _CONTAINED[0]


class _Peer(TakingClient):
    """One connection of a bookie: what came and is not served, and what was answered."""

    def __init__(self, twin: BookieTwin, loop: asyncio.AbstractEventLoop) -> None:
        self.is_open = True
        self._twin = twin
        self._loop = loop
        self._received = bytearray()
        self._is_v3: bool | None = None
        self._waiting: list[tuple[np.ndarray, RequestStream]] = []
        self.answers = b""

    def send(self, parts: Sequence[Any]) -> None:
        self.answers += b"".join(bytes(part) for part in parts)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, callback)

    def when_taking(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def receive(self, data: bytes) -> None:
        """Take bytes, serve the whole frames in them; a protocol error closes the session, as on a connection."""
        if not self.is_open:
            return
        self._received += data
        try:
            self._serve_frames()
        except ProtocolError:
            self.close()

    def _serve_frames(self) -> None:
        table = scan_frames(self._received, len(self._received), 1 << 16)
        if not len(table):
            return
        # A buffer that is served keeps its size.
        buffer, self._received = self._received[: table.consumed], self._received[table.consumed :]
        octets = np.frombuffer(buffer, np.uint8)
        if any(_is_far(bytes(buffer[start:end])) for start, end in zip(table.starts.tolist(), table.ends.tolist())):
            self.close()
            return
        first = 0 if self._is_v3 is False else count_leading(octets, table, v3.FIRST_BYTE)
        if first:
            self._waiting.append((octets, V3RequestStream(self._twin.bookie, self, table.take(slice(0, first)))))
        self._is_v3 = first == len(table)
        if not self._is_v3:
            self._waiting.append(
                (octets, V2RequestStream(self._twin.bookie, self, octets, table.take(slice(first, None))))
            )
        self.go_on()

    def go_on(self) -> None:
        """Serve what waits, as far as the bookie has room."""
        while self._waiting and self.is_open:
            octets, runs = self._waiting[0]
            if not runs.serve(octets):
                if self._twin.checkpoints.is_idle:
                    return
                self._twin.checkpoints.step()
                continue
            self._waiting.pop(0)

    def close(self) -> None:
        self.is_open = False
        self._waiting.clear()
        self._twin.bookie.forget(self)


def _is_far(body: bytes) -> bool:
    """Whether a request adds an entry far out in its ledger: simulated index files have no holes."""
    with contextlib.suppress(ProtocolError, struct.error):
        if body[:1] == bytes((v3.FIRST_BYTE,)):
            entry = v3.decode_request(body).addRequest.body
        else:
            entry = body[v2.ADD_HEAD_BYTES :] if body[1:2] == bytes((v2.ADD,)) else b""
        return len(entry) >= ENTRY_BYTES_MIN and int.from_bytes(entry[8:16], "big", signed=True) >= _ENTRY_ID_END
    return False


def _serve(data: bytes) -> tuple[BookieTwin, list[_Peer]]:
    """Let connections send, in the order and the pieces that the input says; journals and checkpoints take turns."""
    draw = Draw(data)
    loop, contained = _loop(), _contained()
    contained.records.clear()
    twin = BookieTwin(Setup().new_disk(), Setup(), History())
    peers = [_Peer(twin, loop) for _ in range(_CONNECTIONS)]
    while not draw.is_empty:
        step = draw.below(8)
        if step == 7:
            for journal in twin.journals:
                journal.step()
        elif step == 6 and not twin.checkpoints.is_idle:
            twin.checkpoints.step()
        elif step == 5:
            twin.bookie.checkpoint()
        elif step == 4:
            peers[draw.below(_CONNECTIONS)].close()
        else:
            size = draw.below(1 << 16)
            peers[draw.below(_CONNECTIONS)].receive(draw.octets(min(size, len(data))))
        loop.run_until_complete(asyncio.sleep(0))
    twin.settle()
    for peer in peers:
        peer.go_on()
    twin.settle()
    contained.raise_first()
    return twin, peers


def _answers_are_frames(served: tuple[BookieTwin, list[_Peer]]) -> None:
    """Whatever came, the answers are whole frames of the protocols, and the storage opens again."""
    twin, peers = served
    for peer in peers:
        table = scan_frames(peer.answers, len(peer.answers))
        assert table.consumed == len(peer.answers), "half an answer"
        for start, end in zip(table.starts.tolist(), table.ends.tolist()):
            body = peer.answers[start:end]
            if body[:1] == bytes((v3.FIRST_BYTE,)):
                v3.decode_response(body)
            elif body[0] != v2.VERSION:
                assert int.from_bytes(body[4:8], "big", signed=True) == v2.code_of(Status.EBADVERSION)
            elif body[1:2] != bytes((v2.AUTH,)):
                v2.decode_replies(framed(body), scan_frames(framed(body), len(body) + 4))
    twin.settle()
    BookieTwin(twin.disk, twin.setup, History())


def _session(*pieces: bytes) -> bytes:
    """Return the input in which connection 0 sends pieces, with a step of the journals after each."""
    return b"".join(b"\0" + struct.pack("<H", len(piece)) + b"\0" + piece + b"\7" for piece in pieces)


def _server_seeds() -> Iterator[bytes]:
    for seeds in (v2_request_seeds, v3_request_seeds):
        frames = list(seeds())
        yield from (_session(frame) for frame in frames)
        yield _session(b"".join(frames))
    yield _session(*[piece for frame in list(v2_request_seeds())[:3] for piece in (frame[:9], frame[9:])])


# ---- the client ----


class _Socketless(asyncio.Transport):
    """A transport that takes whatever is written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _NoSocket() if name == "socket" else default

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        """It is never read."""

    def abort(self) -> None:
        self.is_aborted = True


class _NoSocket:
    def setsockopt(self, *_: Any) -> None:
        """There is nothing to set."""


_LOOPS: list[asyncio.AbstractEventLoop] = []


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all inputs of this process: making one takes longer than most inputs."""
    if not _LOOPS:
        _LOOPS.append(asyncio.new_event_loop())
    return _LOOPS[0]


async def _hear(channel: BookieConnection, calls: list[Coroutine[Any, Any, Any]], data: bytes) -> list[Any]:
    """Make calls on a channel, let the input be what comes back, and return what the calls gave."""
    transport = _Socketless()
    channel.connection_made(transport)
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    draw = Draw(data)
    while not draw.is_empty and not transport.is_aborted:
        piece = draw.octets(min(1 + draw.below(256), len(data)))
        while piece:
            space = channel.get_buffer(len(piece))
            count = min(len(space), len(piece))
            space[:count] = piece[:count]
            channel.buffer_updated(count)
            piece = piece[count:]
        await asyncio.sleep(0)
    channel.close()
    return await asyncio.gather(*tasks, return_exceptions=True)


def _listener(heard: list[Any]) -> AddListener:
    return AddListener(lambda *reply: heard.append(reply), heard.append)


def _v2_answers(data: bytes) -> list[Any]:
    async def run() -> list[Any]:
        channel = BookieChannel("b:1", 1 << 20, 5.0)
        heard: list[Any] = []
        channel.listen_adds(_LEDGER, _listener(heard))
        calls = [
            channel.batch_read(_LEDGER, 3, 4, 1 << 16, _DIGEST),
            channel.read_entries(_LEDGER, np.arange(3, 7), _DIGEST),
            channel.read_last_entry(_LEDGER, _DIGEST),
            channel.batch_read(_LEDGER + 1, 0, 100, 1 << 16, _DIGEST),
        ]
        return [*await _hear(channel, calls, data), *heard]

    return _loop().run_until_complete(run())


def _v3_answers(data: bytes) -> list[Any]:
    async def run() -> list[Any]:
        channel = BookieV3Channel("b:1", 1 << 20, 5.0, v3.TxnIds())
        heard: list[Any] = []
        channel.listen_adds(_LEDGER, _listener(heard))
        calls = [
            channel.read_entries(_LEDGER, np.arange(3, 7), _DIGEST),
            channel.read_last_entry(_LEDGER, _DIGEST),
            channel.poll_entry(_LEDGER, 2, 0.0, _DIGEST),
            channel.read_lac(_LEDGER, _DIGEST),
            channel.write_lac(_LEDGER, 3, _DIGEST, bytes(20)),
            channel.force(_LEDGER),
            channel.disk_space(),
            channel.entry_list(_LEDGER),
        ]
        return [*await _hear(channel, calls, data), *heard]

    return _loop().run_until_complete(run())


def _answers_are_of_what_was_asked(outcomes: list[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, BookKeeperError), repr(outcome)
        elif isinstance(outcome, BatchResponse):
            entries = outcome.entries
            assert (entries.ledger_id, entries.first_entry) in ((_LEDGER, 3), (_LEDGER + 1, 0))
            assert len(entries) <= (4 if entries.ledger_id == _LEDGER else 100), "more entries than asked for"
        elif isinstance(outcome, EntryResponses):
            assert outcome.entry_ids.tolist() == [3, 4, 5, 6]
            found = outcome.payloads
            assert [it is not None for it in found] == (outcome.statuses == v2.EOK).tolist()


def _pieces(data: bytes) -> bytes:
    """Return the input in which bytes come in pieces of 256."""
    return b"".join(b"\xff" + data[at : at + 256] for at in range(0, len(data), 256))


def _v2_answer_seeds() -> Iterator[bytes]:
    entries = [stored_entry(_LEDGER, entry_id, b"payload") for entry_id in range(3, 9)]
    items = framed(*entries[:4])
    batch = v2.encode_batch_reply_head(_LEDGER, 3, 0, 0, len(items)) + items
    reads = b"".join(v2.encode_read_reply_head(_LEDGER, 3 + i, len(it)) + it for i, it in enumerate(entries[:4]))
    last = v2.encode_read_reply_head(_LEDGER, -1, len(entries[-1])) + entries[-1]
    adds = v2.encode_replies(v2.ADD, 0, np.full(3, _LEDGER), np.arange(3))
    missing = v2.encode_replies(v2.READ, v2.Status.ENOENTRY, np.full(4, _LEDGER), np.arange(3, 7))
    yield from (_pieces(it) for it in (batch, reads, last, adds, missing, batch + reads + last + adds))


def _v3_answer_seeds() -> Iterator[bytes]:
    entries = [stored_entry(_LEDGER, entry_id, b"payload") for entry_id in range(3, 7)]
    sizes = np.array([len(entry) + 4 for entry in entries])
    placed = FramedEntries(3, framed(*entries), sizes).placed(3)
    reads = bytes(v3_reads.encode_read_responses(np.arange(4), np.array([_LEDGER]), placed, np.array([2])))
    adds = v3.encode_add_responses(np.arange(4), np.zeros(4, np.int64), np.full(4, _LEDGER), np.arange(4))
    others = b""
    for txn_id, operation, name in (
        (4, "READ_ENTRY", "readResponse"),
        (5, "READ_ENTRY", "readResponse"),
        (6, "READ_LAC", "readLacResponse"),
        (7, "WRITE_LAC", "writeLacResponse"),
        (8, "FORCE_LEDGER", "forceLedgerResponse"),
        (9, "GET_BOOKIE_INFO", "getBookieInfoResponse"),
        (10, "GET_LIST_OF_ENTRIES_OF_LEDGER", "getListOfEntriesOfLedgerResponse"),
    ):
        others += _answer(txn_id, operation, name, entries[0])
    yield from (_pieces(it) for it in (reads, adds, others, reads + adds + others))


def _answer(txn_id: int, operation: str, name: str, entry: bytes) -> bytes:
    protocol = v3.protocol
    response = protocol.Response(header=v3.header(protocol.OperationType.Value(operation), txn_id), status=0)
    inner = getattr(response, name)
    values = {
        "status": 0,
        "ledgerId": _LEDGER,
        "entryId": 3,
        "body": entry,
        "maxLAC": 3,
        "lacBody": _DIGEST.seal_lac(_LEDGER, 2),
        "lastEntryBody": entry,
        "totalDiskCapacity": 1 << 40,
        "freeDiskSpace": 1 << 39,
        "availabilityOfEntriesOfLedger": bytes(64),
    }
    known = inner.DESCRIPTOR.fields_by_name
    for field, value in values.items():
        if field in known:
            with contextlib.suppress(TypeError):
                setattr(inner, field, value)
    return v3.encode_message(response)


TARGETS = (
    Target("session-bookie", _serve, (), _answers_are_frames, _server_seeds, seconds_max=0.5),
    Target("session-client-v2", _v2_answers, (), _answers_are_of_what_was_asked, _v2_answer_seeds),
    Target("session-client-v3", _v3_answers, (), _answers_are_of_what_was_asked, _v3_answer_seeds),
)
