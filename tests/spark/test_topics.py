"""Reads of Pulsar's topics that lie on real bookies as brokers store them: plans and tasks, without a Spark session."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bkspark.blocking import Client
from bkspark.errors import BookKeeperError, ConfigurationError, DataLoss, MalformedPayload, NoSuchLog
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.spark.source import BookKeeperDataSource
from tests.cluster import Cluster
from tests.pulsar.entries import PUBLISHED_MS, Message, batch, chunked, compacted, framed, marker, metadata_of, single
from tests.pulsar.stored import StoredTopic, transaction_snapshots
from tests.spark.topic_reads import VALUE, numbered, table, values

pytestmark = pytest.mark.cluster


def test_topic_is_read_with_the_columns_of_pulsar_spark(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger(
        [single(Message(b"one", "k", [("a", "1")], 5), 7), batch([Message(b"two"), Message(None, "gone")])]
    )
    one, two, gone = read()
    assert list(one) == [
        "value",
        "__key",
        "__topic",
        "__messageId",
        "__publishTime",
        "__eventTime",
        "__messageProperties",
    ]
    assert (one["value"], one["__key"], one["__topic"]) == (b"one", b"k", str(topic.name))
    assert (dict(one["__messageProperties"]), one["__eventTime"].timestamp()) == ({"a": "1"}, 0.005)
    assert one["__publishTime"].timestamp() == (PUBLISHED_MS + 7) / 1000
    identity = formats.MessageIdData.FromString(gone["__messageId"])
    assert (identity.ledgerId, identity.entryId, identity.batch_index, identity.batch_size) == (ledger, 1, 1, 2)
    assert (two["value"], two["__key"], gone["value"], gone["__key"]) == (b"two", None, None, b"gone")


def test_ledgers_are_read_in_order_and_the_open_one_up_to_what_is_confirmed(topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(0, 1))
    topic.ledger([])
    topic.ledger(numbered(2), is_open=True)
    topic.writer.append(numbered(3)[0])
    assert values(read(VALUE)) == [b"0", b"1", b"2"]
    topic.writer.append(numbered(4)[0])  # not fenced
    assert values(read(VALUE)) == [b"0", b"1", b"2", b"3"]
    topic.roll()
    assert values(read(VALUE)) == [b"0", b"1", b"2", b"3", b"4"]


def test_ledger_listed_as_open_that_is_closed_is_read_to_its_end(topic: StoredTopic, read: Callable) -> None:
    """After an unload the list says open for good: BookKeeper's metadata decide."""
    topic.ledger(numbered(0, 1), is_open=True)
    topic.writer.close()
    assert values(read(VALUE)) == [b"0", b"1"]


def test_partitioned_topic_reads_as_one_and_partitions_without_a_node_are_empty(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    whole = f"{topic.name}-parts ü"
    first = StoredTopic(client, f"{whole}-partition-0")
    second = StoredTopic(client, f"{whole}-partition-2")
    first.partitioned(4)
    first.ledger(numbered(0))
    second.ledger(numbered(1))
    found = read("value binary, __topic string, __partition int", topic=whole)
    assert [(row["value"], row["__topic"], row["__partition"]) for row in found] == [
        (b"0", f"{whole}-partition-0", 0),
        (b"1", f"{whole}-partition-2", 2),
    ]
    assert values(read(VALUE, topic=f"{whole}-partition-2")) == [b"1"]
    assert values(read(VALUE, topics=f"{whole},{topic.name}")) == [b"0", b"1"]
    pattern = f"public/default/{topic.name.local}-.*"
    assert values(read(VALUE, topicsPattern=pattern)) == [b"0", b"1"]


def test_topic_that_does_not_exist_is_an_error_that_names_near_ones(topic: StoredTopic, read: Callable) -> None:
    with pytest.raises(NoSuchLog, match=topic.name.local):
        read(VALUE, topic=f"{topic.name}x")
    with pytest.raises(ConfigurationError, match="non-persistent"):
        read(VALUE, topic="non-persistent://public/default/t")


# ---- where to begin and to end ----


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": "-2"}, "34"),
        ({"startingOffsets": "-99"}, "01234"),
        ({"endingOffsets": "-1"}, "0123"),
        ({"startingOffsets": "{ledger}:1"}, "1234"),
        ({"startingOffsets": "{ledger}:1:-1", "endingOffsets": "{second}:0"}, "12"),
        ({"endingOffsets": "{ledger}:0"}, "0"),
    ],
)
def test_positions_bound_what_is_read(topic: StoredTopic, read: Callable, options: dict, wanted: str) -> None:
    ledger = topic.ledger(numbered(0, 1))
    second = topic.ledger(numbered(2, 3, 4))
    given = {name: value.format(ledger=ledger, second=second) for name, value in options.items()}
    assert b"".join(values(read(VALUE, **given))).decode() == wanted


