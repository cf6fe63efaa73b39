"""Streams of topics whose ledgers end elsewhere than it was known when a position was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bkspark.blocking import Client, run
from bkspark.errors import DataLoss, ReadFailed
from tests.cluster import Cluster
from tests.pulsar.entries import Message, chunked, marker, single
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_queries import Query
from tests.spark.topic_reads import numbered

pytestmark = [pytest.mark.cluster, pytest.mark.admission_control]


def of_transaction(number: int) -> bytes:
    return single(Message(b"t%d" % number), txnid_most_bits=0, txnid_least_bits=number)


def opened(topic: StoredTopic, *entries: bytes) -> int:
    """Add a ledger that stays open, in which each entry confirms the one before it."""
    ledger = topic.ledger([], is_open=True)
    append(topic, *entries)
    return ledger


def append(topic: StoredTopic, *entries: bytes) -> None:
    assert topic.writer is not None
    for entry in entries:
        topic.writer.append(entry)


def offset_of(topic: StoredTopic, ledger: int, entry: int) -> dict:
    return {"topics": {str(topic.name): {"-1": {"entry": entry, "ledger": ledger}}}, "version": 1}


# ---- bookies that forgot an explicit LAC: the end of a micro-batch is after what they confirm ----


def test_micro_batch_that_was_planned_is_read_whole_though_bookies_confirm_less_now(
    cluster: Cluster, topic: StoredTopic
) -> None:
    """The query was killed after it had recorded the end, and goes on after it: what is left out now is lost."""
    ledger = opened(topic, *numbered(0, 1, 2))
    query = Query(cluster, topic, startingOffsets="earliest")
    end = offset_of(topic, ledger, 3)
    assert query.values(query.new_reader(), end) == [b"0", b"1", b"2"]
    query.offset = end
    query.restart()
    assert query.batch() == ""
    append(topic, *numbered(3, 4))
    assert query.batch() == "3"


def test_transactions_are_those_that_the_planned_micro_batch_had(
    cluster: Cluster, topic: StoredTopic, has_transactions: None
) -> None:
    ledger = opened(topic, of_transaction(1), *numbered(0), marker(22, (0, 1)), *numbered(1))
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.values(query.new_reader(), offset_of(topic, ledger, 4)) == [b"0", b"1"]
    assert query.values(query.new_reader(), offset_of(topic, ledger, 2)) == [b"0"]


def test_planned_micro_batch_waits_until_the_end_of_its_transactions_is_confirmed_again(
    cluster: Cluster, topic: StoredTopic, has_transactions: None
) -> None:
    """Its messages could be those of an aborted transaction, and were not when the micro-batch was planned."""
    ledger = opened(topic, of_transaction(1), *numbered(0), marker(22, (0, 1)))
    query = Query(cluster, topic, startingOffsets="earliest")
    with pytest.raises(ReadFailed, match=f"message {ledger}:0 is of a transaction .* is not confirmed at present"):
        query.values(query.new_reader(), offset_of(topic, ledger, 2))
    append(topic, *numbered(1))
    assert query.values(query.new_reader(), offset_of(topic, ledger, 2)) == [b"0"]


def test_planned_micro_batch_of_a_ledger_that_was_closed_before_its_end_is_a_loss(
    cluster: Cluster, topic: StoredTopic
) -> None:
    ledger = topic.ledger(numbered(0, 1))
    topic.ledger(numbered(2))
    query = Query(cluster, topic, startingOffsets="earliest")
    with pytest.raises(DataLoss, match=f"ledger {ledger} of topic {topic.name} ends at entry 1"):
        query.values(query.new_reader(), offset_of(topic, ledger, 3))


# ---- queries with an end ----


def test_query_with_an_end_scans_only_entries_after_its_checkpoint_for_transactions(
    cluster: Cluster, client: Client, topic: StoredTopic, has_transactions: None
) -> None:
    """Such queries run again and again: each would scan the topic completely, and fail at entries that are lost and
    were read long ago."""
    first = topic.ledger(numbered(0))
    topic.ledger([*numbered(1), of_transaction(1)])
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0 1"

    async def claim_more() -> None:
        ledgers = (await client.asynchronous.context()).ledgers
        stored = await ledgers.read(first)
        await ledgers.write(first, replace(stored.metadata, last_entry=3), stored.version)

    run(claim_more)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == ""
    topic.ledger([marker(21, (0, 1)), *numbered(2)])
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    topic.ledger(numbered(3))
    assert [query.batch(), query.batch()] == ["t1 2", ""]


# ---- ledgers that the list has no more ----


def test_ledger_with_unread_messages_that_is_gone_between_others_is_a_loss(
    cluster: Cluster, topic: StoredTopic
) -> None:
    """Brokers drop such a ledger only if it has no messages: then the position is at its beginning."""
    for number in range(3):
        topic.ledger(numbered(2 * number, 2 * number + 1))
    query = Query(cluster, topic, startingOffsets="earliest", maxEntriesPerTrigger=3)
    assert query.batch() == "0 1 2"
    gone = topic.info.ledgerInfo[1].ledgerId
    del topic.info.ledgerInfo[1]
    topic.save()
    with pytest.raises(DataLoss, match=f"what was unread, from message {gone}:1 on, is lost"):
        query.batch()


# ---- ledgers that are longer than the list of the topic says ----


def close_short(topic: StoredTopic, listed_entries: int) -> None:
    """Roll over, with a list that says less than the ledger has: it was repaired at the same time."""
    topic.roll(is_open=True)
    topic.info.ledgerInfo[-2].entries = listed_entries
    topic.save()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_rest_of_an_open_ledger_is_read_where_its_list_ends_where_the_stream_is(
    cluster: Cluster, topic: StoredTopic, is_restarted: bool
) -> None:
    """Brokers read a closed ledger to BookKeeper's end, and so do reads that pass over the end of the list."""
    opened(topic, *numbered(0, 1), *chunked(Message(b"two"), 2, 2))
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0 1"
    close_short(topic, 3)
    if is_restarted:
        query.restart()
    assert query.batch() == "two"
    append(topic, *numbered(4, 5))
    assert query.batch() == "4"


def test_end_of_a_transaction_after_the_end_of_the_list_is_found(
    cluster: Cluster, topic: StoredTopic, has_transactions: None
) -> None:
    opened(topic, *numbered(0), of_transaction(1), marker(22, (0, 1)))
    query = Query(cluster, topic, startingOffsets="earliest")
    assert query.batch() == "0"
    close_short(topic, 2)
    append(topic, *numbered(1, 2))
    assert query.batch() == "1"
