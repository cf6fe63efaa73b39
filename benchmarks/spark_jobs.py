"""The Spark jobs of `spark_vs_kafka.py`: one job of each kind, whatever the connector, and what each takes.

A connector is its format and options; all else is the same for all. Jobs run in the caller's session, read `value
binary` alone, and write rows of one size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.processor_time import ProcessorClock, ProcessorTime, jvm_pid

PARTITIONS = 2
STREAM_TIMEOUT_S = 600.0
TRIGGERS_TO_WARM_UP = 3
_POLL_PAUSE_S = 0.02

Options = Mapping[str, bool | float | int | str | None]


@dataclass(frozen=True)
class Connector:
    """A format with options, and the processes that serve it."""

    format: str
    options: Options = field(default_factory=dict)
    server_pids: Sequence[int] = ()
    needs_schema: bool = False
    """Takes the columns to read by .schema(); others are selected from."""


@dataclass(frozen=True)
class Measured:
    """How fast a job was, and what it cost."""

    rows: int
    seconds: float
    processor: ProcessorTime

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    def per_million(self, seconds: float) -> float:
        """Return seconds for each million rows, given seconds for all."""
        return seconds / self.rows * 1e6


@dataclass(frozen=True)
class Streamed:
    """Micro-batches of a stream, without those that warmed it up."""

    measured: Measured
    trigger_ms: float
    """The median."""


class SparkJobs:
    """Jobs in one session; `folder` takes checkpoints."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._jvm_pid = jvm_pid(spark)
        self._checkpoints = 0

    def batch_read(self, connector: Connector, options: Options, rows: int) -> Measured:
        """Read everything once, in PARTITIONS tasks where the connector lets choose."""
        return self._measured(connector, rows, lambda: _to_noop(self._loaded(self._spark.read, connector, options)))

    def batch_write(self, connector: Connector, options: Options, rows: int, value: bytearray) -> Measured:
        """Write `rows` rows in one job."""
        values = self._spark.range(0, rows, 1, PARTITIONS).select(sql.lit(value).alias("value"))
        writer = values.write.format(connector.format).options(**{**connector.options, **options}).mode("append")
        return self._measured(connector, rows, writer.save)

    def stream_read(self, connector: Connector, options: Options, triggers: int) -> Streamed:
        """Read micro-batches; there must be rows enough."""
        values = self._loaded(self._spark.readStream, connector, options)
        return self._stream(connector, values.writeStream.format("noop"), triggers)

    def stream_write(
        self, connector: Connector, options: Options, rows_per_trigger: int, triggers: int, value: bytearray
    ) -> Streamed:
        """Write micro-batches of Spark's own rows."""
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_trigger)
        values = source.option("numPartitions", PARTITIONS).load().select(sql.lit(value).alias("value"))
        writer = values.writeStream.format(connector.format).options(**{**connector.options, **options})
        return self._stream(connector, writer, triggers)

    def _stream(self, connector: Connector, writer: DataStreamWriter, triggers: int) -> Streamed:
        """Run a query until it has made this many micro-batches after the warm-up."""
        writer = writer.trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        try:
            self._wait(query, TRIGGERS_TO_WARM_UP)
            clock = self._clock(connector)
            self._wait(query, TRIGGERS_TO_WARM_UP + triggers)
            processor = clock.elapsed()
            progress = [each for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()
        progress = progress[TRIGGERS_TO_WARM_UP : TRIGGERS_TO_WARM_UP + triggers]
        triggers_ms = [each["durationMs"]["triggerExecution"] for each in progress]
        rows = sum(each["numInputRows"] for each in progress)
        return Streamed(Measured(rows, sum(triggers_ms) / 1000, processor), statistics.median(triggers_ms))

    def latencies_ms(
        self,
        connector: Connector,
        options: Options,
        producer: Callable[[], AbstractContextManager[Callable[[bytes], None]]],
        rows: int,
        rows_per_s: int,
    ) -> list[float]:
        """Return how long each row took from its append to the driver, which collects each micro-batch.

        A row holds the time of its append. `producer` gives the function that appends one.
        """
        taken: list[float] = []

        def collect(batch: DataFrame, epoch: int) -> None:
            values = batch.collect()
            now = time.time_ns()
            taken.extend((now - int(row.value)) / 1e6 for row in values)

        values = self._loaded(self._spark.readStream, connector, options)
        writer = values.writeStream.foreachBatch(collect).trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        try:
            with producer() as append:
                _append_until(append, lambda: bool(taken), rows_per_s)
                seen = len(taken)
                _append_until(append, lambda: len(taken) >= seen + rows, rows_per_s)
            return taken[seen:]
        finally:
            query.stop()

    def _loaded(self, reader: Any, connector: Connector, options: Options) -> DataFrame:
        reader = reader.format(connector.format).options(**{**connector.options, **options})
        return reader.schema("value binary").load() if connector.needs_schema else reader.load().select("value")

    def _clock(self, connector: Connector) -> ProcessorClock:
        return ProcessorClock(self._jvm_pid, connector.server_pids)

    def _measured(self, connector: Connector, rows: int, job: Callable[[], None]) -> Measured:
        clock = self._clock(connector)
        began = time.perf_counter()
        job()
        return Measured(rows, time.perf_counter() - began, clock.elapsed())

    def _checkpoint(self) -> str:
        self._checkpoints += 1
        return str(self._folder / f"checkpoint{self._checkpoints}")

    def _wait(self, query: StreamingQuery, triggers: int) -> None:
        deadline = time.monotonic() + STREAM_TIMEOUT_S
        while (progress := query.lastProgress) is None or progress["batchId"] + 1 < triggers:
            failure = query.exception()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"a query did not come on in {STREAM_TIMEOUT_S:g} s: {query.status}")
            time.sleep(_POLL_PAUSE_S)


def _to_noop(values: DataFrame) -> None:
    values.write.format("noop").mode("overwrite").save()


def _append_until(append: Callable[[bytes], None], condition: Callable[[], bool], rows_per_s: int) -> None:
    """Append rows that hold the time, `rows_per_s` of them, until the condition holds."""
    deadline = time.monotonic() + STREAM_TIMEOUT_S
    next_s = time.monotonic()
    while not condition():
        if next_s > deadline:
            raise TimeoutError(f"rows that were appended did not arrive in {STREAM_TIMEOUT_S:g} s")
        append(str(time.time_ns()).encode())
        next_s += 1 / rows_per_s
        time.sleep(max(0.0, next_s - time.monotonic()))
