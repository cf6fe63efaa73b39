"""A driver that is killed: copies one log to another as a stream, and goes on after a query that failed.

python -m tests.spark.copy_job URI SOURCE TARGET FOLDER INLINE_BYTES [NAME]

`FOLDER/kills` holds orders and requests of `tests.spark.killing`. The copy keeps the source's order. With a NAME it
publishes under that (txnAppId). It ends with REFUSED where another query has published a version of the name.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from tests.spark.conftest import session
from tests.spark.killing import PIDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

ENTRIES_PER_TRIGGER = 40
RESTARTS_MAX = 200
POLL_S = 0.02
REFUSED = 4


def start(
    spark: SparkSession,
    uri: str,
    source: str,
    target: str,
    folder: Path,
    inline_bytes: str,
    name: str = "",
    **trigger: Any,
) -> StreamingQuery:
    """Start the copying query, or go on with it."""
    options = {"uri": uri, "maxEntriesPerTrigger": str(ENTRIES_PER_TRIGGER), "minPartitions": "2"}
    rows = spark.readStream.format("bookkeeper").options(log=source, startingOffsets="earliest", **options)
    writer = rows.schema("value string").load().writeStream.format("bookkeeper")
    # One bookie may be down: there is another one to take its place.
    quorums = {"ensembleSize": "2", "writeQuorum": "2", "ackQuorum": "2"}
    writer = writer.options(uri=uri, log=target, checkpointLocation=str(folder / "checkpoint"), **quorums)
    if name:
        writer = writer.option("txnAppId", name)
    return writer.option("inlineBytes", inline_bytes).trigger(**(trigger or {"processingTime": "0 seconds"})).start()


def main(uri: str, source: str, target: str, folder: Path, inline_bytes: str, name: str = "") -> None:
    spark = session(folder)
    kills = folder / "kills"
    jvm = spark.sparkContext._gateway.proc.pid
    (kills / PIDS).write_text(f"{os.getpid()} {jvm}")
    for _ in range(RESTARTS_MAX):
        query = start(spark, uri, source, target, folder, inline_bytes, name)
        try:
            while not query.awaitTermination(POLL_S):
                kill_tasks(spark, kills)
        except StreamingQueryException as error:
            if "VersionPublished" in str(error):
                print(str(error), flush=True)
                raise SystemExit(REFUSED) from None
            # Whatever was killed, the checkpoint is enough to go on.
            print(f"{time.strftime('%T')} restarted after: {str(error)[:300]} … {str(error)[-700:]}", flush=True)
    raise SystemExit(f"the query failed {RESTARTS_MAX} times")


def kill_tasks(spark: SparkSession, kills: Path) -> None:
    """Let Spark kill the task attempts that asked for it."""
    for asked in kills.glob("asked.*"):
        if asked.suffix != ".tmp":
            asked.unlink()
            spark.sparkContext._jsc.sc().killTaskAttempt(int(asked.name.split(".")[1]), True, "ordered")


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]), *sys.argv[5:])
