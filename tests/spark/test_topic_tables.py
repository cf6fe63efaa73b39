"""Tables about topics where brokers keep acknowledgements in other forms, or one topic is not as it should be."""

from __future__ import annotations

import pytest

from bkspark.blocking import Client
from bkspark.pulsar import pulsar_formats_pb2 as formats
from tests.cluster import Cluster
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import numbered, table

pytestmark = pytest.mark.cluster


def subscription(cluster: Cluster, topic: StoredTopic) -> dict:
    (row,) = [row for row in table(cluster.uri, "subscriptions") if row["topic"] == str(topic.name)]
    return row


def test_backlog_leaves_out_ranges_of_acknowledgements_that_span_ledgers(cluster: Cluster, topic: StoredTopic) -> None:
    first = topic.ledger(numbered(0, 1, 2, 3))
    topic.ledger(numbered(4, 5))
    third = topic.ledger(numbered(6, 7, 8))
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=first, markDeleteEntryId=0)
    taken = cursor.individualDeletedMessages.add()
    taken.lowerEndpoint.ledgerId, taken.lowerEndpoint.entryId = first, 1
    taken.upperEndpoint.ledgerId, taken.upperEndpoint.entryId = third, 0
    topic.subscription("s", cursor)
    row = subscription(cluster, topic)
    assert (row["acknowledged_after"], row["backlog_entries"]) == (5, 3)
    assert row["backlog_bytes"] == sum(map(len, numbered(1, 7, 8)))


def test_backlog_leaves_out_acknowledgements_that_are_bits(cluster: Cluster, topic: StoredTopic) -> None:
    first = topic.ledger(numbered(0, 1, 2, 3))
    second = topic.ledger(numbered(4, 5))
    position = formats.PositionInfo(ledgerId=first, entryId=0)
    position.individualDeletedMessageRanges.add(key=first, values=[0b1000])
    position.individualDeletedMessageRanges.add(key=second, values=[0b01])
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=0, markDeleteLedgerId=first, markDeleteEntryId=-1)
    topic.subscription("s", cursor, [position.SerializeToString()])
    row = subscription(cluster, topic)
    assert (row["acknowledged_after"], row["backlog_entries"]) == (2, 3)
    assert row["backlog_bytes"] == sum(map(len, numbered(1, 2, 5)))


def test_topic_whose_metadata_cannot_be_read_does_not_take_the_tables_of_others_away(
    cluster: Cluster, client: Client, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger(numbered(0))
    topic.schemas(("STRING", b"", {}))
    topic.subscription("s", formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=0, markDeleteEntryId=-1))
    wrong = StoredTopic(client, f"{topic.name}-wrong")
    odd = StoredTopic(client, f"{topic.name}-odd")
    odd.ledger(numbered(0))
    odd.schemas((99, b"", {}))
    odd.put_subscription("s", b"\xff")
    try:
        wrong.put(b"\xff\xff")
        found = {row["topic"]: row for row in table(cluster.uri, "topics")}
        assert found[str(topic.name)]["schema_type"] == "STRING"
        assert (found[str(odd.name)]["entries"], found[str(odd.name)]["schema_type"]) == (1, None)
        assert str(wrong.name) not in found
        assert str(topic.name) in {row["topic"] for row in table(cluster.uri, "topicLedgers")}
        assert subscription(cluster, topic)["subscription"] == "s"
        assert any(f"{wrong.name.managed_ledger_path}" in record.message for record in caplog.records)
        assert any("its type 99 is unknown" in record.message for record in caplog.records)
    finally:
        wrong.delete()
        odd.delete()
