"""Edges of the streaming source on a real log: what a micro-batch may hold and must wait for, offsets, lost entries."""

import uuid
from types import SimpleNamespace

import pytest
from pyspark.sql.types import StructType

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog
from bkspark.spark.options import SourceOptions
from bkspark.spark.stream import BookKeeperStreamReader
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest, master_key
from tests.bookie.serving import Peer
from tests.polling import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.admission_control]

VALUE = StructType().add("value", "string")


@pytest.fixture
def prefix() -> str:
    """Prefix of names of logs that no other test has."""
    return f"edges-{uuid.uuid4().hex[:12]}"


def append(client, log: str, *values: bytes) -> None:
    with client.log(log).open_for_writing() as writer:
        writer.append_many(values)


def follow(cluster, **options: str) -> BookKeeperStreamReader:
    chosen = {"uri": cluster.uri, "startingOffsets": "earliest", **options}
    return BookKeeperStreamReader(VALUE, SourceOptions.parse(chosen))


def latest(stream: BookKeeperStreamReader, start: dict) -> dict:
    """Return the next offset as Spark asks for it: with the limit that the source named itself."""
    return stream.latestOffset(start, stream.getDefaultReadLimit())


def values(stream: BookKeeperStreamReader, start: dict, end: dict) -> list[str]:
    partitions = stream.partitions(start, end)
    return [value for each in partitions for batch in stream.read(each) for value in batch["value"].to_pylist()]


def test_least_number_of_entries_holds_where_it_is_the_only_limit(cluster, client, prefix):
    append(client, prefix, b"1", b"2")
    stream = follow(cluster, log=prefix, minEntriesPerTrigger="3")
    start = stream.initialOffset()
    assert latest(stream, start) == start
    append(client, prefix, b"3")
    assert values(stream, start, latest(stream, start)) == ["1", "2", "3"]


@pytest.mark.spark
def test_query_waits_for_the_least_number_of_entries(spark, cluster, client, prefix, tmp_path):
    append(client, prefix, b"1", b"2")
    stream = spark.readStream.format("bookkeeper").schema(VALUE)
    stream = stream.options(uri=cluster.uri, log=prefix, startingOffsets="earliest", minEntriesPerTrigger="3").load()
    epochs = []
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: epochs.append([row.value for row in frame.collect()]))
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress is not None or epochs, "a trigger", 60)
        append(client, prefix, b"3")
        wait_until(lambda: any(epochs), "the entries", 60)
    finally:
        query.stop()
    assert [epoch for epoch in epochs if epoch] == [["1", "2", "3"]]


@pytest.mark.parametrize("limits", [{}, {"maxEntriesPerTrigger": "1"}])
def test_query_with_an_end_reads_what_there_was_at_its_start_and_nothing_later(cluster, client, prefix, limits):
    append(client, prefix, b"1", b"2")
    stream = follow(cluster, log=prefix, **limits)
    stream.prepareForTriggerAvailableNow()
    offset, found = stream.initialOffset(), []
    append(client, prefix, b"3")
    while (end := latest(stream, offset)) != offset:
        found += values(stream, offset, end)
        offset = end
    assert found == ["1", "2"]
    later = follow(cluster, log=prefix)
    assert values(later, offset, latest(later, offset)) == ["3"]


def test_new_log_lets_no_log_wait_longer_for_the_least_number_of_entries(cluster, client, prefix, monkeypatch):
    append(client, f"{prefix}-a", b"1")
    now = SimpleNamespace(monotonic=lambda: clock[0])
    clock = [0.0]
    monkeypatch.setattr("bkspark.spark.following.time", now)
    stream = follow(cluster, logsPattern=f"{prefix}-.*", minEntriesPerTrigger="9", maxTriggerDelay="60s")
    start = stream.initialOffset()
    clock[0] = 59.0
    append(client, f"{prefix}-b", b"2")
    noted = latest(stream, start)
    assert values(stream, start, noted) == []
    clock[0] = 60.0
    assert values(stream, noted, latest(stream, noted)) == ["1", "2"]


def test_query_with_an_end_does_not_wait_for_the_least_number_of_entries(cluster, client, prefix):
    """docs/spark.md: minEntriesPerTrigger is "not used with Trigger.AvailableNow". The query would end without rows."""
    append(client, prefix, b"1", b"2")
    stream = follow(cluster, log=prefix, minEntriesPerTrigger="9", maxTriggerDelay="1h")
    stream.prepareForTriggerAvailableNow()
    start = stream.initialOffset()
    assert values(stream, start, latest(stream, start)) == ["1", "2"]


