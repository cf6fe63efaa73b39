"""Streams of Pulsar's topics on real bookies: offsets, limits and losses, without a Spark session."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import Client
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.spark.options import SourceOptions
from bkspark.spark.progress import ENTRIES_BEHIND
from bkspark.spark.topic_stream import TopicStreamReader
from bkspark.spark.topics import TopicPartition, TopicPlanner
from bkspark.spark.versions import ReadAllAvailable, ReadMaxRows
from tests.cluster import Cluster
from tests.pulsar.entries import (
    PUBLISHED_MS,
    Message,
    batch,
    chunked,
    framed,
    marker,
    metadata_of,
    single,
)
from tests.pulsar.stored import StoredTopic, transaction_snapshots
from tests.spark.topic_queries import SCHEMA, Query
from tests.spark.topic_reads import numbered

pytestmark = [pytest.mark.cluster, pytest.mark.admission_control]


def test_stream_follows_the_open_ledger_its_successors_and_restarts(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0))
    topic.ledger([], is_open=True)
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0"
    for number in (1, 2, 3):
        topic.writer.append(numbered(number)[0])
    assert query.batch() == "1 2"
    query.restart()
    assert query.batch() == ""
    topic.roll(numbered(4), is_open=False)
    topic.ledger(numbered(5), is_open=False)
    assert query.batch() == "3 4 5"
    assert query.batch() == ""


def test_stream_begins_at_the_end_unless_an_option_says_otherwise(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0, 1))
    query = Query(cluster, topic)
    topic.ledger(numbered(2))
    assert query.batch() == "2"
    assert Query(cluster, topic, startingOffsets="-2").batch() == "1 2"


def test_start_within_a_batch_and_at_a_time_holds_over_a_restart(cluster: Cluster, topic: StoredTopic) -> None:
    ledger = topic.ledger([batch([Message(b"0"), Message(b"1"), Message(b"2")]), *numbered(3)])
    query = Query(cluster, topic, startingOffsets=f"{ledger}:0:-1:2")
    query.restart()
    assert query.batch() == "2 3"
    query = Query(cluster, topic, startingTimestamp=PUBLISHED_MS + 3)
    query.restart()
    assert query.batch() == "3"
    topic.ledger(numbered(1, 7))
    assert query.batch() == "7"


def test_start_within_a_batch_by_a_subscription_is_kept_while_the_subscription_moves_on(
    cluster: Cluster, topic: StoredTopic
) -> None:
    ledger = topic.ledger([batch([Message(b"0"), Message(b"1"), Message(b"2")]), *numbered(3)])
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger, markDeleteEntryId=-1)
    partial = cursor.batchedEntryDeletionIndexInfo.add(deleteSet=[0b110])
    partial.position.ledgerId, partial.position.entryId = ledger, 0
    topic.subscription("s", cursor)
    query = Query(cluster, topic, startingSubscription="s")
    cursor.markDeleteEntryId = 1
    topic.subscription("s", cursor)
    query.restart()
    assert query.batch() == "1 2 3"


def test_start_within_a_batch_is_kept_while_micro_batches_have_other_topics_only(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    other = StoredTopic(client, f"{topic.name}-other")
    ledger = topic.ledger([batch([Message(b"0"), Message(b"1"), Message(b"2")])])
    other.ledger(numbered(5, 6, 7))
    start = json.dumps({str(topic.name): f"{ledger}:0:-1:1", str(other.name): "earliest"})
    query = Query(cluster, topic, topics=f"{other.name},{topic.name}", startingOffsets=start, maxEntriesPerTrigger=1)
    found = []
    for _ in range(4):
        found.append(query.batch())
        query.restart()  # a restarted query begins with the first topic
    assert found == ["5", "6", "7", "1 2"]


def test_limits_bound_micro_batches_and_all_is_read_once(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0, 1, 2))
    topic.ledger(numbered(3, 4))
    query = Query(cluster, topic, startingOffsets="earliest", maxEntriesPerTrigger=2)
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxRows)
    assert [query.batch() for _ in range(4)] == ["0 1", "2 3", "4", ""]
    query = Query(cluster, topic, startingOffsets="earliest", maxEntriesPerTrigger=2)
    query.reader.prepareForTriggerAvailableNow()
    topic.ledger(numbered(5))
    assert [query.batch() for _ in range(4)] == ["0 1", "2 3", "4", ""]
    assert query.batch(ReadAllAvailable()) == ""
    query.restart()
    assert query.batch(ReadAllAvailable()) == "5"


def test_partitions_and_topics_that_appear_are_read_from_their_beginning(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    first = StoredTopic(client, f"{topic.name}-x-partition-0")
    first.partitioned(1)
    first.ledger(numbered(0))
    query = Query(cluster, topic, topicsPattern=f"public/default/{topic.name.local}-.*", startingOffsets="earliest")
    assert query.batch() == "0"
    second = StoredTopic(client, f"{topic.name}-x-partition-1")
    first.partitioned(2)
    second.ledger(numbered(1))
    other = StoredTopic(client, f"{topic.name}-y")
    other.ledger(numbered(2))
    assert [query.batch(), query.batch()] == ["", "1 2"]
    assert sorted(query.offset["topics"]) == [f"{topic.name}-x", f"{topic.name}-y"]


def test_trimmed_ledgers_that_were_read_are_not_a_loss_and_others_are(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger(numbered(0))
    topic.ledger([], is_open=True)
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0"
    topic.trim()
    topic.writer.append(numbered(1)[0])
    topic.roll(numbered(2), is_open=False)
    assert query.batch() == "1 2"
    topic.ledger(numbered(3))
    topic.ledger(numbered(4))
    topic.trim(3)
    noted = query.offset["topics"][str(topic.name)]["-1"]
    place = f"message {noted['ledger']}:{noted['entry']}"
    lost = f"{topic.name} was trimmed, or deleted and created again: what was unread, from {place} on, is lost"
    with pytest.raises(DataLoss, match=f"{lost}; .*failOnDataLoss=false"):
        query.batch()
    allowed = Query(cluster, topic, failOnDataLoss="false")
    allowed.offset = query.offset
    caplog.clear()
    assert allowed.batch() == "4"
    assert allowed.batch() == ""
    assert [lost in record.message for record in caplog.records].count(True) == 2, "once by each of the two readers"


def test_topic_that_is_created_again_between_two_looks_is_a_loss_as_a_trimmed_one(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    """Nothing in Pulsar's metadata tells the two apart."""
    topic.ledger(numbered(0))
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0"
    topic.delete()
    StoredTopic(client, str(topic.name)).ledger(numbered(1))
    with pytest.raises(DataLoss, match=f"{topic.name} was trimmed, or deleted and created again"):
        query.batch()


