"""Registered readers and retention, with a real ZooKeeper, real bookies and Spark."""

from __future__ import annotations

import json
import uuid

import pytest
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog
from bkspark.log.store import LogStore
from bkspark.spark.inspection import ViewReader, schema_of_view
from bkspark.spark.options import SourceOptions
from bkspark.spark.stream import BookKeeperStreamReader
from bkspark.spark.versions import HAS_ADMISSION_CONTROL
from tests.spark.read_rows import append, rows

pytestmark = pytest.mark.cluster

VALUE = StructType().add("value", "string")


@pytest.fixture
def log(client) -> str:
    """The name of a log of five ledgers, of two entries each."""
    name = f"log-{uuid.uuid4().hex[:12]}"
    for first in range(0, 10, 2):
        append(client, name, first, first + 1)
    return name


def stream(cluster, **options: str) -> BookKeeperStreamReader:
    chosen = {"uri": cluster.uri, "startingOffsets": "earliest", "consumer": "etl", **options}
    return BookKeeperStreamReader(VALUE, SourceOptions.parse(chosen))


def view(cluster, name: str, **where: str) -> list[dict]:
    reader = ViewReader(schema_of_view(name), SourceOptions.parse({"uri": cluster.uri, "inspect": name}))
    found = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    return [row for row in found if all(row[key] == value for key, value in where.items())]


@pytest.mark.admission_control
def test_a_query_keeps_what_it_has_not_committed(cluster, client, log):
    client.log(log).set_retention(bytes=1)
    reader = stream(cluster, log=log, maxEntriesPerTrigger="4")
    start = reader.initialOffset()
    assert client.log(log).expire() == 0
    end = reader.latestOffset(start)
    assert rows(reader, reader.partitions(start, end)) == [0, 1, 2, 3]
    (found,) = view(cluster, "consumers", log=log)
    assert (found["consumer"], found["entries_behind"], found["bytes_behind"]) == ("etl", 10, 10)
    assert not found["is_expired"]
    assert client.log(log).expire() == 0  # the batch is read, and not committed
    reader.commit(end)
    assert client.log(log).expire() == 2
    after = reader.latestOffset(end)
    assert rows(reader, reader.partitions(end, after)) == [4, 5, 6, 7]
    # Another process goes on from the checkpoint: the batch that it begins with was committed there.
    again = stream(cluster, log=log)
    last = again.latestOffset(after)
    assert client.log(log).expire() == 2
    assert rows(again, again.partitions(after, last)) == [8, 9]
    assert view(cluster, "consumers", log=log)[0]["entries_behind"] == 2


def test_a_batch_that_is_repeated_after_a_crash_is_kept(cluster, client, log):
    client.log(log).set_retention(bytes=1)
    reader = stream(cluster, log=log)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    reader.partitions(start, end)
    # The process ends here, before Spark has committed; its successor plans the same batch, and asks for nothing else.
    again = stream(cluster, log=log)
    assert client.log(log).expire() == 0
    assert rows(again, again.partitions(start, end)) == list(range(10))
    again.commit(end)
    assert client.log(log).expire() == 4


def test_a_query_whose_name_another_one_takes_fails(cluster, log):
    first, second = stream(cluster, log=log), stream(cluster, log=log)
    start = first.initialOffset()
    second.initialOffset()
    with pytest.raises(ConfigurationError, match=r"consumer etl of log .*another reader has registered"):
        first.latestOffset(first.latestOffset(start))
    first.commit(start)  # a failure there is no failure of the query
    second.latestOffset(start)


def test_a_registration_that_expired_holds_no_ledger(cluster, client, log):
    client.log(log).set_retention(bytes=1)
    reader = stream(cluster, log=log, consumerExpiry="1ms")
    start = reader.initialOffset()
    assert client.log(log).expire() == 4
    assert view(cluster, "consumers", log=log)[0]["is_expired"]
    with pytest.raises(DataLoss, match="start the query with a new checkpoint"):
        reader.latestOffset(start)


