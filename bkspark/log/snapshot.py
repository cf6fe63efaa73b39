"""LogSnapshot: a log's list of ledgers at one moment; its pages are read on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from bkspark.errors import ConfigurationError, DataLoss, MetadataError, MetadataFormat, NoSuchNode
from bkspark.log.changes import first_to_read
from bkspark.log.formats import LogHead, PageRef, Publisher, SchemaRef, SegmentFacts
from bkspark.log.heads import LOST_RACES_MAX, HeadStore, StoredHead, lost_node
from bkspark.log.positions import NO_LEDGER, Position
from bkspark.log.schemas import StoredSchema
from bkspark.log.times import Place, TimeIndex, Timeline, TimePageRef, page_at, pages_of

RUN_LEDGERS_MAX = 256
"""Ledgers that `LogSnapshot.runs` yields together."""


@dataclass(frozen=True, slots=True)
class LogSegment:
    """A ledger, or a slice of one, and its place in the log.

    If `last_entry` and `length` are known, the log has exactly the entries from `first_entry` to `last_entry`; other
    entries of the ledger are not part of this snapshot of the log. Both are None if the list does not have them.
    """

    ordinal: int
    ledger_id: int
    last_entry: int | None
    length: int | None
    first_entry: int = 0


class LogSnapshot:
    """The ledgers [first_ordinal, end_ordinal) of a log; `version` increases with each change of the log.

    If the log is truncated, overwritten or deleted afterwards, pages of the snapshot are removed, too: reading them
    raises DataLoss or NoSuchLog.
    """

    def __init__(self, heads: HeadStore, name: str, stored: StoredHead) -> None:
        self._heads = heads
        self.name = name
        self.head: LogHead = stored.head
        self.version = stored.version + (stored.delta_version or 0)

    @classmethod
    def of_head(cls, heads: HeadStore, name: str, head: LogHead) -> LogSnapshot:
        """Return the list of a head that is being decided on; the snapshot's version has no meaning."""
        return cls(heads, name, StoredHead(head, 0))

    def __len__(self) -> int:
        return self.end_ordinal - self.first_ordinal

    def __repr__(self) -> str:
        return f"LogSnapshot({self.name}, ledgers [{self.first_ordinal}, {self.end_ordinal}), version {self.version})"

    @property
    def first_ordinal(self) -> int:
        return self.head.first_ordinal

    @property
    def end_ordinal(self) -> int:
        """The ordinal that the next ledger gets."""
        return self.head.end_ordinal

    @property
    def start(self) -> Position:
        """The earliest position, in normal form."""
        return self.head.start

    @property
    def open_ordinals(self) -> tuple[int, ...]:
        """The ordinals of ledgers that were not known to be closed; at most a few, ascending."""
        return self.head.open_ordinals

    @property
    def publishers(self) -> list[Publisher]:
        """The last version of each remembered name that published in the log, the latest last."""
        return [Publisher(*item) for item in self.head.last_epochs]

    @property
    def schemas(self) -> tuple[SchemaRef, ...]:
        """The schemas that the log records, by ascending first ordinal."""
        return self.head.schemas

    async def schema(self, ref: SchemaRef) -> StoredSchema:
        """Return one of `schemas`.

        Raises:
            DataLoss: the log was overwritten or truncated since, and its schemas were removed.
        """
        try:
            return await self._heads.schema(self.name, ref.name)
        except NoSuchNode:
            raise DataLoss(
                f"log {self.name} was overwritten, truncated or deleted while its schema was being read: read it again"
            ) from None

    async def first_at(self, ms: int) -> Place | None:
        """Return (ordinal, entry) of the first entry that entered the log at a time or later; None if all are earlier.

        `ms`: since 1970, above the first known time. Raises as `runs`.
        """
        return (await self._timeline(lambda index: page_at(index, ms))).first_at(ms)

    async def times(self, first: Place, end: Place) -> Timeline:
        """Return when the entries in [first, end) entered the log. Raises as `runs`."""
        return await self._timeline(lambda index: pages_of(index, first, end))

    async def _timeline(self, choose: Callable[[TimeIndex], tuple[TimePageRef, ...]]) -> Timeline:
        snapshot = self
        for _ in range(LOST_RACES_MAX):
            found = await snapshot._timeline_or_newer(choose(snapshot.head.times))
            if isinstance(found, Timeline):
                return found
            snapshot = found
        raise MetadataError(
            f"log {self.name}: others changed it {LOST_RACES_MAX} times while its times were being read: try again"
        )

    async def _timeline_or_newer(self, refs: tuple[TimePageRef, ...]) -> Timeline | LogSnapshot:
        """Return the marks of some pages, of the head and of open ledgers; a newer snapshot if a node of them is gone.

        A node that was removed by a process is not in a head that is read after the node was missed: no process removes
        one that the head names. If the head still names a page then, the page is lost; if a ledger is still open, it
        never had a node. Versions do not show this, because others may change the log and leave these nodes.
        """
        index = self.head.times
        marks = [*(ref.mark for ref in index.pages), *index.marks]
        unrecorded: list[Place] = []
        for ref in refs:
            try:
                marks += await self._heads.time_page(self.name, ref)
            except NoSuchNode as error:
                newer = await self._newer()
                if ref in newer.head.times.pages:
                    raise lost_node(f"log {self.name}", error, "although the log names it") from None
                return newer
        for ordinal in self.open_ordinals:
            noted = await self._heads.open_times(self.name, (await self.ledger(ordinal)).ledger_id, ordinal)
            if noted is not None:
                marks += noted.marks
                unrecorded.append((ordinal, noted.until))
            elif ordinal not in (newer := await self._newer()).open_ordinals:
                return newer
        return Timeline(marks, unrecorded)

    async def _newer(self) -> LogSnapshot:
        """Return the log's present list. Raises DataLoss if the log was created again."""
        newer = LogSnapshot(self._heads, self.name, await self._heads.read(self.name))
        if newer.head.log_id != self.head.log_id:
            raise self._changed_meanwhile()
        return newer

    async def runs(self, first_ordinal: int = 0, end_ordinal: int | None = None) -> AsyncIterator[list[LogSegment]]:
        """Yield the ledgers in [first_ordinal, end_ordinal) that are in the log, in order, a part of a page at a time.

        Raises:
            DataLoss: a page was removed before it was read, because the log was truncated or overwritten.
            MetadataFormat: a page is missing that the log names: no process has removed it.
            NoSuchLog: the log was deleted meanwhile.
        """
        head = self.head
        first = max(first_ordinal, head.first_ordinal)
        end = head.end_ordinal if end_ordinal is None else min(end_ordinal, head.end_ordinal)
        for index, ref in enumerate(head.pages):
            if ref.first_ordinal < end and head.page_end(index) > first:
                page_end = head.page_end(index)
                ledgers = await self._page(ref, page_end - ref.first_ordinal)
                # In pieces, so that a caller that needs few ledgers does not wait for a whole page.
                for some in range(max(first, ref.first_ordinal), min(end, page_end), RUN_LEDGERS_MAX):
                    yield _listed(ref.first_ordinal, ledgers, some, min(end, some + RUN_LEDGERS_MAX))
        if head.tail and head.tail_ordinal < end and head.end_ordinal > first:
            yield _listed(head.tail_ordinal, head.tail, first, end)

    async def ledgers(self, first_ordinal: int = 0, end_ordinal: int | None = None) -> list[LogSegment]:
        """Return the ledgers in [first_ordinal, end_ordinal) that are in the log, in order. Raises as `runs`."""
        return [ledger async for run in self.runs(first_ordinal, end_ordinal) for ledger in run]

    async def ledger(self, ordinal: int) -> LogSegment:
        """Return one ledger. Raises IndexError if the log has no ledger of that ordinal, and as `runs`."""
        found = await self.ledgers(ordinal, ordinal + 1) if ordinal >= 0 else []
        if not found:
            raise IndexError(f"log {self.name} holds ledgers [{self.first_ordinal}, {self.end_ordinal}), not {ordinal}")
        return found[0]

    async def locate(self, position: Position) -> tuple[int, int]:
        """Return (ordinal, entry) to read first for a position; the end ordinal and 0 if no ledger is left to read.

        Raises:
            DataLoss: the position is before the log's start, or after its end.
            ConfigurationError: it names another ledger than the log has at that ordinal.
        """
        ordinal, entry_id = first_to_read(self.head, self.name, position)
        if position.ledger_id != NO_LEDGER and self.first_ordinal <= position.ordinal < self.end_ordinal:
            found = await self.ledger(position.ordinal)
            if found.ledger_id != position.ledger_id:
                raise ConfigurationError(
                    f"log {self.name} has ledger {found.ledger_id} at ordinal {position.ordinal}; {position} belongs "
                    f"to another log, or the log was deleted and created again"
                )
        return ordinal, entry_id

    async def may_have_new_start(self) -> bool:
        """Return whether ledgers may have been removed from the beginning of the log since. Raises NoSuchLog."""
        try:
            return (await self._heads.read(self.name)).head.start != self.start
        except MetadataError:
            return True

    async def last_before(self, ordinal: int) -> AsyncIterator[LogSegment]:
        """Yield the ledgers before `ordinal`, backwards. Raises as `runs`."""
        head = self.head
        for at in range(head.end_ordinal - 1, head.tail_ordinal - 1, -1):
            if at < ordinal:
                yield _segment(at, head.tail[at - head.tail_ordinal])
        for index in range(len(head.pages) - 1, -1, -1):
            ref, end = head.pages[index], head.page_end(index)
            if ref.first_ordinal < ordinal:
                ledgers = await self._page(ref, end - ref.first_ordinal)
                for at in range(min(end, ordinal) - 1, max(ref.first_ordinal, head.first_ordinal) - 1, -1):
                    yield _segment(at, ledgers[at - ref.first_ordinal])

    async def closed_runs(self, first_ordinal: int, end_ordinal: int) -> AsyncIterator[tuple[int, int, int, int]]:
        """Yield (first ordinal, end ordinal, entries, bytes) for the part of [first_ordinal, end_ordinal) in each page.

        Pages with a ledger whose end is not known are left out. Raises as `runs`.
        """
        head = self.head
        for index, ref in enumerate(head.pages):
            first = max(first_ordinal, head.first_ordinal, ref.first_ordinal)
            page_end = head.page_end(index)
            end = min(end_ordinal, page_end)
            if first < end:
                amounts = self._heads.amounts(ref, await self._page(ref, page_end - ref.first_ordinal))
                if len(amounts):
                    entries, byte_count = amounts[end - ref.first_ordinal] - amounts[first - ref.first_ordinal]
                    yield first, end, int(entries), int(byte_count)

    async def _page(self, ref: PageRef, count: int) -> tuple[SegmentFacts, ...]:
        while True:
            try:
                ledgers = await self._heads.page(self.name, ref)
            except NoSuchNode as error:
                ref = await self._successor(ref, error)
                continue
            if len(ledgers) < count:
                raise MetadataFormat(f"page {ref.name} of log {self.name} holds {len(ledgers)} ledgers, not {count}")
            return ledgers[:count]

    async def _successor(self, ref: PageRef, missing: NoSuchNode) -> PageRef:
        """Return the page that replaced a missing page."""
        newer = (await self._newer()).head
        if ref in newer.pages:
            raise lost_node(f"log {self.name}", missing, "although the log names it") from None
        for candidate in newer.pages:
            if candidate.first_ordinal == ref.first_ordinal:
                return candidate
        raise self._changed_meanwhile()

    def _changed_meanwhile(self) -> DataLoss:
        return DataLoss(
            f"log {self.name} was truncated, overwritten or created again while its list of ledgers was being read: "
            f"read it again"
        )


def _listed(first_ordinal: int, ledgers: tuple[SegmentFacts, ...], first: int, end: int) -> list[LogSegment]:
    begin = max(first, first_ordinal)
    some = ledgers[begin - first_ordinal : max(0, end - first_ordinal)]
    return [_segment(ordinal, facts) for ordinal, facts in enumerate(some, begin)]


def _segment(ordinal: int, facts: SegmentFacts) -> LogSegment:
    return LogSegment(ordinal, facts.ledger_id, facts.last_entry, facts.length, facts.first_entry)
