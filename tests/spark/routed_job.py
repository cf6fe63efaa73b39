"""A driver that is killed: sends the rows of one log to several, as a stream, and goes on after a query that failed.

python -m tests.spark.routed_job URI SOURCE PREFIX FOLDER

`FOLDER/kills` holds orders of `tests.spark.killing`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.conftest import session
from tests.spark.killing import PIDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

LOGS = 5
ENTRIES_PER_TRIGGER = 8 * LOGS
RESTARTS_MAX = 20


def start(spark: SparkSession, uri: str, source: str, prefix: str, folder: Path, **trigger: Any) -> StreamingQuery:
    """Start the query, or go on with it: number n goes to log `n mod LOGS`."""
    options = {"uri": uri, "maxEntriesPerTrigger": str(ENTRIES_PER_TRIGGER), "minPartitions": "2"}
    rows = spark.readStream.format("bookkeeper").options(log=source, startingOffsets="earliest", **options)
    numbers = rows.schema("value string").load()
    number = (F.col("value").cast("int") % LOGS).cast("string")
    routed = numbers.select(F.concat(F.lit(prefix), number).alias("log"), "value")
    writer = routed.writeStream.format("bookkeeper").options(uri=uri, checkpointLocation=str(folder / "checkpoint"))
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()


def main(uri: str, source: str, prefix: str, folder: Path) -> None:
    spark = session(folder)
    jvm = spark.sparkContext._gateway.proc.pid
    (folder / "kills" / PIDS).write_text(f"{os.getpid()} {jvm}")
    for _ in range(RESTARTS_MAX):
        try:
            start(spark, uri, source, prefix, folder).awaitTermination()
        except StreamingQueryException as error:
            print(f"restarted after: {str(error)[-700:]}", flush=True)
    raise SystemExit(f"the query failed {RESTARTS_MAX} times")


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]))