@pytest.mark.parametrize("limit", ["maxEntriesPerTrigger", "maxBytesPerTrigger"])
def test_limited_batch_takes_what_fits_of_several_ledgers(cluster, client, prefix, limit):
    for value in (b"1", b"2", b"3", b"4"):
        append(client, prefix, value)
    stream = follow(cluster, log=prefix, **{limit: "3"})
    start = stream.initialOffset()
    assert values(stream, start, latest(stream, start)) == ["1", "2", "3"]


def test_batch_with_an_end_of_another_trigger_is_planned_from_the_present_state(cluster, client, prefix):
    append(client, prefix, b"1", b"2")
    stream = follow(cluster, log=prefix)
    start = stream.initialOffset()
    latest(stream, start)
    append(client, prefix, b"3")
    assert values(stream, start, latest(follow(cluster, log=prefix), start)) == ["1", "2", "3"]


def test_entries_of_no_bytes_are_read_under_a_limit_of_bytes(cluster, client, prefix):
    append(client, f"{prefix}-a", b"", b"")
    one = follow(cluster, log=f"{prefix}-a", maxBytesPerTrigger="10")
    start = one.initialOffset()
    assert values(one, start, latest(one, start)) == ["", ""]
    append(client, f"{prefix}-b", *[b"12345"] * 9)
    many = follow(cluster, logsPattern=f"{prefix}-.*", maxBytesPerTrigger="10")
    start = many.initialOffset()
    assert values(many, start, latest(many, start)) == ["", "", "12345"]


@pytest.mark.parametrize("limit", ["maxEntriesPerTrigger", "maxBytesPerTrigger"])
def test_no_log_waits_for_ever_where_the_limit_is_below_their_number(cluster, client, prefix, limit):
    for name in "abc":
        append(client, f"{prefix}-{name}", *[name.encode()] * 9)
    stream = follow(cluster, logsPattern=f"{prefix}-.*", **{limit: "2"})
    start, read = stream.initialOffset(), []
    for _ in range(3):
        end = latest(stream, start)
        read += values(stream, start, end)
        start = end
    assert sorted(read) == ["a", "a", "b", "b", "c", "c"]


def test_run_with_an_end_leaves_a_log_that_is_created_again_to_the_next_one(cluster, client, prefix):
    append(client, prefix, b"1", b"2", b"3")
    options = {"log": prefix, "failOnDataLoss": "false", "maxEntriesPerTrigger": "2"}
    stream = follow(cluster, **options)
    stream.prepareForTriggerAvailableNow()
    end = latest(stream, stream.initialOffset())
    client.log(prefix).delete()
    append(client, prefix, *[b"new"] * 9)
    assert latest(stream, end) == end
    last = follow(cluster, log=prefix, failOnDataLoss="false")
    assert values(last, end, latest(last, end)) == ["new"] * 9


def test_batch_that_was_planned_after_the_end_of_a_closed_ledger_is_loss(cluster, client, prefix, caplog):
    """As after a bookie lost acknowledged entries, and the ledger was closed before them."""
    append(client, prefix, b"1", b"2")
    append(client, prefix, b"3")
    stream = follow(cluster, log=prefix)
    start = stream.initialOffset()
    first = {name: value for name, value in latest(stream, start).items() if name in ("log", "log_id", "version")}
    ledger = client.log(prefix).show()["ledgers"][0]["ledger"]
    planned = dict(sorted({**first, "ordinal": 0, "ledger": ledger, "entry": 5}.items()))
    ends = f"ledger {ledger} of log {prefix} ends at entry 1"
    with pytest.raises(DataLoss, match=f"{ends}, entries up to 4 were to be read"):
        stream.partitions(start, planned)
    allowed = follow(cluster, log=prefix, failOnDataLoss="false")
    caplog.clear()
    assert values(allowed, start, planned) == ["1", "2"]
    assert [record.message for record in caplog.records] == [f"{ends}: 3 entries are lost and are left out"]


