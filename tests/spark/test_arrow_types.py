"""Entries of Arrow that pandas, polars and others wrote: types that Spark does not have come as ones that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, NullType, StructType

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.spark.columns import arrow_schema, inferred_columns
from bkspark.spark.formats.arrow_types import in_microseconds, of_spark
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import columns_of, decoder_of
from bkspark.spark.versions import SPARK_VERSION

HAS_TIME = not SPARK_VERSION.startswith("4.0.")
MOMENT_NS = 1_700_000_000_123_456_789


def entry(*columns: pa.Array) -> bytes:
    table = pa.table(list(columns), names=["c"] * len(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def read(column: pa.Array) -> tuple[str, pa.Array]:
    """Return the type that a read without a schema gives a column, and its values."""
    payload = entry(column)
    columns = inferred_columns(columns_of("arrow", [payload]))
    (rows,) = decoder_of("arrow", arrow_schema(columns), is_whole=True).decode(EntryBatch.of([payload]))
    return columns[0].dataType.simpleString(), rows.columns[0]


@pytest.mark.parametrize(
    ("kind", "values", "found"),
    [
        (pa.uint8(), [0, 255], "smallint"),
        (pa.uint16(), [0, 2**16 - 1], "int"),
        (pa.uint32(), [0, 2**32 - 1], "bigint"),
        (pa.uint64(), [0, 2**64 - 1], "decimal(20,0)"),
        (pa.float16(), [1.5, None], "float"),
        (pa.string_view(), ["text longer than a view", None], "string"),
        (pa.large_string(), ["text", None], "string"),
        (pa.binary_view(), [b"bytes", None], "binary"),
        (pa.list_(pa.uint8(), 2), [[1, 255], None], "array<smallint>"),
        (pa.large_list(pa.string_view()), [["a", None], None], "array<string>"),
        (pa.struct({"a": pa.uint16(), "b": pa.float16()}), [{"a": 1, "b": 0.5}, None], "struct<a:int,b:float>"),
        (pa.map_(pa.string_view(), pa.uint32()), [[("a", 1)], None], "map<string,bigint>"),
        (pa.dictionary(pa.int8(), pa.large_string()), ["a", "b", "a"], "string"),
    ],
)
def test_every_value_of_other_programs_is_read(kind: pa.DataType, values: list[Any], found: str) -> None:
    name, column = read(pa.array(values, kind))
    assert name == found
    assert column.to_pylist() == values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("ns"), MOMENT_NS),
        (pa.timestamp("ns", "Europe/Berlin"), MOMENT_NS),
        (pa.duration("ns"), 1_999),
        (pa.list_(pa.timestamp("ns")), [MOMENT_NS]),
        (pa.struct({"at": pa.list_(pa.timestamp("ns"))}), {"at": [MOMENT_NS]}),
        (pa.map_(pa.string(), pa.duration("ns")), [("key", 1_999)]),
    ],
)
def test_times_end_at_the_microsecond_wherever_they_are(kind: pa.DataType, value: Any) -> None:
    column = pa.array([value, None], kind)
    _, found = read(column)
    assert found.equals(column.cast(in_microseconds(kind), safe=False).cast(found.type))
    assert found.null_count == 1


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")])
@pytest.mark.parametrize(
    "within",
    [
        lambda kind: (kind, lambda value: value),
        lambda kind: (pa.list_(kind), lambda value: [None, value]),
        lambda kind: (pa.large_list(kind), lambda value: [value, value]),
        lambda kind: (pa.list_(kind, 2), lambda value: [value, value]),
        lambda kind: (pa.map_(pa.string(), kind), lambda value: [("k", value), ("n", None)]),
        lambda kind: (pa.struct({"a": pa.list_(kind), "b": pa.string()}), lambda value: {"a": [value], "b": "x"}),
    ],
    ids=["flat", "list", "large list", "list of two", "map", "struct"],
)
def test_times_are_rounded_down_also_before_1970(kind: pa.DataType, within: Any) -> None:
    """Spark rounds down: 1969-12-31T23:59:59.9999999 is its .999999, not the next second."""
    outer, of_value = within(kind)
    nanoseconds = (-(2**63), -1001, -1000, -1, 999, 2**63 - 1)
    _, found = read(pa.array([*(of_value(value) for value in nanoseconds), None], outer))
    wanted = pa.array([*(of_value(value // 1000) for value in nanoseconds), None], in_microseconds(outer))
    assert found.equals(wanted.cast(found.type))


@pytest.mark.parametrize("make", [pa.timestamp, pa.duration])
def test_times_of_other_units_beside_nanoseconds_stay_what_they_are(make: Callable[[str], pa.DataType]) -> None:
    units = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
    kind = pa.struct({unit: pa.list_(make(unit)) for unit in units})
    for seconds in (-3, 0, 1_700_000_000):
        row = {unit: [seconds * 10**9 // size, None] for unit, size in units.items()}
        _, found = read(pa.array([row, None], kind))
        microseconds = pa.array([{unit: [seconds * 10**6, None] for unit in units}, None], in_microseconds(kind))
        assert found.equals(microseconds.cast(found.type))


def test_times_of_a_dictionary_are_rounded_down() -> None:
    _, found = read(pa.array([-1, 5, -1, None], pa.timestamp("ns")).dictionary_encode())
    assert found.cast(pa.int64()).to_pylist() == [-1, 0, -1, None]


TOO_LARGE = pa.array([2**40, 2**40, 1, 2])
FIRST_IS_NULL = pa.array([True, False])


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.StructArray.from_arrays([TOO_LARGE[1:3]], ["a"], mask=FIRST_IS_NULL), pa.struct({"a": pa.int32()})),
        (
            pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), TOO_LARGE, mask=FIRST_IS_NULL),
            pa.list_(pa.int32()),
        ),
        (pa.FixedSizeListArray.from_arrays(TOO_LARGE, 2, mask=FIRST_IS_NULL), pa.list_(pa.int32())),
        (
            pa.array([[{"a": [5]}], [{"a": None}, None]]).cast(pa.list_(pa.struct({"a": pa.list_(pa.uint64())}))),
            pa.list_(pa.struct({"a": pa.list_(pa.decimal128(4, 1))})),
        ),
    ],
    ids=["struct", "list", "list of two", "nested"],
)
def test_a_value_below_a_null_does_not_make_an_entry_malformed(column: pa.Array, wanted: pa.DataType) -> None:
    """No row has it, and it may be anything."""
    decoder = decoder_of("arrow", pa.schema({"c": wanted}), MalformedMode.FAILFAST)
    (rows,) = decoder.decode(EntryBatch.of([entry(column)]))
    assert rows.columns[0].to_pylist() == column.to_pylist()


def test_days_in_milliseconds_are_dates() -> None:
    name, column = read(pa.array([86_400_000, None], pa.date64()))
    assert name == "date"
    assert column.cast(pa.int32()).to_pylist() == [1, None]


@pytest.mark.skipif(not HAS_TIME, reason="Spark 4.0 has no type for the time of a day")
def test_times_of_a_day_in_seconds_are_read() -> None:
    assert read(pa.array([3600], pa.time32("s")))[1].to_pylist() == [pa.scalar(3600, pa.time32("s")).as_py()]


def rows_of(payload: bytes, mode: MalformedMode) -> list[Any]:
    decoder = decoder_of("arrow", pa.schema([("c", pa.int64())]), mode)
    (rows,) = decoder.decode(EntryBatch.of([payload, entry(pa.array([7]))]))
    return rows.columns[0].to_pylist()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (entry(pa.array([1]), pa.array([2])), "several columns are called 'c'"),
        (entry(pa.array([1])) + entry(pa.array([2])), "bytes follow its Arrow stream"),
        (entry(pa.array([1])) + b"\0", "1 bytes follow its Arrow stream"),
    ],
    ids=["two columns of one name", "two streams", "a byte after the stream"],
)
def test_an_entry_of_which_a_part_would_be_lost_is_malformed(payload: bytes, reason: str) -> None:
    with pytest.raises(MalformedPayload, match=reason):
        rows_of(payload, MalformedMode.FAILFAST)
    assert rows_of(payload, MalformedMode.DROPMALFORMED) == [7]
    assert rows_of(payload, MalformedMode.PERMISSIVE) == [None, 7]


def rows_without_data(rows: int, column: str = "other") -> bytes:
    """Return an entry of rows for which it has no byte: its only column is all null."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({column: pa.nulls(rows)})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("rows", [(1 << 20) + 1, 1 << 30])
