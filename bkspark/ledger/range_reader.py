"""RangeReader: reads a range of a ledger with known metadata, from all replicas, ahead of its caller."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from bkspark import metrics, tracing
from bkspark.core.metadata import LedgerMetadata
from bkspark.core.reader import AdaptiveReadSize, EntrySpan, GroupRead, groups, next_span
from bkspark.entries import EntryBatch
from bkspark.errors import BookieUnavailable, BookKeeperError, ClientClosed
from bkspark.ledger.replica_reads import Part, ReplicaReads, read_ahead, read_error, report_damage
from bkspark.net.pool import BookiePool
from bkspark.net.responses import joined
from bkspark.tasks import forget_failure
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest

BATCH_BYTES = 1024 * 1024
"""Default size of the batches that `batches` yields, in payload bytes, approximately."""

READ_AHEAD_SPANS = 4
SPAN_ENTRIES_FIRST = 256
"""Entries of a span while the size of entries is unknown."""
SPAN_ENTRIES_MAX = 65_536
SPAN_EXCESS = 2
"""A span is returned in pieces if its entries have more than this many times the planned bytes."""
SINGLES_FIRST = 256
SINGLES_MAX = 1024
"""Single reads in flight: at first, and at most. They have no limit in bytes."""

SCAN_BYTES_MIN = 256 * 1024
"""Smaller spans are read over the network: the additional request for the entries' positions would cost more than it
saves."""


class RangeReader:
    """Reads entries of a ledger with known metadata. A failed replica is followed by the next; digests are checked.

    Args:
        preferred: the bookie that is asked first; None: reads are spread over the replicas.
    """

    def __init__(
        self, pool: BookiePool, ledger_id: int, metadata: LedgerMetadata, digest: EntryDigest, preferred: str | None
    ) -> None:
        self._pool = pool
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self.preferred = preferred
        """The bookie that is asked first; None: reads are spread. Replaced when another bookie answers instead."""
        self._replicas = ReplicaReads(
            pool, ledger_id, digest, AdaptiveReadSize(BATCH_BYTES, SINGLES_MAX, SINGLES_FIRST)
        )
        self._entry_bytes = mean_entry_bytes(metadata)
        """Mean payload bytes of recent entries, at least 1; 0 while unknown. Changed after each span by `_rest`."""

    def read_span(self, span: EntrySpan, bytes_max: int) -> Coroutine[Any, Any, EntryBatch]:
        """Return, when awaited, leading entries of the span, at least one: about `bytes_max` payload bytes, or all.

        Raises:
            NoSuchEntry: every bookie that could have the first entry answered that it does not.
            ReadFailed: no replica returned the first entry, and at least one of them may have it.
        """
        pool, write_quorum = self._pool, self._metadata.write_quorum
        if pool.speeds.is_informed:
            todo = self._groups_by_speed(span)
        else:
            todo = groups(span, self._ledger_id, write_quorum, self.preferred, pool.avoided)
        if tracing.tracer is not None:
            reading = self._traced(todo, span, bytes_max)
        elif len(todo) == 1:
            reading = self._read_group(todo[0], bytes_max)
        else:
            reading = self._read_groups(todo, span, bytes_max)
        return reading if metrics.recorder is None else metrics.reading(reading)

    def _traced(self, todo: list[GroupRead], span: EntrySpan, bytes_max: int) -> Coroutine[Any, Any, EntryBatch]:
        """Return, when awaited, what `read_span` returns, and make a tracing span for it."""
        wanted = {"ledger": self._ledger_id, "first_entry": span.first_entry}
        wanted["wanted_entries"] = span.end_entry - span.first_entry
        read = partial(self._read_group, todo[0], bytes_max)
        if len(todo) > 1:
            read = partial(self._read_groups, todo, span, bytes_max)
        return tracing.reading(read, wanted, _facts)

    def _groups_by_speed(self, span: EntrySpan) -> list[GroupRead]:
        """Return the reads that cover a span; replicas that failed or are slow are asked last."""
        pool, write_quorum = self._pool, self._metadata.write_quorum
        count, is_striped = span.end_entry - span.first_entry, write_quorum < len(span.bookies)
        step = min(len(span.bookies), count) if is_striped else 1
        now_s = asyncio.get_running_loop().time()
        size_bytes = self._replicas.answer_bytes(-(-count // step), step, self._entry_bytes)
        avoided, slow = pool.avoided, pool.speeds.slow(span.bookies, size_bytes, now_s)
        candidates = [bookie for bookie in span.bookies if bookie not in avoided] if avoided else span.bookies
        tried = pool.speeds.to_try(candidates, size_bytes, now_s)
        if tried is not None:
            return groups(span, self._ledger_id, write_quorum, tried, avoided, slow - {tried})
        return groups(span, self._ledger_id, write_quorum, self.preferred, avoided, slow)

    async def _read_groups(self, todo: list[GroupRead], span: EntrySpan, bytes_max: int) -> EntryBatch:
        """As `read_span`, for a span of several groups, which are read concurrently."""
        group_bytes_max = max(1, bytes_max // len(todo))
        parts = await asyncio.gather(*(self._read_group(group, group_bytes_max) for group in todo))
        return _interleave(parts, span)

    async def _read_group(self, group: GroupRead, bytes_max: int) -> EntryBatch:
        """As `read_span`, for one group. The batch numbers its entries consecutively, also those of a stripe."""
        first_entry = int(group.missing[0])
        parts: list[EntryBatch] = []
        room = bytes_max
        while len(group.missing) and room > 0:
            part = await self._read_local(group) if self._pool.options.local_reads else None
            if part is None:
                part = await self.read_some(group, self._pool.options.frame_bytes_max)
            if not parts and not len(group.missing):
                return part
            parts.append(part)
            room -= part.payload_bytes
        return parts[0] if len(parts) == 1 else joined(parts, self._ledger_id, first_entry)

    async def _read_local(self, group: GroupRead) -> EntryBatch | None:
        """Return the next entries of a group with `bkspark.net.local_reads`; None: read them over the network."""
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
            # A network read would connect to the same bookie and fail after the same time: begin with the next replica.
            group.next_replica()
            group.on_failure(error)
            return None
        if part is not None:
            group.on_entries(bookie, len(part))
        return part

    async def read_some(self, group: GroupRead, bytes_max: int) -> EntryBatch:
        """Return the next entries of a group, from one replica's response, and remove them from `group.missing`.

        Args:
            bytes_max: limit of the response, which has at least one entry. Only batch reads have it, that is, groups of
                consecutive entries.

        Raises:
            NoSuchEntry, ReadFailed: as `read_span`.
        """
        loop, speeds = asyncio.get_running_loop(), self._pool.speeds
        asked: dict[asyncio.Task[Part], tuple[str, float]] = {}
        # The next replica is asked at first, after a delay without an answer, and when all that were asked have failed.
        asks_next = True
        try:
            while True:
                bookie = group.next_replica() if asks_next else None
                if bookie is not None:
                    if asked:
                        speeds.on_speculative_read()
                    reading = self._replicas.prefix(bookie, group.missing, group.step, bytes_max)
                    asked[asyncio.ensure_future(reading)] = bookie, loop.time()
                elif not asked:
                    raise group.error()
                # If an answer takes long, the next replica is asked as well, and the first entries to come are taken.
                delay_s: float | None = self._pool.options.speculative_read_s
                if asks_next and bookie is None:
                    delay_s = None
                elif speeds.is_informed and self._entry_bytes:
                    delay_s = self._speculative_delay_s(group, bytes_max)
                done, _ = await asyncio.wait(asked, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
                asks_next = not done
                if done:
                    task = done.pop()
                    bookie, asked_s = asked.pop(task)
                    part = self._take(group, bookie, task)
                    if part is not None:
                        if len(group.replicas) == 1:
                            # A speed matters only if there is another bookie to ask.
                            return part
                        now_s, size_bytes = loop.time(), part.payload_bytes
                        speeds.on_answer(bookie, size_bytes, now_s - asked_s, now_s)
                        for slower, asked_s in asked.values():
                            speeds.on_overtaken(slower, size_bytes, now_s - asked_s, now_s)
                        return part
                    asks_next = not asked
        finally:
            if asked:
                _cancel(asked)

    def _speculative_delay_s(self, group: GroupRead, bytes_max: int) -> float:
        """Return after what time another replica is asked, too."""
        limit_s = self._pool.options.speculative_read_s
        size_bytes = min(bytes_max, self._replicas.answer_bytes(len(group.missing), group.step, self._entry_bytes))
        now_s = asyncio.get_running_loop().time()
        delay_s = self._pool.speeds.speculative_delay_s(group.replicas, size_bytes, now_s)
        return limit_s if delay_s is None else min(limit_s, delay_s)

    def _take(self, group: GroupRead, bookie: str, task: asyncio.Task[Part]) -> EntryBatch | None:
        """Pass a bookie's response to the group; return its entries, or None without any."""
        try:
            part, status = task.result()
        except ClientClosed:
            raise
        except BookKeeperError as error:
            group.on_failure(error)
            return None
        refusal, count = None, len(part)
        if status != v2.EOK:
            refusal = read_error(status, self._ledger_id, int(group.missing[count]), bookie)
            report_damage(refusal)
        if not count:
            assert refusal is not None
            group.on_failure(refusal)
            return None
        if bookie != group.preferred_bookie and self.preferred is not None:
            # From now on this replica is asked first.
            self.preferred = bookie
        group.on_entries(bookie, count, refusal)
        return part

    def batches(self, first_entry: int, end_entry: int, batch_bytes: int = BATCH_BYTES) -> AsyncGenerator[EntryBatch]:
        """Yield [first_entry, end_entry) in batches of roughly `batch_bytes`; reads run ahead of the caller.

        The sizes of earlier entries determine how many entries a span has; if later entries are larger, the span is
        yielded in pieces.
        """
        spans = self._spans(first_entry, end_entry, batch_bytes)
        read = partial(self.read_span, bytes_max=SPAN_EXCESS * batch_bytes)
        return read_ahead(spans, read, self._rest, READ_AHEAD_SPANS)

    def _spans(self, first_entry: int, end_entry: int, batch_bytes: int) -> Iterator[EntrySpan]:
        while first_entry < end_entry:
            entries_max = SPAN_ENTRIES_FIRST
            if self._entry_bytes:
                entries_max = max(1, min(SPAN_ENTRIES_MAX, batch_bytes // self._entry_bytes))
            span = next_span(self._metadata, first_entry, end_entry, entries_max)
            first_entry = span.end_entry
            yield span

    def _rest(self, span: EntrySpan, batch: EntryBatch) -> EntrySpan | None:
        """Return the rest of a span after the batch that was read, or None; adjust the expected size of entries."""
        end = batch.end_entry
        self._entry_bytes = max(1, batch.payload_bytes // (end - span.first_entry))
        return replace(span, first_entry=end) if end < span.end_entry else None


def planned_reader(pool: BookiePool, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> RangeReader:
    """Return a reader for metadata from a plan.

    All readers of a ledger prefer the same bookie, so that its page cache serves them; ledgers differ in it.
    """
    bookies = metadata.last_fragment.bookies
    digest = EntryDigest(metadata.digest, password, metadata.lac_bounds)
    return RangeReader(pool, ledger_id, metadata, digest, bookies[ledger_id % len(bookies)])


def mean_entry_bytes(metadata: LedgerMetadata) -> int:
    """Return the mean size of a ledger's entries, at least 1; 0 if it is unknown: the ledger is open or empty."""
    if metadata.length and metadata.last_entry >= 0:
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


def _cancel(asked: dict[asyncio.Task[Part], tuple[str, float]]) -> None:
    """Cancel answers that are no longer needed."""
    for task in asked:
        task.cancel()
        # Another replica has answered: whether this one fails does not matter.
        task.add_done_callback(forget_failure)
    asked.clear()


def _facts(batch: EntryBatch) -> dict[str, str | int]:
    """Return the attributes of a read's tracing span, from its result."""
    return {"entries": len(batch), "bytes": batch.payload_bytes}
