"""A Spark driver of a soak: copies one log to another as a stream, and goes on after a query that failed.

    python -m tests.soak.stream_job URI SOURCE TARGET FOLDER continuous|available

`continuous` has a micro-batch a second. `available` takes what there is, ends, and begins again after a few seconds.
After RUNS runs the driver ends with exit code 0, as one that a scheduler starts: Spark 4.3 loses three descriptors of
its JVM with each query that reads a Python source, whichever that is.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import session

ENTRIES_PER_TRIGGER = 1_000
TRIGGER = "1 second"
RUNS = 40
PAUSE_S = 5.0
"""Between two runs over what is available, and after a query that failed."""


def start(spark: SparkSession, uri: str, source: str, target: str, folder: Path, mode: str) -> StreamingQuery:
    """Start the copying query, or go on with it."""
    rows = spark.readStream.format("bookkeeper").option("uri", uri).option("log", source)
    rows = rows.option("startingOffsets", "earliest").option("maxEntriesPerTrigger", str(ENTRIES_PER_TRIGGER))
    writer = rows.schema("value string").load().writeStream.format("bookkeeper").option("uri", uri)
    # The log is truncated by ledgers, so they must not live for long.
    writer = writer.option("log", target).option("maxLedgerBytes", "2m").option("maxLedgerAge", "30s")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    trigger = {"processingTime": TRIGGER} if mode == "continuous" else {"availableNow": True}
    return writer.trigger(**trigger).start()


def main(uri: str, source: str, target: str, folder: Path, mode: str) -> None:
    for left in folder.glob("home-*"):  # of drivers that were killed
        shutil.rmtree(left, ignore_errors=True)
    spark = session(folder)
    for _ in range(RUNS):
        try:
            start(spark, uri, source, target, folder, mode).awaitTermination()
        except StreamingQueryException as error:
            # Whatever was down, the checkpoint is enough to go on.
            print(f"{time.strftime('%T')} a query failed: {str(error)[-500:]}", file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]), sys.argv[5])
