"""Determines the columns of a read on the driver: those that the logs have recorded, otherwise those of their entries.

Entries have columns if their format is not raw. The first and the last entries of the range are sampled. If an entry
between them has other columns, the task that reads it finds out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from pyspark.sql.types import BinaryType, StructField, StructType

from bkspark.blocking import run
from bkspark.client import Client
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DataLoss, MalformedPayload, NoSuchLog, SchemaMismatch
from bkspark.log.positions import LATEST, Position
from bkspark.log.snapshot import LogSnapshot
from bkspark.spark.columns import (
    RAW_NAMES,
    all_nullable,
    arrow_schema,
    inferred_columns,
    raw_schema,
    schema_of_columns,
)
from bkspark.spark.connection import connect
from bkspark.spark.evolution import Finder, completed, merged, shown_columns
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.raw import VALUE
from bkspark.spark.formats.registry import columns_of, decoder_of
from bkspark.spark.log_schemas import ARROW, PAYLOAD_FORMAT_KEY, RAW, Remembered, default_format, remembered_by_all
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPlanner
from bkspark.spark.ranges import EntryRange, cut
from bkspark.spark.read import ranges_to_read, stored_entries
from bkspark.spark.read_options import SPARK
from bkspark.spark.stored_ledgers import stored_ledgers
from bkspark.spark.workers import new_pool

SAMPLE_ENTRIES = 1000
SAMPLE_BYTES = 4 << 20
"""Limits of each of the two samples that determine the columns of a read without a schema."""


def schema_for(options: SourceOptions) -> tuple[StructType, SourceOptions]:
    """Return the schema of a read for which the user named no columns, and the options with the format that was found.

    Raises:
        ConfigurationError: there is no entry, or the entries do not determine the columns.
        SchemaMismatch: several logs have several formats, or columns that contradict each other.
    """
    inferred = replace(options, columns_inferred=True)
    if options.payload_format == RAW:
        return raw_schema(options), inferred
    client = connect(options).asynchronous
    found = None
    if options.reads_logs:
        with suppress(NoSuchLog):  # the reader raises it; a table may be created before its log
            found = run(lambda: _remembered(ReadPlanner(client, options), options))
    if found is not None:
        inferred = replace(inferred, payload_format=found.payload_format)
        return schema_of_columns(found.columns, inferred), inferred
    if options.payload_format is None:
        return raw_schema(options), inferred
    return _schema_of_entries(client, options), inferred


def with_found_format(columns: StructType, options: SourceOptions) -> SourceOptions:
    """Return options with the payload format that the logs have recorded, if the user named columns and no format.

    Columns that only raw entries have, such as `ledger_id bigint, value binary`, mean the entries themselves.

    Raises:
        NoSuchLog: there is no such log, whose entries could have the columns.
        SchemaMismatch: several logs have several formats.
    """
    if options.payload_format is not None or options.columns_inferred or not options.reads_logs:
        return options
    client = connect(options).asynchronous
    try:
        found = run(lambda: _remembered(ReadPlanner(client, options), options))
    except NoSuchLog as error:
        if {name.lower() for name in columns.names} <= RAW_NAMES:
            return options  # the reader raises it when it plans
        if "payloadFormat" in str(error):
            raise
        raise NoSuchLog(
            f"{error}. The format of its entries is stored in it: create it, or set payloadFormat"
        ) from None
    if found is None:
        return options
    finder = Finder(found.columns)
    lacking = frozenset(name.lower() for name in columns.names if finder.find(name) is None)
    if len(columns) and len(lacking) == len(columns) and lacking <= RAW_NAMES:
        return replace(options, payload_format=RAW, given=options.given | {"payloadformat"})
    return replace(options, payload_format=found.payload_format, metadata_found=lacking)


async def _remembered(planner: ReadPlanner, options: SourceOptions) -> Remembered | None:
    snapshots = await planner.snapshots()
    if not snapshots:
        raise NoSuchLog(
            f"no log matches option 'logsPattern' {options.logs_pattern!r}, so the format of entries is not known: "
            "correct it, create a log, or set payloadFormat"
        )
    ends: dict[str, int] = {}
    if options.ending_offsets != LATEST or options.ending_timestamp is not None:
        for snapshot in snapshots:
            end = await planner.end(snapshot, await planner.end_of_log(snapshot))
            ends[snapshot.name] = await _last_ordinal(snapshot, end)
    return await remembered_by_all(snapshots, ends, options)


async def _last_ordinal(snapshot: LogSnapshot, end: Position) -> int:
    """Return the ordinal of the last ledger of a log that has entries before a position."""
    has_some = False
    async for part in snapshot.runs(end.ordinal, end.ordinal + 1):
        has_some = any(listed.first_entry < end.entry_id for listed in part)
    return end.ordinal if has_some else end.ordinal - 1


# ---- entries ----


async def shown_by_entries(
    client: Client, options: SourceOptions, rows: StructType, snapshot: LogSnapshot
) -> Remembered | None:
    """Return the payload format and, if possible, the columns of a log that has recorded no schema; for a write.

    Logs that were written before schemas were remembered have the format in the metadata of their ledgers. None if the
    log has no ledger, or no entry where entries of Arrow are expected.

    Raises:
        SchemaMismatch: others wrote the log, and the write would add Arrow entries to entries that are not, or rows
            whose types contradict its entries.
    """
    if not len(snapshot):
        return None
    named = await _format_of_newest(client, snapshot)
    payload_format = named or options.payload_format or default_format(rows)
    if payload_format == RAW:
        return Remembered(RAW, StructType([StructField(VALUE, BinaryType())]))
    look = replace(options, given=frozenset(), payload_format=payload_format, ledger_metadata={})
    payloads = [payload for sample in await _samples(client, look) for payload in sample]
    if payload_format != ARROW:
        return Remembered(payload_format, _columns_with_those_of_others(snapshot.name, look, rows, payloads))
    if not payloads:
        return None
    try:
        newest = inferred_columns(columns_of(ARROW, payloads[-1:]))
    except (ValueError, ConfigurationError) as error:
        if named or options.payload_format:
            return Remembered(ARROW, StructType())
        raise SchemaMismatch(
            f"log {snapshot.name} has entries that other programs wrote, and the last one has no rows of Arrow's "
            f"({error}): set payloadFormat to the format of its entries, or write to another log"
        ) from None
    with suppress(ValueError, ConfigurationError):  # earlier entries of another kind end reads, not this write
        oldest = inferred_columns(columns_of(ARROW, payloads[:1]))
        return Remembered(ARROW, all_nullable(merged([newest, oldest], [f"entries of log {snapshot.name}"] * 2)))
    return Remembered(ARROW, newest)


def _columns_with_those_of_others(
    log: str, options: SourceOptions, rows: StructType, payloads: Sequence[bytes]
) -> StructType:
    """Return the columns of a log of objects: those of rows, and others that its entries have, null in these rows. No
    column if the entries show none.

    Raises:
        SchemaMismatch: an entry has a value that is not of the type of the rows.
    """
    payload_format = options.payload_format or RAW
    objects = [payload for payload in payloads if _shown_by([payload], payload_format) is not None]
    found = _shown_by(objects, payload_format)
    if found is None or found.names[:1] == ["_1"]:
        return StructType()  # cells of arrays have no names
    columns = all_nullable(completed(rows, found))
    if not _fit(objects, payload_format, columns):
        wrong = [column for column in columns if not _fit(objects, payload_format, StructType([column]))]
        raise SchemaMismatch(
            f"{shown_columns(wrong or list(columns))} not what entries of log {log} have, which other programs wrote: "
            "cast the data, or write to another log"
        )
    return columns


def _shown_by(payloads: Sequence[bytes], payload_format: str) -> StructType | None:
    try:
        return inferred_columns(columns_of(payload_format, payloads, takes_all=True))
    except (ValueError, ConfigurationError):
        return None


def _fit(payloads: Sequence[bytes], payload_format: str, columns: StructType) -> bool:
    """Whether all of the objects can be read with these columns, in the dialect that takes more."""
    decoder = decoder_of(payload_format, arrow_schema(columns), is_sparks=True)
    try:
        return all(rows.count for rows in decoder.decode(EntryBatch.of(payloads)))
    except MalformedPayload:
        return False


async def _format_of_newest(client: Client, snapshot: LogSnapshot) -> str | None:
    newest = [listed.ledger_id for listed in await snapshot.ledgers(snapshot.end_ordinal - 1)]
    async for _, stored in stored_ledgers(client, newest):
        return stored.metadata.custom_metadata.get(PAYLOAD_FORMAT_KEY, b"").decode(errors="replace") or None
    return None


def _schema_of_entries(client: Client, options: SourceOptions) -> StructType:
    payload_format = options.payload_format or RAW
    # Finding the columns must not fence a writer: the read may still be refused, or never run.
    look = replace(options, recover=False, unconfirmed=True) if options.recover else options
    first, last = run(lambda: _samples(client, look))
    if not first:
        what = "the ledgers chosen" if not options.reads_logs else f"log {options.log or options.logs_pattern}"
        raise ConfigurationError(
            f"{what}: there is no entry yet that shows the columns; name them by .schema('a int, b string')"
        )
    try:
        return schema_of_columns(_columns_of_entries(first, last, options), options)
    except ValueError as error:
        raise ConfigurationError(
            f"payloadFormat is {payload_format}, but the first and last entries do not give its columns: {error}; "
            "choose the format that was written, or name the columns by .schema('a int, b string')"
        ) from None


def _columns_of_entries(first: Sequence[bytes], last: Sequence[bytes], options: SourceOptions) -> StructType:
    mode = MalformedMode(options.malformed_mode)
    payload_format = options.payload_format or RAW
    if payload_format != "arrow":
        return inferred_columns(
            columns_of(payload_format, [*first, *last], mode, is_sparks=options.json_dialect == SPARK)
        )
    # A few entries are all in the first sample.
    ends = (first, list(reversed(last or first)))
    found = [inferred_columns(columns_of(payload_format, sample, mode)) for sample in ends]
    try:
        return all_nullable(merged(found, ["the last entry", "the last entry"]))
    except SchemaMismatch as error:
        raise ConfigurationError(f"the first and the last entry to read contradict each other: {error}") from None


async def _samples(client: Client, options: SourceOptions) -> tuple[list[bytes], list[bytes]]:
    """Return some of the first entries to read, and some of the last ones that are not among these."""
    planner, ranges = await _range_of(client, options)
    total = sum(map(len, ranges))
    head = _sample_size(ranges)
    tail = max(head, total - _sample_size(list(reversed(ranges))))
    fails = options.fail_on_data_loss
    first = await _payloads(planner, cut(ranges, 0, head), fail_on_data_loss=fails)
    if not first and not fails:
        # They are lost: the first ones that are left show the columns.
        first = await _payloads(planner, cut(ranges, head, tail), fail_on_data_loss=fails, most=head)
    last = await _payloads(planner, cut(ranges, tail, total), fail_on_data_loss=fails)
    return first or last, last


async def _range_of(client: Client, options: SourceOptions) -> tuple[ReadPlanner, list[EntryRange]]:
    """Return the entries that a read of these options requests; all of them if it requests none, or later ones."""
    start = None if options.starting_offsets == LATEST else options.starting_offsets
    whole = replace(options, given=frozenset(), starting_offsets=None, starting_timestamp=None)
    try:
        wanted = replace(options, given=frozenset(), starting_offsets=start).for_batch_read()
        planner = ReadPlanner(client, wanted)
        ranges = await ranges_to_read(planner, wanted)
    except (ConfigurationError, DataLoss):
        ranges = []  # a stream on a checkpoint does not use its options, which may be outdated
    if not ranges:
        planner = ReadPlanner(client, whole)
        ranges = await ranges_to_read(planner, whole.for_batch_read())
    return planner, ranges


def _sample_size(ranges: Iterable[EntryRange]) -> int:
    """Return how many entries a sample has: within SAMPLE_ENTRIES and SAMPLE_BYTES, but at least one."""
    count, room = 0, float(SAMPLE_BYTES)
    for entries in ranges:
        entry_bytes = max(1.0, entries.size / len(entries))
        taken = min(len(entries), SAMPLE_ENTRIES - count, max(int(room / entry_bytes), 0 if count else 1))
        if taken <= 0:
            break
        count += taken
        room -= taken * entry_bytes
    return count


async def _payloads(
    planner: ReadPlanner, ranges: Sequence[EntryRange], *, fail_on_data_loss: bool, most: int | None = None
) -> list[bytes]:
    """Return the entries of the ranges that exist, at least the first `most` of them."""
    payloads: list[bytes] = []
    # As in a task: the log has the end of a shared ledger before a bookie reports it.
    for partition in await planner.partitions(ranges) if ranges else ():
        pool = new_pool(partition.addresses, partition.net)
        stored = stored_entries(partition.reads, partition, pool, fail_on_data_loss=fail_on_data_loss)
        try:
            async with aclosing(stored):
                async for _, batch in stored:
                    payloads += batch
                    if most is not None and len(payloads) >= most:
                        return payloads
        finally:
            await pool.close()
    return payloads
