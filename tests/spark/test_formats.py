"""Formats without Spark: what goes in comes out; what is malformed is named, nulled or dropped."""

import json
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, MapType, StringType, StructType

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.spark.columns import arrow_schema
from bkspark.spark.formats.arrow import schema_of
from bkspark.spark.formats.decoding import MalformedMode
from bkspark.spark.formats.registry import columns_of, decoder_of, encoder_of

FORMATS = ("json", "msgpack", "arrow")
NAN, INFINITY = float("nan"), float("inf")

UTC_TIME = pa.timestamp("us", "UTC")
COLUMNS = {
    "boolean": (pa.bool_(), [True, False, None]),
    "byte": (pa.int8(), [-128, 127, None]),
    "short": (pa.int16(), [-32768, 32767, None]),
    "integer": (pa.int32(), [-(1 << 31), (1 << 31) - 1, None]),
    "long": (pa.int64(), [-(1 << 63), (1 << 63) - 1, None]),
    "float": (pa.float32(), [NAN, -INFINITY, 0.1]),
    "double": (pa.float64(), [INFINITY, 5e-324, None]),
    "decimal": (pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678"), Decimal(0), None]),
    "string": (pa.string(), ["", 'Ω\u0000"\n', None]),
    "binary": (pa.binary(), [b"", bytes(range(256)), None]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "timestamp": (UTC_TIME, [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 11, 21, 5, 6, 7, 89, tzinfo=UTC), None]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(1582, 10, 15), datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
    "time": (pa.time64("ns"), [time(0), time(23, 59, 59, 999999), None]),
    "interval": (pa.duration("us"), [timedelta(days=-5, microseconds=1), timedelta(0), None]),
    "null": (pa.null(), [None, None, None]),
    "array": (pa.list_(pa.int32()), [[], [1, None, 3], None]),
    "map": (pa.map_(pa.string(), pa.float64()), [[], [("a", 1.5), ("b", None)], None]),
    "map_of_other_keys": (pa.map_(pa.int32(), pa.date32()), [[(1, date(2026, 1, 2)), (2, None)], [], None]),
    "struct": (pa.struct({"x": pa.decimal128(4, 1), "y": UTC_TIME}), [{"x": Decimal("1.5"), "y": None}, None, None]),
    "nested": (
        pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.list_(pa.binary()))})),
        [[{"m": [("k", [b"1", None])]}, None], [], None],
    ),
}


def columns_batch(names=tuple(COLUMNS)) -> pa.RecordBatch:
    schema = pa.schema([(name, COLUMNS[name][0]) for name in names])
    return pa.RecordBatch.from_arrays([pa.array(COLUMNS[name][1], COLUMNS[name][0]) for name in names], schema=schema)


def encoded(format_name: str, batch: pa.RecordBatch, entry_bytes: int = 1 << 20) -> EntryBatch:
    payloads = [p for part in encoder_of(format_name, batch.schema, entry_bytes, 1 << 22).encode(batch) for p in part]
    return EntryBatch.of(payloads, ledger_id=9, first_entry=40)


def decoded(format_name: str, entries: EntryBatch, schema: pa.Schema, mode=MalformedMode.FAILFAST) -> pa.Table:
    pieces = list(decoder_of(format_name, schema, mode).decode(entries))
    assert all(len(column) == piece.count for piece in pieces for column in piece.columns)
    batches = [pa.RecordBatch.from_arrays(piece.columns, schema=schema) for piece in pieces]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def assert_same(found: pa.Table, expected: pa.RecordBatch) -> None:
    for name in expected.schema.names:
        assert repr(found.column(name).to_pylist()) == repr(expected.column(name).to_pylist()), name
        assert found.column(name).type == expected.column(name).type


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_every_type_comes_back_as_it_went(format_name, name):
    batch = columns_batch([name])
    assert_same(decoded(format_name, encoded(format_name, batch), batch.schema), batch)


