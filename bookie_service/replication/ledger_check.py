"""LedgerCheck: finds bookies that lack copies which they must have. It never fences.

An open last fragment is read only up to the last confirmed entry. From every bookie the check reads the first and the
last entry of a fragment that it must have, and a random share of the others; with share 1 it reads all of them. With a
smaller share it also requests the bookie's list of the ledger's entries, because a writer that continued without the
bookie for a while leaves a hole in the middle.

A ledger may be closed far above its last entry, because clients of other programs use whatever LAC an entry carries.
Where no bookie of a large fragment lists an entry, nothing is read, and all entries count as missing.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.core.copies import settled_fragments, stored_entries
from bkspark.core.holes import held_parts, holes
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError, NoSuchLedger, ReadFailed
from bkspark.ledger.context import ClientContext
from bkspark.ledger.reader import last_entries
from bkspark.ledger.replica_copies import ReplicaReader
from bkspark.tasks import end_all
from bkspark.wire.digest import EntryDigest
from bkspark.wire.entry_lists import EntryRuns
from bookie_service.replication.repair import WINDOW_ENTRIES, entry_windows
from bookie_service.replication.unexpected_errors import UnexpectedErrors

LEDGERS_AT_ONCE = 16
LISTED_ENTRIES_MIN = 1 << 20
"""From this many ids on, lists are requested to find the parts of a fragment that have entries, and the smallest gap
between such parts."""
OPEN_LOOKS = 4
OPEN_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Lack:
    """Copies that a bookie must have of the fragment at `first_entry`, and does not return."""

    first_entry: int
    bookie: str
    copies: int
    first_missing: int
    """The first entry whose copy is missing."""


@dataclass(frozen=True, slots=True)
class LedgerFindings:
    """What one ledger lacks, and how many of the checked entries no bookie returns.

    `error`: nothing is known of the ledger: its metadata cannot be decoded, or the check had an unexpected error.
    """

    ledger_id: int
    lacks: tuple[Lack, ...]
    entries: int
    error: BookKeeperError | None = None

    @property
    def bookies(self) -> tuple[str, ...]:
        return tuple(sorted({lack.bookie for lack in self.lacks}))

    @property
    def copies(self) -> int:
        return sum(lack.copies for lack in self.lacks)


@dataclass(frozen=True, slots=True)
class _ToCheck:
    """A fragment below `end_entry`. `is_growing`: it is the last one of an open ledger."""

    fragment: Fragment
    end_entry: int
    write_quorum: int
    is_growing: bool = False

    @property
    def is_large(self) -> bool:
        """Whether it is worth finding out which parts of it have entries."""
        return self.end_entry - self.fragment.first_entry >= LISTED_ENTRIES_MIN


class _MissingCopies:
    """Copies that the bookies of a fragment lack."""

    def __init__(self) -> None:
        self._copies: Counter[str] = Counter()
        """How many copies each bookie lacks."""
        self._first: dict[str, int] = {}
        """The first entry that each of these bookies lacks."""

    def add(self, bookie: str, count: int, first: int | None) -> None:
        """Count missing copies of entries that were not counted before; `first` is the first of them, or None."""
        if first is not None:
            self._copies[bookie] += count
            self._first[bookie] = min(self._first.get(bookie, first), first)

    def lacks(self, fragment: Fragment) -> list[Lack]:
        return [
            Lack(fragment.first_entry, bookie, self._copies[bookie], self._first[bookie])
            for bookie in fragment.bookies
            if bookie in self._first
        ]


class LedgerCheck:
    """Checks ledgers, one or all.

    Args:
        share: share of the entries that are read, 0 to 1.
        blames_silent: an unreachable bookie counts as lacking all its copies. An auditor leaves such a bookie to the
            detection of lost bookies, which gives it time to come back.
        open_pause_s: pause before an open ledger that seems to lack copies is checked again.
    """

    def __init__(
        self,
        context: ClientContext,
        share: float,
        *,
        blames_silent: bool,
        password: bytes = b"",
        unexpected: UnexpectedErrors,
        open_pause_s: float = OPEN_PAUSE_S,
    ) -> None:
        self._context = context
        self._share = share
        self._blames_silent = blames_silent
        self._password = password
        """For ledgers whose metadata contain no password."""
        self._unexpected = unexpected
        self._open_pause_s = open_pause_s
        self.ledgers = 0
        """How many ledgers were checked. Only grows."""

    async def findings(self) -> AsyncIterator[LedgerFindings]:
        """Yield the result for every ledger, complete or not. A few ledgers are checked at a time.

        Raises:
            MetadataError: the listing could not be finished.
        """
        tasks: set[asyncio.Task[LedgerFindings | None]] = set()
        ids = self._context.ledgers.ids()
        try:
            exhausted = False
            while tasks or not exhausted:
                while not exhausted and len(tasks) < LEDGERS_AT_ONCE:
                    ledger_id = await anext(ids, None)
                    exhausted = ledger_id is None
                    if ledger_id is not None:
                        tasks.add(asyncio.ensure_future(self.check(ledger_id)))
                if not tasks:
                    return
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    found = task.result()
                    if found is not None:
                        self.ledgers += 1
                        yield found
        finally:
            await end_all(tasks)

    async def check(self, ledger_id: int) -> LedgerFindings | None:
        """Return what one ledger lacks; None: it does not exist, or no longer.

        A missing copy counts only while the metadata still name the bookie for the fragment, because a repair may be
        under way. In an open last fragment it counts only if it is missing in OPEN_LOOKS checks, because an entry is
        confirmed before its last bookie has it.
        """
        try:
            metadata = (await self._context.ledgers.read(ledger_id)).metadata
            found = await self._check(ledger_id, metadata)
            for _ in range(OPEN_LOOKS - 1):
                if not found.bookies:
                    break
                if not metadata.is_closed:
                    await asyncio.sleep(self._open_pause_s)
                current = (await self._context.ledgers.read(ledger_id)).metadata
                if current.is_closed and current == metadata:
                    break
                metadata, found = current, await self._check(ledger_id, current)
        except NoSuchLedger:
            return None
        except Exception as error:
            failure = self._unexpected.of_ledger(error, f"the check of ledger {ledger_id}", ledger_id)
            return LedgerFindings(ledger_id, (), 0, failure)
        return found

    async def _check(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerFindings:
        """Return what a ledger with these metadata lacks."""
        password = self._password if metadata.password is None else metadata.password
        held_entries = ReplicaReader(self._context, ledger_id, metadata, password)
        todo = [_ToCheck(*settled, metadata.write_quorum) for settled in settled_fragments(metadata)]
        if not metadata.is_closed:
            end_entry = await self._confirmed_end(ledger_id, metadata, password)
            last = metadata.last_fragment
            end_entry = max(end_entry, last.first_entry)
            todo.append(_ToCheck(last, end_entry, metadata.write_quorum, is_growing=True))
        lists = await self._lists(held_entries, todo)
        lacks: list[Lack] = []
        entries = 0
        for each in todo:
            found, gone = await self._check_fragment(held_entries, each, lists)
            lacks += found
            entries += gone
        return LedgerFindings(ledger_id, tuple(lacks), entries)

    def _is_compared(self, todo: _ToCheck) -> bool:
        """Return whether lists decide which entries are missing. A growing fragment is not compared, because an entry
        is confirmed before its last bookie has it; and if everything is read, the reads decide."""
        return self._share < 1 and not todo.is_growing

    async def _lists(self, held_entries: ReplicaReader, todo: Sequence[_ToCheck]) -> dict[str, EntryRuns]:
        """Return the lists that are needed, of the bookies that send one."""
        needed = [each.fragment for each in todo if self._is_compared(each) or each.is_large]
        bookies = sorted({bookie for fragment in needed for bookie in fragment.bookies})
        lists = await asyncio.gather(*map(held_entries.listed, bookies))
        return {bookie: runs for bookie, runs in zip(bookies, lists) if runs is not None}

    async def _confirmed_end(self, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> int:
        """Return the id after the last confirmed entry of an open ledger; 0: the bookies do not report it."""
        try:
            digest = EntryDigest(metadata.digest, password, metadata.lac_bounds)
            return (await last_entries(self._context.pool, ledger_id, metadata, digest)).lac + 1
        except ReadFailed:
            return 0

    async def _check_fragment(
        self, held_entries: ReplicaReader, todo: _ToCheck, lists: Mapping[str, EntryRuns]
    ) -> tuple[list[Lack], int]:
        """Return the missing copies of each bookie, and how many entries have no copy at all."""
        fragment, end_entry, quorum = todo.fragment, todo.end_entry, todo.write_quorum
        compared = lists if self._is_compared(todo) else {}
        missing = _MissingCopies()
        for slot, bookie in enumerate(fragment.bookies):
            if bookie in compared:
                missing.add(bookie, *holes(compared[bookie], fragment, end_entry, slot, quorum))
        held = self._held_parts(todo, lists)
        entries = 0
        for first, end in _gaps(held, fragment.first_entry, end_entry):
            entries += end - first
            for slot, bookie in enumerate(fragment.bookies):
                if bookie not in compared:
                    gap = Fragment(first, fragment.bookies)
                    missing.add(bookie, *holes(EntryRuns.none(), gap, end, slot, quorum))
        ends = [_outermost(fragment, end_entry, slot, quorum) for slot in range(len(fragment.bookies))]
        parts = (part for first, end in held for part in self._parts(Fragment(first, fragment.bookies), end))
        for part, part_end in parts:
            wanted = [self._chosen(stored_entries(part, part_end, slot, quorum), ids) for slot, ids in enumerate(ends)]
            unread = await asyncio.gather(
                *(self._unread(held_entries, bookie, ids) for bookie, ids in zip(part.bookies, wanted))
            )
            for bookie, ids in zip(part.bookies, unread):
                # Entries missing in the list are counted above. An entry in the list that cannot be read is damaged.
                lost = [entry for entry in ids.tolist() if bookie not in compared or entry in compared[bookie]]
                missing.add(bookie, len(lost), min(lost, default=None))
            entries += _without_copy(wanted, unread)
        return missing.lacks(fragment), entries

    def _held_parts(self, todo: _ToCheck, lists: Mapping[str, EntryRuns]) -> list[tuple[int, int]]:
        """Return the parts [first, end) of a fragment of which a bookie may have entries."""
        bookies, first_entry = todo.fragment.bookies, todo.fragment.first_entry
        if self._share <= 0 or not todo.is_large or not all(bookie in lists for bookie in bookies):
            return [(first_entry, todo.end_entry)]
        return held_parts([lists[bookie] for bookie in bookies], first_entry, todo.end_entry, LISTED_ENTRIES_MIN)

    def _parts(self, fragment: Fragment, end_entry: int) -> Iterator[tuple[Fragment, int]]:
        """Yield the parts of a fragment with entries to read."""
        if self._share > 0 or end_entry - fragment.first_entry <= WINDOW_ENTRIES:
            yield from entry_windows(fragment, end_entry)
            return
        size = len(fragment.bookies)
        yield fragment, fragment.first_entry + size
        yield Fragment(end_entry - size, fragment.bookies), end_entry

    async def _unread(self, held_entries: ReplicaReader, bookie: str, entry_ids: np.ndarray) -> np.ndarray:
        """Return those of the entries that a bookie does not return."""
        if not len(entry_ids):
            return entry_ids
        try:
            return await held_entries.missing(bookie, entry_ids)
        except BookKeeperError:
            return entry_ids if self._blames_silent else entry_ids[:0]

    def _chosen(self, entry_ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the ids at both ends of a part, and a random share of the ids in between."""
        if self._share >= 1:
            return entry_ids
        is_chosen = np.isin(entry_ids, ends)
        inner = np.flatnonzero(~is_chosen)
        count = math.ceil(len(inner) * self._share)
        is_chosen[inner[self._context.random.sample(range(len(inner)), count)]] = True
        return entry_ids[is_chosen]


