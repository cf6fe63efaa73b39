"""jsonDialect spark: entries are read as Spark's own JSON source reads them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.spark.columns import arrow_schema, inferred_columns
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import columns_of, decoder_of, encoder_of
from tests.spark.evolving import Author

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bkspark.blocking import Client
    from tests.spark.conftest import Table

CELLS = {
    kind: cells.replace("\n", "").split(" | ")
    for kind, cells in {
        "string": """1 | 1.0 | 1.50 | 1e2 | 1e20 | -2.5e-7 | true | {"x": 1, "y":[ 2]} | [1, 2] | null | "s" | 1E400
 | NaN | -Infinity | 0.12345678901234567890123456789 | [1.0,{"a":1e20, "b":"\\u00fc"}] | "  x " | []
 | 123456789012345678901234567890 | -0 | {"a": -0} | [-0, 0]""",
        "bigint": '"5" | 5.5 | true | 9223372036854775808 | null | 7',
        "double": '"1.5" | "NaN" | "-Infinity" | "INF" | 1 | true | "+INF" | "-INF" | "+Infinity" | "inf"',
        "boolean": '"true" | 1 | false',
        "timestamp": """0 | 1700000000 | 1700000000.5 | "1700000000" | "2024-02-29T12:00:00Z" | -1 | ""
 | "2024-2-9T1:2:3Z"
 | "2024-02-29T10:00:00.123456789Z" | "2024-02-29T10:00:00+0200" | "2024-02-29T10:00:00+2:00" | "2024-02-30T10:00:00Z"
 | "2024-02-29T10:00:00 Europe/Berlin" | "2024-02-29 10:00:00 UTC" | " 2024-02-29T10:00:00Z " | "2024-02-29T24:00:00Z"
 | "2024-02-29T10:00:00 Nowhere/City" | "+2024-2-9T1:2:3Z" | "002024-02-29T10:00:00Z" | "2024-02-29T\"""",
        "timestamp_ntz": '"2024-02-29T10:00:00.5" | "2024-2-9" | "2024-02-29T10:00:00Z" | 0 | "2024"',
        "date": """0 | "2024-02-29" | "2024-02-29T12:00:00Z" | "2024-2-9" | "2024" | "2024-02" | "2024-02-30" | ""
 | " 2024-02-29 " | "+2024-2-9" | "2024-02-29T" | "2024-02-29T23:30:00-08:00" | "29.02.2024\"""",
        "decimal(10,2)": """1 | 1.5 | "1.5" | 1.555 | 123456789012 | "1,000.5" | " 1" | "1_0" | "1e2" | "Infinity\"""",
        "decimal(38,0)": '123456789012345678901234567890 | -99999999999999999999999999999999999999 | 2.5 | "5"',
        "binary": """"aGk=" | "hi!" | 5 | "YWJj\\r\\nYWJj" | " aGk=\\n" | "aG k=" | "QUJ DQUJD" | "QUJDQ UJD"
 | " \\u0000 QUJD\\t \\u0001QUI= " | "QUJD QUI= \\u00a0" | "QU JDQ UJD\"""",
        "array<int>": '5 | [1,"2"] | [1,2]',
        "struct<a:int>": '5 | {"a":1} | {"b":2}',
        "struct<a:int,b:struct<c:date,d:string>>": """{"a":"x","b":{"c":"2024-02-29","d":5}}
 | {"a":1,"b":{"c":0,"d":"y"}} | {"a":3000000000,"b":5} | {"a":1,"b":null} | {"a":1,"b":[]}""",
        "array<struct<a:int,b:string>>": '[{"a":"x","b":"y"},{"a":1}] | [{"a":1},5] | [null] | {"a":1}',
        "map<string,int>": '{"k":1,"l":null} | {"k":1,"l":"x"} | 5',
        "map<string,struct<a:int,b:string>>": '{"k":{"a":"x","b":"y"},"l":{"a":1}} | {"k":{"a":1},"l":5}',
        "struct<a:array<int>,b:int>": '{"a":[1,"2"],"b":3} | {"a":[1],"b":"3"} | {"a":5,"b":3}',
    }.items()
}
WHOLE = ['{"c":1} x', "5", '{"c":01}', '{"C":1}', '{"c":1,"c":2}']


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize("kind", CELLS)
def test_cells_are_those_of_sparks_own_source(
    spark: SparkSession, table: Table, client: Client, kind: str, tmp_path: Path
) -> None:
    texts = [f'{{"c": {cell}, "d": {i}}}' for i, cell in enumerate(CELLS[kind])]
    texts += WHOLE if kind == "double" else []
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([text.encode() for text in texts])
    schema = f"c {kind}, d int, bad string"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    (tmp_path / "entries.json").write_text("\n".join(texts))
    expected = spark.read.schema(schema).options(**options).json(str(tmp_path)).collect()
    found = table.read(schema, payloadFormat="json", jsonDialect="spark", **options).collect()
    assert [repr(row) for row in found] == [repr(row) for row in expected]


