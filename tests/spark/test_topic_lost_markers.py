"""An entry that cannot be read may be the marker that ended a transaction: then nothing ends it any more.

docs/pulsar.md, "Transactions": a read that ends before this transaction fails or logs a warning, as `mode` and
`failOnDataLoss` say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bkspark.blocking import Client, run
from bkspark.errors import DataLoss, MalformedPayload
from tests.cluster import Cluster
from tests.pulsar.entries import Message, marker, single
from tests.pulsar.stored import StoredTopic
from tests.spark.topic_queries import Query
from tests.spark.topic_reads import VALUE, numbered, values

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("has_transactions")]


def of_transaction(number: int) -> bytes:
    return single(Message(b"t%d" % number), txnid_most_bits=0, txnid_least_bits=number)


def damaged(entry: bytes) -> bytes:
    """Return an entry whose checksum is wrong."""
    return entry[:-1] + bytes([entry[-1] ^ 1])


def test_damaged_commit_marker_follows_mode(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = topic.ledger([*numbered(0), of_transaction(1), damaged(marker(21, (0, 1))), *numbered(2)])
    place = f"{topic.name}, message {ledger}:2: malformed"
    with pytest.raises(
        MalformedPayload, match=rf"{place}.*open since message {ledger}:1: .*isolation=read_uncommitted"
    ):
        read(VALUE)
    for mode in ("DROPMALFORMED", "PERMISSIVE"):
        caplog.clear()
        assert values(read(VALUE, mode=mode)) == [b"0"]
        assert [record.levelname for record in caplog.records if place in record.message] == ["WARNING"]
    assert values(read(VALUE, mode="DROPMALFORMED", isolation="read_uncommitted")) == [b"0", b"t1", b"2"]
    # Nothing is left out of a read that ends before the transaction.
    assert values(read(VALUE, endingOffsets=f"{ledger}:0")) == [b"0"]
    for given in ({"endingOffsets": f"{ledger}:3"}, {"endingOffsets": "-1"}, {"startingOffsets": f"{ledger}:3"}):
        with pytest.raises(MalformedPayload, match=place):
            read(VALUE, **given)


def test_read_up_to_a_ledger_that_was_dropped_as_empty_ends_before_an_open_transaction(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    """It had the messages of the open transaction, and those after it in the same ledger."""
    first = topic.ledger([*numbered(0), of_transaction(1), damaged(marker(21, (0, 1))), *numbered(2)])
    dropped = topic.ledger([])
    del topic.info.ledgerInfo[-1]
    topic.ledger(numbered(3))
    with pytest.raises(MalformedPayload, match=f"message {first}:2: malformed"):
        read(VALUE, endingOffsets=f"{dropped}:0")
    assert values(read(VALUE, endingOffsets=f"{dropped}:0", mode="DROPMALFORMED")) == [b"0"]
    assert caplog.text.count("may be the marker") == 1
    whole = {"mode": "DROPMALFORMED", "isolation": "read_uncommitted"}
    assert values(read(VALUE, endingOffsets=f"{dropped}:0", **whole)) == [b"0", b"t1", b"2"]


def test_damaged_entry_before_an_open_transaction_or_of_one_that_has_ended_hides_nothing(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = damaged(single(Message(b"x")))
    topic.ledger([wrong, of_transaction(1), wrong, marker(21, (0, 1)), *numbered(2), wrong, of_transaction(3)])
    assert values(read(VALUE, mode="DROPMALFORMED")) == [b"t1", b"2"]
    assert "may be the marker" not in caplog.text


def test_damaged_marker_is_reported_beside_a_damaged_entry_before_its_transaction(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = damaged(single(Message(b"x")))
    ledger = topic.ledger([wrong, of_transaction(1), damaged(marker(21, (0, 1))), *numbered(2)])
    assert values(read(VALUE, mode="DROPMALFORMED")) == []
    assert f"{topic.name}, message {ledger}:2: malformed" in caplog.text


def test_marker_in_a_ledger_that_bookies_lack_follows_fail_on_data_loss(
    topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger([*numbered(0), of_transaction(1)])
    short = topic.ledger([marker(21, (0, 1))])
    topic.ledger(numbered(2))
    # The list names one entry more than the ledger has.
    topic.info.ledgerInfo[0].entries = 2
    topic.info.ledgerInfo[1].entries = 2
    topic.save()
    with pytest.raises(DataLoss, match=f"ledger {short} .*ends at entry 0"):
        read(VALUE)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"0", b"t1", b"2"]
    assert "may be the marker" not in caplog.text
    topic.client.delete(short)
    with pytest.raises(DataLoss, match=rf"message {short}:1: lost, .*the marker.*failOnDataLoss=false"):
        read(VALUE)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"0"]
    assert caplog.text.count("may be the marker") == 1


def test_entry_that_may_be_the_marker_is_the_last_one_that_bookies_lost(
    client: Client, topic: StoredTopic, read: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = topic.ledger([*numbered(0), of_transaction(1)])
    topic.ledger(numbered(2))

    async def claim_more() -> None:
        ledgers = (await client.asynchronous.context()).ledgers
        stored = await ledgers.read(lacking)
        await ledgers.write(lacking, replace(stored.metadata, last_entry=3), stored.version)

    run(claim_more)
    assert values(read(VALUE, failOnDataLoss=False)) == [b"0"]
    assert f"message {lacking}:3: lost, and it may be the marker" in caplog.text


@pytest.mark.admission_control
def test_stream_reports_a_damaged_marker(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.ledger([*numbered(0), of_transaction(1)])
    strict, lenient = (
        Query(cluster, topic, startingOffsets="earliest", mode=mode) for mode in ("FAILFAST", "DROPMALFORMED")
    )
    assert [strict.batch(), lenient.batch()] == ["0", "0"]
    topic.ledger([damaged(marker(22, (0, 1))), *numbered(2)])
    with pytest.raises(MalformedPayload, match="may be the marker"):
        strict.batch()
    caplog.clear()
    assert [lenient.batch(), lenient.batch()] == ["", ""]
    assert caplog.text.count("may be the marker") == 1
    topic.ledger([marker(22, (0, 1)), *numbered(3)])
    assert lenient.batch() == "2 3"


@pytest.mark.admission_control
def test_stream_reports_a_damaged_marker_only_when_everything_else_is_read(
    cluster: Cluster, topic: StoredTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that was started again could not repeat the micro-batch that its checkpoint had recorded."""
    topic.ledger([*numbered(0, 1, 2), of_transaction(1), *numbered(3), damaged(marker(22, (0, 1)))])
    other = StoredTopic(topic.client, f"{topic.name}-other")
    other.ledger(numbered(7))
    query = Query(
        cluster, topic, topics=f"{topic.name},{other.name}", startingOffsets="earliest", maxEntriesPerTrigger=2
    )
    # Each is planned twice, as after a restart.
    assert [query.batch(), query.batch()] == ["0 7", "1 2"]
    other.ledger(numbered(8))
    assert query.batch() == "8"
    assert "may be the marker" in caplog.text, "what is left out is said at once"
    with pytest.raises(MalformedPayload, match="may be the marker"):
        query.batch()


def test_stream_reports_a_damaged_marker_with_an_old_spark_and_at_a_fixed_end(
    cluster: Cluster, topic: StoredTopic
) -> None:
    """Before Spark 4.2 the end of a micro-batch is asked for without its beginning."""
    topic.ledger([*numbered(0), of_transaction(1), damaged(marker(22, (0, 1)))])
    query = Query(cluster, topic, startingOffsets="earliest")
    end = query.reader.latestOffset()
    assert query.values(query.reader, end) == [b"0"]
    with pytest.raises(MalformedPayload, match="may be the marker"):
        query.reader.latestOffset()
    ending = query.new_reader()
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(query.offset, ending.getDefaultReadLimit()) == end
    with pytest.raises(MalformedPayload, match="may be the marker"):
        ending.latestOffset(end, ending.getDefaultReadLimit())
