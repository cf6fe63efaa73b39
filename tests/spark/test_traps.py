"""Traps of Spark's Python Data Source API, and the test that each has; those without another home are here.

What Spark does in each of these cases was seen on Spark 4.3. Where a trap's name is in a test, the test fails if we
step into it.

    what decides the design
      pushed filters return wrong rows      test_pushdown_leak_returns_no_wrong_rows, whether or not Spark pushes
      a loaded frame is a frozen snapshot   test_batch: frame_is_the_snapshot; test_sql: temporary view, table
      commit comes twice, abort after it    test_stream: epoch_that_is_written_again, abort_after_a_commit
      a killed write is told nothing        test_stream: killed_worker; test_kill; test_cancelled_jobs_zombie
      stop() is never called                test_stop_never_called_leaves_nothing
      offsets are compared as text          test_offsets; test_read: offset_without_news; test_stream: canonical
      batches of 1 to 10 MiB                test_read: small_ledgers_become_one_batch; test_batches_keep_to_what_is_fast
      every task costs 70 ms                test_ranges: partitions_follow_size; test_batch: small ledgers share tasks
    the interface
      factories are called by keyword       test_factories_take_the_names_that_spark_uses
      an empty list of partitions           test_read: partition_of_nothing
      empty partitions are written too      test_batch: partition_without_rows_makes_no_ledger
      modes that Spark refuses              test_batch: spark_refuses_the_modes
      one broken module hides all           test_read: discovery_module_imports
    the pushdown leak, query by query       test_pushdown_leak_returns_no_wrong_rows
    failures
      a task fails, and is tried again      test_stream: failed_attempts_leave_nothing
      all attempts fail                     test_stream: job_that_fails
      the job is cancelled, a zombie writes test_cancelled_jobs_zombie_publishes_and_leaves_nothing
      the worker process dies               test_stream: killed_worker_process; test_kill
      commit raises, then abort             test_stream: abort_after_a_commit; log/test_epochs
      the driver dies after the commit      test_kill; simulation/test_commits ("kill", "repeated epoch")
      speculation                           simulation/test_commits ("speculative attempt"); one host never speculates
      commit is repeated                    test_stream: epoch_that_is_written_again; simulation/test_commits
      a new checkpoint is a new query       test_stream: named_application_writes_once
    known bugs
      options of tables are dropped         test_sql: options_of_a_table, table_takes_its_options_from_each_query
      "Writing job failed", no cause        test_failed_stream_names_its_cause
      the simple stream reader              test_simple_stream_reader_is_not_offered
      no column pruning                     test_batch: given_schema_picks_columns
      AvailableNow ignores a limit          test_stream: limits_cut_the_stream_into_epochs, available_now_ends
"""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import threading
import time

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.log.log import Log
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import BATCH_BYTES, SMALL_BATCH_BYTES, BookKeeperReader
from bkspark.spark.source import BookKeeperDataSource
from tests.polling import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SECONDS = 300


def texts(table, first: int, end: int, partitions: int = 1) -> None:
    table.write(table.spark.range(first, end, 1, partitions).selectExpr("cast(id as string) as value"))


def entry_ids(frame) -> list[int]:
    return sorted(row.entry_id for row in frame.collect())


@pytest.mark.parametrize("is_pushed", ["false", "true"])
def test_pushdown_leak_returns_no_wrong_rows(spark, table, is_pushed):
    """One loaded frame, and one temporary view, under two filters and none."""
    texts(table, 0, 20)
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting, "false")
    spark.conf.set(setting, is_pushed)
    try:
        loaded = table.read("entry_id bigint")
        three, four = loaded.filter("entry_id = 3"), loaded.filter("entry_id = 4")
        assert (loaded.count(), entry_ids(three), loaded.count()) == (20, [3], 20)
        assert entry_ids(three.union(four)) == [3, 4]
        assert entry_ids(loaded.union(four)) == sorted([*range(20), 4])
        loaded.createOrReplaceTempView("trap")
        counts = [spark.sql(f"select * from trap {where}").count() for where in ("where entry_id = 3", "")]
        assert counts == [1, 20]
    finally:
        spark.conf.set(setting, before)


def test_factories_take_the_names_that_spark_uses():
    for factory in ("reader", "streamReader", "writer", "streamWriter"):
        ours, theirs = (inspect.signature(getattr(source, factory)) for source in (BookKeeperDataSource, DataSource))
        assert list(ours.parameters) == list(theirs.parameters), factory


def test_simple_stream_reader_is_not_offered():
    """Its rows would pass through the driver."""
    assert "simpleStreamReader" not in vars(BookKeeperDataSource)


