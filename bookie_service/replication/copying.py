"""Copies the entries of one fragment to the bookies that lack them, byte for byte.

Entries are read as by any reader (replicas in turn, with checks of digest and ids) and sent whole, with unchanged bytes
and the recovery flag. A fenced bookie accepts them; one that already has an entry keeps the same bytes. The bytes in
flight are limited: `READ_AHEAD` reads of a piece each, and as many pieces that a target has not acknowledged
(`piece_bytes`). An entry that is larger than a piece is a piece by itself.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.reader import AdaptiveReadSize, EntrySpan, GroupRead, groups
from bkspark.core.striping import write_set
from bkspark.entries import EntryBatch
from bkspark.errors import BookKeeperError
from bkspark.ledger.context import ClientContext
from bkspark.ledger.range_reader import RangeReader
from bkspark.ledger.replica_copies import (
    PIECES_IN_FLIGHT_MAX,
    ReplicaWriter,
)
from bkspark.ledger.replica_reads import SINGLES_MAX, read_ahead
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest, master_key
from bookie_service.metrics.histograms import Histograms
from bookie_service.replication.options import RepairOptions
from bookie_service.replication.repair import CopyEntries, SlotCopy

READ_AHEAD = 4
READ_ENTRIES_MAX = 4096
"""At most this many entries per batch read."""
PIECES_MAX = READ_AHEAD + PIECES_IN_FLIGHT_MAX
"""How many pieces a copier has in memory."""

_REFILL_S = 0.5
"""How soon a changed rate takes effect."""
_ROUNDING_BYTES = 1e-3

_Read = tuple[np.ndarray, EntryBatch]
"""Entry ids, and the whole entries."""


class CopyFailed(Exception):
    """A target does not accept its copies."""

    def __init__(self, target: str, error: BookKeeperError) -> None:
        super().__init__(str(error))
        self.target = target
        self.error = error


class ByteRate:
    """Permits `bytes_per_s` on average, and at most the bytes of one second at once; 0 or less: there is no limit.

    `bytes_per_s` may be changed at any time. Callers that are waiting then wait by the new rate.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._asked = 0.0
        """How many bytes callers requested. Only grows."""
        self._permitted = 0.0
        """How many bytes were permitted. Only grows; at most the bytes of one second ahead of `_asked`."""
        self._seen_s = -math.inf
        """When `_permitted` last grew, by the monotonic clock."""

    async def wait(self, size: int) -> None:
        """Return when `size` more bytes may be sent."""
        self._refill()
        self._asked += size
        mine = self._asked
        while (left := mine - self._permitted) > _ROUNDING_BYTES:
            rate = self.bytes_per_s
            await asyncio.sleep(min(left / rate, _REFILL_S) if rate > 0 else 0.0)
            self._refill()

    def _refill(self) -> None:
        """Permit the bytes that are due; all requested bytes if there is no limit."""
        now_s, rate = asyncio.get_running_loop().time(), self.bytes_per_s
        due = rate * (now_s - self._seen_s) if rate > 0 else math.inf
        self._permitted = min(self._permitted + due, self._asked + max(rate, 0))
        self._seen_s = now_s


