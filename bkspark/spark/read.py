"""Batch reading: the plan on the driver, and the tasks that read it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bkspark.blocking import iterate, run
from bkspark.blocking.scans import Scans
from bkspark.entries import EntryBatch
from bkspark.errors import DataLoss, NoSuchEntry, NoSuchLog
from bkspark.ledger.encryption import LedgerOpener
from bkspark.ledger.listed import ListedEntries
from bkspark.ledger.range_reader import SCAN_BYTES_MIN, RangeReader, mean_entry_bytes, planned_reader
from bkspark.net.pool import BookiePool
from bkspark.spark.columns import row_assembler
from bkspark.spark.connection import connect
from bkspark.spark.frozen import freeze_imported_modules
from bkspark.spark.gaps import around_gaps
from bkspark.spark.local_files import encryption_with
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import LedgerRead, ReadPartition
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.ranges import EntryRange, PackedRanges, between, cut
from bkspark.spark.workers import task_pool
from bkspark.wire.digest import EntryDigest
from bkspark.wire.encrypted_entries import RECORD_KEY

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


_Entries = Iterator[tuple[LedgerRead, EntryBatch]]


class BookKeeperReader(DataSourceReader):
    """Reads ledgers or a log in their state when the read was planned."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._options = options.for_batch_read()
        self._schema = schema
        """The columns that the query asks for. Constant."""
        self._check_schema(schema)

    def _check_schema(self, schema: StructType) -> None:
        """Raise ConfigurationError if a column is not available; called on the driver."""
        row_assembler(schema, self._options)

    def partitions(self) -> list[InputPartition]:
        """Return the plan of one snapshot.

        Raises:
            NoSuchLog, NoSuchLedger, UnauthorizedAccess, MetadataError: the ledgers or the log cannot be read.
            ConfigurationError: a position is not one of the log.
            DataLoss: requested entries are gone (failOnDataLoss).
        """
        return list(self._plan(self._options))

    def _plan(self, options: SourceOptions) -> list[ReadPartition]:
        planner = ReadPlanner(connect(options).asynchronous, options)

        async def plan() -> list[ReadPartition]:
            ranges = await ranges_to_read(planner, options)
            planner.check_lost_times()
            return await planner.partitions(ranges, leaves_out=await self._leaves_out(planner, ranges))

        return run(plan)

    async def _leaves_out(self, planner: ReadPlanner, ranges: list[EntryRange]) -> frozenset[str]:
        """Return the names of columns that logs have recorded and this read leaves out. Raises SchemaMismatch if the
        entries cannot be read as the wanted columns."""
        if not any(snapshot.schemas for snapshot in planner.looked_at):
            return frozenset()
        from bkspark.spark.log_schemas import ColumnCheck  # tasks import this module, and check nothing

        check = ColumnCheck(row_assembler(self._schema, self._options).payload_columns, self._options)
        return await check.check(planner.looked_at, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_partition(partition, self._schema, self._options)


async def ranges_to_read(planner: ReadPlanner, options: SourceOptions) -> list[EntryRange]:
    """Return the entries that a batch read requests."""
    if not options.reads_logs:
        return _limited(await planner.chosen(options.ledgers or ()), options)
    snapshots = await planner.snapshots()
    planner.check_offsets([snapshot.name for snapshot in snapshots])
    if not snapshots:
        raise NoSuchLog(f"no log matches option 'logsPattern' {options.logs_pattern!r}: correct it, or create one")
    ranges: list[EntryRange] = []
    for snapshot in snapshots:
        readable = await planner.end_of_log(snapshot)
        start = await planner.start(snapshot, readable)
        end = await planner.end(snapshot, readable)
        extents = [extent async for extent in planner.extents(snapshot, start.ordinal, end)]
        ranges += between(await planner.in_time(snapshot, extents), start, end)
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
    if partition.unopened is not None:
        partition = _opened_in_task(partition.unopened, options, leaves_out=partition.leaves_out)
    # The driver has logged these names; tasks need not fail on them.
    assembler = row_assembler(schema, options, partition.leaves_out)

    def batches() -> Iterator[pa.RecordBatch]:
        for read, entries in scanned(partition, fail_on_data_loss=options.fail_on_data_loss):
            yield from assembler.batches(entries, read)
        assembler.warn_of_columns()

    return joined(batches())


def _opened_in_task(unopened: PackedRanges, options: SourceOptions, *, leaves_out: frozenset[str]) -> ReadPartition:
    """Return the partition after reading the metadata of its ledgers. Raises as `ReadPlanner.partitions`."""
    planner = ReadPlanner(connect(options).asynchronous, options)
    return run(lambda: planner.one_partition(unopened.unpacked(), leaves_out=leaves_out))


def scanned(partition: ReadPartition, *, fail_on_data_loss: bool) -> _Entries:
    """Yield the entries of a partition: long reads in this thread as far as possible, the rest on the event loop."""
    with task_pool(partition.addresses, partition.net) as pool:
        entries = partial(stored_entries, partition=partition, pool=pool, fail_on_data_loss=fail_on_data_loss)
        if not any(map(_is_long, partition.reads)):
            yield from iterate(partial(entries, partition.reads))
            return

        def on_loop(reads: Sequence[LedgerRead]) -> _Entries:
            return iterate(partial(entries, reads))

        password = partition.password.value if partition.password.path is None else partition.password.read()
        with closing(Scans(partition.addresses, partition.net)) as scans:
            for read in partition.reads:
                yield from _read(read, scans, partition, password, on_loop) if _is_long(read) else on_loop([read])


def _opener(read: LedgerRead, partition: ReadPartition) -> LedgerOpener:
    """Return the opener of a ledger's entries, which decrypts those of an encrypted ledger."""
    return encryption_with(partition.encryption_key_file).opener(read.ledger_id, read.metadata.custom_metadata)


def _is_long(read: LedgerRead) -> bool:
    entry_bytes = mean_entry_bytes(read.metadata) or ENTRY_BYTES
    return (read.end_entry - read.first_entry) * entry_bytes >= SCAN_BYTES_MIN


def _read(
    read: LedgerRead,
    scans: Scans,
    partition: ReadPartition,
    password: bytes,
    on_loop: Callable[[Sequence[LedgerRead]], _Entries],
) -> _Entries:
    """Yield the entries of one read."""
    metadata, position = read.metadata, read.first_entry
    digest = EntryDigest(metadata.digest, password, metadata.lac_bounds)
    opener = _opener(read, partition) if RECORD_KEY in metadata.custom_metadata else None
    entry_bytes = mean_entry_bytes(metadata) or ENTRY_BYTES
    while position < read.end_entry:
        for entries in scans.read(read.ledger_id, metadata, position, read.end_entry, entry_bytes, digest):
            position = entries.end_entry
            yield read, entries if opener is None else opener.open(entries)
        if position < read.end_entry:
            end = scans.end_of_gap(metadata, position, read.end_entry, entry_bytes)
            yield from on_loop([replace(read, first_entry=position, end_entry=end)])
            position = end


async def stored_entries(
    reads: Iterable[LedgerRead], partition: ReadPartition, pool: BookiePool, *, fail_on_data_loss: bool
) -> AsyncGenerator[tuple[LedgerRead, EntryBatch]]:
    """Yield the entries of reads, or with failOnDataLoss=false those of them that a bookie still has.

    Raises:
        DataLoss: every bookie that could have an entry answers that it does not have it: its ledger was deleted since
            the plan was made, or they lost it. A missing answer is not a data loss.
    """
    password = partition.password.value if partition.password.path is None else partition.password.read()
    for read in reads:
        reader = planned_reader(pool, read.ledger_id, read.metadata, password)
        opener = _opener(read, partition) if RECORD_KEY in read.metadata.custom_metadata else None
        first = read.first_entry
        try:
            # Closed before the pool: a LIMIT ends the task here, while reads are in flight.
            async with aclosing(reader.batches(first, read.end_entry, READ_BYTES)) as batches:
                async for entries in batches:
                    first = entries.end_entry
                    yield read, entries if opener is None else opener.open(entries)
            continue
        except NoSuchEntry as error:
            gone = first if error.entry_id is None else error.entry_id
            if fail_on_data_loss:
                raise _lost(partition.place_of(read, gone), read.ledger_id, gone, error) from None
        async with aclosing(_around_gaps(read, reader, first, partition, pool)) as batches:
            async for entries in batches:
                yield read, entries if opener is None else opener.open(entries)


def _around_gaps(
    read: LedgerRead, reader: RangeReader, first: int, partition: ReadPartition, pool: BookiePool
) -> AsyncGenerator[EntryBatch]:
    """Return the stored entries of a read from `first` on; each gap is a warning."""

    def warn(gone: int, goes_on: int) -> None:
        place, ledger_id = partition.place_of(read, gone), read.ledger_id
        _log.warning("%sentries %d-%d of ledger %d are gone and are left out", place, gone, goes_on - 1, ledger_id)

    return around_gaps(
        partial(reader.batches, batch_bytes=READ_BYTES),
        first,
        read.end_entry,
        ensemble_size=read.metadata.ensemble_size,
        next_listed=ListedEntries(pool, read.ledger_id, read.metadata).next_from,
        on_gap=warn,
    )


def _lost(place: str, ledger_id: int, entry_id: int, error: NoSuchEntry) -> DataLoss:
    return DataLoss(
        f"{place}{error}: the ledger was deleted since the read was planned, or its bookies lost it; load again, or "
        "allow the loss (failOnDataLoss=false)",
        ledger_id=ledger_id,
        entry_id=entry_id,
    )


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, consecutive small batches as one, large ones in parts."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        octets = batch.nbytes
        if waiting and octets >= BATCH_BYTES:  # it would be copied
            yield from _one_batch(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += octets
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
