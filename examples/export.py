"""Export what a log got since the last export to Parquet: incremental, and nothing twice, however often it runs.

python examples/export.py zk://127.0.0.1:2181/ledgers orders /data/orders      # the URI: `bkspark local --bookies 3`

Each export is a folder of its own, named by the position it ends at; the last one's name is where the next begins.
An export that died has no _SUCCESS mark, is not counted, and is written again.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from bkspark.blocking import Client
from bkspark.log import Position


def finished(folder: Path) -> list[Position]:
    """Return where the finished exports end, in order."""
    names = [mark.parent.name for mark in folder.glob("to-*-*-*/_SUCCESS")]
    return sorted(Position(*map(int, name.split("-")[1:])) for name in names)


def export(spark: SparkSession, uri: str, log: str, folder: Path) -> int:
    """Export what is new, in the columns that the entries carry; return how many rows."""
    with Client(uri) as client:
        end = client.log(log).latest()
    exported = finished(folder)
    if exported and exported[-1] == end:
        return 0
    new = (
        spark.read.format("bookkeeper")
        .options(uri=uri, log=log, payloadFormat="arrow", endingOffsets=str(end))
        .option("startingOffsets", str(exported[-1]) if exported else "earliest")
        .load()
    )
    target = str(folder / f"to-{end.ordinal}-{end.ledger_id}-{end.entry_id}")
    new.write.mode("overwrite").parquet(target)
    return spark.read.parquet(target).count()


def main(spark: SparkSession, uri: str, log: str, folder: str) -> None:
    print(f"exported {export(spark, uri, log, Path(folder))} rows")


if __name__ == "__main__":
    main(SparkSession.builder.appName("export").getOrCreate(), *sys.argv[1:4])
