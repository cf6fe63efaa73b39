"""The schemas that logs have recorded, on the driver: for reads the columns, for writes the check of the rows.

Only the metadata store is read, and each schema at most once by a process.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.types import DataType, StructField, StructType

from bkspark.errors import SchemaMismatch
from bkspark.log.formats import SchemaRef
from bkspark.log.positions import Position
from bkspark.log.schemas import SchemaChange, StoredSchema, in_effect
from bkspark.log.snapshot import LogSnapshot
from bkspark.spark.columns import all_nullable, arrow_schema
from bkspark.spark.evolution import (
    Append,
    Finder,
    is_beyond,
    merged,
    reads_as,
    schema_of_text,
    schema_text,
    shown_columns,
)
from bkspark.spark.formats.arrow import converts
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.options import SourceOptions
from bkspark.spark.ranges import EntryRange

_log = logging.getLogger(__name__)

RAW, ARROW = "raw", "arrow"
PAYLOAD_FORMAT_KEY = "bkspark.payload_format"
"""Custom metadata of a ledger that Spark writes: the payload format of its entries."""
FAILFAST, PERMISSIVE = MalformedMode.FAILFAST.value, MalformedMode.PERMISSIVE.value
_LOAD_AGAIN = "load again, which finds the columns (a stream: start the query again)"


@dataclass(frozen=True)
class Remembered:
    """A payload format and the columns of its rows."""

    payload_format: str
    columns: StructType


async def remembered(snapshot: LogSnapshot, ref: SchemaRef) -> Remembered:
    """Return the format and columns of one of a log's `schemas`. Raises MetadataFormat, DataLoss."""
    stored = await snapshot.schema(ref)
    return Remembered(stored.payload_format, schema_of_text(stored.schema, snapshot.name))


async def remembered_by_all(
    snapshots: Sequence[LogSnapshot], ends: Mapping[str, int], options: SourceOptions
) -> Remembered | None:
    """Return the format and columns that logs have recorded for the ranges to read; None if a log with ledgers has
    recorded none.

    Args:
        ends: by log, the ordinal of the last ledger to read, if the options set an end.

    Raises:
        SchemaMismatch: the logs have several formats, or columns of contradictory types.
    """
    found: dict[str, Remembered] = {}
    is_known = True
    for snapshot in snapshots:
        refs = snapshot.schemas
        # The start of a truncated log is the end of a ledger that is gone.
        end = max(ends.get(snapshot.name, snapshot.end_ordinal), snapshot.first_ordinal)
        ref = in_effect(refs, end)
        if ref is not None:
            found[snapshot.name] = await remembered(snapshot, ref)
        elif len(snapshot):
            is_known = False
    if not is_known or not found:
        return None
    names = [f"log {name}" for name in found]
    formats = {each.payload_format: name for name, each in found.items()}
    if len(formats) > 1 and options.payload_format is None:
        shown = ", ".join(f"{name} has {each}" for each, name in formats.items())
        raise SchemaMismatch(f"the logs have several payload formats ({shown}): read those of one format at a time")
    of_format = options.payload_format or next(iter(formats))
    if of_format not in formats or len(formats) > 1:
        return None
    return Remembered(of_format, merged([each.columns for each in found.values()], names))


# ---- reads: what the entries have, against what is wanted ----


