"""The formats with one object for each entry: json and msgpack. `values` specifies the cells.

json      an entry is one JSON object, UTF-8, members by column name
msgpack   an entry is one MessagePack map, keys are column names (str), or one array: a cell for each payload column of
          the schema, in its order (without a schema the columns are _1, _2, .. as Spark names those of tuples). Writers
          write maps
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.spark.formats import spark_json
from bkspark.spark.formats.decoding import (
    CORRUPT_RECORD,
    BeyondInferredError,
    Decoder,
    MalformedMode,
    Rows,
    check_nulls,
    rows_at_once,
)
from bkspark.spark.formats.encoding import Encoder
from bkspark.spark.formats.spark_json_types import type_of, without_null_type
from bkspark.spark.formats.values import WORDS_OF_FLOATS, check_types, has_decimal, reader_of, writer_of

_Readers = list[tuple[pa.Field, Callable[[Any], Any] | None]]

SINGLY_MAX = 16
"""Entries that are decoded one by one if one of them is malformed: that takes ten times as long, as each makes columns
of its own. More entries are halved before."""

# All errors that the parsers, `values` and pa.array raise for a payload of hostile bytes.
_MALFORMED = (ValueError, TypeError, ArithmeticError, RecursionError, msgpack.UnpackException, pa.ArrowException)


class RowDecoder(Decoder):
    """Decodes one object for each entry, whole batches at a time; entry by entry only if one is malformed."""

    def __init__(
        self,
        schema: pa.Schema,
        mode: MalformedMode,
        *,
        is_json: bool,
        is_whole: bool = False,
        left_out: frozenset[str] = frozenset(),
        is_sparks: bool = False,
        corrupt_record: str = CORRUPT_RECORD,
    ) -> None:
        super().__init__(schema, mode, is_whole=is_whole, left_out=left_out, corrupt_record=corrupt_record)
        check_types(schema, "json" if is_json else "msgpack")
        self._is_sparks = is_json and is_sparks
        """Whether values are JSON in Spark's dialect. Constant."""
        self._unpack = _json_parser(schema, is_sparks=is_sparks) if is_json else _unpack_msgpack
        self._columns = self._readers(is_json=is_json, is_whole=is_whole)
        """What reads each column of an object, by name. Constant."""
        self._lenient = self._readers(is_json=is_json, is_whole=False) if is_whole else self._columns
        """The same, for an object whose columns do not all have the inferred types. Constant."""
        self._takes_arrays = not is_json
        """Whether an entry may be an array of objects' values. Constant."""
        self._known = left_out.union(schema.names)
        """The names of the columns, and of those that are left out. Constant."""
        self._names = [name for i, name in enumerate(schema.names) if i != self._corrupt_index]

    def _readers(self, *, is_json: bool, is_whole: bool) -> _Readers:
        find: Callable[..., Callable[[Any], Any] | None] = (
            spark_json.reader_of if self._is_sparks else partial(reader_of, is_json=is_json)
        )
        return [
            (column, find(column.type, is_whole=is_whole and column.name not in self.left_out))
            for column in self.schema
        ]

    def decode(self, entries: EntryBatch) -> Iterator[Rows]:
        most = rows_at_once(self.schema.types)
        for first in range(0, len(entries), most):
            yield from self._decode_part(entries, first, min(first + most, len(entries)))

    def _decode_part(self, entries: EntryBatch, first: int, end: int) -> Iterator[Rows]:
        """Yield the rows of the batch's entries [first, end). A few are decoded one by one if one of them is
        malformed."""
        part = entries.slice(first, end)
        try:
            rows = Rows(self._columns_of([self._row(payload) for payload in part]), len(part))
        except _MALFORMED:
            if len(part) > SINGLY_MAX:
                middle = (first + end) // 2
                yield from self._decode_part(entries, first, middle)
                yield from self._decode_part(entries, middle, end)
                return
            rows = self._decode_singly(part)
        yield rows if len(part) == len(entries) else replace(rows, entry_of_row=partial(_entry_of_row, rows, first))

    def _row(self, payload: bytes, *, is_lenient: bool = False) -> dict[str, Any]:
        row = self._unpack(payload)
        if type(row) is list and self._takes_arrays:
            if not self._names:
                return {}  # rows are counted
            if len(row) != len(self._names):
                raise ValueError(f"it is an array of {len(row)} where the schema has {len(self._names)} columns")
            return dict(zip(self._names, row))
        if type(row) is not dict:
            raise TypeError(f"it holds a {type(row).__name__} where one object of columns is expected")
        if self.is_whole and not is_lenient and not row.keys() <= self._known:
            raise BeyondInferredError(next(name for name in row if name not in self._known))
        return row

    def _columns_of(self, rows: list[dict[str, Any]], readers: _Readers | None = None) -> list[pa.Array]:
        columns = []
        for field, convert in self._columns if readers is None else readers:
            cells = [row.get(field.name) for row in rows]
            if convert is not None:
                cells = [None if cell is None else convert(cell) for cell in cells]
            columns.append(check_nulls(pa.array(cells, field.type), field))
        return columns

    def _decode_singly(self, entries: EntryBatch) -> Rows:
        rows: list[dict[str, Any]] = []
        corrupt: list[bytes | None] = []
        good = np.ones(len(entries), bool)
        for i, payload in enumerate(entries):
            try:
                row = self._row_with_columns(entries, i, payload)
            except _MALFORMED as error:
                if self.mode is MalformedMode.FAILFAST:
                    raise self.malformed(entries, i, _reason_of(error)) from None
                good[i] = False
                row = self._fitting_cells(payload) if self._is_sparks else {}
            if good[i] or self.mode is MalformedMode.PERMISSIVE:
                rows.append(row)
                corrupt.append(None if good[i] else payload)
        columns = self._columns_of(rows, self._lenient)
        if self.mode is MalformedMode.DROPMALFORMED:
            return Rows(columns, len(rows), partial(np.flatnonzero, good))
        if self._corrupt_index >= 0:
            # A payload may have a member of that name.
            own = columns[self._corrupt_index]
            columns[self._corrupt_index] = pc.if_else(pa.array(good), own, self.corrupt_column(corrupt))
        return Rows(columns, len(rows))

    def _fitting_cells(self, payload: bytes) -> dict[str, Any]:
        """Return the cells of a malformed entry that fit their columns, as Spark's own source does."""
        try:
            row = self._row(payload, is_lenient=True)
        except _MALFORMED:
            return {}
        found = {}
        for reader in self._lenient:
            name = reader[0].name
            with suppress(*_MALFORMED):
                found[name] = self._fitting(row.get(name), reader)
        return found

    def _fitting(self, cell: Any, reader: tuple[pa.Field, Callable[[Any], Any] | None]) -> Any:
        """Return a cell, or without the members of structs that do not fit. Raises what parsers raise if that does not
        fit its column either."""
        field, _ = reader
        try:
            self._columns_of([{field.name: cell}], [reader])
        except _MALFORMED:
            cell = spark_json.fitting(field.type, cell)
            self._columns_of([{field.name: cell}], [reader])
        return cell

    def _row_with_columns(self, entries: EntryBatch, index: int, payload: bytes) -> dict[str, Any]:
        """Return an entry's row, which fits the schema; with DROPMALFORMED without what the schema lacks."""
        try:
            row = self._row(payload)
            self._columns_of([row])
        except BeyondInferredError as error:
            if self.mode is not MalformedMode.DROPMALFORMED:
                raise
            row = self._row(payload, is_lenient=True)
            self._columns_of([row], self._lenient)
            self.note_beyond(entries, index, error)
        return row


