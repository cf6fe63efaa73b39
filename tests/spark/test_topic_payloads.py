"""Payloads of topics whose messages are of several kinds: keys, nulls, schemas that are gone, encryption."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, StructType

from bkspark.blocking import Client
from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.pulsar.pulsar_formats_pb2 import MessageMetadata
from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_read import TopicReader
from tests.cluster import Cluster
from tests.interop.sealed import key_pairs, opened, seal
from tests.pulsar.entries import Message, batch, chunked, decoded, framed, marker, metadata_of, single
from tests.pulsar.stored import StoredTopic, transaction_snapshots
from tests.spark.topic_reads import VALUE, numbered, values

pytestmark = pytest.mark.cluster

BYTES_AS_KEY = {"partition_key_b64_encoded": True}
SEPARATED = {"key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": "SEPARATED"}


def version(number: int) -> dict[str, bytes]:
    return {"schema_version": struct.pack(">q", number)}


def test_key_of_a_key_value_message_that_is_not_base64_does_what_mode_says(topic: StoredTopic, read: Callable) -> None:
    topic.schemas(("KEY_VALUE", struct.pack(">ii", 0, 0), SEPARATED))
    good, bad = (Message(b"\0\0\0\1", key, more=BYTES_AS_KEY) for key in ("aw==", "?"))
    ledger = topic.ledger([batch([good, bad, good], **version(0)), single(bad, **version(0))])
    with pytest.raises(MalformedPayload, match=f"message {ledger}:0"):
        read("key string, value int")
    assert values(read("key string, value int", mode="DROPMALFORMED")) == []
    topic.ledger([single(good, **version(0))])
    assert values(read("key string, value int", mode="DROPMALFORMED")) == [1]


def test_separated_key_value_keeps_its_key_where_the_value_is_null_and_may_have_no_key(
    topic: StoredTopic, read: Callable
) -> None:
    """As Pulsar's consumers have it: what is null is the value, which deletes the key."""
    topic.schemas(("KEY_VALUE", struct.pack(">ii", 0, 0), SEPARATED))
    messages = [
        Message(None, "aw==", more=BYTES_AS_KEY),
        Message(b"\0\0\0\2", more={"null_partition_key": True}),
    ]
    topic.ledger([batch(messages, **version(0)), *(single(each, **version(0)) for each in messages)])
    assert [(row["key"], row["value"]) for row in read()] == [("k", None), (None, 2)] * 2


def test_topic_whose_schema_was_deleted_is_read_as_bytes(topic: StoredTopic, read: Callable) -> None:
    """Brokers store a newest version of no type then; what was written with others stays as it is."""
    topic.schemas(("STRING", b"", {}), ("BYTES", b"", {}))
    topic.ledger([single(Message(b"old"), **version(0)), single(Message(b"new")), single(Message(b"1"), **version(1))])
    assert values(read()) == [b"old", b"new", b"1"]


