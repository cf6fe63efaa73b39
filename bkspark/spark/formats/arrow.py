"""payloadFormat arrow: an entry is one Arrow IPC stream of one record batch, many rows.

    schema message, record batch message, end of stream        (Arrow columnar format 1.5)

The buffers of the batch are compressed (LZ4 frame, Zstandard) or not; the record batch message says which, so entries
of one log may differ. An entry is self-describing: any Arrow library reads it with `ipc.open_stream`. A reader accepts
more than the writer writes: several batches in the stream, dictionaries, columns in any order and of any type that
converts without loss. An entry with bytes after the end of its stream, or with two columns of one name, is malformed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.spark.formats.arrow_limits import (
    ENTRY_BYTES_MAX,
    check_conversions,
    check_expansion,
    check_nulls_added,
    check_rows,
)
from bkspark.spark.formats.arrow_types import in_plain_lists, is_finer_than_spark, rounded_to_microseconds
from bkspark.spark.formats.compression import NONE, UNCOMPRESSED, Compression
from bkspark.spark.formats.decimal_casts import converted_each
from bkspark.spark.formats.decoding import (
    BeyondInferredError,
    Decoder,
    MalformedMode,
    Rows,
    check_nulls,
)
from bkspark.spark.formats.encoding import Encoder, check_text
from bkspark.spark.formats.nested import without_hidden

_JOIN_BYTES = 512 * 1024
_END_MARK_BYTES = 8
COMPRESSED_BYTES_MIN = 1024
"""Smaller entries are not compressed: they would save less than the lengths that are added to each buffer."""
SAVING_MIN = 0.1
"""The share of an entry's bytes that compression must save; otherwise the next entries are not compressed."""
BUFFER_HEAD_BYTES_MAX, BLOCK_HEAD_BYTES_MAX = 64, 8
"""Bytes that a codec adds to a buffer, and to each block of it, that it cannot make smaller."""
ENTRIES_PASSED_OVER = 15
"""Entries that are not compressed after one that compression did not make smaller; then the next one is tried."""
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
WHOLE_BITS_IN_DOUBLE = 32
"""Whole numbers up to this width are exact as a double."""
_MALFORMED = (pa.ArrowException, ValueError, TypeError, KeyError, OSError)


