"""Entries of topics in which one thing is wrong: that message does what `mode` says, and no other one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pyspark.sql.types import DecimalType, StructType

from bkspark.errors import ConfigurationError, MalformedPayload
from bkspark.pulsar.pulsar_formats_pb2 import MessageMetadata
from tests.pulsar.entries import PUBLISHED_MS, Message, batch, chunked, framed, metadata_of, single
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import VALUE, numbered, values

pytestmark = pytest.mark.cluster

NOT_UTF8 = b"\x22\x06\x0a\x01k\x12\x01\xff"
"""A property whose value is not UTF-8."""


def test_property_that_is_not_text_is_the_fault_of_its_own_entry(topic: StoredTopic, read: Callable) -> None:
    damaged = framed(MessageMetadata.FromString(metadata_of(1).SerializeToString() + NOT_UTF8), b"1")
    good = single(Message(b"2", properties=[("a", "b")]), 2)
    ledger = topic.ledger([*numbered(0), damaged, good, batch([Message(b"3")])])
    assert values(read(mode="DROPMALFORMED")) == [b"0", b"2", b"3"]
    with pytest.raises(MalformedPayload, match=f"message {ledger}:1: malformed: its property is not UTF-8"):
        read()
    assert values(read(mode="PERMISSIVE")) == [b"0", None, b"2", b"3"]
    assert values(read(VALUE)) == [b"0", b"1", b"2", b"3"], "no property is wanted"


def test_name_of_an_encryption_key_that_is_not_text_is_the_fault_of_its_own_entry(
    topic: StoredTopic, read: Callable
) -> None:
    sealed = metadata_of(encryption_algo="AES/GCM")
    sealed.encryption_keys.add(key="k1", value=b"secret")
    damaged = MessageMetadata.FromString(metadata_of(1).SerializeToString() + b"\x6a\x06\x0a\x01\xff\x12\x01x")
    topic.ledger([framed(sealed, b"0"), framed(damaged, b"1"), framed(sealed, b"2")])
    found = read(encrypted="raw", includeMetadata=True, mode="DROPMALFORMED")
    assert [(row["value"], row["__encryption"]["keys"]) for row in found] == [(b"0", ["k1"]), (b"2", ["k1"])]


UNNAMED_KEYS = [b"\x6a\x00", b"\x6a\x02\x0a\x05", b"\x6a\x03\x0a\x01\xff"]
"""Encryption keys without a name, that are not protobuf, or whose name is not UTF-8."""


@pytest.mark.parametrize("key", UNNAMED_KEYS, ids=["absent", "cut", "not text"])
def test_encryption_key_without_its_name_is_the_fault_of_its_own_entry(
    topic: StoredTopic, read: Callable, key: bytes
) -> None:
    sealed = metadata_of()
    sealed.encryption_keys.add(key="k1", value=b"secret")
    head = metadata_of(1).SerializeToString() + key
    damaged = len(head).to_bytes(4) + head + b"1"
    ledger = topic.ledger([framed(sealed, b"0"), damaged, *numbered(2)])
    found = read(encrypted="raw", includeMetadata=True, mode="DROPMALFORMED")
    assert [(row["value"], (row["__encryption"] or {}).get("keys")) for row in found] == [
        (b"0", ["k1"]),
        (b"2", None),
    ]
    with pytest.raises(ConfigurationError, match=f"{topic.name}, message {ledger}:1: messages are encrypted for keys"):
        read(VALUE, startingOffsets=f"{ledger}:1")
    assert values(read(VALUE, encrypted="skip")) == [b"2"]


@pytest.mark.parametrize("field", ["publish_time", "event_time"])
def test_time_beyond_all_times_is_malformed_and_not_another_time(
    topic: StoredTopic, read: Callable, field: str
) -> None:
    late = metadata_of(1)
    setattr(late, field, 1 << 63)
    topic.ledger([*numbered(0), framed(late, b"1")])
    with pytest.raises(MalformedPayload, match="beyond the range of a timestamp"):
        read()
    assert values(read(mode="DROPMALFORMED")) == [b"0"]


def test_what_is_wrong_with_messages_of_other_times_does_not_end_a_read(topic: StoredTopic, read: Callable) -> None:
    """Such a read is how users pass over what cannot be read: times are exact for each row."""
    sealed = metadata_of(1)
    sealed.encryption_keys.add(key="k1", value=b"secret")
    damaged = changed(single(Message(b"2"), 2, 1), uncompressed_size=9)
    of_transaction = single(Message(b"3"), 3, txnid_most_bits=0, txnid_least_bits=1)
    topic.ledger([framed(sealed, b"1"), damaged, of_transaction, *numbered(4), *chunked(Message(b"five"), 2, 5)])
    assert values(read(startingTimestamp=PUBLISHED_MS + 4)) == [b"4", b"five"]
    assert values(read(startingTimestamp=PUBLISHED_MS + 4, mode="PERMISSIVE")) == [b"4", b"five"]
    with pytest.raises(ConfigurationError, match="encrypted for keys k1"):
        read(startingTimestamp=PUBLISHED_MS + 1)
    with pytest.raises(MalformedPayload, match="does not hold the 9 bytes"):
        read(startingTimestamp=PUBLISHED_MS + 2, endingTimestamp=PUBLISHED_MS + 3)
    assert values(read(startingTimestamp=PUBLISHED_MS + 4, endingTimestamp=PUBLISHED_MS + 5)) == [b"4"]


def changed(entry: bytes, **fields: object) -> bytes:
    """Return an entry with other metadata."""
    size = int.from_bytes(entry[6:10])
    metadata = MessageMetadata.FromString(entry[10 : 10 + size])
    for name, value in fields.items():
        setattr(metadata, name, value)
    return framed(metadata, entry[10 + size :])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_chunks_from_msg": 5}, "5 chunks and 3 bytes, and those of another chunk say 3"),
        ({"num_chunks_from_msg": 2}, "which cannot be"),
        ({"chunk_id": -1}, "which cannot be"),
        ({"uuid": ""}, "which cannot be"),
        ({"total_chunk_msg_size": 7}, "7 bytes"),
    ],
)
def test_chunk_that_contradicts_the_others_is_malformed(
    topic: StoredTopic, read: Callable, fields: dict, reason: str
) -> None:
    chunks = chunked(Message(b"abc"), 1, 1)
    topic.ledger([*numbered(0), *chunks[:2], changed(chunks[2], **fields), *numbered(1)])
    with pytest.raises(MalformedPayload, match=reason):
        read(VALUE)
    for tasks in (1, 5):
        assert values(read(VALUE, mode="DROPMALFORMED", minPartitions=tasks)) == [b"0", b"1"]


def test_chunk_of_another_message_of_the_same_name_is_not_taken(topic: StoredTopic, read: Callable) -> None:
    """The chunks before are looked at by another task, too."""
    chunks = chunked(Message(b"abc"), 1, 1)
    topic.ledger([chunks[0], changed(chunks[1], num_chunks_from_msg=9, chunk_id=7), *numbered(0), *chunks[1:]])
    for tasks in (1, 2, 5):
        assert values(read(VALUE, mode="DROPMALFORMED", minPartitions=tasks)) == [b"0", b"abc"]


def test_message_in_chunks_does_not_claim_more_memory_than_its_limit(topic: StoredTopic, read: Callable) -> None:
    size = (1 << 30) + 1
    topic.ledger([changed(each, uncompressed_size=size, compression=3) for each in chunked(Message(b"ab"), 1, 1)])
    with pytest.raises(MalformedPayload, match=f"{size} bytes, more than {1 << 30}"):
        read(VALUE)


def test_id_of_a_message_in_chunks_is_the_same_whatever_columns_are_read(topic: StoredTopic, read: Callable) -> None:
    topic.ledger([*chunked(Message(b"abc"), 1, 1), *numbered(1)])
    wanted = [row["__messageId"] for row in read()]
    assert len(wanted) == 2
    assert [row["__messageId"] for row in read("__messageId binary")] == wanted


def test_chunk_that_cannot_be_does_not_spoil_the_message_that_another_task_looks_for(
    topic: StoredTopic, read: Callable
) -> None:
    first, last = chunked(Message(b"ab"), 1, 1)
    topic.ledger([first, changed(first, chunk_id=9), *numbered(0), last])
    for tasks in (1, 4):
        assert values(read(VALUE, mode="DROPMALFORMED", minPartitions=tasks)) == [b"0", b"ab"]


def test_malformed_entry_does_not_hide_the_chunks_beside_it_from_another_task(
    topic: StoredTopic, read: Callable
) -> None:
    """A task that looks for the chunks before its first entry reads several entries at once."""
    first, second, last = chunked(Message(b"abc"), 1, 1)
    topic.ledger([first, b"damaged", second, *numbered(0), last])
    for tasks in (1, 5):
        assert values(read(VALUE, mode="DROPMALFORMED", minPartitions=tasks)) == [b"0", b"abc"]


def test_chunks_before_the_first_one_of_a_message_are_not_of_this_message(topic: StoredTopic, read: Callable) -> None:
    """A producer that starts again may use a name again. A chunk of the second message is missing."""
    first, second = (chunked(Message(value), 1, 1) for value in (b"abc", b"xyz"))
    topic.ledger([first[0], first[1], second[0], *numbered(0), second[2]])
    for tasks in (1, 5):
        assert values(read(VALUE, mode="DROPMALFORMED", minPartitions=tasks)) == [b"0"]


def test_value_that_its_column_cannot_have_is_malformed_and_no_other_one(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger([single(Message(b"0")), batch([Message(b"1"), Message(b"\xff")]), single(Message(None))])
    place = f"message {ledger}:1:-1:1: malformed"
    with pytest.raises(MalformedPayload, match=rf"{place}: its 'value' is binary, .* string .*\.schema\(\)"):
        read("value string")
    assert values(read("value string", mode="DROPMALFORMED")) == ["0", "1", None]
    found = read("value string, _corrupt_record binary, __entryId bigint", mode="PERMISSIVE")
    assert [(row["value"], row["_corrupt_record"], row["__entryId"]) for row in found] == [
        ("0", None, 0),
        ("1", None, 1),
        (None, b"\xff", 1),
        (None, None, 2),
    ]
    assert values(read(VALUE)) == [b"0", b"1", b"\xff", None]


def test_field_that_is_too_large_for_its_column_makes_its_message_malformed(topic: StoredTopic, read: Callable) -> None:
    fields = [{"name": "a", "type": "string"}, {"name": "n", "type": "long"}]
    topic.schemas(("JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {}))
    bodies = [b'{"a":"x","n":1}', b'{"a":"y","n":5000000000}', b'{"a":"z","n":2}']
    ledger = topic.ledger([single(Message(body), schema_version=bytes(8)) for body in bodies])
    with pytest.raises(MalformedPayload, match=rf"message {ledger}:1: malformed: its 'n' is int64, .* int32 .*50000"):
        read("a string, n int")
    assert [(row["a"], row["n"]) for row in read("a string, n int", mode="DROPMALFORMED")] == [("x", 1), ("z", 2)]
    found = read("a string, n int", mode="PERMISSIVE")
    assert [(row["a"], row["n"]) for row in found] == [("x", 1), (None, None), ("z", 2)]
    assert [row["n"] for row in read("n bigint")] == [1, 5_000_000_000, 2]
    with pytest.raises(ConfigurationError, match=r"column 'n' of .* is int64, which cannot be decimal128\(5, 2\)"):
        read(StructType().add("n", DecimalType(5, 2)))
