"""Topics at the edges of what brokers store: subscriptions that are ahead, transactions in chunks, compacted ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from bkspark.blocking import Client
from bkspark.errors import MalformedPayload, NoSuchLog, UnauthorizedAccess
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.pulsar_formats_pb2 import MessageMetadata
from tests.cluster import Cluster
from tests.pulsar.entries import PUBLISHED_MS, Message, batch, chunked, compacted, framed, marker, metadata_of, single
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_queries import Query
from tests.spark.topic_reads import VALUE, numbered, rows_of, table, values

pytestmark = pytest.mark.cluster

TXN = {"txnid_most_bits": 3, "txnid_least_bits": 7}


def at(ledger: int, entry: int) -> formats.ManagedCursorInfo:
    return formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger, markDeleteEntryId=entry)


# ---- subscriptions that are ahead of what is confirmed ----


def test_subscription_that_has_acknowledged_the_unconfirmed_entry_has_no_backlog(
    cluster: Cluster, topic: StoredTopic, read: Callable
) -> None:
    """The last entry of an idle topic is not confirmed, and consumers have acknowledged it."""
    ledger = topic.ledger(numbered(0, 1), is_open=True)
    topic.writer.append(numbered(2)[0])
    topic.subscription("s", at(ledger, 2))
    (row,) = [row for row in table(cluster.uri, "subscriptions") if row["topic"] == str(topic.name)]
    shown = ("backlog_entries", "backlog_bytes", "acknowledged_after", "oldest_unacknowledged", "error")
    assert [row[name] for name in shown] == [0, 0, 0, None, None]
    assert values(read(VALUE, startingSubscription="s")) == []
    query = Query(cluster, topic, startingSubscription="s")
    assert query.next_values() is None
    for number in (3, 4):
        topic.writer.append(numbered(number)[0])
    assert query.batch() == "3"
    topic.roll([], is_open=False)
    assert query.batch() == "4"


def test_acknowledged_bit_of_the_unconfirmed_entry_is_not_counted(cluster: Cluster, topic: StoredTopic) -> None:
    ledger = topic.ledger(numbered(0, 1), is_open=True)
    topic.writer.append(numbered(2)[0])
    position = formats.PositionInfo(ledgerId=ledger, entryId=0)
    position.individualDeletedMessageRanges.add(key=ledger, values=[0b100])
    topic.subscription("s", at(ledger, -1), [position.SerializeToString()])
    (row,) = [row for row in table(cluster.uri, "subscriptions") if row["topic"] == str(topic.name)]
    assert (row["acknowledged_after"], row["backlog_entries"]) == (0, 1)


# ---- transactions of messages in chunks ----


def test_message_in_chunks_of_a_transaction_is_read_when_it_is_committed(
    topic: StoredTopic, read: Callable, has_transactions: None
) -> None:
    chunks = chunked(Message(b"abc", more=TXN), 1, 1)
    topic.ledger([*numbered(0), *chunks[:2], *numbered(1)])
    topic.ledger([chunks[2], *numbered(2)], is_open=True)
    for tasks in (1, 5):
        assert values(read(VALUE, minPartitions=tasks)) == [b"0"]
    topic.roll([marker(21, (3, 7)), *numbered(3)], is_open=False)
    for tasks in (1, 3, 8):
        assert values(read(VALUE, minPartitions=tasks)) == [b"0", b"1", b"abc", b"2", b"3"]


def test_message_in_chunks_of_an_aborted_transaction_is_left_out(
    cluster: Cluster, topic: StoredTopic, read: Callable, has_transactions: None
) -> None:
    """Neither a message nor, where its chunks are cut apart, a malformed one."""
    chunks = chunked(Message(b"abc", more=TXN), 1, 1)
    query = Query(cluster, topic, startingOffsets="earliest")
    topic.ledger([*numbered(0), *chunks[:2]])
    topic.ledger([chunks[2], marker(22, (3, 7)), *numbered(1)])
    for tasks in (1, 3, 6):
        assert values(read(VALUE, minPartitions=tasks)) == [b"0", b"1"]
    assert query.batch() == "0 1"


# ---- compacted topics ----


def compact(cluster: Cluster, topic: StoredTopic, ledger: int, entry: int, stored: list[bytes]) -> None:
    horizon = formats.MessageIdData(ledgerId=ledger, entryId=entry, partition=-1).SerializeToString()
    metadata = {"component": b"compacted-ledger", "pulsar/compactedTo": horizon}
    with (
        Client(cluster.uri, digest="crc32") as client,
        client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=metadata) as writer,
    ):
        writer.append_many(stored)
    cursor = at(ledger, entry)
    cursor.properties.add(name="CompactedTopicLedger", value=writer.ledger_id)
    topic.subscription("__compaction", cursor)


def test_compacted_topic_has_chunks_and_transactions_after_its_horizon(
    cluster: Cluster, topic: StoredTopic, read: Callable, has_transactions: None
) -> None:
    """The first chunk may be before the horizon, and the messages of aborted transactions are not read."""
    chunks = chunked(Message(b"ab", "k"), 1, 1)
    aborted = single(Message(b"x", "k"), **TXN)
    first = topic.ledger([*numbered(0), chunks[0]])
    topic.ledger([*numbered(1), aborted, chunks[1], marker(22, (3, 7))])
    compact(cluster, topic, first, 1, [compacted(first, 0, single(Message(b"0", "a")))])
    for tasks in (1, 5):
        assert values(read(VALUE, readCompacted=True, minPartitions=tasks)) == [b"0", b"1", b"ab"]


def test_compacted_topic_whose_ledgers_were_all_trimmed_is_its_compacted_ledger(
    cluster: Cluster, topic: StoredTopic, read: Callable
) -> None:
    first = topic.ledger(numbered(0, 1))
    compact(cluster, topic, first, 1, [compacted(first, 1, single(Message(b"1", "a")))])
    topic.ledger([], is_open=True)
    topic.trim()
    assert values(read(VALUE, readCompacted=True)) == [b"1"]
    topic.writer.append_many(numbered(2))
    topic.roll()
    assert values(read(VALUE, readCompacted=True)) == [b"1", b"2"]


def test_schemas_and_the_compacted_ledger_have_the_empty_password(
    cluster: Cluster, topic: StoredTopic, read: Callable
) -> None:
    """managedLedgerPassword is that of the topic's own ledgers and of cursors."""
    topic.schemas(("INT32", b"", {}))
    stored = [single(Message(struct.pack(">i", number), "k"), number, schema_version=bytes(8)) for number in range(3)]
    with Client(cluster.uri, password=b"secret") as client:
        closed = StoredTopic(client, str(topic.name))
        ledger = closed.ledger(stored)
        compact(cluster, topic, ledger, 1, [compacted(ledger, 1, stored[1])])
        cursor = formats.PositionInfo(ledgerId=ledger, entryId=0)
        closed.subscription("s", at(ledger, -1), [cursor.SerializeToString()])
        assert values(read(password="secret")) == [0, 1, 2]
        assert values(read(password="secret", startingSubscription="s")) == [1, 2]
        assert values(read(password="secret", readCompacted=True)) == [1, 2]
        with pytest.raises(UnauthorizedAccess, match="managedLedgerPassword"):
            read()


