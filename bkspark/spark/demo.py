"""The Spark half of `bkspark demo`: write, read back, stream, lose a bookie, query.

Run as `python -m bkspark.spark.demo`.

Tables are compared as multisets of whole rows: both sides are counted by all columns at once, null-safe, and every
count must match. This finds every lost, doubled or changed row, whatever the order of the rows.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import NumericType, StringType, StructType

from bkspark.blocking import Client, LedgerWriter
from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.spark.demo_input import FLIGHTS, read_input
from bkspark.spark.job import SHORT_RUN, main_of, say, session

LOG = "demo"
STREAM_LOG = "demo-streamed"
QUORUMS = {"ensembleSize": "3", "writeQuorum": "3", "ackQuorum": "2"}
APPENDS = 2
APPENDED_FRACTION = 0.05
APPENDED_ROWS_MIN = 10_000
"""Below this number of rows an append repeats the whole table: a sample of a small one may be empty."""

KILL_ROWS_MAX = 100_000
KILL_PIECES = 100
STREAM_TIMEOUT_S = 300


@dataclass(frozen=True)
class Kill:
    """The result of a write whose bookie was killed half-way."""

    ledger: int
    """The ledger that was being written."""
    acknowledged_before: int
    """Entries that were acknowledged when the bookie was killed; `acknowledged`: at the end."""
    acknowledged: int
    lost: int
    """Acknowledged entries that could not be read afterwards."""


class Demo:
    """The steps, in order; each says what it does and its time is kept."""

    def __init__(self, spark: SparkSession, client: Client, folder: Path, options: argparse.Namespace) -> None:
        self._spark = spark
        self._client = client
        self._folder = folder
        """For the input and the checkpoint of the stream."""
        self._options = options
        """The arguments of the command."""
        self._seconds: dict[str, float] = {}
        """How long each step took."""

    def run(self) -> dict[str, Any]:
        """Return what `bkspark demo` prints."""
        with self._step("load"):
            say(f"loading {self._options.input or FLIGHTS} ...")
            table, source = read_input(self._spark, self._options.input, self._folder)
            table.cache()
            rows = table.count()
            if rows == 0:
                raise ConfigurationError(f"--input {self._options.input!r} has no rows; name a file with some")
        with self._step("write"):
            say(f"writing {rows:,} rows of {len(table.columns)} columns to log {LOG!r} with Spark ...")
            _append(table, LOG)
        with self._step("read"):
            say("reading them back in batch, comparing row for row ...")
            batch_equal = is_equal(self._read(LOG, table.schema), table)
        with self._step("question"):
            say("asking the log a question ...")
            question = ask(self._read(LOG, table.schema), source)
        with self._step("stream"):
            expected = self._stream(table)
            stream_rows = expected.count()
            stream_equal = is_equal(self._read(STREAM_LOG, table.schema), expected)
        with self._step("kill"):
            kill = self._write_through_kill(table)
            say("reading the whole log again from the two bookies that are left, comparing row for row ...")
            batch_equal = batch_equal and is_equal(self._read(LOG, table.schema), expected)
        return {
            "rows": rows,
            "source": source,
            "log": LOG,
            **self._stored(),
            "batch_equal": batch_equal,
            "stream_equal": stream_equal,
            "stream_rows": stream_rows,
            "acknowledged": kill.acknowledged,
            "acknowledged_before_kill": kill.acknowledged_before,
            "lost": kill.lost,
            "question": question,
            "seconds": self._seconds,
        }

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        started_s = time.perf_counter()
        yield
        self._seconds[name] = round(time.perf_counter() - started_s, 2)

    def _read(self, log: str, schema: StructType) -> DataFrame:
        reader = self._spark.read.format("bookkeeper").options(log=log, payloadFormat="arrow")
        return reader.schema(schema).load()

    # ---- the stream ----

    def _stream(self, table: DataFrame) -> DataFrame:
        """Stream LOG into STREAM_LOG while LOG is appended to; return the rows that must have arrived."""
        say(f"streaming log {LOG!r} into log {STREAM_LOG!r} ...")
        query = self._started_stream(table.schema)
        try:
            query.processAllAvailable()
            expected = table
            for number in range(1, APPENDS + 1):
                more = self._more(table, number)
                say(f"appending {more.count():,} rows while the stream runs ({number} of {APPENDS}) ...")
                _append(more, LOG)
                expected = expected.unionAll(more)
            query.processAllAvailable()
        finally:
            query.stop()
        say("comparing what the stream delivered, row for row ...")
        return expected

    def _started_stream(self, schema: StructType) -> StreamingQuery:
        reader = self._spark.readStream.format("bookkeeper").options(log=LOG, payloadFormat="arrow")
        stream = reader.option("startingOffsets", "earliest").schema(schema).load()
        writer = stream.writeStream.format("bookkeeper").options(log=STREAM_LOG, payloadFormat="arrow", **QUORUMS)
        return writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def _more(self, table: DataFrame, seed: int) -> DataFrame:
        if table.count() < APPENDED_ROWS_MIN:
            return table
        # Kept, because a sample of a sample's lineage is recomputed at every use.
        return table.sample(fraction=APPENDED_FRACTION, seed=seed).cache()

    # ---- the kill ----

    def _write_through_kill(self, table: DataFrame) -> Kill:
        """Write rows as JSON entries to a ledger, SIGKILL a bookie half-way, read everything acknowledged back."""
        say("writing rows as single entries with the Python client; half-way a bookie gets SIGKILL ...")
        rows = table.select(sql.to_json(sql.struct(*_columns(table)), {"ignoreNullFields": "false"}).alias("row"))
        entries = EntryBatch.from_arrow(rows.limit(KILL_ROWS_MAX).toArrow().column("row").combine_chunks())
        writer = self._client.create(ensemble=3, write_quorum=3, ack_quorum=2, metadata={"made-by": "bkspark demo"})
        pieces = list(entries.split(max(1, len(entries) // KILL_PIECES), 1 << 20))
        acknowledged, before = self._submit_all(writer, pieces)
        metadata = writer.close()
        reader = self._client.open(writer.ledger_id)
        lost = _lost(entries, acknowledged, list(reader.batches()))
        say(
            f"acknowledged {before:,} entries before the kill and {acknowledged - before:,} after it; "
            f"ledger {writer.ledger_id} closed at entry {metadata.last_entry}, {lost} lost"
        )
        return Kill(writer.ledger_id, before, acknowledged, lost)

    def _submit_all(self, writer: LedgerWriter, pieces: list[EntryBatch]) -> tuple[int, int]:
        """Return how many entries were acknowledged, and how many of them before the kill."""
        futures: list[Future[int]] = []
        before = 0
        for position, piece in enumerate(pieces):
            futures.append(writer.submit(piece))
            if position == len(pieces) // 2:
                # Half of the sent entries must be acknowledged, the other half in flight.
                futures[position // 2].result()
                before = writer.last_entry + 1
                os.kill(self._options.victim, signal.SIGKILL)
        return max(future.result() for future in futures) + 1, before

    # ---- what is stored ----

    def _stored(self) -> dict[str, int]:
        """Return how many ledgers, entries and payload bytes the log has."""
        ledgers = self._client.log(LOG).show()["ledgers"]
        return {
            "ledgers": len(ledgers),
            "entries": sum(ledger["last_entry"] + 1 for ledger in ledgers),
            "bytes": sum(ledger["length"] for ledger in ledgers),
        }


def _append(table: DataFrame, log: str) -> None:
    writer = table.write.format("bookkeeper").options(log=log, payloadFormat="arrow", digestType="crc32c", **QUORUMS)
    writer.mode("append").save()


def _columns(table: DataFrame) -> list[Any]:
    # Back-quoted: a column of the user's file may have a dot in its name.
    return [sql.col("`" + name.replace("`", "``") + "`") for name in table.columns]


def is_equal(left: DataFrame, right: DataFrame) -> bool:
    """Return whether both have the same rows equally often; nulls equal nulls."""
    if left.schema.simpleString() != right.schema.simpleString():
        return False
    side, balance = "bkspark side", "bkspark balance"
    both = left.select("*", sql.lit(1).alias(side)).unionAll(right.select("*", sql.lit(-1).alias(side)))
    balances = both.groupBy(*_columns(left)).agg(sql.sum(sql.col(f"`{side}`")).alias(balance))
    return balances.filter(sql.col(f"`{balance}`") != 0).isEmpty()


def _lost(sent: EntryBatch, acknowledged: int, found: list[EntryBatch]) -> int:
    """Return how many of the first `acknowledged` entries were not read back byte for byte."""
    read = pa.chunked_array([batch.to_arrow() for batch in found], pa.binary())
    read = read.slice(0, acknowledged)
    same = pa.compute.equal(read, sent.slice(0, len(read)).to_arrow())
    return acknowledged - int(pa.compute.sum(same).as_py() or 0)


def ask(table: DataFrame, source: str) -> dict[str, Any]:
    """Return a typical question about this table, and the answer's columns and rows."""
    if source == FLIGHTS:
        title = "Which carriers are late, on average? (minutes; flights that arrived)"
        answer = _averages(table.filter(sql.col("arr_delay").isNotNull()), "carrier", "arr_delay")
    else:
        title, answer = _general_question(table)
    return {"title": title, "columns": answer.columns, "rows": [list(row) for row in answer.collect()]}


