"""Topics of which something is gone, or differs from what its list says, read on real bookies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from bkspark.blocking import Client, run
from bkspark.core.metadata import Fragment
from bkspark.errors import (
    ConfigurationError,
    DataLoss,
    MalformedPayload,
    MetadataFormat,
    NoSuchLog,
    UnauthorizedAccess,
)
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.spark import topics
from bkspark.spark.options import SourceOptions
from bkspark.spark.topic_read import TopicReader
from tests.cluster import Cluster
from tests.pulsar.entries import Message, chunked, marker, single
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import VALUE, columns_of, numbered, rows_of, table, values

pytestmark = pytest.mark.cluster


# ---- ledgers ----


def test_ledger_that_is_listed_and_gone_is_data_lost_of_the_topic(
    client: Client, topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    gone = topic.ledger(numbered(0))
    topic.ledger(numbered(1))
    client.delete(gone)
    with pytest.raises(DataLoss, match=f"ledger {gone} of topic {topic.name} does not exist any more.*startingOffsets"):
        read(VALUE)
    caplog.clear()
    assert values(read(VALUE, failOnDataLoss=False)) == [b"1"]
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"ledger {gone} of topic {topic.name} does not exist any more: 1 entry is lost and is left out"


def test_ledger_that_is_gone_before_the_start_does_not_count(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    """A task may look back into it for chunks; there are none."""
    gone = topic.ledger(numbered(0))
    start = topic.ledger(numbered(1))
    client.delete(gone)
    assert values(read(VALUE, startingOffsets=f"{start}:0")) == [b"1"]


def test_message_whose_first_chunk_was_trimmed_is_left_out_where_losses_are_allowed(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    """Chunks may cross ledgers; after trimming the first may be gone. Pulsar's consumer discards the others."""
    chunks, others = (chunked(Message(value), 1, number) for number, value in ((1, b"abc"), (2, b"xyz")))
    topic.ledger([chunks[0], others[0]])
    ledger = topic.ledger([*numbered(0), chunks[1], others[1], chunks[2], others[2], *numbered(1)])
    assert values(read(VALUE)) == [b"0", b"abc", b"xyz", b"1"]
    topic.trim()
    with pytest.raises(MalformedPayload, match=r"only 2 are stored.*trimmed, failOnDataLoss=false leaves it out"):
        read(VALUE)
    # Each task names the first one that it leaves out.
    for tasks, named in ((1, [3]), (3, [3, 4]), (6, [3, 4])):
        for mode in ("FAILFAST", "PERMISSIVE"):
            caplog.clear()
            found = read(VALUE, failOnDataLoss=False, mode=mode, minPartitions=tasks)
            assert values(found) == [b"0", b"1"]
            warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
            places = [text.partition(": its first chunks were trimmed, and it is left out")[0] for text in warned]
            assert places == [f"topic {topic.name}, message {ledger}:{entry}" for entry in named]


