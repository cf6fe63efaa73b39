"""Reads entries from one replica at a time. RangeReader, repairs and recoveries read through this module.

The caller chooses the bookie, and decides what a response means for its ledger. `ReplicaReads` decides how the bookie
is asked: with one batch read of consecutive entries, or with one request for each entry, for as many entries at once as
the sizes of earlier ones allow. Digests and ids are always checked. `read_ahead` keeps several reads in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import numpy as np

from bkspark.core.reader import AdaptiveReadSize
from bkspark.entries import EntryBatch
from bkspark.errors import (
    BookieUnavailable,
    BookKeeperError,
    DigestMismatch,
    NoSuchEntry,
    ReadFailed,
    TooManyRequests,
)
from bkspark.net.channel import BookieChannel
from bkspark.net.pool import BookiePool
from bkspark.net.responses import BAD_DIGEST, EntryResponses
from bkspark.tasks import end_all
from bkspark.wire import v2
from bkspark.wire.adds import WireProtocol
from bkspark.wire.digest import EntryDigest

logger = logging.getLogger(__name__)

SINGLES_BYTES = 512 * 1024
SINGLES_MAX = 128
"""Default limits of single reads in flight: expected bytes, and entries. The bytes are only expected: if entries are
suddenly larger than earlier ones, more bytes may arrive."""
STRIPED_SINGLES_MAX = 256
"""Limit of single reads in flight in a striped ledger, where a bookie looks up each entry separately."""

Part = tuple[EntryBatch, int]
"""Entries from the first requested one on, and the status of the first that was not returned; EOK if all were."""

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


def read_error(status: int, ledger_id: int, entry_id: int, bookie: str) -> BookKeeperError:
    """Return the error for a bookie's read status that is not EOK."""
    kind: type[BookKeeperError]
    if status in (v2.Status.ENOENTRY, v2.Status.ENOLEDGER):
        kind, what = NoSuchEntry, "not there"
    elif status == BAD_DIGEST:
        kind, what = DigestMismatch, "the bytes do not match their digest or ids"
    elif status == v2.Status.ETOOMANYREQUESTS:
        kind, what = TooManyRequests, "too many requests"
    elif status == v2.Status.EUA:
        kind, what = (
            ReadFailed,
            (
                "answered with status 102: it may serve only TLS, or only authenticated clients, or its "
                "authorizationRulesFile does not let this client read the ledger"
            ),
        )
    else:
        kind, what = ReadFailed, f"answered with status {status}"
    where = f"ledger {ledger_id} entry {entry_id} at bookie {bookie}"
    error = kind(f"{where}: {what}", ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)
    if isinstance(error, ReadFailed):
        error.is_refusal = status == v2.Status.EUA
    return error


def report_damage(error: BookKeeperError) -> None:
    """Log `error` if it means that an entry is damaged at one bookie; the caller asks another replica."""
    if isinstance(error, DigestMismatch):
        logger.warning("%s; another bookie is asked for it", error)