@pytest.mark.admission_control
def test_a_registration_that_was_removed_is_made_again(cluster, client, log):
    reader = stream(cluster, log=log, maxEntriesPerTrigger="2")
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert client.log(log).remove_consumer("etl")
    reader.latestOffset(end)
    assert [each.position.entry_id for each in client.log(log).consumers()] == [2]


@pytest.mark.admission_control
def test_queries_of_many_logs_register_in_each(cluster, client):
    prefix = f"many-{uuid.uuid4().hex[:12]}-"
    for each in "ab":
        append(client, prefix + each, 1)
    reader = stream(cluster, logsPattern=f"{prefix}.*")
    start = reader.initialOffset()
    append(client, prefix + "c", 1)
    reader.latestOffset(reader.latestOffset(start))
    found = [row["log"] for row in view(cluster, "consumers") if row["log"].startswith(prefix)]
    assert found == [prefix + each for each in "abc"]


def test_tables_show_retention_and_leave_out_logs_of_other_clusters(cluster, client, log):
    client.log(log).set_retention(age_s=3600, bytes=1000)

    async def foreign() -> LogStore:
        return LogStore(await client.asynchronous.tree(), "/other")

    name = f"foreign-{uuid.uuid4().hex[:12]}"
    other = run(foreign)
    run(lambda: other.create(name))
    (found,) = view(cluster, "logs", log=log)
    assert (found["retention_ms"], found["retention_bytes"]) == (3_600_000, 1000)
    assert found["first_append"] < found["last_append"]
    assert view(cluster, "logs", log=name) == view(cluster, "consumers", log=name) == []
    with pytest.raises(ConfigurationError, match="belongs to the cluster at /other"):
        client.log(name).consumers()


def test_options_of_registered_readers_are_checked():
    def refused(match: str, **options: str) -> None:
        with pytest.raises(ConfigurationError, match=match):
            SourceOptions.parse({"uri": "zk://a:1/b", **options}).for_stream_read()

    refused("'consumer' is for 'log' and 'logsPattern'", ledgers="5", consumer="etl")
    refused("'consumerExpiry' needs 'consumer'", log="a", consumerExpiry="1h")
    refused("is not a valid reader name", log="a", consumer="a b")
    refused("not a time above 0", log="a", consumer="etl", consumerExpiry="0s")
    with pytest.raises(ConfigurationError, match="'consumer' has no effect on a batch read"):
        SourceOptions.parse({"uri": "zk://a:1/b", "log": "a", "consumer": "etl"}).for_batch_read()


@pytest.mark.spark
@pytest.mark.every_spark
def test_a_streaming_query_moves_its_registration_and_finds_everything_again(spark, cluster, client, log, tmp_path):
    client.log(log).set_retention(bytes=1)
    options = {"uri": cluster.uri, "log": log, "consumer": "etl", "startingOffsets": "earliest", "payloadFormat": "raw"}
    of_batch = 10
    if HAS_ADMISSION_CONTROL:
        of_batch = 3
        options["maxEntriesPerTrigger"] = str(of_batch)

    def query() -> list[int]:
        rows = spark.readStream.format("bookkeeper").options(**options).load()
        target = tmp_path / "rows"
        started = (
            rows.writeStream.format("json")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(target))
        )
        assert started.awaitTermination(120)
        if started.exception() is not None:
            raise AssertionError(started.exception())
        return sorted(
            int(row.value) for row in spark.read.json(str(target)).selectExpr("unbase64(value) value").collect()
        )

    assert query() == list(range(10))
    (state,) = client.log(log).consumers()
    assert state.entries_behind <= of_batch  # Spark reports the commit of the last batch with the next one
    client.log(log).expire()
    append(client, log, 10, 11)
    assert query() == list(range(12))
    client.log(log).expire()
    assert len(client.log(log).show()["ledgers"]) <= 2
    shown = json.loads(str(client.log(log).consumers()[0].position))
    assert shown["version"] == 1
    client.log(log).delete()
    with pytest.raises(NoSuchLog):
        client.log(log).consumers()