@pytest.mark.parametrize("format_name", FORMATS)
def test_all_columns_together_come_back_as_they_went(format_name):
    batch = columns_batch()
    assert_same(decoded(format_name, encoded(format_name, batch), batch.schema), batch)


def test_json_entry_is_what_the_specification_says():
    names = ["boolean", "double", "decimal", "binary", "date", "timestamp", "timestamp_ntz", "interval", "map"]
    entry = encoded("json", columns_batch([*names, "map_of_other_keys", "struct"]))[0]
    assert json.loads(entry) == {
        "boolean": True,
        "double": "Infinity",
        "decimal": "12345678901234567890.123456789012345678",
        "binary": "",
        "date": "0001-01-01",
        "timestamp": "0001-01-01T00:00:00Z",
        "timestamp_ntz": "1582-10-15T00:00:00",
        "interval": -5 * 86400 * 10**6 + 1,
        "map": {},
        "map_of_other_keys": [[1, "2026-01-02"], [2, None]],
        "struct": {"x": "1.5", "y": None},
    }


def test_msgpack_entry_has_native_bytes_and_timestamps():
    entry = msgpack.unpackb(encoded("msgpack", columns_batch(["binary", "timestamp"]))[1])
    assert entry["binary"] == bytes(range(256))
    assert entry["timestamp"].to_datetime() == datetime(2026, 11, 21, 5, 6, 7, 89, tzinfo=UTC)


def test_column_of_another_size_or_zone_is_brought_to_the_schema():
    held = pa.record_batch({"a": pa.array([1, 2], pa.int16()), "b": pa.array(["x", None]).dictionary_encode()})
    wanted = pa.schema([("B", pa.string()), ("a", pa.int64()), ("c", pa.date32())])
    found = decoded("arrow", encoded("arrow", held), wanted)
    assert found.to_pydict() == {"B": ["x", None], "a": [1, 2], "c": [None, None]}


NESTED = [{"list": [{"x": 1}], "map": [("k", {"x": 2})], "struct": {"x": 3, "s": {"x": 4}}}]
MORE_NESTED = [{"list": [{"x": 1, "y": 5}], "map": [("k", {"x": 2})], "struct": {"x": 3, "s": {"x": 4, "z": 6}}}]


def nested_schema(*deepest: str) -> pa.Schema:
    """Return a schema of structs in everything that can hold one; the deepest has members x and these."""
    x = pa.struct({"x": pa.int64()})
    more = pa.struct({"x": pa.int64(), **dict.fromkeys(deepest, pa.int64())})
    return pa.schema(
        {
            "list": pa.list_(more if "y" in deepest else x),
            "map": pa.map_(pa.string(), x),
            "struct": pa.struct({"x": pa.int64(), "s": more}),
        }
    )


@pytest.mark.parametrize("format_name", FORMATS)
def test_members_of_structs_are_found_by_name_null_where_missing_and_passed_over_where_not_wanted(format_name):
    less, more = nested_schema(), nested_schema("z", "y")
    old = encoded(format_name, pa.RecordBatch.from_pylist(NESTED, less))
    new = encoded(format_name, pa.RecordBatch.from_pylist(MORE_NESTED, more))
    assert decoded(format_name, new, less).to_pylist() == NESTED
    nulled = decoded(format_name, old, more).to_pylist()[0]
    assert nulled["list"] == [{"x": 1, "z": None, "y": None}]
    assert nulled["struct"] == {"x": 3, "s": {"x": 4, "z": None, "y": None}}


@pytest.mark.parametrize("format_name", FORMATS)
def test_member_that_the_first_entries_lack_is_not_lost_silently(format_name):
    old = encoded(format_name, pa.RecordBatch.from_pylist(NESTED, nested_schema()))
    assert list(decoder_of(format_name, nested_schema("z"), is_whole=True).decode(old))
    for member in ("y", "z"):
        schema = nested_schema(member)
        new = encoded(format_name, pa.RecordBatch.from_pylist(MORE_NESTED, schema))
        assert list(decoder_of(format_name, schema, is_whole=True).decode(new))
        with pytest.raises(MalformedPayload, match=f"it has a column '{member}', which this read does not have"):
            list(decoder_of(format_name, nested_schema(), is_whole=True).decode(new))