def test_batches_keep_to_what_is_fast(cluster, client, table):
    """Neither tiny batches nor ones of 50 MB."""
    with client.log(table.log).open_for_writing() as log:
        log.append_many([bytes(100_000)] * 120)
    reader = BookKeeperReader(StructType().add("value", "binary"), _options(cluster, table))
    sizes = [batch.nbytes for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(sizes) >= 12_000_000
    assert max(sizes) <= 2 * BATCH_BYTES
    assert min(sizes[:-1]) >= SMALL_BATCH_BYTES


def _options(cluster, table) -> SourceOptions:
    return SourceOptions.parse({"uri": cluster.uri, "log": table.log})


def test_stop_never_called_leaves_nothing(spark, table, client, tmp_path):
    """Spark ends a stream's planning process without a word: nothing of it may be left at the cluster."""
    texts(table, 0, 5)
    before = _nodes(client, "/ledgers"), _nodes(client, "/bkspark")
    stream = table.stream("value string", startingOffsets="earliest").writeStream.format("noop")
    writer = stream.option("checkpointLocation", str(tmp_path)).trigger(processingTime="0 seconds")
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert (_nodes(client, "/ledgers"), _nodes(client, "/bkspark")) == before


def _nodes(client, root: str) -> set[tuple[str, int]]:
    """Return the path and version of every node below one, but for what bookies say of themselves."""

    async def walk(path: str) -> set[tuple[str, int]]:
        if path in ("/ledgers/available", "/ledgers/cookies"):
            return set()
        stat = await tree.exists(path)
        found = set() if stat is None else {(path, stat.version)}
        for child in await tree.children(path) if stat is not None else []:
            found |= await walk(f"{path}/{child}")
        return found

    tree = run(client.asynchronous.tree)
    return run(lambda: walk(root))


def test_failed_stream_names_its_cause(spark, table, tmp_path):
    """Spark says "Writing job failed": the error that reaches the user must say which option or value it was."""
    texts(table, 0, 3)
    target = type(table)(spark, table.uri, f"{table.log}-copy")
    nulls = table.stream("value string", startingOffsets="earliest").selectExpr("cast(null as string) as value")
    writer = target.options(nulls.writeStream.format("bookkeeper"), {"checkpointLocation": str(tmp_path)})
    with pytest.raises(StreamingQueryException, match=r"(?s)MalformedPayload.*null"):
        writer.trigger(availableNow=True).start().awaitTermination(SECONDS)


def test_cancelled_jobs_zombie_publishes_and_leaves_nothing(spark, table, client, tmp_path):
    """Cancelled, a write runs on for seconds, without exception, after the driver's abort: it comes to nothing."""
    texts(table, 0, 3)
    before = set(client.ledgers())
    started, go = tmp_path / "started", tmp_path / "go"

    def wait(batches):
        first = next(iter(batches))
        yield first
        started.touch()
        while not go.exists():
            time.sleep(0.01)
        yield first

    frame = spark.range(0, 30_000, 1, 1).selectExpr("repeat('x', 100) as value")
    writer = table.options(frame.mapInArrow(wait, frame.schema).write.format("bookkeeper").mode("append"), {})
    context = spark.sparkContext

    def cancel() -> None:
        wait_until(started.exists, "the task to write", SECONDS)
        context.cancelJobGroup("zombie")

    # Spark finds a Python source by the session that is active in the thread: another thread cancels.
    canceller = threading.Thread(target=cancel)
    context.setJobGroup("zombie", "zombie", interruptOnCancel=True)
    canceller.start()
    try:
        with pytest.raises(Exception, match=r"(?i)cancel"):
            writer.save()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        canceller.join()
    go.touch()

    def nothing_is_left() -> bool:
        client.log(table.log).vacuum(older_than_s=0)
        store = run(Log(client.asynchronous, table.log).store)
        # Killed between making a ledger and registering it, a task leaves an empty one.
        left = [
            ledger for ledger in set(client.ledgers()) - before if client.open(ledger, recover=True).last_entry >= 0
        ]
        return not left and not run(lambda: store.attempts.pending(table.log))

    wait_until(nothing_is_left, "the zombie's ledgers to go", SECONDS)
    assert sorted(row.value for row in table.read("value string").collect()) == ["0", "1", "2"]


# ---- what Spark makes of a read ----


def test_plan_has_the_planned_partitions_and_adds_no_shuffle(spark, table):
    texts(table, 0, 40, partitions=4)
    frame = table.read("value string", maxEntriesPerPartition="7")
    planned = BookKeeperReader(
        StructType().add("value", "string"),
        SourceOptions.parse({"uri": table.uri, "log": table.log, "maxEntriesPerPartition": "7"}),
    ).partitions()
    assert frame.rdd.getNumPartitions() == len(planned) >= 6
    rows = frame.collect()
    assert [int(row.value) for row in rows] == list(range(40))
    plan = frame._jdf.queryExecution().executedPlan()
    assert "Exchange" not in plan.toString()
    assert "Sort" not in plan.toString()
    scan = plan
    while scan.children().size():
        scan = scan.children().head()
    assert "BatchScan" in scan.nodeName()
    assert scan.metrics().apply("numOutputRows").value() == len(rows)


READING = """
import pickle, re, sys
from bkspark.spark.read import read_partition

partition, schema, options = pickle.load(open(sys.argv[1], "rb"))
partition.reads = partition.reads * int(sys.argv[2])
rows = 0
for batch in read_partition(partition, schema, options):
    rows += len(batch)
print(rows, re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


def test_worker_needs_no_more_memory_for_a_larger_partition(cluster, client, table, tmp_path):
    """Issue 6: at most 300 MiB above its base. Here a partition of 400 MiB: one ledger, read over and over."""
    with client.log(table.log).open_for_writing() as log:
        log.append_many([bytes(100_000)] * 200)
    schema, options = StructType().add("value", "binary"), _options(cluster, table).for_batch_read()
    (partition,) = BookKeeperReader(schema, _options(cluster, table)).partitions()
    path = tmp_path / "partition"
    path.write_bytes(pickle.dumps((partition, schema, options)))

    def peak_mib(times: int) -> int:
        command = [sys.executable, "-c", READING, str(path), str(times)]
        rows, kib = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        assert int(rows) == 200 * times
        return int(kib) // 1024

    assert peak_mib(21) - peak_mib(0) <= 300
