"""Connections of the full tier: queues of bytes with delays in place of sockets, and what a bookie makes of them.

A way keeps its order, as TCP does. What may happen to one: it is held for a while, as a clogged one is; cut, so that
nothing arrives and neither side notices; reset, which both sides notice at once, or the client only later. A bookie may
answer twice, with damaged entries, with an error, late, or not at all.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bkspark.errors import ProtocolError
from bkspark.wire import v2, v3
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, count_leading, gather_i64, scan_frames
from bkspark.wire.layout import LAC_AT
from bkspark.wire.single_add import SingleAdd
from bookie_service.engine.add_batch import AddBatch
from bookie_service.engine.reads import Reading
from bookie_service.engine.single_reads import SingleReads
from bookie_service.engine.turns import Turn
from bookie_service.network.known_responses import KnownResponse
from bookie_service.network.request_stream import RequestStream
from bookie_service.network.v2_requests import V2RequestStream
from bookie_service.network.v3_requests import V3RequestStream
from tests.crash.twins import TakingClient

if TYPE_CHECKING:
    from tests.simulation.full_cluster import Cluster, FullBookie

TO_BOOKIE, TO_CLIENT = 0, 1
WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="")
"""The client that runs now: its tasks and timers inherit it, so that links and metadata writes have an owner."""

_ENTRY_LAC_LOW, _ENTRY_LENGTH_LOW, _ENTRY_DIGEST = 23, 31, 32
"""Where in an entry the lowest bytes of its LAC and of its length are, and where its digest begins."""


@dataclass(frozen=True, slots=True)
class Adds:
    """Adds of one ledger; `lacs`: what each entry carries. `is_fenced`: the bookie that they reach has fenced it."""

    ledger_id: int
    entry_ids: list[int]
    lacs: list[int]
    is_recovery: bool
    is_fenced: bool


class Observer:
    """Hears of requests as they reach a bookie, and of its answers as they leave. Does nothing by itself."""

    def on_request(self, kind: str, bookie: FullBookie, who: str) -> None:
        """`kind`: "fence", the first request of a recovery, or "recovery read"."""

    def on_adds(self, bookie: FullBookie, who: str, adds: Adds) -> None:
        """Adds of one client reach a bookie."""

    def on_negative(self, bookie: FullBookie, who: str, ledger_id: int, entry_id: int) -> None:
        """The bookie answers that it does not have an entry; only what it tells clients that fence."""


class _Way:
    """One direction of a link."""

    __slots__ = ("held_until", "is_waiting", "last_arrival", "queue")

    def __init__(self) -> None:
        self.queue: deque[tuple[float, Callable[[bytes], None], bytes]] = deque()
        self.last_arrival = 0.0
        self.held_until = 0.0
        self.is_waiting = False


class Link(asyncio.Transport):
    """The client's end of a connection; `BookieChannel` takes it for a TCP transport."""

    def __init__(self, cluster: Cluster, bookie: FullBookie, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.bookie = bookie
        self.who = WHO.get()
        self.served = Served(self, bookie, cluster)
        self._cluster = cluster
        self._protocol = protocol
        self._context = contextvars.copy_context()
        self._ways = (_Way(), _Way())
        self._is_open = True
        self.number = cluster.count_link()
        # Once set, nothing arrives any more in that direction, and neither side notices.
        self.is_cut = [False, False]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _NoSocket()

    def get_write_buffer_size(self) -> int:
        """Bytes on their way that the sockets' buffers have no room for."""
        on_the_way = sum(len(data) for _, _, data in self._ways[TO_BOOKIE].queue)
        return max(0, on_the_way - self._cluster.socket_bytes)

    def write(self, data: Any) -> None:
        if self._is_open:
            self._carry(TO_BOOKIE, self.served.receive, bytes(data))

    def answer(self, data: bytes) -> None:
        """Carry a reply to the client."""
        self._carry(TO_CLIENT, self._hear, data)

    def hold(self, way: int, seconds: float) -> None:
        """Let nothing arrive before a time, not even what is on its way."""
        held_until = asyncio.get_running_loop().time() + seconds
        self._ways[way].held_until = max(self._ways[way].held_until, held_until)

    def _carry(self, direction: int, deliver: Callable[[bytes], None], data: bytes) -> None:
        way = self._ways[direction]
        way.last_arrival = max(way.last_arrival, asyncio.get_running_loop().time() + self._cluster.delay_s())
        way.queue.append((way.last_arrival, deliver, data))
        self._await_next(direction)

    def _await_next(self, direction: int) -> None:
        way = self._ways[direction]
        if way.queue and not way.is_waiting:
            way.is_waiting = True
            when = max(way.queue[0][0], way.held_until)
            asyncio.get_running_loop().call_at(when, self._arrive, direction, context=self._context)

    def _arrive(self, direction: int) -> None:
        way = self._ways[direction]
        way.is_waiting = False
        now = asyncio.get_running_loop().time()
        while way.queue and max(way.queue[0][0], way.held_until) <= now:
            _, deliver, data = way.queue.popleft()
            # Messages in flight when the client drops a connection arrive nevertheless.
            if not self.is_cut[direction]:
                self._deliver(direction, deliver, data)
        self._await_next(direction)

    def _deliver(self, direction: int, deliver: Callable[[bytes], None], data: bytes) -> None:
        """What was carried arrives."""
        deliver(data)

    def _hear(self, data: bytes) -> None:
        at = 0
        while at < len(data) and self._is_open:
            space = memoryview(self._protocol.get_buffer(len(data) - at))
            count = min(len(space), len(data) - at)
            space[:count] = data[at : at + count]
            self._protocol.buffer_updated(count)
            at += count

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            self._cluster.links.discard(self)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None, context=self._context)

    def lose_late(self, seconds: float) -> None:
        """Lose the connection; the client learns of it after a time, as of a host that is gone."""
        self.is_cut = [True, True]
        asyncio.get_running_loop().call_later(seconds, self.abort)

    def close(self) -> None:
        self.abort()