@pytest.mark.parametrize("format_name", FORMATS)
def test_only_columns_that_the_driver_has_logged_are_left_out(format_name):
    less, more = nested_schema(), nested_schema("z")
    wanted = pa.RecordBatch.from_pylist(NESTED, less).to_pylist()
    added = pa.array(["x"] * len(NESTED))
    new = pa.RecordBatch.from_pylist(MORE_NESTED, more).append_column("late", added)
    entries = encoded(format_name, new)
    left_out = frozenset({"late", *less.names})
    (rows,) = decoder_of(format_name, less, is_whole=True, left_out=left_out).decode(entries)
    assert pa.RecordBatch.from_arrays(rows.columns, schema=less).to_pylist() == wanted
    for name, logged in (("late", less.names), ("z", ["late"])):
        decoder = decoder_of(format_name, less, is_whole=True, left_out=frozenset(logged))
        with pytest.raises(MalformedPayload, match=f"it has a column '{name}', which this read does not have"):
            list(decoder.decode(entries))


def test_arrow_members_that_differ_in_case_or_digits_are_malformed():
    held = pa.record_batch({"s": pa.array([{"a": 0.1}])})
    for wanted in (pa.struct({"A": pa.float64()}), pa.struct({"a": pa.float32()})):
        with pytest.raises(MalformedPayload, match="'s' is struct<a: double>, and struct<"):
            decoded("arrow", encoded("arrow", held), pa.schema({"s": wanted}))


def test_columns_that_differ_in_case_alone_do_not_take_each_others_values():
    entries = encoded("arrow", pa.record_batch({"A": pa.array([5])}))
    both = decoded("arrow", entries, pa.schema({"a": pa.int64(), "A": pa.int64()}))
    assert both.to_pylist() == [{"a": None, "A": 5}]
    assert decoded("arrow", entries, pa.schema({"a": pa.int64()})).to_pylist() == [{"a": 5}]


def test_arrow_entries_keep_to_the_target_size_and_the_row_order():
    batch = pa.record_batch({"n": pa.array(range(20_000)), "s": pa.array(["x" * (i % 90) for i in range(20_000)])})
    entries = encoded("arrow", batch, entry_bytes=64 * 1024)
    sizes = np.diff(entries.offsets)
    assert 10 <= len(entries) <= 40
    assert sizes.max() < 2 * 64 * 1024
    assert decoded("arrow", entries, batch.schema).to_batches() != []
    assert_same(decoded("arrow", entries, batch.schema), batch)


def test_arrow_pieces_with_large_rows_are_halved_until_they_fit():
    batch = pa.record_batch({"s": pa.array(["x"] * 1000 + ["y" * 900_000] * 5)})
    parts = list(encoder_of("arrow", batch.schema, 1 << 20, 1 << 20).encode(batch))
    sizes = np.concatenate([np.diff(part.offsets) for part in parts])
    assert sizes.max() <= 1 << 20


def test_arrow_entry_of_rows_says_which_entry_each_row_came_from():
    batch = pa.record_batch({"n": pa.array(range(10))})
    entries = encoded("arrow", batch, entry_bytes=24)
    pieces = list(decoder_of("arrow", batch.schema).decode(entries))
    rows_of_entry = np.bincount(np.concatenate([piece.entry_of_row() for piece in pieces]))
    assert len(rows_of_entry) == len(entries)
    assert rows_of_entry.sum() == 10


def test_rows_are_counted_when_no_column_is_wanted():
    batch = pa.record_batch({"n": pa.array(range(10))})
    for format_name in FORMATS:
        pieces = list(decoder_of(format_name, pa.schema([])).decode(encoded(format_name, batch)))
        assert sum(piece.count for piece in pieces) == 10


