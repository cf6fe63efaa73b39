"""The driver of a case: `python -m tests.real_cluster.job CASE FOLDER`, on the host `client`.

FOLDER holds `job.json` (`uri`, `settings` of the session). Files in it synchronise tasks, driver and test, because all
hosts share them: a task of a step makes `begun-STEP-PARTITION-ATTEMPT-ADDRESS`, and the tasks of the step's second half
wait, with their first rows written, until there is `go-STEP`. Each check prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.polling import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TASKS = 12
ROWS = 24_000
EPOCH_ROWS = ROWS // TASKS
WAIT_S = 150
TEXT = "sha2(cast(id as string), 256)"
"""What the column `text` is of each `id`."""
COLUMNS = "id bigint, text string"

Batches = Iterator["pa.RecordBatch"]


class Steps:
    """The files that synchronise tasks with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begun(self, step: str) -> list[tuple[int, int, str]]:
        """Return partition, attempt and address of each task that has begun."""
        found = [path.name.split("-")[2:] for path in self.folder.glob(f"begun-{step}-*")]
        return [(int(partition), int(attempt), address) for partition, attempt, address in found]

    def held(self, step: str) -> list[str]:
        """Return the addresses of tasks that wait."""
        return [address for partition, _, address in self.begun(step) if partition >= TASKS // 2]

    def let_go(self, step: str) -> None:
        (self.folder / f"go-{step}").touch()

    def wait(self, step: str) -> None:
        wait_until((self.folder / f"go-{step}").exists, f"go-{step}", WAIT_S)

    def task(self, step: str, is_held: Callable[[Steps, int, int], bool] | None = None) -> Callable[[Batches], Batches]:
        """Return a function for mapInArrow that records the task, and waits after its first rows while it is held."""

        def run(batches: Batches) -> Batches:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            partition, attempt = context.partitionId(), context.attemptNumber()
            (self.folder / f"begun-{step}-{partition}-{attempt}-{os.environ['SPARK_LOCAL_IP']}").touch()
            for batch in batches:
                half = len(batch) // 2
                yield batch.slice(0, half)
                if is_held is not None:
                    wait_until(lambda: not is_held(self, partition, attempt), f"task {partition} of {step}", WAIT_S)
                yield batch.slice(half)

        return run


def second_half(step: str) -> Callable[[Steps, int, int], bool]:
    """Hold the second half of the tasks until the test lets them go."""
    return lambda steps, partition, _: partition >= TASKS // 2 and not (steps.folder / f"go-{step}").exists()


class Job:
    """One Spark session on the cluster, and the reads and writes that cases are made of."""

    def __init__(self, folder: Path) -> None:
        from pyspark.sql import SparkSession

        import bkspark

        given = json.loads((folder / "job.json").read_text())
        self.folder = folder
        self.uri = given["uri"]
        self.steps = Steps(folder)
        builder = SparkSession.builder.appName("real-cluster")
        for name, value in given["settings"].items():
            builder = builder.config(name, value)
        self.spark: SparkSession = builder.getOrCreate()
        bkspark.register(self.spark)

    def options(self, target: Any, log: str, **options: object) -> Any:
        # Cases share a cluster.
        log = f"{self.folder.name}.{log}"
        target = target.format("bookkeeper").option("uri", self.uri).option("log", log)
        for name, value in options.items():
            target = target.option(name, value)
        return target

    def rows(self, first: int = 0, count: int = ROWS, tasks: int = TASKS) -> DataFrame:
        return self.spark.range(first, first + count, 1, tasks).selectExpr("id", f"{TEXT} as text")

    def write(self, frame: DataFrame, log: str, **options: object) -> None:
        """Append, from the tasks themselves unless `inlineBytes` says otherwise."""
        self.options(frame.write, log, **({"inlineBytes": "0"} | options)).mode("append").save()

    def read(self, log: str) -> DataFrame:
        return self.options(self.spark.read, log, minPartitions=TASKS).load()

    def copy(self, log: str, copy: str, step: str, hold: bool = False, **options: object) -> StreamingQuery:
        """Start a stream from one log to another, whose tasks are those of `step`."""
        source = self.options(self.spark.readStream, log, startingOffsets="earliest", minPartitions=TASKS).load()
        task = self.steps.task(step, second_half(step) if hold else None)
        writer = self.options(source.mapInArrow(task, COLUMNS).writeStream, copy, **({"inlineBytes": "0"} | options))
        return writer.option("checkpointLocation", str(self.folder / f"checkpoint-{copy}")).start()

    def check(self, log: str, rows: int = ROWS) -> None:
        """Read the log and raise AssertionError unless it holds each row once."""
        read = self.read(log).mapInArrow(self.steps.task(f"read.{uuid.uuid4().hex}"), COLUMNS)
        found = read.selectExpr("count(*)", "count(distinct id)", "min(id)", "max(id)", f"count_if(text = {TEXT})")
        assert tuple(found.first() or ()) == (rows, rows, 0, rows - 1, rows), f"{log}: {found.first()}, not {rows} rows"
        say(log=log, rows=rows)


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


# ---- the cases ----


def batch(job: Job) -> None:
    """A write from all workers, and one of few rows, which the driver appends; both are read."""
    job.write(job.rows().mapInArrow(job.steps.task("write"), COLUMNS), "batch")
    job.check("batch")
    job.write(job.rows(count=100), "few", inlineBytes="512k")
    job.check("few", 100)


def streams(job: Job) -> None:
    """A stream that reads one log and writes another, while rows arrive, and again from its checkpoint."""
    job.write(job.rows(0, EPOCH_ROWS), "source")
    for epochs in (range(1, 4), range(4, 6)):
        query = job.copy("source", "copy", f"copy{epochs.start}", inlineBytes="512k" if epochs.start > 1 else "0")
        try:
            for epoch in epochs:
                job.write(job.rows(epoch * EPOCH_ROWS, EPOCH_ROWS), "source")
                query.processAllAvailable()
        finally:
            query.stop()
    job.check("source", 6 * EPOCH_ROWS)
    job.check("copy", 6 * EPOCH_ROWS)


def interrupted(job: Job) -> None:
    """A write and a stream with tasks on every worker, to which something happens in the middle.

    After each, the test heals what it did and lets the driver go on, which looks again.
    """
    job.write(job.rows().mapInArrow(job.steps.task("write", second_half("write")), COLUMNS), "written")
    job.check("written")
    say(finished="write")
    job.steps.wait("stream-may-begin")
    job.check("written")
    query = job.copy("written", "copied", "stream", hold=True)
    try:
        query.processAllAvailable()
        job.check("copied")
        say(finished="stream")
        job.steps.wait("stream-may-end")
        job.write(job.rows(ROWS, EPOCH_ROWS), "written")
        query.processAllAvailable()
    finally:
        query.stop()
    job.check("copied", ROWS + EPOCH_ROWS)
    job.check("written", ROWS + EPOCH_ROWS)


def speculation(job: Job) -> None:
    """Tasks that are slow get a second attempt on another host, and both attempts write."""

    def until_a_second_attempt(step: str) -> Callable[[Steps, int, int], bool]:
        def is_held(steps: Steps, partition: int, attempt: int) -> bool:
            others = [other for other, number, _ in steps.begun(step) if number > 0]
            return partition == 0 and attempt == 0 and partition not in others

        return is_held

    job.write(job.rows().mapInArrow(job.steps.task("write", until_a_second_attempt("write")), COLUMNS), "twice")
    job.check("twice")
    source = job.options(job.spark.readStream, "twice", startingOffsets="earliest", minPartitions=TASKS).load()
    slow = source.mapInArrow(job.steps.task("stream", until_a_second_attempt("stream")), COLUMNS)
    writer = job.options(slow.writeStream, "streamed", inlineBytes="0").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(job.folder / "checkpoint-streamed")).start()
    query.awaitTermination(WAIT_S)
    job.check("streamed")


def allocation(job: Job) -> None:
    """Executors come when there are tasks and go when there is nothing to do."""
    context = job.spark.sparkContext

    def executors() -> int:
        return context._jsc.sc().getExecutorMemoryStatus().size() - 1

    def everywhere(step: str) -> Callable[[Steps, int, int], bool]:
        """Hold a task until all workers have one."""
        return lambda steps, _partition, _attempt: len({address for _, _, address in steps.begun(step)}) < 3

    job.write(job.rows().mapInArrow(job.steps.task("write", everywhere("write")), COLUMNS), "allocated")
    job.check("allocated")
    say(executors=executors())
    wait_until(lambda: executors() == 0, "idle executors to go", WAIT_S)
    query = job.copy("allocated", "again", "stream")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    job.check("again")


CASES = {case.__name__: case for case in (batch, streams, interrupted, speculation, allocation)}


def main(case: str, folder: str) -> None:
    job = Job(Path(folder))
    try:
        for name in case.split(","):
            CASES[name](job)
    finally:
        job.spark.stop()


if __name__ == "__main__":
    # Tasks unpickle functions by the module's name, not as __main__.
    from tests.real_cluster.job import main as imported

    imported(*sys.argv[1:])
