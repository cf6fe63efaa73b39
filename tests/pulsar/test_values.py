"""Values by the topic's schema: what is not covered by reading a topic as a whole."""

from __future__ import annotations

import base64
import io
import json
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from bkspark.errors import ConfigurationError
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.avro import arrow_of_avro
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.values import decoder_of, key_value_decoder
from tests.pulsar.native_schemas import native


def test_protobuf_messages_are_structs_and_absent_fields_null() -> None:
    message = formats.ManagedLedgerInfo()
    message.ledgerInfo.add(ledgerId=5, entries=7)
    message.properties.add(key="a", value="b")
    schema = native("ManagedLedgerInfo")
    found = decoder_of(schema)(pa.array([message.SerializeToString(), None, b""]))
    assert found.type == schema.arrow_type()
    first, absent, empty = found.to_pylist()
    assert (first["ledgerInfo"][0]["ledgerId"], first["ledgerInfo"][0]["size"]) == (5, None)
    assert first["properties"] == [{"key": "a", "value": "b"}]
    assert (absent, empty["terminatedPosition"], empty["ledgerInfo"]) == (None, None, [])
    with pytest.raises(ValueError, match="not a bkspark"):
        decoder_of(schema)(pa.array([b"\xff\xff"]))


def test_protobuf_message_that_holds_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="holds itself"):
        native("MessageIdData").arrow_type()
    with pytest.raises(ConfigurationError, match="valueFormat=raw"):
        Schema(0, "PROTOBUF_NATIVE", b"{}").arrow_type()


def message_of(*fields: FieldDescriptorProto, name: str = "M") -> DescriptorProto:
    return DescriptorProto(name=name, field=fields)


def schema_of(*messages: DescriptorProto) -> Schema:
    """Return the PROTOBUF_NATIVE schema of the last of some messages."""
    file = FileDescriptorProto(name="m.proto", package="p", syntax="proto3", message_type=messages)
    stored = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return Schema(
        0,
        "PROTOBUF_NATIVE",
        json.dumps({"fileDescriptorSet": stored, "rootMessageTypeName": f"p.{messages[-1].name}"}).encode(),
    )


def nested(number: int, of: int, *, deep: bool = False) -> DescriptorProto:
    """Return a message that holds another one several times."""
    inner = {"type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": f".p.M{of}"} if of >= 0 else {"type": 5}
    count = 1 if deep else 10
    fields = [FieldDescriptorProto(name=f"f{place}", number=place + 1, label=1, **inner) for place in range(count)]
    return message_of(*fields, name=f"M{number}")


def test_protobuf_message_of_too_many_types_or_too_deep_is_refused_at_once() -> None:
    """Each message names the one before it ten times: Spark would have 10**9 columns."""
    with pytest.raises(ConfigurationError, match=r"more than 10000 types.*valueFormat=raw"):
        schema_of(*(nested(number, number - 1) for number in range(9))).arrow_type()
    with pytest.raises(ConfigurationError, match=r"within each other.*valueFormat=raw"):
        schema_of(*(nested(number, number - 1, deep=True) for number in range(400))).arrow_type()


def test_maps_of_protobuf_have_keys_of_every_type() -> None:
    entry = message_of(
        FieldDescriptorProto(name="key", number=1, label=1, type=FieldDescriptorProto.TYPE_UINT64),
        FieldDescriptorProto(name="value", number=2, label=1, type=FieldDescriptorProto.TYPE_BOOL),
        name="FEntry",
    )
    entry.options.map_entry = True
    message = message_of(
        FieldDescriptorProto(
            name="f", number=1, label=3, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".p.M.FEntry"
        )
    )
    message.nested_type.append(entry)
    octets = b"\x0a\x0d" + b"\x08" + b"\xff" * 9 + b"\x01" + b"\x10\x01"
    ((key, value),) = decoder_of(schema_of(message))(pa.array([octets])).to_pylist()[0]["f"]
    assert (key, value) == ((1 << 64) - 1, True)


@pytest.mark.parametrize("kind", ["INSTANT", "LOCAL_DATE_TIME"])
@pytest.mark.parametrize("whole", [-(1 << 63), (1 << 63) - 1])
def test_time_beyond_all_times_is_refused_and_not_another_time(kind: str, whole: int) -> None:
    octets = struct.pack(">qi" if kind == "INSTANT" else ">qq", whole, 0)
    with pytest.raises(ValueError, match="beyond the range"):
        decoder_of(Schema(0, kind))(pa.array([octets]))