def test_position_may_be_given_as_pulsar_spark_has_it_and_within_a_batch(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger([batch([Message(b"0"), Message(b"1"), Message(b"2")]), *numbered(3)])
    identity = formats.MessageIdData(ledgerId=ledger, entryId=0, batch_index=1).SerializeToString()
    signed = [octet - 256 if octet > 127 else octet for octet in identity]
    assert values(read(VALUE, startingOffsets=json.dumps({str(topic.name): signed}))) == [b"1", b"2", b"3"]
    assert values(read(VALUE, endingOffsets=f"{ledger}:0:-1:1")) == [b"0", b"1"]
    for wrong in ("x", 5, 0, True, None):
        with pytest.raises(ConfigurationError, match="message id"):
            read(VALUE, startingOffsets=json.dumps({str(topic.name): wrong}))
    with pytest.raises(ConfigurationError, match="ends before"):
        read(VALUE, startingOffsets=f"{ledger + 1000}:0")


def test_topic_that_the_offsets_name_twice_is_refused(topic: StoredTopic, client: Client, read: Callable) -> None:
    topic.ledger(numbered(0, 1))
    full, local = str(topic.name), topic.name.local
    for names in ((full, local), (f"public/default/{local}", local), (full, f"public/default/{local}")):
        given = json.dumps(dict.fromkeys(names, "earliest"))
        with pytest.raises(ConfigurationError, match=f"names topic {full} twice, as '{names[0]}' and as '{names[1]}'"):
            read(VALUE, startingOffsets=given)
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(ConfigurationError, match=f"option '{option}' .* names '{local}' twice"):
            read(VALUE, **{option: f'{{"{local}": "earliest", "{local}": "latest"}}'})
    # One name is that of a topic of another namespace, or of one partition.
    elsewhere = StoredTopic(client, f"public/other/{local}")
    elsewhere.ledger(numbered(2, 3))
    given = json.dumps({local: "-1", str(elsewhere.name): "-1"})
    assert values(read(VALUE, topics=f"{full},{elsewhere.name}", startingOffsets=given)) == [b"1", b"3"]
    parts = [StoredTopic(client, f"{full}-p-partition-{number}") for number in range(2)]
    parts[0].partitioned(2)
    for number, part in enumerate(parts):
        part.ledger(numbered(2 * number, 2 * number + 1))
    given = json.dumps({f"{local}-p": "-1", f"{local}-p-partition-1": "earliest"})
    assert values(read(VALUE, topic=f"{local}-p", startingOffsets=given)) == [b"1", b"2", b"3"]


def test_positions_before_and_after_all_messages_are_those_of_java(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger(numbered(0, 1))
    earliest, latest = [8, *[-1] * 9, 1, 16, *[-1] * 9, 1, 48, 0], [8, *[-1] * 8, 127, 16, *[-1] * 8, 127, 48, 0]
    by_topic = {name: json.dumps({str(topic.name): octets}) for name, octets in (("e", earliest), ("l", latest))}
    assert values(read(VALUE, startingOffsets=by_topic["e"], endingOffsets=by_topic["l"])) == [b"0", b"1"]
    assert values(read(VALUE, startingOffsets=by_topic["l"])) == []
    assert values(read(VALUE, startingOffsets="-1:-1:-1")) == [b"0", b"1"]
    assert values(read(VALUE, startingOffsets=f"{ledger}:-1:-1")) == [b"0", b"1"]
    assert values(read(VALUE, endingOffsets=f"{ledger}:-1:-1")) == []


def test_times_are_exact_by_row_though_publish_times_are_not_in_order(topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(5, 1, 7), closed_ms=PUBLISHED_MS + 10)
    topic.ledger(numbered(2, 9))
    found = read(VALUE, startingTimestamp=PUBLISHED_MS + 2, endingTimestamp=PUBLISHED_MS + 9)
    assert values(found) == [b"5", b"7", b"2"]
    assert values(read(VALUE, startingTimestamp=PUBLISHED_MS + 5000, publishTimeSlack="1s")) == []


def test_reading_begins_after_what_a_subscription_acknowledged(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger(numbered(0, 1, 2))
    topic.subscription(
        "s/1", formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger, markDeleteEntryId=0)
    )
    assert values(read(VALUE, startingSubscription="s/1")) == [b"1", b"2"]
    newer = [formats.PositionInfo(ledgerId=ledger, entryId=each).SerializeToString() for each in (0, 1)]
    topic.subscription(
        "s/1", formats.ManagedCursorInfo(cursorsLedgerId=0, markDeleteLedgerId=ledger, markDeleteEntryId=0), newer
    )
    assert values(read(VALUE, startingSubscription="s/1")) == [b"2"]
    with pytest.raises(NoSuchLog, match="no subscription 'other'; there are s/1: correct the name, or begin with"):
        read(VALUE, startingSubscription="other")


def acknowledged(ledger: int, entry: int, *partial: tuple[int, int, list[int]]) -> formats.PositionInfo:
    """Return a position of a cursor. `partial`: ledger, entry, and a bit for each message that is not acknowledged."""
    position = formats.PositionInfo(ledgerId=ledger, entryId=entry)
    for ledger_id, entry_id, words in partial:
        found = position.batchedEntryDeletionIndexInfo.add(deleteSet=words)
        found.position.ledgerId, found.position.entryId = ledger_id, entry_id
    return position


def test_reading_begins_at_the_first_message_of_a_batch_that_a_subscription_did_not_acknowledge(
    topic: StoredTopic, read: Callable, cluster: Cluster
) -> None:
    """Brokers with acknowledgmentAtBatchIndexLevelEnabled store which messages of a batch are acknowledged."""
    messages = [Message(b"%d" % number) for number in range(70)]
    first = topic.ledger([single(Message(b"a"))])
    second = topic.ledger([batch(messages), *numbered(70, 71), batch(messages[:2])])
    # In the first batch, 65, 68 and 69 are left; in the last entry, the second message.
    words = [0, 0b110010]
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=0, markDeleteLedgerId=first, markDeleteEntryId=0)
    entry = acknowledged(first, 0, (second, 0, words), (second, 3, [0b10]))
    topic.subscription("s", cursor, [entry.SerializeToString()])
    expected = [b"%d" % number for number in (*range(65, 70), 70, 71, 0, 1)]
    assert values(read(VALUE, startingSubscription="s")) == expected
    (row,) = [row for row in table(cluster.uri, "subscriptions") if row["topic"] == str(topic.name)]
    assert [row[name] for name in ("backlog_entries", "partial_entries", "partial_messages")] == [4, 2, 4]
    # The node has them when the cursor is closed.
    stored = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=first, markDeleteEntryId=0)
    stored.batchedEntryDeletionIndexInfo.extend(entry.batchedEntryDeletionIndexInfo)
    topic.subscription("closed", stored)
    assert values(read(VALUE, startingSubscription="closed")) == expected