def test_partitions_are_compacted_each_for_itself(cluster: Cluster, client: Client, topic: StoredTopic) -> None:
    parts = [StoredTopic(client, f"{topic.name}-partition-{number}") for number in range(3)]
    topic.partitioned(3)
    for number, part in enumerate(parts):
        ledger = part.ledger(numbered(10 * number, 10 * number + 1))
        if number:
            compact(cluster, part, ledger, 0, [compacted(ledger, 0, single(Message(b"c%d" % number, "a")))])
    found = rows_of(cluster.uri, topic.name, "value binary, __partition int", readCompacted=True)
    assert sorted((row["__partition"], row["value"]) for row in found) == [
        (0, b"0"),
        (0, b"1"),
        (1, b"11"),
        (1, b"c1"),
        (2, b"21"),
        (2, b"c2"),
    ]


# ---- positions ----


def test_place_in_a_batch_of_what_is_not_a_batch_is_its_message(topic: StoredTopic, read: Callable) -> None:
    """An encrypted batch that is returned as it is stored is one row, whatever place in it a position names."""
    sealed = metadata_of(num_messages_in_batch=5, compression=1, uncompressed_size=99)
    sealed.encryption_keys.add(key="k", value=b"secret")
    ledger = topic.ledger([*numbered(0, 1), framed(sealed, b"?")])
    for entry, expected in ((1, [b"1", b"?"]), (2, [b"?"])):
        assert values(read(VALUE, startingOffsets=f"{ledger}:{entry}:-1:3", encrypted="raw")) == expected
    assert values(read(VALUE, endingOffsets=f"{ledger}:1:-1:0", encrypted="raw")) == [b"0", b"1"]