class _NoSocket:
    def setsockopt(self, *_: Any) -> None:
        """There is nothing to set."""


class Served(TakingClient):
    """The bookie's end: frames to runs of requests, as `bookie_service.network.connection` does."""

    def __init__(self, link: Link, bookie: FullBookie, cluster: Cluster) -> None:
        self.who = link.who
        self._link = link
        self._bookie = bookie
        self._cluster = cluster
        self._life = bookie.life
        self._received: list[bytes] = []
        self._waiting: list[tuple[np.ndarray, RequestStream]] = []
        self._door: Any = _Door(bookie, self.who, cluster)
        self._is_v3 = False

    def receive(self, data: bytes) -> None:
        """Take whole frames: a client writes nothing else at once, and one protocol on a connection."""
        if not self.is_open:
            return
        if self._bookie.is_hung:
            self._received.append(data)
            return
        buffer = bytearray(data)
        octets = np.frombuffer(buffer, np.uint8)
        try:
            table = scan_frames(buffer, len(buffer))
            self._is_v3 = count_leading(octets, table, v3.FIRST_BYTE) == len(table)
            runs: RequestStream = (
                V3RequestStream(self._door, self, table)
                if self._is_v3
                else V2RequestStream(self._door, self, octets, table)
            )
        except ProtocolError:
            self._link.abort()
            return
        self._waiting.append((octets, runs))
        self.resume()

    def wake(self) -> None:
        """The process runs again: take what was received meanwhile."""
        received, self._received = self._received, []
        for data in received:
            self.receive(data)

    @property
    def is_open(self) -> bool:
        return self._bookie.twin is not None and self._bookie.life == self._life

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back after a time, if the process still runs then."""
        return asyncio.get_running_loop().call_later(seconds, lambda: callback() if self.is_open else None)

    def resume(self) -> None:
        """Serve what waits, as far as the bookie has room."""
        while self._waiting and self.is_open:
            octets, runs = self._waiting[0]
            if not runs.serve(octets):
                break
            self._waiting.pop(0)
        if self.is_open:
            self._bookie.work()

    def send(self, parts: Sequence[Any]) -> None:
        """Send a reply."""
        if self._bookie.life != self._life:
            return
        if self._bookie.forgets and self._cluster.random.random() < self._bookie.forgets:
            return
        data = b"".join(bytes(part) for part in parts)
        if self._bookie.is_damaging:
            data = (_damaged_v3 if self._is_v3 else _damaged)(data, self._cluster)
        self._observe(data)
        self._link.answer(data)
        if self._cluster.repeats and self._cluster.random.random() < self._cluster.repeats:
            again = data if self._is_v3 else _adds_of(data)
            if again:
                self._link.answer(again)

    def _observe(self, data: bytes) -> None:
        if not self._door.has_fenced or self._is_v3:
            return
        replies = v2.decode_replies(data, scan_frames(bytearray(data), len(data)))
        negative = np.isin(replies.statuses, (v2.Status.ENOENTRY, v2.Status.ENOLEDGER))
        for row in np.flatnonzero((replies.opcodes == v2.READ) & negative).tolist():
            ledger_id, entry_id = replies.ledger_ids.item(row), replies.entry_ids.item(row)
            self._cluster.observer.on_negative(self._bookie, self.who, ledger_id, entry_id)


def _flip_somewhere(entry: memoryview, cluster: Cluster) -> None:
    """Change a byte of an entry: of its LAC, its length, its digest, or what it holds."""
    at = cluster.random.choice((_ENTRY_LAC_LOW, _ENTRY_LENGTH_LOW, _ENTRY_DIGEST, len(entry) - 1))
    entry[min(at, len(entry) - 1)] ^= cluster.random.choice((1, 2, 4))


def _damaged(replies: bytes, cluster: Cluster) -> bytes:
    """Return V2 replies in which a byte of every entry is another one."""
    buffer = bytearray(replies)
    frames = scan_frames(buffer, len(buffer))
    decoded = v2.decode_replies(replies, frames)
    view = memoryview(buffer)
    for row in np.flatnonzero((decoded.opcodes != v2.ADD) & (decoded.statuses == v2.EOK)).tolist():
        start, end = decoded.body_starts.item(row), decoded.body_ends.item(row)
        if decoded.opcodes.item(row) == v2.BATCH_READ:
            while start < end:
                length = int.from_bytes(view[start : start + LENGTH_BYTES], "big")
                _flip_somewhere(view[start + LENGTH_BYTES : start + LENGTH_BYTES + length], cluster)
                start += LENGTH_BYTES + length
        elif start < end:
            _flip_somewhere(view[start:end], cluster)
    return bytes(buffer)


def _damaged_v3(replies: bytes, cluster: Cluster) -> bytes:
    """Return V3 responses in which a byte of every entry is another one."""
    done = []
    frames = scan_frames(bytearray(replies), len(replies))
    for start, end in zip(frames.starts.tolist(), frames.ends.tolist()):
        response = v3.decode_response(replies[start:end])
        for message, name in ((response.readResponse, "body"), (response.readLacResponse, "lastEntryBody")):
            if response.HasField("readResponse" if name == "body" else "readLacResponse") and getattr(message, name):
                entry = bytearray(getattr(message, name))
                _flip_somewhere(memoryview(entry), cluster)
                setattr(message, name, bytes(entry))
        done.append(v3.encode_message(response))
    return b"".join(done)


def _adds_of(replies: bytes) -> bytes:
    """Return the replies to adds among V2 replies.

    Those to reads have no number: a bookie that repeated one would answer the next read of that entry.
    """
    frames: FrameTable = scan_frames(bytearray(replies), len(replies))
    opcodes = v2.decode_replies(replies, frames).opcodes
    rows = np.flatnonzero(opcodes == v2.ADD).tolist()
    return b"".join(replies[frames.starts.item(row) - LENGTH_BYTES : frames.ends.item(row)] for row in rows)


class _Door:
    """The bookie, as one connection's requests see it: at times it refuses them."""

    def __init__(self, bookie: FullBookie, who: str, cluster: Cluster) -> None:
        self.has_fenced = False
        self._bookie = bookie
        self._who = who
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bookie.twin.bookie, name)

    def takes_single(self, add: SingleAdd) -> bool:
        """Whether an add may be taken alone: what is refused comes in runs."""
        bookie = self._bookie
        is_refusing = bookie.add_error is not None or bookie.is_refusing or bookie.is_read_only
        return not is_refusing and bookie.twin.bookie.takes_single(add)  # type: ignore[union-attr]

    def add_single(self, client: Served, octets: np.ndarray, add: SingleAdd, *, is_alone: bool = True) -> bool:
        """Take an add that came alone."""
        if not self.takes_single(add):
            return False
        self._observe(add.ledger_id, [add.entry_id], [add.lac], is_recovery=add.is_recovery)
        return self._bookie.twin.bookie.add_single(client, octets, add, is_alone=is_alone)  # type: ignore[union-attr]

    def _observe(self, ledger_id: int, entry_ids: list[int], lacs: list[int], *, is_recovery: bool) -> None:
        if self._cluster.observes:
            adds = Adds(ledger_id, entry_ids, lacs, is_recovery, self._bookie.is_fenced(ledger_id))
            self._cluster.observer.on_adds(self._bookie, self._who, adds)

    def add(self, client: Served, octets: np.ndarray, run: AddBatch) -> int:
        """Take adds, or refuse them."""
        bookie = self._bookie
        lacs = gather_i64(octets, run.item_starts + LENGTH_BYTES + LAC_AT).tolist()
        is_recovery = bool(run.flags.item(0) & RECOVERY_ADD)
        self._observe(run.ledger_ids.item(0), run.entry_ids.tolist(), lacs, is_recovery=is_recovery)
        status: v2.Status | None = bookie.add_error
        if bookie.is_refusing:
            status = v2.Status.ETOOMANYREQUESTS
        elif bookie.is_read_only and not (run.flags & v2.HIGH_PRIORITY).all():
            status = v2.Status.EREADONLY
        if status is not None:
            client.send((run.encode_responses(status),))
            return len(run)
        return bookie.twin.bookie.add(client, octets, run)  # type: ignore[union-attr]

    @property
    def reads(self) -> _Door:
        """What answers reads: this door."""
        return self

    @property
    def is_full(self) -> bool:
        """Whether the bookie takes no further readings for now."""
        return self._bookie.twin.bookie.reads.is_full  # type: ignore[union-attr]

    def answer(self, reading: Reading, turn: Turn) -> bool:
        """Answer reads, or refuse them."""
        if self._bookie.read_error is None or isinstance(reading, KnownResponse):
            return self._bookie.twin.bookie.reads.answer(reading, turn)  # type: ignore[union-attr]
        reading.refuse(self._bookie.read_error)
        return True

    def fence_and_read(self, client: Served, ledger_id: int, master_key: bytes, reading: Reading) -> int | None:
        """Fence and read, or refuse both."""
        self.has_fenced = True
        if self._cluster.observes and isinstance(reading, SingleReads):
            is_first = reading.entry_ids.item(reading.row) == v2.LAST_ENTRY
            self._cluster.observer.on_request("fence" if is_first else "recovery read", self._bookie, self._who)
        if self._bookie.read_error is None:
            return self._bookie.twin.bookie.fence_and_read(client, ledger_id, master_key, reading)  # type: ignore[union-attr]
        reading.refuse(self._bookie.read_error)
        return None
