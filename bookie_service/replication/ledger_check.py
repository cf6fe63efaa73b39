"""LedgerCheck: which bookies lack copies of what they must have. It never fences, and reads no open last fragment
behind the last confirmed entry.

A fragment's first and last entry are read from every bookie that must have them, and of the others a random share;
with share 1 everything is read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np

from bkspark.client.reader import last_entries
from bkspark.client.stored import HeldEntries
from bkspark.client.writer import Services
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataFormat, NoSuchLedger, ReadFailed
from bkspark.wire.digest import EntryDigest
from bookie_service.replication.repair import settled_fragments, stored_entries

LEDGERS_AT_ONCE = 16
OPEN_LOOKS = 4
OPEN_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Lack:
    """Copies of a fragment, the one that begins at `first_entry`, that a bookie must have and does not give."""

    first_entry: int
    bookie: str
    copies: int
    first_missing: int


@dataclass(frozen=True, slots=True)
class LedgerFindings:
    """What one ledger lacks, and how many entries no bookie gives (of those looked at).

    `error`: its metadata cannot be decoded, and nothing is known of it.
    """

    ledger_id: int
    lacks: tuple[Lack, ...]
    entries: int
    error: MetadataFormat | None = None

    @property
    def bookies(self) -> tuple[str, ...]:
        return tuple(sorted({lack.bookie for lack in self.lacks}))

    @property
    def copies(self) -> int:
        return sum(lack.copies for lack in self.lacks)


class LedgerCheck:
    """Checks ledgers, one or all.

    Args:
        share: of the entries that are read, 0 to 1.
        blames_silent: whether a bookie that cannot be asked lacks all its copies. An auditor leaves such a one to the
            detection of lost bookies, which gives it time to come back.
    """

    def __init__(self, services: Services, share: float, *, blames_silent: bool, password: bytes = b"") -> None:
        self._services = services
        self._share = share
        self._blames_silent = blames_silent
        self._password = password
        self.ledgers = 0

    async def findings(self) -> AsyncIterator[LedgerFindings]:
        """Yield what was found of every ledger, complete or not; a few are checked at a time.

        Raises:
            MetadataError: the listing could not be finished.
        """
        tasks: set[asyncio.Task[LedgerFindings | None]] = set()
        ids = self._services.ledgers.ids()
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
        """Return what one ledger lacks; None when it does not exist (any more).

        What a bookie was found to lack counts only while metadata still name it for that fragment, as a repair may be
        under way; and of an open last fragment only when it is so for OPEN_LOOKS looks: an entry is confirmed before
        its last bookie has it.
        """
        try:
            metadata = (await self._services.ledgers.read(ledger_id)).metadata
            found = await self._check(ledger_id, metadata)
            for _ in range(OPEN_LOOKS - 1):
                if not found.bookies:
                    break
                if not metadata.is_closed:
                    await asyncio.sleep(OPEN_PAUSE_S)
                current = (await self._services.ledgers.read(ledger_id)).metadata
                if current.is_closed and current == metadata:
                    break
                metadata, found = current, await self._check(ledger_id, current)
        except NoSuchLedger:
            return None
        except MetadataFormat as error:
            return LedgerFindings(ledger_id, (), 0, error)
        return found

    async def _check(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerFindings:
        password = self._password if metadata.password is None else metadata.password
        held_entries = HeldEntries(self._services, ledger_id, metadata, password)
        fragments = settled_fragments(metadata)
        if not metadata.is_closed:
            end_entry = await self._confirmed_end(ledger_id, metadata, password)
            fragments.append((metadata.last_fragment, max(end_entry, metadata.last_fragment.first_entry)))
        lacks: list[Lack] = []
        entries = 0
        for fragment, end_entry in fragments:
            found, gone = await self._check_fragment(held_entries, metadata, fragment, end_entry)
            lacks += found
            entries += gone
        return LedgerFindings(ledger_id, tuple(lacks), entries)

    async def _confirmed_end(self, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> int:
        """Return the id behind the last confirmed entry of an open ledger; 0 where the bookies do not tell."""
        try:
            digest = EntryDigest(metadata.digest, password)
            return (await last_entries(self._services.pool, ledger_id, metadata, digest)).lac + 1
        except ReadFailed:
            return 0

    async def _check_fragment(
        self, held_entries: HeldEntries, metadata: LedgerMetadata, fragment: Fragment, end_entry: int
    ) -> tuple[list[Lack], int]:
        """Return who lacks what, and how many entries have no copy at all."""
        wanted = [
            self._chosen(stored_entries(fragment, end_entry, slot, metadata.write_quorum))
            for slot in range(len(fragment.bookies))
        ]
        held = await asyncio.gather(
            *(self._holes(held_entries, bookie, ids) for bookie, ids in zip(fragment.bookies, wanted))
        )
        lacks = [
            Lack(fragment.first_entry, bookie, len(holes), int(holes[0]))
            for bookie, holes in zip(fragment.bookies, held)
            if len(holes)
        ]
        missing = np.concatenate(held)
        if not len(missing):
            return lacks, 0
        ids, asked = np.unique(np.concatenate(wanted), return_counts=True)
        failed = np.isin(ids, missing)
        counts = np.zeros(len(ids), np.int64)
        np.add.at(counts, np.searchsorted(ids, missing), 1)
        return lacks, int((failed & (counts == asked)).sum())

    async def _holes(self, held_entries: HeldEntries, bookie: str, entry_ids: np.ndarray) -> np.ndarray:
        if not len(entry_ids):
            return entry_ids
        try:
            return await held_entries.missing(bookie, entry_ids)
        except BookKeeperError:
            return entry_ids if self._blames_silent else entry_ids[:0]

    def _chosen(self, entry_ids: np.ndarray) -> np.ndarray:
        """Return the first and last of the ids, and a random share of the others."""
        inner = len(entry_ids) - 2
        if self._share >= 1 or inner <= 0:
            return entry_ids
        count = math.ceil(inner * self._share)
        chosen = self._services.random.sample(range(1, len(entry_ids) - 1), count)
        return entry_ids[[0, *sorted(chosen), len(entry_ids) - 1]]