def test_text_after_an_object_is_ignored() -> None:
    decoder = decoder_of("json", pa.schema({"c": pa.int64()}), is_sparks=True)
    (rows,) = decoder.decode(EntryBatch.of([b'{"c": 1}\n{"c": 2}']))
    assert rows.columns[0].to_pylist() == [1]


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


def test_members_that_do_not_fit_are_null_and_the_other_members_stay() -> None:
    """In mode PERMISSIVE, as in Spark's own source; the whole entry is in the column of corrupt records."""
    inner = pa.struct({"n": pa.int32(), "text": pa.string()})
    kinds = {"s": inner, "list": pa.list_(inner), "map": pa.map_(pa.string(), inner), "numbers": pa.list_(pa.int32())}
    schema = pa.schema({**kinds, "bad": pa.string()})
    cell = '{"n":3000000000,"text":"x"}'
    entry = f'{{"s":{cell},"list":[{cell},{{"n":1}}],"map":{{"k":{cell}}},"numbers":[1,"2"]}}'
    good = '{"s":{"n":1,"text":"y"},"list":[],"map":{},"numbers":[1]}'
    decoder = decoder_of("json", schema, MalformedMode.PERMISSIVE, is_sparks=True, corrupt_record="bad")
    (rows,) = decoder.decode(EntryBatch.of([entry.encode(), good.encode()]))
    kept = {"n": None, "text": "x"}
    assert [column.to_pylist() for column in rows.columns] == [
        [kept, {"n": 1, "text": "y"}],
        [[kept, {"n": 1, "text": None}], []],
        [[("k", kept)], []],
        [None, [1]],
        [entry, None],
    ]


@pytest.mark.parametrize("is_sparks", [False, True], ids=["bkspark", "spark"])
def test_entries_of_our_own_are_read_alike_in_both_dialects(*, is_sparks: bool) -> None:
    for seed in range(100):
        author = Author(seed)
        columns = author.first_columns()
        schema = arrow_schema(columns)
        batch = pa.RecordBatch.from_pylist([author.row(columns) for _ in range(3)], schema)
        (entries,) = encoder_of("json", schema, 1 << 20, 4 << 20).encode(batch)
        decoder = decoder_of("json", schema, is_whole=True, is_sparks=is_sparks)
        found = [pa.RecordBatch.from_arrays(rows.columns, schema=schema) for rows in decoder.decode(entries)]
        assert pa.Table.from_batches(found).to_pylist() == batch.to_pylist(), f"seed {seed}"


def test_a_whole_number_with_a_point_is_read_into_a_bigint() -> None:
    assert decoded(pa.int64(), "5.0") == [5]
    assert decoded(pa.int64(), "1e3") == [1000]
    # Beyond 2^53 a double would be another number.
    assert decoded(pa.int64(), "9007199254740993.0") == [9007199254740993]
    assert decoded(pa.list_(pa.int64()), "[9223372036854775807.0, 1]") == [[9223372036854775807, 1]]