# ---- kinds of messages ----


def test_markers_are_passed_over(topic: StoredTopic, read: Callable) -> None:
    topic.ledger([marker(10), *numbered(0), marker(12)])
    assert values(read(VALUE)) == [b"0"]


def test_message_in_chunks_is_read_once_however_the_topic_is_cut_into_tasks(topic: StoredTopic, read: Callable) -> None:
    whole = bytes(range(256)) * 8
    chunks = chunked(Message(whole, "k"), 100, 1, codec=2)
    assert len(chunks) > 2
    topic.ledger([*numbered(0), *chunks[:2], *numbered(1)])
    topic.ledger([*chunks[2:], *numbered(2)])
    for tasks in (1, 3, 6, 50):
        assert values(read(VALUE, minPartitions=tasks)) == [b"0", b"1", whole, b"2"]


def test_chunks_far_before_their_last_one_are_found_across_ledgers(topic: StoredTopic, read: Callable) -> None:
    """A task reads back a few entries at a time, more with each read."""
    chunks = chunked(Message(b"abcd"), 1, 1)
    topic.ledger([chunks[0], *numbered(*range(70))])
    topic.ledger([chunks[1], *numbered(*range(70, 75)), chunks[2], *numbered(*range(75, 150)), chunks[3]])
    expected = [*(b"%d" % number for number in range(150)), b"abcd"]
    for tasks in (1, 5, 153):
        assert values(read(VALUE, minPartitions=tasks)) == expected


