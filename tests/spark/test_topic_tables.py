"""Tables about topics where brokers keep acknowledgements in other forms, or one topic is not as it should be."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bkspark.blocking import Client
from bkspark.pulsar import pulsar_formats_pb2 as formats
from bkspark.spark.option_table import PULSARS_VIEWS
from tests.cluster import Cluster
from tests.pulsar.entries import Message, batch
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


def test_partly_acknowledged_batches_of_the_backlog_alone_are_counted(cluster: Cluster, topic: StoredTopic) -> None:
    """A cursor may name batches that it has passed since, or that are not confirmed yet."""
    ledger = topic.ledger([batch([Message(b"0"), Message(b"1")]) for _ in range(3)])
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger, markDeleteEntryId=0)
    for entry in (0, 2, 3):
        partial = cursor.batchedEntryDeletionIndexInfo.add(deleteSet=[0b10])
        partial.position.ledgerId, partial.position.entryId = ledger, entry
    topic.subscription("s", cursor)
    row = subscription(cluster, topic)
    assert (row["backlog_entries"], row["partial_entries"], row["partial_messages"]) == (2, 1, 1)


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


def test_topic_that_cannot_be_read_is_a_row_with_its_error(
    cluster: Cluster, client: Client, topic: StoredTopic
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
        assert (found[str(topic.name)]["schema_type"], found[str(topic.name)]["error"]) == ("STRING", None)
        assert (found[str(odd.name)]["entries"], found[str(odd.name)]["schema_type"]) == (1, None)
        assert "its type 99 is unknown" in found[str(odd.name)]["error"]
        for view in ("topics", "topicLedgers", "subscriptions"):
            rows = {row["topic"]: row for row in table(cluster.uri, view)}
            assert wrong.name.managed_ledger_path in rows[str(wrong.name)]["error"]
            assert rows[str(topic.name)]["error"] is None
        (row,) = (row for row in table(cluster.uri, "subscriptions") if row["topic"] == str(odd.name))
        assert (row["subscription"], row["mark_delete_ledger"]) == ("s", None)
        assert odd.name.managed_ledger_path in row["error"]
        assert subscription(cluster, topic)["subscription"] == "s"
    finally:
        wrong.delete()
        odd.delete()


@pytest.mark.parametrize("view", PULSARS_VIEWS)
def test_tables_are_of_the_metadata_that_the_options_name(cluster: Cluster, topic: StoredTopic, view: str) -> None:
    topic.ledger(numbered(0))
    topic.subscription("s", formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=0, markDeleteEntryId=0))
    servers = cluster.uri.removesuffix("/ledgers")
    found = table(cluster.uri, view, pulsarUri=servers, pulsarConfigurationUri=servers)
    assert found == table(cluster.uri, view)
    assert str(topic.name) in [row["topic"] for row in found]
    assert table(cluster.uri, view, pulsarUri=f"{servers}/of-another-pulsar") == []


def test_topic_with_another_password_is_a_row_with_its_error(cluster: Cluster, topic: StoredTopic) -> None:
    with Client(cluster.uri, password=b"other") as client:
        other = StoredTopic(client, f"{topic.name}-other")
        other.ledger(numbered(0), is_open=True)
        topic.ledger(numbered(0), is_open=True)
        found = {row["topic"]: row for row in table(cluster.uri, "topics")}
        assert "managedLedgerPassword" in found[str(other.name)]["error"]
        assert found[str(topic.name)]["error"] is None
        other.delete()


def test_times_and_partitions_of_a_topic_without_partitions(cluster: Cluster, topic: StoredTopic) -> None:
    closed_ms = 1_700_000_000_123
    topic.ledger(numbered(0), closed_ms=closed_ms)
    topic.ledger([], is_open=True)
    (row,) = (row for row in table(cluster.uri, "topics") if row["topic"] == str(topic.name))
    assert (row["partitions"], row["ledgers"], row["entries"]) == (0, 2, 1)
    rows = [row for row in table(cluster.uri, "topicLedgers") if row["topic"] == str(topic.name)]
    assert [(row["partition"], row["closed"]) for row in rows] == [
        (None, datetime.fromtimestamp(closed_ms / 1000, UTC)), (None, None),
    ]  # fmt: skip


def test_numbers_that_no_topic_can_have_do_not_end_the_tables(
    cluster: Cluster, client: Client, topic: StoredTopic
) -> None:
    topic.ledger(numbered(0))
    topic.ledger(numbered(1))
    late = StoredTopic(client, f"{topic.name}-late")
    late.ledger(numbered(0), closed_ms=1 << 62)
    cursor = formats.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=-1, markDeleteEntryId=-1)
    topic.subscription("s", cursor)
    for listed in topic.info.ledgerInfo:
        listed.entries = listed.size = (1 << 63) - 1
    topic.save()
    most = (1 << 63) - 1
    (row,) = [row for row in table(cluster.uri, "topics") if row["topic"] == str(topic.name)]
    assert (row["entries"], row["size"]) == (most, most)
    (row,) = [row for row in table(cluster.uri, "subscriptions") if row["topic"] == str(topic.name)]
    assert (row["backlog_entries"], row["backlog_bytes"]) == (most, most)
    (row,) = [row for row in table(cluster.uri, "topicLedgers") if row["topic"] == str(late.name)]
    assert "is not a time at which ledger" in row["error"]