class ArrowDecoder(Decoder):
    """Decodes entries of many rows; columns are views of the received buffer if types agree."""

    def decode(self, entries: EntryBatch) -> Iterator[Rows]:
        tables: list[pa.Table] = []
        first, gathered = 0, 0
        for i in range(len(entries)):
            table = self._rows_of(entries, i)
            # A compressed entry may hold far more than its bytes, and all gathered rows are in memory at once.
            size = max(int(entries.offsets[i + 1] - entries.offsets[i]), table.nbytes)
            # Large entries go through as they are; small ones are joined, as a batch costs more than a copy.
            if tables and size >= _JOIN_BYTES:
                yield self._joined(tables, first)
                tables, first, gathered = [], i, 0
            tables.append(table)
            gathered += size
            if gathered >= _JOIN_BYTES or i + 1 == len(entries):
                yield self._joined(tables, first)
                tables, first, gathered = [], i + 1, 0

    def _joined(self, tables: list[pa.Table], first: int) -> Rows:
        """Return the rows of consecutive entries, of which `first` is the first one."""
        counts = [table.num_rows for table in tables]
        entry_of_row = partial(np.repeat, np.arange(first, first + len(tables)), counts)
        return Rows(_columns_of(tables, self.schema), sum(counts), entry_of_row)

    def _rows_of(self, entries: EntryBatch, index: int) -> pa.Table:
        start, end = int(entries.offsets[index]), int(entries.offsets[index + 1])
        payload = pa.py_buffer(memoryview(entries.buffer)[start:end])
        try:
            try:
                return self._table(payload, is_whole=self.is_whole)
            except BeyondInferredError as error:
                if self.mode is not MalformedMode.DROPMALFORMED:
                    raise
                self.note_beyond(entries, index, error)
                return self._table(payload, is_whole=False)
        except _MALFORMED as error:
            if self.mode is MalformedMode.FAILFAST:
                raise self.malformed(entries, index, error) from None
            if self.mode is MalformedMode.DROPMALFORMED:
                return self._stand_in(0, None)
            return self._stand_in(1, entries[index])

    def _table(self, payload: pa.Buffer, *, is_whole: bool) -> pa.Table:
        check_expansion(payload)
        source = pa.BufferReader(payload)
        with pa.ipc.open_stream(source, options=_READ_OPTIONS) as stream:
            table = stream.read_all()
        if (rest := payload.size - source.tell()) > 0:
            raise ValueError(f"{rest} bytes follow its Arrow stream, and an entry is one stream")
        # Offsets inside the payload come from the writer; unchecked, they may lead out of the buffer.
        table.validate(full=True)
        check_rows(table, len(self.schema))
        if is_whole:
            self._check_names(table.schema.names)
        if not len(self.schema):
            return _rows_without_columns(table.num_rows)
        if (table.schema.names, table.schema.types) == self._columns:
            columns = [check_nulls(column, field) for column, field in zip(table.columns, self.schema)]
            return pa.Table.from_arrays(columns, schema=self.schema)
        places = [_place(table.schema, self.schema, field) for field in self.schema]
        absent = _nulls(table.num_rows, [field.type for place, field in zip(places, self.schema) if place is None])
        found = [
            absent[field.type] if place is None else table.column(place) for place, field in zip(places, self.schema)
        ]
        for column, field in zip(found, self.schema):
            _check_type(column.type, field, is_whole=is_whole and field.name not in self.left_out)
        check_conversions(
            (column, field.type) for column, field in zip(found, self.schema) if column.type != field.type
        )
        columns = [check_nulls(_converted(column, field), field) for column, field in zip(found, self.schema)]
        return pa.Table.from_arrays(columns, schema=self.schema)

    @cached_property
    def _columns(self) -> tuple[list[str], list[pa.DataType]]:
        """Names and types of the wanted columns. pyarrow makes new lists for each call."""
        return self.schema.names, self.schema.types

    def _check_names(self, found: list[str]) -> None:
        """Raise BeyondInferredError for a column that no column of the read takes, by its name or in another case."""
        if found == self.schema.names:
            return
        exact = set(self.schema.names)
        in_any_case = {name.lower() for name in exact.difference(found)}
        for name in found:
            if name not in exact and name.lower() not in in_any_case and name not in self.left_out:
                raise BeyondInferredError(name)

    def _stand_in(self, count: int, payload: bytes | None) -> pa.Table:
        if not len(self.schema):
            return _rows_without_columns(count)
        columns = [pa.nulls(count, field.type) for field in self.schema]
        if self._corrupt_index >= 0 and count:
            columns[self._corrupt_index] = self.corrupt_column([payload])
        return pa.Table.from_arrays(columns, schema=self.schema)


def _rows_without_columns(count: int) -> pa.Table:
    # A table has as many rows as its columns; one column is needed to carry the count when none is wanted.
    return pa.table({"rows": pa.nulls(count)})


def _place(found: pa.Schema, schema: pa.Schema, field: pa.Field) -> int | None:
    """Return where the column for `field` of `schema` is in an entry; None if the entry lacks it.

    It is found by name, in any case of its letters if no other field has that name.
    """
    index = found.get_field_index(field.name)
    if index >= 0:
        return int(index)
    wanted = field.name.lower()
    same = [
        i
        for i, name in enumerate(found.names)
        if name.lower() == wanted and (name == field.name or name not in schema.names)
    ]
    if len(same) > 1:
        raise ValueError(f"several columns are called '{field.name}'")
    return same[0] if same else None


def _nulls(count: int, types: Sequence[pa.DataType]) -> dict[pa.DataType, pa.ChunkedArray]:
    """Return a column of nulls for each type: all columns that an entry lacks share it."""
    distinct = dict.fromkeys(types)
    check_nulls_added(count, distinct)
    return {kind: pa.chunked_array([pa.nulls(count, kind)]) for kind in distinct}


def _check_type(found: pa.DataType, field: pa.Field, *, is_whole: bool) -> None:
    """Raise ValueError if a column of an entry cannot be converted to `field`, or would lose a part of it."""
    if found == field.type:
        return
    if not converts(found, field.type):
        remedy = _remedy(found, field.type)
        raise ValueError(f"column '{field.name}' is {found}, and {field.type} is expected{remedy}")
    if is_whole and (member := _member_lost(found, field.type)) is not None:
        raise BeyondInferredError(member)