def test_messages_without_their_heads_do_not_hide_the_one_that_is_whole(topic: StoredTopic, read: Callable) -> None:
    whole, *headless = (chunked(Message(b"ab"), 1, number) for number in range(1, 6))
    topic.ledger([whole[0], *numbered(*range(40)), *(chunks[1] for chunks in headless), whole[1]])
    for tasks in (1, 46):
        assert values(read(VALUE, mode="DROPMALFORMED", minPartitions=tasks))[-1] == b"ab"
        assert len(read(VALUE, mode="PERMISSIVE", minPartitions=tasks)) == 40 + len(headless) + 1


def test_chunk_without_its_head_is_malformed(topic: StoredTopic, read: Callable) -> None:
    topic.ledger([*chunked(Message(b"abc"), 1)[1:], *numbered(0)])
    with pytest.raises(MalformedPayload, match="last of 3 chunks"):
        read(VALUE)
    assert values(read(VALUE, mode="DROPMALFORMED")) == [b"0"]


def test_transactions_are_read_committed(client: Client, topic: StoredTopic, read: Callable) -> None:
    def of(number: int, value: bytes) -> bytes:
        return single(Message(value), txnid_most_bits=0, txnid_least_bits=number)

    topic.ledger([*numbered(0), of(1, b"t1"), marker(21, (0, 1)), of(2, b"t2")])
    topic.ledger([marker(22, (0, 2)), *numbered(3), of(3, b"t3"), *numbered(4)])
    with pytest.raises(ConfigurationError, match="has transactions"):
        read(VALUE)
    with transaction_snapshots(client) as snapshots:
        # Without a snapshot of its own, a topic is not looked through: if it has transactions, its task finds out.
        snapshots.ledger([single(Message(b"", "persistent://public/default/other"))])
        with pytest.raises(ConfigurationError, match="has transactions"):
            read(VALUE)
        # The last entry of an open ledger is not confirmed.
        snapshots.ledger([single(Message(b"", str(topic.name)))], is_open=True)
        assert values(read(VALUE)) == [b"0", b"t1", b"3"]
        assert values(read(VALUE, isolation="read_uncommitted")) == [b"0", b"t1", b"t2", b"3", b"t3", b"4"]


