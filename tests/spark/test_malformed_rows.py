"""Rows for malformed entries of topics: they are made together, and are where the entries are."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import MapType, StringType

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.pulsar.pulsar_formats_pb2 import MessageMetadata
from bkspark.pulsar.schemas import Schema
from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topics import TopicFacts
from tests.pulsar.entries import Message, batch, chunked, framed, marker, metadata_of, single
from tests.spark.topic_reads import columns_of

TOPIC = "persistent://public/default/clicks"
COLUMNS = "value binary, _corrupt_record binary, __entryId bigint, __messageId binary, __topic string"
NO_MESSAGE, BAD_SUM = b"\x0e\x01garbage", b"\x0e\x01\0\0\0\0\0\0\0\x01x"


def bad_body(sequence: int) -> bytes:
    """Return an entry whose metadata are right, and whose payload is not the batch that they say."""
    return framed(metadata_of(sequence, num_messages_in_batch=2), b"no batch of two messages")


def bad_zlib(sequence: int) -> bytes:
    return framed(metadata_of(sequence, compression=2, uncompressed_size=60), b"not compressed")


def bad_time(sequence: int) -> bytes:
    """Return an entry whose event time is beyond those of the column."""
    return framed(metadata_of(sequence, event_time=1 << 63), b"x")


def batches(entries: list[bytes], mode: str, columns: str = COLUMNS, first_entry: int = 0) -> list[Any]:
    options = SourceOptions.parse({"uri": "zk://a:1/ledgers", "topic": TOPIC, "mode": mode})
    decoder = TopicRows(columns_of(columns), options).for_topic(TOPIC, TopicFacts(), lambda _: iter(()))
    return list(decoder.batches(EntryBatch.of(entries, 5, first_entry)))


def rows(entries: list[bytes], mode: str, columns: str = COLUMNS, first_entry: int = 0) -> list[dict[str, Any]]:
    return [row for each in batches(entries, mode, columns, first_entry) for row in each.to_pylist()]


@pytest.mark.parametrize("columns", [COLUMNS, "value binary, __eventTime timestamp", "__entryId bigint"])
def test_rows_of_malformed_entries_are_where_the_entries_are(columns: str) -> None:
    """As if each entry were read by itself."""
    chances = random.Random(1)
    for _ in range(60):
        kinds = [
            lambda at: NO_MESSAGE,
            lambda at: BAD_SUM,
            bad_body,
            bad_zlib,
            bad_time,
            lambda at: marker(10),
            lambda at: chunked(Message(b"ab"), 1, at, uuid=str(at))[1],
            lambda at: single(Message(b"%d" % at), at),
            lambda at: batch([Message(b"%d" % at), Message(None), Message(b"c")], at),
        ]
        some = chances.sample(kinds, chances.randrange(1, len(kinds)))
        entries = [chances.choice(some)(at) for at in range(chances.randrange(1, 40))]
        for mode in ("PERMISSIVE", "DROPMALFORMED"):
            apart = [row for at, entry in enumerate(entries) for row in rows([entry], mode, columns, at)]
            assert rows(entries, mode, columns) == apart


@pytest.mark.parametrize("bad", [lambda at: NO_MESSAGE, bad_body, bad_zlib])
@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_half_of_the_entries_are_malformed_and_all_rows_are_made_together(bad: Any, mode: str) -> None:
    entries = [bad(at) if at % 2 else single(Message(b"%d" % at), at) for at in range(2000)]
    found = batches(entries, mode)
    assert sum(each.num_rows for each in found) == (2000 if mode == "PERMISSIVE" else 1000)
    assert len(found) < 10


def test_rows_of_malformed_entries_have_as_many_cells_together_as_others() -> None:
    found = batches([NO_MESSAGE] * 1_000_000, "PERMISSIVE", "value binary, __entryId bigint, __key binary")
    assert sum(each.num_rows for each in found) == 1_000_000
    assert max(each.num_rows for each in found) * 3 <= 1 << 20


def test_first_malformed_entry_ends_a_read_with_its_reason_after_the_rows_before_it() -> None:
    entries = [single(Message(b"0")), bad_zlib(1), NO_MESSAGE, single(Message(b"3"))]
    with pytest.raises(MalformedPayload, match="message 5:1: malformed: its ZLIB data are damaged"):
        rows(entries, "FAILFAST")
    entries[1] = entries[3]
    options = SourceOptions.parse({"uri": "zk://a:1/ledgers", "topic": TOPIC})
    decoder = TopicRows(columns_of(COLUMNS), options).for_topic(TOPIC, TopicFacts(), lambda _: iter(()))
    found = decoder.batches(EntryBatch.of(entries, 5))
    assert [row["value"] for row in next(found).to_pylist()] == [b"0", b"3"]
    with pytest.raises(MalformedPayload, match="message 5:2: malformed: its checksum is wrong"):
        next(found)


def test_column_that_is_not_null_names_the_first_malformed_entry() -> None:
    schema = columns_of("value binary")
    schema.fields[0].nullable = False
    options = SourceOptions.parse({"uri": "zk://a:1/ledgers", "topic": TOPIC, "mode": "PERMISSIVE"})
    decoder = TopicRows(schema, options).for_topic(TOPIC, TopicFacts(), lambda _: iter(()))
    with pytest.raises(ConfigurationError, match=r"message 5:1: .* let the column be null"):
        list(decoder.batches(EntryBatch.of([single(Message(b"0")), NO_MESSAGE, NO_MESSAGE], 5)))


FIELDS = [{"name": "a", "type": "string"}, {"name": "n", "type": "int"}]
JSON = Schema(0, "JSON", json.dumps({"type": "record", "name": "R", "fields": FIELDS}).encode())
OTHER = Schema(1, "INT32")


def test_values_that_miss_their_schema_are_where_the_messages_are() -> None:
    """As if each entry were read by itself. Wrong are values, versions, properties and keys."""
    schema = columns_of("a string, n int, _corrupt_record string, __key binary, __entryId bigint")
    schema.add("__messageProperties", MapType(StringType(), StringType()))
    chances = random.Random(2)
    not_text = b"\x22\x06\x0a\x01k\x12\x01\xff"
    bodies = [b'{"a":"x","n":1}', b'{"a":"y","n":2}', None, b"{", b'{"a":"x","n":"1"}', b'{"a":"x","n":5000000000}']
    keys = [
        None,
        ("QUI=", {}),
        ("QUI=", {"partition_key_b64_encoded": True}),
        ("a", {"partition_key_b64_encoded": True}),
    ]

    def message() -> Message:
        key, more = chances.choice(keys) or (None, {})
        return Message(chances.choice(bodies), key, chances.choice(((), [("a", "b")])), more=dict(more))

    def entry(at: int) -> bytes:
        version = chances.choice([0, 0, 0, 1, 9]).to_bytes(8)
        kind = chances.randrange(3)
        if kind == 2:
            metadata = metadata_of(at, schema_version=version).SerializeToString() + not_text
            return framed(MessageMetadata.FromString(metadata), b'{"a":"x","n":3}')
        if kind:
            return batch([message() for _ in range(chances.randrange(1, 5))], at, schema_version=version)
        return single(message(), at, schema_version=version)

    def found(entries: list[bytes], mode: str, first_entry: int) -> list[dict[str, Any]]:
        options = SourceOptions.parse({"uri": "zk://a:1/ledgers", "topic": TOPIC, "mode": mode})
        facts = TopicFacts(schemas={0: JSON, 1: OTHER, 2: replace(JSON, version=2)})
        decoder = TopicRows(schema, options).for_topic(TOPIC, facts, lambda _: iter(()))
        return [row for each in decoder.batches(EntryBatch.of(entries, 5, first_entry)) for row in each.to_pylist()]

    kept = set()
    for _ in range(60):
        entries = [entry(at) for at in range(chances.randrange(1, 30))]
        for mode in ("PERMISSIVE", "DROPMALFORMED"):
            apart = [row for at, each in enumerate(entries) for row in found([each], mode, at)]
            assert found(entries, mode, 0) == apart
            kept |= {(row["a"], row["n"], row["_corrupt_record"]) for row in apart}
    assert {each[0] for each in kept} == {"x", "y", None}
    assert {each[2] for each in kept} >= {None, "{", '{"a":"x","n":"1"}', '{"a":"x","n":5000000000}'}