def test_raw_values_lie_over_the_received_buffer():
    entries = EntryBatch.of([b"one", b"", b"three"], 9, 40)
    schema = pa.schema([("value", pa.binary())])
    (rows,) = decoder_of("raw", schema).decode(entries)
    assert rows.columns[0].to_pylist() == [b"one", b"", b"three"]
    assert rows.columns[0].buffers()[2].address == pa.py_buffer(entries.buffer).address
    (again,) = encoder_of("raw", schema, 1, 1).encode(pa.RecordBatch.from_arrays(rows.columns, schema=schema))
    assert list(again) == list(entries)


@pytest.mark.parametrize("format_name", FORMATS)
def test_text_that_is_not_utf8_is_not_written_as_an_unreadable_entry(format_name):
    column = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xffA"]).buffers())
    with pytest.raises(MalformedPayload, match=r"column 's' .*: cast it to binary"):
        encoded(format_name, pa.record_batch({"i": pa.array([1]), "s": column}))


def test_raw_null_is_refused_with_a_remedy():
    batch = pa.record_batch({"value": pa.array([b"x", None])})
    with pytest.raises(MalformedPayload, match="filter it out"):
        list(encoder_of("raw", batch.schema, 1, 1).encode(batch))


@pytest.mark.parametrize("names", [["a"], ["value", "key"], []])
def test_raw_takes_only_the_column_value(names):
    with pytest.raises(ConfigurationError, match="'value'"):
        encoder_of("raw", pa.schema([(name, pa.binary()) for name in names]), 1, 1)


@pytest.mark.parametrize("format_name", FORMATS)
def test_column_names_that_repeat_are_refused_before_any_row(format_name):
    with pytest.raises(ConfigurationError, match="repeat"):
        encoder_of(format_name, pa.schema([("a", pa.int64()), ("a", pa.int64())]), 1, 1)


def test_names_of_members_that_repeat_are_refused_with_their_column():
    """Spark itself fails in a task, and names the members only."""
    kind = StructType().add("x", "integer").add("x", "integer")
    for nested in (kind, ArrayType(kind), MapType(StringType(), kind)):
        with pytest.raises(ConfigurationError, match=r"column 'c' has type .*several members of one name"):
            arrow_schema(StructType().add("c", nested))


def test_type_without_a_place_in_the_format_is_refused_before_any_row():
    schema = pa.schema([("t", pa.list_(pa.month_day_nano_interval()))])
    for format_name in ("json", "msgpack"):
        with pytest.raises(ConfigurationError, match=r"'t' has type month_day_nano_interval.*use payloadFormat arrow"):
            encoder_of(format_name, schema, 1, 1)


def test_year_beyond_iso_is_refused_with_a_remedy():
    batch = pa.record_batch({"t": pa.array([1 << 60], pa.int64()).cast(UTC_TIME)})
    for format_name in ("json", "msgpack"):
        with pytest.raises(MalformedPayload, match="use payloadFormat arrow"):
            encoded(format_name, batch)
    assert_same_bits = decoded("arrow", encoded("arrow", batch), batch.schema)
    assert assert_same_bits.column("t").cast(pa.int64()).to_pylist() == [1 << 60]


@pytest.mark.parametrize("format_name", FORMATS)
def test_first_and_last_hour_of_all_years_are_written_whatever_the_sessions_zone(format_name):
    moments = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]
    expected = pa.record_batch({"t": pa.array(moments, UTC_TIME)})
    for zone in ("America/New_York", "Asia/Tokyo"):
        local = pa.record_batch({"t": expected.column("t").cast(pa.timestamp("us", zone))})
        payloads = [p for part in encoder_of(format_name, expected.schema, 1, 1 << 22).encode(local) for p in part]
        assert_same(decoded(format_name, EntryBatch.of(payloads), expected.schema), expected)


SCHEMA = pa.schema([("a", pa.int8()), ("b", pa.string())])
GOOD = {"a": 1, "b": "x"}
BAD_CELLS = [{"a": 300}, {"a": 1.5}, {"a": True}, {"a": "1"}, {"b": 5}, {"b": ["x"]}, {"a": {}}]