def _gaps(parts: Sequence[tuple[int, int]], first_entry: int, end_entry: int) -> Iterator[tuple[int, int]]:
    """Yield what is left of [first_entry, end_entry) without these ascending parts."""
    for first, end in (*parts, (end_entry, end_entry)):
        if first_entry < first:
            yield first_entry, first
        first_entry = end


def _outermost(fragment: Fragment, end_entry: int, slot: int, write_quorum: int) -> np.ndarray:
    """Return the first and the last entry below `end_entry` that a slot stores."""
    size = len(fragment.bookies)
    front = stored_entries(fragment, min(fragment.first_entry + size, end_entry), slot, write_quorum)
    back = Fragment(max(fragment.first_entry, end_entry - size), fragment.bookies)
    return np.concatenate((front[:1], stored_entries(back, end_entry, slot, write_quorum)[-1:]))


def _without_copy(wanted: Sequence[np.ndarray], missing: Sequence[np.ndarray]) -> int:
    """Return how many entries are missing on every bookie that was checked."""
    holes = np.concatenate(missing)
    if not len(holes):
        return 0
    ids, asked = np.unique(np.concatenate(wanted), return_counts=True)
    gone, counts = np.unique(holes, return_counts=True)
    return int((counts == asked[np.searchsorted(ids, gone)]).sum())