def test_empty_ledger_that_a_broker_drops_is_not_a_loss(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0))
    empty = topic.ledger([], is_open=True)
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0"
    assert query.offset["topics"][str(topic.name)]["-1"] == {"entry": 0, "ledger": empty}
    topic.writer.close()
    del topic.info.ledgerInfo[-1]
    topic.ledger(numbered(1))
    assert query.batch() == "1"


def test_topic_deleted_under_a_stream_is_a_loss(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0))
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0"
    topic.delete()
    with pytest.raises(DataLoss, match=rf"topic {topic.name} was deleted: .*from message \d+:1 on, is lost") as raised:
        query.batch()
    assert "{" not in str(raised.value)


@pytest.mark.parametrize("noted", [{"batch": 2, "entry": 3, "ledger": 12}, {"entry": 0, "ledger": -1}])
def test_positions_in_errors_are_ids_of_messages(cluster: Cluster, topic: StoredTopic, noted: dict) -> None:
    topic.ledger(numbered(0))
    query = Query(cluster, topic, startingOffsets="earliest")
    topic.delete()
    place = "message 12:3:1:2" if noted["ledger"] >= 0 else "the beginning"
    offset = {"topics": {str(topic.name): {"1": noted}}, "version": 1}
    with pytest.raises(DataLoss, match=f"topic {topic.name}-partition-1 was deleted: .*from {place} on"):
        query.reader.latestOffset(offset, ReadAllAvailable())