def bad_payloads(format_name: str) -> list[bytes]:
    if format_name == "json":
        texts = ["", "{", "[1]", "5", '"a"', "nul", '{"a":1}x', "[" * 100_000, '{"a": 1e400}']
        return [b"\xff", *(text.encode() for text in texts), *(json.dumps(cell).encode() for cell in BAD_CELLS)]
    if format_name == "msgpack":
        head = [b"", b"\x81", b"\xc1", b"\x93\x01\x02\x03", b"\x05", b"\x91" * 5000, msgpack.packb(GOOD) + b"\x00"]
        return [*head, b"\xdf\xff\xff\xff\xff", *(msgpack.packb(cell) for cell in BAD_CELLS)]
    other = pa.record_batch({"a": pa.array([300]), "b": pa.array(["x"])})
    text = pa.record_batch({"a": pa.array(["one"]), "b": pa.array(["x"])})
    return [b"", b"ARROW1", b"\xff" * 64, encoded("arrow", other)[0], encoded("arrow", text)[0]]


def good_payload(format_name: str) -> bytes:
    if format_name == "json":
        return json.dumps(GOOD).encode()
    if format_name == "msgpack":
        return msgpack.packb(GOOD)
    return encoded("arrow", pa.RecordBatch.from_pylist([GOOD], SCHEMA))[0]


@pytest.mark.parametrize("format_name", FORMATS)
def test_malformed_payload_names_ledger_and_entry(format_name):
    good = good_payload(format_name)
    for bad in bad_payloads(format_name):
        with pytest.raises(MalformedPayload, match="ledger 9 entry 42: malformed payload") as caught:
            decoded(format_name, EntryBatch.of([good, good, bad, good], 9, 40), SCHEMA)
        assert (caught.value.ledger_id, caught.value.entry_id) == (9, 42)


def test_malformed_payload_without_a_reason_of_its_parser_is_named_by_the_error():
    with pytest.raises(MalformedPayload, match="malformed payload: FormatError; check payloadFormat"):
        decoded("msgpack", EntryBatch.of([b"\xc1"]), SCHEMA)


@pytest.mark.parametrize("format_name", FORMATS)
def test_malformed_payload_is_nulled_and_kept_or_dropped(format_name):
    good = good_payload(format_name)
    kept = SCHEMA.append(pa.field("_corrupt_record", pa.binary()))
    for bad in bad_payloads(format_name):
        entries = EntryBatch.of([good, bad, good], 9, 40)
        nulled = decoded(format_name, entries, kept, MalformedMode.PERMISSIVE).to_pylist()
        none = {"_corrupt_record": None}
        assert nulled == [GOOD | none, {"a": None, "b": None, "_corrupt_record": bad}, GOOD | none]
        assert decoded(format_name, entries, SCHEMA, MalformedMode.DROPMALFORMED).to_pylist() == [GOOD, GOOD]


@pytest.mark.parametrize("format_name", FORMATS)
def test_not_null_column_without_a_value_is_malformed(format_name):
    schema = pa.schema([pa.field("z", pa.int32(), nullable=False)])
    with pytest.raises(MalformedPayload, match="'z' is NOT NULL"):
        decoded(format_name, EntryBatch.of([good_payload(format_name)], 9, 40), schema)
    with pytest.raises(ConfigurationError, match="'z' is NOT NULL"):
        decoder_of(format_name, schema, MalformedMode.PERMISSIVE)


@pytest.mark.parametrize("format_name", FORMATS)
def test_damaged_bytes_give_no_other_error(format_name):
    chance = random.Random(7)
    batch = columns_batch()
    entries = encoded(format_name, batch)
    payload = entries[0]
    decoder = decoder_of(format_name, batch.schema)
    for _ in range(2000):
        damaged = bytearray(payload)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = bytes(damaged[: chance.randrange(len(damaged) + 1)]) if chance.random() < 0.3 else bytes(damaged)
        try:
            for rows in decoder.decode(EntryBatch.of([cut], 9, 40)):
                pa.RecordBatch.from_arrays(rows.columns, schema=batch.schema).validate(full=True)
        except MalformedPayload:
            continue


