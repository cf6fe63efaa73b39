"""Schemas of topics beside those that are as they should be: versions that differ, are gone, or say nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from bkspark.blocking import Client
from bkspark.errors import ConfigurationError, MalformedPayload, MetadataFormat
from bkspark.pulsar.schemas import Schema
from bkspark.pulsar.values import decoder_of
from tests.cluster import Cluster
from tests.pulsar.entries import Message, batch, single
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import columns_of, values

pytestmark = pytest.mark.cluster

STRING, INT64 = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_INT64
PAIR = {"key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": "INLINE"}


def version(number: int) -> dict[str, bytes]:
    return {"schema_version": number.to_bytes(8)}


# ---- null ----


@pytest.mark.parametrize("schema", [("INT32", b"", {}), ("KEY_VALUE", bytes(8), PAIR)])
def test_null_value_needs_no_schema(topic: StoredTopic, read: Callable, schema: tuple) -> None:
    """A tombstone may come from a producer without the schema, and is null by any."""
    topic.schemas(schema)
    topic.ledger([single(Message(None, "k")), batch([Message(None, "k"), Message(None)], **version(7))])
    assert values(read()) == [None, None, None]
    with_value = topic.ledger([single(Message(b"\0\0\0\1"))])
    with pytest.raises(MalformedPayload, match=f"message {with_value}:0: .*written without a schema"):
        read()


# ---- text ----


@pytest.mark.parametrize("charset", ["UTF-16", "UTF-16BE", "UTF-16LE", "ISO-8859-1", "US-ASCII", "utf8"])
def test_text_is_of_the_charset_that_its_schema_names(topic: StoredTopic, read: Callable, charset: str) -> None:
    text = "hello" if charset == "US-ASCII" else "häl"
    topic.schemas(("STRING", b"", {"__charset": charset}))
    topic.ledger([batch([Message(text.encode(charset)), Message(None)], **version(0))])
    assert values(read()) == [text, None]


def test_text_of_a_charset_that_is_not_known_is_bytes(topic: StoredTopic, read: Callable) -> None:
    topic.schemas(("STRING", b"", {"__charset": "zip"}))
    topic.ledger([single(Message(b"x"), **version(0))])
    assert values(read()) == [b"x"]


def test_text_that_is_not_of_its_charset_does_what_mode_says(topic: StoredTopic, read: Callable) -> None:
    topic.schemas(("STRING", b"", {"__charset": "UTF-16LE"}))
    topic.ledger([batch([Message(b"x"), Message(b"x\0")], **version(0))])
    assert values(read(mode="DROPMALFORMED")) == ["x"]


# ---- JSON of one value ----


def test_value_of_a_json_schema_that_is_not_a_record_is_in_column_value(topic: StoredTopic, read: Callable) -> None:
    topic.schemas(("JSON", b'"string"', {}))
    topic.ledger([batch([Message(b'"a"'), Message(None), Message(b"null")], **version(0))])
    assert values(read()) == ["a", None, None]
    wrong = topic.ledger([single(Message(b'{"a":1}'), **version(0))])
    with pytest.raises(MalformedPayload, match=f"message {wrong}:0: malformed"):
        read()
    assert values(read(mode="DROPMALFORMED")) == ["a", None, None]


def test_key_and_value_may_be_json_that_is_not_a_record(topic: StoredTopic, read: Callable) -> None:
    def pair(key: bytes, value: bytes) -> bytes:
        return b"".join(len(part).to_bytes(4) + part for part in (key, value))

    types = {"key.schema.type": "JSON", "value.schema.type": "JSON", "kv.encoding.type": "INLINE"}
    topic.schemas(("KEY_VALUE", pair(b'"string"', b'{"type":"array","items":"int"}'), types))
    topic.ledger([single(Message(pair(b'"k"', b"[1,2]")), **version(0))])
    ((key, value),) = [(row["key"], row["value"]) for row in read()]
    assert (key, value) == ("k", [1, 2])


# ---- what is stored of schemas ----


def test_schema_that_says_it_was_deleted_gives_bytes(topic: StoredTopic, read: Callable) -> None:
    topic.schemas(("INT32", b"", {}), ("INT32", b"", {}), deleted={1})
    topic.ledger([single(Message(b"\0\0\0\1"), **version(0))])
    assert values(read()) == [b"\0\0\0\1"]


def test_schema_whose_ledgers_are_all_gone_is_an_error_and_not_bytes(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    (ledger,) = topic.schemas(("INT32", b"", {}))
    topic.ledger([single(Message(b"\0\0\0\1"), **version(0))])
    client.delete(ledger)
    with pytest.raises(MetadataFormat, match=f"{topic.name}.*ledger {ledger}.*valueFormat=raw"):
        read()
    assert values(read(valueFormat="raw")) == [b"\0\0\0\1"]


@pytest.mark.parametrize(("schema", "why"), [
    ((99, b"", {}), "its type 99 is unknown"),
    (("KEY_VALUE", b"", {}), "it holds no schema of a key and of a value"),
    (("KEY_VALUE", bytes(8), {"key.schema.type": "ZIP"}), "the type 'ZIP' of its key is unknown"),
    (("KEY_VALUE", bytes(8), {"key.schema.properties": "["}), "the properties of its key are not a JSON object"),
])  # fmt: skip
def test_schema_that_cannot_be_read_is_an_error_with_the_remedy(
    topic: StoredTopic, read: Callable, schema: tuple, why: str
) -> None:
    topic.schemas(schema)
    topic.ledger([single(Message(b"x"), **version(0))])
    with pytest.raises(MetadataFormat, match=f"schema version 0 of {topic.name}, .*{why}: read .* valueFormat=raw"):
        read()
    assert values(read(valueFormat="raw")) == [b"x"]


def test_version_whose_ledger_is_gone_or_empty_makes_its_messages_malformed(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    gone, _, empty = topic.schemas(("STRING", b"", {}), ("STRING", b"", {}), ("STRING", b"", {}), empty={2})
    client.delete(gone)
    topic.ledger([single(Message(b"%d" % number), **version(number)) for number in (0, 1, 2)])
    with pytest.raises(MalformedPayload, match="version 0 of the topic's schema, which is not there"):
        read()
    assert values(read(mode="DROPMALFORMED")) == ["1"]
    assert empty


# ---- columns ----


def test_properties_are_a_map_of_text_and_nothing_else(cluster: Cluster, topic: StoredTopic) -> None:
    from pyspark.sql.types import LongType, MapType, StringType

    from bkspark.spark.options import SourceOptions
    from bkspark.spark.topic_read import TopicReader

    options = SourceOptions.parse({"uri": cluster.uri, "topic": str(topic.name)})
    TopicReader(columns_of("value binary").add("__messageProperties", MapType(StringType(), StringType())), options)
    with pytest.raises(ConfigurationError, match=r"__messageProperties.*map<string,string>"):
        TopicReader(columns_of("value binary").add("__messageProperties", MapType(StringType(), LongType())), options)


def record(*fields: dict) -> bytes:
    return json.dumps({"type": "record", "name": "r", "fields": list(fields)}).encode()


A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 7}


@pytest.mark.parametrize(("kind", "old", "new", "left"), [
    ("JSON", b'{"a": 1, "b": 2}', b'{"a": 3}', None), ("AVRO", b"\x02\x04", b"\x06", 7),
])  # fmt: skip
def test_column_that_the_newest_version_lacks_is_that_of_the_last_version_that_has_it(
    topic: StoredTopic, read: Callable, kind: str, old: bytes, new: bytes, left: int | None
) -> None:
    """A stream has the columns with which it began, whatever versions follow."""
    if kind == "AVRO":
        pytest.importorskip("fastavro")
    topic.schemas((kind, record(A, B), {}), (kind, record(A), {}))
    topic.ledger([single(Message(old), **version(0)), single(Message(new), 1, **version(1))])
    assert read("a integer, B integer") == [{"a": 1, "B": 2}, {"a": 3, "B": left}]
    assert read("a integer") == [{"a": 1}, {"a": 3}]
    with pytest.raises(ConfigurationError, match=r"column 'c' is not in topic .*, whose payload has a: correct"):
        read("a integer, c integer")


def test_column_of_a_version_that_cannot_be_read_is_not_looked_for_there(topic: StoredTopic, read: Callable) -> None:
    itself = record(A, {"name": "b", "type": ["null", "r"]})
    topic.schemas(("JSON", itself, {}), ("JSON", record(A), {}))
    topic.ledger([single(Message(b'{"a": 3}'), **version(1))])
    with pytest.raises(ConfigurationError, match="column 'b' is not in topic"):
        read("a integer, b integer")


# ---- protobuf ----


def native(*fields: tuple[str, int, int], root: str = "M", nested: DescriptorProto | None = None) -> bytes:
    """Return the PROTOBUF_NATIVE schema of a message of proto3 with fields of a name, number and type each."""
    message = DescriptorProto(name=root)
    for name, number, kind in fields:
        message.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if nested is not None:
        # A field of the message's own, which has the name of its type.
        message.nested_type.append(nested)
        message.field.add(
            name=nested.name,
            number=1 + len(fields),
            type=FieldDescriptorProto.TYPE_MESSAGE,
            type_name=f".p.{root}.{nested.name}",
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    file = FileDescriptorProto(name="m.proto", package="p", syntax="proto3", message_type=[message])
    stored = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return json.dumps(
        {"fileDescriptorSet": stored, "rootMessageTypeName": f"p.{root}", "rootFileDescriptorName": "m.proto"}
    ).encode()


def test_protobuf_of_an_older_version_is_read_as_protobuf_does(topic: StoredTopic, read: Callable) -> None:
    """By the numbers of fields, whatever they are called; what was not written has its default."""
    old, new = native(("a", 1, STRING)), native(("name", 1, STRING), ("n", 2, INT64))
    topic.schemas(("PROTOBUF_NATIVE", old, {}), ("PROTOBUF_NATIVE", new, {}))
    topic.ledger([
        single(Message(b"\x0a\x01x"), **version(0)), single(Message(b"\x0a\x01y\x10\x05"), **version(1)),
        single(Message(None), **version(0)),
    ])  # fmt: skip
    assert [(row["name"], row["n"]) for row in read()] == [("x", 0), ("y", 5), (None, None)]


def test_protobuf_field_that_the_newest_version_lacks_is_read_where_it_was_written(
    topic: StoredTopic, read: Callable
) -> None:
    old, new = native(("a", 1, STRING), ("n", 2, INT64)), native(("a", 1, STRING))
    topic.schemas(("PROTOBUF_NATIVE", old, {}), ("PROTOBUF_NATIVE", new, {}))
    topic.ledger([single(Message(b"\x0a\x01x\x10\x05"), **version(0)), single(Message(b"\x0a\x01y"), **version(1))])
    assert read("a string, n bigint") == [{"a": "x", "n": 5}, {"a": "y", "n": 0}]


def test_protobuf_of_an_older_version_of_another_message_is_not_read_as_this_one(
    topic: StoredTopic, read: Callable
) -> None:
    old, new = native(("a", 1, STRING), root="Old"), native(("name", 1, STRING), ("a", 2, STRING))
    topic.schemas(("PROTOBUF_NATIVE", old, {}), ("PROTOBUF_NATIVE", new, {}))
    topic.ledger([single(Message(b"\x0a\x01x"), **version(0))])
    assert [(row["name"], row["a"]) for row in read()] == [(None, "x")]


def test_protobuf_fields_are_read_whatever_python_calls_so() -> None:
    """A message of Python has attributes, too; a field may have the name of one of them, or of a keyword."""
    names = ("class", "items", "values", "DESCRIPTOR", "SerializeToString", "HasField", "None", "__class__", "fields")
    schema = Schema(0, "PROTOBUF_NATIVE", native(*((name, 1 + place, STRING) for place, name in enumerate(names))))
    row = decoder_of(schema)(pa.array([b"".join(bytes([8 * (1 + place) | 2, 1, 97 + place]) for place in range(9))]))
    assert row.to_pylist() == [dict(zip(names, "abcdefghi"))]
    inner = DescriptorProto(name="HasField")
    schema = Schema(0, "PROTOBUF_NATIVE", native(("DESCRIPTOR", 1, STRING), ("FromString", 2, STRING), nested=inner))
    assert decoder_of(schema)(pa.array([b"\x12\0"])).to_pylist() == [
        {"DESCRIPTOR": "", "FromString": "", "HasField": None},
    ]
