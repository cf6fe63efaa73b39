"""RangeReader: reads entries of a ledger with known metadata, span by span, ahead of its caller."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import replace

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.reader import AdaptiveReadSize, EntrySpan, GroupRead, groups, next_span
from bkspark.entries import EntryBatch
from bkspark.errors import (
    BookieUnavailable,
    BookKeeperError,
    ClientClosed,
    DigestMismatch,
    NoSuchEntry,
    ReadFailed,
    TooManyRequests,
)
from bkspark.net.answers import BAD_DIGEST, joined
from bkspark.net.channel import BookieChannel
from bkspark.net.pool import BookiePool
from bkspark.tasks import forget_failure
from bkspark.wire import v2
from bkspark.wire.adds import WireProtocol
from bkspark.wire.digest import EntryDigest

logger = logging.getLogger(__name__)

BATCH_BYTES = 1024 * 1024
"""Default size of what `batches` yields, in payload bytes, roughly."""

READ_AHEAD_SPANS = 4
SPAN_ENTRIES_FIRST = 256
SPAN_ENTRIES_MAX = 65_536
SPAN_EXCESS = 2
"""A span is cut if its entries have more than this factor of its planned bytes."""
SINGLES_FIRST = 256
SINGLES_MAX = 1024
STRIPED_SINGLES_MAX = 256
"""Single reads in flight: at first, and at most. They have no limit in bytes, and in a striped ledger a bookie looks up
each entry separately."""

SCAN_BYTES_MIN = 256 * 1024
"""Smaller requests go over the network at once: another request for the entries' places would not pay."""

_Part = tuple[EntryBatch, int]
"""Entries from the first missing one on, and the status that says why there are no more."""


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


def report_damage(error: BookKeeperError) -> None:
    """Log an entry that is damaged at one bookie; other replicas are asked for it."""
    if isinstance(error, DigestMismatch):
        logger.warning("%s; another bookie is asked for it", error)


