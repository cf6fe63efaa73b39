"""Rows of entries that a task has read, without a cluster: schemas, chunks and encryption beside malformed entries."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, MapType, StringType, StructType

from bkspark.entries import EntryBatch
from bkspark.errors import MalformedPayload
from bkspark.pulsar.pulsar_formats_pb2 import MessageIdData, MessageMetadata
from bkspark.pulsar.schemas import Schema
from bkspark.spark.formats import decoding
from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_columns import topic_schema
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topics import TopicFacts
from tests.pulsar.entries import Message, batch, chunked, framed, metadata_of, single
from tests.spark.topic_reads import VALUE, columns_of, values

BYTES_AS_KEY = {"partition_key_b64_encoded": True}


def rows_of(
    columns: StructType,
    facts: TopicFacts,
    stored: EntryBatch,
    before: Iterable[EntryBatch] = (),
    **options: str,
) -> list[dict[str, object]]:
    """Return the rows of entries; `before`: the batches before them, the nearest first."""

    def look_back(_: str) -> Iterator[EntryBatch]:
        return iter(before)

    parsed = SourceOptions.parse({"uri": "zk://a:1/ledgers", "topic": "t", **options})
    decoder = TopicRows(columns, parsed).for_topic("t", facts, look_back)
    return [row for found in decoder.batches(stored) for row in found.to_pylist()]


def key_value(version: int, charset: str) -> Schema:
    """Return a schema whose key is the message's key, a text of this charset."""
    key = Schema(0, "STRING", properties={"__charset": charset})
    properties = {"kv.encoding.type": "SEPARATED"}
    return Schema(version, "KEY_VALUE", properties=properties, key=key, value=Schema(0, "INT32"))


def test_key_of_a_null_value_is_decoded_with_the_schema_with_which_it_was_written() -> None:
    """The newest one serves only where that one cannot be used."""
    facts = TopicFacts(schemas={0: key_value(0, "ISO-8859-1"), 1: key_value(1, "UTF-8")})
    null = Message(None, "6Q==", more=BYTES_AS_KEY)
    entry = single(null, schema_version=struct.pack(">q", 0))
    found = rows_of(columns_of("key string, value int"), facts, EntryBatch.of([entry], 1))
    assert found == [{"key": "\xe9", "value": None}]


def test_keys_stay_with_their_values_where_few_rows_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CELLS_MAX", 8)
    facts = TopicFacts(schemas={0: key_value(0, "UTF-8")})
    messages = [
        Message(struct.pack(">i", number), base64.b64encode(b"k%d" % number).decode(), more=BYTES_AS_KEY)
        for number in range(9)
    ]
    stored = EntryBatch.of([batch(messages, schema_version=struct.pack(">q", 0))], 1)
    found = rows_of(columns_of("key string, value int"), facts, stored)
    assert found == [{"key": f"k{number}", "value": number} for number in range(9)]


def test_chunks_that_many_malformed_entries_separate_are_found_in_order() -> None:
    """Each of these entries is wrong in another place, so the entries before the task's are examined in parts."""
    first, second, last = chunked(Message(b"abc"), 1, 1)
    head = metadata_of().SerializeToString()
    wrong = [head + b"\x20\x01" * steps + b"\x0c" for steps in range(20)]
    malformed = [struct.pack(">I", len(fields)) + fields for fields in wrong]
    before = EntryBatch.of([first, *malformed, second], 1)
    stored = EntryBatch.of([last], 1, len(before))
    assert values(rows_of(columns_of(VALUE), TopicFacts(), stored, [before])) == [b"abc"]


def test_id_of_a_message_in_chunks_names_the_partition_also_for_its_first_chunk() -> None:
    stored = EntryBatch.of(chunked(Message(b"ab"), 1, 1), 1)
    (row,) = rows_of(columns_of("__messageId binary"), TopicFacts(partition=3), stored)
    octets = row["__messageId"]
    assert isinstance(octets, bytes)
    found = MessageIdData.FromString(octets)
    assert (found.partition, found.first_chunk_message_id.partition) == (3, 3)


SEALED = framed(metadata_of(num_messages_in_batch=1, encryption_keys=[{"key": "k", "value": b"s"}]), b"sealed")
"""A batch that is encrypted."""


def test_encrypted_messages_of_a_topic_with_a_schema_have_an_id_without_their_values() -> None:
    facts = TopicFacts(schemas={0: Schema(0, "INT32")})
    found = rows_of(columns_of("__entryId bigint"), facts, EntryBatch.of([SEALED], 1, 5), encrypted="raw")
    assert found == [{"__entryId": 5}]


def test_few_entries_beside_many_malformed_ones_are_as_they_are_without_them() -> None:
    """Most entries have a property that is not UTF-8. The others are of a batch, in chunks, and encrypted."""
    property_of_no_text = b"\x22\x06\x0a\x01k\x12\x01\xff"
    metadata = MessageMetadata.FromString(metadata_of().SerializeToString() + property_of_no_text)
    good = [batch([Message(b"1"), Message(b"2")]), *chunked(Message(b"34"), 1, 1), SEALED]
    stored = EntryBatch.of([*[framed(metadata, b"0")] * 20, *good], 1)
    columns = topic_schema(None, include_metadata=True)
    found = rows_of(columns, TopicFacts(), stored, mode="DROPMALFORMED", encrypted="raw")
    assert values(found) == [b"1", b"2", b"34", b"sealed"]


TYPES_OF_ITEMS = {
    "list": ({"type": "array", "items": "long"}, ArrayType(IntegerType()), lambda number: [number, 1]),
    "map": ({"type": "map", "values": "long"}, MapType(StringType(), IntegerType()), lambda number: {"k": number}),
    "struct": (
        {"type": "record", "name": "S", "fields": [{"name": "l", "type": {"type": "array", "items": "long"}}]},
        StructType().add("l", ArrayType(IntegerType())),
        lambda number: {"l": [number]},
    ),
    "text": ({"type": "array", "items": "string"}, ArrayType(DecimalType(10, 2)), lambda number: [f"{number}.5"]),
}


@pytest.mark.parametrize("name", TYPES_OF_ITEMS)
def test_value_within_a_column_that_does_not_fit_makes_its_own_message_malformed(name: str) -> None:
    """Messages of the same entry and of others keep their values, and those without a value their null."""
    avro, wanted, of_number = TYPES_OF_ITEMS[name]
    fields = [{"name": "n", "type": ["null", avro]}, {"name": "id", "type": "int"}]
    schema = Schema(0, "JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode())
    numbers = [1, 2, 10**12, None, 4, 10**13, 6, None]
    bodies = [
        Message(json.dumps({"n": None if number is None else of_number(number), "id": place}).encode())
        for place, number in enumerate(numbers)
    ]
    version = struct.pack(">q", 0)
    columns = StructType().add("id", "integer").add("n", wanted)
    stored = EntryBatch.of(
        [batch(bodies[:5], schema_version=version), *(single(each, schema_version=version) for each in bodies[5:])], 1
    )

    def read(mode: str) -> list[tuple[object, object]]:
        found = rows_of(columns, TopicFacts(schemas={0: schema}), stored, mode=mode)
        return [(row["id"], row["n"] is not None) for row in found]

    good = [(place, number is not None) for place, number in enumerate(numbers) if number is None or number < 10**9]
    assert read("DROPMALFORMED") == good
    assert read("PERMISSIVE") == [good[0], good[1], (None, False), *good[2:4], (None, False), *good[4:]]
    with pytest.raises(MalformedPayload, match=r"message 1:0:-1:2: malformed: its 'n' is "):
        read("FAILFAST")
