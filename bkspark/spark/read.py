"""Batch reading: the plan on the driver, the tasks that read it, and the schema if the user sets no schema."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bkspark.blocking import iterate, run
from bkspark.blocking.local_scan import SCAN_BYTES, SCAN_ENTRIES, LocalScan
from bkspark.client import Client
from bkspark.core.reader import next_span
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DataLoss, NoSuchEntry, NoSuchLog
from bkspark.ledger.range_reader import SCAN_BYTES_MIN, RangeReader, mean_entry_bytes, planned_reader
from bkspark.net.pool import BookiePool, NetOptions
from bkspark.spark.columns import inferred_schema, raw_schema, row_assembler
from bkspark.spark.connection import connect, new_pool, task_pool
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import columns_of
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import LedgerRead, ReadPartition, ReadPlanner
from bkspark.spark.ranges import EntryRange, between, cut
from bkspark.spark.workers import freeze_imported_modules
from bkspark.stages import reach
from bkspark.wire.digest import EntryDigest
from bkspark.wire.framing import LENGTH_BYTES

_log = logging.getLogger(__name__)

READ_BYTES = 4 << 20
"""Payload bytes requested at once; they fit a frame (5 MiB) unless entries are tiny."""

BATCH_BYTES = 1 << 20
"""Approximate bytes of a record batch for Spark. Its JVM processes batches that fit a core's cache faster: 0.62 s of
processor time for a GiB in batches of 1 MiB, 0.66 s with 4 MiB, 0.72 s with 8 MiB."""

SMALL_BATCH_BYTES = 256 << 10
"""Smaller batches are joined: a batch costs Spark about as much as this many bytes."""


ENTRY_BYTES = 1024
"""Assumed bytes of an entry if its size is unknown."""

SAMPLE_ENTRIES = 1000
SAMPLE_BYTES = 4 << 20
"""Limits of the sample that determines the columns of a read without a schema."""


class BookKeeperReader(DataSourceReader):
    """Reads ledgers or a log in their state when the read was planned."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._options = options.for_batch_read()
        self._schema = schema
        row_assembler(schema, self._options)  # a wrong column raises here, on the driver

    def partitions(self) -> list[InputPartition]:
        """Return the plan of one snapshot.

        Raises:
            NoSuchLog, NoSuchLedger, UnauthorizedAccess, MetadataError: the ledgers or the log cannot be read.
            ConfigurationError: a position is not one of the log.
            DataLoss: requested entries are gone (failOnDataLoss).
        """
        options = self._options
        client = connect(options).asynchronous
        planner = ReadPlanner(client, options)

        async def plan() -> list[ReadPartition]:
            return await planner.partitions(await _ranges(planner, options))

        return list(run(plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_partition(partition, self._schema, self._options)


async def _ranges(planner: ReadPlanner, options: SourceOptions) -> list[EntryRange]:
    """Return the entries that a batch read requests."""
    if not options.reads_logs:
        return _limited(await planner.chosen(options.ledgers or ()), options)
    names = await planner.log_names()
    planner.check_offsets(names)
    if not names:
        raise NoSuchLog(f"no log matches option 'logsPattern' {options.logs_pattern!r}: correct it, or create one")
    ranges: list[EntryRange] = []
    for name in names:
        snapshot = await planner.snapshot(name)
        if snapshot is None:
            continue
        readable = await planner.end_of_log(snapshot)
        start = await planner.start(snapshot, readable)
        end = await planner.end(snapshot, readable)
        extents = [extent async for extent in planner.extents(snapshot, start.ordinal, end)]
        ranges += between(await planner.in_time(extents), start, end)
    return ranges


def _limited(ranges: list[EntryRange], options: SourceOptions) -> list[EntryRange]:
    """Return the entries between relative offsets; both count back from the last of all chosen entries."""
    total = sum(map(len, ranges))
    start = options.starting_offsets
    end = options.ending_offsets
    first = max(0, total + start) if isinstance(start, int) else 0
    last = max(first, total + end) if isinstance(end, int) else total
    return cut(ranges, first, last)


def read_partition(partition: InputPartition, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as record batches; reads run ahead of the caller.

    Spark makes a partition of None when the plan is empty.
    """
    if not isinstance(partition, ReadPartition):
        return iter(())
    freeze_imported_modules()
    assembler = row_assembler(schema, options)

    def batches() -> Iterator[pa.RecordBatch]:
        for read, entries in _scanned(partition, fail_on_data_loss=options.fail_on_data_loss):
            reach("source.read")
            yield from assembler.batches(entries, read)
        assembler.tell_missing_columns()

    return _joined(batches())


def _scanned(partition: ReadPartition, *, fail_on_data_loss: bool) -> Iterator[tuple[LedgerRead, EntryBatch]]:
    """Yield the entries of a partition: read on this host if possible, otherwise over the network."""
    with task_pool(partition.addresses) as pool:
        if any(map(_is_long, partition.reads)):
            with closing(LocalScan(partition.addresses, NetOptions())) as scan:
                for read in partition.reads:
                    found = _read(read, scan, partition, pool, fail_on_data_loss=fail_on_data_loss)
                    yield from ((read, entries) for entries in found)
        else:
            yield from iterate(lambda: _entries(partition, pool, fail_on_data_loss=fail_on_data_loss))


def _is_long(read: LedgerRead) -> bool:
    entry_bytes = mean_entry_bytes(read.metadata) or ENTRY_BYTES
    return (read.end_entry - read.first_entry) * entry_bytes >= SCAN_BYTES_MIN


def _read(
    read: LedgerRead, scan: LocalScan, partition: ReadPartition, pool: BookiePool, *, fail_on_data_loss: bool
) -> Iterator[EntryBatch]:
    """Yield the entries of one read."""
    metadata, position, elsewhere = read.metadata, read.first_entry, 1
    digest = EntryDigest(metadata.digest, partition.password, metadata.lac_bounds)
    entry_bytes = mean_entry_bytes(metadata) or ENTRY_BYTES
    while position < read.end_entry:
        entries_max = max(SCAN_ENTRIES, SCAN_BYTES // entry_bytes)
        span = next_span(metadata, position, read.end_entry, entries_max)
        end = span.end_entry
        if _is_long(read):
            bytes_max = max(SCAN_BYTES, entries_max * (LENGTH_BYTES + digest.overhead_bytes + entry_bytes))
            for entries in scan.read(read.ledger_id, metadata, position, end - position, bytes_max, digest):
                position, elsewhere, entry_bytes = entries.end_entry, 1, max(1, entries.payload_bytes // len(entries))
                yield entries
            if position > span.first_entry:
                continue
        if not _is_long(read) or not scan.can_read(metadata, position):
            end = read.end_entry
        # Later entries may be local again; each miss doubles how far we read over the network before the next try.
        end = min(read.end_entry, position + elsewhere * (end - position))
        elsewhere *= 2
        reader = _reader(read, partition, pool)
        yield from iterate(partial(_stored, read, reader, position, end, fail_on_data_loss=fail_on_data_loss))
        position = end


async def _entries(
    partition: ReadPartition, pool: BookiePool, *, fail_on_data_loss: bool
) -> AsyncIterator[tuple[LedgerRead, EntryBatch]]:
    for read in partition.reads:
        reader = _reader(read, partition, pool)
        found = _stored(read, reader, read.first_entry, read.end_entry, fail_on_data_loss=fail_on_data_loss)
        # Closed before the pool: a LIMIT ends the task here, while reads are in flight.
        async with aclosing(found) as batches:
            async for entries in batches:
                yield read, entries


async def _stored(
    read: LedgerRead, reader: RangeReader, first: int, end: int, *, fail_on_data_loss: bool
) -> AsyncGenerator[EntryBatch]:
    """Yield entries [first, end), or with failOnDataLoss=false those of them that a bookie still has.

    Raises:
        DataLoss: every bookie that could have an entry answers that it does not have it: its ledger was deleted since
            the plan was made, or they lost it. A missing answer is not a data loss.
    """
    stop = end
    while first < end:
        try:
            if first < stop:
                async with aclosing(reader.batches(first, stop, READ_BYTES)) as batches:
                    async for entries in batches:
                        first = entries.end_entry
                        yield entries
            if stop < end:
                first, stop = await _next_stored(read, reader, stop, end), end
        except NoSuchEntry as error:
            gone = first if error.entry_id is None else error.entry_id
            if fail_on_data_loss:
                raise DataLoss(
                    f"{error}: the ledger was deleted since the read was planned, or its bookies lost it; load again, "
                    "or allow the loss (failOnDataLoss=false)",
                    ledger_id=read.ledger_id,
                    entry_id=gone,
                ) from None
            stop = gone


async def _next_stored(read: LedgerRead, reader: RangeReader, gone: int, end: int) -> int:
    """Return where to continue after an entry that is gone: directly after it, or at `end` if the rest is gone too.

    A deleted ledger is not read entry by entry: the answers of all its bookies for its last entries decide.
    """
    goes_on = end
    for entry_id in range(max(gone + 1, end - read.metadata.ensemble_size), end):
        with suppress(NoSuchEntry):
            async with aclosing(reader.batches(entry_id, entry_id + 1, READ_BYTES)) as batches:
                async for _ in batches:
                    goes_on = gone + 1
        if goes_on < end:
            break
    _log.warning("ledger %d: entries %d-%d are gone and are left out", read.ledger_id, gone, goes_on - 1)
    return goes_on


def _reader(read: LedgerRead, partition: ReadPartition, pool: BookiePool) -> RangeReader:
    return planned_reader(pool, read.ledger_id, read.metadata, partition.password)


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, consecutive small batches as one, large ones in parts."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= SMALL_BATCH_BYTES:
            for joined in _one_batch(waiting):
                yield from _parts(joined, size)
            waiting, size = [], 0
    if waiting:
        yield from _one_batch(waiting)


def _one_batch(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in one batch, if there are any; a single batch is not copied."""
    return batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()


def _parts(batch: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about BATCH_BYTES, over the same buffers."""
    parts = max(1, round(batch_bytes / BATCH_BYTES))
    rows = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def schema_for(options: SourceOptions) -> StructType:
    """Return the schema of a read without a schema from the user: from the first entries, except for raw.

    Raises:
        ConfigurationError: there is no entry, or the first entries do not determine the columns.
    """
    payload_format = options.payload_format or "raw"
    if payload_format == "raw":
        return raw_schema(options)
    client = connect(options).asynchronous
    # Finding the columns must not fence a writer: the read may still be refused, or never run.
    look = replace(options, recover=False, unconfirmed=True) if options.recover else options
    payloads = run(lambda: _first_payloads(client, look))
    if not payloads:
        what = "the ledgers chosen" if not options.reads_logs else f"log {options.log or options.logs_pattern}"
        raise ConfigurationError(
            f"{what}: no entry is there yet to read the columns off; name them by .schema('a int, b string')"
        )
    try:
        found = columns_of(payload_format, payloads, MalformedMode(options.malformed_mode))
        return inferred_schema(found, options)
    except ValueError as error:
        raise ConfigurationError(
            f"payloadFormat is {payload_format}, but the first entries do not give its columns: {error}; "
            "choose the format that was written, or name the columns by .schema('a int, b string')"
        ) from None


async def _first_payloads(client: Client, options: SourceOptions) -> list[bytes]:
    """Return the first entries to read, about SAMPLE_ENTRIES or SAMPLE_BYTES at most; at least one if there is any."""
    payloads: list[bytes] = []
    room = float(SAMPLE_BYTES)
    planner = ReadPlanner(client, options)
    async for entries in _readable(planner, options):
        entry_bytes = max(1.0, entries.size / len(entries))
        count = min(len(entries), SAMPLE_ENTRIES - len(payloads), max(int(room / entry_bytes), 0 if payloads else 1))
        if count <= 0:
            break
        sample = replace(entries, end_entry=entries.first_entry + count)
        # As in a task: the log has the end of a shared ledger before a bookie reports it.
        for partition in await planner.partitions([sample]):
            pool = new_pool(partition.addresses)
            try:
                found = _entries(partition, pool, fail_on_data_loss=options.fail_on_data_loss)
                async for _, batch in found:
                    payloads += batch
            finally:
                await pool.close()
        room -= count * entry_bytes
    return payloads


async def _readable(planner: ReadPlanner, options: SourceOptions) -> AsyncIterator[EntryRange]:
    """Yield the readable entries, from the beginning."""
    if not options.reads_logs:
        for entries in await planner.chosen(options.ledgers or ()):
            yield entries
    for name in await planner.log_names():
        snapshot = await planner.snapshot(name)
        if snapshot is None:
            continue
        end = await planner.end_of_log(snapshot)
        async for extent in planner.extents(snapshot, snapshot.start.ordinal, end):
            for entries in between([extent], snapshot.start, end):
                yield entries