class RangeReader:
    """Reads entries of a ledger with known metadata: replicas in turn, digest always checked, read-ahead."""

    def __init__(
        self, pool: BookiePool, ledger_id: int, metadata: LedgerMetadata, digest: EntryDigest, preferred: str | None
    ) -> None:
        self._pool = pool
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self._preferred = preferred
        self._batch_reads = pool.protocol is WireProtocol.V2
        self._without_batch_reads: set[str] = set()
        self._singles = AdaptiveReadSize(BATCH_BYTES, SINGLES_MAX, SINGLES_FIRST)
        # Approximate bytes of an entry; 0: not known yet.
        self._entry_bytes = mean_entry_bytes(metadata)

    async def read_span(self, span: EntrySpan, bytes_max: int) -> EntryBatch:
        """Return the entries of the span, at least the first: all, or as many as have about `bytes_max`.

        Raises:
            NoSuchEntry: every bookie that could have an entry answered that it does not.
            ReadFailed: no replica returned an entry, and at least one answer was not certain.
        """
        todo = groups(span, self._ledger_id, self._metadata.write_quorum, self._preferred, self._pool.avoided)
        if len(todo) == 1:
            return await self._read_group(todo[0], bytes_max)
        parts = await asyncio.gather(*(self._read_group(group, bytes_max // len(todo)) for group in todo))
        return _interleave(parts, span)

    async def _read_group(self, group: GroupRead, bytes_max: int) -> EntryBatch:
        """Return entries of a group as `read_span`, in its order, numbered on from its first."""
        first_entry = int(group.missing[0])
        parts: list[EntryBatch] = []
        room = bytes_max
        while len(group.missing) and room > 0:
            part = await self._read_local(group) if self._pool.options.local_reads else None
            if part is None:
                part = await self.read_some(group, self._pool.options.frame_bytes_max)
            parts.append(part)
            room -= part.payload_bytes
        return parts[0] if len(parts) == 1 else joined(parts, self._ledger_id, first_entry)

    async def _read_local(self, group: GroupRead) -> EntryBatch | None:
        """Return the next entries of a group by `bkspark.net.local_reads`; None: read them over the network."""
        options, count = self._pool.options, len(group.missing)
        is_scan = group.step == 1 and count * self._entry_bytes >= SCAN_BYTES_MIN
        if not is_scan or group.is_asked:
            return None
        bookie, first_entry = group.preferred_bookie, int(group.missing[0])
        try:
            part = await self._pool.read_local(
                bookie, self._ledger_id, first_entry, count, options.frame_bytes_max, self._digest
            )
        except BookieUnavailable as error:
            # Connecting again at once would only take the same time again.
            group.next_replica()
            group.on_failure(error)
            return None
        if part is not None:
            group.on_entries(bookie, len(part))
        return part

    async def read_some(self, group: GroupRead, bytes_max: int) -> EntryBatch:
        """Return the next entries of a group, those of one answer; `group.missing` are the others.

        Args:
            bytes_max: limit of the answer, or one entry; only batch reads, of a group without gaps, have a limit.

        Raises:
            NoSuchEntry, ReadFailed: as `read_span`.
        """
        asked: dict[asyncio.Task[_Part], str] = {}
        try:
            while True:
                bookie = None if asked else group.next_replica()
                if bookie is None and not asked:
                    raise group.error()
                if bookie is not None:
                    asked[asyncio.ensure_future(self._ask(bookie, group, bytes_max))] = bookie
                task = await self._first_answer(group, asked, bytes_max)
                part = self._take(group, asked.pop(task), task)
                if part is not None:
                    return part
        finally:
            if asked:
                _cancel(asked)

    async def _first_answer(
        self, group: GroupRead, asked: dict[asyncio.Task[_Part], str], bytes_max: int
    ) -> asyncio.Task[_Part]:
        """Return the first task that is done; if that takes long, a further replica is asked meanwhile."""
        delay_s: float | None = self._pool.options.speculative_read_s
        while True:
            done, _ = await asyncio.wait(asked, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return done.pop()
            bookie = group.next_replica()
            if bookie is None:
                delay_s = None
            else:
                asked[asyncio.ensure_future(self._ask(bookie, group, bytes_max))] = bookie

    def _take(self, group: GroupRead, bookie: str, task: asyncio.Task[_Part]) -> EntryBatch | None:
        """Tell the group what a bookie answered; return the entries, None where there are none."""
        try:
            part, status = task.result()
        except ClientClosed:
            raise
        except BookKeeperError as error:
            group.on_failure(error)
            return None
        refusal, count = None, len(part)
        if status != v2.EOK:
            refusal = read_error(status, self._ledger_id, int(group.missing[0]) + count, bookie)
            report_damage(refusal)
        if not count:
            assert refusal is not None
            group.on_failure(refusal)
            return None
        if bookie != group.preferred_bookie and self._preferred is not None:
            # The sticky replica is one that answers.
            self._preferred = bookie
        group.on_entries(bookie, count, refusal)
        return part

    async def _ask(self, bookie: str, group: GroupRead, bytes_max: int) -> _Part:
        entry_ids = group.missing
        if group.step == 1 and self._batch_reads and bookie not in self._without_batch_reads:
            channel = await self._pool.channel(bookie)
            try:
                assert isinstance(channel, BookieChannel)
                first_entry, count = entry_ids.item(0), len(entry_ids)
                answer = await channel.batch_read(self._ledger_id, first_entry, count, bytes_max, self._digest)
            except BookieUnavailable:
                # A bookie too old for batch reads closes the connection. If it answers single reads, it is too old.
                part = await self._ask_singles(bookie, group)
                self._without_batch_reads.add(bookie)
                return part
            if answer.status == v2.EOK and not len(answer.entries):
                return answer.entries, BAD_DIGEST
            return answer.entries, answer.status
        return await self._ask_singles(bookie, group)

    async def _ask_singles(self, bookie: str, group: GroupRead) -> _Part:
        count = self._singles.entries if group.step == 1 else min(self._singles.entries, STRIPED_SINGLES_MAX)
        entry_ids = group.missing[:count]
        channel = await self._pool.channel(bookie)
        answers = await channel.read_entries(self._ledger_id, entry_ids, self._digest)
        self._singles.on_entries(answers.largest_bytes)
        good = answers.statuses == v2.EOK
        count = len(good) if good.all() else int(np.argmin(good))
        status = v2.EOK if count == len(good) else int(answers.statuses[count])
        return answers.before(count), status

    async def length_at(self, bookie: str, entry_id: int) -> int | None:
        """Return the cumulative length in an entry at one bookie; None if it does not return the entry."""
        channel = await self._pool.channel(bookie)
        answers = await channel.read_entries(self._ledger_id, np.array([entry_id]), self._digest)
        return int(answers.lengths[0]) if answers.payloads[0] is not None else None

    async def batches(
        self, first_entry: int, end_entry: int, batch_bytes: int = BATCH_BYTES
    ) -> AsyncGenerator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`; reads run ahead of the caller.

        The number of entries in a span follows the sizes of earlier ones: if later ones are larger, a span is returned
        in pieces.
        """
        entries_max = self._span_entries(batch_bytes)
        ahead: deque[tuple[EntrySpan, asyncio.Task[EntryBatch]]] = deque()
        bytes_max = SPAN_EXCESS * batch_bytes
        position = first_entry
        try:
            while position < end_entry or ahead:
                while position < end_entry and len(ahead) < READ_AHEAD_SPANS:
                    span = next_span(self._metadata, position, end_entry, entries_max)
                    ahead.append((span, asyncio.ensure_future(self.read_span(span, bytes_max))))
                    position = span.end_entry
                span, task = ahead.popleft()
                batch = await task
                if batch.end_entry < span.end_entry:
                    rest = replace(span, first_entry=batch.end_entry)
                    ahead.appendleft((rest, asyncio.ensure_future(self.read_span(rest, bytes_max))))
                self._entry_bytes = max(1, batch.payload_bytes // len(batch))
                entries_max = self._span_entries(batch_bytes)
                yield batch
        finally:
            if ahead:
                for _, task in ahead:
                    task.cancel()
                await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)

    def _span_entries(self, batch_bytes: int) -> int:
        if not self._entry_bytes:
            return SPAN_ENTRIES_FIRST
        return max(1, min(SPAN_ENTRIES_MAX, batch_bytes // self._entry_bytes))


def planned_reader(pool: BookiePool, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> RangeReader:
    """Return a reader of what a plan carried along; readers of one ledger begin with one bookie, others with others."""
    bookies = metadata.last_fragment.bookies
    digest = EntryDigest(metadata.digest, password, metadata.lac_bounds)
    return RangeReader(pool, ledger_id, metadata, digest, bookies[ledger_id % len(bookies)])


def mean_entry_bytes(metadata: LedgerMetadata) -> int:
    """Return the mean size of a closed ledger's entries, at least 1; 0 if unknown."""
    if metadata.is_closed and metadata.last_entry >= 0 and metadata.length > 0:
        return max(1, metadata.length // (metadata.last_entry + 1))
    return 0


def _interleave(parts: list[EntryBatch], span: EntrySpan) -> EntryBatch:
    """Merge one batch per residue into one, in entry order, up to the first missing entry."""
    lacking = min(residue + len(part) * len(parts) for residue, part in enumerate(parts))
    count = min(lacking, span.end_entry - span.first_entry)
    payloads: list[bytes] = [b""] * count
    for residue, part in enumerate(parts):
        wanted = payloads[residue :: len(parts)]
        payloads[residue :: len(parts)] = itertools.islice(part, len(wanted))
    return EntryBatch.of(payloads, parts[0].ledger_id, span.first_entry)


def _cancel(asked: dict[asyncio.Task[_Part], str]) -> None:
    """Cancel answers that are no longer needed."""
    for task in asked:
        task.cancel()
        # The failure of a replica after another one had answered is not an error of the read.
        task.add_done_callback(forget_failure)
    asked.clear()
