"""LedgerReader reads one ledger with read-ahead; SnapshotReader does so from a plan, without a metadata store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import numpy as np

from bkspark.client import arguments
from bkspark.client.writer import Services
from bkspark.core.last_confirmed import LastConfirmed, LastEntries
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.reader import EntrySpan, GroupRead, groups, spans
from bkspark.entries import EntryBatch
from bkspark.errors import (
    BookieUnavailable,
    BookKeeperError,
    DigestMismatch,
    NoSuchEntry,
    ReadFailed,
    TooManyRequests,
)
from bkspark.metadata.ledgers import Versioned
from bkspark.net.answers import BAD_DIGEST, SINGLE_READS_MAX, LastEntryAnswer
from bkspark.net.channel import BookieChannel
from bkspark.net.pool import BookiePool, NetOptions
from bkspark.wire import v2
from bkspark.wire.adds import WireProtocol
from bkspark.wire.digest import EntryDigest

BATCH_BYTES = 1024 * 1024
"""Default size of what `batches` yields, in payload bytes, roughly."""

READ_AHEAD_SPANS = 4
SPAN_ENTRIES_FIRST = 256
SPAN_ENTRIES_MAX = 65_536
FOLLOW_POLL_S = 0.05
FOLLOW_POLL_MAX_S = 1.0


def read_error(status: int, ledger_id: int, entry_id: int, bookie: str) -> BookKeeperError:
    """Return the error that a read status of one bookie stands for."""
    kind: type[BookKeeperError]
    if status in (v2.Status.ENOENTRY, v2.Status.ENOLEDGER):
        kind, what = NoSuchEntry, "not there"
    elif status == BAD_DIGEST:
        kind, what = DigestMismatch, "the bytes do not match their digest or ids"
    elif status == v2.Status.ETOOMANYREQUESTS:
        kind, what = TooManyRequests, "too many requests"
    else:
        kind, what = ReadFailed, f"answered with status {status}"
    where = f"ledger {ledger_id} entry {entry_id} at bookie {bookie}"
    return kind(f"{where}: {what}", ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)


class RangeReader:
    """Reads entries of a ledger whose metadata is at hand: replicas in turn, digest always checked, read-ahead."""

    def __init__(
        self, pool: BookiePool, ledger_id: int, metadata: LedgerMetadata, digest: EntryDigest, preferred: str | None
    ) -> None:
        self._pool = pool
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self._preferred = preferred
        # Batch reads are V2 only.
        self._has_batch_reads = pool.protocol is WireProtocol.V2

    async def read_span(self, span: EntrySpan) -> EntryBatch:
        """Return every entry of the span.

        Raises:
            NoSuchEntry: every bookie that could have one said it has not.
            ReadFailed: no replica gave one, and at least one was not certain.
        """
        todo = groups(span, self._ledger_id, self._metadata.write_quorum, self._preferred, self._pool.avoided)
        if len(todo) == 1:
            return await self._read_group(todo[0])
        parts = await asyncio.gather(*(self._read_group(group) for group in todo))
        return _interleave(parts, span)

    async def _read_group(self, group: GroupRead) -> EntryBatch:
        parts: list[EntryBatch] = []
        step = int(group.missing[1] - group.missing[0]) if len(group.missing) > 1 else 1
        first_entry = int(group.missing[0])
        while len(group.missing):
            bookie = group.replica
            if bookie is None:
                raise group.error()
            try:
                if step == 1 and self._has_batch_reads:
                    part, status = await self._ask_batch(bookie, group.missing)
                else:
                    part, status = await self._ask_singles(bookie, group.missing)
            except BookKeeperError as error:
                group.on_failure(error)
                continue
            if len(part):
                parts.append(part)
                group.on_entries(len(part))
            if status != v2.Status.EOK and len(group.missing):
                group.on_failure(read_error(status, self._ledger_id, int(group.missing[0]), bookie))
        return _joined(parts, self._ledger_id, first_entry)

    async def _ask_batch(self, bookie: str, entry_ids: np.ndarray) -> tuple[EntryBatch, int]:
        channel = await self._pool.channel(bookie)
        assert isinstance(channel, BookieChannel)
        frame_bytes_max = self._pool.options.frame_bytes_max
        answer = await channel.batch_read(
            self._ledger_id, int(entry_ids[0]), len(entry_ids), frame_bytes_max, self._digest
        )
        if answer.status == v2.Status.EOK and not len(answer.entries):
            return answer.entries, BAD_DIGEST
        return answer.entries, answer.status

    async def _ask_singles(self, bookie: str, entry_ids: np.ndarray) -> tuple[EntryBatch, int]:
        channel = await self._pool.channel(bookie)
        answers = await channel.read_entries(self._ledger_id, entry_ids[:SINGLE_READS_MAX], self._digest)
        good = answers.statuses == v2.EOK
        count = len(good) if good.all() else int(np.argmin(good))
        payloads = [payload for payload in answers.payloads[:count] if payload is not None]
        status = v2.Status.EOK if count == len(good) else int(answers.statuses[count])
        return EntryBatch.of(payloads, self._ledger_id, int(entry_ids[0])), status

    async def length_at(self, bookie: str, entry_id: int) -> int | None:
        """Return the cumulative length in an entry at one bookie; None where it does not give the entry."""
        channel = await self._pool.channel(bookie)
        answers = await channel.read_entries(self._ledger_id, np.array([entry_id]), self._digest)
        return int(answers.lengths[0]) if answers.payloads[0] is not None else None

    async def batches(
        self, first_entry: int, end_entry: int, batch_bytes: int = BATCH_BYTES
    ) -> AsyncIterator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`; reads run ahead of the caller."""
        entries_max = self._span_entries(batch_bytes)
        ahead: deque[asyncio.Task[EntryBatch]] = deque()
        position = first_entry
        try:
            while position < end_entry or ahead:
                while position < end_entry and len(ahead) < READ_AHEAD_SPANS:
                    span = next(spans(self._metadata, position, end_entry, entries_max))
                    ahead.append(asyncio.ensure_future(self.read_span(span)))
                    position = span.end_entry
                batch = await ahead.popleft()
                if len(batch):
                    entry_bytes = max(1, batch.payload_bytes // len(batch))
                    entries_max = max(1, min(SPAN_ENTRIES_MAX, batch_bytes // entry_bytes))
                yield batch
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    def _span_entries(self, batch_bytes: int) -> int:
        metadata = self._metadata
        if metadata.is_closed and metadata.last_entry >= 0 and metadata.length > 0:
            entry_bytes = max(1, metadata.length // (metadata.last_entry + 1))
            return max(1, min(SPAN_ENTRIES_MAX, batch_bytes // entry_bytes))
        return SPAN_ENTRIES_FIRST


def _interleave(parts: list[EntryBatch], span: EntrySpan) -> EntryBatch:
    """Return one batch out of a batch per residue, in entry order."""
    count = span.end_entry - span.first_entry
    payloads: list[bytes] = [b""] * count
    for residue, part in enumerate(parts):
        payloads[residue :: len(parts)] = list(part)
    return EntryBatch.of(payloads, parts[0].ledger_id, span.first_entry)


def _joined(parts: list[EntryBatch], ledger_id: int, first_entry: int) -> EntryBatch:
    """Return consecutive batches as one; a single one as it is."""
    return parts[0] if len(parts) == 1 else EntryBatch.joined(parts, ledger_id, first_entry)


async def last_entries(pool: BookiePool, ledger_id: int, metadata: LedgerMetadata, digest: EntryDigest) -> LastEntries:
    """Return how far an open ledger goes, without fencing it.

    Raises:
        ReadFailed: the bookies that answered do not cover every write set.
    """
    fragment = metadata.last_fragment

    async def ask(slot: int, bookie: str) -> tuple[int, LastEntryAnswer | BookKeeperError]:
        try:
            channel = await pool.channel(bookie)
            return slot, await channel.read_last_entry(ledger_id, digest)
        except BookKeeperError as error:
            return slot, error

    tasks = [asyncio.ensure_future(ask(slot, bookie)) for slot, bookie in enumerate(fragment.bookies)]
    core = LastConfirmed(ledger_id, metadata)
    try:
        for finished in asyncio.as_completed(tasks):
            slot, answer = await finished
            if isinstance(answer, BookKeeperError):
                core.on_failure(answer)
            elif answer.entry is not None:
                core.on_entry(slot, answer.entry.entry_id, answer.entry.lac, answer.entry.length)
            elif answer.status in (v2.Status.ENOENTRY, v2.Status.ENOLEDGER):
                core.on_nothing(slot)
            else:
                core.on_failure(read_error(answer.status, ledger_id, v2.LAST_ENTRY, fragment.bookies[slot]))
            if core.is_covered:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return core.result()


@dataclass(frozen=True, slots=True)
class LedgerTimes:
    """When a ledger was created, and since when at the latest it has not changed: ms since the epoch, the metadata
    store's clock. `closed_ms` is None when the ledger was not closed."""

    created_ms: int
    closed_ms: int | None

    @classmethod
    def of(cls, stored: Versioned) -> LedgerTimes:
        created = stored.ctime_ms if stored.metadata.ctime is None else stored.metadata.ctime
        return cls(created, stored.mtime_ms if stored.metadata.is_closed else None)

    def is_closed_before(self, moment_ms: int) -> bool:
        """Whether the ledger certainly has no entry from that time on."""
        return self.closed_ms is not None and self.closed_ms < moment_ms


class LedgerReader:
    """Reads one ledger up to its last confirmed entry. Opening it fenced nothing, unless recovery was asked for."""

    def __init__(
        self,
        services: Services,
        ledger_id: int,
        metadata: LedgerMetadata,
        password: bytes,
        last: LastEntries,
        times: LedgerTimes,
    ) -> None:
        self._services = services
        self.times = times
        """As they were when the ledger was opened."""
        self._password = password
        self._digest = EntryDigest(metadata.digest, password)
        self._ledger_id = ledger_id
        self._adopt(metadata, last)

    def _adopt(self, metadata: LedgerMetadata, last: LastEntries) -> None:
        self._metadata = metadata
        self._last = last
        self._last_entry = metadata.last_entry if metadata.is_closed else last.lac
        self._last_unconfirmed = metadata.last_entry if metadata.is_closed else max(last.lap, last.lac)
        preferred = self._services.random.choice(metadata.last_fragment.bookies)
        self._range = RangeReader(self._services.pool, self._ledger_id, metadata, self._digest, preferred)

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def is_closed(self) -> bool:
        """Whether the ledger can grow no more."""
        return self._metadata.is_closed

    @property
    def last_entry(self) -> int:
        """The last entry known to be confirmed (LAC); -1 when there is none. `refresh` looks again."""
        return self._last_entry

    @property
    def last_unconfirmed(self) -> int:
        """The last entry that any bookie held when last asked (LAP); above `last_entry` nothing is promised."""
        return self._last_unconfirmed

    @property
    def length(self) -> int:
        """Payload bytes up to `last_entry`; of an open ledger, in proportion to those up to the last entry held."""
        if self._metadata.is_closed:
            return self._metadata.length
        return self._last.length * (self._last_entry + 1) // (self._last.lap + 1) if self._last.lap >= 0 else 0

    async def refresh(self) -> int:
        """Look at the metadata and the LAC again; return `last_entry`, which never falls."""
        if not self._metadata.is_closed:
            versioned = await self._services.ledgers.read(self._ledger_id)
            last = self._last
            if not versioned.metadata.is_closed:
                heard = await last_entries(self._services.pool, self._ledger_id, versioned.metadata, self._digest)
                last = last.joined(heard)
            self._adopt(versioned.metadata, last)
        return self._last_entry

    async def read(self, first_entry: int, last_entry: int, *, unconfirmed: bool = False) -> EntryBatch:
        """Return entries first_entry .. last_entry, both included, as one batch.

        Raises:
            ValueError: the range is empty or reaches beyond `last_entry` (`last_unconfirmed` with `unconfirmed`).
            NoSuchEntry, ReadFailed: an entry could not be read; `ReadFailed` may pass with time.
        """
        first_entry = arguments.whole_number("first_entry", first_entry)
        last_entry = arguments.whole_number("last_entry", last_entry)
        limit = self._last_unconfirmed if unconfirmed else self._last_entry
        if not 0 <= first_entry <= last_entry or last_entry > limit:
            raise ValueError(
                f"entries {first_entry} to {last_entry} of ledger {self._ledger_id} cannot be read: the range must lie "
                f"in 0 to {limit}, the last {'held' if unconfirmed else 'confirmed'} entry"
            )
        parts = [batch async for batch in self._batches(first_entry, last_entry + 1, BATCH_BYTES)]
        return _joined(parts, self._ledger_id, first_entry)

    async def batches(
        self,
        first_entry: int = 0,
        end_entry: int | None = None,
        *,
        batch_bytes: int = BATCH_BYTES,
        unconfirmed: bool = False,
    ) -> AsyncIterator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`; end None: to the last confirmed entry."""
        first_entry = arguments.whole_number("first_entry", first_entry)
        batch_bytes = arguments.whole_number("batch_bytes", batch_bytes, 1)
        if end_entry is not None:
            end_entry = arguments.whole_number("end_entry", end_entry)
        limit = self._last_unconfirmed if unconfirmed else self._last_entry
        end = limit + 1 if end_entry is None else min(end_entry, limit + 1)
        async for batch in self._batches(first_entry, end, batch_bytes):
            yield batch

    async def _batches(self, first_entry: int, end_entry: int, batch_bytes: int) -> AsyncIterator[EntryBatch]:
        """Yield entries; where they are not on the bookies that we know of, look whether they have moved."""
        position = first_entry
        while position < end_entry:
            try:
                async for batch in self._range.batches(position, end_entry, batch_bytes):
                    position = batch.end_entry
                    yield batch
            except (NoSuchEntry, ReadFailed):
                # Re-replication and ensemble changes move entries after a reader was opened.
                stored = (await self._services.ledgers.read(self._ledger_id)).metadata
                if stored.fragments == self._metadata.fragments:
                    raise
                self._adopt(stored, self._last)

    async def follow(self, first_entry: int = 0, *, batch_bytes: int = BATCH_BYTES) -> AsyncIterator[EntryBatch]:
        """Yield entries from `first_entry` on as they are confirmed; ends when the ledger is closed and read."""
        position, pause = first_entry, FOLLOW_POLL_S
        while True:
            async for batch in self.batches(position, batch_bytes=batch_bytes):
                position, pause = batch.end_entry, FOLLOW_POLL_S
                yield batch
            if self._metadata.is_closed:
                return
            before = self._last_entry
            await self.refresh()
            if self._last_entry == before and not self._metadata.is_closed:
                await asyncio.sleep(pause)
                pause = min(2 * pause, FOLLOW_POLL_MAX_S)


class SnapshotReader:
    """Reads a ledger from what a plan carried along: it asks bookies only, never the metadata store.

    Args:
        addresses: (host, port) of every bookie that the metadata names and that had one when the plan was made.
    """

    def __init__(
        self,
        *,
        ledger_id: int,
        metadata: LedgerMetadata,
        addresses: Mapping[str, tuple[str, int]],
        password: bytes = b"",
        pool: BookiePool | None = None,
    ) -> None:
        async def resolve(bookie: str) -> tuple[str, int]:
            if bookie not in addresses:
                raise BookieUnavailable(f"bookie {bookie} had no address when the read was planned", bookie=bookie)
            return addresses[bookie]

        self._owns_pool = pool is None
        self._pool = BookiePool(resolve, NetOptions()) if pool is None else pool
        bookies = metadata.last_fragment.bookies
        preferred = bookies[ledger_id % len(bookies)]
        self._range = RangeReader(self._pool, ledger_id, metadata, EntryDigest(metadata.digest, password), preferred)

    async def batches(
        self, first_entry: int, end_entry: int, *, batch_bytes: int = BATCH_BYTES
    ) -> AsyncIterator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`. Raises as `LedgerReader.read`."""
        async for batch in self._range.batches(first_entry, end_entry, batch_bytes):
            yield batch

    async def close(self) -> None:
        """Drop the connections, unless the pool was given."""
        if self._owns_pool:
            await self._pool.close()
