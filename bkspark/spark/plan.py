"""Planning of reads, on the driver: from a snapshot of ledgers to partitions that tasks read from bookies alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from bkspark.client import Client, LedgerReader
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookieUnavailable, ConfigurationError, DataLoss, NoSuchLedger
from bkspark.log.positions import Position
from bkspark.log.snapshot import ListedLedger, LogSnapshot
from bkspark.spark.options import IdRange, SourceOptions
from bkspark.spark.ranges import EntryRange, LedgerExtent, partition_count, share

CALLS_AT_ONCE = 64


@dataclass(frozen=True)
class LedgerRead:
    """Entries [first_entry, end_entry) of one ledger, and the metadata that says which bookies have them."""

    ordinal: int
    ledger_id: int
    first_entry: int
    end_entry: int
    metadata: LedgerMetadata


class ReadPartition(InputPartition):
    """What one task reads, in order. It holds all that the task needs: no metadata store is asked again."""

    def __init__(
        self, reads: tuple[LedgerRead, ...], addresses: Mapping[str, tuple[str, int]], password: bytes
    ) -> None:
        super().__init__(None)
        self.reads = reads
        self.addresses = addresses
        self.password = password


class ReadPlanner:
    """Looks at ledgers and plans who reads what. A planner is one snapshot: each ledger is looked at once.

    The methods are coroutines of the client's loop.
    """

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._opened: dict[int, LedgerReader] = {}

    # ---- what there is ----

    async def chosen(self, selection: Sequence[IdRange]) -> list[LedgerExtent]:
        """Return what is readable of the ledgers that option `ledgers` chooses, in its order.

        A ledger named by itself must exist; a range stands for those in it that do, which must be some.

        Raises:
            NoSuchLedger: there is none.
        """
        ids: list[int] = []
        every: list[int] | None = None
        for selected in selection:
            if selected.end - selected.first == 1:
                ids.append(selected.first)
                continue
            if every is None:
                every = sorted([ledger_id async for ledger_id in self._client.ledgers()])
            found = [ledger_id for ledger_id in every if selected.first <= ledger_id < selected.end]
            if not found:
                raise NoSuchLedger(
                    f"option 'ledgers' names {selected.first}-{selected.end - 1}, but no ledger has such an id"
                )
            ids += found
        await self._open(ids)
        return [
            _extent(ordinal, reader)
            for ordinal, ledger_id in enumerate(ids)
            if (reader := self._opened.get(ledger_id)) is not None
        ]

    async def end_of_log(self, snapshot: LogSnapshot) -> Position:
        """Return the position behind the last entry of a log that a reader may reach now, without fencing anything.

        It lies in the first ledger that is still open (at its LAC), or at the end of the last one.
        """
        frontier = snapshot.end_ordinal
        for ordinal in snapshot.open_ordinals:
            listed = await snapshot.ledger(ordinal)
            await self._open([listed.ledger_id])
            reader = self._opened.get(listed.ledger_id)
            if reader is not None and not reader.is_closed:
                if reader.last_entry >= 0:
                    return max(snapshot.start, Position(ordinal, listed.ledger_id, reader.last_entry + 1))
                frontier = ordinal
                break
        async for listed in snapshot.last_before(frontier):
            end_entry = await self._end_entry(listed)
            if end_entry:
                return max(snapshot.start, Position(listed.ordinal, listed.ledger_id, end_entry))
        return snapshot.start

    async def _end_entry(self, listed: ListedLedger) -> int:
        if listed.last_entry is not None:
            return listed.last_entry + 1
        await self._open([listed.ledger_id])
        reader = self._opened.get(listed.ledger_id)
        return 0 if reader is None else reader.last_entry + 1

    async def extents(self, snapshot: LogSnapshot, first_ordinal: int, end: Position) -> AsyncIterator[LedgerExtent]:
        """Yield what lies before `end` of the ledgers from `first_ordinal` on, in order.

        Depends on the log's content before `end` alone, which never changes: planning again gives the same.

        Raises:
            DataLoss: a ledger is gone, or ends before `end` says (failOnDataLoss; otherwise it is left out).
        """
        async for run in snapshot.runs(first_ordinal, end.ordinal + 1):
            await self._open([listed.ledger_id for listed in run if listed.last_entry is None])
            for listed in run:
                extent = self._listed_extent(listed)
                if extent is None:
                    continue
                if listed.ordinal == end.ordinal and (end.entry_id < extent.end_entry or not extent.is_closed):
                    extent = replace(extent, end_entry=end.entry_id, length=round(extent.entry_bytes * end.entry_id))
                elif not extent.is_closed:
                    raise DataLoss(
                        f"ledger {listed.ledger_id} is open, but position {end} lies behind it in log {snapshot.name}: "
                        "the position is of another log, or was changed by hand",
                        ledger_id=listed.ledger_id,
                    )
                yield extent

    def _listed_extent(self, listed: ListedLedger) -> LedgerExtent | None:
        if listed.last_entry is not None and listed.length is not None:
            return LedgerExtent(listed.ordinal, listed.ledger_id, listed.last_entry + 1, listed.length, True)
        reader = self._opened.get(listed.ledger_id)
        return None if reader is None else _extent(listed.ordinal, reader)

    async def first_position(self, snapshot: LogSnapshot, position: Position) -> Position:
        """Return where reading from `position` begins: there, or with failOnDataLoss=false at what is left.

        Raises:
            DataLoss: what follows the position is gone.
            ConfigurationError: the position is of another log.
        """
        try:
            await snapshot.locate(position)
        except DataLoss:
            if self._options.fail_on_data_loss:
                raise
            return snapshot.start
        return position

    # ---- who reads what ----

    async def partitions(self, ranges: Sequence[EntryRange]) -> list[ReadPartition]:
        """Return partitions that cover the ranges once, in order.

        Raises:
            DataLoss: a ledger is gone, or ends before the range does (failOnDataLoss; otherwise it is left out).
        """
        options = self._options
        count = partition_count(ranges, options.partition_bytes_max, options.partitions_min, os.cpu_count() or 1)
        groups = share(ranges, count)
        await self._open([entries.ledger_id for entries in ranges])
        addresses = await self._addresses()
        return [self._partition(group, addresses) for group in groups]

    def _partition(self, group: Iterable[EntryRange], addresses: Mapping[str, tuple[str, int]]) -> ReadPartition:
        reads = []
        for entries in group:
            reader = self._opened.get(entries.ledger_id)
            if reader is not None and self._holds(reader, entries):
                metadata = replace(reader.metadata, custom_metadata={}, password=None)
                reads.append(
                    LedgerRead(entries.ordinal, entries.ledger_id, entries.first_entry, entries.end_entry, metadata)
                )
        bookies = {bookie for read in reads for fragment in read.metadata.fragments for bookie in fragment.bookies}
        known = {bookie: addresses[bookie] for bookie in sorted(bookies) if bookie in addresses}
        return ReadPartition(tuple(reads), known, self._options.password)

    def _holds(self, reader: LedgerReader, entries: EntryRange) -> bool:
        if not reader.is_closed or reader.last_entry >= entries.end_entry - 1:
            return True
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"ledger {entries.ledger_id} ends at entry {reader.last_entry}, entries up to {entries.end_entry - 1} "
                "were to be read: start from earliest, or allow the loss (failOnDataLoss=false)",
                ledger_id=entries.ledger_id,
            )
        return False

    async def _open(self, ledger_ids: Sequence[int]) -> None:
        todo = [ledger_id for ledger_id in dict.fromkeys(ledger_ids) if ledger_id not in self._opened]
        for start in range(0, len(todo), CALLS_AT_ONCE):
            await asyncio.gather(*(self._open_one(ledger_id) for ledger_id in todo[start : start + CALLS_AT_ONCE]))

    async def _open_one(self, ledger_id: int) -> None:
        try:
            self._opened[ledger_id] = await self._client.open(ledger_id, recover=self._options.recover)
        except NoSuchLedger:
            if not self._options.fail_on_data_loss:
                return
            if self._options.log is None:
                raise
            raise DataLoss(
                f"ledger {ledger_id} of log {self._options.log} does not exist any more: "
                "start behind it, or allow the loss (failOnDataLoss=false)",
                ledger_id=ledger_id,
            ) from None

    async def _addresses(self) -> dict[str, tuple[str, int]]:
        bookies = {
            bookie
            for reader in self._opened.values()
            for fragment in reader.metadata.fragments
            for bookie in fragment.bookies
        }
        registry = (await self._client.services()).registry
        addresses = {}
        for bookie in bookies:
            try:
                addresses[bookie] = await registry.resolve(bookie)
            except BookieUnavailable:
                continue  # a task that needs it asks another replica, and names the bookie if there is none
        return addresses


def _extent(ordinal: int, reader: LedgerReader) -> LedgerExtent:
    return LedgerExtent(ordinal, reader.ledger_id, reader.last_entry + 1, reader.length, reader.is_closed)


def check_end(end: Position, readable: Position, log: str) -> Position:
    """Return `end`; raise ConfigurationError when it lies behind what is readable."""
    if end > readable:
        raise ConfigurationError(
            f"option 'endingOffsets' is {end}, but log {log} can be read up to {readable} only: use latest"
        )
    return end