def test_decimals_and_numbers_that_json_has_no_form_for_come_out_exactly(topic: StoredTopic, read: Callable) -> None:
    """Jackson writes a BigDecimal as a number with all its digits, and NaN as a text."""
    fields = [
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}]},
        {"name": "rate", "type": "double"},
        {"name": "part", "type": ["null", "float"]},
    ]
    topic.schemas(("JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {}))
    texts = [
        b'{"price": 12345678901234567890.1234, "rate": "NaN", "part": "-Infinity"}',
        b'{"price": 7, "rate": 0.1}',
    ]
    topic.ledger([batch([Message(text) for text in texts], **version(0))])
    first, second = read()
    assert (str(first["price"]), str(first["rate"]), first["part"]) == (
        "12345678901234567890.1234",
        "nan",
        float("-inf"),
    )
    assert (str(second["price"]), second["rate"], second["part"]) == ("7.0000", 0.1, None)


def test_encrypted_messages_of_a_topic_with_a_schema_need_the_raw_value_format(
    topic: StoredTopic, read: Callable
) -> None:
    topic.schemas(("INT32", b"", {}))
    sealed = metadata_of(encryption_algo="AES/GCM", encryption_param=b"iv", **version(0))
    sealed.encryption_keys.add(key="k1", value=b"secret")
    topic.ledger([single(Message(b"\0\0\0\1"), **version(0)), framed(sealed, b"\xffsealed")])
    with pytest.raises(ConfigurationError, match="valueFormat=raw"):
        read(encrypted="raw")
    assert values(read(encrypted="raw", valueFormat="raw")) == [b"\0\0\0\1", b"\xffsealed"]
    assert values(read(encrypted="skip")) == [1]


# ---- columns of a schema given to Spark ----


def rows(cluster: Cluster, topic: StoredTopic, schema: StructType, **options: str) -> list[dict]:
    parsed = SourceOptions.parse({"uri": cluster.uri, "topic": str(topic.name), **options})
    reader = TopicReader(schema, parsed)
    return [row for part in reader.partitions() for found in reader.read(part) for row in found.to_pylist()]


def test_null_in_a_column_that_allows_none_is_an_error_with_its_position(cluster: Cluster, topic: StoredTopic) -> None:
    """Spark would read what is below the null as a value."""
    first = topic.ledger([single(Message(b"1", "k")), batch([Message(b"2", "k"), Message(None)])])
    last = topic.ledger([b"no message"])
    wanted = StructType().add("value", "binary", nullable=False)
    for end, place, mode in ((f"{first}:1", f"{first}:1:-1:1", "FAILFAST"), ("latest", f"{last}:0", "PERMISSIVE")):
        start = "earliest" if mode == "FAILFAST" else f"{last}:0"
        given = {"startingOffsets": start, "endingOffsets": end, "mode": mode}
        with pytest.raises(ConfigurationError, match=rf"message {place}: column 'value' is NOT NULL.*\.schema\(\)"):
            rows(cluster, topic, wanted, **given)
    with pytest.raises(ConfigurationError, match=f"message {first}:1:-1:1: column '__key' is NOT NULL"):
        rows(cluster, topic, StructType().add("__key", "binary", nullable=False), endingOffsets=f"{first}:1")


def test_malformed_message_is_dropped_also_where_its_column_allows_no_null(
    cluster: Cluster, topic: StoredTopic
) -> None:
    topic.schemas(("INT32", b"", {}))
    topic.ledger([batch([Message(b"\0\0\0\1"), Message(b"?")], schema_version=bytes(8)), b"no message"])
    wanted = StructType().add("value", "integer", nullable=False)
    assert rows(cluster, topic, wanted, mode="DROPMALFORMED") == [{"value": 1}]


def test_field_of_a_column_that_the_topic_lacks_is_refused(cluster: Cluster, topic: StoredTopic) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "abc", "type": "int"}]}
    fields = [{"name": "s", "type": inner}, {"name": "many", "type": {"type": "array", "items": "I"}}]
    topic.schemas(("JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {}))
    topic.ledger([single(Message(b'{"s":{"abc":5},"many":[{"abc":6}]}'), schema_version=bytes(8))])
    known, other = StructType().add("abc", "integer"), StructType().add("ABC", "integer")
    assert rows(cluster, topic, StructType().add("S", known)) == [{"S": {"abc": 5}}]
    refused = "field '{}' is not in topic .*, whose column '{}' has abc: correct the schema"
    with pytest.raises(ConfigurationError, match=refused.format("S.ABC", "s")):
        rows(cluster, topic, StructType().add("S", other))
    with pytest.raises(ConfigurationError, match=refused.format("many.ABC", "many")):
        rows(cluster, topic, StructType().add("many", ArrayType(other)))


def test_encrypted_message_of_an_aborted_transaction_does_not_end_a_read(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    """A read returns no message of an aborted transaction, whatever it is."""
    sealed = metadata_of(txnid_most_bits=0, txnid_least_bits=1)
    sealed.encryption_keys.add(key="k1", value=b"secret")
    topic.ledger([*numbered(0), framed(sealed, b"?"), marker(22, (0, 1)), *numbered(1)])
    with transaction_snapshots(client, topic):
        for encrypted in ("fail", "skip", "raw"):
            assert values(read(VALUE, encrypted=encrypted)) == [b"0", b"1"]
        with pytest.raises(ConfigurationError, match="encrypted for keys k1"):
            read(VALUE, isolation="read_uncommitted")


def test_encrypted_chunks_of_messages_that_alternate_are_joined_by_what_the_columns_hold(
    topic: StoredTopic, read: Callable, tmp_path: Path
) -> None:
    """A producer cuts a message and then encrypts each chunk, so a read cannot join the chunks itself."""
    keys = key_pairs(tmp_path, ("one", "two"))
    wanted = [b"first" * 400, b"second" * 300, b"whole"]
    one, other = (
        chunked(Message(value), 700, sequence, uuid=f"p-{sequence}") for sequence, value in enumerate(wanted[:2])
    )
    stored = []
    for place, entry in enumerate([one[0], other[0], one[1], other[1], one[2], other[2], single(Message(wanted[2]))]):
        entries = decoded(entry)
        metadata = MessageMetadata.FromString(entry[10 : 10 + struct.unpack_from(">I", entry, 6)[0]])
        payload = entries.data[entries.payload_starts[0] : entries.payload_ends[0]].tobytes()
        payload = seal(metadata, payload, keys, bytes([place]) * 12)
        stored.append(framed(metadata, payload))
    topic.ledger(stored)
    found = read(encrypted="raw", includeMetadata=True)
    for name, private_key in keys.items():
        assert opened(found, name, private_key) == wanted
    chunks = [tuple(row["__encryption"][name] for name in ("chunkUuid", "chunk", "chunks")) for row in found]
    assert chunks == [*((f"p-{uuid}", chunk, 3) for chunk in range(3) for uuid in range(2)), (None, None, None)]
