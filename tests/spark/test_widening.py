"""Entries of a narrower type are read back unchanged as the type to which a log's column was widened."""

from __future__ import annotations

import datetime
import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from bkspark.spark.columns import arrow_schema
from bkspark.spark.evolution import merged, widened
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import decoder_of, encoder_of
from tests.spark.evolving import same

MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999)
SIMPLE: dict[t.DataType, list[Any]] = {
    t.ByteType(): [-128, 127, None],
    t.ShortType(): [-(2**15), None],
    t.IntegerType(): [-(2**31), 2**31 - 1, None],
    t.LongType(): [-(2**63), 2**63 - 1, None],
    t.FloatType(): [1.5, float("inf"), None],
    t.DoubleType(): [1e300, None],
    t.DecimalType(5, 2): [Decimal("999.99"), Decimal("-0.01"), None],
    t.DecimalType(10, 0): [Decimal(5), None],
    t.DecimalType(12, 4): [Decimal("1.2345"), None],
    t.DecimalType(38, 0): [Decimal(10**38 - 1), None],
    t.DecimalType(38, 10): [Decimal("1.0000000001"), None],
    t.StringType(): ["x", "", None],
    t.BinaryType(): [b"x", None],
    t.BooleanType(): [True, None],
    t.DateType(): [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None],
    t.TimestampNTZType(): [MOMENT, None],
    t.TimestampType(): [MOMENT.replace(tzinfo=datetime.UTC), None],
    t.NullType(): [None],
}


def structs(**members: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in members.items()])


def with_nested() -> dict[t.DataType, list[Any]]:
    """Return the simple types, and arrays, structs and maps of them, each with some values."""
    found = dict(SIMPLE)
    for kind, values in SIMPLE.items():
        if isinstance(kind, t.NullType):
            continue
        found[t.ArrayType(kind)] = [values, [], None]
        found[structs(a=kind)] = [*({"a": value} for value in values), None]
        found[t.MapType(t.StringType(), kind)] = [[("key", values[0]), ("null", None)], [], None]
        found[t.MapType(kind, t.StringType())] = [[(values[0], "x")], None]
    number, large = t.IntegerType(), t.LongType()
    found[structs(a=number, b=t.StringType())] = [{"a": 1, "b": "x"}, {"a": None, "b": None}, None]
    found[structs(b=t.StringType(), a=large)] = [{"b": "x", "a": 1}, None]
    found[t.ArrayType(structs(a=number))] = [[{"a": 1}, None], None]
    found[t.ArrayType(structs(a=large, c=t.ArrayType(number)))] = [[{"a": 1, "c": [1]}], None]
    found[t.MapType(t.StringType(), structs(a=number))] = [[("key", {"a": 1}), ("null", None)], None]
    found[t.MapType(t.StringType(), structs(a=large, z=t.DoubleType()))] = [[("key", {"a": 1, "z": 2.0})]]
    return found


def read_back(payload_format: str, stored: t.DataType, wanted: t.DataType, values: list[Any]) -> list[Any]:
    """Return values that were written as one type, read as another."""
    schemas = [arrow_schema(t.StructType([t.StructField("column", kind)])) for kind in (stored, wanted)]
    batch = pa.record_batch([pa.array(values, schemas[0].field(0).type)], schema=schemas[0])
    decoder = decoder_of(payload_format, schemas[1], MalformedMode.FAILFAST, is_whole=True)
    found = []
    for entries in encoder_of(payload_format, schemas[0], 1 << 20, 4 << 20).encode(batch):
        for rows in decoder.decode(entries):
            assert rows.columns[0].type == schemas[1].field(0).type
            found += rows.columns[0].to_pylist()
    return found


@pytest.mark.parametrize("payload_format", ["arrow", "json", "msgpack"])
def test_every_type_is_read_as_what_it_is_widened_to(payload_format: str) -> None:
    values = with_nested()
    tried = 0
    for one, other in itertools.permutations(values, 2):
        wide = widened(one, other)
        if wide is not None:
            tried += 1
            found = read_back(payload_format, one, wide, values[one])
            assert same(found) == same(values[one]), f"{one.simpleString()} read as {wide.simpleString()}"
    assert tried > 500


@pytest.mark.parametrize(
    ("one", "other", "wide"),
    [
        ("tinyint", "bigint", "bigint"),
        ("float", "double", "double"),
        ("int", "float", "double"),
        ("date", "timestamp_ntz", "timestamp_ntz"),
        ("decimal(5,2)", "decimal(12,4)", "decimal(12,4)"),
        ("decimal(10,0)", "decimal(5,2)", "decimal(12,2)"),
        ("bigint", "decimal(12,4)", "decimal(24,4)"),
        ("bigint", "double", None),
        ("date", "timestamp", None),
        ("timestamp", "timestamp_ntz", None),
        ("decimal(38,0)", "decimal(38,10)", None),
        ("int", "string", None),
        ("boolean", "int", None),
        ("string", "binary", None),
    ],
)
def test_types_widen_where_no_value_changes(one: str, other: str, wide: str | None) -> None:
    kinds = {kind.simpleString(): kind for kind in SIMPLE}
    for pair in ((one, other), (other, one)):
        found = widened(*(kinds[each] for each in pair))
        assert (None if found is None else found.simpleString()) == wide


def test_columns_of_logs_that_differ_in_case_stay_apart_where_one_log_has_both() -> None:
    one = t.StructType([t.StructField("a", t.IntegerType(), False)])
    both = t.StructType([t.StructField("a", t.LongType(), False), t.StructField("A", t.IntegerType(), False)])
    wide = t.StructType([t.StructField("a", t.LongType(), False), t.StructField("A", t.IntegerType(), True)])
    assert merged([one, both], ["log x", "log y"]) == wide
    assert merged([both, one], ["log y", "log x"]) == wide