def test_raw_text_that_is_not_utf8_follows_the_mode():
    entries = EntryBatch.of([b"good", b"\xff", b"fine"], 9, 40)
    schema = pa.schema([("value", pa.string())])
    with pytest.raises(MalformedPayload, match="ledger 9 entry 41"):
        decoded("raw", entries, schema)
    assert decoded("raw", entries, schema, MalformedMode.PERMISSIVE).column(0).to_pylist() == ["good", None, "fine"]
    assert decoded("raw", entries, schema, MalformedMode.DROPMALFORMED).column(0).to_pylist() == ["good", "fine"]
    kept = schema.append(pa.field("_corrupt_record", pa.binary()))
    assert decoded("raw", entries, kept, MalformedMode.PERMISSIVE).column(1).to_pylist() == [None, b"\xff", None]
    assert decoded("raw", entries, kept, MalformedMode.DROPMALFORMED).column(1).to_pylist() == [None, None]
    alone = pa.schema([("_corrupt_record", pa.string()), ("value", pa.binary())])
    assert decoded("raw", entries, alone, MalformedMode.PERMISSIVE).column(0).to_pylist() == [None, None, None]


@pytest.mark.parametrize("format_name", FORMATS)
def test_member_called_corrupt_record_is_kept_beside_malformed_payloads(format_name):
    schema = pa.schema({"a": pa.int64(), "_corrupt_record": pa.string()})
    mine = encoded(format_name, pa.record_batch([pa.array([1]), pa.array(["mine"])], schema=schema))[0]
    found = decoded(format_name, EntryBatch.of([mine, b"bad!"], 9), schema, MalformedMode.PERMISSIVE)
    assert found.to_pylist() == [{"a": 1, "_corrupt_record": "mine"}, {"a": None, "_corrupt_record": "bad!"}]


def _not_null(kind: pa.DataType, name: str) -> pa.Field:
    return pa.field(name, kind, nullable=False)


NOT_NULL_INSIDE = {
    "list": (pa.list_(_not_null(pa.int32(), "element")), [1], [1, None]),
    "map": (pa.map_(pa.string(), _not_null(pa.int32(), "value")), [("k", 1)], [("k", None)]),
    "struct": (pa.struct([_not_null(pa.int32(), "x")]), {"x": 1}, {"x": None}),
    "deep": (
        pa.list_(pa.struct([pa.field("m", pa.map_(pa.string(), pa.list_(_not_null(pa.int32(), "element"))))])),
        [None, {"m": None}, {"m": [("k", [1]), ("l", None)]}],
        [{"m": [("k", [1])]}, {"m": [("k", [2, None])]}],
    ),
}


@pytest.mark.parametrize("name", NOT_NULL_INSIDE)
@pytest.mark.parametrize("format_name", FORMATS)
def test_null_inside_a_type_that_forbids_it_is_malformed(format_name, name):
    """Spark would take what lies under the null for a value."""
    kind, good, bad = NOT_NULL_INSIDE[name]
    schema = pa.schema({"c": kind})
    lax = pa.schema({"c": _nullable(kind)})
    rows = [pa.record_batch([pa.array([cell], lax.field(0).type)], schema=lax) for cell in (good, None, bad, good)]
    payloads = [encoded(format_name, row)[0] for row in rows]
    found = decoded(format_name, EntryBatch.of([payloads[i] for i in (0, 1, 3)], 9), schema)
    assert found.column(0).to_pylist() == [good, None, good]
    with pytest.raises(MalformedPayload, match="ledger 9 entry 2: malformed"):
        decoded(format_name, EntryBatch.of(payloads, 9), schema)


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _nullable(field.type)) for field in kind])
    return kind


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (pa.array([[1.5, 2.5], None], pa.list_(pa.float32(), 2)), pa.list_(pa.float32())),
        (pa.array([[1.5], [None]], pa.list_(pa.float32(), 1)), pa.list_(pa.float64())),
        (pa.array([5, None], pa.duration("s")), pa.duration("us")),
        (pa.array([5, None], pa.time32("s")), pa.time64("ns")),
        (pa.array([5, None], pa.time64("us")), pa.time64("ns")),
    ],
    ids=str,
)
def test_arrow_of_other_programs_is_read_where_nothing_is_lost(written, wanted):
    batch = pa.record_batch({"c": written})
    found = decoded("arrow", encoded("arrow", batch), pa.schema({"c": wanted}))
    assert found.column(0).to_pylist() == batch.column(0).to_pylist()


