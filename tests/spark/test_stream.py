"""Streaming from and to logs, in one session; `test_kill` ends drivers."""

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sql

import bkspark
from bkspark.errors import ConfigurationError
from bkspark.log.formats import SegmentOwner
from bkspark.log.log import Log
from bkspark.spark.versions import HAS_ADMISSION_CONTROL, SPARK_VERSION
from tests.polling import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SECONDS = 120
RUNS_AFTER_A_CRASH = 1 if HAS_ADMISSION_CONTROL else 2
"""Runs that a query with `availableNow` needs to reach its end. Before Spark 4.2, the first one ends after the
micro-batch that it repeats."""


class Sink:
    """What a query wrote to files, by epoch: exactly what Spark committed."""

    def __init__(self, folder: Path) -> None:
        self.rows = folder / "rows"
        self.checkpoint = folder / "checkpoint"

    def start(self, frame, **trigger):
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(str(self.rows))

    def run(self, frame, **trigger):
        """Run until everything that is there now is read; return the query."""
        query = self.start(frame, **(trigger or {"availableNow": True}))
        assert query.awaitTermination(SECONDS)
        return query

    def read(self, spark) -> list:
        return sorted(row[0] for row in spark.read.parquet(str(self.rows)).collect())

    def ends(self) -> list[dict]:
        """The offsets of the checkpoint, in order of epochs."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[2]) for path in files]


@pytest.fixture
def sink(tmp_path) -> Sink:
    return Sink(tmp_path)


def numbers(table, first: int, end: int, partitions: int = 2):
    table.write(table.spark.range(first, end, 1, partitions).selectExpr("cast(id as string) as value"))


def values(table, **options):
    return table.stream("value string", **({"startingOffsets": "earliest"} | options)).selectExpr("cast(value as int)")


@pytest.mark.every_spark
def test_stream_goes_on_from_its_checkpoint(spark, table, sink):
    numbers(table, 0, 10)
    sink.run(values(table))
    assert sink.read(spark) == list(range(10))
    numbers(table, 10, 20)
    numbers(table, 20, 25)
    sink.run(values(table))
    assert sink.read(spark) == list(range(25))
    sink.run(values(table))
    assert sink.read(spark) == list(range(25))
    assert len(sink.ends()) == 2


def test_offsets_are_canonical_and_name_the_log(spark, table, sink):
    numbers(table, 0, 10, partitions=1)
    sink.run(values(table))
    (end,) = sink.ends()
    assert list(end) == sorted(end)
    assert end == {"entry": 10, "ledger": end["ledger"], "log": table.log, "log_id": end["log_id"], "ordinal": 0,
                   "version": 1}  # fmt: skip


@pytest.mark.every_spark
def test_running_stream_follows_appends_and_an_open_ledger(spark, table, sink, client):
    numbers(table, 0, 5)
    query = sink.start(values(table), processingTime="100 milliseconds")
    try:
        wait_until(lambda: query.lastProgress and (sink.rows / "_spark_metadata").exists(), "the first epoch", SECONDS)
        numbers(table, 5, 9)
        with client.log(table.log).open_for_writing() as log:
            log.append_many([b"9", b"10"])
            log.append(b"11")
            # The last entry is confirmed to readers by the next one, or by the close.
            wait_until(lambda: sink.read(spark) == list(range(11)), "entries of the open ledger", SECONDS)
        wait_until(lambda: sink.read(spark) == list(range(12)), "the rest once it was closed", SECONDS)
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"maxEntriesPerTrigger": "7"}, 6),
        ({"maxBytesPerTrigger": "1000"}, 4),
        ({"maxBytesPerTrigger": "1000", "maxEntriesPerTrigger": "7"}, 6),
        ({}, 1),
    ],
)
@pytest.mark.admission_control
def test_limits_cut_the_stream_into_epochs(spark, table, sink, options, epochs):
    table.write(spark.range(0, 40, 1, 3).selectExpr("lpad(cast(id as string), 100, '0') as value"))
    sink.run(values(table, **options))
    assert sink.read(spark) == list(range(40))
    assert len(sink.ends()) == epochs


@pytest.mark.admission_control
def test_byte_limit_holds_for_an_open_ledger(table, sink, client):
    with client.log(table.log).open_for_writing() as log:
        log.append_many([b"%050000d" % n for n in range(20)])
        log.append(b"20")
        sink.run(values(table, maxBytesPerTrigger="250k"))
    assert sink.read(table.spark) == list(range(20))
    assert len(sink.ends()) == 4


@pytest.mark.admission_control
def test_available_now_ends_at_what_was_there_at_its_start(spark, table, sink):
    numbers(table, 0, 20)
    grown = []

    def grow(frame, epoch):
        if not grown:
            grown.append(epoch)
            numbers(table, 20, 25)
        frame.write.mode("append").parquet(str(sink.rows))

    stream = values(table, maxEntriesPerTrigger="5").writeStream.foreachBatch(grow)
    query = stream.option("checkpointLocation", str(sink.checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)
    assert sink.read(spark) == list(range(20))


@pytest.mark.every_spark
def test_log_to_log_is_copied_once_and_on_after_a_restart(spark, table, target, tmp_path):
    numbers(table, 0, 50)
    copy_to(target, table, tmp_path / "checkpoint")
    numbers(table, 50, 80)
    copy_to(target, table, tmp_path / "checkpoint")
    assert written(target) == list(range(80))


@pytest.mark.every_spark
def test_limit_of_a_stream_is_kept_or_refused_by_name(spark, table, sink):
    numbers(table, 0, 3)
    limited = values(table, maxEntriesPerTrigger="2")
    if HAS_ADMISSION_CONTROL:
        sink.run(limited)
        assert sink.read(spark) == [0, 1, 2]
    else:
        reason = f"option 'maxEntriesPerTrigger' of a stream needs Spark 4.2, and this is {SPARK_VERSION}"
        assert reason in failure(lambda: sink.run(limited))


def test_stream_starts_at_latest_by_default(spark, table, sink):
    numbers(table, 0, 5)
    stream = table.stream("value string").selectExpr("cast(value as int)")
    sink.run(stream)
    numbers(table, 5, 8)
    sink.run(stream)
    assert sink.read(spark) == [5, 6, 7]


@pytest.mark.every_spark
def test_stream_starts_at_a_given_position(spark, table, sink):
    numbers(table, 0, 20)
    position = table.read("value string, position string").filter("value = '13'").first().position
    sink.run(values(table, startingOffsets=position))
    assert sink.read(spark) == list(range(13, 20))


@pytest.mark.admission_control
def test_progress_shows_the_end_of_the_log(spark, table, sink):
    numbers(table, 0, 10, partitions=1)
    query = sink.run(values(table, maxEntriesPerTrigger="4"))
    first = query.recentProgress[0].sources[0]
    assert json.loads(first.latestOffset)["entry"] == 10
    assert bkspark.lag(query.recentProgress[0]).entries > bkspark.lag(query.lastProgress).entries == 0
    assert json.loads(first.endOffset)["entry"] == 4


def test_session_helper_gives_the_session_that_runs(spark):
    helper = bkspark.session(spark__bkspark__tests="yes")
    assert helper.sparkContext is spark.sparkContext
    assert helper.conf.get("spark.bkspark.tests") == "yes"


def test_session_helper_refuses_what_spark_would_pass_over():
    with pytest.raises(ConfigurationError, match="'shuffle_partitions' is not a setting of Spark"):
        bkspark.session(shuffle_partitions="8")


def failure(query_run) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        query_run()
    return str(caught.value)


@pytest.mark.admission_control
def test_truncated_entries_that_were_unread_fail_the_stream(spark, table, sink, client):
    for first in range(0, 30, 10):
        numbers(table, first, first + 10, partitions=1)
    sink.run(values(table, maxEntriesPerTrigger="100").limit(0))
    read = sink.ends()[-1]
    assert read["ordinal"] == 2

    other = Sink(sink.rows.parent / "other")
    position = table.read("value string, position string").filter("value = '25'").first().position
    stream = values(table, startingOffsets=table.read("position string").first().position)
    client.log(table.log).truncate(position)
    assert "failOnDataLoss" in failure(lambda: other.run(stream))
    third = Sink(sink.rows.parent / "third")
    third.run(values(table, startingOffsets=json.dumps({k: read[k] for k in read if "log" not in k} | {"entry": 1}),
                     failOnDataLoss="false"))  # fmt: skip
    assert third.read(spark) == list(range(25, 30))


def test_truncation_before_the_reader_is_not_a_loss(spark, table, sink, client):
    numbers(table, 0, 10, partitions=1)
    sink.run(values(table))
    numbers(table, 10, 20, partitions=1)
    client.log(table.log).truncate(table.read("value string, position string").filter("value = '10'").first().position)
    sink.run(values(table))
    assert sink.read(spark) == list(range(20))


@pytest.mark.every_spark
def test_log_created_again_is_noticed(spark, table, sink, client):
    numbers(table, 0, 10)
    sink.run(values(table))
    client.log(table.log).delete()
    numbers(table, 10, 30)
    assert "deleted and created again" in failure(lambda: sink.run(values(table)))
    sink.run(values(table, failOnDataLoss="false"))
    assert sink.read(spark) == list(range(30))


def test_checkpoint_of_another_log_is_refused(spark, table, sink):
    numbers(table, 0, 3)
    sink.run(values(table))
    first = table.log
    table.log += "-other"
    numbers(table, 0, 3)
    assert f"position in log '{first}'" in failure(lambda: sink.run(values(table)))


def test_wrong_options_of_a_stream_are_refused_at_its_start(spark, table, sink):
    numbers(table, 0, 3)
    assert "'endingOffsets' has no effect on a stream read" in failure(
        lambda: sink.run(values(table, endingOffsets="latest"))
    )
    table.log += "-missing"
    assert "does not exist" in failure(lambda: sink.run(values(table)))


# ---- the sink ----


def written(table, **options) -> list[int]:
    return sorted(int(row.value) for row in table.read("value string", **options).collect())


def to_log(frame, table, checkpoint: Path, mode: str = "append", trigger=None, **options):
    writer = table.options(frame.writeStream.format("bookkeeper"), options).option(
        "checkpointLocation", str(checkpoint)
    )
    return writer.outputMode(mode).trigger(**(trigger or {"availableNow": True})).start()


def copy_to(target, source, checkpoint: Path, **options):
    frame = values(source, **options).selectExpr("cast(value as string) as value")
    query = to_log(frame, target, checkpoint)
    assert query.awaitTermination(SECONDS)


@pytest.fixture
def target(table):
    return type(table)(table.spark, table.uri, f"{table.log}-copy")


def copied(table, target, checkpoint: Path, *, entries: str | None = None, **options) -> None:
    """Copy what there is, `entries` of it in each micro-batch."""
    limit = {} if entries is None else {"maxEntriesPerTrigger": entries}
    frame = values(table, **limit).selectExpr("cast(value as string) as value")
    query = to_log(frame, target, checkpoint, **options)
    assert query.awaitTermination(SECONDS)


def forget_commit(checkpoint: Path, epoch: int) -> None:
    """Leave a checkpoint as Spark leaves it when it dies after a commit and before it noted that."""
    for name in (f"{epoch}", f".{epoch}.crc"):
        (checkpoint / "commits" / name).unlink()


@pytest.mark.admission_control
def test_new_checkpoint_under_a_used_name_fails_and_no_row_is_lost(spark, table, target, client, tmp_path):
    """It cuts the same source at other places: its epoch 0 has rows that no epoch of the first query had."""
    numbers(table, 0, 10)
    copied(table, target, tmp_path / "lost", entries="3", txnAppId="copy")
    numbers(table, 10, 15)
    with pytest.raises(StreamingQueryException) as failed:
        copied(table, target, tmp_path / "new", txnAppId="copy")
    message = str(failed.value)
    first = client.log(target.log).show()["published"]
    assert [(item["name"], item["version"]) for item in first] == [("copy", 3)]
    assert f"version 0 of 'copy' cannot be published in log {target.log}" in message
    assert f"by query {first[0]['query']}" in message
    assert "Its 15 rows were not written" in message
    assert "txnVersion 4 " in message
    assert written(target) == list(range(10))
    # The remedy of the message: everything that the new query reads is there then.
    copied(table, target, tmp_path / "new", txnAppId="copy", txnVersion="4")
    assert written(target) == sorted([*range(10), *range(15)])


@pytest.mark.admission_control
def test_new_checkpoint_with_the_same_boundaries_may_skip_what_is_published(spark, table, target, tmp_path):
    numbers(table, 0, 6)
    copied(table, target, tmp_path / "first", entries="3", txnAppId="copy")
    numbers(table, 6, 9)
    copied(table, target, tmp_path / "from the start", entries="3", txnAppId="copy", ifPublished="skip")
    assert written(target) == list(range(9))


@pytest.mark.every_spark
@pytest.mark.parametrize("options", [{}, {"txnAppId": "copy"}], ids=["by its id", "by a name"])
def test_query_that_begins_with_its_last_epoch_again_publishes_it_once(spark, table, target, tmp_path, options):
    checkpoint = tmp_path / "checkpoint"
    for first in (0, 3):
        numbers(table, first, first + 3)
        copied(table, target, checkpoint, **options)
    forget_commit(checkpoint, 1)
    numbers(table, 6, 9)
    for _ in range(RUNS_AFTER_A_CRASH):
        copied(table, target, checkpoint, **options)
    assert written(target) == list(range(9))


@pytest.mark.every_spark
def test_foreach_batch_of_another_checkpoint_fails_and_a_repeated_batch_does_not(spark, table, target, tmp_path):
    def write(frame, batch_id: int) -> None:
        target.write(frame, txnAppId="app", txnVersion=str(batch_id))

    def run(checkpoint: str) -> None:
        frame = values(table).selectExpr("cast(value as string) as value")
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(SECONDS)

    for first in (0, 3):
        numbers(table, first, first + 3)
        run("first")
    with pytest.raises(StreamingQueryException, match="version 0 of 'app' cannot be published"):
        run("second")
    forget_commit(tmp_path / "first", 1)
    numbers(table, 6, 9)
    for _ in range(RUNS_AFTER_A_CRASH):
        run("first")
    assert written(target) == list(range(9))


@pytest.mark.admission_control
def test_stream_from_log_to_log_copies_every_entry_once(spark, table, target, tmp_path):
    numbers(table, 0, 50, partitions=3)
    copy_to(target, table, tmp_path / "checkpoint", maxEntriesPerTrigger="20")
    assert written(target) == list(range(50))
    numbers(table, 50, 60)
    copy_to(target, table, tmp_path / "checkpoint")
    assert written(target) == list(range(60))


@pytest.mark.admission_control
def test_epoch_that_is_written_again_is_published_once(spark, table, target, tmp_path, client):
    """As after a driver's death between our commit and Spark's note of it: the last note is missing."""
    numbers(table, 0, 30)
    checkpoint = tmp_path / "checkpoint"
    copy_to(target, table, checkpoint, maxEntriesPerTrigger="10")
    ledgers = set(client.ledgers())
    notes = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(notes) == 3
    notes[-1].unlink()
    (checkpoint / "commits" / f".{notes[-1].name}.crc").unlink(missing_ok=True)
    copy_to(target, table, checkpoint, maxEntriesPerTrigger="10")
    assert written(target) == list(range(30))
    assert set(client.ledgers()) == ledgers


@pytest.mark.admission_control
def test_complete_mode_swaps_the_content_each_epoch(spark, table, target, tmp_path):
    numbers(table, 0, 30)
    counts = values(table, maxEntriesPerTrigger="10").agg(sql.count("*").cast("string").alias("value"))
    assert to_log(counts, target, tmp_path / "checkpoint", "complete").awaitTermination(SECONDS)
    assert written(target) == [30]


def pending(client, log: str) -> list:
    from bkspark.blocking import run

    store = run(Log(client.asynchronous, log).store)
    return run(lambda: store.attempts.pending(log))


def test_failed_attempts_leave_nothing_visible_or_stored(spark, table, client, tmp_path):
    """The first attempt of a task writes and dies; the second wins."""
    marker = tmp_path / "failed-once"

    def fail_once(batches):
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("planted")

    ledgers = set(client.ledgers())
    frame = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as value")
    table.write(frame.mapInArrow(fail_once, frame.schema))
    assert marker.exists()
    assert written(table) == list(range(10))
    assert len(set(client.ledgers()) - ledgers) == 2
    assert pending(client, table.log) == []


@pytest.mark.parametrize("partitions", [1, 2])
def test_job_that_fails_publishes_and_leaves_nothing(spark, table, client, partitions):
    numbers(table, 0, 3)
    ledgers = set(client.ledgers())

    def fail(batches):
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == partitions - 1:
            raise RuntimeError("planted")

    frame = spark.range(0, 10, 1, partitions).selectExpr("cast(id as string) as value")
    with pytest.raises(Exception, match="planted"):
        table.write(frame.mapInArrow(fail, frame.schema))
    assert written(table) == [0, 1, 2]

    def nothing_is_left() -> bool:
        # Spark aborts the job while the task that did not fail still runs, and may make its ledger after the abort. It
        # may also kill the task before it has registered its ledger. A vacuum finds both.
        if partitions > 1:
            client.log(table.log).vacuum(older_than_s=0)
        return pending(client, table.log) == [] and set(client.ledgers()) == ledgers

    wait_until(nothing_is_left, "the ledgers of the failed job to go", 1 if partitions == 1 else SECONDS)


@pytest.mark.every_spark
def test_killed_worker_process_is_replaced_and_leaves_nothing(spark, table, client, tmp_path):
    marker = tmp_path / "killed-once"

    def die_once(batches):
        import os
        import signal

        from pyspark import TaskContext

        for batch in batches:
            yield batch
            if TaskContext.get().partitionId() == 1 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    frame = spark.range(0, 30_000, 1, 2).selectExpr("cast(id as string) as value")
    table.write(frame.mapInArrow(die_once, frame.schema))
    assert marker.exists()
    assert written(table) == list(range(30_000))
    assert pending(client, table.log) == []


def test_abort_after_a_commit_that_took_effect_deletes_nothing_published(spark, table, client, cluster):
    from pyspark.sql.types import StructType

    from bkspark.spark.options import SourceOptions
    from bkspark.spark.write import AttemptResult, BookKeeperWriter

    options = SourceOptions.parse({"uri": cluster.uri, "log": table.log})
    writer = BookKeeperWriter(StructType().add("value", "string"), options, overwrite=False)
    log = Log(client.asynchronous, table.log)
    from bkspark.blocking import LedgerWriter, run
    from bkspark.log.formats import SegmentFacts

    def attempt(partition: int) -> AttemptResult:
        owner = SegmentOwner("job", writer.job_id, None, partition, partition)
        ledger = LedgerWriter(run(lambda: log.create_attempt(owner)))
        ledger.append(str(partition).encode())
        closed = ledger.close()
        return AttemptResult(owner, (SegmentFacts(ledger.ledger_id, closed.last_entry, closed.length),))

    winners, loser = [attempt(1), attempt(0)], attempt(2)
    writer.commit([*winners, None])
    writer.abort([*winners, loser])
    assert written(table) == [0, 1]
    assert loser.ledgers[0].ledger_id not in set(client.ledgers())