def test_stream_stops_before_an_open_transaction_and_leaves_aborted_ones_out(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    def of(number: int) -> bytes:
        return single(Message(b"t%d" % number), txnid_most_bits=0, txnid_least_bits=number)

    with transaction_snapshots(client, topic):
        topic.ledger([*numbered(0), of(1), *numbered(1), of(2)])
        query = Query(cluster, topic, startingOffsets="earliest", maxEntriesPerTrigger=2)
        assert [query.batch(), query.batch()] == ["0", ""]
        topic.ledger([marker(22, (0, 2))])
        assert query.batch() == ""
        query.restart()
        topic.ledger([marker(21, (0, 1)), *numbered(2)])
        assert [query.batch() for _ in range(5)] == ["t1 1", "", "2", "", ""]


@pytest.mark.parametrize("limit", [1, 2, 3, None])
def test_aborted_batches_are_left_out_wherever_micro_batches_are_cut(
    cluster: Cluster, client: Client, topic: StoredTopic, limit: int | None
) -> None:
    def of(txn: int, *values: bytes) -> bytes:
        return batch([Message(value) for value in values], txnid_most_bits=0, txnid_least_bits=txn)

    with transaction_snapshots(client, topic):
        topic.ledger([of(1, b"a1", b"a2"), of(2, b"c1"), of(1, b"a3"), of(2, b"c2", b"c3")])
        topic.ledger([of(1, b"a4"), marker(22, (0, 1)), marker(21, (0, 2)), *numbered(9)])
        limits = {} if limit is None else {"maxEntriesPerTrigger": limit}
        query = Query(cluster, topic, startingOffsets="earliest", **limits)
        assert " ".join(filter(None, (query.batch() for _ in range(10)))) == "c1 c2 c3 9"


def test_message_in_chunks_is_read_once_though_micro_batches_cut_it(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger([*numbered(0), *chunked(Message(b"abcdef"), 2, 1), *numbered(2)])
    query = Query(cluster, topic, startingOffsets="earliest", maxEntriesPerTrigger=2)
    assert [query.batch() for _ in range(3)] == ["0", "abcdef", "2"]


def test_checkpoint_of_another_source_is_refused(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0))
    query = Query(cluster, topic)
    for offset in (
        {"rows": 1},
        {"topics": {}, "version": 2},
        {"topics": {}, "version": 1, "more": 1},
        {"topics": {}, "version": 1, "since": "yesterday"},
        {"topics": {"//": {"-1": {"entry": 0, "ledger": 1}}}, "version": 1},
        {"topics": {str(topic.name): {"0": {"entry": -5}}}, "version": 1},
    ):
        with pytest.raises(ConfigurationError, match="the checkpoint's offset"):
            query.reader.latestOffset(offset, ReadAllAvailable())


def test_retention_or_a_subscription_is_asked_for_once(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger(numbered(0))
    query = Query(cluster, topic)
    query.batch()
    assert sum("has no subscription" in record.message for record in caplog.records) == 1
    caplog.clear()
    topic.subscription("s", formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=0, markDeleteEntryId=-1))
    Query(cluster, topic)
    assert not any("has no subscription" in record.message for record in caplog.records)


def test_stream_that_begins_before_the_end_says_what_only_the_compacted_ledger_has(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the oldest messages of a compacted topic would be missing silently."""
    topic.ledger(numbered(0))
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=0, markDeleteEntryId=-1)
    topic.subscription("__compaction", cursor)
    query = Query(cluster, topic, startingOffsets="earliest")
    query.batch()
    query.restart()
    query.batch()
    assert sum(f"topic {topic.name} was compacted: " in record.message for record in caplog.records) == 1
    caplog.clear()
    Query(cluster, topic).batch()
    assert not any("was compacted" in record.message for record in caplog.records)


@pytest.mark.parametrize("policies", [b"{", b"[]", b'{"retention_policies": 3}'])
def test_policies_that_cannot_be_read_do_not_end_a_stream(
    cluster: Cluster, client: Client, topic: StoredTopic, caplog: pytest.LogCaptureFixture, policies: bytes
) -> None:
    """They are read for a warning only."""
    other = StoredTopic(client, f"{topic.name.tenant}/{topic.name.local}/t")
    other.put_policies(policies)
    other.ledger(numbered(0))
    query = Query(cluster, other, startingOffsets="earliest")
    assert [query.batch(), query.batch()] == ["0", ""]
    found = sum("it holds no policies of a namespace" in record.message for record in caplog.records)
    assert found == 2, "once by each of the two readers"


def test_other_topics_go_on_where_one_of_them_is_deleted_and_created_again(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    """The loss is allowed: what is left is read once, and the topic again once it is there."""
    other = StoredTopic(client, f"{topic.name}-other")
    topic.ledger(numbered(0))
    other.ledger(numbered(1))
    both = f"{topic.name},{other.name}"
    query = Query(cluster, topic, topics=both, startingOffsets="earliest", failOnDataLoss="false")
    assert query.batch() == "0 1"
    topic.delete()
    other.ledger(numbered(2))
    assert query.batch() == "2"
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == ""
    query.restart()
    StoredTopic(client, str(topic.name)).ledger(numbered(3))
    assert [query.batch(), query.batch(), query.batch()] == ["", "3", ""]


def test_topic_that_was_deleted_may_come_back_under_a_stream(
    cluster: Cluster, client: Client, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger(numbered(0))
    query = Query(cluster, topic, startingOffsets="earliest", failOnDataLoss="false")
    assert query.batch() == "0"
    topic.delete()
    assert query.batch() == ""
    assert any("does not exist" in record.message for record in caplog.records)
    caplog.clear()
    assert [query.batch(), query.batch()] == ["", ""]
    assert not caplog.records, "reported once"
    StoredTopic(client, str(topic.name)).ledger(numbered(1))
    assert [query.batch(), query.batch()] == ["", "1"]


def test_open_transaction_of_a_topic_that_was_deleted_does_not_stop_the_one_that_comes_back(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    with transaction_snapshots(client, topic):
        topic.ledger([*numbered(0), single(Message(b"t"), txnid_most_bits=0, txnid_least_bits=1)])
        query = Query(cluster, topic, startingOffsets="earliest", failOnDataLoss="false")
        assert query.batch() == "0"
        topic.delete()
        assert query.batch() == ""
        StoredTopic(client, str(topic.name)).ledger(numbered(1))
        assert [query.batch(), query.batch()] == ["", "1"]


def test_new_stream_of_a_topic_that_does_not_exist_is_refused(cluster: Cluster, topic: StoredTopic) -> None:
    topic.delete()
    with pytest.raises(NoSuchLog, match="does not exist"):
        Query(cluster, topic, failOnDataLoss="false")


def test_pattern_may_match_no_topic_yet(cluster: Cluster, client: Client, topic: StoredTopic) -> None:
    query = Query(cluster, topic, topicsPattern=f"public/default/{topic.name.local}-later-.*")
    assert query.batch() == ""
    StoredTopic(client, f"{topic.name}-later-x").ledger(numbered(0, 1))
    assert [query.batch(), query.batch(), query.batch()] == ["", "0 1", ""]


def test_bytes_and_a_least_number_of_entries_bound_micro_batches(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0, 1))
    query = Query(cluster, topic, startingOffsets="earliest", maxBytesPerTrigger=1)
    assert [query.batch() for _ in range(3)] == ["0", "1", ""]
    query = Query(cluster, topic, startingOffsets="earliest", minEntriesPerTrigger=3, maxTriggerDelay="1h")
    assert query.batch() == ""
    assert lag_of(query) == 2
    topic.ledger(numbered(2))
    assert query.batch() == "0 1 2"
    assert lag_of(query) == 0


def lag_of(query: Query) -> int:
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    return int(reported[ENTRIES_BEHIND])


def test_partition_that_appears_is_read_whole_where_spark_does_not_say_from_where(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    """Before Spark 4.2 the end of a micro-batch is asked for without its beginning."""
    first = StoredTopic(client, f"{topic.name}-z-partition-0")
    first.partitioned(1)
    first.ledger(numbered(0))
    query = Query(cluster, topic, topics=f"{topic.name}-z", startingOffsets="earliest")
    found = []
    for number in (0, 1, 2):
        end = query.reader.latestOffset()
        found.append(query.values(query.reader, end))
        assert found[-1] == query.values(query.new_reader(), end)
        query.offset = end
        if number == 0:
            first.partitioned(2)
            StoredTopic(client, f"{topic.name}-z-partition-1").ledger(numbered(1, 2))
    assert found == [[b"0"], [b"1", b"2"], []]


def test_subscriptions_of_pulsar_itself_keep_nothing_for_a_stream(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """They move on with what Pulsar does, whether the stream has read or not."""
    topic.ledger(numbered(0))
    for name in ("__compaction", "pulsar.dedup", "pulsar.repl.other"):
        topic.subscription(
            name, formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=0, markDeleteEntryId=-1)
        )
    Query(cluster, topic)
    assert any("has no subscription" in record.message for record in caplog.records)


def test_start_after_the_end_of_the_open_ledger_is_refused_and_skips_nothing(
    cluster: Cluster, topic: StoredTopic
) -> None:
    ledger = topic.ledger(numbered(0), is_open=True)
    topic.writer.append(numbered(1)[0])
    query = Query(cluster, topic, startingOffsets=f"{ledger}:1")
    with pytest.raises(ConfigurationError, match="ends before: use latest"):
        Query(cluster, topic, startingOffsets=f"{ledger}:9")
    topic.writer.append(numbered(2)[0])
    assert query.batch() == "1"


class ReaderOfSlowTriggers(TopicStreamReader):
    """Its triggers are `seconds` apart, by its own clock."""

    seconds = 60
    triggers = 0

    def _new_planner(self) -> TopicPlanner:
        planner = super()._new_planner()
        self.triggers += 1
        planner.now_ms += 1000 * self.seconds * self.triggers
        return planner


def test_time_for_which_entries_are_unconfirmed_begins_with_the_last_of_them(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger(numbered(0), is_open=True)
    reader = ReaderOfSlowTriggers(SCHEMA, SourceOptions.parse({"uri": cluster.uri, "topic": str(topic.name)}))
    reader.seconds = 40
    start = reader.initialOffset()
    for entries, warnings in ((1, 0), (2, 0), (2, 0), (2, 1)):
        if topic.writer.last_entry < entries:
            topic.writer.append(numbered(entries)[0])
        reader.latestOffset(start, ReadAllAvailable())
        assert sum("are not confirmed yet" in record.message for record in caplog.records) == warnings


def test_entries_that_stay_unconfirmed_are_reported_once_with_what_brokers_must_set(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> int:
        return sum("bookkeeperExplicitLacIntervalInMills=100" in record.message for record in caplog.records)

    topic.ledger(numbered(0), is_open=True)
    options = SourceOptions.parse({"uri": cluster.uri, "topic": str(topic.name)})
    reader = ReaderOfSlowTriggers(SCHEMA, options)
    start = reader.initialOffset()
    for number in (1, 2):
        topic.writer.append(numbered(number)[0])
        reader.latestOffset(start, ReadAllAvailable())
    assert warnings() == 0, "a busy topic"
    reader.latestOffset(start, ReadAllAvailable())
    assert warnings() == 1
    reader.latestOffset(start, ReadAllAvailable())
    assert warnings() == 1


def test_schema_that_a_stream_has_read_is_not_read_again(cluster: Cluster, client: Client, topic: StoredTopic) -> None:
    """Each trigger opened the ledgers of all versions, and read an entry of each."""
    (first,) = topic.schemas(("STRING", b"", {}))
    topic.ledger([single(Message(b"a"), schema_version=bytes(8))])
    given = {"uri": cluster.uri, "topic": str(topic.name), "startingOffsets": "earliest"}
    reader = TopicStreamReader(StructType().add("value", "string"), SourceOptions.parse(given))

    def batch_from(start: dict) -> tuple[dict, list[str]]:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        parts = reader.partitions(start, end)
        return end, [value for part in parts for rows in reader.read(part) for value in rows["value"].to_pylist()]

    noted, found = batch_from(reader.initialOffset())
    assert found == ["a"]
    client.delete(first)
    topic.ledger([single(Message(b"b"), schema_version=bytes(8))])
    noted, found = batch_from(noted)
    assert found == ["b"]
    topic.schemas(("STRING", b"", {}), ("STRING", b"", {"n": "1"}))
    topic.ledger([single(Message(b"c"), schema_version=(1).to_bytes(8))])
    assert batch_from(noted)[1] == ["c"]


# ---- what is recorded of a position ----


def test_ledger_that_a_limited_batch_has_read_to_its_end_may_be_trimmed(cluster: Cluster, topic: StoredTopic) -> None:
    """The offset names the next ledger, although the limit ended the batch at the end of this one."""
    topic.ledger(numbered(0, 1))
    topic.ledger(numbered(2))
    query = Query(cluster, topic, startingOffsets="earliest", maxEntriesPerTrigger=2)
    assert query.batch() == "0 1"
    topic.trim()
    query.restart()
    assert query.batch() == "2"


def test_topic_without_a_ledger_is_followed_from_its_beginning_over_a_restart(
    cluster: Cluster, topic: StoredTopic
) -> None:
    query = Query(cluster, topic)
    query.restart()
    topic.ledger(numbered(0))
    assert query.batch() == "0"


def test_start_before_now_leaves_out_what_is_older_in_the_same_ledger(cluster: Cluster, topic: StoredTopic) -> None:
    now_ms = time.time_ns() // 1_000_000
    new = metadata_of(1)
    new.publish_time = now_ms
    topic.ledger([*numbered(0), framed(new, b"new")])
    query = Query(cluster, topic, startingTimestamp="-1h")
    assert now_ms - 3_600_000 <= query.offset["since"] <= now_ms
    query.restart()
    assert query.batch() == "new"


def test_offset_with_an_unknown_member_is_refused(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger(numbered(0))
    query = Query(cluster, topic)
    query.offset["topics"][str(topic.name)]["-1"]["more"] = 1
    with pytest.raises(ConfigurationError, match=r"is not a position of topic .*: use a new checkpoint"):
        query.batch()


def test_transactions_that_no_snapshot_announces_end_the_stream_by_name(cluster: Cluster, topic: StoredTopic) -> None:
    topic.ledger([single(Message(b"t"), txnid_most_bits=0, txnid_least_bits=1)])
    query = Query(cluster, topic, startingOffsets="earliest")
    with pytest.raises(ConfigurationError, match=f"topic {topic.name} has transactions .*no snapshot of them"):
        query.batch()
    query = Query(cluster, topic, startingOffsets="earliest", isolation="read_uncommitted")
    assert query.batch() == "t"


def test_tasks_get_no_transactions_that_were_aborted_before_their_entries(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    """Otherwise each task of a stream would get more of them."""
    with transaction_snapshots(client, topic):
        topic.ledger([single(Message(b"t"), txnid_most_bits=0, txnid_least_bits=1), marker(22, (0, 1)), *numbered(0)])
        query = Query(cluster, topic, startingOffsets="earliest")
        assert query.batch() == "0"
        topic.ledger(numbered(1))
        end = query.reader.latestOffset(query.offset, ReadAllAvailable())
        (task,) = query.reader.partitions(query.offset, end)
        assert isinstance(task, TopicPartition)
        assert task.facts[str(topic.name)].aborted == frozenset()


def test_least_number_of_entries_does_not_keep_a_query_with_an_end_waiting(
    cluster: Cluster, topic: StoredTopic
) -> None:
    topic.ledger(numbered(0, 1))
    query = Query(cluster, topic, startingOffsets="earliest", minEntriesPerTrigger=3, maxTriggerDelay="1h")
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == "0 1"
