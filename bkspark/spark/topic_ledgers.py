"""The ledgers of a topic on the driver: those of its list, and the entries of each that can be read.

A list may have ten thousand ledgers, all but the last of which never change. A stream therefore decodes a list again
only after it has changed, and a trigger looks only at the ledgers between its positions.
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from bkspark.log.positions import Position
from bkspark.pulsar.metadata import ListedLedger, ManagedLedger
from bkspark.pulsar.names import TopicName
from bkspark.pulsar.topic import KnownSchemas, PulsarStore
from bkspark.spark.ranges import Backlog, ReadableSegment, amount

_log = logging.getLogger(__name__)


class Extents(Sequence[ReadableSegment]):
    """The readable ledgers of a topic by ascending id, with sums of their entries and bytes."""

    def __init__(self, segments: Iterable[ReadableSegment] = ()) -> None:
        self._segments = list(segments)
        self._ids = [each.ledger_id for each in self._segments]
        self._entries = [0, *itertools.accumulate(each.end_entry for each in self._segments)]
        """Item i: the entries of the first i ledgers."""
        self._bytes = [0, *itertools.accumulate(each.length for each in self._segments)]
        """Item i: the bytes of the first i ledgers."""

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> ReadableSegment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReadableSegment]: ...
    def __getitem__(self, index: int | slice) -> ReadableSegment | Sequence[ReadableSegment]:
        return self._segments[index]

    def __iter__(self) -> Iterator[ReadableSegment]:
        return iter(self._segments)

    def with_open(self, segments: Sequence[ReadableSegment]) -> Extents:
        """Return these ledgers and some more, in order of their ids."""
        if self._ids and segments and segments[0].ledger_id < self._ids[-1]:
            return Extents(sorted([*self._segments, *segments], key=lambda each: each.ledger_id))
        more = Extents(segments)
        found = Extents()
        found._segments = self._segments + more._segments
        found._ids = self._ids + more._ids
        found._entries = self._entries + [self._entries[-1] + each for each in more._entries[1:]]
        found._bytes = self._bytes + [self._bytes[-1] + each for each in more._bytes[1:]]
        return found

    def with_end(self, ledger_id: int, end_entry: int) -> Extents:
        """Return these ledgers, one of them with another end."""
        return Extents(
            replace(each, end_entry=end_entry, length=round(each.entry_bytes * end_entry))
            if each.ledger_id == ledger_id
            else each
            for each in self._segments
        )

    def of_ledger(self, ledger_id: int) -> ReadableSegment | None:
        """Return a ledger; None if it is not one of these."""
        found = self.first_from(ledger_id)
        return found if found is not None and found.ledger_id == ledger_id else None

    def first_from(self, ledger_id: int) -> ReadableSegment | None:
        """Return the first ledger of this id or a greater one; None if there is none."""
        at = bisect_left(self._ids, ledger_id)
        return self._segments[at] if at < len(self._segments) else None

    def back_from(self, ledger_id: int) -> Iterator[ReadableSegment]:
        """Yield the ledgers up to this id, the last first."""
        for at in range(bisect_right(self._ids, ledger_id) - 1, -1, -1):
            yield self._segments[at]

    def between(self, start: Position, end: Position) -> list[ReadableSegment]:
        """Return the ledgers between two positions, those of the positions included."""
        return self._segments[bisect_left(self._ids, start.ordinal) : bisect_right(self._ids, end.ordinal)]

    def amount(self, start: Position, end: Position) -> Backlog:
        """Return the amount from `start` up to `end`."""
        first, stop = bisect_left(self._ids, start.ordinal), bisect_right(self._ids, end.ordinal)
        if stop - first <= 2:
            return amount(self._segments[first:stop], start, end)
        outer = amount([self._segments[first], self._segments[stop - 1]], start, end)
        entries = self._entries[stop - 1] - self._entries[first + 1]
        byte_count = self._bytes[stop - 1] - self._bytes[first + 1]
        return Backlog(outer.entries + entries, outer.byte_count + byte_count)


@dataclass(frozen=True)
class TopicList:
    """What the list of a topic says. `closed`: the ledgers whose extent is in it. `others`: ledgers that must be opened
    to know theirs. `own_ends`: those that were opened because the list may have an earlier end, and their ends; only
    grows."""

    managed: ManagedLedger
    by_id: Mapping[int, ListedLedger]
    """All ledgers of `managed`, by id."""
    closed: Extents
    others: tuple[ListedLedger, ...]
    own_ends: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, topic: TopicName, managed: ManagedLedger) -> TopicList:
        """Sort the ledgers of a list by whether it says how many entries and bytes they have."""
        closed, others, name = [], [], str(topic)
        for listed in managed.ledgers:
            # The last ledger may have got entries since it was listed as empty.
            is_open = not listed.entries and listed is managed.ledgers[-1]
            if listed.entries is None or listed.size is None or is_open:
                others.append(listed)
            else:
                closed.append(
                    ReadableSegment(listed.ledger_id, listed.ledger_id, listed.entries, listed.size, True, name)
                )
        by_id = {listed.ledger_id: listed for listed in managed.ledgers}
        return cls(managed, by_id, Extents(closed), tuple(others))


class TopicLists:
    """Reads the lists of topics, and keeps those that it read last: an unchanged one is not decoded again.

    `schemas`: the schemas of topics that were read.
    """

    def __init__(self) -> None:
        self.schemas: KnownSchemas = {}
        self._lists: dict[str, tuple[bytes, TopicList]] = {}
        """By topic, the contents of the node and what they say."""
        self._gone: set[int] = set()
        """Listed ledgers that do not exist, and for which a warning was logged."""

    async def read(self, store: PulsarStore, topic: TopicName) -> TopicList:
        """Return the list of a topic or partition as it is now. Raises MetadataFormat as `PulsarStore.ledgers`."""
        data = await store.stored_list(topic)
        known = self._lists.get(str(topic))
        if known is None or known[0] != data:
            known = self._lists[str(topic)] = data, TopicList.of(topic, store.decoded_list(topic, data))
        return known[1]

    def warn_of_gone(self, ledger_id: int, topic: TopicName) -> None:
        """Log a warning, once, that an open ledger of a topic's list does not exist."""
        if ledger_id not in self._gone:
            self._gone.add(ledger_id)
            _log.warning("ledger %d of topic %s does not exist any more: what it had is left out", ledger_id, topic)

    def keep(self, topics: Collection[str]) -> None:
        """Forget the lists of all other topics."""
        self._lists = {name: self._lists[name] for name in topics}