def test_empty_object_is_not_a_position_and_of_a_pattern_leaves_every_log_at_the_earliest(cluster, client, prefix):
    append(client, prefix, b"1")
    with pytest.raises(ConfigurationError, match="option 'startingOffsets': position"):
        follow(cluster, log=prefix, startingOffsets="{}").initialOffset()
    many = follow(cluster, logsPattern=prefix, startingOffsets="{}")
    start = many.initialOffset()
    assert values(many, start, latest(many, start)) == ["1"]


@pytest.mark.parametrize("is_given_its_place", [True, False], ids=["Spark 4.2", "before"])
def test_offset_never_goes_back_where_bookies_know_less_than_others_did(cluster, client, prefix, is_given_its_place):
    """Entry 1 is on its way and has reached one bookie, which so knows that entry 0 is confirmed; the next trigger is
    answered by the two others."""
    first, _, third = cluster.bookies
    log = client.log(prefix).open_for_writing()
    log.append(b"0")
    ledger = client.log(prefix).show()["ledgers"][0]["ledger"]
    digest = EntryDigest(DigestType.CRC32C, b"")
    on_its_way = v2.encode_adds(EntryBatch.of([b"1"], ledger, 1), 0, 1, digest, master_key(b""))
    with Peer(int(first.id.rpartition(":")[2])) as peer:
        peer.send(on_its_way.buffer)
        assert peer.reply().status == v2.Status.EOK
    stream = follow(cluster, log=prefix)
    start = stream.initialOffset()
    third.pause()
    noted = stream.latestOffset(start if is_given_its_place else None)
    assert noted["entry"] == 1
    third.resume()
    first.pause()
    assert stream.latestOffset(noted if is_given_its_place else None) == noted


def test_log_that_is_deleted_under_its_stream_is_data_lost(cluster, client, prefix, caplog):
    """As of a log of a pattern, and of a topic; Kafka's failOnDataLoss names deleted topics, too."""
    append(client, prefix, b"1", b"2")
    strict, lenient = follow(cluster, log=prefix), follow(cluster, log=prefix, failOnDataLoss="false")
    read, unread = latest(lenient, lenient.initialOffset()), lenient.initialOffset()
    client.log(prefix).delete()
    with pytest.raises(DataLoss, match=f"log {prefix} was deleted: what was unread, from position .*new checkpoint"):
        latest(strict, read)
    with pytest.raises(DataLoss, match=f"log {prefix} was deleted"):
        strict.partitions(unread, read)
    caplog.clear()
    for _ in range(2):
        assert latest(lenient, read) == read, "nothing is new"
        assert values(lenient, unread, read) == [], "a batch that was planned before a restart"
    (warned,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert f"log {prefix} was deleted" in warned
    assert lag_of(lenient) == (0, 0)
    append(client, prefix, b"3")
    assert values(lenient, read, latest(lenient, read)) == ["3"], "it is read from its beginning"
    with pytest.raises(DataLoss, match=f"log {prefix} was deleted and created again"):
        latest(strict, read)


def test_query_that_ends_finds_that_its_log_was_deleted(cluster, client, prefix):
    """Trigger.AvailableNow, and a query that restarts: neither has seen the log."""
    append(client, prefix, b"1")
    read = latest(stream := follow(cluster, log=prefix), stream.initialOffset())
    client.log(prefix).delete()
    restarted = follow(cluster, log=prefix, failOnDataLoss="false")
    restarted.prepareForTriggerAvailableNow()
    assert latest(restarted, read) == read
    with pytest.raises(NoSuchLog, match=f"log {prefix} does not exist"):
        restarted.initialOffset()


def lag_of(stream: BookKeeperStreamReader) -> tuple[int, int]:
    reported = stream.reportLatestOffset()
    assert reported is not None
    return reported["entries_behind"], reported["bytes_behind"]


def test_stream_that_is_to_begin_in_the_future_is_refused(cluster, client, prefix):
    """docs/spark.md: a read "begins at the first entry that entered the log at this time or later". What is appended
    before that time would be read, too."""
    append(client, prefix, b"1")
    source = SourceOptions.parse({"uri": cluster.uri, "log": prefix, "startingTimestamp": "2100-01-01"})
    stream = BookKeeperStreamReader(VALUE, source)
    with pytest.raises(ConfigurationError, match=rf"2100-01-01T00:00:00\.000.* future.* log {prefix} .*=latest"):
        stream.initialOffset()