@pytest.mark.parametrize("column", ["c", "other"])
def test_an_entry_that_claims_more_rows_than_it_has_bits_is_malformed(rows: int, column: str) -> None:
    """Columns that are absent or all null take memory when they are read: 8 GiB here."""
    payload = rows_without_data(rows, column)
    assert len(payload) < 1000
    with pytest.raises(MalformedPayload, match=f"it claims {rows} rows of 1 columns, and has 0 bytes of data"):
        rows_of(payload, MalformedMode.FAILFAST)
    assert rows_of(payload, MalformedMode.DROPMALFORMED) == [7]


def test_an_entry_of_nulls_alone_is_read() -> None:
    assert rows_of(rows_without_data(10_000, "c"), MalformedMode.FAILFAST) == [None] * 10_000 + [7]


def test_an_entry_without_the_mark_of_the_end_is_read() -> None:
    assert rows_of(entry(pa.array([1]))[:-8], MalformedMode.FAILFAST) == [1, 7]


def test_two_columns_of_one_name_give_no_columns() -> None:
    with pytest.raises(ValueError, match="several columns are called 'c'"):
        columns_of("arrow", [entry(pa.array([1]), pa.array([2]))])


def test_a_column_that_differs_in_case_from_one_that_is_read_is_not_lost_silently() -> None:
    both = pa.table({"c": [1], "C": [2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, both.schema) as stream:
        stream.write_table(both)
    entries = EntryBatch.of([sink.getvalue().to_pybytes()])
    with pytest.raises(MalformedPayload, match="it has a column 'C'"):
        list(decoder_of("arrow", pa.schema([("c", pa.int64())]), is_whole=True).decode(entries))
    (rows,) = decoder_of("arrow", pa.schema([("C", pa.int64()), ("c", pa.int64())]), is_whole=True).decode(entries)
    assert [column.to_pylist() for column in rows.columns] == [[2], [1]]


def test_types_that_spark_has_stay() -> None:
    for kind in (
        pa.int64(),
        pa.decimal128(38, 10),
        pa.struct({"a": pa.list_(pa.float32())}),
        pa.timestamp("us", "UTC"),
    ):
        assert of_spark(kind) == kind


def test_decimal_of_another_program_that_spark_cannot_hold_is_reported_with_its_column() -> None:
    payload = pa.schema({"fine": pa.int64(), "s": pa.struct({"d": pa.decimal256(40, 2)})})
    with pytest.raises(ConfigurationError) as refused:
        inferred_columns(payload)
    assert "column 's' of the first entry is struct<d:decimal(40,2)>" in str(refused.value)
    assert "38 digits at most: name the columns to read by .schema()" in str(refused.value)


def test_array_of_nothing_is_refused_by_its_column() -> None:
    """What `array()` is in SQL."""
    schema = StructType().add("fine", "integer").add("c", ArrayType(NullType(), containsNull=False))
    with pytest.raises(ConfigurationError) as refused:
        arrow_schema(schema)
    assert "column 'c' has type array<void>" in str(refused.value)
    assert "cast it" in str(refused.value)
