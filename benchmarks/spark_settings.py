"""What each line of spark-conf/spark-defaults.conf does: a stream with it and without it, in turns.

    python -m benchmarks.spark_settings [--rounds N] [--triggers N] [--dir DIR]

A session of its own for each measurement, as such settings count when a session starts; it copies small micro-batches
of a log on one bookie to another log. Prints one JSON object a setting: medians over rounds of the time of a
micro-batch (median of its triggers) and of the processor time of one (JVM, and Python below it), with and without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import bkspark
from benchmarks.processor_time import ProcessorClock, jvm_pid
from benchmarks.servers import Servers
from bkspark.spark.session import SETTINGS

LOG = "rows"
ENTRIES_PER_TRIGGER = 100
WARM_UP_TRIGGERS = 5
ONE_COPY = {"ensembleSize": "1", "writeQuorum": "1", "ackQuorum": "1"}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--triggers", type=int, default=30, help="micro-batches of one measurement")
    parser.add_argument("--dir", type=Path, help="where to write (default: the temporary folder)")
    parser.add_argument("--measure", nargs=2, metavar=("URI", "WITHOUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure is not None:
        uri, without = arguments.measure
        print(json.dumps(_measured(uri, without, arguments.triggers)))
        return
    with Servers(arguments.dir) as servers, servers.bookies(1):
        for setting in SETTINGS:
            found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
            for number in range(arguments.rounds):
                for use in sorted(found, reverse=bool(number % 2)):
                    without = setting if use == "without" else ""
                    found[use].append(_in_a_session_of_its_own(servers.uri, without, arguments.triggers))
            figures = {use: _medians(results) for use, results in found.items()}
            print(json.dumps({"setting": f"{setting}={SETTINGS[setting]}", **figures}), flush=True)


def _in_a_session_of_its_own(uri: str, without: str, triggers: int) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.spark_settings",
        "--triggers",
        str(triggers),
        "--measure",
        uri,
        without,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measured(uri: str, without: str, triggers: int) -> dict[str, float]:
    SETTINGS.pop(without, None)
    spark = bkspark.session(
        "settings", master="local[2]", spark__ui__enabled="false", spark__ui__showConsoleProgress="false"
    )
    spark.sparkContext.setLogLevel("ERROR")
    count = (triggers + WARM_UP_TRIGGERS) * ENTRIES_PER_TRIGGER
    rows = spark.range(count).selectExpr("cast(id as string) as value")
    rows.write.format("bookkeeper").options(uri=uri, log=LOG, **ONE_COPY).mode("overwrite").save()
    with tempfile.TemporaryDirectory() as checkpoint:
        _copy(spark, uri, f"{checkpoint}/warm", WARM_UP_TRIGGERS)
        clock = ProcessorClock(jvm_pid(spark), [])
        times = _copy(spark, uri, f"{checkpoint}/measured", triggers)
        used = clock.elapsed()
    spark.stop()
    return {
        "trigger_ms": statistics.median(times),
        "jvm_ms": used.jvm_s * 1000 / len(times),
        "python_ms": used.python_s * 1000 / len(times),
    }


def _copy(spark: SparkSession, uri: str, checkpoint: str, triggers: int) -> list[int]:
    """Return the milliseconds of each micro-batch of a query that reads this many."""
    last = triggers * ENTRIES_PER_TRIGGER
    source = spark.readStream.format("bookkeeper").options(
        uri=uri, log=LOG, startingOffsets=f"-{last}", maxEntriesPerTrigger=ENTRIES_PER_TRIGGER
    )
    target = source.schema("value string").load().writeStream.format("bookkeeper")
    target = target.options(uri=uri, log=f"{LOG}-copy", checkpointLocation=checkpoint, **ONE_COPY)
    query = target.trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress["batchDuration"] for progress in query.recentProgress if progress["numInputRows"]]


def _medians(results: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(result[name] for result in results), 1) for name in results[0]}


if __name__ == "__main__":
    main()
