"""Formats with one object an entry: json and msgpack. Cells are as `values` specifies.

json      an entry is one JSON object, UTF-8, members by column name
msgpack   an entry is one MessagePack map, keys are column names (str)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.spark.formats.decoding import Decoder, MalformedMode, Rows, check_nulls
from bkspark.spark.formats.encoding import Encoder
from bkspark.spark.formats.values import check_types, reader_of, writer_of

# All that a payload of hostile bytes makes the parsers, `values` and pa.array raise.
_MALFORMED = (ValueError, TypeError, ArithmeticError, RecursionError, msgpack.UnpackException, pa.ArrowException)


class RowDecoder(Decoder):
    """Decodes one object an entry. Whole batches at a time; entry by entry only once one is malformed."""

    def __init__(self, schema: pa.Schema, mode: MalformedMode, *, is_json: bool) -> None:
        super().__init__(schema, mode)
        check_types(schema, "json" if is_json else "msgpack")
        self._unpack = _json_parser(schema) if is_json else _unpack_msgpack
        self._columns = [(column, reader_of(column.type, is_json=is_json)) for column in schema]

    def decode(self, entries: EntryBatch) -> Iterator[Rows]:
        try:
            rows = Rows(self._columns_of([self._row(payload) for payload in entries]), len(entries))
        except _MALFORMED:
            rows = self._decode_singly(entries)
        yield rows

    def _row(self, payload: bytes) -> dict[str, Any]:
        row = self._unpack(payload)
        if type(row) is not dict:
            raise TypeError(f"it holds a {type(row).__name__} where one object of columns is expected")
        return row

    def _columns_of(self, rows: list[dict[str, Any]]) -> list[pa.Array]:
        columns = []
        for field, convert in self._columns:
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
                row = self._row(payload)
                self._columns_of([row])
            except _MALFORMED as error:
                if self.mode is MalformedMode.FAILFAST:
                    raise self.malformed(entries, i, f"{type(error).__name__}: {error}") from None
                good[i], row = False, {}
            if good[i] or self.mode is MalformedMode.PERMISSIVE:
                rows.append(row)
                corrupt.append(None if good[i] else payload)
        columns = self._columns_of(rows)
        if self.mode is MalformedMode.DROPMALFORMED:
            return Rows(columns, len(rows), np.flatnonzero(good))
        if self._corrupt_index >= 0:
            columns[self._corrupt_index] = self.corrupt_column(corrupt)
        return Rows(columns, len(rows))


def _json_parser(schema: pa.Schema) -> Callable[[bytes], Any]:
    # A float has fewer digits than a decimal; numbers are kept as they stand only where that matters, as it is slower.
    has_decimal = any(_has_decimal(column.type) for column in schema)
    decoder = json.JSONDecoder(parse_float=Decimal) if has_decimal else json.JSONDecoder()
    return lambda payload: decoder.decode(payload.decode())


def _has_decimal(kind: pa.DataType) -> bool:
    return kinds.is_decimal(kind) or any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))


def _unpack_msgpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, timestamp=3, strict_map_key=False)


class RowEncoder(Encoder):
    """Encodes one object an entry. Every column is present, null or not."""

    def __init__(self, schema: pa.Schema, *, is_json: bool) -> None:
        self._format = "json" if is_json else "msgpack"
        check_types(schema, self._format)
        self._columns = [(column.name, writer_of(column.type, is_json=is_json)) for column in schema]
        self._pack = _pack_json if is_json else _pack_msgpack

    def encode(self, batch: pa.RecordBatch) -> Iterator[EntryBatch]:
        columns = [self._cells(name, convert, column) for (name, convert), column in zip(self._columns, batch.columns)]
        names = [name for name, _ in self._columns]
        rows = (dict(zip(names, cells)) for cells in zip(*columns))
        yield EntryBatch.of([self._pack(row) for row in rows])

    def _cells(self, name: str, convert: Callable[[Any], Any] | None, column: pa.Array) -> list[Any]:
        try:
            cells = column.to_pylist()
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