def test_snapshot_of_a_topic_counts_though_it_is_in_the_compacted_ledger_alone(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    topic.ledger([*numbered(0), single(Message(b"t1"), txnid_most_bits=0, txnid_least_bits=1), marker(22, (0, 1))])
    with transaction_snapshots(client) as snapshots:
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            writer.append(compacted(1, 0, single(Message(b"", str(topic.name)))))
        cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=1, markDeleteEntryId=0)
        cursor.properties.add(name="CompactedTopicLedger", value=writer.ledger_id)
        snapshots.subscription("__compaction", cursor)
        assert values(read(VALUE)) == [b"0"]


def test_encrypted_messages_fail_are_left_out_or_read_as_they_are_stored(topic: StoredTopic, read: Callable) -> None:
    sealed = metadata_of(
        num_messages_in_batch=3, encryption_algo="AES/GCM", encryption_param=b"iv", compression=1, uncompressed_size=99
    )
    sealed.encryption_keys.add(key="k1", value=b"secret")
    sealed.encryption_keys.add(key="k2", value=b"other")
    topic.ledger([*numbered(0), framed(sealed, b"?")])
    with pytest.raises(ConfigurationError, match="encrypted for keys k1, k2"):
        read()
    assert values(read(encrypted="skip")) == [b"0"]
    found = read(encrypted="raw", includeMetadata=True)
    assert values(found) == [b"0", b"?"]
    sealed_with = found[1]["__encryption"]
    assert (sealed_with["keys"], sealed_with["dataKeys"]) == (["k1", "k2"], [b"secret", b"other"])


