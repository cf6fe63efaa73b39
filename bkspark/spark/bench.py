"""The Spark half of `bkspark bench spark`: the connector's four jobs, and Spark's own limits, in one session.

Every job runs once on a small part to warm up, then once timed. Run as `python -m bkspark.spark.bench`.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from bkspark.blocking import Client
from bkspark.metadata.zookeeper_options import ZooKeeperOptions, read_zookeeper_file, zookeeper_options
from bkspark.net.pool import NetOptions
from bkspark.secret_files import password_from
from bkspark.security.client_keys import read_client_sasl
from bkspark.spark.bench_sources import NullArrowSink, ReadyArrowSource
from bkspark.spark.job import main_of, say, session
from bkspark.tls.client_keys import FILE_VARIABLE, read_client_file

WARM_UP_ROWS = 20_000
STREAM_TIMEOUT_S = 3600


class Bench:
    """The jobs that are measured, on one session. Each writes or reads `rows` rows of `value_size` bytes."""

    def __init__(self, spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
        self._spark = spark
        self._folder = folder
        """For checkpoints of streams."""
        self._options = options
        """The arguments of the command."""
        self._prefix = f"bench-{uuid.uuid4().hex[:12]}"
        """The logs of this run begin with it. Constant."""
        self._value = bytearray(os.urandom(options.value_size))
        spark.dataSource.register(ReadyArrowSource)
        spark.dataSource.register(NullArrowSink)

    def delete_logs(self, client: Client) -> None:
        """Delete every log that the jobs made."""
        for name in client.logs():
            if name.startswith(self._prefix):
                client.log(name).delete()

    def run(self) -> dict[str, Any]:
        """Return the JSON of `bkspark bench spark`."""
        jobs: dict[str, Callable[[int], None]] = {
            "arrow_write": self._write_limit,
            "write": self._write,
            "arrow_read": self._read_limit,
            "read": self._read,
            "stream_read": self._stream_read,
            "stream_write": self._stream_write,
        }
        figures = {}
        for name, job in jobs.items():
            for rows in self._sizes():
                say(f"{name}: {rows} rows ...")
                started_s = time.perf_counter()
                job(rows)
                figures[name] = self._figures(rows, time.perf_counter() - started_s)
        limits = {f"{name}_mib_per_s": figures.pop(name)["mib_per_s"] for name in ("arrow_read", "arrow_write")}
        return {**figures, "limit": limits}

    def _sizes(self) -> list[int]:
        """Return the rows of the warm-up and of the timed run. A run as small as a warm-up has no warm-up."""
        rows = self._options.rows
        return [WARM_UP_ROWS, rows] if rows > WARM_UP_ROWS else [rows]

    def _figures(self, rows: int, seconds: float) -> dict[str, float]:
        mib = rows * self._options.value_size / (1 << 20)
        return {
            "rows_per_s": round(rows / seconds, 1),
            "mib_per_s": round(mib / seconds, 2),
            "seconds": round(seconds, 3),
        }

    def _rows(self, rows: int) -> DataFrame:
        value = sql.lit(self._value).alias("value")
        return self._spark.range(0, rows, 1, self._options.partitions).select(value)

    def _log(self, kind: str, rows: int) -> str:
        return f"{self._prefix}-{kind}-{rows}"

    def _write_limit(self, rows: int) -> None:
        self._rows(rows).write.format(NullArrowSink.name()).mode("append").save()

    def _read_limit(self, rows: int) -> None:
        reader = self._spark.read.format(ReadyArrowSource.name())
        reader = reader.options(rows=rows, value_size=self._options.value_size, partitions=self._options.partitions)
        reader.load().write.format("noop").mode("overwrite").save()

    def _write(self, rows: int) -> None:
        writer = self._rows(rows).write.format("bookkeeper").options(**self._written("batch", rows))
        writer.mode("append").save()

    def _read(self, rows: int) -> None:
        reader = self._spark.read.format("bookkeeper").option("log", self._log("batch", rows))
        reader = reader.option("minPartitions", self._options.partitions).schema("value binary")
        reader.load().write.format("noop").mode("overwrite").save()

    def _stream_read(self, rows: int) -> None:
        reader = self._spark.readStream.format("bookkeeper").option("log", self._log("batch", rows))
        reader = reader.option("startingOffsets", "earliest").schema("value binary")
        self._finish(reader.load(), "noop", f"read-{rows}", {})

    def _stream_write(self, rows: int) -> None:
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        source = source.option("numPartitions", self._options.partitions)
        values = source.load().select(sql.lit(self._value).alias("value"))
        self._finish(values, "bookkeeper", f"write-{rows}", self._written("stream", rows))

    def _written(self, kind: str, rows: int) -> dict[str, str]:
        return {
            "log": self._log(kind, rows),
            "payloadFormat": "raw",
            "digestType": self._options.digest,
            "ensembleSize": str(self._options.ensemble),
            "writeQuorum": str(self._options.write_quorum),
            "ackQuorum": str(self._options.ack_quorum),
        }

    def _finish(self, stream: DataFrame, sink: str, name: str, options: dict[str, str]) -> None:
        writer = stream.writeStream.format(sink).options(**options).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / f"checkpoint-{name}")).start()
        query.awaitTermination(STREAM_TIMEOUT_S)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--value-size", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--digest", required=True)
    for name in ("--ensemble", "--write-quorum", "--ack-quorum"):
        parser.add_argument(name, type=int, required=True)
    return parser.parse_args()


def _net() -> NetOptions:
    path = os.environ.get(FILE_VARIABLE)
    return NetOptions(tls=read_client_file(path), sasl=read_client_sasl(path)) if path else NetOptions()


def _zookeeper() -> ZooKeeperOptions:
    path = os.environ.get(FILE_VARIABLE)
    return read_zookeeper_file(path) if path else zookeeper_options({})


def job() -> dict[str, Any]:
    """Measure on the cluster that BKSPARK_URI names, and delete what was written there."""
    options = _options()
    say("starting Spark ...")
    password = password_from(os.environ)
    with (
        session(options.dir, max(2, options.partitions)) as spark,
        Client(os.environ["BKSPARK_URI"], password=password, net=_net(), zookeeper=_zookeeper()) as client,
    ):
        bench = Bench(spark, options.dir, options)
        try:
            return bench.run()
        finally:
            bench.delete_logs(client)


if __name__ == "__main__":
    main_of(job)
