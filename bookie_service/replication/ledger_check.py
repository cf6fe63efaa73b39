"""LedgerCheck: finds bookies that lack copies which they must have. It never fences.

An open last fragment is read only up to the last confirmed entry. From every bookie the check reads the first and the
last entry of a fragment that it must have, and a random share of the others; with share 1 it reads all of them. With a
smaller share it also requests the bookie's list of the ledger's entries, because a writer that continued without the
bookie for a while leaves a hole in the middle.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.core.copies import settled_fragments, stored_entries
from bkspark.core.holes import holes
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataError, MetadataFormat, NoSuchLedger, ReadFailed
from bkspark.ledger.context import ClientContext
from bkspark.ledger.reader import last_entries
from bkspark.ledger.stored import ReplicaReader
from bkspark.wire.digest import EntryDigest
from bkspark.wire.entry_lists import EntryRuns
from bookie_service.replication.containment import UnexpectedErrors
from bookie_service.replication.repair import WINDOW_ENTRIES, entry_windows

LEDGERS_AT_ONCE = 16
OPEN_LOOKS = 4
OPEN_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Lack:
    """Copies that a bookie must have of the fragment at `first_entry`, and does not return."""

    first_entry: int
    bookie: str
    copies: int
    first_missing: int


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


class LedgerCheck:
    """Checks ledgers, one or all.

    Args:
        share: share of the entries that are read, 0 to 1.
        blames_silent: an unreachable bookie counts as lacking all its copies. An auditor leaves such a bookie to the
            detection of lost bookies, which gives it time to come back.
    """

    def __init__(
        self,
        context: ClientContext,
        share: float,
        *,
        blames_silent: bool,
        password: bytes = b"",
        unexpected: UnexpectedErrors,
    ) -> None:
        self._context = context
        self._share = share
        self._blames_silent = blames_silent
        self._password = password
        self._unexpected = unexpected
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
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
                    await asyncio.sleep(OPEN_PAUSE_S)
                current = (await self._context.ledgers.read(ledger_id)).metadata
                if current.is_closed and current == metadata:
                    break
                metadata, found = current, await self._check(ledger_id, current)
        except NoSuchLedger:
            return None
        except MetadataFormat as error:
            return LedgerFindings(ledger_id, (), 0, error)
        except MetadataError:
            raise
        except Exception as error:
            if not isinstance(error, BookKeeperError):
                error = self._unexpected.failure(error, f"the check of ledger {ledger_id}", ledger_id)
            return LedgerFindings(ledger_id, (), 0, error)
        return found

    async def _check(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerFindings:
        password = self._password if metadata.password is None else metadata.password
        held_entries = ReplicaReader(self._context, ledger_id, metadata, password)
        settled = settled_fragments(metadata)
        lists = await self._lists(held_entries, [fragment for fragment, _ in settled])
        fragments = [(*each, lists) for each in settled]
        if not metadata.is_closed:
            # A growing fragment is not compared with a list, because an entry is confirmed before its last bookie has
            # it.
            end_entry = await self._confirmed_end(ledger_id, metadata, password)
            fragments.append((metadata.last_fragment, max(end_entry, metadata.last_fragment.first_entry), {}))
        lacks: list[Lack] = []
        entries = 0
        for fragment, end_entry, listed in fragments:
            found, gone = await self._check_fragment(held_entries, metadata, fragment, end_entry, listed)
            lacks += found
            entries += gone
        return LedgerFindings(ledger_id, tuple(lacks), entries)

    async def _lists(self, held_entries: ReplicaReader, fragments: Sequence[Fragment]) -> dict[str, EntryRuns]:
        """Return the lists of the bookies that send one; empty if everything is read anyway."""
        if self._share >= 1:
            return {}
        bookies = sorted({bookie for fragment in fragments for bookie in fragment.bookies})
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
        self,
        held_entries: ReplicaReader,
        metadata: LedgerMetadata,
        fragment: Fragment,
        end_entry: int,
        lists: Mapping[str, EntryRuns],
    ) -> tuple[list[Lack], int]:
        """Return the missing copies of each bookie, and how many entries have no copy at all."""
        quorum = metadata.write_quorum
        ends = [_outermost(fragment, end_entry, slot, quorum) for slot in range(len(fragment.bookies))]
        first_missing: dict[str, int] = {}
        copies: Counter[str] = Counter()
        entries = 0
        for slot, bookie in enumerate(fragment.bookies):
            if bookie in lists:
                copies[bookie], first = holes(lists[bookie], fragment, end_entry, slot, quorum)
                if first is not None:
                    first_missing[bookie] = first
        for part, part_end in self._parts(fragment, end_entry):
            wanted = [self._chosen(stored_entries(part, part_end, slot, quorum), ids) for slot, ids in enumerate(ends)]
            held = await asyncio.gather(
                *(self._holes(held_entries, bookie, ids) for bookie, ids in zip(part.bookies, wanted))
            )
            for bookie, unread in zip(part.bookies, held):
                # Entries missing in the list are counted above. An entry in the list that cannot be read is damaged.
                lost = [entry for entry in unread.tolist() if bookie not in lists or entry in lists[bookie]]
                if lost:
                    first_missing[bookie] = min(first_missing.get(bookie, lost[0]), lost[0])
                    copies[bookie] += len(lost)
            entries += _without_copy(wanted, held)
        lacks = [
            Lack(fragment.first_entry, bookie, copies[bookie], first_missing[bookie])
            for bookie in fragment.bookies
            if bookie in first_missing
        ]
        return lacks, entries

    def _parts(self, fragment: Fragment, end_entry: int) -> Iterator[tuple[Fragment, int]]:
        """Yield the parts of a fragment with entries to read."""
        if self._share > 0 or end_entry - fragment.first_entry <= WINDOW_ENTRIES:
            yield from entry_windows(fragment, end_entry)
            return
        size = len(fragment.bookies)
        yield fragment, fragment.first_entry + size
        yield Fragment(end_entry - size, fragment.bookies), end_entry

    async def _holes(self, held_entries: ReplicaReader, bookie: str, entry_ids: np.ndarray) -> np.ndarray:
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
