"""Follow a log that a plain client appends to, count words, and keep the counts in another log: exactly once.

python examples/streaming.py zk://127.0.0.1:2181/ledgers /tmp/checkpoint
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

from bkspark.blocking import Client

SENTENCES = [b"the quick brown fox", b"jumps over the lazy dog", b"the end"]


def append(uri: str, log: str) -> None:
    """Append sentences as any program does, without Spark; the log is created if need be."""
    with Client(uri) as client, client.log(log).open_for_writing() as writer:
        writer.append_many(SENTENCES)


def count_words(spark: SparkSession, uri: str, source: str, target: str, checkpoint: str) -> StreamingQuery:
    """Start a query that keeps the counts of all words seen so far in `target`, and ends at what is there now."""
    lines = (
        spark.readStream.format("bookkeeper")
        .options(uri=uri, log=source, startingOffsets="earliest", maxEntriesPerTrigger=2)
        .schema("value string")
        .load()
    )
    counts = lines.select(sql.explode(sql.split("value", " ")).alias("word")).groupBy("word").count()
    return (
        counts.writeStream.format("bookkeeper")
        .options(uri=uri, log=target, payloadFormat="json", checkpointLocation=checkpoint)
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )


def main(spark: SparkSession, uri: str, checkpoint: str, source: str = "sentences", target: str = "counts") -> None:
    append(uri, source)
    count_words(spark, uri, source, target, checkpoint).awaitTermination()
    counts = spark.read.format("bookkeeper").options(uri=uri, log=target, payloadFormat="json")
    counts.schema("word string, count bigint").load().orderBy(sql.desc("count"), "word").show(5)


if __name__ == "__main__":
    main(SparkSession.builder.appName("streaming").getOrCreate(), *sys.argv[1:3])
