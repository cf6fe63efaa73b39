"""Whether every bookie of a ledger has its copies, checked on request. It only reads: nothing is fenced or repaired.

Each bookie is asked for its list of the ledger's entries, which costs little even for a long ledger. If it sends no
list, or if the user wants it, its copies are read and their digests checked: the first READ_MAX entries of each
fragment and bookie. An open ledger is checked up to its last confirmed entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.core.holes import holes
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.striping import stripe
from bkspark.errors import BookKeeperError
from bkspark.ledger.reader import last_entries
from bkspark.ledger.replica_copies import ReplicaReader
from bkspark.wire.digest import EntryDigest
from bkspark.wire.entry_lists import EntryRuns
from bkspark_console.cluster_view import ClusterView

READ_MAX = 10_000
FRAGMENTS_MAX = 100
"""How many fragments are checked, the last ones."""
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class CopyFindings:
    """A bookie's copies of one fragment.

    how: list or read. wanted: how many of the checked entries it must have. missing: how many of these have no copy or
        a damaged one. first_missing: the first of them. problem: why nothing is known; "": it is known.
    """

    first_entry: int
    last_entry: int
    bookie: str
    how: str
    wanted: int
    missing: int
    first_missing: int | None
    problem: str = ""

    @property
    def state(self) -> str:
        """The state: whole, missing or unknown."""
        return "unknown" if self.problem else "missing" if self.missing else "whole"


@dataclass(frozen=True, slots=True)
class CheckedCopies:
    """The findings of a ledger. end_entry: entries below it were checked. skipped: how many fragments were not."""

    findings: Sequence[CopyFindings]
    end_entry: int
    skipped: int

    @property
    def is_whole(self) -> bool:
        return all(each.state == "whole" for each in self.findings)


async def check_copies(view: ClusterView, ledger_id: int, *, reads: bool, password: bytes) -> CheckedCopies:
    """Check a ledger's copies. `reads`: copies are read, too.

    Raises:
        NoSuchLedger, MetadataError: it does not exist, or its metadata cannot be read.
        ReadFailed: too few bookies of an open ledger answer to determine its end.
    """
    async with view.scans:
        return await _check(view, ledger_id, reads, password)


async def _check(view: ClusterView, ledger_id: int, reads: bool, password: bytes) -> CheckedCopies:
    context = await view.client.context()
    metadata = (await context.ledgers.read(ledger_id)).metadata
    if metadata.is_closed:
        end_entry = metadata.last_entry + 1
    else:
        digest = EntryDigest(metadata.digest, password, metadata.lac_bounds)
        end_entry = (await last_entries(context.pool, ledger_id, metadata, digest)).lac + 1
    check = _CopyCheck(ReplicaReader(context, ledger_id, metadata, password), metadata.write_quorum, reads)
    parts = fragment_ends(metadata, end_entry)[-FRAGMENTS_MAX:]
    bookies = sorted({bookie for fragment, _ in parts for bookie in fragment.bookies})
    lists = dict(zip(bookies, await asyncio.gather(*map(check.reader.listed, bookies))))
    limit = asyncio.Semaphore(AT_ONCE)

    async def look(fragment: Fragment, end: int, slot: int) -> CopyFindings:
        async with limit:
            return await check.look(fragment, end, slot, lists[fragment.bookies[slot]])

    findings = await asyncio.gather(
        *(look(fragment, end, slot) for fragment, end in parts for slot in range(len(fragment.bookies)))
    )
    return CheckedCopies(findings, end_entry, len(metadata.fragments) - len(parts))


def fragment_ends(metadata: LedgerMetadata, end_entry: int) -> list[tuple[Fragment, int]]:
    """Return the fragments, each with the entry id after its last entry, if the ledger ends before `end_entry`."""
    firsts = [fragment.first_entry for fragment in metadata.fragments]
    ends = [*firsts[1:], max(end_entry, firsts[-1])]
    return list(zip(metadata.fragments, ends))


@dataclass(frozen=True, slots=True)
class _CopyCheck:
    """Checks the copies of one ledger. reads: copies are read, even if their bookie lists its entries."""

    reader: ReplicaReader
    write_quorum: int
    reads: bool

    async def look(self, fragment: Fragment, end: int, slot: int, listed: EntryRuns | None) -> CopyFindings:
        """Return what the bookie of a slot has of a fragment's entries below `end`.

        `listed`: the entries that it says it has; None: it does not list them.
        """
        bookie, first = fragment.bookies[slot], fragment.first_entry
        whole = stripe(slot, len(fragment.bookies), self.write_quorum)
        wanted = whole.rank(end) - whole.rank(first)
        if not self.reads and listed is not None:
            missing, first_missing = holes(listed, fragment, end, slot, self.write_quorum)
            return CopyFindings(first, end - 1, bookie, "list", wanted, missing, first_missing)
        read_end = min(end, first + READ_MAX)
        _, offsets = whole.part(first, 0, read_end - first)
        try:
            lost = await self.reader.missing(bookie, first + offsets) if len(offsets) else np.empty(0, np.int64)
        except BookKeeperError as error:
            return CopyFindings(first, end - 1, bookie, "read", wanted, 0, None, str(error))
        first_lost = int(lost[0]) if len(lost) else None
        return CopyFindings(first, read_end - 1, bookie, "read", len(offsets), len(lost), first_lost)
