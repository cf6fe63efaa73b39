"""A driver that is killed: copies a Pulsar topic into a log as a stream, and goes on from its checkpoint.

python -m tests.interop.topic_copy URI TOPIC LOG FOLDER all|available
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.spark.conftest import session

PIDS = "driver.pids"
CHECKPOINT = "checkpoint"
ENTRIES_PER_TRIGGER = 20


def main(uri: str, topic: str, log: str, folder: Path, until: str) -> None:
    spark = session(folder)
    jvm = spark.sparkContext._gateway.proc.pid
    (folder / PIDS).write_text(f"{os.getpid()} {jvm}")
    source = spark.readStream.format("bookkeeper").options(
        uri=uri, topic=topic, startingOffsets="earliest", maxEntriesPerTrigger=str(ENTRIES_PER_TRIGGER)
    )
    target = source.schema("value binary").load().writeStream.format("bookkeeper")
    target = target.options(uri=uri, log=log, payloadFormat="raw", checkpointLocation=str(folder / CHECKPOINT))
    trigger = {"availableNow": True} if until == "available" else {"processingTime": "0 seconds"}
    target.trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]), sys.argv[5])
