"""A driver that tests kill: copies one log to another as a stream until it has seen a row `end`.

python -m tests.spark.copy_job URI SOURCE TARGET FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.conftest import session


def main(uri: str, source: str, target: str, folder: Path) -> None:
    spark = session(folder)
    options = {"uri": uri, "maxEntriesPerTrigger": "500"}
    rows = spark.readStream.format("bookkeeper").options(log=source, startingOffsets="earliest", **options)
    writer = rows.schema("value string").load().repartition(2).writeStream.format("bookkeeper")
    query = (
        writer.options(uri=uri, log=target, checkpointLocation=str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:4], Path(sys.argv[4]))
