"""Columns of a read, from ids and from payloads, and the Arrow batches for Spark.

Metadata columns, found by name in any case:

    ledger_id  bigint   the entry's ledger
    entry_id   bigint   the entry
    log        string   name of the log                                  (only of logs)
    position   string   the entry's position, as `startingOffsets` takes  (only of logs)

    append_time      timestamp            when the entry entered the log   (only of logs, with includeMetadata)
    ledger_ctime     timestamp            when the ledger was created     (only with includeMetadata)
    ledger_metadata  map<string, binary>  the ledger's custom metadata    (only with includeMetadata)

With payloadFormat raw they accompany `value`; with another format they exist when includeMetadata is set. All other
columns come from the payload. The schema given to Spark may name any of them, in any order: a column that is left out
is not built.
"""

from __future__ import annotations

import copy
import difflib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from bkspark.decimals import PRECISION_MAX
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.log.positions import Position
from bkspark.spark.formats.arrow_types import of_spark
from bkspark.spark.formats.decoding import Decoder, MalformedMode, Rows
from bkspark.spark.formats.raw import VALUE
from bkspark.spark.formats.registry import columns_of, decoder_of
from bkspark.spark.option_values import shown
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import EntryTimes, LedgerRead
from bkspark.spark.read_options import SPARK
from bkspark.spark.versions import COUNTS_WITHOUT_COLUMNS, SPARK_VERSION

_log = logging.getLogger(__name__)