def test_a_number_in_a_string_column_keeps_all_digits() -> None:
    """Spark's source returns the text of the file, where a double would round it."""
    digits = "0.12345678901234567890123456789"
    schema = pa.schema({"s": pa.string(), "d": pa.float64(), "n": pa.int64(), "list": pa.list_(pa.string())})
    decoder = decoder_of("json", schema, is_sparks=True)
    text = f'{{"s": {{"a": {digits}}}, "d": {digits}, "n": 9223372036854775807.0, "list": [1.50, {digits}, 1E400]}}'
    (rows,) = decoder.decode(EntryBatch.of([text.encode()]))
    found = [column.to_pylist()[0] for column in rows.columns]
    assert found == [f'{{"a": {digits}}}', float(digits), 9223372036854775807, ["1.50", digits, "1E400"]]


def test_an_object_in_a_string_column_is_its_text_wherever_the_column_is() -> None:
    inner = pa.struct({"t": pa.string(), "n": pa.int64()})
    schema = pa.schema(
        {"s": inner, "list": pa.list_(inner), "map": pa.map_(pa.string(), pa.string()), "plain": pa.list_(pa.int64())}
    ).append(pa.field("pairs", pa.map_(pa.int32(), pa.string())))
    source = '{ "a" :1.50,"a": [ "\\u00e9\\"}", {} ] }'
    text = (
        f' {{ "other": {source}, "s" : {{"n": 1, "t" : {source} , "x": {{"y": 1}}}} , "list": [ {{ "t": [ 1 ] }},'
        f' {{}} , null ], "map": {{"k": {source}, "l": "text", "m": null}}, "plain": [ ],'
        f' "pairs": [[1, {source}],[2, "x"]] }} and more'
    )
    decoder = decoder_of("json", schema, is_sparks=True)
    (rows,) = decoder.decode(EntryBatch.of([text.encode(), b'{"s": {"t": [], "n": 2}}']))
    assert [column.to_pylist() for column in rows.columns] == [
        [{"t": source, "n": 1}, {"t": "[]", "n": 2}],
        [[{"t": "[ 1 ]", "n": None}, {"t": None, "n": None}, None], None],
        [[("k", source), ("l", "text"), ("m", None)], None],
        [[], None],
        [[(1, source), (2, "x")], None],
    ]


@pytest.mark.parametrize(
    ("kind", "cell", "value"),
    [
        pytest.param(pa.string(), "-0", "-0", id="sign of zero"),
        pytest.param(pa.list_(pa.string()), "[-0, 0, [-0]]", ["-0", "0", "[-0]"], id="signs of zeros"),
        pytest.param(pa.date32(), '"+2024-2-9"', date(2024, 2, 9), id="sign of a year"),
        pytest.param(pa.timestamp("us"), '"002024-2-9 1:2:3"', datetime(2024, 2, 9, 1, 2, 3), id="long year"),
        pytest.param(
            pa.timestamp("us", "UTC"),
            '"2024-2-9 1:2:3.05-08:00"',
            datetime(2024, 2, 9, 9, 2, 3, 50_000, UTC),
            id="fraction and zone west of UTC",
        ),
        pytest.param(
            pa.decimal128(38, 2),
            "123456789012345678901234567890123456.785",
            Decimal("123456789012345678901234567890123456.79"),
            id="digits beyond those of Python's decimals",
        ),
        pytest.param(pa.binary(), '"YWJj\\r\\nYWJj\\n"', b"abcabc", id="lines of base64"),
    ],
)
def test_what_sparks_own_source_reads_is_read(kind: pa.DataType, cell: str, value: Any) -> None:
    assert decoded(kind, cell) == [value]


@pytest.mark.parametrize(
    ("kind", "cell"), [(pa.timestamp("us"), '"2024-02-29T"'), (pa.binary(), '"aG k="'), (pa.binary(), '"aGk"')]
)
def test_what_sparks_own_source_refuses_is_malformed(kind: pa.DataType, cell: str) -> None:
    with pytest.raises(MalformedPayload):
        decoded(kind, cell)