def _converted(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    stored = column.type
    if is_finer_than_spark(column.type):
        # pandas has nanoseconds; Spark's times end at the microsecond.
        column = pa.chunked_array([rounded_to_microseconds(chunk) for chunk in _chunks(column)])
    try:
        return _as_it_is_or_without_hidden(column, field.type)
    except pa.ArrowException as error:
        raise ValueError(f"column '{field.name}' is {stored}, and {field.type} is expected ({error})") from None


def _as_it_is_or_without_hidden(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in another type. Raises as `converted_each`, but not for values that no row has."""
    try:
        return converted_each(column, kind)
    except pa.ArrowInvalid:
        if not column.type.num_fields:
            raise
        shown = [without_hidden(in_plain_lists(chunk)) for chunk in _chunks(column)]
        return converted_each(pa.chunked_array(shown), kind)


def _chunks(column: pa.ChunkedArray) -> list[pa.Array]:
    """Return the chunks of a column, at least one."""
    return column.chunks or [pa.array([], column.type)]


def _remedy(found: pa.DataType, wanted: pa.DataType) -> str:
    """Return the remedy for times whose type differs from the wanted one in the time zone only."""
    if not (kinds.is_timestamp(found) and kinds.is_timestamp(wanted)):
        return ""
    if found.tz is None:
        return ": times without a time zone are timestamp_ntz"
    return ": times with a time zone are timestamp"


def converts(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values may be converted; the conversion checks each of them.

    Arrow itself converts more, for instance texts to numbers, and trusts a damaged type.
    """
    if found == wanted or kinds.is_null(found):
        return True
    if kinds.is_dictionary(found):
        return converts(found.value_type, wanted)
    if kinds.is_struct(wanted):
        return kinds.is_struct(found) and _members_convert(found, wanted)
    if kinds.is_map(wanted):
        pairs = ((found.key_type, wanted.key_type), (found.item_type, wanted.item_type)) if kinds.is_map(found) else ()
        return bool(pairs) and all(converts(a, b) for a, b in pairs)
    if kinds.is_list(wanted):
        return _is_list(found) and converts(found.value_type, wanted.value_type)
    if kinds.is_date(found) and kinds.is_timestamp(wanted):
        return wanted.tz is None
    if kinds.is_timestamp(wanted):
        return kinds.is_timestamp(found) and (found.tz is None) == (wanted.tz is None)
    if kinds.is_decimal(wanted):
        return kinds.is_integer(found) or (kinds.is_decimal(found) and 0 <= found.scale <= found.precision)
    if kinds.is_floating(wanted):
        # Arrow does not check the digits that a narrower decimal loses.
        is_whole = kinds.is_integer(found) and found.bit_width <= WHOLE_BITS_IN_DOUBLE and wanted.bit_width == 64
        return is_whole or (kinds.is_floating(found) and found.bit_width <= wanted.bit_width)
    alike = (kinds.is_integer, _is_text, _is_bytes, kinds.is_date, kinds.is_time, kinds.is_duration)
    return any(kind(found) and kind(wanted) for kind in alike)


def _members_convert(found: pa.StructType, wanted: pa.StructType) -> bool:
    """As `converts`. A missing member becomes null, an unwanted one is ignored; names match exactly."""
    types = {member.name: member.type for member in found}
    in_any_case = {name.lower() for name in types}
    return len(types) == found.num_fields and all(
        converts(types[member.name], member.type)
        if member.name in types
        else member.nullable and member.name.lower() not in in_any_case
        for member in wanted
    )


def _member_lost(found: pa.DataType, wanted: pa.DataType) -> str | None:
    """Return a member of a struct in `found` that `wanted` lacks; None if there is no such member."""
    pairs = []
    if kinds.is_map(found):
        pairs = [(found.key_type, wanted.key_type), (found.item_type, wanted.item_type)]
    elif _is_list(found):
        pairs = [(found.value_type, wanted.value_type)]
    elif kinds.is_struct(found):
        wanted_types = {member.name: member.type for member in wanted}
        for member in found:
            if member.name not in wanted_types:
                return member.name
            pairs.append((member.type, wanted_types[member.name]))
    return next((lost for pair in pairs if (lost := _member_lost(*pair)) is not None), None)


def _is_list(kind: pa.DataType) -> bool:
    return kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)


def _is_text(kind: pa.DataType) -> bool:
    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_binary_view(kind)
        or kinds.is_fixed_size_binary(kind)
    )


def _columns_of(tables: list[pa.Table], schema: pa.Schema) -> list[pa.Array]:
    if not len(schema):
        return []
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    return [_one_array(column) for column in table.columns]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


def schema_of(payload: bytes) -> pa.Schema:
    """Return the schema that an entry carries.

    Raises:
        ValueError: the payload is not an Arrow IPC stream, or two of its columns have one name.
    """
    try:
        with pa.ipc.open_stream(payload) as stream:
            schema = stream.schema
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is not an Arrow IPC stream ({error})") from None
    names = schema.names
    if len(set(names)) < len(names):
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"several columns are called '{repeated}'")
    return schema