class ColumnCheck:
    """Compares the columns of a read with those that the logs have recorded for the planned ranges.

    Args:
        columns: the payload columns of the read.
        options: its options, with the payload format.
    """

    def __init__(self, columns: StructType, options: SourceOptions) -> None:
        self._columns = columns
        self._options = options
        self._checked: dict[tuple[str, str], frozenset[str]] = {}
        """The result of the comparison for each schema of each log: it is made once."""

    async def check(self, snapshots: Iterable[LogSnapshot], ranges: Sequence[EntryRange]) -> frozenset[str]:
        """Return the names of recorded columns that the read lacks, or has with fewer members; the driver logs them.

        Raises:
            SchemaMismatch: entries have another format, or a column of a type that cannot be read as the wanted one;
                the message has the position where they begin, and the remedy.
        """
        more: frozenset[str] = frozenset()
        for snapshot in snapshots:
            if not snapshot.schemas:
                continue
            ours = [each for each in ranges if each.log == snapshot.name]
            ref = in_effect(snapshot.schemas, ours[-1].ordinal) if ours else None
            if ref is None:
                continue
            key = (snapshot.name, ref.name)
            if key not in self._checked:
                first = next((each for each in ours if each.ordinal >= ref.first_ordinal), ours[-1])
                position = Position(first.ordinal, first.ledger_id, first.first_entry)
                self._checked[key] = self._check_one(snapshot.name, await remembered(snapshot, ref), position)
            more |= self._checked[key]
        return more

    def _check_one(self, log: str, stored: Remembered, position: Position) -> frozenset[str]:
        options = self._options
        if stored.payload_format != options.payload_format:
            if "payloadformat" in options.given:
                self._warn_of_format(log, stored.payload_format, position)
                return frozenset()  # the user says what the entries are
            raise SchemaMismatch(
                f"log {log} has {stored.payload_format} entries from {position} on, and this read expects "
                f"{options.payload_format}: load again, which finds the format and the columns (a stream: start the "
                "query again), or set payloadFormat"
            )
        if stored.payload_format == RAW:
            return frozenset()
        entries = Finder(stored.columns)
        for column in self._columns:
            match = entries.find(column.name)
            if match is None:
                self._check_absent(log, column, position)
            elif not self._is_readable(match.dataType, column):
                stored_type = match.dataType.simpleString()
                remedy = (
                    f"{_LOAD_AGAIN}, or name them by .schema()"
                    if options.columns_inferred
                    else f"name it {stored_type} in .schema(), or leave that out, which finds the columns"
                )
                raise SchemaMismatch(
                    f"column '{column.name}' is {stored_type} in log {log} from {position} on, and this read has it as "
                    f"{column.dataType.simpleString()}: {remedy}"
                )
        if not options.columns_inferred:
            return frozenset()
        read = Finder(self._columns)
        matches = [(column, read.find(column.name)) for column in stored.columns]
        beyond = [(column, match) for column, match in matches if is_beyond(column, match)]
        more = [column for column, _ in beyond]
        if more:
            _log.warning(
                "log %s: %s new from %s on: this read has the columns with which it began; load again (a stream: start "
                "the query again) to read what is new",
                log,
                shown_columns(more),
                position,
            )
        return frozenset(each.name for pair in beyond for each in pair if each is not None)

    def _warn_of_format(self, log: str, stored: str, position: Position) -> None:
        """Log that entries are not of the format that the user named, unless one of the two is raw: any bytes. With a
        lenient mode, none of them has rows."""
        wanted = self._options.payload_format
        if RAW not in (stored, wanted):
            _log.warning(
                "log %s has %s entries from %s on, and option 'payloadFormat' is %s: they are malformed; leave the "
                "option out, which finds the format",
                log,
                stored,
                position,
                wanted,
            )

    def _check_absent(self, log: str, column: StructField, position: Position) -> None:
        """Raise SchemaMismatch if a column that this read has as NOT NULL is not in the log: all rows would be
        malformed, and a lenient mode would leave all of them out. If values decide on named columns, log it."""
        if column.nullable:
            return
        if self._values_decide:
            _log.warning(
                "column '%s' is not in the schema of log %s from %s on, and this read has it NOT NULL: entries without "
                "it are malformed",
                column.name,
                log,
                position,
            )
            return
        remedy = _LOAD_AGAIN if self._options.columns_inferred else "leave it out of .schema(), or let it be null there"
        raise SchemaMismatch(
            f"column '{column.name}' is not in log {log} from {position} on, and this read has it NOT NULL: {remedy}"
        )

    @property
    def _values_decide(self) -> bool:
        """Whether the tasks find out what fits the named columns: a text of json may be a time or a decimal, and an
        entry may have columns that no schema has."""
        return not self._options.columns_inferred and self._options.payload_format != ARROW

    def _is_readable(self, stored: DataType, wanted: StructField) -> bool:
        if self._values_decide:
            return True
        if self._options.columns_inferred:
            return reads_as(stored, wanted.dataType)
        kinds = arrow_schema(StructType([StructField("stored", stored), StructField("wanted", wanted.dataType)]))
        found, target = kinds.types
        if self._reports_misfits:
            return converts(found, target)
        return found == target or reads_as(stored, wanted.dataType)

    @property
    def _reports_misfits(self) -> bool:
        """Whether a value that does not fit fails the read, or its entry is kept in the column of corrupt records."""
        options = self._options
        is_kept = options.corrupt_record in self._columns.names
        return options.malformed_mode == FAILFAST or (options.malformed_mode == PERMISSIVE and is_kept)