@pytest.mark.parametrize(
    ("avro", "wanted"),
    [
        ("long", pa.int64()),
        (["null", "string"], pa.string()),
        (["int", "long"], pa.int64()),
        (["float", "double"], pa.float64()),
        (["null", "int", "string"], pa.struct({"member0": pa.int32(), "member1": pa.string()})),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("us", "UTC")),
        ({"type": "long", "logicalType": "unknown"}, pa.int64()),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2)),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.string()),
        ({"type": "array", "items": {"type": "map", "values": "int"}}, pa.list_(pa.map_(pa.string(), pa.int32()))),
    ],
)
def test_types_of_avro_are_those_of_spark(avro: Any, wanted: pa.DataType) -> None:
    assert arrow_of_avro(avro) == wanted


def test_record_that_holds_itself_is_refused() -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "left", "type": ["null", "T"]}]}
    with pytest.raises(ConfigurationError, match="holds itself"):
        arrow_of_avro(tree)


RICH = {
    "type": "record",
    "name": "R",
    "namespace": "n",
    "fields": [
        {"name": "u", "type": ["null", "int", "string"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "t", "type": {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros"}}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "raw", "type": "bytes"},
    ],
}


def test_unions_decimals_maps_and_times_of_avro_come_out_as_they_were_written() -> None:
    fastavro = pytest.importorskip("fastavro")
    record = {"u": "x", "d": Decimal("1.25"), "m": {"a": 1}, "t": [1_500_000], "day": 365, "raw": b"\xff"}
    plain = json.loads(json.dumps(RICH))
    for field in plain["fields"][3:5]:
        field["type"].get("items", field["type"]).pop("logicalType")
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), record)
    schema = Schema(0, "AVRO", json.dumps(RICH).encode())
    (found,) = decoder_of(schema)(pa.array([stream.getvalue()])).to_pylist()
    assert found["u"] == {"member0": None, "member1": "x"}
    assert (found["d"], found["m"], found["raw"]) == (Decimal("1.25"), [("a", 1)], b"\xff")
    assert (found["t"][0].timestamp(), str(found["day"])) == (1.5, "1971-01-01")
    for wrong in (stream.getvalue() + b"\0", stream.getvalue()[:-1], b""):
        with pytest.raises(ValueError, match=r"record|follow"):
            decoder_of(schema)(pa.array([wrong]))


@pytest.mark.parametrize(
    "value",
    [
        b"[1]", b"{", b"\xff", b"",
        b'{"i": "x"}', b'{"i": 99999999999}', b'{"i": 1.5}', b'{"i": 1e300}', b'{"i": true}',
        b'{"i": NaN}', b'{"a": "xy"}', b'{"a": {}}', b'{"a": [1.5]}', b'{"r": []}', b'{"r": [["n", 1]]}', b'{"r": "n"}',
        b'{"m": []}', b'{"b": "?"}', b'{"d": 1.5}', b'{"i": 1}{"i": 2}',
    ],
)  # fmt: skip
def test_json_that_is_not_of_its_schema_is_refused(value: bytes) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]}
    kinds = {
        "i": "int", "a": {"type": "array", "items": "int"}, "r": inner, "m": {"type": "map", "values": "int"},
        "b": "bytes", "d": {"type": "int", "logicalType": "date"},
    }  # fmt: skip
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields}).encode()
    with pytest.raises((ValueError, TypeError, pa.ArrowException)):
        decoder_of(Schema(0, "JSON", definition))(pa.array([value]))


