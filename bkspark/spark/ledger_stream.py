"""The streaming source of ledgers: follows those of a selection, and new ones as they appear. It never fences.

A ledger is followed as a log is: to its last confirmed entry while it is open, to its end when it is closed. Then it is
`finished` in the offset (`ledger_offsets`), and costs later triggers nothing. Each trigger lists the ledgers of the
cluster, unless all are named by id, and looks at the metadata of those that are new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from bkspark.log.positions import EARLIEST, Position
from bkspark.spark.columns import row_assembler
from bkspark.spark.connection import connect
from bkspark.spark.following import CHECKPOINT, FollowingReader
from bkspark.spark.ledger_offsets import LedgerOffset, ManyLedgers
from bkspark.spark.losses import DELETED_AND_CREATED_AGAIN, Losses
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import ReadPartition
from bkspark.spark.plan import FollowedLedger, ReadPlanner
from bkspark.spark.ranges import Backlog, EntryRange, advance, amount, between
from bkspark.spark.read import read_partition
from bkspark.spark.versions import ReadLimit
from bkspark.stages import reached_by_each


class LedgerAtTrigger:
    """One ledger as a trigger finds it: `extent` has the entries of the selection that can be read now."""

    def __init__(self, found: FollowedLedger, options: SourceOptions, losses: Losses) -> None:
        self._extent = found.extent
        self._created_ms = found.created_ms
        """When the ledger was created, in ms since 1970. Constant."""
        self._options = options
        self._losses = losses
        self._is_complete = found.is_complete
        """Whether the selection will have no more entries."""

    def offset(self, position: Position) -> LedgerOffset:
        is_finished = self._is_complete and position.entry_id >= self._extent.end_entry
        return LedgerOffset(self._extent.ledger_id, position.entry_id, is_finished, self._created_ms)

    @property
    def start(self) -> Position:
        return Position(0, self._extent.ledger_id, self._extent.first_entry)

    async def wanted_start(self) -> Position:
        """Return where the options let a new query begin."""
        wanted, end = self._options.starting_offsets, await self.end()
        if wanted == EARLIEST or self._options.starting_timestamp is not None:
            return self.start
        if isinstance(wanted, int):
            return max(self.start, replace(end, entry_id=max(0, end.entry_id + wanted)))
        return end

    async def end(self) -> Position:
        """Return the position after the last entry confirmed now."""
        return Position(0, self._extent.ledger_id, max(self._extent.first_entry, self._extent.end_entry))

    async def begin(self, noted: LedgerOffset) -> Position:
        """Return where reading from a recorded offset begins.

        Raises:
            DataLoss: the ledger is another one, or was closed before it (failOnDataLoss): entries that the query has
                counted are gone.
        """
        if self.is_another_than(noted):
            self._losses.report(noted, DELETED_AND_CREATED_AGAIN)
            return self.start
        end = await self.end()
        if self._extent.is_closed and noted.position > end:
            self._losses.report(noted, f"closed at entry {end.entry_id - 1}")
        return noted.position

    def is_another_than(self, noted: LedgerOffset) -> bool:
        """Return whether the ledger was deleted since, and another one was created with its id."""
        return noted.created_ms is not None and noted.created_ms != self._created_ms

    async def amount(self, begin: Position, end: Position) -> Backlog:
        return amount([self._extent], begin, end)

    async def advance(self, begin: Position, end: Position, entries_max: int | None, bytes_max: int | None) -> Position:
        """Return where a micro-batch must end that has at most this many entries and about this many bytes."""
        if end <= begin or entries_max == 0 or bytes_max == 0:
            return begin
        return min(end, advance([self._extent], begin, entries_max, bytes_max))

    async def ranges(self, begin: Position, end: Position) -> list[EntryRange]:
        """Return the entries between two recorded positions. Those before `end` were confirmed once: bookies that
        restarted may have forgotten it."""
        extent = self._extent
        if end.entry_id > extent.end_entry:
            length = extent.length + round(extent.entry_bytes * (end.entry_id - extent.end_entry))
            extent = replace(extent, end_entry=end.entry_id, length=length)
        return between([extent], begin, end)


class LedgerStreamReader(FollowingReader[LedgerOffset, ReadPlanner, LedgerAtTrigger]):
    """Reads ledgers of a selection from entries on, micro-batch by micro-batch."""

    _form: ManyLedgers

    def _new_form(self) -> ManyLedgers:
        return ManyLedgers(selection_text(self._options))

    def _check_schema(self, schema: StructType) -> None:
        row_assembler(schema, self._options)

    def _new_planner(self) -> ReadPlanner:
        return ReadPlanner(connect(self._options).asynchronous, self._options, is_stream=True)

    async def _refresh(self, planner: ReadPlanner) -> dict[str, LedgerAtTrigger]:
        """Return the ledgers that are not finished, as they are now."""
        form = self._form
        found, form.finished = await planner.followed(
            self._options.ledgers or (), form.finished, form.noted, is_begin=self._is_new
        )
        return {str(each.extent.ledger_id): LedgerAtTrigger(each, self._options, self._losses) for each in found}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without checkpoint begins; see `FollowingReader.initialOffset`."""
        self._form.begin_at(None, CHECKPOINT)
        return super().initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end for a query with Trigger.AvailableNow: at the first trigger, which knows what was finished
        before. Without this, all ledgers of the selection would be opened."""
        self._fixes_end = True

    async def _latest(
        self, planner: ReadPlanner, start: dict[str, Any] | None, limit: ReadLimit | None
    ) -> dict[str, Any]:
        self._form.begin_at(start, CHECKPOINT)
        return await super()._latest(planner, start, limit)

    async def _plan(
        self,
        planner: ReadPlanner,
        logs: Mapping[str, LedgerAtTrigger] | None,
        start: dict[str, Any],
        end: dict[str, Any],
    ) -> list[ReadPartition]:
        first, last = self._form.from_json(start, CHECKPOINT), self._form.from_json(end, CHECKPOINT)
        finished = self._form.finished_in(end)
        if logs is None:
            self._form.begin_at(start, CHECKPOINT)
            logs = await self._look(planner)
        ranges: list[EntryRange] = []
        for name, noted in sorted(first.items(), key=lambda item: item[1].ledger_id):
            ledger = logs.get(name)
            if name not in last and noted.ledger_id not in finished:
                continue  # it was deleted when the batch was cut, and that loss is allowed
            if ledger is None:
                self._losses.report(noted, "deleted")
            elif name in last and ledger.is_another_than(last[name]):
                self._losses.report(noted, DELETED_AND_CREATED_AGAIN)
            else:
                # A ledger that the batch finishes is closed: its end does not change.
                stop = last[name].position if name in last else await ledger.end()
                ranges += await ledger.ranges(await ledger.begin(noted), stop)
        return await self._planned(planner, logs, ranges)

    async def _planned(
        self, planner: ReadPlanner, logs: Mapping[str, LedgerAtTrigger], ranges: list[EntryRange]
    ) -> list[ReadPartition]:
        return await planner.partitions(ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        return reached_by_each("source.read", read_partition(partition, self._schema, self._options))


def selection_text(options: SourceOptions) -> str:
    """Return the options that choose ledgers, as one text: the same for the same choice."""
    ranges = [[each.first, each.end, each.first_entry, each.end_entry] for each in options.ledgers or ()]
    return json.dumps([sorted(ranges), sorted(options.ledger_metadata.items())], separators=(",", ":"))
