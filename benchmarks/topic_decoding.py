"""Processor time of decoding a Pulsar topic's entries into record batches, alone, in this process.

    python -m benchmarks.topic_decoding [--rounds N] [--codec NUMBER] [--columns all|value]

Entries are made in memory: batches of 120 messages of 1 KiB with keys, as Java's producer makes them by default. They
are decoded in groups of the size that tasks take. Nothing is read from bookies and nothing goes to Spark. Prints the
least and the median processor time for a GiB of values.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from bkspark.entries import EntryBatch
from bkspark.spark.options import SourceOptions
from bkspark.spark.read import joined
from bkspark.spark.topic_columns import topic_schema
from bkspark.spark.topic_read import DECODE_BYTES
from bkspark.spark.topic_rows import TopicRows
from bkspark.spark.topics import TopicFacts
from tests.pulsar.entries import Message, batch

BATCHES = 256
MESSAGES = 120
MESSAGE_BYTES = 1024
FIRST = 1_000_000
GIB = 1 << 30
TOPIC = "persistent://public/default/decoded"


def groups(codec: int) -> list[EntryBatch]:
    """Return entries in groups of about DECODE_BYTES."""
    stored = []
    for first in range(FIRST, FIRST + BATCHES * MESSAGES, MESSAGES):
        messages = [
            Message(b"%d" % number + bytes(MESSAGE_BYTES - 7), f"k{number}")
            for number in range(first, first + MESSAGES)
        ]
        stored.append(batch(messages, first, codec))
    return list(EntryBatch.of(stored, 1, 0).split(BATCHES, DECODE_BYTES))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--codec", type=int, default=0, choices=range(5), help="0 none, 1 LZ4, 2 ZLIB, 3 ZSTD, 4 SNAPPY"
    )
    parser.add_argument("--columns", default="all", choices=("all", "value"))
    options = parser.parse_args(argv)
    schema = topic_schema(None, include_metadata=False)
    wanted = schema if options.columns == "all" else schema[:1]
    rows = TopicRows(wanted, SourceOptions.parse({"uri": "zk://127.0.0.1:2181/ledgers", "topic": TOPIC}))
    decoder = rows.for_topic(TOPIC, TopicFacts(), lambda _: iter(()))
    stored, gib = groups(options.codec), BATCHES * MESSAGES * MESSAGE_BYTES / GIB
    found = []
    for _ in range(options.rounds):
        began_s = time.process_time()
        count = sum(rows.num_rows for entries in stored for rows in joined(decoder.batches(entries)))
        found.append((time.process_time() - began_s) / gib)
        assert count == BATCHES * MESSAGES
    print(f"{min(found):.2f} s/GiB at least, {statistics.median(found):.2f} median")


if __name__ == "__main__":
    main()