@pytest.mark.parametrize("kind", [pa.int64(), pa.decimal128(10, 2)])
def test_a_number_of_a_billion_digits_is_malformed(kind: pa.DataType) -> None:
    schema = pa.schema({"c": kind, "s": pa.string()})
    decoder = decoder_of("json", schema, MalformedMode.DROPMALFORMED, is_sparks=True)
    (rows,) = decoder.decode(EntryBatch.of([b'{"c": 1e999999999, "s": "x"}']))
    assert rows.count == 0


@pytest.mark.parametrize(("kind", "cell"), [(pa.int64(), "5.5"), (pa.int64(), '"5"'), (pa.int32(), "3000000000")])
def test_what_does_not_fit_fails_in_mode_failfast_and_goes_in_mode_dropmalformed(kind: pa.DataType, cell: str) -> None:
    with pytest.raises(MalformedPayload):
        decoded(kind, cell)
    assert decoded(kind, cell, "DROPMALFORMED") == []


def test_rows_beside_a_dropped_entry_have_their_own_entries() -> None:
    """docs/spark.md: `entry_id` is the entry of the row. Batches with a malformed entry are decoded in parts."""
    payloads = [b'{"n": %d}' % i for i in range(40)]
    payloads[20] = b"{"
    decoder = decoder_of("json", pa.schema({"n": pa.int64()}), MalformedMode.DROPMALFORMED)
    found = {}
    for rows in decoder.decode(EntryBatch.of(payloads)):
        assert rows.entry_of_row is not None
        found |= dict(zip(rows.entry_of_row().tolist(), rows.columns[0].to_pylist()))
    assert found == {i: i for i in range(40) if i != 20}


def test_member_with_the_name_of_the_column_of_corrupt_records_is_kept() -> None:
    schema = pa.schema({"n": pa.int64(), "bad": pa.string()})
    decoder = decoder_of("json", schema, MalformedMode.PERMISSIVE, corrupt_record="bad")
    (rows,) = decoder.decode(EntryBatch.of([b'{"n": 1, "bad": "own"}', b'{"n": "x"}', b'{"n": 2}']))
    assert [column.to_pylist() for column in rows.columns] == [[1, None, 2], ["own", '{"n": "x"}', None]]


FOUND = {
    name: cells.split(" | ")
    for name, cells in {
        "whole": "1 | -9223372036854775808 | 9223372036854775807 | null",
        "unsigned": "18446744073709551615 | 1 | null",
        "below": "-9223372036854775809",
        "longest": "99999999999999999999999999999999999999 | 5",
        "too_long": "999999999999999999999999999999999999999 | 5",
        "unsigned_and_fraction": "18446744073709551615 | 0.5",
        "fraction": "1 | 2.5 | 1e400",
        "not_a_number": '1 | "NaN"',
        "flag": "true | false",
        "flag_and_number": "true | 1",
        "text_and_number": '"x" | 1',
        "never": "null",
        "numbers": "[1] | [2.5] | [18446744073709551615]",
        "mixed": '[1, "x", null]',
        "arrays": "[[]] | [[1]] | []",
        "object": '{"a":1} | {"b":"x"} | {"a":null,"b":null}',
        "object_of_several": '{"a":1,"id":18446744073709551615} | {"a":"x","id":1}',
        "objects": '[{"a":1}] | [{"a":[2]},{"b":true}] | null',
        "object_and_number": '{"a":1} | 5',
        "object_and_array": '{"a":1} | [1]',
        "array_and_number": "[1] | 5",
    }.items()
}
"""Cells of one column in several entries, by the column's name."""


def entries_of_found() -> list[bytes]:
    return [f'{{"{name}": {cell}}}'.encode() for name, cells in FOUND.items() for cell in cells]


