"""Values of JSON schemas as Jackson writes them in Pulsar 4.0.7, from `JSONSchema.encode` of Java objects."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from bkspark.pulsar.malformed import MALFORMED
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.values import decoder_of

NOON = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DAY = {"type": "int", "logicalType": "date"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-millis"}
TIME = {"type": "int", "logicalType": "time-millis"}
BIG = {"type": "string", "java-class": "java.math.BigDecimal"}
CHARACTER = {"type": "int", "java-class": "java.lang.Character"}
DATE = {"type": "record", "name": "Date", "namespace": "java.util", "fields": []}


def read(kind: Any, *values: str) -> list[Any]:
    """Return the values of a field that Java may leave out."""
    fields = [{"name": "f", "type": ["null", kind], "default": None}]
    schema = Schema(0, "JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode())
    found = decoder_of(schema)(pa.array([f'{{"f":{value}}}'.encode() for value in values]))
    return [row["f"] for row in found.to_pylist()]


def test_an_object_of_java_is_read_as_it_was_written() -> None:
    fields = [
        {"name": "ch", "type": CHARACTER}, {"name": "day", "type": ["null", DAY]},
        {"name": "dec", "type": ["null", BIG]}, {"name": "inst", "type": ["null", MICROS]},
        {"name": "ldt", "type": ["null", LOCAL]},
        {"name": "lt", "type": ["null", TIME]}, {"name": "ud", "type": ["null", DATE]},
        {"name": "uuid", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
    ]  # fmt: skip
    schema = Schema(0, "JSON", json.dumps({"type": "record", "name": "X", "namespace": "S", "fields": fields}).encode())
    written = (
        b'{"inst":1577934245.678901000,"ud":1577934245678,"day":[2020,1,2],"ts":1577934245678,"dec":1.25,"uuid":'
        b'"00000000-0000-0001-0000-000000000002","ch":"c","ldt":[2020,1,2,3,4,5],"lt":[1,2,3]}'
    )
    assert decoder_of(schema)(pa.array([written])).to_pylist() == [{
        "ch": 99, "day": date(2020, 1, 2), "dec": "1.25", "inst": NOON.replace(microsecond=678_901),
        "ldt": 1_577_934_245_000, "lt": 3_723_000, "ud": NOON.replace(microsecond=678_000),
        "uuid": "00000000-0000-0001-0000-000000000002",
    }]  # fmt: skip


@pytest.mark.parametrize("kind", [MILLIS, MICROS])
def test_an_instant_is_in_seconds_and_a_number_is_what_the_schema_says(kind: dict) -> None:
    """A whole second has digits after the point, too, and is not a number of milliseconds."""
    number = 1_577_934_245_000 if kind is MILLIS else 1_577_934_245_000_000
    assert read(kind, "1577934245.000000000", "0.0", "-0.500000000", f"{number}", f"{number}.0") == [
        NOON, datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(-0.5, UTC), NOON, NOON,
    ]  # fmt: skip
    step = -0.001 if kind is MILLIS else -0.000001
    assert read(kind, "-0.000000001", "-1E-9", "1E-9") == [
        datetime.fromtimestamp(step, UTC), datetime.fromtimestamp(step, UTC), datetime.fromtimestamp(0, UTC),
    ]  # fmt: skip


def test_dates_of_java_are_read_though_their_schema_says_records_without_fields() -> None:
    """As `JSONSchema.encode` writes them; a class that occurs again is only named."""
    date, stamp = {"type": "record", "name": "Date", "namespace": "java.util", "fields": []}, {"namespace": "java.sql"}
    fields = [
        {"name": "by", "type": ["null", {"type": "map", "values": date}]},
        {"name": "d", "type": ["null", "java.util.Date"]},
        {"name": "many", "type": ["null", {"type": "array", "items": "java.util.Date"}]},
        {"name": "ts", "type": ["null", {**date, **stamp, "name": "Timestamp"}]},
        {"name": "sd", "type": ["null", {**date, **stamp}]},
        {"name": "st", "type": ["null", {**date, **stamp, "name": "Time"}]},
        {"name": "c", "type": ["null", {**date, "name": "Calendar"}]},
    ]
    schema = Schema(0, "JSON", json.dumps({"type": "record", "name": "P", "namespace": "D", "fields": fields}).encode())
    written = (
        b'{"d":1577934245000,"many":[-1,null],"by":{"k":7},"ts":1577934245678,"sd":1577934245678,"st":"01:00:00","c":5}'
    )
    millis = NOON.replace(microsecond=678_000)
    assert decoder_of(schema)(pa.array([written, b"{}"])).to_pylist() == [
        {
            "by": [("k", datetime.fromtimestamp(0.007, UTC))], "d": NOON,
            "many": [datetime.fromtimestamp(-0.001, UTC), None], "ts": millis, "sd": millis, "st": "01:00:00",
            "c": datetime.fromtimestamp(0.005, UTC),
        },
        dict.fromkeys(("by", "d", "many", "ts", "sd", "st", "c")),
    ]  # fmt: skip


def test_record_of_another_class_without_fields_stays_one() -> None:
    assert read({"type": "record", "name": "Date", "namespace": "mine", "fields": []}, "{}", "5") == [{}, {}]
    own = {"type": "record", "name": "Date", "namespace": "java.util", "fields": [{"name": "n", "type": "int"}]}
    assert read(own, '{"n": 1}') == [{"n": 1}]


@pytest.mark.parametrize(
    ("kind", "written", "wanted"),
    [
        ("string", ['"a"', "null", '""'], ["a", None, ""]),
        ({"type": "string", "avro.java.string": "String"}, ['"a"'], ["a"]),
        ("int", ["1", "-2"], [1, -2]),
        ("double", ["1.5", '"Infinity"', "2"], [1.5, float("inf"), 2.0]),
        ("boolean", ["true"], [True]),
        ("bytes", ['"YQ=="'], [b"a"]),
        ({"type": "array", "items": ["null", "string"]}, ['["a",null]', "[]"], [["a", None], []]),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, ['"A"'], ["A"]),
        (DATE, ["1577934245000"], [NOON]),
    ],
)
def test_class_that_is_not_a_record_is_one_value(kind: Any, written: list[str], wanted: list[Any]) -> None:
    """`Schema.JSON(String.class)` and the like: the definition is the Avro schema of one value."""
    schema = Schema(0, "JSON", json.dumps(kind).encode())
    found = decoder_of(schema)(pa.array([each.encode() for each in written]))
    assert found.type == schema.arrow_type()
    assert found.to_pylist() == wanted


@pytest.mark.parametrize(
    ("kind", "written"),
    [("string", "1"), ("string", "{}"), ("int", "true"), ("int", '"1"'), ("boolean", "1"), ("double", '"1"')],
)
def test_value_of_another_type_than_the_one_of_its_schema_is_malformed(kind: str, written: str) -> None:
    with pytest.raises(MALFORMED):
        decoder_of(Schema(0, "JSON", json.dumps(kind).encode()))(pa.array([written.encode()]))


def test_times_of_arrays_and_lists_are_those_of_their_items() -> None:
    assert read({"type": "array", "items": DAY}, "[[2020,1,2],18263]") == [[date(2020, 1, 2), date(2020, 1, 2)]]
    assert read({"type": "array", "items": MICROS}, "[1.000001000,5]") == [
        [datetime.fromtimestamp(0, UTC).replace(second=1, microsecond=1), datetime.fromtimestamp(0.000005, UTC)]
    ]
    assert read(LOCAL, "[2020,1,2,3,4]", "[1969,12,31,23,59,59,999999999]", "7") == [1_577_934_240_000, -1, 7]
    assert read({"type": "long", "logicalType": "time-micros"}, "[0,0,0,1000]", "[23,59]") == [1, 86_340_000_000]
    assert read(BIG, "123456789012345678901234567890.5", '"1.5"', "5") == [
        "123456789012345678901234567890.5",
        "1.5",
        "5",
    ]
    assert read({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "1.25") == [Decimal("1.25")]


@pytest.mark.parametrize(("kind", "value"), [
    (DAY, "[2020,13,1]"), (DAY, "[2020,1]"), (DAY, '["2020",1,1]'), (DAY, "[2020,1.0,1]"), (DAY, '"2020-01-02"'),
    (LOCAL, "[2020,1,2]"), (LOCAL, "[2020,1,2,24,0]"), (TIME, "[1]"), (TIME, "[1,2,3,4,5]"), (TIME, "[-1,0]"),
    (TIME, "[0,0,0,1000000000]"), (TIME, "[true,0]"), (MICROS, "1.5"), (MICROS, "99999999999999999999.000000000"),
    (MICROS, '"2020-01-02T03:04:05Z"'), (CHARACTER, '"cc"'), (DATE, '"x"'), (BIG, "true"),
    ("string", "1.25"), ("int", '"c"'),
])  # fmt: skip
def test_what_is_in_no_form_of_java_is_malformed(kind: Any, value: str) -> None:
    with pytest.raises(MALFORMED):
        read(kind, value)
