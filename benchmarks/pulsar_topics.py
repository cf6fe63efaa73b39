"""Reads of a Pulsar topic by Spark from its ledgers, beside raw reads and Pulsar's own consumers, in turns.

    python -m benchmarks.pulsar_topics [--messages N] [--size BYTES] [--rounds N] [--dir DIR] [--codec NONE]

One bookie, one unmodified broker, one topic of batched messages, and a log of as many entries of that size. In each
round, one after the other, on the same machine:

    topic          every column that a topic has by default
    topic value    column `value` alone
    raw log        the log with payloadFormat=raw: a row an entry, as large as a message
    raw ledgers    the topic's own ledgers with payloadFormat=raw: a row an entry, which is a batch
    java reader    Pulsar's Java reader, from the first message to the last
    java consumer  Pulsar's Java consumer, which acknowledges each message
    python         Pulsar's Python reader, if `pulsar-client` is installed

StreamNative's pulsar-spark is not among them: its builds are for Scala 2.12, and Spark 4 has only Scala 2.13.

Spark's reads end in its sink `noop`, which takes every row. Prints one JSON object: medians over rounds of rows/s and
MiB/s of values, processor seconds a GiB of Spark's, and ratios, each of which is the median over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

import bkspark
from benchmarks.processor_time import ProcessorClock, jvm_pid
from benchmarks.servers import Servers
from tests.interop import build
from tests.interop.peer import NETTY_OPTIONS
from tests.interop.pulsar_broker import PulsarBroker
from tests.polling import wait_until

TOPIC = "persistent://public/default/measured"
LOG = "measured"
BROKER = {
    "bookkeeperExplicitLacIntervalInMills": 100,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "managedLedgerMaxSizePerLedgerMbytes": 256,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    # What the broker has in its cache does not matter for reading.
    "managedLedgerCacheSizeMB": 64,
}
# Every optimisation of Java's, and memory enough, so that the comparison is fair to the broker and its consumers.
JVM = ("-Xms1g", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g", *NETTY_OPTIONS)
ONE_COPY = {"ensembleSize": "1", "writeQuorum": "1", "ackQuorum": "1", "payloadFormat": "raw", "maxLedgerBytes": "256m"}
VISIBLE_S = 120.0
RATIOS = (
    ("topic", "raw log"),
    ("topic", "raw ledgers"),
    ("topic value", "raw log"),
    ("topic", "java reader"),
    ("topic", "java consumer"),
    ("topic", "python"),
    ("topic value", "java reader"),
)
CONSUMERS = ("java reader", "java consumer", "python")
MIB = 1 << 20


class Bench:
    """The reads of one topic and one log on one session."""

    def __init__(
        self, spark: SparkSession, servers: Servers, broker: PulsarBroker, options: argparse.Namespace
    ) -> None:
        self._spark = spark
        self._servers = servers
        self._broker = broker
        self._options = options

    def fill(self) -> None:
        """Produce the topic by Pulsar's client, and write the log."""
        count, size = self._options.messages, self._options.size
        self._broker.run("batches", TOPIC, count, size, self._options.codec, program="Topics")
        wait_until(
            lambda: self._read(topic=TOPIC).schema("__entryId bigint").load().count() == count,
            "the whole topic",
            VISIBLE_S,
        )
        value = self._spark.range(count).selectExpr(f"cast(rpad(cast(id as string), {size}, 'x') as binary) as value")
        value.write.format("bookkeeper").options(uri=self._servers.uri, log=LOG, **ONE_COPY).mode("append").save()

    def run(self) -> dict[str, Any]:
        kinds = self._kinds()
        for kind, read in kinds.items():
            if kind not in CONSUMERS:  # they start in a process of their own, and find what was read in memory
                read()
        rounds: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for number in range(self._options.rounds):
            for kind in list(kinds)[:: -1 if number % 2 else 1]:
                rounds[kind].append(kinds[kind]())
        rates = {kind: [each["rows_per_s"] for each in found] for kind, found in rounds.items()}
        # A row of the ledgers is a batch, whose bytes are those of its messages and little more.
        shares = {
            f"{one} / {other}": round(statistics.median(a / b for a, b in zip(rates[one], rates[other])), 2)
            for one, other in RATIOS
            if other in rates
        }
        return {
            "messages": self._options.messages,
            "size": self._options.size,
            "codec": self._options.codec,
            "rounds": self._options.rounds,
            **{kind: _medians(found) for kind, found in rounds.items()},
            "ratios": shares,
        }

    def _kinds(self) -> dict[str, Callable[[], dict[str, float]]]:
        about = json.loads(self._broker.admin("GET", f"{TOPIC.replace('://', '/')}/internalStats"))
        ledgers = ",".join(str(each["ledgerId"]) for each in about["ledgers"])
        value = "value binary"
        kinds: dict[str, Callable[[], dict[str, float]]] = {
            "topic": lambda: self._measured(self._read(topic=TOPIC).load()),
            "topic value": lambda: self._measured(self._read(topic=TOPIC).schema(value).load()),
            "raw log": lambda: self._measured(self._read(log=LOG).schema(value).load()),
            "raw ledgers": lambda: self._measured(self._read(ledgers=ledgers).schema(value).load()),
            "java reader": lambda: self._java("count"),
            "java consumer": lambda: self._java("consume"),
        }
        if importlib.util.find_spec("pulsar") is not None:
            kinds["python"] = self._python
        return kinds

    def _read(self, **options: str) -> DataFrameReader:
        return self._spark.read.format("bookkeeper").options(uri=self._servers.uri, **options)

    def _measured(self, frame: DataFrame) -> dict[str, float]:
        clock = ProcessorClock(jvm_pid(self._spark), [])
        started_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started_s
        used = clock.elapsed()
        return {
            **self._rates(seconds),
            "jvm_s_per_gib": used.jvm_s / self._gib,
            "python_s_per_gib": used.python_s / self._gib,
        }

    def _java(self, command: str) -> dict[str, float]:
        (milliseconds,) = self._broker.run(command, TOPIC, self._options.messages, program="Topics")
        return self._rates(int(milliseconds) / 1000)

    def _python(self) -> dict[str, float]:
        import pulsar

        client = pulsar.Client(self._broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        with contextlib.closing(client):
            reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=10_000)
            reader.read_next(60_000)
            started_s = time.perf_counter()
            for _ in range(self._options.messages - 1):
                reader.read_next(60_000).data()
            return self._rates(time.perf_counter() - started_s)

    @property
    def _gib(self) -> float:
        return float(self._options.messages * self._options.size / (1 << 30))

    def _rates(self, seconds: float) -> dict[str, float]:
        count = self._options.messages
        return {"rows_per_s": count / seconds, "mib_per_s": count * self._options.size / MIB / seconds}


def _medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(each[name] for each in found), 2) for name in found[0]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message")
    parser.add_argument("--codec", default="NONE", choices=("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where to write (default: the temporary folder)")
    options = parser.parse_args(argv)
    with Servers(options.dir) as servers, servers.bookies(1):
        broker = PulsarBroker(
            build.classpath(build.PULSAR), servers.directory / "broker", servers.uri, BROKER, jvm_options=JVM
        )
        try:
            broker.start()
            spark = bkspark.session("topics", spark__ui__enabled="false", spark__ui__showConsoleProgress="false")
            spark.sparkContext.setLogLevel("ERROR")
            bench = Bench(spark, servers, broker, options)
            bench.fill()
            print(json.dumps(bench.run(), indent=1))
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