@pytest.mark.parametrize(
    ("written", "wanted", "remedy"),
    [
        (pa.timestamp("ns"), pa.timestamp("us", "UTC"), "without a time zone are timestamp_ntz"),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), "with a time zone are timestamp"),
    ],
    ids=str,
)
def test_times_with_and_without_a_zone_say_which_column_takes_them(written, wanted, remedy):
    """pandas writes times without a zone."""
    entries = encoded("arrow", pa.record_batch({"c": pa.array([5], written)}))
    with pytest.raises(MalformedPayload, match=rf"column 'c' is timestamp.*is expected: times {remedy}"):
        decoded("arrow", entries, pa.schema({"c": wanted}))


def test_json_number_of_a_decimal_keeps_every_digit():
    schema = pa.schema([("d", pa.decimal128(38, 10))])
    entries = EntryBatch.of([b'{"d": 1234567890123456789012345678.0123456789}'], 9, 40)
    assert decoded("json", entries, schema).column(0).to_pylist() == [
        Decimal("1234567890123456789012345678.0123456789")
    ]


def test_schema_is_read_off_an_arrow_entry():
    batch = columns_batch()
    assert schema_of(encoded("arrow", batch)[0]) == batch.schema
    with pytest.raises(ValueError, match="not an Arrow IPC stream"):
        schema_of(b"{}")


def test_columns_of_json_and_msgpack_are_read_off_the_first_entries():
    moment = datetime(2026, 11, 21, 5, 6, 7, 89, tzinfo=UTC)
    rows = [
        {"z": 1, "text": "x", "list": [], "never": None, "flag": True, "float": "NaN", "word": "NaN"},
        {"z": 2.5, "float": -1, "text": None, "list": [{"k": None}], "late": {"deep": [1]}},
    ]
    found = columns_of("json", [json.dumps(row).encode() for row in rows])
    assert found == pa.schema(
        {
            "z": pa.float64(),
            "text": pa.string(),
            "list": pa.list_(pa.struct({"k": pa.string()})),
            "never": pa.string(),
            "flag": pa.bool_(),
            "float": pa.float64(),
            "word": pa.string(),
            "late": pa.struct({"deep": pa.list_(pa.int64())}),
        }
    )
    packed = columns_of("msgpack", [msgpack.packb({"b": b"1", "at": moment, "n": -1}, datetime=True)])
    assert packed == pa.schema({"b": pa.binary(), "at": UTC_TIME, "n": pa.int64()})


@pytest.mark.parametrize("format_name", FORMATS)
def test_columns_are_read_off_what_is_well_formed_where_the_mode_lets_the_rest_be(format_name):
    bad = [b"", b"\xc1", b"5", b'{"a": "\\ud800"}']
    for mode in (MalformedMode.PERMISSIVE, MalformedMode.DROPMALFORMED):
        assert columns_of(format_name, [*bad, good_payload(format_name), *bad], mode).names == ["a", "b"]
        with pytest.raises(ValueError, match=r"none of them is an object|not an Arrow IPC stream"):
            columns_of(format_name, bad, mode)
    with pytest.raises(ValueError, match=r"incomplete input|JSONDecodeError|not an Arrow IPC stream"):
        columns_of(format_name, [*bad, good_payload(format_name)])


