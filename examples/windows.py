"""Streaming ETL: JSON events in a log, cleaned, counted in windows by event time, late ones dropped, into another log.

python examples/windows.py zk://127.0.0.1:2181/ledgers /tmp/checkpoint     # `bkspark local --bookies 3` prints the URI

Each window is published once, when the watermark has passed its end: an append-only log of results, exactly once.
"""

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

from bkspark.blocking import Client

EVENTS = [
    {"at": "2026-11-21T10:00:05Z", "page": "home", "ms": 120},
    {"at": "2026-11-21T10:00:40Z", "page": "home", "ms": 80},
    {"at": "2026-11-21T10:00:50Z", "page": "cart", "ms": 300},
    {"at": "2026-11-21T10:01:10Z", "page": "home", "ms": None},
    {"at": "2026-11-21T10:04:00Z", "page": "home", "ms": 95},
]
LATE = [
    {"at": "2026-11-21T10:00:59Z", "page": "home", "ms": 1},
    {"at": "2026-11-21T10:09:00Z", "page": "home", "ms": 70},
]


def append(uri: str, log: str, events: list[dict]) -> None:
    """Append events as any program does, without Spark."""
    with Client(uri) as client, client.log(log).open_for_writing() as writer:
        writer.append_many([json.dumps(event).encode() for event in events])


def windows(spark: SparkSession, uri: str, source: str) -> DataFrame:
    """Return the mean time by page and minute; events more than two minutes older than the newest are dropped."""
    events = (
        spark.readStream.format("bookkeeper")
        .options(uri=uri, log=source, payloadFormat="json", mode="DROPMALFORMED", startingOffsets="earliest")
        .schema("at timestamp, page string, ms int")
        .load()
    )
    return (
        events.where("ms is not null")
        .withWatermark("at", "2 minutes")
        .groupBy(sql.window("at", "1 minute"), "page")
        .agg(sql.count("*").alias("views"), sql.round(sql.avg("ms"), 1).alias("mean_ms"))
        .select(sql.col("window.start").alias("minute"), "page", "views", "mean_ms")
    )


def run(spark: SparkSession, uri: str, source: str, target: str, checkpoint: str) -> StreamingQuery:
    """Start a query that publishes the windows that are over, and ends at what is there now."""
    return (
        windows(spark, uri, source)
        .writeStream.format("bookkeeper")
        .options(uri=uri, log=target, payloadFormat="json", checkpointLocation=checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )


def main(spark: SparkSession, uri: str, checkpoint: str, source: str = "events", target: str = "windows") -> None:
    for events in (EVENTS, LATE):
        append(uri, source, events)
        run(spark, uri, source, target, checkpoint).awaitTermination()
    found = spark.read.format("bookkeeper").options(uri=uri, log=target, payloadFormat="json")
    found.schema("minute timestamp, page string, views bigint, mean_ms double").load().orderBy("minute", "page").show()


if __name__ == "__main__":
    main(SparkSession.builder.appName("windows").getOrCreate(), *sys.argv[1:3])