def test_columns_that_describe_a_message_need_no_payload(topic: StoredTopic, read: Callable) -> None:
    """Nothing is decompressed: an entry whose payload is damaged is counted nevertheless."""
    damaged = metadata_of(num_messages_in_batch=3, compression=3, uncompressed_size=100)
    topic.ledger([batch([Message(b"1")] * 2, codec=1, broker=(1000, 1)), framed(damaged, b"not zstd")])
    found = read("__topic string, __entryId bigint, __batchIndex int, __index bigint, __producerName string")
    assert [(row["__entryId"], row["__batchIndex"]) for row in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [row["__index"] for row in found] == [0, 1, None, None, None]


# ---- what is wrong ----


def test_entry_that_is_not_a_message_does_what_mode_says(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger([*numbered(0, 1), b"hello, world, this is not a message", *numbered(2)])
    with pytest.raises(MalformedPayload, match=f"message {ledger}:2: malformed"):
        read(VALUE)
    assert values(read(VALUE, mode="DROPMALFORMED")) == [b"0", b"1", b"2"]
    found = read("value binary, __entryId bigint, _corrupt_record binary", mode="PERMISSIVE")
    assert [(row["value"], row["__entryId"]) for row in found] == [(b"0", 0), (b"1", 1), (None, 2), (b"2", 3)]
    assert [row["_corrupt_record"] for row in found] == [None, None, b"hello, world, this is not a message", None]


def test_trimmed_ledger_that_is_named_is_data_lost(topic: StoredTopic, read: Callable) -> None:
    first = topic.ledger(numbered(0))
    topic.ledger(numbered(1))
    topic.trim()
    assert values(read(VALUE)) == [b"1"]
    with pytest.raises(DataLoss, match="now begins with"):
        read(VALUE, startingOffsets=f"{first}:0")
    assert values(read(VALUE, startingOffsets=f"{first}:0", failOnDataLoss=False)) == [b"1"]


def test_offloaded_ledger_whose_copy_on_bookies_is_gone_is_refused_by_name(topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(0))
    topic.ledger(numbered(1))
    offload = topic.info.ledgerInfo[0].offloadContext
    offload.complete = offload.bookkeeperDeleted = True
    offload.driverMetadata.name = "aws-s3"
    offload.driverMetadata.properties.add(key="bucket", value="b1")
    topic.save()
    with pytest.raises(DataLoss, match=r"aws-s3 \(bucket=b1\)"):
        read(VALUE)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"1"]


# ---- schemas ----

RECORD = json.dumps({"type": "record", "name": "R", "fields": [
    {"name": "i", "type": "int"}, {"name": "s", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
]}).encode()  # fmt: skip
VERSION_0 = {"schema_version": struct.pack(">q", 0)}
VERSION_1 = {"schema_version": struct.pack(">q", 1)}


@pytest.mark.parametrize(
    ("kind", "payload", "wanted"),
    [
        ("STRING", "häl".encode(), "häl"),
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\xff\xfe", -2),
        ("INT32", b"\0\0\1\0", 256),
        ("INT64", b"\xff" * 8, -1),
        ("FLOAT", struct.pack(">f", 1.5), 1.5),
        ("DOUBLE", struct.pack(">d", -2.25), -2.25),
        ("TIME", struct.pack(">q", 1234), 1234),
        ("LOCAL_TIME", struct.pack(">q", 1234), 1234),
    ],
)
def test_primitive_of_a_schema_is_the_column_value(
    topic: StoredTopic, read: Callable, kind: str, payload: bytes, wanted: object
) -> None:
    topic.schemas((kind, b"", {}))
    topic.ledger([batch([Message(payload), Message(None), Message(payload)], **VERSION_0)])
    assert values(read()) == [wanted, None, wanted]
    assert values(read(valueFormat="raw")) == [payload, None, payload]


@pytest.mark.parametrize(
    ("kind", "payload", "wanted"),
    [
        ("DATE", struct.pack(">q", 86_400_000 * 365 - 1), "1970-12-31"),
        ("LOCAL_DATE", struct.pack(">q", 365), "1971-01-01"),
        ("TIMESTAMP", struct.pack(">q", 1500), "1970-01-01 00:00:01.500000+00:00"),
        ("INSTANT", struct.pack(">qi", 2, 999_999_999), "1970-01-01 00:00:02.999999+00:00"),
        ("LOCAL_DATE_TIME", struct.pack(">qq", 1, 1_000_000_000), "1970-01-02 00:00:01"),
    ],
)
def test_times_of_a_schema_are_sparks_times(
    topic: StoredTopic, read: Callable, kind: str, payload: bytes, wanted: str
) -> None:
    topic.schemas((kind, b"", {}))
    topic.ledger([single(Message(payload), **VERSION_0)])
    assert [str(value) for value in values(read())] == [wanted]


def test_fields_of_a_json_schema_are_columns(topic: StoredTopic, read: Callable) -> None:
    topic.schemas(("JSON", RECORD, {}))
    payloads = [b'{"i": 1, "s": "x", "at": 1500}', b'{"i": 2, "at": 0}']
    topic.ledger([batch([Message(payload) for payload in payloads], **VERSION_0)])
    found = read()
    assert [(row["i"], row["s"], row["at"].timestamp()) for row in found] == [(1, "x", 1.5), (2, None, 0.0)]
    assert [row["s"] for row in read("s string")] == ["x", None]
    with pytest.raises(ConfigurationError, match="payload has i, s, at"):
        read("nope string")


def test_avro_of_two_versions_has_the_columns_of_the_newest(topic: StoredTopic, read: Callable) -> None:
    fastavro = pytest.importorskip("fastavro")
    import io

    newest = json.loads(RECORD)
    newest["fields"].append({"name": "more", "type": "double", "default": 2.5})
    topic.schemas(("AVRO", RECORD, {}), ("AVRO", json.dumps(newest).encode(), {}))

    def avro(schema: dict, **fields: object) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), fields)
        return stream.getvalue()

    topic.ledger([
        single(Message(avro(json.loads(RECORD), i=1, s="a", at=1000)), **VERSION_0),
        single(Message(avro(newest, i=2, s=None, at=2000, more=9.0)), **VERSION_1),
    ])  # fmt: skip
    assert [(row["i"], row["s"], row["at"].timestamp(), row["more"]) for row in read()] == [
        (1, "a", 1.0, 2.5),
        (2, None, 2.0, 9.0),
    ]


