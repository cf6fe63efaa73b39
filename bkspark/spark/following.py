"""FollowingReader: the common part of the streaming sources of logs, ledgers and topics, which all grow at their end.

One process plans during a query's whole life. It uses the present state of the metadata store, not older than the
trigger, so a restart from a checkpoint continues exactly where the last run ended. `read` runs in tasks.

A log that appears while a query runs is first recorded in the offset, with its beginning; the next micro-batch reads it
from there. The two offsets of a batch therefore determine its contents.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bkspark.blocking import run
from bkspark.errors import ConfigurationError, MetadataAccessDenied
from bkspark.log.positions import Position
from bkspark.spark.losses import DELETED_AND_CREATED_AGAIN, Losses, NamedPosition
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import ReadPartition
from bkspark.spark.progress import BYTES_BEHIND, ENTRIES_BEHIND
from bkspark.spark.ranges import Backlog, EntryRange, trigger_shares
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


class Noted(NamedPosition, Protocol):
    """A position in one log, as it is recorded in offsets."""

    @property
    def position(self) -> Position: ...


NotedT = TypeVar("NotedT", bound=Noted)


class OffsetForm(Protocol[NotedT]):
    """How offsets are written."""

    def to_json(self, offsets: Mapping[str, NotedT]) -> dict[str, Any]: ...
    def from_json(self, value: Any, source: str) -> dict[str, NotedT]: ...


class Planner(Protocol):
    """Reads the present state of what is followed; one for each trigger."""

    async def catch_up(self) -> None: ...
    def check_offsets(self, names: Collection[str]) -> None: ...
    def option_without(self, name: str) -> str | None: ...


class Followed(Protocol[NotedT]):
    """One log as a trigger finds it. The coroutines run on the client's loop."""

    def offset(self, position: Position) -> NotedT: ...
    @property
    def start(self) -> Position: ...
    async def wanted_start(self) -> Position: ...
    async def end(self) -> Position: ...
    async def begin(self, noted: NotedT) -> Position: ...
    def is_another_than(self, noted: NotedT) -> bool: ...
    async def amount(self, begin: Position, end: Position) -> Backlog: ...
    async def advance(
        self, begin: Position, end: Position, entries_max: int | None, bytes_max: int | None
    ) -> Position: ...
    async def ranges(self, begin: Position, end: Position) -> list[EntryRange]: ...