@dataclass(frozen=True, slots=True)
class CopyBudget:
    """What all copies of one process share.

    rate: limits their bytes. piece_bytes: about how many bytes of entries a piece has.
    sizes: counts the copied entries by size. Those of one piece count with their mean.
    """

    rate: ByteRate
    piece_bytes: int
    sizes: Histograms

    @classmethod
    def of(cls, options: RepairOptions) -> CopyBudget:
        """Return the budget of a process that repairs with these options."""
        piece_bytes = max(1, options.copies_in_flight_bytes // (options.ledgers_at_once * PIECES_MAX))
        return cls(ByteRate(options.bytes_per_s), piece_bytes, Histograms())


class FragmentCopier:
    """Performs `CopyEntries` for one ledger."""

    def __init__(
        self, context: ClientContext, ledger_id: int, metadata: LedgerMetadata, password: bytes, budget: CopyBudget
    ) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = EntryDigest(metadata.digest, password, metadata.lac_bounds, gives_stored=True)
        self._master_key = master_key(password)
        self._budget = budget
        self.copied_bytes = 0
        """How many bytes were sent to targets. Only grows."""

    async def copy(self, todo: CopyEntries, lost: frozenset[str]) -> None:
        """Return when every target has acknowledged every entry of its slot.

        Args:
            lost: bookies to read from last.

        Raises:
            CopyFailed: a target refused, timed out or disconnected.
            NoSuchEntry, ReadFailed: no bookie returns an entry.
        """
        connection_index = self._context.pool.reserve_connection(self._ledger_id)
        writers = [ReplicaWriter(self._context, self._ledger_id, copy.target, connection_index) for copy in todo.copies]
        try:
            for writer in writers:
                await _of_target(writer.bookie, writer.connect())
            async for ids, batch in self._batches(todo, lost):
                await self._send(todo, writers, ids, batch)
            for writer in writers:
                await _of_target(writer.bookie, writer.drained(0))
        finally:
            for writer in writers:
                writer.close()
            self._context.pool.release(self._ledger_id, connection_index)

    async def _send(self, todo: CopyEntries, writers: list[ReplicaWriter], ids: np.ndarray, batch: EntryBatch) -> None:
        slots = write_set(int(ids[0]), len(todo.fragment.bookies), self._metadata.write_quorum)
        frames, bounds = v2.encode_stored_adds(batch, self._master_key, v2.RECOVERY_ADD)
        await self._budget.rate.wait(len(frames))
        self.copied_bytes += len(frames)
        self._budget.sizes.record(0, len(frames) // len(ids), len(ids))
        for copy, writer in zip(todo.copies, writers):
            wanted = _wanted(copy, ids)
            if copy.slot in slots and wanted.any():
                await _of_target(writer.bookie, writer.send(ids, wanted, frames, bounds))

    def _batches(self, todo: CopyEntries, lost: frozenset[str]) -> AsyncIterator[_Read]:
        """Yield all entries that are needed, whole, in ascending order of spans. Reads run ahead of the caller."""
        reader = RangeReader(self._context.pool, self._ledger_id, self._metadata, self._digest, None)
        is_striped = self._metadata.write_quorum < len(todo.fragment.bookies)
        pace = AdaptiveReadSize(self._budget.piece_bytes, SINGLES_MAX if is_striped else READ_ENTRIES_MAX)

        async def read(group: GroupRead) -> _Read:
            ids = group.missing
            batch = await reader.read_some(group, pace.bytes_max)
            return ids[: len(batch)], batch

        def rest(group: GroupRead, result: _Read) -> GroupRead | None:
            pace.on_entries(int(np.diff(result[1].offsets).max()))
            return group if len(group.missing) else None

        return read_ahead(self._reads(todo, lost, pace), read, rest, READ_AHEAD)

    def _reads(self, todo: CopyEntries, lost: frozenset[str], pace: AdaptiveReadSize) -> Iterator[GroupRead]:
        """Yield the reads that the copies need: runs of entries that share a write set."""
        bookies, quorum = todo.fragment.bookies, self._metadata.write_quorum
        # If not every bookie has every entry, a span is split into as many reads as there are bookies.
        reads = 1 if quorum == len(bookies) else len(bookies)
        avoided = lost | self._context.pool.avoided
        first = todo.fragment.first_entry
        while first < todo.end_entry:
            span = EntrySpan(first, min(first + pace.entries * reads, todo.end_entry), bookies)
            first = span.end_entry
            for group in groups(span, self._ledger_id, quorum, None, avoided):
                slots = write_set(int(group.missing[0]), len(bookies), quorum)
                concerned = [copy for copy in todo.copies if copy.slot in slots]
                if any(_wanted(copy, group.missing).any() for copy in concerned):
                    yield group


async def _of_target(target: str, step: Awaitable[None]) -> None:
    try:
        await step
    except BookKeeperError as error:
        raise CopyFailed(target, error) from error


def _wanted(copy: SlotCopy, ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), bool) if copy.missing is None else np.isin(ids, copy.missing)