@pytest.mark.parametrize("is_separated", [False, True])
def test_key_value_is_two_columns(topic: StoredTopic, read: Callable, is_separated: bool) -> None:
    encoding = "SEPARATED" if is_separated else "INLINE"
    properties = {"key.schema.type": "STRING", "value.schema.type": "INT32", "kv.encoding.type": encoding}
    topic.schemas(("KEY_VALUE", struct.pack(">ii", 0, 0), properties))
    inline = bytes.fromhex("000000016b0000000400000102")
    message = (
        Message(b"\0\0\1\2", "aw==", more={"partition_key_b64_encoded": True}) if is_separated else Message(inline)
    )
    topic.ledger([batch([message], **VERSION_0)])
    assert [(row["key"], row["value"]) for row in read()] == [("k", 258)]


def test_value_that_is_not_of_its_schema_does_what_mode_says_message_by_message(
    topic: StoredTopic, read: Callable
) -> None:
    topic.schemas(("INT32", b"", {}))
    good, bad = Message(b"\0\0\0\1"), Message(b"\0\0")
    ledger = topic.ledger([batch([good, bad, good], **VERSION_0)])
    with pytest.raises(MalformedPayload, match=f"message {ledger}:0:-1:1: malformed.*4 bytes, this one 2"):
        read()
    assert values(read(mode="DROPMALFORMED")) == [1, 1]
    found = read("value int, _corrupt_record binary", mode="PERMISSIVE")
    assert [(row["value"], row["_corrupt_record"]) for row in found] == [(1, None), (None, b"\0\0"), (1, None)]


@pytest.mark.parametrize("options", [
    {"payloadFormat": "json"}, {"recover": "true"}, {"log": "l"}, {"service.url": "pulsar://x"},
    {"jsonDialect": "spark"}, {"startingSubscription": "s", "startingOffsets": "-1"},
    {"pulsarUri": "oxia://h:1"}, {"topic": "a/b"}, {"startingOffsets": "latest"},
])  # fmt: skip
def test_options_that_topics_cannot_have_are_refused(read: Callable, options: dict) -> None:
    with pytest.raises(BookKeeperError):
        read(VALUE, **options)


# ---- compacted topics ----