def test_position_of_one_partition_needs_no_partition(cluster: Cluster, client: Client, topic: StoredTopic) -> None:
    part = StoredTopic(client, f"{topic.name}-partition-1")
    part.partitioned(2)
    ledger = part.ledger(numbered(0, 1, 2))
    for given in (f"{ledger}:1", f"{ledger}:1:1", f"{ledger}:1:-1:-1"):
        assert values(rows_of(cluster.uri, part.name, VALUE, startingOffsets=given)) == [b"1", b"2"]


@pytest.mark.parametrize("number", [0, 1])
def test_partition_that_no_broker_has_loaded_is_empty(cluster: Cluster, topic: StoredTopic, number: int) -> None:
    topic.partitioned(2)
    assert rows_of(cluster.uri, f"{topic.name}-partition-{number}", VALUE) == []
    with pytest.raises(NoSuchLog, match="partition-2 does not exist"):
        rows_of(cluster.uri, f"{topic.name}-partition-2", VALUE)


@pytest.mark.admission_control
def test_place_in_a_batch_is_not_one_of_the_next_ledger(cluster: Cluster, client: Client, topic: StoredTopic) -> None:
    """A stream begins within the next batch, its ledger ends before that, and other topics are read first."""
    other = StoredTopic(client, f"{topic.name}-other")
    other.ledger(numbered(5, 6))
    ledger = topic.ledger(numbered(0, 1))
    start = json.dumps({str(topic.name): f"{ledger}:2:-1:1", str(other.name): "earliest"})
    query = Query(cluster, topic, topics=f"{other.name},{topic.name}", startingOffsets=start, maxEntriesPerTrigger=1)
    topic.ledger([batch([Message(b"a"), Message(b"b")])])
    found = []
    for _ in range(3):
        found.append(query.batch())
        query.restart()  # a restarted query begins with the first topic
    assert found == ["5", "6", "a b"]


def test_message_in_chunks_has_the_time_of_its_last_one(topic: StoredTopic, read: Callable) -> None:
    """The chunks before may be of any time."""
    whole = chunked(Message(b"abc"), 1, 1)
    times = [PUBLISHED_MS - 100, PUBLISHED_MS + 900, PUBLISHED_MS + 5]
    topic.ledger([changed(entry, publish_time=time) for entry, time in zip(whole, times)])
    for start, expected in ((5, [b"abc"]), (6, [])):
        assert values(read(VALUE, startingTimestamp=PUBLISHED_MS + start)) == expected
        assert values(read(VALUE, startingTimestamp=PUBLISHED_MS + start, minPartitions=3)) == expected


def changed(entry: bytes, **fields: int) -> bytes:
    """Return an entry with other metadata."""
    size = int.from_bytes(entry[6:10])
    metadata = MessageMetadata.FromString(entry[10 : 10 + size])
    for name, value in fields.items():
        setattr(metadata, name, value)
    return framed(metadata, entry[10 + size :])