def _reason_of(error: Exception) -> str:
    """Return the text of a parser's error for a message; those of msgpack may be empty."""
    return ": ".join(filter(None, (type(error).__name__, str(error))))


def _entry_of_row(rows: Rows, first: int) -> np.ndarray:
    """Return the entry of each row of a piece, whose first entry is number `first` of the batch."""
    own = np.arange(rows.count) if rows.entry_of_row is None else rows.entry_of_row()
    return own + first


def _json_parser(schema: pa.Schema, *, is_sparks: bool) -> Callable[[bytes], Any]:
    if is_sparks:
        return spark_json.parser(schema)
    # A float has fewer digits than a decimal; numbers are kept as text only if that matters, as it is slower.
    keeps_digits = any(has_decimal(column.type) for column in schema)
    decoder = json.JSONDecoder(parse_float=Decimal) if keeps_digits else json.JSONDecoder()
    return lambda payload: decoder.decode(payload.decode())


def _unpack_msgpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, timestamp=3, strict_map_key=False)


def inferred_columns(
    payloads: Sequence[bytes],
    *,
    is_json: bool,
    is_lenient: bool = False,
    is_sparks: bool = False,
    takes_all: bool = False,
) -> pa.Schema:
    """Return the columns of these entries, in order of appearance.

    A whole number is a bigint, or a double if another entry has a fraction; a column, or an element, that is null
    everywhere is a string. Text stays text: dates, decimals and (in json) binary and timestamps need a schema.

    Args:
        is_lenient: skip entries that are not an object of the format.
        is_sparks: find the types that Spark's own source finds (`spark_json_types`).
        takes_all: find these for columns that have no single type otherwise.

    Raises:
        ValueError: an entry is not an object of the format (if lenient: no entry is), or no single type can hold a
            column's values.
    """
    unpack = _json_parser(pa.schema([]), is_sparks=is_sparks or takes_all) if is_json else _unpack_msgpack
    rows: list[dict[str, Any]] = []
    shapes: set[object] = set()
    for payload in payloads:
        try:
            row = _object_of(payload, unpack, is_json=is_json)
        except ValueError:
            if is_lenient:
                continue
            raise
        if isinstance(row, list):
            shapes.add(len(row))
            rows.append({f"_{i}": cell for i, cell in enumerate(row, 1)})
        else:
            shapes.add(dict)
            rows.append(row)
    if not rows:
        raise ValueError("none of them is an object of columns")
    if len(shapes) > 1:
        raise ValueError("they are not all arrays of one size, or all maps")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pa.schema(
        [
            (name, _inferred_type(name, cells, is_sparks=is_sparks, takes_all=takes_all))
            for name, cells in columns.items()
        ]
    )


