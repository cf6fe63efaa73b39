"""Values by the topic's schema: what is not covered by reading a topic as a whole."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from bkspark.errors import ConfigurationError
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.schemas import Schema, arrow_of_avro
from bkspark.pulsar.values import decoder_of


def native(name: str) -> Schema:
    """Return the PROTOBUF_NATIVE schema of one of our own messages, as Pulsar stores it."""
    file = FileDescriptorProto()
    formats.DESCRIPTOR.CopyToProto(file)
    stored = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    definition = {
        "fileDescriptorSet": stored,
        "rootMessageTypeName": f"bkspark.pulsar.{name}",
        "rootFileDescriptorName": file.name,
    }
    return Schema(0, "PROTOBUF_NATIVE", json.dumps(definition).encode())


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
    import io
    from decimal import Decimal

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


@pytest.mark.parametrize("value", [b"[1]", b"{", b"\xff", b'{"i": "x"}', b'{"i": 99999999999}'])
def test_json_that_is_not_of_its_schema_is_refused(value: bytes) -> None:
    definition = b'{"type": "record", "name": "R", "fields": [{"name": "i", "type": "int"}]}'
    with pytest.raises((ValueError, TypeError, pa.ArrowException)):
        decoder_of(Schema(0, "JSON", definition))(pa.array([value]))


@pytest.mark.parametrize(
    "payload", [b"", struct.pack(">i", 5), struct.pack(">i", -2), struct.pack(">ii", -1, -1) + b"x"]
)
def test_key_value_that_is_cut_or_too_long_is_refused(payload: bytes) -> None:
    from bkspark.pulsar.values import key_value_of

    schema = Schema(0, "KEY_VALUE", b"", {}, Schema(0, "STRING"), Schema(0, "STRING"))
    with pytest.raises(ValueError):
        key_value_of(schema, schema, pa.array([payload]), pa.array([None], pa.binary()))