def test_encrypted_chunk_of_another_time_does_not_end_a_read(topic: StoredTopic, read: Callable) -> None:
    """No key joins the chunks, so each has its own time."""
    sealed = metadata_of(uuid="u", chunk_id=0, num_chunks_from_msg=2)
    sealed.encryption_keys.add(key="k", value=b"secret")
    topic.ledger([framed(sealed, b"?"), *numbered(1)])
    for encrypted in ("fail", "skip", "raw"):
        assert values(read(VALUE, startingTimestamp=PUBLISHED_MS + 1, encrypted=encrypted)) == [b"1"]


def test_first_chunk_is_found_after_another_one_was_searched_in_vain(topic: StoredTopic, read: Callable) -> None:
    """A task that has searched all earlier entries knows which messages have chunks there."""
    whole, headless, other = (chunked(Message(value), 1, number) for number, value in enumerate((b"ab", b"cd", b"ef")))
    ledger = topic.ledger([whole[0], *numbered(0), headless[1], other[1], whole[1]])
    found = read(VALUE, startingOffsets=f"{ledger}:1", mode="DROPMALFORMED")
    assert values(found) == [b"0", b"ab"]


def test_message_in_chunks_is_whole_beside_many_malformed_ones(topic: StoredTopic, read: Callable) -> None:
    damaged = changed(single(Message(b"x"), 2, 1), uncompressed_size=9)
    first, last = chunked(Message(b"ab"), 1, 1)
    topic.ledger([damaged] * 5 + [first] + [damaged] * 5 + [last] + [damaged] * 5)
    assert values(read(VALUE, mode="DROPMALFORMED")) == [b"ab"]
    assert [value for value in values(read(VALUE, mode="PERMISSIVE")) if value is not None] == [b"ab"]


# ---- schemas ----


def version(number: int) -> dict[str, bytes]:
    return {"schema_version": struct.pack(">q", number)}


@pytest.mark.parametrize("number", [-1, 1, (1 << 63) - 1, -(1 << 63)])
def test_version_that_the_schema_does_not_have_is_malformed(topic: StoredTopic, read: Callable, number: int) -> None:
    topic.schemas(("INT32", b"", {}))
    topic.ledger([single(Message(b"\0\0\0\1"), **version(0)), single(Message(b"\0\0\0\2"), **version(number))])
    with pytest.raises(MalformedPayload):
        read("value int")
    assert values(read("value int", mode="DROPMALFORMED")) == [1]
    assert values(read("value int", mode="PERMISSIVE")) == [1, None]


def test_message_without_a_version_is_malformed_where_the_newest_schema_has_a_type(
    topic: StoredTopic, read: Callable
) -> None:
    topic.schemas(("INT32", b"", {}))
    topic.ledger([single(Message(b"\0\0\0\1"), **version(0)), single(Message(b"\0\0\0\2"))])
    with pytest.raises(MalformedPayload):
        read("value int")
    assert values(read("value int", mode="PERMISSIVE")) == [1, None]