PlannerT = TypeVar("PlannerT", bound=Planner)
FollowedT = TypeVar("FollowedT", bound=Followed[Any])


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[NotedT, PlannerT, FollowedT]):
    """Reads logs, or what is like them, from positions on, micro-batch by micro-batch."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._options = options.for_stream_read()
        if not HAS_ADMISSION_CONTROL:
            check_without_admission_control(self._options)
        self._schema = schema
        """The columns that the query asks for. Constant."""
        self._losses = Losses(self._options)
        self._form = self._new_form()
        self._target: Mapping[str, NotedT] | None = None
        """The positions at which `Trigger.AvailableNow` ends, by log; None without an end, or before it is fixed."""
        self._fixes_end = False
        """Whether the next trigger is to fix the end for `Trigger.AvailableNow`."""
        self._reported: dict[str, Any] | None = None
        """The ends of the logs for progress reports; None before the first trigger."""
        self._refreshed: tuple[dict[str, Any], PlannerT, Mapping[str, FollowedT]] | None = None
        """The state that the last trigger read, for planning its batch. Set by `_ending`, used once."""
        self._given: Mapping[str, NotedT] = {}
        """The offset that was returned last, by log."""
        self._last_batch_s = time.monotonic()
        """When the last batch was planned."""
        self._is_new = False
        """Whether the initial offset is being made: then what the options name must exist."""
        self._is_caught_up = False
        """Whether the metadata store's state was read that is not older than this object."""
        self._turn = 0
        """Which log is served first in a limited batch; increases with each batch."""
        self._check_schema(schema)

    # ---- what is followed ----

    @abstractmethod
    def _new_form(self) -> OffsetForm[NotedT]:
        """Return how offsets are written."""

    @abstractmethod
    def _check_schema(self, schema: StructType) -> None:
        """Raise ConfigurationError if a column is not available, before the query runs."""

    @abstractmethod
    def _new_planner(self) -> PlannerT:
        """Return a planner, which looks at each thing once."""

    @abstractmethod
    async def _refresh(self, planner: PlannerT) -> dict[str, FollowedT]:
        """Return what is followed as it is now, by name."""

    async def _look(self, planner: PlannerT) -> dict[str, FollowedT]:
        """Return what is followed as it is now, by name. The first look, after a restart, is at least as new as what
        the checkpoint has seen, whichever server of the metadata store answers; those after it cannot be older."""
        if not self._is_caught_up:
            with suppress(MetadataAccessDenied):  # the root of the store is closed: a server's own copy must do
                await planner.catch_up()
            self._is_caught_up = True
        return await self._refresh(planner)

    @abstractmethod
    async def _planned(
        self, planner: PlannerT, logs: Mapping[str, FollowedT], ranges: list[EntryRange]
    ) -> list[ReadPartition]:
        """Return the tasks that read the ranges."""

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""

    async def _begun(self, begins: Mapping[str, Position]) -> None:
        """Called with the positions where a micro-batch begins: everything before is committed. Needs Spark 4.2."""

    async def _at_the_end(self, logs: Mapping[str, FollowedT], names: Collection[str]) -> None:
        """Called by a trigger that finds nothing new. `names`: the logs of which nothing readable is left."""

    # ---- where to read ----

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without checkpoint begins: `startingOffsets`.

        Raises:
            NoSuchLog, MetadataError: the log cannot be read.
            ConfigurationError, DataLoss: the position is not one of the log, or the entries after it are gone.
        """
        planner = self._new_planner()

        async def start() -> dict[str, Any]:
            logs = await self._look(planner)
            planner.check_offsets(logs)
            begins = {name: await log.wanted_start() for name, log in logs.items()}
            await self._begun(begins)
            return self._form.to_json({name: log.offset(begins[name]) for name, log in logs.items()})

        self._is_new = True
        try:
            return run(start)
        finally:
            self._is_new = False

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
        self._refreshed = None
        planner = self._new_planner()
        return run(lambda: self._latest(planner, start, limit))

    async def _latest(self, planner: PlannerT, start: dict[str, Any] | None, limit: ReadLimit | None) -> dict[str, Any]:
        logs = await self._look(planner)
        readable = {name: await log.end() for name, log in logs.items()}
        if self._fixes_end:
            self._fixes_end = False
            self._target = {name: log.offset(readable[name]) for name, log in logs.items()}
        if start is None:
            given = {name: each.position for name, each in self._given.items()}
            ends = {name: self._not_before_given(name, log, readable[name]) for name, log in logs.items()}
            if ends == given:
                await self._at_the_end(logs, logs)
            await self._begun({})
            await self._report(logs, ends, readable)
            return self._ending(ends, planner, logs)
        noted = self._form.from_json(start, CHECKPOINT)
        self._report_gone(planner, noted, logs)
        begins = {name: await log.begin(noted[name]) if name in noted else log.start for name, log in logs.items()}
        await self._begun(begins)
        ends = await self._ends(logs, noted, begins, readable, limit)
        await self._report(logs, ends, readable)
        if ends == begins and noted.keys() == logs.keys():
            read = [name for name in logs if begins[name] >= readable[name]]
            if self._target is not None or len(read) == len(logs):
                await self._at_the_end(logs, read)
            return start
        if ends != begins:  # a batch that only records a new log has no entries, and does not restart the waiting time
            self._last_batch_s = time.monotonic()
        return self._ending(ends, planner, logs)

    def _ending(self, ends: Mapping[str, Position], planner: PlannerT, logs: Mapping[str, FollowedT]) -> dict[str, Any]:
        """Return the offset at which a micro-batch ends, and keep the state that was read: its plan needs the same."""
        self._given = {name: log.offset(ends[name]) for name, log in logs.items()}
        end = self._form.to_json(self._given)
        self._refreshed = (end, planner, logs)
        return end

    def _not_before_given(self, name: str, log: FollowedT, end: Position) -> Position:
        """Return `end`, or the end returned last if that is later: bookies asked now may know a lower LAC."""
        given = self._given.get(name)
        return end if given is None or log.is_another_than(given) else max(end, given.position)

    async def _ends(
        self,
        logs: Mapping[str, FollowedT],
        noted: Mapping[str, NotedT],
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
        shares = trigger_shares(amounts, entries_max, bytes_max, self._turn)
        self._turn += 1
        return {
            name: await log.advance(begins[name], most[name], *share)
            for (name, log), share in zip(logs.items(), shares)
        }

    def _is_overdue(self) -> bool:
        """True when a micro-batch must not wait for `minEntriesPerTrigger`: it waited long enough, or the query
        ends."""
        waited_ms = (time.monotonic() - self._last_batch_s) * 1000
        return self._target is not None or waited_ms >= self._options.trigger_delay_ms

    async def _report(
        self,
        logs: Mapping[str, FollowedT],
        ends: Mapping[str, Position],
        readable: Mapping[str, Position],
    ) -> None:
        """Record the logs' ends for the query's progress, and how much before them is in no micro-batch yet."""
        behind = [await log.amount(ends[name], readable[name]) for name, log in logs.items()]
        self._reported = {
            **self._form.to_json({name: log.offset(readable[name]) for name, log in logs.items()}),
            ENTRIES_BEHIND: sum(each.entries for each in behind),
            BYTES_BEHIND: sum(each.byte_count for each in behind),
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

        async def target() -> dict[str, NotedT]:
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
        refreshed, self._refreshed = self._refreshed, None
        # The state that `latestOffset` read when it returned this end; otherwise the present state.
        planner, logs = refreshed[1:] if refreshed is not None and refreshed[0] == end else (self._new_planner(), None)
        planned: list[InputPartition] = list(run(lambda: self._plan(planner, logs, start, end)))
        reach("source.planned")
        return planned

    async def _plan(
        self,
        planner: PlannerT,
        logs: Mapping[str, FollowedT] | None,
        start: dict[str, Any],
        end: dict[str, Any],
    ) -> list[ReadPartition]:
        first = self._form.from_json(start, CHECKPOINT)
        last = self._form.from_json(end, CHECKPOINT)
        if logs is None:
            logs = await self._look(planner)
        self._report_gone(planner, last, logs)
        ranges: list[EntryRange] = []
        begins: dict[str, Position] = {}
        for name in sorted(last.keys() & logs.keys()):
            log = logs[name]
            if log.is_another_than(last[name]):
                self._losses.report(last[name], DELETED_AND_CREATED_AGAIN)
                continue
            # A log without a first offset was found then. With a limit, which Spark gives from 4.2 on, the end names
            # its beginning.
            begin = await log.begin(first[name]) if name in first else log.start
            if name in first or begin < last[name].position:
                begins[name] = begin
                ranges += await log.ranges(begin, last[name].position)
        await self._begun(begins)
        return await self._planned(planner, logs, ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint alone says what was read, and reading removes nothing."""

    def stop(self) -> None:
        """Do nothing: connections end with the process."""

    def _report_gone(self, planner: PlannerT, noted: Mapping[str, NotedT], logs: Mapping[str, FollowedT]) -> None:
        for name in sorted(noted.keys() - logs.keys()):
            if (option := planner.option_without(name)) is None:
                self._losses.report(noted[name], "deleted")
            else:
                self._losses.report_unselected(noted[name], option)


def check_without_admission_control(options: SourceOptions) -> None:
    """Refuse options that need the beginning of a micro-batch, if Spark does not pass it.

    Raises:
        ConfigurationError: a limit of micro-batches is set, with which Trigger.AvailableNow would end too early; or
            many logs or ledgers are followed, and new ones would be skipped.
    """
    limits = ("maxEntriesPerTrigger", "maxBytesPerTrigger", "minEntriesPerTrigger", "logsPattern", "ledgers")
    for name in limits:
        if name.lower() in options.given:
            raise ConfigurationError(
                f"option '{name}' of a stream needs Spark 4.2, and this is {SPARK_VERSION}: "
                "remove it, or install a newer pyspark"
            )
