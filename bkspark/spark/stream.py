"""The streaming source of logs: follows a log, or all logs of a pattern, to what is confirmed, and never fences.

A micro-batch of a few rows waits for its planning about as long as for its rows. To shorten that, each call from Spark
is one call on the client's loop, and a trigger prefetches the state that the previous one needed (mainly of the ledger
being written) while it reads the logs' lists.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import NoSuchLog
from bkspark.log.positions import Position
from bkspark.log.snapshot import LogSnapshot
from bkspark.spark.columns import row_assembler
from bkspark.spark.connection import connect
from bkspark.spark.consumers import StreamConsumer
from bkspark.spark.following import CHECKPOINT, FollowingReader, OffsetForm
from bkspark.spark.log_schemas import ColumnCheck
from bkspark.spark.losses import DELETED_AND_CREATED_AGAIN, Losses
from bkspark.spark.offsets import LogOffset, ManyLogs, OneLog
from bkspark.spark.opened_ledgers import OpenedLedgers
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import ReadPartition
from bkspark.spark.plan import RESTORED, ReadPlanner
from bkspark.spark.ranges import Backlog, EntryRange, ReadableSegment, advance, between
from bkspark.spark.read import read_partition
from bkspark.stages import reached_by_each


class LogAtTrigger:
    """One log as a trigger finds it. The coroutines run on the client's loop."""

    def __init__(self, planner: ReadPlanner, snapshot: LogSnapshot, losses: Losses) -> None:
        self._planner = planner
        self._snapshot = snapshot
        self._losses = losses

    def offset(self, position: Position) -> LogOffset:
        return LogOffset(self._snapshot.name, self._snapshot.head.log_id, position)

    @property
    def start(self) -> Position:
        return self._snapshot.start

    async def wanted_start(self) -> Position:
        """Return where the options let a new query begin."""
        return await self._planner.start(self._snapshot, await self.end())

    async def end(self) -> Position:
        """Return the position after the last entry confirmed now."""
        return await self._planner.end_of_log(self._snapshot)

    async def begin(self, noted: LogOffset) -> Position:
        """Return where reading from a recorded offset begins; with failOnDataLoss=false, at the first remaining
        entry."""
        if self.is_another_than(noted):
            self._losses.report(noted, DELETED_AND_CREATED_AGAIN)
            return self._snapshot.start
        what = await self._planner.contradiction(self._snapshot, noted.position)
        if what is not None:
            self._losses.report(noted, what)
            return self._snapshot.start if what == RESTORED else noted.position
        instead = "start the query with a new checkpoint"
        first = await self._planner.first_position(self._snapshot, noted.position, CHECKPOINT, instead)
        if first != noted.position:
            self._losses.report(noted, "truncated, expired or overwritten")
        return first

    def is_another_than(self, noted: LogOffset) -> bool:
        """Return whether the log was deleted and created again since the offset was made."""
        return noted.log_id != self._snapshot.head.log_id

    async def amount(self, begin: Position, end: Position) -> Backlog:
        return await self._planner.backlog(self._snapshot, begin, end) if begin < end else Backlog(0, 0)

    async def advance(self, begin: Position, end: Position, entries_max: int | None, bytes_max: int | None) -> Position:
        """Return where a micro-batch must end that has at most this many entries and about this many bytes."""
        if end <= begin or entries_max == 0 or bytes_max == 0:
            return begin
        # A plan of few entries must not look at a log of many ledgers.
        found: list[ReadableSegment] = []
        entries, byte_count = entries_max or 0, bytes_max or 0
        async with aclosing(self._planner.extents(self._snapshot, begin.ordinal, end)) as extents:
            async for extent in extents:
                found.append(extent)
                held = max(0, extent.end_entry - extent.first_after(begin))
                entries -= held
                byte_count -= math.floor(held * extent.entry_bytes)
                if (entries_max is not None and entries < 0) or (bytes_max is not None and byte_count < 0):
                    break
        return advance(found, begin, entries_max, bytes_max)

    async def ranges(self, begin: Position, end: Position) -> list[EntryRange]:
        """Return the entries between two recorded positions; what is gone is reported."""
        if await self._planner.contradiction(self._snapshot, end) == RESTORED:
            self._losses.report(self.offset(begin), RESTORED)
            # What the log has of the batch: none of a ledger that another one has replaced.
            end = min(replace(end, entry_id=0), await self.end())
        return between(await self._extents(begin, end), begin, end)

    async def _extents(self, begin: Position, end: Position) -> list[ReadableSegment]:
        return [extent async for extent in self._planner.extents(self._snapshot, begin.ordinal, end)]


class BookKeeperStreamReader(FollowingReader[LogOffset, ReadPlanner, LogAtTrigger]):
    """Reads logs from positions on, micro-batch by micro-batch."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self._before: OpenedLedgers | None = None
        """What the last trigger needed; None before the first one. Each trigger replaces it."""
        named = self._options.consumer
        self._consumer = None if named is None else StreamConsumer(named, self._options)
        self._column_check = ColumnCheck(row_assembler(schema, self._options).payload_columns, self._options)

    def _new_form(self) -> OffsetForm[LogOffset]:
        return ManyLogs() if self._options.log is None else OneLog(self._options.log)

    def _check_schema(self, schema: StructType) -> None:
        row_assembler(schema, self._options)

    def _new_planner(self) -> ReadPlanner:
        return ReadPlanner(connect(self._options).asynchronous, self._options, is_stream=True)

    async def _refresh(self, planner: ReadPlanner) -> dict[str, LogAtTrigger]:
        """Return the logs as they are now."""
        logs, _ = await asyncio.gather(self._logs(planner), planner.ledgers.look_ahead(self._before))
        self._before = planner.ledgers
        return logs

    async def _logs(self, planner: ReadPlanner) -> dict[str, LogAtTrigger]:
        try:
            found = await planner.snapshots()
        except NoSuchLog:
            if self._is_new:
                raise
            found = []  # deleted since the query began, a loss that its offset shows
        if self._consumer is not None:
            self._consumer.found({snapshot.name: snapshot.head.log_id for snapshot in found})
        return {snapshot.name: LogAtTrigger(planner, snapshot, self._losses) for snapshot in found}

    async def _planned(
        self, planner: ReadPlanner, logs: Mapping[str, LogAtTrigger], ranges: list[EntryRange]
    ) -> list[ReadPartition]:
        leaves_out = await self._column_check.check(planner.looked_at, ranges)
        return await planner.partitions(ranges, leaves_out=leaves_out)

    async def _begun(self, begins: Mapping[str, Position]) -> None:
        if self._consumer is not None:
            await self._consumer.hold(begins)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the query's registrations, if it has any: the logs need not keep what Spark has committed."""
        consumer = self._consumer
        if consumer is not None:
            positions = {name: noted.position for name, noted in self._form.from_json(end, CHECKPOINT).items()}
            run(lambda: consumer.note(positions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return reached_by_each("source.read", read_partition(partition, self._schema, self._options))