def test_inline_key_value_has_null_parts_beside_nested_ones(topic: StoredTopic, read: Callable) -> None:
    record = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "u", "type": ["null", "string", "int"], "default": None},
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
            {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
    schema = json.dumps(record).encode()
    about = {"key.schema.type": "INT32", "value.schema.type": "AVRO", "kv.encoding.type": "INLINE"}
    topic.schemas(("KEY_VALUE", struct.pack(">i", 0) + struct.pack(">i", len(schema)) + schema, about))
    value = b"\x04\x0a" + b"\x02" + b"xy" + b"\x02"  # int 5, B, xy, -1 ... 1 us

    def part(found: bytes | None) -> bytes:
        return struct.pack(">i", -1) if found is None else struct.pack(">i", len(found)) + found

    def pair(key: bytes | None, found: bytes | None) -> bytes:
        return part(key) + part(found)

    stored = [pair(b"\0\0\0\5", value), pair(None, value), pair(b"\0\0\0\6", None), pair(None, None)]
    topic.ledger([batch([*map(Message, stored), Message(None)], **version(0))])
    found = read()
    assert [row["key"] for row in found] == [5, None, 6, None, None]
    nested = {"u": {"member0": None, "member1": 5}, "e": "B", "f": b"xy"}
    assert [row["value"] and {name: row["value"][name] for name in nested} for row in found] == [
        nested,
        nested,
        None,
        None,
        None,
    ]


# ---- properties, markers, times ----


def test_properties_may_be_empty_or_repeated_and_the_last_one_counts(topic: StoredTopic, read: Callable) -> None:
    names = [("", "a"), ("k", ""), ("k", "1"), ("", ""), ("ü", "é"), ("k", "2")]
    topic.ledger([single(Message(b"0", properties=names)), batch([Message(b"1", properties=names), Message(b"2")])])
    found = [dict(row["__messageProperties"]) for row in read()]
    assert found == [{"": "", "k": "2", "ü": "é"}, {"": "", "k": "2", "ü": "é"}, {}]


def test_markers_among_chunks_and_at_both_ends_of_ledgers_are_passed_over(topic: StoredTopic, read: Callable) -> None:
    """Replicated subscriptions put snapshots between any messages."""
    first, second, third = chunked(Message(b"abc"), 1, 1)
    topic.ledger([marker(10), first, marker(11), second, marker(12)])
    topic.ledger([marker(13), marker(10)])
    topic.ledger([marker(11), third, marker(0), marker(99)])
    for tasks in (1, 4, 11):
        assert values(read(VALUE, minPartitions=tasks)) == [b"abc"]


def test_times_after_all_messages_and_between_them_select_by_row(
    cluster: Cluster, topic: StoredTopic, read: Callable
) -> None:
    topic.ledger(numbered(0, 2), closed_ms=PUBLISHED_MS + 3)
    topic.ledger(numbered(4), closed_ms=PUBLISHED_MS + 5)
    for start, end, expected in (
        (0, 1, [b"0"]),
        (1, 2, []),
        (2, 4, [b"2"]),
        (2, 5, [b"2", b"4"]),
        (4, None, [b"4"]),
        (5, None, []),
        (1 << 40, None, []),
    ):
        until = {} if end is None else {"endingTimestamp": PUBLISHED_MS + end}
        found = read(VALUE, startingTimestamp=PUBLISHED_MS + start, publishTimeSlack="0s", **until)
        assert values(found) == expected, (start, end)
    query = Query(cluster, topic, startingTimestamp=PUBLISHED_MS + 6)
    topic.ledger(numbered(5, 6, 3, 7))
    assert query.batch() == "6 7"


# ---- what else lies in bookies ----


def test_ledger_of_a_cursor_is_not_one_of_the_topic_whose_name_it_carries(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    topic.ledger(numbered(0))
    name = {"pulsar/managed-ledger": topic.name.managed_ledger.encode(), "pulsar/cursor": b"s"}
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=name) as writer:
        writer.append_many(numbered(7))
    topic.ledger(numbered(1))
    assert values(read(VALUE)) == [b"0", b"1"]


def test_delayed_replicated_and_repeated_messages_are_read_where_they_were_stored(
    topic: StoredTopic, read: Callable
) -> None:
    """A broker without deduplication stores what a producer sends again."""
    delayed = single(Message(b"0"), 0, deliver_at_time=PUBLISHED_MS + 86_400_000)
    replicated = single(Message(b"1"), 1, replicated_from="west")
    topic.ledger([delayed, replicated, replicated])
    topic.ledger([delayed])
    found = read("value binary, __sequenceId bigint, __deliverAt timestamp, __replicatedFrom string")
    shown = [(row["value"], row["__sequenceId"], row["__deliverAt"] is None, row["__replicatedFrom"]) for row in found]
    late, from_west = (b"0", 0, False, None), (b"1", 1, True, "west")
    assert shown == [late, from_west, from_west, late]
