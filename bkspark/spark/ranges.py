"""Which entries to read: bounds, limits, splitting and packing. PURE.

Places in a log are positions in their normal form (`bkspark.log.positions`): the end of a ledger is never written as
the beginning of the next. A list of ledgers without a log is treated as a log whose ordinals count from 0.

A reader may move from one ledger to the next only when the first is closed: an open one can still grow, and later
entries would never be read.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bkspark.errors import ConfigurationError
from bkspark.log.positions import Position

LEDGER_OPEN_BYTES = 64 * 1024
"""The cost of opening a ledger, in bytes read, when work is divided."""

PARTITION_LEDGERS_MAX = 1000
"""Approximate limit of the ledgers in one task: each costs some round trips, however small it is."""

PARTITION_BYTES_MIN = 16 << 20
"""Below this a task costs more to start than to run, so idle slots alone are not a reason to split further."""

TASKS_MAX = 1_000_000
"""Spark's driver holds every task, and metadata may claim more entries and bytes than any ledger has."""


@dataclass(frozen=True, slots=True)
class ReadableSegment:
    """One ledger, or a slice of it, in one snapshot: entries [first_entry, end_entry) are readable, with `length`
    payload bytes in total.

    `log` is the name of its log, empty for ledgers chosen by id.
    """

    ordinal: int
    ledger_id: int
    end_entry: int
    length: int
    is_closed: bool
    """Whether the ledger gets no more entries."""
    log: str = ""
    first_entry: int = 0

    @property
    def entry_bytes(self) -> float:
        """Payload bytes of an entry, on average."""
        count = self.end_entry - self.first_entry
        return self.length / count if count > 0 else 0.0

    def first_after(self, start: Position) -> int:
        """Return the first entry that a reader from `start` on reads here; `start` is not after this ledger."""
        return max(self.first_entry, start.entry_id if self.ordinal == start.ordinal else 0)


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries [first_entry, end_entry) of one ledger, about `size` payload bytes."""

    ordinal: int
    ledger_id: int
    first_entry: int
    end_entry: int
    size: int
    log: str = ""
    """As in `ReadableSegment`."""

    def __len__(self) -> int:
        return self.end_entry - self.first_entry


@dataclass(frozen=True)
class PackedRanges:
    """Ranges as columns, for plans of many ledgers: 32 B each, where a range as an object takes some 200.

    `logs`: names of logs, each with the number of its ranges, in their order.
    """

    columns: npt.NDArray[np.int64]
    logs: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, ranges: Sequence[EntryRange]) -> PackedRanges:
        rows = [(each.ordinal, each.ledger_id, each.first_entry, each.end_entry, each.size) for each in ranges]
        logs = tuple((log, len(list(some))) for log, some in itertools.groupby(ranges, lambda each: each.log))
        return cls(np.array(rows, np.int64), logs)

    def unpacked(self) -> list[EntryRange]:
        names = itertools.chain.from_iterable(itertools.repeat(log, count) for log, count in self.logs)
        return [
            EntryRange(ordinal, ledger_id, first, end, size, log)
            for (ordinal, ledger_id, first, end, size), log in zip(self.columns.tolist(), names)
        ]


def advance(
    extents: Iterable[ReadableSegment],
    start: Position,
    entries_max: int | None = None,
    bytes_max: int | None = None,
) -> Position:
    """Return the position where a reader that begins at `start` must stop.

    Args:
        extents: ledgers in log order; those before `start` are skipped; the iterator is not advanced beyond the last
            one needed.
        entries_max: stop after this many entries.
        bytes_max: stop before more bytes, estimated by the ledger's average, but never before the first entry.

    Returns:
        `start` itself when there is nothing to read; otherwise a later position, in normal form.
    """
    end = start
    entries_left = math.inf if entries_max is None else entries_max
    bytes_left = math.inf if bytes_max is None else float(bytes_max)
    for extent in extents:
        if extent.ordinal < start.ordinal:
            continue
        first = extent.first_after(start)
        available = max(0, extent.end_entry - first)
        fits = bytes_left / extent.entry_bytes if extent.entry_bytes else math.inf
        take = int(min(available, entries_left, max(fits, 1 if end == start else 0)))
        if take:
            end = Position(extent.ordinal, extent.ledger_id, first + take)
        entries_left -= take
        bytes_left -= take * extent.entry_bytes
        if take < available or not extent.is_closed or entries_left <= 0:
            break
    return end


def between(extents: Iterable[ReadableSegment], start: Position, end: Position) -> list[EntryRange]:
    """Return the entries from `start` up to `end`, one range for each ledger, in order; [] if `end` is not later."""
    ranges = []
    for extent in extents:
        first = extent.first_after(start)
        last = extent.end_entry
        if extent.ordinal == end.ordinal:
            last = min(last, end.entry_id)
        if start.ordinal <= extent.ordinal <= end.ordinal and first < last:
            is_whole = first == extent.first_entry and last == extent.end_entry
            size = extent.length if is_whole else math.ceil((last - first) * extent.entry_bytes)
            ranges.append(EntryRange(extent.ordinal, extent.ledger_id, first, last, size, extent.log))
    return ranges


@dataclass(frozen=True, slots=True)
class Backlog:
    """A number of entries, and their approximate payload bytes."""

    entries: int
    byte_count: int
    """About how many bytes of payload they have."""


def amount(extents: Iterable[ReadableSegment], start: Position, end: Position) -> Backlog:
    """Return the amount from `start` up to `end`."""
    entries = byte_count = 0
    for found in between(extents, start, end):
        entries += len(found)
        byte_count += found.size
    return Backlog(entries, byte_count)


def fair_share(wanted: Sequence[int], total: int, turn: int = 0) -> list[int]:
    """Divide `total` among requests: equal shares, but no share above its request.

    A remainder that is too small for all requests goes to different ones in each turn, so that each of them is served.
    """
    given = [0] * len(wanted)
    left = total
    open_ones = [index for index, want in enumerate(wanted) if want]
    while open_ones and left >= len(open_ones):
        each = min(left // len(open_ones), min(wanted[index] - given[index] for index in open_ones))
        for index in open_ones:
            given[index] += each
        left -= each * len(open_ones)
        open_ones = [index for index in open_ones if given[index] < wanted[index]]
    for step in range(min(left, len(open_ones))):
        given[open_ones[(turn * left + step) % len(open_ones)]] += 1
    return given


def trigger_shares(
    amounts: Sequence[Backlog], entries_max: int | None, bytes_max: int | None, turn: int = 0
) -> list[tuple[int | None, int | None]]:
    """Divide the limits of a micro-batch among what is followed, fairly: entries and bytes for each; None: no limit.

    Something is always served: a limit of bytes goes to those that have a share of the entries.
    """
    unlimited: list[int | None] = [None] * len(amounts)
    entries = unlimited
    if entries_max is not None:
        entries = [*fair_share([each.entries for each in amounts], entries_max, turn)]
    if bytes_max is None:
        return list(zip(entries, unlimited))
    # Entries may have no bytes, and need a share nevertheless.
    sizes = [max(each.byte_count, min(each.entries, 1)) for each in amounts]
    served = [0 if share == 0 else size for share, size in zip(entries, sizes)]
    return list(zip(entries, fair_share(served, bytes_max, turn)))


def partition_count(
    ranges: Sequence[EntryRange], partition_bytes_max: int, partitions_min: int | None, slots: int
) -> int:
    """Return the number of tasks among which to divide `ranges`.

    Args:
        partition_bytes_max: approximate limit of a task's payload bytes.
        partitions_min: the user's setting; None: as many tasks for each slot, of at least PARTITION_BYTES_MIN.
        slots: tasks that can run concurrently, if known.
    """
    size = sum(entries.size for entries in ranges)
    by_size = math.ceil(size / partition_bytes_max)
    if partitions_min is None and by_size > slots:
        # Otherwise the last tasks would leave slots idle: five tasks on two slots take as long as six.
        by_size = math.ceil(by_size / slots) * slots
    by_ledgers = math.ceil(len(ranges) / PARTITION_LEDGERS_MAX)
    least = min(slots, size // PARTITION_BYTES_MIN) if partitions_min is None else partitions_min
    return min(max(by_size, by_ledgers, least, 1), sum(len(entries) for entries in ranges))


def tasks(
    ranges: Sequence[EntryRange],
    partition_bytes_max: int,
    partitions_min: int | None,
    entries_max: int | None,
    slots: int,
) -> list[tuple[EntryRange, ...]]:
    """Return `ranges`, in order, divided among tasks.

    Args:
        entries_max: of a task; None: any number.
        partition_bytes_max, partitions_min, slots: as of `partition_count`.

    Raises:
        ConfigurationError: there would be too many tasks.
    """
    count = partition_count(ranges, partition_bytes_max, partitions_min, slots)
    _check_tasks(count, ranges)
    groups = share(ranges, count)
    if partitions_min is not None:
        groups = at_least(groups, partitions_min)
    if entries_max is not None:
        _check_tasks(sum(math.ceil(sum(map(len, group)) / entries_max) for group in groups), ranges)
        groups = split(groups, entries_max)
    return groups


def _check_tasks(count: int, ranges: Sequence[EntryRange]) -> None:
    if count <= TASKS_MAX:
        return
    largest = max(ranges, key=lambda entries: (entries.size, len(entries)))
    raise ConfigurationError(
        f"the read would have {count} tasks, and {TASKS_MAX} are the most: read fewer entries (ledger"
        f" {largest.ledger_id} has {len(largest)} of them, {largest.size} bytes), raise maxPartitionBytes or"
        " maxEntriesPerPartition, or lower minPartitions"
    )


def share(ranges: Sequence[EntryRange], count: int) -> list[tuple[EntryRange, ...]]:
    """Return `ranges`, in order, cut and packed into at most `count` non-empty groups of about equal weight."""
    total = sum(_weight(entries) for entries in ranges)
    groups: list[tuple[EntryRange, ...]] = []
    group: list[EntryRange] = []
    filled, number = 0.0, 1
    for entries in ranges:
        first, entry_weight = entries.first_entry, _weight(entries) / len(entries)
        while first < entries.end_entry:
            rest = entries.end_entry - first
            room = max(0, round((total * number / count - filled) / entry_weight))
            is_full = number < count and room <= rest
            take = room if is_full else rest
            if take:
                group.append(_part(entries, first, first + take))
                filled += take * entry_weight
                first += take
            if is_full:
                number += 1
                if group:
                    groups.append(tuple(group))
                    group = []
    return [*groups, tuple(group)] if group else groups


def _weight(entries: EntryRange) -> int:
    return entries.size + LEDGER_OPEN_BYTES


def _part(entries: EntryRange, first: int, end: int) -> EntryRange:
    if first == entries.first_entry and end == entries.end_entry:
        return entries
    size = math.ceil(entries.size * (end - first) / len(entries))
    return EntryRange(entries.ordinal, entries.ledger_id, first, end, size, entries.log)


def split(groups: Iterable[tuple[EntryRange, ...]], entries_max: int) -> list[tuple[EntryRange, ...]]:
    """Return the groups in order, each of more than `entries_max` entries cut into several."""
    found: list[tuple[EntryRange, ...]] = []
    for group in groups:
        part: list[EntryRange] = []
        room = entries_max
        for entries in group:
            first = entries.first_entry
            while first < entries.end_entry:
                end = min(entries.end_entry, first + room)
                part.append(_part(entries, first, end))
                room -= end - first
                first = end
                if not room:
                    found.append(tuple(part))
                    part, room = [], entries_max
        if part:
            found.append(tuple(part))
    return found


def at_least(groups: Sequence[tuple[EntryRange, ...]], count: int) -> list[tuple[EntryRange, ...]]:
    """Return the groups in order, the heaviest cut further until there are `count` or all have one entry.

    If an entry is larger than its share, there are fewer groups than `share` requested.
    """
    parts = [1] * len(groups)
    entries = [sum(map(len, group)) for group in groups]
    weights = [sum(map(_weight, group)) for group in groups]
    heaviest: list[tuple[float, int]] = [(-weight, place) for place, weight in enumerate(weights) if entries[place] > 1]
    heapq.heapify(heaviest)
    for _ in range(len(groups), count):
        if not heaviest:
            break
        _, place = heapq.heappop(heaviest)
        parts[place] += 1
        if parts[place] < entries[place]:
            heapq.heappush(heaviest, (-weights[place] / parts[place], place))
    return [
        tuple(cut(group, held * part // wanted, held * (part + 1) // wanted))
        for group, held, wanted in zip(groups, entries, parts)
        for part in range(wanted)
    ]


def cut(ranges: Sequence[EntryRange], start: int, end: int) -> list[EntryRange]:
    """Return entries number [start, end) of all, counted through the ranges from 0."""
    found = []
    at = 0
    for entries in ranges:
        first = max(0, start - at)
        last = min(len(entries), end - at)
        if first < last:
            found.append(_part(entries, entries.first_entry + first, entries.first_entry + last))
        at += len(entries)
    return found
