"""Topics of which something is gone, or differs from what its list says, read on real bookies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bkspark.blocking import Client
from bkspark.errors import ConfigurationError, DataLoss, UnauthorizedAccess
from bkspark.pulsar import pulsar_formats_pb2 as formats
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_reads import VALUE, numbered, values

pytestmark = pytest.mark.cluster


# ---- ledgers ----


def test_ledger_that_is_listed_and_gone_is_data_lost_of_the_topic(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    gone = topic.ledger(numbered(0))
    topic.ledger(numbered(1))
    client.delete(gone)
    with pytest.raises(DataLoss, match=f"ledger {gone} of topic {topic.name} does not exist any more.*startingOffsets"):
        read(VALUE)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"1"]


def test_ledger_that_is_gone_before_the_start_does_not_count(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    """A task may look back into it for chunks; there are none."""
    gone = topic.ledger(numbered(0))
    start = topic.ledger(numbered(1))
    client.delete(gone)
    assert values(read(VALUE, startingOffsets=f"{start}:0")) == [b"1"]


def test_ledger_is_read_to_its_own_end_where_the_list_says_less(topic: StoredTopic, read: Callable) -> None:
    """As brokers do: a repair beside the close may have found more."""
    topic.ledger(numbered(0, 1, 2))
    topic.ledger(numbered(3))
    topic.info.ledgerInfo[0].entries = 2
    topic.save()
    assert values(read(VALUE)) == [b"0", b"1", b"2", b"3"]
    assert values(read(VALUE, minPartitions=4)) == [b"0", b"1", b"2", b"3"]


def test_open_ledger_that_is_listed_and_gone_is_data_lost_of_the_topic(
    client: Client, topic: StoredTopic, read: Callable
) -> None:
    topic.ledger(numbered(0))
    gone = topic.ledger(numbered(1), is_open=True)
    client.delete(gone)
    with pytest.raises(DataLoss, match=f"ledger {gone} of topic {topic.name} does not exist any more"):
        read(VALUE)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"0"]


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