def test_integer_of_json_may_be_written_with_a_fraction_of_zero() -> None:
    fields = [{"name": "i", "type": "int"}, {"name": "f", "type": ["int", "double"]}, {"name": "d", "type": "double"}]
    schema = Schema(0, "JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode())
    first, second = decoder_of(schema)(pa.array([b'{"i": 1.0, "f": 2.0, "d": 1, "x": 1e999}', b'{"i": 5}'])).to_pylist()
    assert first == {"i": 1, "f": {"member0": None, "member1": 2.0}, "d": 1.0}
    assert second == {"i": 5, "f": None, "d": None}


def test_enum_of_json_may_be_a_number_which_pythons_client_writes() -> None:
    """It writes the value of the member of Python's enum, which the schema does not have."""
    kind = {"type": "enum", "name": "Color", "symbols": ["red", "green"]}
    fields = [{"name": "e", "type": ["null", kind]}, {"name": "all", "type": {"type": "array", "items": "Color"}}]
    schema = Schema(0, "JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode())
    values = [b'{"e": 5, "all": ["red", 1]}', b'{"e": "green"}']
    assert decoder_of(schema)(pa.array(values)).to_pylist() == [
        {"e": "5", "all": ["red", "1"]},
        {"e": "green", "all": None},
    ]
    for wrong in (b'{"e": true}', b'{"e": 1.5}', b'{"e": ["red"]}'):
        with pytest.raises((ValueError, TypeError, pa.ArrowException)):
            decoder_of(schema)(pa.array([wrong]))


@pytest.mark.parametrize(
    ("kind", "stored", "wanted"),
    [
        ("DATE", struct.pack(">q", -1), "1969-12-31"),
        ("DATE", struct.pack(">q", -86_400_000), "1969-12-31"),
        ("DATE", struct.pack(">q", -86_400_001), "1969-12-30"),
        ("DATE", struct.pack(">q", 86_399_999), "1970-01-01"),
        ("TIMESTAMP", struct.pack(">q", -1), "1969-12-31 23:59:59.999000+00:00"),
        ("INSTANT", struct.pack(">qi", -1, 999_999_999), "1969-12-31 23:59:59.999999+00:00"),
        ("LOCAL_DATE", struct.pack(">q", -1), "1969-12-31"),
        ("LOCAL_DATE_TIME", struct.pack(">qq", -1, 86_399_999_999_999), "1969-12-31 23:59:59.999999"),
    ],
)
def test_times_before_1970_are_those_before_and_not_after(kind: str, stored: bytes, wanted: str) -> None:
    assert str(decoder_of(Schema(0, kind))(pa.array([stored])).to_pylist()[0]) == wanted


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        struct.pack(">i", 5),
        struct.pack(">i", -2),
        struct.pack(">ii", -2, -1),
        struct.pack(">ii", -1, -2),
        struct.pack(">ii", -1, -1) + b"x",
    ],
)
def test_key_value_that_is_cut_or_too_long_is_refused(payload: bytes) -> None:
    schema = Schema(0, "KEY_VALUE", b"", {}, Schema(0, "STRING"), Schema(0, "STRING"))
    with pytest.raises(ValueError):
        key_value_decoder(schema, schema)(pa.array([payload]), pa.array([None], pa.binary()))


def test_empty_part_of_a_key_value_is_empty_and_one_of_size_minus_one_is_null() -> None:
    schema = Schema(0, "KEY_VALUE", b"", {}, Schema(0, "STRING"), Schema(0, "BYTES"))
    payloads = [
        struct.pack(">ii", 0, 0),
        struct.pack(">ii", -1, 0),
        struct.pack(">ii", 0, -1),
        struct.pack(">ii", -1, -1),
    ]
    found = key_value_decoder(schema, schema)(pa.array(payloads), pa.nulls(4, pa.binary())).to_pylist()
    assert [(row["key"], row["value"]) for row in found] == [("", b""), (None, b""), ("", None), (None, None)]


@pytest.mark.parametrize(
    ("written", "newest"),
    [(("STRING", "INT64"), ("STRING", "TIMESTAMP")), (("TIME", "INT8"), ("LOCAL_TIME", "INT8"))],
)
def test_part_of_a_key_value_of_another_type_is_not_taken_for_one_of_the_newest(
    written: tuple[str, str], newest: tuple[str, str]
) -> None:
    """The number of ms would be one of µs, or of ns."""
    old, new = (
        Schema(version, "KEY_VALUE", b"", {}, Schema(version, key), Schema(version, value))
        for version, (key, value) in enumerate((written, newest))
    )
    with pytest.raises(ValueError, match=r"was written with a schema of (INT64|TIME), but the topic's newest is"):
        key_value_decoder(old, new)


def of_json(kind: Any, text: str) -> Any:
    fields = [{"name": "a", "type": "int"}, {"name": "f", "type": kind}]
    schema = Schema(0, "JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode())
    return decoder_of(schema)(pa.array([f'{{"a": 1, "f": {text}}}'.encode()])).to_pylist()


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


@pytest.mark.parametrize(("kind", "text", "why"), [
    ("string", "5", "its field 'f' is '5', which cannot be string"),
    ("int", "2147483648", "its field 'f' is '2147483648', which cannot be int32"),
    ("long", '"x"', "its field 'f' is 'x', which cannot be int64"),
    ({"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]}, '{"n": "x"}',
     r"its field 'f' is .*'n': 'x'.*, which cannot be struct<n: int32>"),
    (DECIMAL, "1000", "its field 'f' is '1000', which cannot be decimal128"),
    (DECIMAL, '"x"', "it holds 'x' where a decimal is expected"),
    ("bytes", '"?"', "it holds a text that is not Base64"),
    ("bytes", "5", "it holds a int where JSON's string is expected"),
])  # fmt: skip
def test_value_of_json_that_does_not_fit_is_named_with_its_field(kind: Any, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        of_json(kind, text)