_METADATA_TYPES = {
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "log": pa.string(),
    "position": pa.string(),
    "append_time": pa.timestamp("us", "UTC"),
    "ledger_ctime": pa.timestamp("us", "UTC"),
    "ledger_metadata": pa.map_(pa.string(), pa.binary()),
}
OF_LOGS = frozenset({"log", "position", "append_time"})
WITH_METADATA = frozenset({"append_time", "ledger_ctime", "ledger_metadata"})
RAW_NAMES = frozenset({VALUE, *_METADATA_TYPES})
"""The columns that a read of raw entries can have."""
# Before 4.3 the time zone is not an argument: only UTC is possible.
_HAS_TIME_ZONE = "timezone" in signature(to_arrow_schema).parameters
CUSTOM_METADATA_BYTES_MAX = 16 << 20
"""Bytes of a batch's column `ledger_metadata`, about: each row has all custom metadata of its ledger."""
_NULL_KEYS = ("nullable", "containsNull", "valueContainsNull")
_ID_FIELDS = (StructField("ledger_id", LongType()), StructField("entry_id", LongType()))
_LEDGER_FIELDS = (
    StructField("ledger_ctime", TimestampType()),
    StructField("ledger_metadata", MapType(StringType(), BinaryType())),
)
_TIME_FIELDS = (StructField("append_time", TimestampType()),)
_LOG_FIELDS = (StructField("log", StringType()), StructField("position", StringType()))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark exchanges for `schema`, timestamps in UTC.

    Raises:
        ConfigurationError: Spark does not exchange a column's type with Python, or exchanges it in parts that are
            incomplete and lose nulls (variant).
    """
    for column in schema:
        if _has_namesakes(column.dataType):
            raise ConfigurationError(
                f"column '{column.name}' has type {column.dataType.simpleString()}, and a struct with several members "
                "of one name cannot be exchanged with Python sources: rename them"
            )
        if _holds(column.dataType, lambda kind: isinstance(kind, VariantType)):
            raise ConfigurationError(
                f"column '{column.name}' has type {column.dataType.simpleString()}, which no "
                "payloadFormat can hold: write to_json(it) as a string, and use parse_json on what is read"
            )
    try:
        return _to_arrow_schema(schema)
    except (PySparkTypeError, ValueError):
        for column in schema:
            _check_exchanged(column)
        raise


def _holds(kind: DataType, is_meant: Callable[[DataType], bool]) -> bool:
    if isinstance(kind, StructType):
        return any(_holds(column.dataType, is_meant) for column in kind)
    if isinstance(kind, ArrayType):
        return _holds(kind.elementType, is_meant)
    if isinstance(kind, MapType):
        return _holds(kind.keyType, is_meant) or _holds(kind.valueType, is_meant)
    return is_meant(kind)


def _has_namesakes(kind: DataType) -> bool:
    """Return whether a type is, or has within it, a struct with several members of one name."""
    if isinstance(kind, StructType):
        return len(set(kind.names)) < len(kind) or any(_has_namesakes(member.dataType) for member in kind)
    if isinstance(kind, ArrayType):
        return _has_namesakes(kind.elementType)
    return isinstance(kind, MapType) and (_has_namesakes(kind.keyType) or _has_namesakes(kind.valueType))


def _is_too_precise(kind: DataType) -> bool:
    return isinstance(kind, DecimalType) and kind.precision > PRECISION_MAX


def _check_exchanged(column: StructField) -> None:
    try:
        _to_arrow_schema(StructType([column]))
    except (PySparkTypeError, ValueError) as error:  # ValueError: array() is an array of void, which is not null
        raise ConfigurationError(
            f"column '{column.name}' has type {column.dataType.simpleString()}, which Spark does not exchange with "
            f"Python sources: cast it ({error})"
        ) from None


def _to_arrow_schema(schema: StructType) -> pa.Schema:
    if _HAS_TIME_ZONE:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def check_columns(schema: StructType) -> None:
    """Raise ConfigurationError if two columns have one name, as Spark fails in the middle of such rows; or if no column
    is requested, and this version of Spark would return no rows then."""
    names = schema.names
    if len(set(names)) < len(names):
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        raise ConfigurationError(f"the schema has several columns '{repeated}': name it once, and select it twice")
    if not len(schema) and not COUNTS_WITHOUT_COLUMNS:
        raise ConfigurationError(
            f"the schema has no column, and Spark {SPARK_VERSION} makes no such rows: name one, or install pyspark 4.3"
        )


def raw_schema(options: SourceOptions) -> StructType:
    """Return the schema of a read with payloadFormat raw."""
    log_fields = _LOG_FIELDS if options.reads_logs else ()
    return StructType([*_ID_FIELDS, StructField(VALUE, BinaryType()), *log_fields, *_added_fields(options)])


def _added_fields(options: SourceOptions) -> tuple[StructField, ...]:
    """Return the columns that includeMetadata alone adds."""
    if not options.include_metadata:
        return ()
    return (*_TIME_FIELDS, *_LEDGER_FIELDS) if options.reads_logs else _LEDGER_FIELDS


def inferred_columns(payload: pa.Schema) -> StructType:
    """Return the columns of entries that have these, as Spark's, nulls allowed everywhere.

    Raises:
        ConfigurationError: Spark has no such type.
    """
    try:
        # Before 4.2 a timestamp without zone becomes one with zone, unless a setting prevents it.
        plain = pa.schema([column.with_type(of_spark(column.type)) for column in payload])
        found = from_arrow_schema(plain, prefer_timestamp_ntz=True)
    except Exception as error:  # pyspark's error types differ between its versions
        raise ConfigurationError(
            f"the first entry has a column that Spark has no type for ({error}): name the columns to read by .schema()"
        ) from None
    for column in found:
        if _holds(column.dataType, _is_too_precise):
            raise ConfigurationError(
                f"column '{column.name}' of the first entry is {column.dataType.simpleString()}, and Spark's decimals "
                f"have {PRECISION_MAX} digits at most: name the columns to read by .schema()"
            )
    return all_nullable(found)


def schema_of_columns(found: StructType, options: SourceOptions) -> StructType:
    """Return the schema of a read that finds these payload columns by itself.

    Raises:
        ConfigurationError: includeMetadata adds a column that the payload has too.
    """
    is_binary = options.payload_format in (None, "raw") and not _holds(found, lambda kind: isinstance(kind, StringType))
    if options.malformed_mode == MalformedMode.PERMISSIVE.value and not is_binary:
        found = all_nullable(found)
        if options.corrupt_record not in found.names:
            # Entries that do not fit these columns would silently become nulls.
            kind = StringType() if options.payload_format == "json" else BinaryType()
            found = StructType([*found.fields, StructField(options.corrupt_record, kind)])
    if not options.include_metadata:
        return found
    added = [*_ID_FIELDS, *(_LOG_FIELDS if options.reads_logs else ()), *_added_fields(options)]
    taken = {name.lower() for name in found.names}
    for column in added:
        if column.name in taken:
            raise ConfigurationError(
                f"includeMetadata adds the column '{column.name}', which the payload has too: "
                "name the columns to read by .schema(), or leave includeMetadata out"
            )
    return StructType([*found.fields, *added])


def all_nullable(schema: StructType) -> StructType:
    """Return the schema with nulls allowed everywhere: later entries may lack what the first one has."""
    return StructType.fromJson(_with_nulls(schema.jsonValue()))


def _with_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    # The metadata of a column are the user's, whatever their keys are.
    return {
        key: True if key in _NULL_KEYS else item if key == "metadata" else _with_nulls(item)
        for key, item in value.items()
    }


def row_assembler(schema: StructType, options: SourceOptions, leaves_out: frozenset[str] = frozenset()) -> RowAssembler:
    """Return the RowAssembler for a schema and options. It is cached, because a worker runs many tasks of one query.

    Raises:
        ConfigurationError: as `RowAssembler`.
    """
    wanted = (schema, options, leaves_out)
    for known, assembler in _assemblers:
        if known[1:] == wanted[1:] and known[0] == schema:
            return assembler.for_task()
    made = RowAssembler(schema, options, leaves_out)
    _assemblers.append((wanted, made))
    return made.for_task()


_assemblers: deque[tuple[tuple[StructType, SourceOptions, frozenset[str]], RowAssembler]] = deque(maxlen=8)
"""The assemblers that were used last, by the arguments of `row_assembler`."""


class RowAssembler:
    """Makes Spark's record batches out of entries.

    Args:
        schema: the columns Spark asked for, in its order.
        leaves_out: as of a ReadPartition.

    Raises:
        ConfigurationError: a column is not available; the message names it and the available ones.
    """

    def __init__(self, schema: StructType, options: SourceOptions, leaves_out: frozenset[str] = frozenset()) -> None:
        check_columns(schema)
        self._schema = arrow_schema(schema)
        self._metadata: dict[int, str] = {}
        """Metadata columns, by index in the schema. Constant."""
        payload: list[pa.Field] = []
        self.payload_columns = StructType()
        """The columns that entries are decoded to. Constant."""
        for index, column in enumerate(self._schema):
            name = column.name.lower()
            if self._is_metadata(name, options):
                _check_metadata_type(column, name)
                self._metadata[index] = name
            else:
                _check_raw(column, name, options)
                payload.append(column)
                self.payload_columns.add(schema[index])
        self._format = options.payload_format or "raw"
        """The payload format, "raw" if none is chosen. Constant."""
        self._unseen = (
            {}
            if self._format == "raw" or options.columns_inferred
            else {i: column.name for i, column in enumerate(payload) if column.name != options.corrupt_record}
        )
        """Payload columns that no entry has had a value for yet: names, by index among them. Only reduced."""
        self._sample: tuple[int, int, bytes] | None = None
        """(ledger id, entry id, payload) of the first entry that was read, for a warning about missing columns; None
        before that. Set once."""
        self._decoder: Decoder = decoder_of(
            self._format,
            pa.schema(payload),
            MalformedMode(options.malformed_mode),
            is_whole=options.columns_inferred,
            left_out=leaves_out,
            is_sparks=options.json_dialect == SPARK,
            corrupt_record=options.corrupt_record,
        )

    def for_task(self) -> RowAssembler:
        """Return a copy for another task, which has seen no value of any column yet."""
        other = copy.copy(self)
        other._unseen, other._sample = dict(self._unseen), None
        other._decoder = copy.copy(self._decoder)
        other._decoder.beyond = {}
        return other

    def _is_metadata(self, name: str, options: SourceOptions) -> bool:
        if options.payload_format not in (None, "raw") and not options.include_metadata:
            if name == "append_time" and name in options.metadata_found:
                raise ConfigurationError(f"column '{name}' needs option 'includeMetadata': set that")
            return name in options.metadata_found and name in _METADATA_TYPES
        if name in OF_LOGS and not options.reads_logs:
            return False
        if name in WITH_METADATA and not options.include_metadata:
            return False
        return name in _METADATA_TYPES

    def batches(self, entries: EntryBatch, read: LedgerRead) -> Iterator[pa.RecordBatch]:
        """Yield the rows of consecutive entries of one read.

        Raises:
            MalformedPayload: a payload does not fit the schema, and mode is FAILFAST.
        """
        for rows in self._decoder.decode(entries):
            if self._unseen:
                self._note_seen(rows, entries)
            if self._metadata:
                yield from self._with_metadata(rows, entries, read)
            elif rows.columns:
                yield pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)
            else:
                # The number of rows comes from a column that is dropped again.
                yield pa.record_batch({"rows": pa.nulls(rows.count)}).select([])

    def _note_seen(self, rows: Rows, entries: EntryBatch) -> None:
        for index in list(self._unseen):
            column = rows.columns[index]
            if column.null_count < len(column):
                del self._unseen[index]
        if self._unseen and self._sample is None and len(entries):
            # A copy: a view would keep the whole batch in memory.
            self._sample = (entries.ledger_id, entries.first_entry, bytes(entries[0]))

    def warn_of_columns(self) -> None:
        """Log a warning for columns that entries have and the read lacks, and for named columns that no entry has.

        Called at the end of a task. A named column that no entry has is null, like in any Spark source, also if the
        name is misspelt.
        """
        for name, (ledger_id, entry_id) in self._decoder.beyond.items():
            _log.warning(
                "column '%s' is left out: ledger %d entry %d is the first that has it, and this read found its columns "
                "before; load again, or name the columns by .schema()",
                name,
                ledger_id,
                entry_id,
            )

        if self._unseen and self._sample is not None:
            self._warn_of_missing_columns(self._sample)

    def _warn_of_missing_columns(self, sample: tuple[int, int, bytes]) -> None:
        """Log a warning for columns that the user named, that the first entry lacks, and that were null in all rows."""
        ledger_id, entry_id, payload = sample
        try:
            found = columns_of(self._format, [payload]).names
        except ValueError:
            return  # malformed: `mode` says whether it is an error
        if self._format == "msgpack" and found[:1] == ["_1"]:
            return  # an array, whose cells have no names
        alike = {name.lower() if self._format == "arrow" else name: name for name in found}
        for name in self._unseen.values():
            if (name.lower() if self._format == "arrow" else name) not in alike:
                near = difflib.get_close_matches(name.lower(), {each.lower(): each for each in found}, n=1)
                hint = "".join(f": did you mean '{each}'?" for each in found if [each.lower()] == near)
                _log.warning(
                    "column '%s' of the schema is null in every row that this task read: ledger %d entry %d has the "
                    "columns %s%s",
                    name,
                    ledger_id,
                    entry_id,
                    shown(found),
                    hint,
                )

    def _with_metadata(self, rows: Rows, entries: EntryBatch, read: LedgerRead) -> Iterator[pa.RecordBatch]:
        """Yield rows with their metadata columns, few at a time if each has large custom metadata of its ledger."""
        entry_ids = np.arange(len(entries)) if rows.entry_of_row is None else rows.entry_of_row()
        entry_ids = pa.array(entry_ids + entries.first_entry, pa.int64())
        most = max(1, rows.count)
        if "ledger_metadata" in self._metadata.values():
            custom = read.metadata.custom_metadata
            custom_bytes = 1 + sum(len(key) + len(value) for key, value in custom.items())
            most = max(1, CUSTOM_METADATA_BYTES_MAX // custom_bytes)
        for start in range(0, rows.count, most):
            ids = entry_ids.slice(start, most)
            payload = (column.slice(start, most) for column in rows.columns)
            columns = [
                self._metadata_column(self._metadata[index], read, ids) if index in self._metadata else next(payload)
                for index in range(len(self._schema))
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _metadata_column(self, name: str, read: LedgerRead, entry_ids: pa.Array) -> pa.Array:
        count = len(entry_ids)
        if name == "ledger_id":
            return pa.array(np.full(count, read.ledger_id, np.int64))
        if name == "entry_id":
            return entry_ids
        if name == "position":
            before, _, after = str(Position(read.ordinal, read.ledger_id, 0)).partition(":0,")
            return pc.binary_join_element_wise(f"{before}:", entry_ids.cast(pa.string()), f",{after}", "")
        if name == "log":
            return pa.repeat(pa.scalar(read.log), count)
        if name == "append_time":
            return _append_times(read.times, entry_ids)
        if name == "ledger_ctime":
            return pa.array(np.full(count, read.created_ms * 1000, np.int64)).cast(_METADATA_TYPES[name])
        facts = pa.array([sorted(read.metadata.custom_metadata.items())], _METADATA_TYPES[name])
        return facts.take(pa.array(np.zeros(count, np.int64)))


def _append_times(times: EntryTimes, entry_ids: pa.Array) -> pa.Array:
    """Return the time of each entry; null where it is not known."""
    firsts = np.array([entry_id for entry_id, _ in times], np.int64)
    known = pa.array([None if ms is None else ms * 1000 for _, ms in times], pa.int64())
    return known.take(pa.array(np.searchsorted(firsts, entry_ids, side="right") - 1)).cast(
        _METADATA_TYPES["append_time"]
    )


def _check_raw(column: pa.Field, name: str, options: SourceOptions) -> None:
    """Raise ConfigurationError if a raw read cannot have a metadata column. Other payloads may have one of that
    name."""
    if options.payload_format in (None, "raw") and name in _METADATA_TYPES:
        is_of_log = name in OF_LOGS and not options.reads_logs
        needed = "log' or 'logsPattern" if is_of_log else "includeMetadata"
        raise ConfigurationError(f"column '{column.name}' needs option '{needed}': set that, or leave the column out")


def _check_metadata_type(column: pa.Field, name: str) -> None:
    if column.type != _METADATA_TYPES[name]:
        wanted = from_arrow_type(_METADATA_TYPES[name]).simpleString()
        raise ConfigurationError(f"column '{column.name}' is {wanted}, but the schema says {column.type}: correct it")
