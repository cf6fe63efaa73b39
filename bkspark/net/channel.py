"""One V2 connection to one bookie.

Requests go out as ready-made buffers; replies come in as arrays. A receive buffer is decoded once, whatever number of
replies it holds, and handed out by ledger: to the add listener of that ledger, to the groups of single reads that
wait for it, or to a batch read by its request id. V2 has no request id for adds and single reads, so two users of one
channel must not have the same entry of the same ledger in flight for different purposes: a recovery takes a channel
of its own (`BookiePool.lease`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import BookieUnavailable, BookKeeperError, DigestMismatch, ProtocolError, RequestTimeout
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest, OpenedEntry
from bkspark.wire.framing import LENGTH_BYTES, scan_frames, split_items

_Answer = TypeVar("_Answer")

RECEIVE_BYTES_FIRST = 256 * 1024
RECEIVE_ROOM_MIN = 64 * 1024
SINGLE_READS_MAX = 4096
"""Most single reads in one group: requests alone must not fill both sockets' buffers."""

BAD_DIGEST = -1
"""In `EntryAnswers.statuses`: the bookie answered EOK with bytes that fail their check."""


@dataclass(frozen=True, slots=True)
class EntryAnswers:
    """What one bookie answered for each of some entries; arrays and lists of equal length.

    `payloads[i]` is None unless `statuses[i]` is EOK. `statuses` holds V2 status codes, or BAD_DIGEST.
    """

    entry_ids: np.ndarray
    statuses: np.ndarray
    payloads: list[memoryview | None]
    lengths: np.ndarray


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Consecutive entries from the first one asked for; `status` (EOK, a V2 code, BAD_DIGEST) tells why they end."""

    entries: EntryBatch
    status: int


@dataclass(frozen=True, slots=True)
class LastEntryAnswer:
    """The highest entry a bookie holds, or why there is none (`status` is a V2 code or BAD_DIGEST)."""

    status: int
    entry: OpenedEntry | None


@dataclass(slots=True)
class AddListener:
    """Who is told about add replies of one ledger on one channel."""

    on_replies: Callable[[np.ndarray, np.ndarray], None]
    on_lost: Callable[[BookKeeperError], None]


class _ReadGroup:
    """Single reads sent together; `future` is done when each has its answer."""

    def __init__(self, entry_ids: np.ndarray, digest: EntryDigest, future: asyncio.Future[EntryAnswers]) -> None:
        self.entry_ids = entry_ids
        self.digest = digest
        self.future = future
        self.waiting = np.ones(len(entry_ids), bool)
        self.statuses = np.zeros(len(entry_ids), np.int32)
        self.lengths = np.zeros(len(entry_ids), np.int64)
        self.payloads: list[memoryview | None] = [None] * len(entry_ids)

    def take(self, ledger_id: int, replies: v2.Replies, rows: np.ndarray, buffer: memoryview) -> np.ndarray:
        """Take the replies that belong to this group; return the rows that are left over."""
        ids = replies.entry_ids[rows]
        at = np.minimum(np.searchsorted(self.entry_ids, ids), len(self.entry_ids) - 1)
        mine = (self.entry_ids[at] == ids) & self.waiting[at]
        # A second answer to the same entry in one buffer belongs to the next group that asked for it.
        _, firsts = np.unique(ids, return_index=True)
        is_first = np.zeros(len(ids), bool)
        is_first[firsts] = True
        mine &= is_first
        taken, at = rows[mine], at[mine]
        self.waiting[at] = False
        self.statuses[at] = replies.statuses[taken]
        found = replies.statuses[taken] == v2.EOK
        if found.any():
            self._open(ledger_id, replies, taken[found], at[found], buffer)
        if not self.waiting.any() and not self.future.done():
            self.future.set_result(EntryAnswers(self.entry_ids, self.statuses, self.payloads, self.lengths))
        return rows[~mine]

    def _open(self, ledger_id: int, replies: v2.Replies, rows: np.ndarray, at: np.ndarray, buffer: memoryview) -> None:
        starts, ends = replies.body_starts[rows], replies.body_ends[rows]
        # The receive buffer is used again after this call: the entries move out of it in one copy.
        low = int(starts.min())
        data = bytes(buffer[low : int(ends.max())])
        while len(at):
            opened = self.digest.open_entries(data, starts - low, ends - low, ledger_id, self.entry_ids[at])
            good = len(opened.payloads)
            self.lengths[at[:good]] = opened.lengths
            for position, payload in zip(at[:good].tolist(), opened.payloads):
                self.payloads[position] = payload
            if opened.bad is None:
                return
            self.statuses[at[good]] = BAD_DIGEST
            at, starts, ends = at[good + 1 :], starts[good + 1 :], ends[good + 1 :]


@dataclass(slots=True)
class _BatchRead:
    ledger_id: int
    first_entry: int
    digest: EntryDigest
    future: asyncio.Future[BatchAnswer]


class BookieChannel(asyncio.BufferedProtocol):
    """A connection to one bookie, and the requests in flight on it."""

    def __init__(self, bookie: str, frame_bytes_max: int, read_timeout_s: float) -> None:
        self.bookie = bookie
        self.lost: BookKeeperError | None = None
        self._frame_bytes_max = frame_bytes_max
        self._read_timeout_s = read_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(RECEIVE_BYTES_FIRST)
        self._filled = 0
        self._adds: dict[int, AddListener] = {}
        self._groups: dict[int, list[_ReadGroup]] = {}
        self._last_reads: dict[int, list[tuple[EntryDigest, asyncio.Future[LastEntryAnswer]]]] = {}
        self._batches: dict[int, _BatchRead] = {}
        self._next_request_id = 0

    # ---- requests ----

    @property
    def unsent_bytes(self) -> int:
        """Bytes accepted by `send_adds` that the socket has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def listen_adds(self, ledger_id: int, listener: AddListener) -> None:
        """Send the add replies of one ledger to `listener` from now on."""
        assert ledger_id not in self._adds, "two writers of one ledger need two channels"
        self._adds[ledger_id] = listener

    def unlisten_adds(self, ledger_id: int) -> None:
        self._adds.pop(ledger_id, None)

    def send_adds(self, frames: bytes | memoryview) -> None:
        """Send ready-made ADD frames; their replies go to the ledger's listener."""
        self._send(frames)

    async def read_entries(
        self,
        ledger_id: int,
        entry_ids: np.ndarray,
        digest: EntryDigest,
        flags: int = 0,
        master_key: bytes | None = None,
    ) -> EntryAnswers:
        """Read single entries, ascending ids, at most SINGLE_READS_MAX, all in flight at once.

        Raises:
            BookieUnavailable: the connection was lost.
            RequestTimeout: not all were answered in time.
        """
        assert len(entry_ids) <= SINGLE_READS_MAX
        group = _ReadGroup(entry_ids, digest, self._loop.create_future())
        groups = self._groups.setdefault(ledger_id, [])
        groups.append(group)
        try:
            self._send(v2.encode_reads(ledger_id, entry_ids, flags, master_key))
            return await self._answered(group.future, f"{len(entry_ids)} reads of ledger {ledger_id}")
        finally:
            groups.remove(group)
            if not groups and self._groups.get(ledger_id) is groups:
                del self._groups[ledger_id]

    async def read_last_entry(
        self, ledger_id: int, digest: EntryDigest, flags: int = 0, master_key: bytes | None = None
    ) -> LastEntryAnswer:
        """Read the highest entry that the bookie holds of a ledger, fencing it first with DO_FENCING in `flags`.

        Raises:
            BookieUnavailable, RequestTimeout: as `read_entries`.
        """
        waiting = (digest, self._loop.create_future())
        queue = self._last_reads.setdefault(ledger_id, [])
        queue.append(waiting)
        try:
            self._send(v2.encode_reads(ledger_id, np.array([v2.LAST_ENTRY]), flags, master_key))
            return await self._answered(waiting[1], f"the last entry of ledger {ledger_id}")
        finally:
            if waiting in queue:
                queue.remove(waiting)

    async def batch_read(
        self, ledger_id: int, first_entry: int, entries_max: int, bytes_max: int, digest: EntryDigest
    ) -> BatchAnswer:
        """Read consecutive entries from `first_entry` on; fewer than asked for is normal.

        Raises:
            BookieUnavailable, RequestTimeout: as `read_entries`. A bookie too old for batch reads drops the connection.
        """
        request_id = self._next_request_id
        self._next_request_id += 1
        batch = _BatchRead(ledger_id, first_entry, digest, self._loop.create_future())
        self._batches[request_id] = batch
        try:
            self._send(v2.encode_batch_read(ledger_id, first_entry, request_id, entries_max, bytes_max))
            return await self._answered(batch.future, f"a batch read of ledger {ledger_id} from entry {first_entry}")
        finally:
            self._batches.pop(request_id, None)

    def close(self) -> None:
        """Drop the connection; whoever waits is told."""
        self._lose(BookieUnavailable(f"the connection to bookie {self.bookie} was closed", bookie=self.bookie))

    def _send(self, data: bytes | memoryview) -> None:
        if self.lost is not None or self._transport is None:
            raise self.lost or BookieUnavailable(f"bookie {self.bookie} is not connected", bookie=self.bookie)
        self._transport.write(data)

    async def _answered(self, future: asyncio.Future[_Answer], what: str) -> _Answer:
        try:
            async with asyncio.timeout(self._read_timeout_s):
                return await future
        except TimeoutError:
            raise RequestTimeout(
                f"bookie {self.bookie} did not answer {what} in {self._read_timeout_s:g} s", bookie=self.bookie
            ) from None

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f": {exc}" if exc else ""
        self._lose(BookieUnavailable(f"bookie {self.bookie} dropped the connection{cause}", bookie=self.bookie))

    def get_buffer(self, sizehint: int) -> memoryview:
        if len(self._buffer) - self._filled < RECEIVE_ROOM_MIN:
            # Grows to one frame of the largest size plus room; scan_frames refuses larger ones.
            grown = bytearray(2 * len(self._buffer))
            grown[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = grown
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            table = scan_frames(self._buffer, self._filled, self._frame_bytes_max)
            if len(table):
                self._deliver(v2.decode_replies(self._buffer, table))
        except ProtocolError as error:
            self._lose(ProtocolError(f"bookie {self.bookie}: {error}", bookie=self.bookie))
            return
        rest = self._filled - table.consumed
        if table.consumed:
            self._buffer[:rest] = self._buffer[table.consumed : self._filled]
            self._filled = rest
        if rest >= LENGTH_BYTES:
            self._make_room(int.from_bytes(self._buffer[:LENGTH_BYTES], "big") + LENGTH_BYTES)

    def _make_room(self, frame_bytes: int) -> None:
        """Take the size of the frame that has begun into account at once, instead of by doubling."""
        if frame_bytes + RECEIVE_ROOM_MIN > len(self._buffer):
            grown = bytearray(frame_bytes + RECEIVE_BYTES_FIRST)
            grown[: self._filled] = memoryview(self._buffer)[: self._filled]
            self._buffer = grown

    def eof_received(self) -> bool:
        return False

    # ---- replies ----

    def _deliver(self, replies: v2.Replies) -> None:
        if len(replies.opcodes) == 1 and replies.opcodes.item() == v2.ADD:
            self._deliver_adds(replies.ledger_ids, replies.entry_ids, replies.statuses)
            return
        adds = replies.opcodes == v2.ADD
        if adds.all():
            self._deliver_adds(replies.ledger_ids, replies.entry_ids, replies.statuses)
            return
        if adds.any():
            self._deliver_adds(replies.ledger_ids[adds], replies.entry_ids[adds], replies.statuses[adds])
        view = memoryview(self._buffer)
        for row in np.nonzero(replies.opcodes == v2.BATCH_READ)[0].tolist():
            self._deliver_batch(replies, row, view)
        reads = replies.opcodes == v2.READ
        last = reads & (replies.entry_ids == v2.LAST_ENTRY)
        for row in np.nonzero(last)[0].tolist():
            self._deliver_last_entry(replies, row, view)
        rows = np.nonzero(reads & ~last)[0]
        for ledger_id in np.unique(replies.ledger_ids[rows]).tolist():
            left = rows[replies.ledger_ids[rows] == ledger_id]
            for group in tuple(self._groups.get(ledger_id, ())):
                if len(left):
                    left = group.take(ledger_id, replies, left, view)

    def _deliver_adds(self, ledger_ids: np.ndarray, entry_ids: np.ndarray, statuses: np.ndarray) -> None:
        first = ledger_ids.item(0)
        if len(ledger_ids) == 1 or (ledger_ids == first).all():
            listener = self._adds.get(first)
            if listener is not None:
                listener.on_replies(entry_ids, statuses)
            return
        for ledger_id in np.unique(ledger_ids).tolist():
            listener = self._adds.get(ledger_id)
            if listener is not None:
                mine = ledger_ids == ledger_id
                listener.on_replies(entry_ids[mine], statuses[mine])

    def _deliver_batch(self, replies: v2.Replies, row: int, view: memoryview) -> None:
        batch = self._batches.get(int(replies.request_ids[row]))
        if batch is None or batch.future.done():
            return
        status = int(replies.statuses[row])
        start, end = int(replies.body_starts[row]), int(replies.body_ends[row])
        starts, ends = split_items(view, start, end if status == v2.Status.EOK else start)
        ids = np.arange(batch.first_entry, batch.first_entry + len(starts))
        opened = batch.digest.open_entries(view, starts, ends, batch.ledger_id, ids)
        if opened.bad is not None:
            status = BAD_DIGEST
        batch.future.set_result(BatchAnswer(opened.to_batch(batch.ledger_id, batch.first_entry), status))

    def _deliver_last_entry(self, replies: v2.Replies, row: int, view: memoryview) -> None:
        ledger_id, status = int(replies.ledger_ids[row]), int(replies.statuses[row])
        queue = self._last_reads.get(ledger_id)
        if not queue:
            return
        digest, future = queue.pop(0)
        if not queue:
            del self._last_reads[ledger_id]
        if future.done():
            return
        entry = None
        if status == v2.Status.EOK:
            body = bytes(view[int(replies.body_starts[row]) : int(replies.body_ends[row])])
            try:
                entry = digest.open_entry(body, ledger_id, None)
            except DigestMismatch:
                status = BAD_DIGEST
        future.set_result(LastEntryAnswer(status, entry))

    def _lose(self, error: BookKeeperError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._transport is not None:
            self._transport.abort()
        futures: list[asyncio.Future[object]] = [batch.future for batch in self._batches.values()]  # type: ignore[misc]
        futures += [group.future for groups in self._groups.values() for group in groups]  # type: ignore[misc]
        futures += [waiting[1] for queue in self._last_reads.values() for waiting in queue]  # type: ignore[misc]
        for future in futures:
            if not future.done():
                future.set_exception(error)
        listeners = list(self._adds.values())
        self._adds.clear()
        for listener in listeners:
            listener.on_lost(error)