def test_message_whose_first_chunk_is_in_tiered_storage_is_left_out_as_its_ledger_is(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/pulsar.md: failOnDataLoss=false leaves out a ledger that exists only in tiered storage. It is not lost."""
    chunks = chunked(Message(b"abc"), 1, 1)
    topic.ledger(numbered(9))
    offloaded = topic.ledger([chunks[0]])
    last = topic.ledger([*numbered(0), *chunks[1:], *numbered(1)])
    offload = topic.info.ledgerInfo[1].offloadContext
    offload.complete = offload.bookkeeperDeleted = True
    offload.driverMetadata.name = "aws-s3"
    topic.save()
    where = f"first chunks are in tiered storage \\(ledger {offloaded}\\), or were trimmed"
    with pytest.raises(MalformedPayload, match=f"{where}, failOnDataLoss=false leaves it out"):
        read(VALUE, startingOffsets=f"{last}:0")
    for tasks in (1, 4):
        caplog.clear()
        assert values(read(VALUE, failOnDataLoss=False, minPartitions=tasks)) == [b"9", b"0", b"1"]
        (warned,) = [record.message for record in caplog.records if "chunks" in record.message]
        assert re.search(f"message {last}:2: its {where}, and it is left out: ", warned)


def test_message_that_lacks_a_later_chunk_is_malformed_where_losses_are_allowed(
    topic: StoredTopic, read: Callable
) -> None:
    first, _, last = chunked(Message(b"abc"), 1, 1)
    topic.ledger([first, *numbered(0)])
    topic.ledger([last, *numbered(1)])
    for tasks in (1, 4):
        with pytest.raises(MalformedPayload, match="only 2 are stored; read what is good"):
            read(VALUE, failOnDataLoss=False, minPartitions=tasks)


def test_message_whose_first_chunk_may_be_before_the_searched_entries_is_malformed(
    topic: StoredTopic, read: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of the search is not a loss."""
    monkeypatch.setattr(topics, "LOOK_BACK_ENTRIES", 2)
    first, last = chunked(Message(b"ab"), 1, 1)
    topic.ledger([first, *numbered(0, 1)])
    ledger = topic.ledger([last])
    with pytest.raises(MalformedPayload, match="only 1 are stored; read what is good"):
        read(VALUE, failOnDataLoss=False, startingOffsets=f"{ledger}:0")


def test_ledger_is_read_to_its_own_end_where_the_list_says_less(topic: StoredTopic, read: Callable) -> None:
    """As brokers do: a repair beside the close may have found more."""
    topic.ledger(numbered(0, 1, 2))
    topic.ledger(numbered(3))
    topic.info.ledgerInfo[0].entries = 2
    topic.save()
    assert values(read(VALUE)) == [b"0", b"1", b"2", b"3"]
    assert values(read(VALUE, minPartitions=4)) == [b"0", b"1", b"2", b"3"]


def test_ledger_that_has_fewer_entries_than_its_list_says_is_data_lost(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    short = topic.ledger(numbered(0, 1))
    topic.ledger(numbered(2))
    topic.info.ledgerInfo[0].entries = 5
    topic.save()
    with pytest.raises(DataLoss, match=f"ledger {short} of topic {topic.name} ends at entry 1, .*failOnDataLoss=false"):
        read(VALUE)
    caplog.clear()
    assert values(read(VALUE, failOnDataLoss=False)) == [b"0", b"1", b"2"]
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"ledger {short} of topic {topic.name} ends at entry 1: 3 entries are lost and are left out"
    assert values(read(VALUE, failOnDataLoss=False, maxEntriesPerPartition=1)) == [b"0", b"1", b"2"]


def aborted(number: int) -> bytes:
    return single(Message(b"aborted"), number, txnid_most_bits=0, txnid_least_bits=1)


@pytest.mark.usefixtures("has_transactions")
def test_entries_that_a_listed_ledger_lacks_do_not_hide_transactions(topic: StoredTopic, read: Callable) -> None:
    short = topic.ledger([aborted(0), *numbered(1)])
    topic.ledger([aborted(2), marker(22, (0, 1)), *numbered(3)])
    topic.info.ledgerInfo[0].entries = 5
    topic.save()
    with pytest.raises(DataLoss, match=f"ledger {short} of topic {topic.name} ends at entry 1, .*failOnDataLoss=false"):
        read(VALUE)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"1", b"3"]


@pytest.mark.usefixtures("has_transactions")
def test_entries_that_bookies_lost_do_not_hide_transactions(client: Client, topic: StoredTopic, read: Callable) -> None:
    damaged = topic.ledger([aborted(0), *numbered(1)])
    topic.ledger([aborted(2), marker(22, (0, 1)), *numbered(3)])

    async def claim_more() -> None:
        ledgers = (await client.asynchronous.context()).ledgers
        stored = await ledgers.read(damaged)
        await ledgers.write(damaged, replace(stored.metadata, last_entry=3), stored.version)

    run(claim_more)
    with pytest.raises(DataLoss, match=f"^topic {topic.name}, message {damaged}:2: .*failOnDataLoss=false"):
        read(VALUE)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"1", b"3"]


@pytest.mark.usefixtures("has_transactions")
def test_entries_that_are_left_between_lost_ones_do_not_hide_transactions(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    """Two of the three bookies of a striped ledger lost their entries."""
    with client.create(ensemble=3, write_quorum=1, ack_quorum=1) as writer:
        entries = [aborted(0), *numbered(1, 2), marker(22, (0, 1)), *numbered(4, 5, 6)]
        writer.append_many(entries)
    topic.info.ledgerInfo.add(ledgerId=writer.ledger_id, timestamp=1, entries=7, size=sum(map(len, entries)))
    topic.save()

    async def lose_two_of_three() -> None:
        ledgers = (await client.asynchronous.context()).ledgers
        stored = await ledgers.read(writer.ledger_id)
        first, second, third = stored.metadata.fragments[0].bookies
        exchanged = replace(stored.metadata, fragments=(Fragment(0, (first, third, second)),))
        await ledgers.write(writer.ledger_id, exchanged, stored.version)

    run(lose_two_of_three)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"6"]


