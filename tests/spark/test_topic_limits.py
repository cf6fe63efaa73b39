"""Where reads of topics begin and end when the place named is not in reach, and what lies before it is gone."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bkspark.blocking import Client, run
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.pulsar.names import TopicName
from bkspark.spark.source import BookKeeperDataSource
from tests.cluster import Cluster
from tests.pulsar.entries import Message, batch, chunked, compacted, marker, single
from tests.pulsar.stored import StoredTopic, transaction_snapshots
from tests.spark.topic_reads import VALUE, numbered, values

pytestmark = pytest.mark.cluster


def of_transaction(number: int, value: bytes) -> bytes:
    return single(Message(value), txnid_most_bits=0, txnid_least_bits=number)


# ---- chunks before the first entry ----


def test_task_finds_the_first_chunk_of_a_message_however_many_entries_lie_between(
    topic: StoredTopic, read: Callable
) -> None:
    """It reads 16 entries backwards, then twice as many, and so on: no entry between these reads is left out."""
    for between in (0, 14, 15, 16, 17, 46, 47, 48, 49):
        first, last = chunked(Message(b"ab"), 1, between)
        ledger = topic.ledger([first, *numbered(*range(between)), last])
        place = f"{ledger}:{between + 1}"
        assert values(read(VALUE, startingOffsets=place, endingOffsets=place)) == [b"ab"], between


# ---- the open ledger ----


def opened(topic: StoredTopic, *entries: bytes) -> int:
    """Add a ledger that stays open, in which each entry confirms the one before it."""
    ledger = topic.ledger([], is_open=True)
    assert topic.writer is not None
    for entry in entries:
        topic.writer.append(entry)
    return ledger


def test_position_after_what_is_confirmed_is_refused_and_skips_nothing(topic: StoredTopic, read: Callable) -> None:
    ledger = opened(topic, *numbered(0, 1))
    assert values(read(VALUE, startingOffsets=f"{ledger}:1")) == []
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(ConfigurationError, match=f"message {ledger}:5, but topic .* ends before: use latest"):
            read(VALUE, **{option: f"{ledger}:5"})
    closed = topic.roll(numbered(2))
    assert values(read(VALUE, startingOffsets=f"{ledger}:5", endingOffsets=f"{closed}:-1")) == []
    for wrong in ({"startingOffsets": f"{closed}:1"}, {"endingOffsets": f"{closed}:0"}):
        with pytest.raises(ConfigurationError, match="ends before"):
            read(VALUE, **wrong)


def test_range_of_a_topic_that_ends_before_it_begins_is_refused(topic: StoredTopic, read: Callable) -> None:
    first = topic.ledger(numbered(0, 1))
    second = topic.ledger([batch([Message(b"2"), Message(b"3")]), *numbered(4)])
    for start, end in [(f"{second}:0", f"{first}:1"), (f"{second}:1", f"{second}:0:-1:1"),
                       (f"{second}:0:-1:1", f"{second}:0:-1:0")]:  # fmt: skip
        expected = (
            f"'startingOffsets' of topic {topic.name} is message {start}, after {end} of 'endingOffsets'.*exchange"
        )
        with pytest.raises(ConfigurationError, match=expected):
            read(VALUE, startingOffsets=start, endingOffsets=end)
    assert values(read(VALUE, startingOffsets=f"{second}:0:-1:1", endingOffsets=f"{second}:0")) == [b"3"]
    assert values(read(VALUE, startingOffsets=f"{first}:1", endingOffsets=f"{first}:1")) == [b"1"]
    one = f"{second}:0:-1:1"
    assert values(read(VALUE, startingOffsets=one, endingOffsets=one)) == [b"3"]


def test_last_entries_of_an_idle_topic_are_read_where_that_is_asked_for(topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(0))
    opened(topic, *numbered(1, 2))
    assert values(read(VALUE)) == [b"0", b"1"]
    assert values(read(VALUE, unconfirmed=True)) == [b"0", b"1", b"2"]
    assert values(read(VALUE, unconfirmed=True, startingOffsets=-1)) == [b"2"]
    assert topic.writer is not None
    topic.writer.append(numbered(3)[0])  # not fenced
    assert values(read(VALUE)) == [b"0", b"1", b"2"]


def test_unconfirmed_entries_of_a_topic_with_transactions_are_judged_by_them(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    with transaction_snapshots(client, topic):
        opened(topic, *numbered(0), of_transaction(1, b"t"), *numbered(1), marker(22, (0, 1)))
        assert values(read(VALUE)) == [b"0"]
        assert values(read(VALUE, unconfirmed=True)) == [b"0", b"1"]


# ---- message ids ----


def test_place_in_a_batch_leaves_out_no_message_that_is_not_of_a_batch(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger([*numbered(0), batch([Message(b"1"), Message(b"2")]), *numbered(3)])
    assert values(read(VALUE, startingOffsets=f"{ledger}:0:-1:1")) == [b"0", b"1", b"2", b"3"]
    assert values(read(VALUE, startingOffsets=f"{ledger}:1:-1:1")) == [b"2", b"3"]
    assert values(read(VALUE, endingOffsets=f"{ledger}:0:-1:0")) == [b"0"]


def test_place_in_a_batch_leaves_out_no_message_of_the_same_entry_of_another_ledger(
    topic: StoredTopic, read: Callable
) -> None:
    first = topic.ledger([batch([Message(b"0"), Message(b"1"), Message(b"2")])])
    second = topic.ledger([batch([Message(b"3"), Message(b"4"), Message(b"5")])])
    one_task = {"minPartitions": 1}
    assert values(read(VALUE, startingOffsets=f"{first}:0:-1:2", **one_task)) == [b"2", b"3", b"4", b"5"]
    assert values(read(VALUE, endingOffsets=f"{second}:0:-1:0", **one_task)) == [b"0", b"1", b"2", b"3"]


def partitions_of(client: Client, topic: StoredTopic, count: int) -> list[StoredTopic]:
    """Return the partitions of another topic, `topic`-p."""
    found = [StoredTopic(client, f"{topic.name}-p-partition-{number}") for number in range(count)]
    found[0].partitioned(count)
    return found


def test_id_with_a_partition_is_a_position_of_that_partition_alone(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    first, second = partitions_of(client, topic, 2)
    first.ledger(numbered(0, 1))
    ledger = second.ledger(numbered(2, 3, 4))
    first.ledger(numbered(5))
    whole = first.name.whole
    octets = list(formats.MessageIdData(ledgerId=ledger, entryId=1, partition=1).SerializeToString())
    for start in (f"{ledger}:1:1", f"{ledger}:1:1:-1", json.dumps({str(whole): octets})):
        assert values(read(VALUE, topic=whole, startingOffsets=start)) == [b"0", b"1", b"5", b"3", b"4"]
    assert values(read(VALUE, topic=whole, endingOffsets=f"{ledger}:0:1")) == [b"0", b"1", b"5", b"2"]
    assert values(read(VALUE, topic=second.name, startingOffsets=f"{ledger}:1:1")) == [b"3", b"4"]
    assert values(read(VALUE, topic=whole, startingOffsets="-1:-1:1")) == [b"0", b"1", b"5", b"2", b"3", b"4"]
    assert values(read(VALUE, topic=whole, endingOffsets="-1:-1:1")) == [b"0", b"1", b"5"]
    with pytest.raises(ConfigurationError, match=rf"partition-0 ends before.*\({ledger + 9}:1:PARTITION\)"):
        read(VALUE, topic=whole, startingOffsets=f"{ledger + 9}:1")


def test_id_with_a_partition_that_is_not_its_own_is_refused(client: Client, topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(9))
    first, second = partitions_of(client, topic, 2)
    before = first.ledger(numbered(0))
    ledger = second.ledger(numbered(1))
    first.ledger(numbered(2))
    second.ledger(numbered(3))
    whole = first.name.whole
    for start, wrong in (
        (f"{ledger}:0:2", "of partition 2, but of topic .*-p the offset is for partition 0 to 1"),
        (json.dumps({str(first.name): f"{ledger}:0:1"}), "of partition 1, but .* is for partition 0: correct"),
        (f"{ledger}:0:0", f"of partition 0, but ledger {ledger} belongs to {second.name}: give"),
        (f"{before}:0:1", f"of partition 1, but ledger {before} belongs to {first.name}: give"),
    ):
        for option in ("startingOffsets", "endingOffsets"):
            with pytest.raises(ConfigurationError, match=f"option '{option}' is message .*{wrong}"):
                read(VALUE, topic=whole, **{option: start})
    for more in ({}, {"failOnDataLoss": False}):
        wrong = rf"belongs to {first.name}, not to .*-1: .*\({before}:0:0\), or JSON"
        with pytest.raises(ConfigurationError, match=wrong):
            read(VALUE, topic=whole, startingOffsets=f"{before}:0", **more)
    with pytest.raises(ConfigurationError, match=f"{topic.name} has no partitions: give {ledger}:0$"):
        read(VALUE, startingOffsets=f"{ledger}:0:0")
    with pytest.raises(ConfigurationError, match="none of the topics that are read has this partition"):
        read(VALUE, topics=f"{topic.name},{whole}", startingOffsets=f"{ledger}:0:7")


@pytest.mark.parametrize("entry", [0, 1])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_id_without_a_partition_is_not_taken_for_a_position_of_the_other_partitions(
    client: Client, topic: StoredTopic, read: Callable, option: str, entry: int
) -> None:
    """Partition 0 would begin with message 4 and leave out 0 and 1, which may be newer than the message named."""
    first, second = partitions_of(client, topic, 2)
    first.ledger(numbered(0, 1))
    ledger = second.ledger(numbered(2, 3))
    first.ledger(numbered(4))
    with pytest.raises(
        ConfigurationError, match=rf"belongs to {second.name}, not to {first.name}: .*\({ledger}:{entry}:1\)"
    ):
        read(VALUE, topic=first.name.whole, **{option: f"{ledger}:{entry}"})


def test_id_of_a_message_in_chunks_is_read_as_java_prints_it(topic: StoredTopic, read: Callable) -> None:
    ledger = topic.ledger([*numbered(0), *chunked(Message(b"ab"), 1, 1), *numbered(2)])
    assert values(read(VALUE, startingOffsets=f"{ledger}:1:-1;{ledger}:2:-1")) == [b"ab", b"2"]


def test_count_of_a_topic_in_json_may_be_text(topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(0, 1, 2))
    for count in (-1, "-1"):
        assert values(read(VALUE, startingOffsets=json.dumps({str(topic.name): count}))) == [b"2"]


# ---- metadata stores ----


def test_partitions_are_those_of_the_configuration_store(
    cluster: Cluster, client: Client, topic: StoredTopic, read: Callable
) -> None:
    """Brokers have two addresses: metadataStoreUrl and configurationMetadataStoreUrl."""
    for number in range(2):
        StoredTopic(client, f"{topic.name}-two-partition-{number}").ledger(numbered(number))
    whole = TopicName.parse(f"{topic.name}-two")

    async def put() -> None:
        tree = await client.asynchronous.tree()
        await tree.create(f"/global{whole.partitions_path}", b'{"partitions": 2}', make_parents=True)

    run(put)
    servers = cluster.uri.removesuffix("/ledgers")
    assert values(read(VALUE, topic=whole, pulsarConfigurationUri=f"{servers}/global")) == [b"0", b"1"]
    with pytest.raises(NoSuchLog, match=f"{whole} does not exist"):
        read(VALUE, topic=whole)


# ---- transactions ----


def test_ledgers_that_are_not_read_are_not_looked_through_for_transactions_where_they_are_gone(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    gone = topic.ledger(numbered(0))
    topic.ledger(numbered(1))
    start = topic.ledger([of_transaction(1, b"t1"), of_transaction(2, b"t2"), marker(22, (0, 1)), marker(21, (0, 2))])
    offload = topic.info.ledgerInfo[1].offloadContext
    offload.complete = offload.bookkeeperDeleted = True
    offload.driverMetadata.name = "aws-s3"
    topic.save()
    client.delete(gone)
    with transaction_snapshots(client, topic):
        assert values(read(VALUE, startingOffsets=f"{start}:0")) == [b"t2"]
        assert values(read(VALUE, failOnDataLoss=False)) == [b"t2"]
        with pytest.raises(DataLoss, match="aws-s3"):
            read(VALUE)


# ---- patterns ----


def test_compacted_view_has_the_messages_without_a_key_that_the_compaction_kept(
    cluster: Cluster, topic: StoredTopic, read: Callable
) -> None:
    """Brokers keep them with topicCompactionRetainNullKey=true; those after the horizon are always there."""
    stored = batch([Message(b"x", "a"), Message(b"y"), Message(None, "a")], 4)
    ledger = topic.ledger([single(Message(b"nokey"), 0), single(Message(b"k", "k"), 1), stored, *numbered(9)])
    kept = batch([Message(b"", "a", more={"compacted_out": True}), Message(b"y"), Message(None, "a")], 4)
    horizon = formats.MessageIdData(ledgerId=ledger, entryId=2, partition=-1).SerializeToString()
    metadata = {"component": b"compacted-ledger", "pulsar/compactedTo": horizon}
    entries = [single(Message(b"nokey"), 0), single(Message(b"k", "k"), 1), kept]
    with (
        Client(cluster.uri, digest="crc32") as client,
        client.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=metadata) as writer,
    ):
        writer.append_many([compacted(ledger, place, entry) for place, entry in enumerate(entries)])
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger, markDeleteEntryId=2)
    cursor.properties.add(name="CompactedTopicLedger", value=writer.ledger_id)
    topic.subscription("__compaction", cursor)
    found = [(row["__key"], row["value"]) for row in read(None, readCompacted=True)]
    assert found == [(None, b"nokey"), (b"k", b"k"), (None, b"y"), (b"a", None), (None, b"9")]


def test_pattern_without_a_namespace_is_of_the_default_one(topic: StoredTopic, read: Callable) -> None:
    topic.ledger(numbered(0))
    for pattern in (topic.name.local, f"{topic.name.local[:-1]}.", f"persistent://public/default/{topic.name.local}"):
        assert values(read(VALUE, topicsPattern=pattern)) == [b"0"]
    with pytest.raises(ConfigurationError, match="topicsPattern"):
        read(VALUE, topicsPattern="default/x")


# ---- compacted ledgers ----


def test_compacted_ledger_that_is_named_by_itself_gives_the_messages_of_its_topic(
    cluster: Cluster, topic: StoredTopic
) -> None:
    horizon = formats.MessageIdData(ledgerId=7, entryId=9, partition=-1).SerializeToString()
    metadata = {
        "component": b"compacted-ledger",
        "pulsar/compactedTopic": str(topic.name).encode(),
        "pulsar/compactedTo": horizon,
    }
    gone = Message(b"", more={"compacted_out": True})
    with (
        Client(cluster.uri, digest="crc32") as other,
        other.create(ensemble=1, write_quorum=1, ack_quorum=1, metadata=metadata) as writer,
    ):
        writer.append_many([compacted(7, 3, batch([gone, Message(b"1")])), compacted(7, 9, numbered(2)[0])])
    data = topic.ledger(numbered(3))
    named = {"uri": cluster.uri, "ledgers": f"{writer.ledger_id},{data}", "payloadFormat": "pulsar"}
    source = BookKeeperDataSource(named | {"includeMetadata": "true"})
    reader = source.reader(source.schema())
    found = [row for part in reader.partitions() for rows in reader.read(part) for row in rows.to_pylist()]
    assert [(row["value"], row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in found] == [
        (b"1", 7, 3, 1),
        (b"2", 7, 9, None),
        (b"3", data, 0, None),
    ]
    assert {row["__topic"] for row in found} == {str(topic.name)}


def test_partition_that_is_named_beside_its_topic_is_read_once(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    first, second = (StoredTopic(client, f"{topic.name}-twice-partition-{number}") for number in range(2))
    first.partitioned(2)
    first.ledger(numbered(0))
    second.ledger(numbered(1))
    both = f"{second.name}, {first.name.whole}, {first.name}"
    assert sorted(values(read(VALUE, topics=both))) == [b"0", b"1"]