def _object_of(payload: bytes, unpack: Callable[[bytes], Any], *, is_json: bool) -> dict[str, Any] | list[Any]:
    """Return the object in a payload; msgpack's may be an array. Raises ValueError if it is neither."""
    try:
        row = unpack(payload)
        if is_json:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair, as "\\ud800", is not text
    except RecursionError:
        raise ValueError("an entry has objects or arrays that nest too deeply") from None
    except _MALFORMED as error:
        raise ValueError(_reason_of(error)) from None
    if type(row) is not dict and (is_json or type(row) is not list):
        raise ValueError(f"an entry holds a {type(row).__name__} where one object of columns is expected")
    return row


def _inferred_type(name: Any, cells: list[Any], *, is_sparks: bool, takes_all: bool) -> pa.DataType:
    if type(name) is not str:
        raise ValueError(f"a column is named {name!r}, which is not text")
    if is_sparks:
        return _sparks_type(name, cells)
    # Together with numbers, the three words are numbers too; if all values are such words, they may be text.
    if any(type(cell) in (int, float) for cell in cells):
        cells = [float(cell) if cell in WORDS_OF_FLOATS else cell for cell in cells]
    try:
        return without_null_type(pa.array(cells).type)
    except (pa.ArrowException, OverflowError) as error:
        if takes_all:
            return _sparks_type(name, cells)
        raise ValueError(f"column '{name}' has values of several types ({error})") from None


def _sparks_type(name: str, cells: list[Any]) -> pa.DataType:
    try:
        return type_of(cells)
    except RecursionError:
        raise ValueError(f"column '{name}' has objects or arrays that nest too deeply") from None


class RowEncoder(Encoder):
    """Encodes one object per entry. Every column is present, null or not.

    Args:
        schema: each batch is converted to it.
    """

    def __init__(self, schema: pa.Schema, *, is_json: bool) -> None:
        self._schema = schema
        self._format = "json" if is_json else "msgpack"
        """The name of the format. Constant."""
        check_types(schema, self._format)
        self._columns = [(column.name, writer_of(column.type, is_json=is_json)) for column in schema]
        self._pack = _pack_json if is_json else _pack_msgpack

    def encode(self, batch: pa.RecordBatch) -> Iterator[EntryBatch]:
        if batch.schema != self._schema:
            # Spark's timestamps come in the session's zone, where the first and last hours of all years do not exist.
            batch = batch.cast(self._schema)
        columns = [self._cells(name, convert, column) for (name, convert), column in zip(self._columns, batch.columns)]
        names = [name for name, _ in self._columns]
        rows = (dict(zip(names, cells)) for cells in zip(*columns))
        yield EntryBatch.of([self._pack(row) for row in rows])

    def _cells(self, name: str, convert: Callable[[Any], Any] | None, column: pa.Array) -> list[Any]:
        try:
            cells = column.to_pylist()
        except UnicodeDecodeError as error:
            raise MalformedPayload(
                f"column '{name}' holds a string that is not UTF-8 ({error}): cast it to binary"
            ) from None
        except (ValueError, OverflowError) as error:
            # Spark's years go far beyond 9999, Python's and ISO 8601's do not.
            raise MalformedPayload(
                f"column '{name}' holds a value that payloadFormat {self._format} cannot hold ({error}): "
                "use payloadFormat arrow"
            ) from None
        if convert is None:
            return cells
        return [None if cell is None else convert(cell) for cell in cells]


_encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _pack_json(row: dict[str, Any]) -> bytes:
    return _encode_json(row).encode()


def _pack_msgpack(row: dict[str, Any]) -> bytes:
    return msgpack.packb(row, datetime=True)