class ReplicaReads:
    """Reads entries of one ledger from any of its bookies.

    All methods raise BookieUnavailable or RequestTimeout if the bookie cannot be reached or does not answer, and
    ClientClosed.

    Args:
        singles: determines how many entries `some` requests at once, and learns the sizes of entries from it.
        connection_index: which of the pool's connections to a bookie is used (`BookiePool.reserve_connection`).
    """

    def __init__(
        self,
        pool: BookiePool,
        ledger_id: int,
        digest: EntryDigest,
        singles: AdaptiveReadSize | None = None,
        connection_index: int = 0,
    ) -> None:
        self._pool = pool
        """The connections of the client. Constant."""
        self._ledger_id = ledger_id
        """The id of the ledger. Constant."""
        self._digest = digest
        """Checks every returned entry. Constant."""
        self._singles = singles or AdaptiveReadSize(SINGLES_BYTES, SINGLES_MAX)
        """Determines how many entries `some` requests, from the sizes of those that it returned."""
        self._connection_index = connection_index
        """Which of the connections to a bookie is used; 0 is the shared one. Constant."""
        self._without_batch_reads: set[str] = set()
        """Bookies that answer single reads, but closed the connection after the first batch read. Grows."""
        self._with_batch_reads: set[str] = set()
        """Bookies that have answered a batch read: they close a connection for other reasons. Grows."""

    async def prefix(self, bookie: str, entry_ids: np.ndarray, step: int, bytes_max: int) -> Part:
        """Return the entries before the first that the bookie does not return, and the status of that one.

        Args:
            entry_ids: ascending, `step` apart.
            bytes_max: limit of the response, which has at least one entry; only batch reads (V2, step 1) have it.
        """
        if step == 1 and self._pool.protocol is WireProtocol.V2 and bookie not in self._without_batch_reads:
            channel = await self._pool.channel(bookie, self._connection_index)
            try:
                assert isinstance(channel, BookieChannel)
                first_entry, count = entry_ids.item(0), len(entry_ids)
                batch = await channel.batch_read(self._ledger_id, first_entry, count, bytes_max, self._digest)
            except BookieUnavailable:
                # A bookie too old for batch reads closes the connection. If it answers single reads, it is too old,
                # unless it has answered a batch read before: then it was restarted, or the connection was lost.
                part = (await self.some(bookie, entry_ids)).prefix()
                if bookie not in self._with_batch_reads:
                    self._without_batch_reads.add(bookie)
                return part
            self._with_batch_reads.add(bookie)
            return batch.entries, batch.status
        return (await self.some(bookie, entry_ids if step == 1 else entry_ids[:STRIPED_SINGLES_MAX])).prefix()

    def answer_bytes(self, count: int, step: int, entry_bytes: int) -> int:
        """Return the probable payload bytes of one answer to a read of `count` entries that are `step` apart.

        Speeds are known by the sizes of answers, and one answer may have a small part of what is read.
        """
        if step == 1 and self._pool.protocol is WireProtocol.V2:
            return count * entry_bytes
        return min(count, self._singles.entries, count if step == 1 else STRIPED_SINGLES_MAX) * entry_bytes

    async def some(self, bookie: str, entry_ids: np.ndarray) -> EntryResponses:
        """Request as many of the first entries as earlier sizes allow, at least one; return a response for each."""
        responses = await self.each(bookie, entry_ids[: self._singles.entries])
        self._singles.on_entries(responses.largest_bytes)
        return responses

    async def each(
        self, bookie: str, entry_ids: np.ndarray, flags: int = 0, master_key: bytes | None = None
    ) -> EntryResponses:
        """Request all of some entries; return a response for each. DO_FENCING in `flags` fences the ledger."""
        channel = await self._pool.channel(bookie, self._connection_index)
        return await channel.read_entries(self._ledger_id, entry_ids, self._digest, flags, master_key)

    async def length_at(self, bookie: str, entry_id: int) -> int | None:
        """Return the cumulative length that an entry carries; None if the bookie lacks the entry, or has it damaged.

        Raises:
            ReadFailed, TooManyRequests: the bookie answered with an error, and may have the entry.
        """
        responses = await self.each(bookie, np.array([entry_id]))
        if responses.payloads[0] is not None:
            return int(responses.lengths[0])
        error = read_error(int(responses.statuses[0]), self._ledger_id, entry_id, bookie)
        report_damage(error)
        if isinstance(error, (NoSuchEntry, DigestMismatch)):
            return None
        raise error


async def read_ahead(
    requests: Iterator[_Request],
    read: Callable[[_Request], Coroutine[Any, Any, _Result]],
    rest: Callable[[_Request, _Result], _Request | None],
    depth: int,
) -> AsyncGenerator[_Result]:
    """Yield the results of requests in order; `depth` of them are read ahead of the caller.

    Args:
        requests: is asked for the next request only when there is room for it.
        rest: called with each request and its result, in order; returns what is left of the request, which is read
            next, or None.
    """
    ahead: deque[tuple[_Request, asyncio.Task[_Result]]] = deque()
    try:
        while True:
            while len(ahead) < depth and (request := next(requests, None)) is not None:
                ahead.append((request, asyncio.ensure_future(read(request))))
            if not ahead:
                return
            request, task = ahead.popleft()
            result = await task
            left = rest(request, result)
            if left is not None:
                ahead.appendleft((left, asyncio.ensure_future(read(left))))
            yield result
    finally:
        if ahead:
            await end_all([task for _, task in ahead])
