"""Traps of Spark's Python Data Source API, and the test that each has; those without another home are here.

What Spark does in each of these cases was seen on Spark 4.3. Where a trap's name is in a test, the test fails if we
step into it. Every test named is there: `test_every_trap_has_its_test`.

    what decides the design
      pushed filters return wrong rows      test_pushdown_leak_returns_no_wrong_rows, whether or not Spark pushes
      a loaded frame is a frozen snapshot   test_frame_is_the_snapshot_of_its_load
                                            test_temporary_view_is_the_snapshot_of_its_first_query
                                            test_table_takes_its_options_from_each_query_and_is_never_stale
      commit comes twice, abort after it    test_epoch_that_is_written_again_is_published_once
                                            test_abort_after_a_commit_that_took_effect_deletes_nothing_published
      a killed write runs no code           test_killed_worker_process_is_replaced_and_leaves_nothing
                                            test_cancelled_jobs_zombie_publishes_and_leaves_nothing
      stop() is never called                test_stop_never_called_leaves_nothing
      offsets are compared as text          test_offset_text_is_canonical, test_offsets_are_canonical_and_name_the_log
                                            test_offset_without_news_is_the_same_text_when_ledgers_close_and_come
      batches of 1 to 10 MiB                test_small_ledgers_become_one_batch, test_batches_keep_to_what_is_fast
      every task costs 70 ms                test_partitions_follow_size_then_slots_then_the_wish
                                            test_many_small_ledgers_share_tasks_and_a_large_one_is_split
      unix sockets save 25 to 50 ms         test_settings_file_and_session_set_the_same
    the interface
      factories are called by keyword       test_factories_take_the_names_that_spark_uses
      an empty list of partitions           test_partition_of_nothing_has_no_rows
      empty partitions are written too      test_partition_without_rows_makes_no_ledger
      modes that Spark refuses              test_spark_refuses_the_modes_that_it_does_not_offer_and_writes_nothing
      one broken module hides all           test_discovery_module_imports_whatever_is_wrong
    the pushdown leak
      all four queries                      test_pushdown_leak_returns_no_wrong_rows
    failures
      a task fails, and is tried again      test_failed_attempts_leave_nothing_visible_or_stored
      all attempts fail, abort of Nones     test_job_that_fails_publishes_and_leaves_nothing
      the job is cancelled, a zombie writes test_cancelled_jobs_zombie_publishes_and_leaves_nothing
      the worker process dies               test_killed_worker_process_is_replaced_and_leaves_nothing
      commit raises, then abort             test_abort_after_a_commit_that_took_effect_deletes_nothing_published
      the driver dies after the commit      test_stream_through_kills_copies_every_entry_once_and_in_order
                                            test_readers_see_every_epoch_once_and_whole ("kill", "repeated epoch")
      speculation                           test_every_kind_of_fault_strikes ("speculative attempt"); one host never
                                            speculates, three do: python -m tests.real_cluster speculation
      commit is repeated                    test_epoch_that_is_written_again_is_published_once
                                            test_a_repeated_epoch_appends_nothing_visible
      a new checkpoint is a new query       test_new_checkpoint_under_a_used_name_fails_and_no_row_is_lost
    known bugs
      pushdown leak                         test_pushdown_leak_returns_no_wrong_rows
      frozen snapshot                       test_temporary_view_is_the_snapshot_of_its_first_query
      options of tables are dropped         test_table_takes_its_options_from_each_query_and_is_never_stale
                                            test_options_of_a_table_do_not_reach_the_source_and_the_error_says_what_does
      stop() is never called                test_stop_never_called_leaves_nothing
      "Writing job failed", no cause        test_failed_stream_names_its_cause
      the simple stream reader              test_simple_stream_reader_is_not_offered
      no column pruning                     test_given_schema_picks_columns_in_any_order_and_case
      no pushed limit                       test_limit_ends_the_tasks_early_and_cleanly
      AvailableNow ignores a limit          test_limits_cut_the_stream_into_epochs
                                            test_available_now_ends_at_what_was_there_at_its_start

Two of the known bugs are no longer traps: the time-out of long triggers, which Spark 4.0 does not have, and pandas 3,
of which Spark only warns.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

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


def test_every_trap_has_its_test():
    written = [path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")]
    tests = {name for text in written for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)}
    named = set(re.findall(r"test_\w+", __doc__))
    assert len(named) > 25
    assert named - tests == set()


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
    """Spark ends a stream's planning process without a message: nothing of it may be left at the cluster."""
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

    async def walk() -> set[tuple[str, int]]:
        """Ask for the nodes of one depth at once: a cluster of many tests has thousands."""
        found, paths = set[tuple[str, int]](), [root]
        while paths:
            stats = await asyncio.gather(*map(tree.exists, paths))
            present = [(path, stat.version) for path, stat in zip(paths, stats, strict=True) if stat is not None]
            found |= set(present)
            children = await asyncio.gather(*(tree.children(path) for path, _ in present))
            below = (f"{path}/{name}" for (path, _), names in zip(present, children, strict=True) for name in names)
            paths = [path for path in below if path not in ("/ledgers/available", "/ledgers/cookies")]
        return found

    tree = run(client.asynchronous.tree)
    return run(walk)


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
    """At most 300 MiB above its base. Here a partition of 400 MiB: one ledger, read over and over."""
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
