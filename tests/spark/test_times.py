"""append_time and reads by time, with a real ZooKeeper, real bookies and Spark."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from bkspark.errors import ConfigurationError
from bkspark.spark import plan
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BookKeeperReader
from tests.polling import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def a_later_ms() -> int:
    """Return a time after everything until now, and before everything from now on."""
    begin = now_ms()
    wait_until(lambda: now_ms() > begin + 1, "the clock to go on")
    return begin + 1


def numbers(spark, first: int, end: int):
    return spark.range(first, end, numPartitions=2)


def ids(frame) -> list[int]:
    return sorted(row.id for row in frame.collect())


@pytest.mark.every_spark
def test_rows_have_the_time_of_their_commit(spark, table):
    bounds = []
    for commit in range(3):
        bounds.append(a_later_ms())
        table.write(numbers(spark, commit * 10, commit * 10 + 10))
    bounds.append(a_later_ms())
    rows = table.read(includeMetadata="true")
    found = {
        row.id: row.append_time
        for row in rows.select("id", F.unix_millis("append_time").alias("append_time")).collect()
    }
    for commit in range(3):
        (ms,) = {found[each] for each in range(commit * 10, commit * 10 + 10)}
        assert bounds[commit] <= ms <= bounds[commit + 1]
    assert ids(table.read(startingTimestamp=str(bounds[1]))) == list(range(10, 30))
    assert ids(table.read(startingTimestamp=str(bounds[1]), endingTimestamp=str(bounds[2]))) == list(range(10, 20))
    assert ids(table.read(endingTimestamp=str(bounds[1]))) == list(range(10))
    assert ids(table.read(startingTimestamp=str(bounds[3]))) == []
    assert ids(table.read(endingTimestamp=datetime.fromtimestamp(bounds[3] / 1000, UTC).isoformat())) == list(range(30))


@pytest.mark.every_spark
def test_an_open_ledger_is_cut_between_two_append_calls(table, client):
    writer = client.log(table.log).open_for_writing()
    bounds = []
    for call in range(3):
        bounds.append(a_later_ms())
        writer.append_many([b"%d" % (10 * call), b"%d" % (10 * call + 1)])

    def found(**options: str) -> list[int]:
        chosen = SourceOptions.parse({"uri": table.uri, "log": table.log, **options})
        reader = BookKeeperReader(StructType().add("value", "string"), chosen)
        batches = [batch for each in reader.partitions() for batch in reader.read(each)]
        return [int(value) for batch in batches for value in batch["value"].to_pylist()]

    wait_until(lambda: found(startingTimestamp=str(bounds[1]), endingTimestamp=str(bounds[2])) == [10, 11], "the times")
    writer.close()
    assert found(startingTimestamp=str(bounds[1])) == [10, 11, 20, 21]
    assert found(endingTimestamp=str(bounds[2])) == [0, 1, 10, 11]


def test_rows_of_a_large_plan_have_their_times(table, client, monkeypatch):
    """Tasks of a large plan look up their own ledgers, but not the times of the log."""
    monkeypatch.setattr(plan, "OPENED_LEDGERS_MAX", 2)
    bounds = []
    for commit in range(4):
        bounds.append(a_later_ms())
        with client.log(table.log).open_for_writing() as writer:
            writer.append_many([b"%d" % commit])
    schema = StructType().add("value", "string").add("append_time", "timestamp")
    chosen = {"uri": table.uri, "log": table.log, "includeMetadata": "true"}
    for options, first in (({}, 0), ({"startingTimestamp": str(bounds[1])}, 1)):
        reader = BookKeeperReader(schema, SourceOptions.parse({**chosen, **options}))
        batches = [batch for each in reader.partitions() for batch in reader.read(each)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [int(row["value"]) for row in rows] == list(range(first, 4))
        found = [row["append_time"].timestamp() * 1000 for row in rows]
        assert all(bounds[first + at] - 1 <= ms for at, ms in enumerate(found))
        assert all(ms <= bounds[first + at + 1] for at, ms in enumerate(found[:-1]))


@pytest.mark.admission_control
def test_a_stream_starts_at_a_time_and_its_watermark_is_of_append_time(spark, table, tmp_path):
    """Windows of append_time are closed by later rows, and no row is late."""
    for commit in range(4):
        table.write(numbers(spark, commit * 10, commit * 10 + 10))
        if not commit:
            begin = a_later_ms()
    rows = table.stream(includeMetadata="true", startingTimestamp=str(begin), maxEntriesPerTrigger="1")
    counts = (
        rows.withWatermark("append_time", "0 seconds")
        .groupBy(F.window("append_time", "1 millisecond"))
        .agg(F.collect_list("id").alias("ids"))
    )
    query = (
        counts.writeStream.outputMode("append")
        .format("memory")
        .queryName("windows")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    dropped = [
        operator.numRowsDroppedByWatermark for progress in query.recentProgress for operator in progress.stateOperators
    ]
    assert sum(dropped) == 0
    closed = [sorted(row.ids) for row in spark.table("windows").orderBy("window").collect()]
    assert closed == [list(range(10, 20)), list(range(20, 30))]  # the last window is still open


def test_append_time_needs_its_option_and_a_log(table, client):
    with client.log(table.log).open_for_writing() as writer:
        writer.append_many([b"1"])
    schema = StructType().add("append_time", "timestamp")
    with pytest.raises(ConfigurationError, match="column 'append_time' needs option 'includeMetadata'"):
        BookKeeperReader(schema, SourceOptions.parse({"uri": table.uri, "log": table.log}))
    with pytest.raises(ConfigurationError, match="needs option 'log' or 'logsPattern'"):
        BookKeeperReader(schema, SourceOptions.parse({"uri": table.uri, "ledgers": "1", "includeMetadata": "true"}))