def test_ledger_before_the_start_that_has_fewer_entries_than_listed_does_not_count(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    """A task may look back into it for chunks."""
    topic.ledger(numbered(0))
    start = topic.ledger(numbered(1))
    topic.info.ledgerInfo[0].entries = 5
    topic.save()
    assert values(read(VALUE, startingOffsets=f"{start}:0")) == [b"1"]
    assert values(read(VALUE, startingOffsets=f"{start}:0", failOnDataLoss=False)) == [b"1"]
    assert not any("lost" in record.message for record in caplog.records)


def test_column_that_the_topic_lacks_is_refused_when_the_read_is_planned(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    StoredTopic(client, f"{topic.name}-x")
    topic.ledger(numbered(0))
    for columns, words in (
        ("valeu binary", "'valeu' is not in topic"),
        ("value date", "cannot be date32"),
    ):
        given = SourceOptions.parse({"uri": cluster.uri, "topics": f"{topic.name},{topic.name}-x"})
        with pytest.raises(ConfigurationError, match=words):
            TopicReader(columns_of(columns), given).partitions()
        given = SourceOptions.parse({"uri": cluster.uri, "topic": f"{topic.name}-x"})
        assert TopicReader(columns_of(columns), given).partitions() == [], "it may get a schema with its first message"


def test_entry_that_bookies_lost_is_named_as_a_message_of_its_topic(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = topic.ledger(numbered(0, 1))

    def read(**options: str) -> list[bytes]:
        given = SourceOptions.parse({"uri": cluster.uri, "topic": str(topic.name), **options})
        reader = TopicReader(columns_of(VALUE), given)
        (task,) = reader.partitions()
        task.reads = tuple(replace(each, end_entry=4) for each in task.reads)
        return [value for rows in reader.read(task) for value in rows["value"].to_pylist()]

    place = f"topic {topic.name}, message {ledger}:2"
    with pytest.raises(DataLoss, match=f"^{place}: .*failOnDataLoss=false"):
        read()
    caplog.clear()
    assert read(failOnDataLoss="false") == [b"0", b"1"]
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning == f"{place}: entries 2-3 of ledger {ledger} are gone and are left out"


def test_open_ledger_that_is_listed_and_gone_is_data_lost_of_the_topic(
    client: Client, topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger(numbered(0))
    gone = topic.ledger(numbered(1), is_open=True)
    client.delete(gone)
    lost = f"ledger {gone} of topic {topic.name} does not exist any more"
    with pytest.raises(DataLoss, match=lost):
        read(VALUE)
    caplog.clear()
    assert values(read(VALUE, failOnDataLoss=False)) == [b"0"]
    assert [lost in record.message for record in caplog.records].count(True) == 1


def test_warning_of_entries_that_are_not_confirmed_names_what_brokers_must_set(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger(numbered(0), is_open=True)
    assert topic.writer is not None
    topic.writer.append(numbered(1)[0])
    assert values(read(VALUE)) == [b"0"]
    (warning,) = [record.message for record in caplog.records if "not confirmed" in record.message]
    assert str(topic.name) in warning
    assert "the last 1 entries" in warning
    assert "bookkeeperExplicitLacIntervalInMills=100" in warning
    topic.writer.close()
    caplog.clear()
    assert values(read(VALUE)) == [b"0", b"1"]
    assert not [record.message for record in caplog.records if "not confirmed" in record.message]


@pytest.mark.parametrize("is_open", [False, True])
def test_wrong_password_names_the_option_and_the_brokers_setting(
    topic: StoredTopic, read: Callable, is_open: bool
) -> None:
    topic.ledger(numbered(0, 1), is_open=is_open)
    with pytest.raises(UnauthorizedAccess, match=r"'password'.*managedLedgerPassword"):
        read(VALUE, password="other")


# ---- shadows and subscriptions ----


def test_shadow_topic_names_the_topic_that_has_its_messages(topic: StoredTopic, read: Callable) -> None:
    topic.info.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://public/default/source")
    topic.save()
    with pytest.raises(ConfigurationError, match=r"shadow of persistent://public/default/source.*read that topic"):
        read(VALUE)


def test_partition_that_was_never_loaded_has_no_subscription_and_no_messages(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    part = StoredTopic(client, f"{topic.name}-p-partition-0")
    part.partitioned(2)
    ledger = part.ledger(numbered(0, 1))
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger, markDeleteEntryId=0)
    part.subscription("s", cursor)
    assert values(read(VALUE, topic=part.name.whole, startingSubscription="s")) == [b"1"]
    second = StoredTopic(client, f"{topic.name}-p-partition-1")
    second.ledger(numbered(2))
    with pytest.raises(NoSuchLog, match=f"topic {second.name} has no subscription 's'; there are none: correct"):
        read(VALUE, topic=part.name.whole, startingSubscription="s")


def test_compacted_ledger_that_is_gone_or_says_not_what_it_holds_is_an_error_of_the_topic(
    client: Client, topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    first = topic.ledger(numbered(0, 1))

    def compacted_in(ledger_id: int) -> None:
        cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=first, markDeleteEntryId=0)
        cursor.properties.add(name="CompactedTopicLedger", value=ledger_id)
        topic.subscription("__compaction", cursor)

    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        writer.append(b"x")
    compacted_in(writer.ledger_id)
    with pytest.raises(MetadataFormat, match=f"{topic.name} names as its compacted one.*compact the topic again"):
        read(VALUE, readCompacted=True)
    client.delete(writer.ledger_id)
    with pytest.raises(DataLoss, match=f"the compacted ledger {writer.ledger_id} of topic {topic.name} does not exist"):
        read(VALUE, readCompacted=True)
    with caplog.at_level("WARNING"):
        assert values(read(VALUE, readCompacted=True, failOnDataLoss=False)) == [b"0", b"1"]
    assert "the topic's own ledgers are read" in caplog.text
    compacted_in(-1)
    assert values(read(VALUE, readCompacted=True)) == [b"0", b"1"]


def test_topic_that_is_called_like_a_partition_is_a_topic(cluster: Cluster, client: Client, topic: StoredTopic) -> None:
    """What is left of a partitioned topic whose node was deleted, or says that it is being deleted."""
    left = StoredTopic(client, f"{topic.name}-gone-partition-0")
    left.ledger(numbered(7))
    pattern = f"public/default/{topic.name.local}-.*"
    assert values(rows_of(cluster.uri, None, VALUE, topicsPattern=pattern)) == [b"7"]
    assert str(left.name) in {row["topic"] for row in table(cluster.uri, "topics")}
    with pytest.raises(NoSuchLog, match=f"topic {left.name.whole} does not exist.*there are .*{left.name}"):
        rows_of(cluster.uri, left.name.whole, VALUE)
    left.partitioned(0)
    topic.ledger(numbered(1))
    pattern = f"public/default/{topic.name.local}.*"
    assert values(rows_of(cluster.uri, None, VALUE, topicsPattern=pattern)) == [b"1"]
    assert str(topic.name) in {row["topic"] for row in table(cluster.uri, "topics")}


def test_fields_whose_names_differ_in_case_alone_keep_their_values(topic: StoredTopic, read: Callable) -> None:
    fields = [{"name": name, "type": "int"} for name in ("a", "A")]
    topic.schemas(("JSON", json.dumps({"type": "record", "name": "R", "fields": fields}).encode(), {}))
    topic.ledger([single(Message(b'{"a": 1, "A": 2}'), schema_version=bytes(8))])
    (row,) = read("a int, A int")
    assert (row["a"], row["A"]) == (1, 2)


def test_value_of_an_older_version_that_cannot_be_one_of_the_newest_says_so(topic: StoredTopic, read: Callable) -> None:
    def sized(part: bytes) -> bytes:
        return len(part).to_bytes(4, "big") + part

    record = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}).encode()
    kinds = {"key.schema.type": "STRING", "value.schema.type": "STRING"}
    topic.schemas(
        ("KEY_VALUE", sized(b"") * 2, kinds),
        ("KEY_VALUE", sized(b"") + sized(record), kinds | {"value.schema.type": "JSON"}),
    )
    topic.ledger([single(Message(sized(b"k") + sized(b"v")), schema_version=bytes(8))])
    with pytest.raises(MalformedPayload, match=r"its value was written with a schema of STRING, but .* newest is JSON"):
        read()
    assert read(mode="DROPMALFORMED") == []
