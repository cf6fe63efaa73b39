"""jsonDialect spark: entries are read as Spark's own JSON source reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import columns_of, decoder_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bkspark.blocking import Client
    from tests.spark.conftest import Table

CELLS = {
    kind: cells.replace("\n", "").split(" | ")
    for kind, cells in {
        "string": """1 | 1.0 | 1.50 | 1e2 | 1e20 | -2.5e-7 | true | {"x": 1, "y":[ 2]} | [1, 2] | null | "s" | 1E400
 | NaN | [1.0,{"a":1e20, "b":"\\u00fc"}] | 123456789012345678901234567890 | "  x " | []""",
        "bigint": '"5" | 5.5 | true | 9223372036854775808 | null | 7',
        "double": '"1.5" | "NaN" | "-Infinity" | "INF" | 1 | true | "+INF" | "-INF" | "+Infinity" | "inf"',
        "boolean": '"true" | 1 | false',
        "timestamp": """0 | 1700000000 | 1700000000.5 | "1700000000" | "2024-02-29T12:00:00Z" | -1 | ""
 | "2024-2-9T1:2:3Z"
 | "2024-02-29T10:00:00.123456789Z" | "2024-02-29T10:00:00+0200" | "2024-02-29T10:00:00+2:00" | "2024-02-30T10:00:00Z"
 | "2024-02-29T10:00:00 Europe/Berlin" | "2024-02-29 10:00:00 UTC" | " 2024-02-29T10:00:00Z " | "2024-02-29T24:00:00Z"
 | "2024-02-29T10:00:00 Nowhere/City\"""",
        "timestamp_ntz": '"2024-02-29T10:00:00.5" | "2024-2-9" | "2024-02-29T10:00:00Z" | 0 | "2024"',
        "date": """0 | "2024-02-29" | "2024-02-29T12:00:00Z" | "2024-2-9" | "2024" | "2024-02" | "2024-02-30" | ""
 | " 2024-02-29 " | "2024-02-29T" | "2024-02-29T23:30:00-08:00" | "29.02.2024\"""",
        "decimal(10,2)": """1 | 1.5 | "1.5" | 1.555 | 123456789012 | "1,000.5" | " 1" | "1_0" | "1e2" | "Infinity\"""",
        "decimal(38,0)": '123456789012345678901234567890 | -99999999999999999999999999999999999999 | 2.5 | "5"',
        "binary": '"aGk=" | "hi!" | 5',
        "array<int>": '5 | [1,"2"] | [1,2]',
        "struct<a:int>": '5 | {"a":1} | {"b":2}',
    }.items()
}
WHOLE = ['{"c":1}\n{"c":2}', '{"c":1} x', "5", '{"c":01}', '{"C":1}', '{"c":1,"c":2}']


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize("kind", CELLS)
def test_cells_are_those_of_sparks_own_source(spark: SparkSession, table: Table, client: Client, kind: str) -> None:
    from pyspark.sql.functions import from_json

    texts = [f'{{"c": {cell}, "d": {i}}}' for i, cell in enumerate(CELLS[kind])]
    texts += WHOLE if kind == "double" else []
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([text.encode() for text in texts])
    schema = f"c {kind}, d int, bad string"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    rows = spark.createDataFrame([(text,) for text in texts], "text string").coalesce(1)
    expected = rows.select(from_json("text", schema, options).alias("r")).select("r.*").collect()
    found = table.read(schema, payloadFormat="json", jsonDialect="spark", **options).collect()
    assert [repr(row) for row in found] == [repr(row) for row in expected]


def test_a_byte_order_mark_is_ignored() -> None:
    decoder = decoder_of("json", pa.schema({"c": pa.int64()}), is_sparks=True)
    (rows,) = decoder.decode(EntryBatch.of([b'\xef\xbb\xbf{"c": 1}']))
    assert rows.columns[0].to_pylist() == [1]


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "Infinity", "NaN", "\u0661", ""])
def test_a_text_of_a_decimal_is_a_number_of_plain_digits(text: str) -> None:
    decoder = decoder_of("json", pa.schema({"c": pa.decimal128(10, 2)}))
    with pytest.raises(MalformedPayload):
        list(decoder.decode(EntryBatch.of([json.dumps({"c": text}).encode()])))


def decoded(kind: pa.DataType, cell: str, mode: str = "FAILFAST") -> Any:
    decoder = decoder_of("json", pa.schema({"c": kind}), MalformedMode(mode), is_sparks=True)
    (rows,) = decoder.decode(EntryBatch.of([f'{{"c": {cell}}}'.encode()]))
    return rows.columns[0].to_pylist()


def test_a_whole_number_with_a_point_is_read_into_a_bigint() -> None:
    assert decoded(pa.int64(), "5.0") == [5]
    assert decoded(pa.int64(), "1e3") == [1000]


@pytest.mark.parametrize(("kind", "cell"), [(pa.int64(), "5.5"), (pa.int64(), '"5"'), (pa.int32(), "3000000000")])
def test_what_does_not_fit_fails_in_mode_failfast_and_goes_in_mode_dropmalformed(kind: pa.DataType, cell: str) -> None:
    with pytest.raises(MalformedPayload):
        decoded(kind, cell)
    assert decoded(kind, cell, "DROPMALFORMED") == []


def test_columns_of_several_types_are_found_as_strings_and_large_numbers_as_doubles() -> None:
    payloads = [json.dumps(row).encode() for row in ({"a": 1, "b": 1e20, "c": 2**70}, {"a": "x", "b": 1, "c": 1})]
    found = columns_of("json", payloads, is_sparks=True)
    assert dict(zip(found.names, found.types)) == {"a": pa.string(), "b": pa.float64(), "c": pa.float64()}


def test_arrow_of_pandas_is_read() -> None:
    """Timestamps with nanoseconds, and whole numbers where doubles are wanted."""
    batch = pa.record_batch(
        {"at": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")), "n": pa.array([7], pa.int32())}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    schema = pa.schema({"at": pa.timestamp("us"), "n": pa.float64()})
    (rows,) = decoder_of("arrow", schema).decode(EntryBatch.of([sink.getvalue().to_pybytes()]))
    assert rows.columns[0].cast(pa.int64()).to_pylist() == [1_700_000_000_123_456]
    assert rows.columns[1].to_pylist() == [7.0]