def schema_of_first(payloads: Sequence[bytes], *, is_lenient: bool) -> pa.Schema:
    """Return the schema of the first entry, or, if lenient, of the first that is well-formed. Raises as `schema_of`."""
    for payload in payloads[:-1] if is_lenient else ():
        try:
            return schema_of(payload)
        except ValueError:
            continue
    return schema_of(payloads[-1 if is_lenient else 0])


class ArrowEncoder(Encoder):
    """Encodes a batch as entries of about `entry_bytes` each, before compression.

    Args:
        schema: the schema to which each batch is converted.
        entry_bytes: target size of an entry.
        entry_bytes_max: a piece of several rows above it is halved until it fits.
        compression: used for entries that it makes smaller.
    """

    def __init__(
        self, schema: pa.Schema, entry_bytes: int, entry_bytes_max: int, compression: Compression = UNCOMPRESSED
    ) -> None:
        if len(set(schema.names)) != len(schema.names):
            raise ConfigurationError(
                f"column names {schema.names} repeat, and readers find columns by name: rename some"
            )
        self._schema = schema
        self._plain = pa.ipc.IpcWriteOptions(use_threads=False)
        """How an entry is written without compression. Constant."""
        self._compressed = None if compression.codec == NONE else _write_options(compression)
        self._passed_over = 0
        """How many entries are not compressed before it is tried again."""
        self._entry_bytes = entry_bytes
        # Bytes left for the record batch, without the schema and the end mark.
        self._batch_bytes_max = entry_bytes_max - len(schema.serialize()) - _END_MARK_BYTES

    def encode(self, batch: pa.RecordBatch) -> Iterator[EntryBatch]:
        if batch.schema != self._schema:
            batch = batch.cast(self._schema)
        for column in self._schema:
            check_text(batch, column)
        rows = max(1, batch.num_rows * self._entry_bytes // max(1, batch.nbytes))
        sink = pa.BufferOutputStream()
        ends = [0]
        for start in range(0, batch.num_rows, rows):
            self._write(batch.slice(start, rows), sink, ends)
        yield EntryBatch(memoryview(sink.getvalue()), np.array(ends, np.int64))

    def _write(self, piece: pa.RecordBatch, sink: pa.BufferOutputStream, ends: list[int]) -> None:
        size = pa.ipc.get_record_batch_size(piece)
        if piece.num_rows > 1 and size > self._batch_bytes_max:
            # Rows differ in size, and this piece has large ones: halve it.
            half = piece.num_rows // 2
            self._write(piece.slice(0, half), sink, ends)
            self._write(piece.slice(half), sink, ends)
            return
        if size > ENTRY_BYTES_MAX:
            raise MalformedPayload(
                f"a row takes {size} bytes, above the limit of {ENTRY_BYTES_MAX}: "
                "split its largest column, or store it elsewhere and write a reference"
            )
        compressed = self._compression_of(piece, size)
        with pa.ipc.new_stream(sink, self._schema, options=compressed or self._plain) as stream:
            stream.write_batch(piece)
        ends.append(sink.tell())
        if compressed is not None:
            # Probably random or encrypted bytes: further attempts would only cost processor time.
            is_smaller = ends[-1] - ends[-2] < (1 - SAVING_MIN) * size
            self._passed_over = 0 if is_smaller else ENTRIES_PASSED_OVER

    def _compression_of(self, piece: pa.RecordBatch, size: int) -> pa.ipc.IpcWriteOptions | None:
        if self._compressed is None or piece.nbytes < COMPRESSED_BYTES_MIN:
            return None
        if size <= self._batch_bytes_max < size + _bytes_added(piece, size):
            return None  # it fits as it is, and random bytes would not fit any more
        if self._passed_over:
            self._passed_over -= 1
            return None
        return self._compressed


def _bytes_added(piece: pa.RecordBatch, size: int) -> int:
    """Return how many bytes compression adds at most: heads of buffers, and of their blocks of 64 KiB."""
    buffers = sum(len(column.buffers()) for column in piece.columns)
    return BUFFER_HEAD_BYTES_MAX * buffers + BLOCK_HEAD_BYTES_MAX * (size >> 16)


def _write_options(compression: Compression) -> pa.ipc.IpcWriteOptions:
    codec = pa.Codec(compression.codec, compression_level=compression.level)
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
