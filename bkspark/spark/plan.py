"""ReadPlanner: plans reads on the driver: snapshots of ledgers, and partitions that tasks read from bookies alone."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from bkspark.client import Client, LedgerReader
from bkspark.errors import ConfigurationError, DataLoss, NoSuchLog
from bkspark.ledger.encryption import opening_metadata
from bkspark.ledger.reader import LedgerTimes
from bkspark.log import reading
from bkspark.log.log import Log, store_of
from bkspark.log.positions import EARLIEST, LATEST, NO_LEDGER, Position
from bkspark.log.routing import RoutedCommits
from bkspark.log.snapshot import LogSegment, LogSnapshot
from bkspark.log.times import Timeline
from bkspark.net.pool import NetOptions
from bkspark.spark.ledger_offsets import LedgerIds
from bkspark.spark.losses import LostEntries
from bkspark.spark.lost_times import check_has_begun, check_times, reference_ms
from bkspark.spark.offsets import position_of
from bkspark.spark.opened_ledgers import OpenedLedgers
from bkspark.spark.option_values import IdRange
from bkspark.spark.options import SourceOptions
from bkspark.spark.partitions import EntryTimes, LedgerRead, ReadPartition
from bkspark.spark.ranges import Backlog, EntryRange, PackedRanges, ReadableSegment, amount, tasks
from bkspark.spark.selection import chosen_entries, has_metadata
from bkspark.spark.stored_ledgers import Pick, selected_ledgers, stored_ledgers

OPENED_LEDGERS_MAX = 2_000
"""Ledgers whose metadata the driver reads for a plan. Tasks of a larger plan read those of their own ledgers, unless a
column has times: only the driver has the list that the plan was made of."""
RESTORED = "restored from an older state"
"""What happened to a log whose list of ledgers does not have what a checkpoint names."""


@dataclass(frozen=True, slots=True)
class FollowedLedger:
    """A ledger of a stream: its selected entries that can be read now. `is_complete`: it will have no more of them."""

    extent: ReadableSegment
    """The entries, of one ledger."""
    is_complete: bool
    created_ms: int
    """When it was created, in ms since 1970: another ledger that has its id later has another time."""


class ReadPlanner:
    """Reads the state of ledgers and plans which task reads which entries. A planner is one snapshot: it reads each
    ledger's state once.

    The methods are coroutines of the client's loop.

    Args:
        is_stream: for messages. A stream with a checkpoint begins there, whatever its options are.
    """

    def __init__(self, client: Client, options: SourceOptions, *, is_stream: bool = False) -> None:
        self._client = client
        self._options = options
        self._is_stream = is_stream
        remedy = (
            f"start after it with startingOffsets{', with a new checkpoint' if is_stream else ''}, or allow the loss "
            "(failOnDataLoss=false)"
        )
        kind = "topic" if options.reads_topics else "log"
        self._lost = LostEntries(options, kind, remedy)
        self.ledgers = OpenedLedgers(client, options, kind, remedy)
        """The ledgers that this planner has read. Constant; it adds to them."""
        self._snapshots: dict[str, LogSnapshot] = {}
        """Lists of logs that were read, by name."""
        self._now_ms = reference_ms(options)

    # ---- the state of logs and ledgers ----

    async def catch_up(self) -> None:
        """Make the metadata that are read from now on at least as new as at this moment."""
        await (await self._client.tree()).catch_up()

    async def log_names(self) -> list[str]:
        """Return the logs to read by name: that of option `log`, or those that exist and match `logsPattern`."""
        options = self._options
        if options.logs_pattern is None:
            return [] if options.log is None else [options.log]
        return [name for name in await self._client.logs() if re.fullmatch(options.logs_pattern, name)]

    async def snapshot(self, name: str) -> LogSnapshot | None:
        """Return a log's current list of ledgers; None if a log of `logsPattern` was deleted since it was listed.

        Raises:
            NoSuchLog: there is no log with the name of option `log`.
        """
        try:
            found = self._snapshots[name] = await Log(self._client, name).snapshot()
        except NoSuchLog as error:
            if self._options.logs_pattern is None:
                raise NoSuchLog(f"option 'log': {error}") from None
            return None
        return found

    async def snapshots(self) -> list[LogSnapshot]:
        """Return the current lists of the logs to read, as of one moment: a commit to several of them is in all of
        their lists, or in none. Raises as `snapshot`.
        """
        if self._options.logs_pattern is None:
            one = [await self.snapshot(name) for name in await self.log_names()]
            return [snapshot for snapshot in one if snapshot is not None]
        found = await RoutedCommits(await store_of(self._client)).snapshots(self.log_names)
        self._snapshots.update({snapshot.name: snapshot for snapshot in found})
        return found

    @property
    def looked_at(self) -> list[LogSnapshot]:
        """The snapshots that this planner has read."""
        return list(self._snapshots.values())

    def check_offsets(self, names: Collection[str]) -> None:
        """Raise ConfigurationError if an offset option names a log that is not among those to read.

        For a new read: a stream that continues from its checkpoint does not use the options.
        """
        options = self._options
        if options.logs_pattern is None:
            return
        for option, offset in (
            ("startingOffsets", options.starting_offsets),
            ("endingOffsets", options.ending_offsets),
        ):
            for name in offset if isinstance(offset, dict) else ():
                if name not in names:
                    raise ConfigurationError(
                        f"option '{option}' names log {name!r}, which does not exist or does not match logsPattern "
                        f"{options.logs_pattern!r}: give a JSON object of names of logs and offsets"
                    )

    def option_without(self, name: str) -> str | None:
        """Return the option that does not select a log, for messages; None if it is selected."""
        pattern = self._options.logs_pattern
        return None if pattern is None or re.fullmatch(pattern, name) else f"option 'logsPattern' ({pattern})"

    async def chosen(self, selection: Sequence[IdRange]) -> list[EntryRange]:
        """Return the readable entries of the ledgers that option `ledgers` chooses, in its order.

        A ledger that is named individually must exist, and must hold the named entries; a range means the existing
        ledgers in it, at least one (failOnDataLoss). A choice by custom metadata, by time, or with `*` may be empty.

        Raises:
            NoSuchLedger: no such ledger exists.
            ConfigurationError: a ledger ends before the entries named do.
        """
        must_exist = self._options.fail_on_data_loss
        picks: list[Pick] = []
        async with aclosing(selected_ledgers(self._client, selection, LedgerIds(), must_exist=must_exist)) as selected:
            async for some in selected:
                picks += await self._wanted(some, by_time=True)
        await self.ledgers.open({ledger_id: "" for ledger_id, part in picks if part.is_one})
        # The existing ledgers of a range are read: one may be deleted after they were listed.
        await self.ledgers.open({ledger_id: "" for ledger_id, _ in picks}, must_exist=False)
        ranges = []
        for ordinal, (ledger_id, part) in enumerate(picks):
            reader = self.ledgers.get(ledger_id)
            if reader is not None:
                entries = chosen_entries(self._extent(ordinal, reader), part)
                if len(entries):
                    ranges.append(entries)
        return ranges

    async def followed(
        self,
        selection: Sequence[IdRange],
        finished: LedgerIds,
        noted: Collection[int],
        *,
        is_begin: bool,
    ) -> tuple[list[FollowedLedger], LedgerIds]:
        """Return the ledgers of a selection as a stream finds them; and `finished` with others that it never reads.

        A range may be empty: its ledgers may appear later.

        Args:
            is_begin: a new query begins. A ledger that is named individually must exist (failOnDataLoss), and
                `startingTimestamp` leaves out those that were closed before it. What appears later is later, too.
            finished: ids that are left out.
            noted: ids that were found before: they are of the selection, and may be deleted by now.
        """
        picks: list[Pick] = []
        async with aclosing(selected_ledgers(self._client, selection, finished, must_exist=False)) as selected:
            async for some in selected:
                new = [pick for pick in some if pick[0] not in noted]
                wanted = await self._wanted(new, by_time=is_begin)
                ours = {ledger_id for ledger_id, _ in wanted} | {pick[0] for pick in some if pick[0] in noted}
                finished = finished.with_ids([ledger_id for ledger_id, _ in new if ledger_id not in ours])
                picks += [pick for pick in some if pick[0] in ours]
                await self.ledgers.open(
                    {ledger_id: "" for ledger_id, part in wanted if part.is_one}, must_exist=is_begin
                )
        await self.ledgers.open({ledger_id: "" for ledger_id, _ in picks}, must_exist=False)
        found = []
        for ledger_id, part in picks:
            reader = self.ledgers.get(ledger_id)
            if reader is not None:
                whole = self._extent(0, reader)
                end = whole.end_entry if part.end_entry is None else min(whole.end_entry, part.end_entry)
                length = round(whole.entry_bytes * max(0, end - part.first_entry))
                extent = replace(whole, first_entry=part.first_entry, end_entry=end, length=length)
                found.append(FollowedLedger(extent, reader.is_closed or end == part.end_entry, reader.times.created_ms))
        return found, finished

    async def _wanted(self, picks: list[Pick], *, by_time: bool) -> list[Pick]:
        """Return the ledgers with the custom metadata and, with `by_time`, in the time that the options name.

        The metadata decide, before a ledger is opened: others may have another password.
        """
        options = self._options
        by_time = by_time and (options.starting_timestamp is not None or options.ending_timestamp is not None)
        if not options.ledger_metadata and not by_time:
            return picks
        unwanted = set()
        async for ledger_id, stored in stored_ledgers(self._client, [ledger_id for ledger_id, _ in picks]):
            has = stored.metadata.custom_metadata
            has_all = all(has_metadata(has, key, value) for key, value in options.ledger_metadata.items())
            if not has_all or (by_time and not self._is_in_time(LedgerTimes.of(stored))):
                unwanted.add(ledger_id)
        return [(ledger_id, part) for ledger_id, part in picks if ledger_id not in unwanted]

    def _is_in_time(self, times: LedgerTimes) -> bool:
        since, until = self._options.starting_timestamp, self._options.ending_timestamp
        if since is not None and times.is_closed_before(self._absolute(since)):
            return False
        return until is None or times.created_ms < self._absolute(until)

    def _absolute(self, moment_ms: int) -> int:
        return moment_ms if moment_ms >= 0 else self._now_ms + moment_ms

    async def in_time(self, snapshot: LogSnapshot, extents: Sequence[ReadableSegment]) -> list[ReadableSegment]:
        """Return the ledgers in the time that the options name.

        Where a log has no times, a ledger has those of its creation and of the last change of its metadata: if it was
        open at such a time, its entries are on both sides of it, and all are taken.
        """
        if self._options.starting_timestamp is None and self._options.ending_timestamp is None:
            return list(extents)
        first = snapshot.head.times.first
        known = snapshot.end_ordinal if first is None else first.ordinal
        await self.ledgers.open({each.ledger_id: snapshot.name for each in extents if each.ordinal < known})
        found = [(extent, self.ledgers.get(extent.ledger_id)) for extent in extents]
        return [
            extent
            for extent, reader in found
            if extent.ordinal >= known or (reader is not None and self._is_in_time(reader.times))
        ]

    async def end_of_log(self, snapshot: LogSnapshot) -> Position:
        """Return the position after the last entry of a log that a reader may reach now, without fencing anything."""
        return await reading.latest(self._opener(snapshot), snapshot)

    def _opener(self, snapshot: LogSnapshot) -> reading.OpenListed:
        """Return a function that opens a ledger of a log."""

        async def open_listed(listed: LogSegment) -> LedgerReader | None:
            await self.ledgers.open({listed.ledger_id: snapshot.name})
            return self.ledgers.get(listed.ledger_id)

        return open_listed

    async def backlog(self, snapshot: LogSnapshot, begin: Position, end: Position) -> Backlog:
        """Return the entries and bytes from `begin` up to `end`; whole pages of the list are counted from a cache.

        Raises as `extents`.
        """
        entries = byte_count = 0
        parts, at = [], begin.ordinal
        async for first, stop, more_entries, more_bytes in snapshot.closed_runs(begin.ordinal + 1, end.ordinal):
            parts.append((at, first))
            entries, byte_count, at = entries + more_entries, byte_count + more_bytes, stop
        for first, stop in [*parts, (at, end.ordinal + 1)]:
            if first < stop:
                some = amount([each async for each in self.extents(snapshot, first, end, stop)], begin, end)
                entries, byte_count = entries + some.entries, byte_count + some.byte_count
        return Backlog(entries, byte_count)

    async def extents(
        self, snapshot: LogSnapshot, first_ordinal: int, end: Position, end_ordinal: int | None = None
    ) -> AsyncGenerator[ReadableSegment]:
        """Yield the entries before `end` of the ledgers from `first_ordinal` on, in order; up to `end_ordinal`.

        The result depends only on the log's content before `end`, which never changes: planning again gives the same.

        Raises:
            DataLoss: a ledger is gone, or ends before `end` (failOnDataLoss; otherwise the rest is yielded).
        """
        async for run in snapshot.runs(first_ordinal, end.ordinal + 1 if end_ordinal is None else end_ordinal):
            await self.ledgers.open({listed.ledger_id: snapshot.name for listed in run if listed.last_entry is None})
            for listed in run:
                extent = self._listed_extent(listed, snapshot.name)
                if extent is None:
                    continue
                if listed.ordinal == end.ordinal and extent.is_closed:
                    wanted = EntryRange(listed.ordinal, listed.ledger_id, 0, end.entry_id, 0, snapshot.name)
                    self._lost.stored_end(wanted, extent.end_entry - 1)
                if listed.ordinal == end.ordinal and (end.entry_id < extent.end_entry or not extent.is_closed):
                    count = max(0, end.entry_id - extent.first_entry)
                    extent = replace(extent, end_entry=end.entry_id, length=round(extent.entry_bytes * count))
                elif not extent.is_closed:
                    raise DataLoss(
                        f"ledger {listed.ledger_id} is open, but position {end} lies beyond it in log {snapshot.name}: "
                        "the position belongs to another log, or was changed by hand",
                        ledger_id=listed.ledger_id,
                    )
                yield extent

    def _listed_extent(self, listed: LogSegment, log: str) -> ReadableSegment | None:
        if listed.last_entry is not None and listed.length is not None:
            end_entry = listed.last_entry + 1
            return ReadableSegment(
                listed.ordinal, listed.ledger_id, end_entry, listed.length, True, log, listed.first_entry
            )
        reader = self.ledgers.get(listed.ledger_id)
        return None if reader is None else self._extent(listed.ordinal, reader, log)

    def _extent(self, ordinal: int, reader: LedgerReader, log: str = "") -> ReadableSegment:
        last = reader.last_unconfirmed if self._options.unconfirmed else reader.last_entry
        return ReadableSegment(ordinal, reader.ledger_id, last + 1, reader.length, reader.is_closed, log)

    async def start(self, snapshot: LogSnapshot, readable: Position) -> Position:
        """Return the start of reading a log by `startingOffsets` or `startingTimestamp`, not after `readable`.

        Raises:
            ConfigurationError, DataLoss: the position is not one of the log, or the entries after it are gone.
        """
        wanted = self._options.offset_of(snapshot.name, "startingOffsets")
        if self._options.starting_timestamp is not None:
            since = self._absolute(self._options.starting_timestamp)
            found = min(readable, await reading.since(self._opener(snapshot), snapshot, since))
            if self._is_stream and found == readable:
                check_has_begun(snapshot.name, since, self._now_ms)
            return found
        if isinstance(wanted, int):
            return await reading.before(self._opener(snapshot), snapshot, readable, -wanted)
        if isinstance(wanted, dict):
            position = position_of(wanted, "option 'startingOffsets'")
            first = await self.first_position(snapshot, position, "option 'startingOffsets'", "use earliest")
            if first == position:
                await self._check_reached("startingOffsets", snapshot, position, readable)
            else:
                self._lost.warn_of_start(snapshot.name, position, first)
            return first
        return readable if wanted == LATEST else snapshot.start

    async def end(self, snapshot: LogSnapshot, readable: Position) -> Position:
        """Return the end of reading a log by `endingOffsets` or `endingTimestamp`.

        Raises:
            ConfigurationError: it is not a position of the log, is after the readable entries, or before
                `startingOffsets`.
            DataLoss: the entries before it are gone (failOnDataLoss).
        """
        wanted = self._options.offset_of(snapshot.name, "endingOffsets")
        if self._options.ending_timestamp is not None:
            until = self._absolute(self._options.ending_timestamp)
            return await reading.until(self._opener(snapshot), snapshot, until, readable, self._now_ms)
        if isinstance(wanted, int):
            return await reading.before(self._opener(snapshot), snapshot, readable, -wanted)
        if not isinstance(wanted, dict):
            return snapshot.start if wanted == EARLIEST else readable
        end = position_of(wanted, "option 'endingOffsets'")
        await self._check_reached("endingOffsets", snapshot, end, readable)
        # If the position is in another log, or before the remaining entries, wrong entries would be read, or none.
        await self.first_position(snapshot, end, "option 'endingOffsets'", "use latest")
        start = self._options.offset_of(snapshot.name, "startingOffsets")
        if isinstance(start, dict) and position_of(start, "option 'startingOffsets'") > end:
            raise ConfigurationError(
                f"option 'startingOffsets' of log {snapshot.name} is a position after that of 'endingOffsets', so "
                "nothing would be read: exchange them"
            )
        return end

    def check_lost_times(self) -> None:
        """Report logs that have lost all entries from before `endingTimestamp`. Raises DataLoss as `check_times`."""
        until = self._options.ending_timestamp
        if until is not None:
            for snapshot in self.looked_at:
                check_times(self._options, snapshot, self._absolute(until))

    async def _check_reached(self, option: str, snapshot: LogSnapshot, position: Position, readable: Position) -> None:
        """Raise ConfigurationError if a position is after the readable entries, or after the end of its ledger."""
        if position > readable:
            raise ConfigurationError(
                f"option '{option}' is {position}, but log {snapshot.name} can be read up to {readable} only: "
                "use latest"
            )
        if position.ordinal == readable.ordinal:
            return
        async with aclosing(self.extents(snapshot, position.ordinal, readable)) as extents:
            async for extent in extents:
                if extent.ordinal == position.ordinal and position.entry_id > extent.end_entry:
                    raise ConfigurationError(
                        f"option '{option}' is {position}, but ledger {extent.ledger_id} of log {snapshot.name} ends "
                        f"at entry {extent.end_entry - 1}: take a position from column 'position', or latest"
                    )
                return

    async def first_position(self, snapshot: LogSnapshot, position: Position, source: str, instead: str) -> Position:
        """Return where reading from `position` begins: there, or with failOnDataLoss=false at the first remaining
        entry.

        Args:
            source, instead: the origin of the position, and what to do if no entry is left there, for messages.

        Raises:
            DataLoss: the entries after the position are gone.
            ConfigurationError: the position belongs to another log.
        """
        try:
            await snapshot.locate(position)
        except DataLoss as error:
            if self._options.fail_on_data_loss:
                raise DataLoss(f"{source}: {error}: {instead}, or allow the loss (failOnDataLoss=false)") from None
            return snapshot.start
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {error}") from None
        return position

    async def contradiction(self, snapshot: LogSnapshot, position: Position) -> str | None:
        """Return what happened to a log that had a position once and has no such position now; None if it has it, or
        begins after it.

        Bookies that are asked now may know less of an open ledger than others did, which contradicts nothing.
        """
        if position.ledger_id == NO_LEDGER:
            return RESTORED if position.ordinal > snapshot.end_ordinal else None
        if position.ordinal >= snapshot.end_ordinal:
            return RESTORED
        if position < snapshot.start or position.ordinal < snapshot.first_ordinal:
            return None
        listed = await snapshot.ledger(position.ordinal)
        if listed.ledger_id != position.ledger_id or 0 < position.entry_id < listed.first_entry:
            return RESTORED
        last_entry = listed.last_entry
        if last_entry is None:
            await self.ledgers.open({listed.ledger_id: snapshot.name}, must_exist=False)
            reader = self.ledgers.get(listed.ledger_id)
            if reader is None or not reader.is_closed:
                return None
            last_entry = reader.last_entry
        if position.entry_id <= last_entry + 1:
            return None
        return f"cut short: its ledger {listed.ledger_id} ends at entry {last_entry}"

    # ---- partitions ----

    async def partitions(
        self, ranges: Sequence[EntryRange], *, leaves_out: frozenset[str] = frozenset()
    ) -> list[ReadPartition]:
        """Return partitions that cover the ranges once, in order.

        Args:
            leaves_out: as of a ReadPartition.

        Raises:
            DataLoss: a ledger is gone, or ends before the range does (failOnDataLoss; otherwise what there is of the
                range is read, and the rest is a warning).
            DecryptionFailed: a ledger is encrypted, and its key is missing or wrong.
            ConfigurationError: the tasks would be too many.
        """
        options = self._options
        groups = tasks(
            ranges,
            options.partition_bytes_max,
            options.partitions_min,
            options.partition_entries_max,
            slots=os.cpu_count() or 1,
        )
        has_times = options.reads_logs and options.include_metadata
        if (options.reads_logs or options.reads_topics) and not has_times and len(ranges) > OPENED_LEDGERS_MAX:
            password = options.ledger_password
            return [
                ReadPartition((), {}, password, leaves_out=leaves_out, unopened=PackedRanges.of(group))
                for group in groups
            ]
        await self.ledgers.open({each.ledger_id: each.log for each in ranges})
        addresses = await self.ledgers.addresses()
        times = await self._times(ranges)
        return [self._partition(group, addresses, times, leaves_out=leaves_out) for group in groups]

    async def _times(self, ranges: Sequence[EntryRange]) -> dict[str, Timeline]:
        """Return, by log, when the entries of the ranges entered it, if a column says so."""
        if not self._options.include_metadata:
            return {}
        found = {}
        for name, snapshot in self._snapshots.items():
            of_log = [entries for entries in ranges if entries.log == name]
            if of_log:
                first, last = of_log[0], of_log[-1]
                end = (last.ordinal, last.end_entry)
                found[name] = await snapshot.times((first.ordinal, first.first_entry), end)
        return found

    async def one_partition(
        self, ranges: Sequence[EntryRange], *, leaves_out: frozenset[str] = frozenset(), must_exist: bool = True
    ) -> ReadPartition:
        """Return one partition of all the ranges, in order; without what is gone, unless it `must_exist`. Raises as
        `partitions`."""
        await self.ledgers.open({each.ledger_id: each.log for each in ranges}, must_exist=must_exist)
        if not must_exist:
            found = [(each, self.ledgers.get(each.ledger_id)) for each in ranges]
            ranges = [
                replace(each, end_entry=min(each.end_entry, reader.last_entry + 1)) if reader.is_closed else each
                for each, reader in found
                if reader is not None
            ]
        return self._partition(ranges, await self.ledgers.addresses(), {}, leaves_out=leaves_out)

    def _partition(
        self,
        group: Iterable[EntryRange],
        addresses: Mapping[str, tuple[str, int]],
        times: Mapping[str, Timeline],
        *,
        leaves_out: frozenset[str] = frozenset(),
    ) -> ReadPartition:
        reads = []
        for entries in group:
            reader = self.ledgers.get(entries.ledger_id)
            if reader is None:
                self._lost.warn_of_gone(entries)
                continue
            end_entry = self._lost.stored_end(entries, reader.last_entry) if reader.is_closed else entries.end_entry
            if entries.first_entry < end_entry:
                reader.opener.check()  # fail on the driver, not in each task
                custom = reader.metadata.custom_metadata
                if not self._options.include_metadata:
                    custom = opening_metadata(custom)
                metadata = replace(reader.metadata, custom_metadata=custom, password=None)
                reads.append(
                    LedgerRead(
                        entries.ordinal,
                        entries.ledger_id,
                        entries.first_entry,
                        end_entry,
                        metadata,
                        reader.times.created_ms,
                        entries.log,
                        _times_of(entries, times),
                    )
                )
        bookies = {bookie for read in reads for fragment in read.metadata.fragments for bookie in fragment.bookies}
        known = {bookie: addresses[bookie] for bookie in sorted(bookies) if bookie in addresses}
        net = NetOptions() if self._options.client is None else self._options.client.net
        return ReadPartition(
            tuple(reads),
            known,
            self._options.ledger_password,
            leaves_out=leaves_out,
            net=net,
            encryption_key_file=self._options.encryption_key_file,
        )


def _times_of(entries: EntryRange, times: Mapping[str, Timeline]) -> EntryTimes:
    of_log = times.get(entries.log)
    return () if of_log is None else of_log.of_entries(entries.ordinal, entries.first_entry, entries.end_entry)