def test_compacted_topic_is_its_compacted_ledger_and_what_follows_the_horizon(
    cluster: Cluster, topic: StoredTopic, read: Callable
) -> None:
    first = topic.ledger(numbered(0, 1))
    second = topic.ledger(numbered(2, 3))
    horizon = formats.MessageIdData(ledgerId=second, entryId=0, partition=-1).SerializeToString()
    gone = Message(b"", more={"compacted_out": True})
    with Client(cluster.uri, digest="crc32") as client:
        metadata = {"component": b"compacted-ledger", "pulsar/compactedTo": horizon}
        with client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=metadata) as writer:
            kept = [compacted(first, 1, batch([gone, Message(b"1")])), compacted(second, 0, numbered(2)[0])]
            writer.append_many(kept)
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=first, markDeleteEntryId=0)
    cursor.properties.add(name="CompactedTopicLedger", value=writer.ledger_id)
    topic.subscription("__compaction", cursor)
    found = read("value binary, __ledgerId bigint, __entryId bigint, __batchIndex int", readCompacted=True)
    assert [(row["value"], row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in found] == [
        (b"1", first, 1, 1),
        (b"2", second, 0, None),
        (b"3", second, 1, None),
    ]
    # Without payload columns too: what was compacted out is not counted.
    assert len(read("__entryId bigint", readCompacted=True)) == 3
    topic.trim()  # the compacted ledger is the only copy then
    assert values(read(VALUE, readCompacted=True)) == [b"1", b"2", b"3"]


def test_topic_that_was_never_compacted_reads_whole(topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(0, 1))
    assert values(read(VALUE, readCompacted=True)) == [b"0", b"1"]


# ---- ledgers by id, and tables ----


def test_ledgers_of_a_topic_may_be_named_by_themselves(cluster: Cluster, topic: StoredTopic) -> None:
    ledger = topic.ledger([batch([Message(b"0"), Message(b"1")]), *numbered(2)])
    source = BookKeeperDataSource({"uri": cluster.uri, "ledgers": str(ledger), "payloadFormat": "pulsar"})
    reader = source.reader(source.schema())
    found = [row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()]
    assert values(found) == [b"0", b"1", b"2"]
    assert {row["__topic"] for row in found} == {str(topic.name)}


def test_malformed_entry_of_a_ledger_of_no_topic_is_named_by_its_ledger(
    cluster: Cluster, ledger_of: Callable[..., int]
) -> None:
    ledger = ledger_of([b"not a message"], ensemble=1, write_quorum=1, ack_quorum=1)
    source = BookKeeperDataSource({"uri": cluster.uri, "ledgers": str(ledger), "payloadFormat": "pulsar"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    with pytest.raises(MalformedPayload, match=f"^a ledger of no topic, message {ledger}:0: malformed"):
        list(reader.read(task))


def test_tables_about_topics_come_from_metadata(cluster: Cluster, client: Client, topic: StoredTopic) -> None:
    part = StoredTopic(client, f"{topic.name}-p-partition-1")
    part.partitioned(2)
    part.schemas(("STRING", b"", {}))
    first = part.ledger(numbered(0, 1, 2))
    second = part.ledger(numbered(3), is_open=True)
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=first, markDeleteEntryId=0)
    taken = cursor.individualDeletedMessages.add()
    taken.lowerEndpoint.ledgerId, taken.lowerEndpoint.entryId = first, 1
    taken.upperEndpoint.ledgerId, taken.upperEndpoint.entryId = first, 2
    part.subscription("s/1", cursor)
    whole = str(part.name.whole)
    (row,) = [row for row in table(cluster.uri, "topics") if row["topic"] == whole]
    wanted = {"partitions": 2, "ledgers": 2, "subscriptions": 1, "schema_type": "STRING", "schema_version": 0}
    assert {name: row[name] for name in wanted} == wanted
    ledgers = [row for row in table(cluster.uri, "topicLedgers") if row["topic"] == str(part.name)]
    assert [(row["ledger_id"], row["entries"], row["partition"]) for row in ledgers] == [
        (first, 3, 1),
        (second, None, 1),
    ]
    (row,) = [row for row in table(cluster.uri, "subscriptions") if row["topic"] == str(part.name)]
    assert (row["subscription"], row["acknowledged_after"], row["backlog_entries"]) == ("s/1", 1, 1)
    assert row["oldest_unacknowledged"].timestamp() == (PUBLISHED_MS + 1) / 1000


# ---- in Spark ----


@pytest.mark.every_spark
def test_topic_is_read_by_a_spark_session_in_batch_and_as_a_stream(
    spark: Any, cluster: Cluster, topic: StoredTopic, tmp_path: Path
) -> None:
    topic.schemas(("JSON", RECORD, {}))
    topic.ledger([batch([Message(b'{"i": %d, "at": 0}' % i, f"k{i}") for i in range(5)], codec=3, **VERSION_0)])
    topic.ledger([single(Message(b'{"i": 5, "at": 0}', properties=[("a", "b")]), **VERSION_0)])
    frame = spark.read.format("bookkeeper").option("uri", cluster.uri).option("topic", str(topic.name)).load()
    assert sorted(row.i for row in frame.collect()) == list(range(6))
    assert frame.count() == 6
    assert frame.where("__messageProperties['a'] = 'b'").select("i").collect()[0].i == 5
    follow = spark.readStream.format("bookkeeper").option("uri", cluster.uri).option("topic", str(topic.name))
    stream = follow.option("startingOffsets", "earliest").load()
    writer = stream.select("i").writeStream.format("memory").queryName("topic_rows").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    assert sorted(row.i for row in spark.table("topic_rows").collect()) == list(range(6))
