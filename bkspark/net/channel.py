"""One V2 connection to one bookie.

Requests are sent as ready-made buffers. Replies are decoded into arrays and delivered by ledger: to the ledger's add
listener, to groups of single reads, or to a batch read by its request id. V2 has no request ids for adds and single
reads, so two users of one channel must not have the same entry of the same ledger in flight for different purposes: a
recovery reserves another channel (`BookiePool.reserve_connection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bkspark.net.connection import BookieConnection
from bkspark.net.responses import (
    BAD_DIGEST,
    SINGLE_READS_MAX,
    BatchResponse,
    EntryResponses,
    LastEntryResponse,
    ReadGroup,
)
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest, OpenedEntries
from bkspark.wire.framing import FrameTable, split_items


def _take_replies(group: ReadGroup, replies: v2.Replies, rows: np.ndarray, buffer: memoryview) -> np.ndarray:
    """Pass a group its replies; return the remaining rows."""
    ids = replies.entry_ids[rows]
    at = np.minimum(np.searchsorted(group.entry_ids, ids), len(group.entry_ids) - 1)
    mine = (group.entry_ids[at] == ids) & group.waiting[at]
    # A second answer to the same entry in one buffer belongs to the next group that asked for it.
    _, firsts = np.unique(ids, return_index=True)
    is_first = np.zeros(len(ids), bool)
    is_first[firsts] = True
    mine &= is_first
    taken = rows[mine]
    group.settle(at[mine], replies.statuses[taken], buffer, replies.body_starts[taken], replies.body_ends[taken])
    return rows[~mine]


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A batch read: at most `entries_max` consecutive entries, at least 1, in a reply frame of about `bytes_max`."""

    ledger_id: int
    first_entry: int
    entries_max: int
    bytes_max: int
    digest: EntryDigest

    def encode(self, request_id: int) -> bytes:
        return v2.encode_batch_read(self.ledger_id, self.first_entry, request_id, self.entries_max, self.bytes_max)

    def open(self, replies: v2.Replies, row: int, view: memoryview) -> tuple[OpenedEntries, int]:
        """Return the entries of a reply up to the first bad one, and the status, BAD_DIGEST for a bad one.

        Entries beyond `entries_max`, or beyond `bytes_max` after the first one, are left out.
        """
        status = int(replies.statuses[row])
        start, end = int(replies.body_starts[row]), int(replies.body_ends[row])
        starts, ends = split_items(view, start, end if status == v2.Status.EOK else start, self.entries_max)
        room_end = start + self.bytes_max - v2.BATCH_ACCOUNT_BYTES
        if len(ends) and ends.item(-1) > room_end:
            fitting = max(1, int(np.searchsorted(ends, room_end, side="right")))
            starts, ends = starts[:fitting], ends[:fitting]
        ids = np.arange(self.first_entry, self.first_entry + len(starts))
        opened = self.digest.open_entries(view, starts, ends, self.ledger_id, ids)
        if opened.bad is not None or (status == v2.Status.EOK and not len(ids)):
            status = BAD_DIGEST
        return opened, status


class BookieChannel(BookieConnection):
    """A V2 connection to one bookie, and the requests in flight on it."""

    def __init__(self, bookie: str, frame_bytes_max: int, read_timeout_s: float) -> None:
        super().__init__(bookie, frame_bytes_max, read_timeout_s)
        self._groups: dict[int, list[ReadGroup]] = {}
        """Single reads in flight, by ledger, in order."""
        self._last_reads: dict[int, list[tuple[EntryDigest, asyncio.Future[LastEntryResponse]]]] = {}
        """Reads of the last entry in flight, by ledger, in order."""
        self._batches: dict[int, tuple[BatchRequest, asyncio.Future[BatchResponse]]] = {}
        """Batch reads in flight, by request id."""
        self._next_request_id = 0
        """The id of the next batch read. Only grows."""

    # ---- requests ----

    async def read_entries(
        self,
        ledger_id: int,
        entry_ids: np.ndarray,
        digest: EntryDigest,
        flags: int = 0,
        master_key: bytes | None = None,
    ) -> EntryResponses:
        """Read single entries, ascending ids, at most SINGLE_READS_MAX, all in flight at once.

        Raises:
            BookieUnavailable: the connection was lost.
            RequestTimeout: not all were answered in time.
        """
        assert len(entry_ids) <= SINGLE_READS_MAX
        group = ReadGroup(ledger_id, entry_ids, digest, self._loop.create_future())
        groups = self._groups.setdefault(ledger_id, [])
        groups.append(group)
        try:
            self._send(v2.encode_reads(ledger_id, entry_ids, flags, master_key))
            return await self._answered_all(group, f"{len(entry_ids)} reads of ledger {ledger_id}")
        finally:
            groups.remove(group)
            if not groups and self._groups.get(ledger_id) is groups:
                del self._groups[ledger_id]

    async def read_last_entry(
        self, ledger_id: int, digest: EntryDigest, flags: int = 0, master_key: bytes | None = None
    ) -> LastEntryResponse:
        """Read the highest entry that the bookie has of a ledger; DO_FENCING in `flags` fences the ledger first.

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
            if not queue and self._last_reads.get(ledger_id) is queue:
                del self._last_reads[ledger_id]

    async def batch_read(
        self, ledger_id: int, first_entry: int, entries_max: int, bytes_max: int, digest: EntryDigest
    ) -> BatchResponse:
        """Read consecutive entries from `first_entry` on; fewer than requested is normal.

        Entries that the bookie sends beyond `entries_max` (at least 1), or beyond `bytes_max` of the reply frame after
        the first one, are left out. That is not an error: the entries before them have right ids and digests, and
        dropping the connection would fail the reads and adds of others on it.

        Raises:
            BookieUnavailable, RequestTimeout: as `read_entries`. A bookie too old for batch reads drops the connection.
        """
        request_id = self._next_request_id
        self._next_request_id += 1
        assert entries_max > 0
        request = BatchRequest(ledger_id, first_entry, entries_max, bytes_max, digest)
        future: asyncio.Future[BatchResponse] = self._loop.create_future()
        self._batches[request_id] = request, future
        try:
            self._send(request.encode(request_id))
            return await self._answered(future, f"a batch read of ledger {ledger_id} from entry {first_entry}")
        finally:
            self._batches.pop(request_id, None)

    # ---- replies ----

    def _take_single(self) -> bool:
        reply = v2.decode_single_add_reply(self._buffer, self._filled)
        if reply is None:
            return False
        status, ledger_id, entry_id = reply
        listener = self._adds.get(ledger_id)
        if listener is not None:
            listener.on_replies(np.array((entry_id,)), np.array((status,)), None)
        return True

    def _take_frames(self, table: FrameTable) -> None:
        replies = v2.decode_replies(self._buffer, table)
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
                    left = _take_replies(group, replies, left, view)

    def _deliver_batch(self, replies: v2.Replies, row: int, view: memoryview) -> None:
        request, future = self._batches.get(int(replies.request_ids[row]), (None, None))
        if request is None or future is None or future.done():
            return
        opened, status = request.open(replies, row, view)
        future.set_result(BatchResponse(opened.to_batch(request.ledger_id, request.first_entry), status))

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
        body = bytes(view[int(replies.body_starts[row]) : int(replies.body_ends[row])])
        future.set_result(LastEntryResponse.of(status, body, ledger_id, digest))

    def _waiting(self) -> Iterator[asyncio.Future[Any]]:
        yield from (future for _, future in self._batches.values())
        yield from (group.future for groups in self._groups.values() for group in groups)
        yield from (waiting[1] for queue in self._last_reads.values() for waiting in queue)