def test_types_of_columns_are_found_without_losing_a_digit() -> None:
    found = columns_of("json", entries_of_found(), is_sparks=True)
    kinds = {name: inferred_columns(pa.schema([found.field(name)]))[0].dataType.simpleString() for name in found.names}
    assert kinds == {
        "whole": "bigint",
        "unsigned": "decimal(20,0)",
        "below": "decimal(19,0)",
        "longest": "decimal(38,0)",
        "too_long": "double",
        "unsigned_and_fraction": "double",
        "fraction": "double",
        "not_a_number": "string",
        "flag": "boolean",
        "flag_and_number": "string",
        "text_and_number": "string",
        "never": "string",
        "numbers": "array<double>",
        "mixed": "array<string>",
        "arrays": "array<array<bigint>>",
        "object": "struct<a:bigint,b:string>",
        "object_of_several": "struct<a:string,id:decimal(20,0)>",
        "objects": "array<struct<a:string,b:boolean>>",
        "object_and_number": "string",
        "object_and_array": "string",
        "array_and_number": "string",
    }


@pytest.mark.spark
@pytest.mark.cluster
def test_types_of_columns_are_those_that_sparks_own_source_finds(
    spark: SparkSession, table: Table, client: Client, tmp_path: Path
) -> None:
    entries = entries_of_found()
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many(entries)
    (tmp_path / "entries.json").write_bytes(b"\n".join(entries))
    own = spark.read.json(str(tmp_path))
    found = table.read(payloadFormat="json", jsonDialect="spark")
    assert dict(found.dtypes) == dict(own.dtypes)
    names = list(FOUND)
    assert [repr(row) for row in found.select(names).collect()] == [repr(row) for row in own.select(names).collect()]


def test_an_id_of_sixty_four_bits_keeps_its_digits_where_no_schema_is_given() -> None:
    """Unsigned ids are usual in the entries of other programs. A double would round them."""
    payloads = [b'{"id": 18446744073709551615, "of": {"id": 9223372036854775809}}', b'{"id": 1, "of": null}']
    decoder = decoder_of("json", columns_of("json", payloads, is_sparks=True), is_whole=True, is_sparks=True)
    (rows,) = decoder.decode(EntryBatch.of(payloads))
    assert [column.to_pylist() for column in rows.columns] == [
        [18446744073709551615, 1],
        [{"id": 9223372036854775809}, None],
    ]


def test_columns_are_found_where_text_follows_an_object() -> None:
    """jsonDialect spark reads such entries."""
    found = columns_of("json", [b'\xef\xbb\xbf{"c": 1}\n{"d": 2}', b' {"c": 2} end'], is_sparks=True)
    assert found == pa.schema({"c": pa.int64()})


@pytest.mark.parametrize(
    ("levels", "named"),
    [(600, "column 'c' has"), pytest.param(100_000, "an entry has", id="not even parsed")],
)
def test_columns_that_nest_too_deeply_to_be_found_are_named(levels: int, named: str) -> None:
    deep = b'{"c": ' + b"[" * levels + b"]" * levels + b"}"
    with pytest.raises(ValueError, match=f"{named} objects or arrays that nest too deeply"):
        columns_of("json", [deep], is_sparks=True)


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


def test_base64_that_continues_after_its_padding_is_malformed() -> None:
    assert decoded(pa.binary(), '"QUI= QUI="', "PERMISSIVE") == [None]


HUGE = 1_000_000


@pytest.mark.parametrize("end", ["x", "", "QUI=", "Q UI="])
def test_a_long_run_of_blanks_in_base64_is_read_once(end: str) -> None:
    """A writer of a log could otherwise hold its readers for hours."""
    cell = json.dumps("QUJD" + " \n" * HUGE + end)
    assert decoded(pa.binary(), cell, "PERMISSIVE") == [{"": b"ABC", "QUI=": b"ABCAB"}.get(end)]


def test_a_long_run_of_digits_in_a_text_is_read_once() -> None:
    digits = "1" * HUGE
    assert decoded(pa.decimal128(38, 2), json.dumps(digits + "x"), "PERMISSIVE") == [None]
    moment = "2024-02-29 1:2:3." + digits
    assert decoded(pa.timestamp("us"), json.dumps(moment)) == [datetime(2024, 2, 29, 1, 2, 3, 111111)]
    assert decoded(pa.timestamp("us"), json.dumps(moment + "\nx"), "PERMISSIVE") == [None]