def test_msgpack_array_holds_a_cell_for_each_column_of_the_schema():
    entries = EntryBatch.of(
        [msgpack.packb([1, "x"]), msgpack.packb({"b": "y", "a": 2}), msgpack.packb([None, None])], 9
    )
    expected = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": None, "b": None}]
    assert decoded("msgpack", entries, SCHEMA).to_pylist() == expected
    kept = SCHEMA.insert(0, pa.field("_corrupt_record", pa.binary()))
    short = msgpack.packb([1])
    found = decoded("msgpack", EntryBatch.of([msgpack.packb([1, "x"]), short], 9), kept, MalformedMode.PERMISSIVE)
    assert found.to_pylist() == [
        {"_corrupt_record": None, "a": 1, "b": "x"},
        {"_corrupt_record": short, "a": None, "b": None},
    ]
    with pytest.raises(MalformedPayload, match="an array of 1 where the schema has 2 columns"):
        decoded("msgpack", EntryBatch.of([short], 9), SCHEMA)
    (counted,) = decoder_of("msgpack", pa.schema([])).decode(EntryBatch.of([msgpack.packb([1, "x"]), short], 9))
    assert counted.count == 2


def test_columns_of_msgpack_arrays_are_numbered_as_spark_numbers_tuples():
    pairs = [msgpack.packb([1, "x"]), msgpack.packb([2, None])]
    assert columns_of("msgpack", pairs) == pa.schema({"_1": pa.int64(), "_2": pa.string()})
    for other in ([1], {"_1": 1}):
        with pytest.raises(ValueError, match="not all arrays of one size, or all maps"):
            columns_of("msgpack", [*pairs, msgpack.packb(other)])


@pytest.mark.parametrize(
    ("payloads", "reason"),
    [
        ([b'{"a": 1}', b'{"a": "x"}'], "column 'a' has values of several types"),
        ([b'{"a": 1267650600228229401496703205376}'], "column 'a' has values of several types"),
        ([b"[1]"], "holds a list"),
        ([b"{"], "JSONDecodeError"),
        ([b"\xff"], "UnicodeDecodeError"),
    ],
)
def test_entries_that_do_not_give_columns_say_why(payloads, reason):
    with pytest.raises(ValueError, match=reason):
        columns_of("json", payloads)


def test_raw_text_that_no_read_of_text_takes_is_not_written():
    """Spark's strings may hold any bytes."""
    batch = pa.record_batch([pa.array([b"a", b"\xffA"], pa.binary()).view(pa.string())], ["value"])
    with pytest.raises(MalformedPayload, match=r"column 'value' cannot be read back .*: cast it to binary"):
        list(encoder_of("raw", batch.schema, 1 << 20, 1 << 22).encode(batch))


@pytest.mark.parametrize("mode", list(MalformedMode))
def test_entries_among_malformed_ones_are_what_each_is_by_itself(mode):
    chance = random.Random(7)
    schema = pa.schema({"a": pa.int64(), "_corrupt_record": pa.string()})
    for count in (1, 16, 17, 200):
        for share in (0.0, 0.02, 0.5, 1.0):
            wrong = [b"bad", b'{"a":"x"}', b"[1]"]
            payloads = [chance.choice(wrong) if chance.random() < share else b'{"a":%d}' % i for i in range(count)]
            decoder = decoder_of("json", schema, mode)
            entries = EntryBatch.of(payloads, ledger_id=9, first_entry=40)
            first_wrong = next((i for i, payload in enumerate(payloads) if payload in wrong), None)
            if mode is MalformedMode.FAILFAST and first_wrong is not None:
                with pytest.raises(MalformedPayload, match=f"ledger 9 entry {40 + first_wrong}:"):
                    list(decoder.decode(entries))
                continue
            rows, numbers = [], []
            for piece in decoder.decode(entries):
                rows += zip(*(column.to_pylist() for column in piece.columns))
                numbers += range(count) if piece.entry_of_row is None else piece.entry_of_row().tolist()
            kept = [i for i in range(count) if mode is MalformedMode.PERMISSIVE or payloads[i] not in wrong]
            assert numbers == kept
            assert rows == [(None, payloads[i].decode()) if payloads[i] in wrong else (i, None) for i in kept]
