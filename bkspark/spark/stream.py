"""The streaming source: follows a log, or all logs of a pattern, never beyond confirmed entries, and never fences.

Planning runs in one process for a query's life. It uses the present state of the metadata store, at most as old as the
trigger, so a restart on a checkpoint continues exactly where the last run ended. `read` runs in tasks.

A micro-batch of a few rows waits for planning about as long as for its rows. So each call from Spark is one trip to the
client's loop, and a trigger reads the state that the previous one needed, above all that of the ledger being written,
while it reads the logs themselves.

A log that appears while a query with `logsPattern` runs is first recorded in the offset with its beginning, and the
next micro-batch reads it from there: so its two offsets alone determine the contents of a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import ConfigurationError, DataLoss
from bkspark.log.attempts import CALLS_AT_ONCE, chunks
from bkspark.log.positions import Position
from bkspark.log.snapshot import LogSnapshot
from bkspark.spark.columns import row_assembler
from bkspark.spark.connection import connect
from bkspark.spark.offsets import LogOffset, ManyLogs, OneLog
from bkspark.spark.options import SourceOptions
from bkspark.spark.plan import ReadPartition, ReadPlanner
from bkspark.spark.progress import BYTES_BEHIND, ENTRIES_BEHIND
from bkspark.spark.ranges import Backlog, EntryRange, ReadableSegment, advance, amount, between, fair_share
from bkspark.spark.read import read_partition
from bkspark.spark.versions import (
    HAS_ADMISSION_CONTROL,
    SPARK_VERSION,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from bkspark.stages import reach

CHECKPOINT = "the checkpoint's offset"

Offsets = Mapping[str, LogOffset]
"""The position in each log, by name."""


class LogAtTrigger:
    """One log as a trigger finds it. The coroutines run on the client's loop."""

    def __init__(self, planner: ReadPlanner, snapshot: LogSnapshot, options: SourceOptions) -> None:
        self._planner = planner
        self._snapshot = snapshot
        self._options = options

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
            _tell_loss(self._options, noted, "deleted and created again")
            return self._snapshot.start
        instead = "start the query with a new checkpoint"
        return await self._planner.first_position(self._snapshot, noted.position, CHECKPOINT, instead)

    def is_another_than(self, noted: LogOffset) -> bool:
        """True when the log was deleted and created again in the meantime."""
        return noted.log_id != self._snapshot.head.log_id

    async def amount(self, begin: Position, end: Position) -> Backlog:
        return amount(await self._extents(begin, end), begin, end) if begin < end else Backlog(0, 0)

    async def advance(self, begin: Position, end: Position, entries_max: int | None, bytes_max: int | None) -> Position:
        """Return where a micro-batch must end that has at most this many entries and about this many bytes."""
        if end <= begin or entries_max == 0 or bytes_max == 0:
            return begin
        return advance(await self._extents(begin, end), begin, entries_max, bytes_max)

    async def ranges(self, begin: Position, end: Position) -> list[EntryRange]:
        return between(await self._extents(begin, end), begin, end)

    async def _extents(self, begin: Position, end: Position) -> list[ReadableSegment]:
        return [extent async for extent in self._planner.extents(self._snapshot, begin.ordinal, end)]


class BookKeeperStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs from positions on, micro-batch by micro-batch."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._options = options.for_stream_read()
        if not HAS_ADMISSION_CONTROL:
            check_without_admission_control(self._options)
        self._schema = schema
        self._form = ManyLogs() if self._options.log is None else OneLog(self._options.log)
        self._target: Offsets | None = None
        self._reported: dict[str, Any] | None = None
        self._looked_at: tuple[dict[str, Any], ReadPlanner, Mapping[str, LogAtTrigger]] | None = None
        self._before: ReadPlanner | None = None
        self._given: Offsets = {}
        self._last_batch_s = time.monotonic()
        self._turn = 0
        row_assembler(schema, self._options)  # a wrong column raises here, before the query runs

    # ---- where to read ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without checkpoint begins: `startingOffsets`.

        Raises:
            NoSuchLog, MetadataError: the log cannot be read.
            ConfigurationError, DataLoss: the position is not one of the log, or what follows it is gone.
        """
        planner = self._new_planner()

        async def start() -> dict[str, Any]:
            logs = await self._look(planner)
            planner.check_offsets(logs)
            return self._form.to_json({name: log.offset(await log.wanted_start()) for name, log in logs.items()})

        return run(start)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch from `start` must end: `start` itself without new entries.

        Args:
            start: None before Spark 4.2, which only requests the end of the existing entries.
            limit: ReadAllAvailable lifts the limits of the options, as Trigger.Once asks.

        Raises:
            DataLoss: the entries after `start` are gone (failOnDataLoss).
        """
        self._looked_at = None
        planner = self._new_planner()
        return run(lambda: self._latest(planner, start, limit))

    async def _latest(
        self, planner: ReadPlanner, start: dict[str, Any] | None, limit: ReadLimit | None
    ) -> dict[str, Any]:
        logs = await self._look(planner)
        readable = {name: await log.end() for name, log in logs.items()}
        if start is None:
            ends = {name: self._not_before_given(name, log, readable[name]) for name, log in logs.items()}
            await self._report(logs, ends, readable)
            return self._ending(ends, planner, logs)
        noted = self._form.from_json(start, CHECKPOINT)
        self._tell_gone(noted, logs)
        begins = {name: await log.begin(noted[name]) if name in noted else log.start for name, log in logs.items()}
        ends = await self._ends(logs, noted, begins, readable, limit)
        await self._report(logs, ends, readable)
        if ends == begins and noted.keys() == logs.keys():
            return start
        if ends != begins:  # a batch that only records a new log has no entries, and does not restart the waiting time
            self._last_batch_s = time.monotonic()
        return self._ending(ends, planner, logs)

    def _ending(
        self, ends: Mapping[str, Position], planner: ReadPlanner, logs: Mapping[str, LogAtTrigger]
    ) -> dict[str, Any]:
        """Return the offset at which a micro-batch ends, and keep the state that was read: its plan needs the same."""
        self._given = {name: log.offset(ends[name]) for name, log in logs.items()}
        end = self._form.to_json(self._given)
        self._looked_at = (end, planner, logs)
        return end

    def _not_before_given(self, name: str, log: LogAtTrigger, end: Position) -> Position:
        """Return `end`, but not before the last returned one: other bookies may answer now, which know less."""
        given = self._given.get(name)
        return end if given is None or log.is_another_than(given) else max(end, given.position)

    async def _ends(
        self,
        logs: Mapping[str, LogAtTrigger],
        noted: Offsets,
        begins: Mapping[str, Position],
        readable: Mapping[str, Position],
        limit: ReadLimit | None,
    ) -> dict[str, Position]:
        """Return where each log's part of the micro-batch ends: at its begin if it has no part."""
        most: dict[str, Position] = {}
        for name, begin in begins.items():
            end = readable[name] if name in noted else begin
            if self._target is not None:
                target = self._target.get(name)
                # Logs created since then, also under an old name, are for the next run.
                if target is None or logs[name].is_another_than(target):
                    end = begin
                else:
                    end = min(end, target.position)
            most[name] = max(begin, end)
        entries_max, bytes_max = self._options.trigger_entries_max, self._options.trigger_bytes_max
        if isinstance(limit, ReadAllAvailable):
            return most
        least = None if self._is_overdue() else self._options.trigger_entries_min
        if least is None and entries_max is None and bytes_max is None:
            return most
        amounts = [await log.amount(begins[name], most[name]) for name, log in logs.items()]
        if least is not None and sum(each.entries for each in amounts) < least:
            return dict(begins)
        entries = _shares([each.entries for each in amounts], entries_max, self._turn)
        # Entries may have no bytes at all, and still need a share.
        octets = _shares([max(each.octets, min(each.entries, 1)) for each in amounts], bytes_max, self._turn)
        self._turn += 1
        return {
            name: await log.advance(begins[name], most[name], entries[index], octets[index])
            for index, (name, log) in enumerate(logs.items())
        }

    def _is_overdue(self) -> bool:
        """True when a micro-batch must not wait for `minEntriesPerTrigger`: it waited long enough, or the query
        ends."""
        waited_ms = (time.monotonic() - self._last_batch_s) * 1000
        return self._target is not None or waited_ms >= self._options.trigger_delay_ms

    async def _report(
        self,
        logs: Mapping[str, LogAtTrigger],
        ends: Mapping[str, Position],
        readable: Mapping[str, Position],
    ) -> None:
        """Record the logs' ends for the query's progress, and how much before them is in no micro-batch yet."""
        behind = [await log.amount(ends[name], readable[name]) for name, log in logs.items()]
        self._reported = {
            **self._form.to_json({name: log.offset(readable[name]) for name, log in logs.items()}),
            ENTRIES_BEHIND: sum(each.entries for each in behind),
            BYTES_BEHIND: sum(each.octets for each in behind),
        }

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch. A Spark limit has only one kind, so `latestOffset` applies all three
        options, whichever limit it gets; only ReadAllAvailable lifts them.
        """
        if self._options.trigger_entries_max is not None:
            return ReadMaxRows(self._options.trigger_entries_max)
        if self._options.trigger_bytes_max is not None:
            return ReadMaxBytes(self._options.trigger_bytes_max)
        if self._options.trigger_entries_min is not None:
            return ReadMinRows(self._options.trigger_entries_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end for a query with Trigger.AvailableNow."""
        planner = self._new_planner()

        async def target() -> Offsets:
            return {name: log.offset(await log.end()) for name, log in (await self._look(planner)).items()}

        self._target = run(target)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the logs' ends as the last trigger saw them, for the query's progress; `progress.lag` reads it."""
        return self._reported

    # ---- what to read ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions between two offsets; they have the same rows at every call.

        Raises:
            DataLoss: some of the entries are gone (failOnDataLoss).
        """
        looked_at, self._looked_at = self._looked_at, None
        # The state that `latestOffset` read when it returned this end; otherwise the present state.
        planner, logs = looked_at[1:] if looked_at is not None and looked_at[0] == end else (self._new_planner(), None)
        planned: list[InputPartition] = list(run(lambda: self._plan(planner, logs, start, end)))
        reach("source.planned")
        return planned

    async def _plan(
        self,
        planner: ReadPlanner,
        logs: Mapping[str, LogAtTrigger] | None,
        start: dict[str, Any],
        end: dict[str, Any],
    ) -> list[ReadPartition]:
        first = self._form.from_json(start, CHECKPOINT)
        last = self._form.from_json(end, CHECKPOINT)
        if logs is None:
            logs = await self._look(planner)
        self._tell_gone(last, logs)
        ranges: list[EntryRange] = []
        # A log that only the end names was found then: none of its entries are in this batch.
        for name in sorted(first.keys() & last.keys() & logs.keys()):
            log = logs[name]
            if log.is_another_than(last[name]):
                _tell_loss(self._options, last[name], "deleted and created again")
            else:
                ranges += await log.ranges(await log.begin(first[name]), last[name].position)
        return await planner.partitions(ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return read_partition(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint alone says what was read, and reading removes nothing."""

    def stop(self) -> None:
        """Do nothing: connections end with the process."""

    def _new_planner(self) -> ReadPlanner:
        return ReadPlanner(connect(self._options).asynchronous, self._options, is_stream=True)

    async def _look(self, planner: ReadPlanner) -> dict[str, LogAtTrigger]:
        """Return the logs as they are now."""
        logs, _ = await asyncio.gather(self._logs(planner), planner.look_ahead(self._before))
        self._before = planner
        return logs

    async def _logs(self, planner: ReadPlanner) -> dict[str, LogAtTrigger]:
        snapshots: list[LogSnapshot | None] = []
        for names in chunks(await planner.log_names(), CALLS_AT_ONCE):
            snapshots += await asyncio.gather(*map(planner.snapshot, names))
        found = (snapshot for snapshot in snapshots if snapshot is not None)
        return {snapshot.name: LogAtTrigger(planner, snapshot, self._options) for snapshot in found}

    def _tell_gone(self, noted: Offsets, logs: Mapping[str, LogAtTrigger]) -> None:
        for name in sorted(noted.keys() - logs.keys()):
            _tell_loss(self._options, noted[name], "deleted")


def check_without_admission_control(options: SourceOptions) -> None:
    """Refuse options that need the beginning of a micro-batch, if Spark does not pass it.

    Raises:
        ConfigurationError: a limit of micro-batches is set, with which Trigger.AvailableNow would end too early; or
            many logs are followed, and new ones would be skipped.
    """
    limits = ("maxEntriesPerTrigger", "maxBytesPerTrigger", "minEntriesPerTrigger", "logsPattern")
    for name in limits:
        if name.lower() in options.given:
            raise ConfigurationError(
                f"option '{name}' of a stream needs Spark 4.2, and this is {SPARK_VERSION}: "
                "remove it, or install a newer pyspark"
            )


def _shares(wanted: list[int], total: int | None, turn: int) -> list[int] | list[None]:
    """Return the share of each log in a micro-batch, None for no limit.

    A limit of bytes never stops all logs: one entry is always read, however large.
    """
    return [None] * len(wanted) if total is None else fair_share(wanted, total, turn)


def _tell_loss(options: SourceOptions, noted: LogOffset, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLoss(
            f"log {noted.log} was {what} since {noted.position} was noted: what was unread is lost; use a new "
            "checkpoint, or allow the loss (failOnDataLoss=false)"
        )