# ---- writes ----


@dataclass(frozen=True)
class WritePlan:
    """How rows are written to a log.

    `entries` has the columns with the names in the entries, NOT NULL if they are so in the log or in the data; `change`
    is the schema that the log records.
    """

    payload_format: str
    """The format that the entries get."""
    entries: StructType
    change: SchemaChange

    @property
    def is_news(self) -> bool:
        """Whether the write changes the log's recorded schema."""
        return self.change.base != self.change.stored.name


def renamed(columns: StructType, names: Sequence[str]) -> StructType:
    """Return the columns under other names, without metadata."""
    return StructType([StructField(name, each.dataType, each.nullable) for name, each in zip(names, columns)])


def new_log_plan(options: SourceOptions, rows: StructType, base: str | None = None) -> WritePlan:
    """Return how to write rows to a log that has nothing, or whose columns are replaced."""
    payload_format = options.payload_format or default_format(rows)
    return WritePlan(payload_format, rows, SchemaChange(_stored(payload_format, rows), base))


def default_format(schema: StructType) -> str:
    """Return the payload format of a write to a new log without option payloadFormat."""
    is_value = len(schema) == 1 and schema[0].name.lower() == "value"
    return RAW if is_value and schema[0].dataType.typeName() in ("binary", "string") else ARROW


async def planned_write(
    options: SourceOptions,
    rows: StructType,
    snapshot: LogSnapshot | None,
    found: Remembered | None,
    *,
    is_overwrite: bool,
) -> WritePlan:
    """Return how to write rows.

    Args:
        found: the format, and possibly columns, of the entries of a log that has recorded no schema.

    Raises:
        SchemaMismatch: the log has another format, or columns that the rows do not fit.
    """
    ref = snapshot.schemas[-1] if snapshot is not None and snapshot.schemas else None
    base = None if ref is None else ref.name
    if snapshot is None or options.overwrite_schema or (is_overwrite and ref is None):
        return new_log_plan(options, rows, base)
    present = found if ref is None else await remembered(snapshot, ref)
    # Entries that are there already may have nulls in any column.
    first_columns = all_nullable(rows) if len(snapshot) else rows
    if present is None:
        plan = new_log_plan(options, rows)
        return replace(plan, change=SchemaChange(_stored(plan.payload_format, first_columns), base))
    log = snapshot.name
    payload_format = options.payload_format or present.payload_format
    if payload_format != present.payload_format:
        raise SchemaMismatch(
            f"option 'payloadFormat' is {payload_format}, but log {log} has {present.payload_format} entries: leave it "
            "out, write to another log, or replace the log (mode overwrite with overwriteSchema=true)"
        )
    if payload_format == RAW and default_format(rows) != RAW:
        raise SchemaMismatch(
            f"log {log} has raw entries, each the bytes of one column 'value', and the data has other columns "
            f"({', '.join(rows.names)[:500]}): select one as value, binary or string, write to another log, or replace "
            "the log (mode overwrite with overwriteSchema=true)"
        )
    append = Append(log, payload_format, present.columns or first_columns, rows, merge=options.merge_schema)
    return WritePlan(payload_format, append.entries, SchemaChange(_stored(payload_format, append.columns), base))


def _stored(payload_format: str, columns: StructType) -> StoredSchema:
    return StoredSchema(payload_format, schema_text(columns))
