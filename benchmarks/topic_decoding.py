"""Processor time of decoding a Pulsar topic's entries into record batches, alone, in this process.

    python -m benchmarks.topic_decoding [--rounds N] [--codec NUMBER] [--columns all|value] [--size BYTES]

Entries are made in memory: batches of messages of 1 KiB with keys, as Java's producer makes them by default: at most
1,000 messages and about 120 KiB each. They are decoded in groups of the size that tasks take. Nothing is read from
bookies and nothing goes to Spark. Prints the least and the median processor time for a GiB of values, and for a million
messages.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from pyspark.sql.types import StructType

from bkspark.entries import EntryBatch
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import joined
from bkspark.spark.topic_columns import topic_schema
from bkspark.spark.topic_read import DECODE_BYTES
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topics import TopicFacts
from tests.pulsar.entries import Message, batch

BATCHES = 256
BATCH_BYTES = 120 << 10
BATCH_MESSAGES_MAX = 1000
FIRST = 1_000_000
GIB = 1 << 30
TOPIC = "persistent://public/default/decoded"


def groups(codec: int, size: int) -> list[EntryBatch]:
    """Return entries of messages of this size, in groups of about DECODE_BYTES."""
    stored = []
    count = messages_of_a_batch(size)
    for first in range(FIRST, FIRST + BATCHES * count, count):
        messages = [Message(b"%d" % number + bytes(size - 7), f"k{number}") for number in range(first, first + count)]
        stored.append(batch(messages, first, codec))
    return list(EntryBatch.of(stored, 1, 0).split(BATCHES, DECODE_BYTES))


def messages_of_a_batch(size: int) -> int:
    return min(BATCH_MESSAGES_MAX, BATCH_BYTES // size)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--codec", type=int, default=0, choices=range(5), help="0 none, 1 LZ4, 2 ZLIB, 3 ZSTD, 4 SNAPPY"
    )
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message, at least 7")
    parser.add_argument("--columns", default="all", choices=("all", "value"))
    options = parser.parse_args(argv)
    schema = topic_schema(None, include_metadata=False)
    wanted = schema if options.columns == "all" else StructType(schema.fields[:1])
    rows = TopicRows(wanted, SourceOptions.parse({"uri": "zk://127.0.0.1:2181/ledgers", "topic": TOPIC}))
    decoder = rows.for_topic(TOPIC, TopicFacts(), lambda _: iter(()))
    stored, messages = groups(options.codec, options.size), BATCHES * messages_of_a_batch(options.size)
    gib = messages * options.size / GIB
    found = []
    for _ in range(options.rounds):
        began_s = time.process_time()
        count = sum(rows.num_rows for entries in stored for rows in joined(decoder.batches(entries)))
        found.append((time.process_time() - began_s) / gib)
        assert count == messages
    million = gib / messages * 1e6
    print(
        f"{min(found):.2f} s/GiB at least, {statistics.median(found):.2f} median; "
        f"{min(found) * million:.2f} s for a million messages at least, {statistics.median(found) * million:.2f} median"
    )


if __name__ == "__main__":
    main()
