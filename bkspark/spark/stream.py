"""The streaming source: follows a log, never past what is confirmed, and fences nobody.

Planning runs in one process for a query's life; every method there begins with what the metadata store says now, so a
restart on a checkpoint goes on exactly where the last run stood. `read` runs in tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bkspark.blocking import iterate, run
from bkspark.errors import DataLoss
from bkspark.log.log import Log
from bkspark.log.positions import Position
from bkspark.log.snapshot import LogSnapshot
from bkspark.spark.columns import RowAssembler
from bkspark.spark.connection import connect
from bkspark.spark.offsets import LogOffset
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPartition, ReadPlanner
from bkspark.spark.progress import BYTES_BEHIND, ENTRIES_BEHIND
from bkspark.spark.ranges import Amount, EntryRange, advance, amount, between
from bkspark.spark.read import read_partition

CHECKPOINT = "the checkpoint's offset"


class BookKeeperStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log from a position on, micro-batch by micro-batch."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._options = options.for_stream_read()
        self._schema = schema
        self._log = self._options.log or ""
        self._target: LogOffset | None = None
        self._reported: dict[str, Any] | None = None
        self._last_batch_s = time.monotonic()
        RowAssembler(schema, self._options)  # a wrong column is told here, before the query runs

    # ---- where to read ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without checkpoint begins: `startingOffsets`.

        Raises:
            NoSuchLog, MetadataError: the log cannot be looked at.
            ConfigurationError, DataLoss: the position is not one of the log, or what follows it is gone.
        """
        planner, snapshot = self._look()

        async def start() -> Position:
            return await planner.start(snapshot, await planner.end_of_log(snapshot))

        return self._offset(snapshot, run(start)).to_json()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch from `start` must end: `start` itself when nothing is new.

        Args:
            limit: ReadAllAvailable lifts the limits of the options, as Trigger.Once asks.

        Raises:
            DataLoss: what follows `start` is gone (failOnDataLoss).
        """
        planner, snapshot = self._look()
        known_end = run(lambda: planner.end_of_log(snapshot))
        if start is None:
            self._report(planner, snapshot, known_end, known_end)
            return self._offset(snapshot, known_end).to_json()
        begin = self._begin(planner, snapshot, LogOffset.from_json(start, self._log, CHECKPOINT))
        end = known_end if self._target is None else min(known_end, self._target.position)
        if end > begin and self._is_worth_it(planner, snapshot, begin, end, limit):
            end = self._limited(planner, snapshot, begin, end, limit)
        else:
            end = begin
        self._report(planner, snapshot, end, known_end)
        if end == begin:
            return start
        self._last_batch_s = time.monotonic()
        return self._offset(snapshot, end).to_json()

    def _is_worth_it(
        self, planner: ReadPlanner, snapshot: LogSnapshot, begin: Position, end: Position, limit: ReadLimit | None
    ) -> bool:
        """False while `minEntriesPerTrigger` are waited for: no longer than `maxTriggerDelay`, and not to end."""
        least = self._options.trigger_entries_min
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return True
        if (time.monotonic() - self._last_batch_s) * 1000 >= self._options.trigger_delay_ms:
            return True
        return self._amount(planner, snapshot, begin, end).entries >= least

    def _report(self, planner: ReadPlanner, snapshot: LogSnapshot, end: Position, known_end: Position) -> None:
        """Note the log's end for the query's progress, and how much lies before it that no micro-batch has yet."""
        behind = self._amount(planner, snapshot, end, known_end)
        self._reported = {
            **self._offset(snapshot, known_end).to_json(),
            ENTRIES_BEHIND: behind.entries,
            BYTES_BEHIND: behind.octets,
        }

    def _amount(self, planner: ReadPlanner, snapshot: LogSnapshot, begin: Position, end: Position) -> Amount:
        if end <= begin:
            return Amount(0, 0)
        return amount(iterate(lambda: planner.extents(snapshot, begin.ordinal, end)), begin, end)

    def _limited(
        self, planner: ReadPlanner, snapshot: LogSnapshot, begin: Position, end: Position, limit: ReadLimit | None
    ) -> Position:
        entries_max, bytes_max = self._options.trigger_entries_max, self._options.trigger_bytes_max
        if isinstance(limit, ReadAllAvailable) or (entries_max is None and bytes_max is None):
            return end
        extents = iterate(lambda: planner.extents(snapshot, begin.ordinal, end))
        return advance(extents, begin, entries_max, bytes_max)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch. Spark has no limit of two kinds: `latestOffset` heeds both options."""
        if self._options.trigger_entries_max is not None:
            return ReadMaxRows(self._options.trigger_entries_max)
        if self._options.trigger_bytes_max is not None:
            return ReadMaxBytes(self._options.trigger_bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of what a query with Trigger.AvailableNow reads."""
        planner, snapshot = self._look()
        self._target = self._offset(snapshot, run(lambda: planner.end_of_log(snapshot)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the log's end as the last trigger saw it, for the query's progress; `progress.lag` reads it."""
        return self._reported

    # ---- what to read ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions between two offsets; the same rows whenever it is asked.

        Raises:
            DataLoss: some of it is gone (failOnDataLoss).
        """
        first = LogOffset.from_json(start, self._log, CHECKPOINT)
        last = LogOffset.from_json(end, self._log, CHECKPOINT)
        planner, snapshot = self._look()
        if last.log_id != snapshot.head.log_id:
            self._tell_loss(last)
            return []
        begin = self._begin(planner, snapshot, first)

        async def plan() -> list[ReadPartition]:
            extents = [extent async for extent in planner.extents(snapshot, begin.ordinal, last.position)]
            ranges: list[EntryRange] = between(extents, begin, last.position)
            return await planner.partitions(ranges)

        return list(run(plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_partition(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint alone says what was read, and reading removes nothing."""

    def stop(self) -> None:
        """Do nothing: connections end with the process."""

    def _look(self) -> tuple[ReadPlanner, LogSnapshot]:
        client = connect(self._options).asynchronous
        return ReadPlanner(client, self._options), run(Log(client, self._log).snapshot)

    def _offset(self, snapshot: LogSnapshot, position: Position) -> LogOffset:
        return LogOffset(self._log, snapshot.head.log_id, position)

    def _begin(self, planner: ReadPlanner, snapshot: LogSnapshot, start: LogOffset) -> Position:
        """Return where reading from `start` begins; with failOnDataLoss=false, at what is left."""
        if start.log_id != snapshot.head.log_id:
            self._tell_loss(start)
            return snapshot.start
        return run(lambda: planner.first_position(snapshot, start.position))

    def _tell_loss(self, offset: LogOffset) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"log {self._log} was deleted and created again since {offset.position} was noted: what was unread is "
                "lost; use a new checkpoint, or allow the loss (failOnDataLoss=false)"
            )