def _general_question(table: DataFrame) -> tuple[str, DataFrame]:
    texts = [field.name for field in table.schema if isinstance(field.dataType, StringType)]
    numbers = [field.name for field in table.schema if isinstance(field.dataType, NumericType)]
    if texts and numbers:
        return f"Average {numbers[0]} by {texts[0]}, the 20 highest", _averages(table, texts[0], numbers[0])
    return "How many rows are there?", table.agg(sql.count("*").alias("rows"))


def _averages(table: DataFrame, group: str, number: str) -> DataFrame:
    key, value = (sql.col(f"`{name}`") for name in (group, number))
    average = sql.round(sql.avg(value.cast("double")), 2).alias(f"average {number}")
    answer = table.groupBy(key).agg(sql.count("*").alias("rows"), average)
    return answer.orderBy(sql.col(f"`average {number}`").desc_nulls_last(), key).limit(20)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--input")
    parser.add_argument("--victim", type=int, required=True)
    return parser.parse_args()


def job() -> dict[str, Any]:
    """Run the demo on the cluster that BKSPARK_URI names."""
    options = _options()
    say("starting Spark ...")
    with session(options.dir, java_options=SHORT_RUN) as spark, Client(os.environ["BKSPARK_URI"]) as client:
        return Demo(spark, client, options.dir, options).run()


if __name__ == "__main__":
    main_of(job)
