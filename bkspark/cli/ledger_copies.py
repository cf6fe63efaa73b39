"""`bkspark ledger locate` and `ledger read --bookie`: the copies of a ledger, bookie by bookie."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bkspark.cli.arguments import ledger_password
from bkspark.cli.connecting import connect
from bkspark.cli.output import print_json, print_table
from bkspark.errors import BookKeeperError, ConfigurationError

if TYPE_CHECKING:
    import numpy as np

    from bkspark.core.metadata import Fragment, LedgerMetadata
    from bkspark.entries import EntryBatch
    from bkspark.ledger import Cluster
    from bkspark.ledger.context import ClientContext
    from bkspark.ledger.replica_copies import ReplicaReader

WINDOW_ENTRIES = 1 << 18
MISSING_NAMED_MAX = 10
INCOMPLETE = 1
"""The exit code of `locate` if a copy is missing."""


def locate(arguments: argparse.Namespace) -> int:
    """Read every copy of each fragment, and print which exist. Return 1 if one is missing or damaged."""
    from bkspark.blocking import run

    with connect(arguments) as client:
        found = run(lambda: located(client.asynchronous, arguments.ledger, ledger_password(arguments)))
    is_complete = all(each["problem"] is None and not each["missing"] for each in found)
    if arguments.json:
        print_json({"ledger": arguments.ledger, "complete": is_complete, "copies": found})
    else:
        rows = [
            (
                each["first_entry"],
                each["last_entry"],
                each["bookie"],
                each["state"],
                each["expected"],
                each["missing"],
                each["problem"] or (f"entries {_some(each['missing_entries'])}" if each["missing"] else None),
            )
            for each in found
        ]
        print_table(["first", "last", "bookie", "state", "entries", "missing", "what"], rows)
    return 0 if is_complete else INCOMPLETE


def _some(entries: list[int]) -> str:
    return ", ".join(map(str, entries)) + (", ..." if len(entries) == MISSING_NAMED_MAX else "")


async def located(client: Cluster, ledger_id: int, password: bytes) -> list[dict[str, Any]]:
    """Return a record for each copy of each fragment."""
    import asyncio

    context = await client.context()
    stored = await context.ledgers.read(ledger_id)
    states = await context.registry.states()
    metadata = stored.metadata
    own = password if metadata.password is None else metadata.password
    fragments, unknown = await _settled(context, ledger_id, metadata, own)
    copies = [
        _Copy(context, ledger_id, metadata, own, fragment, end_entry, slot)
        for fragment, end_entry in fragments
        for slot in range(len(fragment.bookies))
    ]
    records = list(await asyncio.gather(*(copy.record(states.get(copy.bookie)) for copy in copies)))
    last = metadata.last_fragment
    for slot, bookie in enumerate(last.bookies if unknown is not None else ()):
        copy = _Copy(context, ledger_id, metadata, own, last, last.first_entry, slot)
        records.append({**await copy.record(states.get(bookie)), "problem": str(unknown)})
    return records


async def _settled(
    context: ClientContext, ledger_id: int, metadata: LedgerMetadata, password: bytes
) -> tuple[list[tuple[Fragment, int]], BookKeeperError | None]:
    """Return fragments with the entry after the last that is known to be confirmed, and why nothing is known of the
    last fragment, which is then left out."""
    from bkspark.core.copies import settled_fragments
    from bkspark.ledger.reader import last_entries
    from bkspark.wire.digest import EntryDigest

    found = list(settled_fragments(metadata))
    if not metadata.is_closed:
        digest = EntryDigest(metadata.digest, password, metadata.lac_bounds)
        try:
            confirmed = (await last_entries(context.pool, ledger_id, metadata, digest)).lac + 1
        except BookKeeperError as error:
            return found, error
        found.append((metadata.last_fragment, max(confirmed, metadata.last_fragment.first_entry)))
    return found, None


@dataclass(frozen=True, slots=True)
class _Copy:
    """The copy of a fragment that one slot must have. `end_entry`: the entry after its last one."""

    context: ClientContext
    ledger_id: int
    metadata: LedgerMetadata
    password: bytes = field(repr=False)
    """For a ledger whose metadata contain no password."""
    fragment: Fragment
    end_entry: int
    slot: int

    @property
    def bookie(self) -> str:
        return self.fragment.bookies[self.slot]

    async def record(self, state: str | None) -> dict[str, Any]:
        """Return the record that the command prints; `state`: that of the bookie."""
        from bkspark.core.holes import holes
        from bkspark.wire.entry_lists import EntryRuns

        quorum = self.metadata.write_quorum
        expected, _ = holes(EntryRuns.none(), self.fragment, self.end_entry, self.slot, quorum)
        missing = 0
        named: list[int] = []
        problem = None
        try:
            async for ids, count in self.missing():
                missing += count
                named += ids[: MISSING_NAMED_MAX - len(named)].tolist()
        except BookKeeperError as error:
            problem = str(error)
        return {
            "first_entry": self.fragment.first_entry,
            "last_entry": self.end_entry - 1,
            "bookie": self.bookie,
            "state": state or "unknown",
            "expected": expected,
            "missing": missing,
            "missing_entries": named,
            "problem": problem,
        }

    async def missing(self) -> AsyncIterator[tuple[np.ndarray, int]]:
        """Yield (ids of missing or damaged entries, their number), ascending; of many, only the first ids."""
        position = self.fragment.first_entry
        async for first, end, _, lost in self.windows():
            if position < first:
                yield self._all_between(position, first)
            yield lost, len(lost)
            position = end
        if position < self.end_entry:
            yield self._all_between(position, self.end_entry)

    def _all_between(self, first: int, end: int) -> tuple[np.ndarray, int]:
        """Return (the first ids, the number) of the entries in [first, end) that the slot must have."""
        from bkspark.core.copies import stored_entries
        from bkspark.core.holes import holes
        from bkspark.wire.entry_lists import EntryRuns

        gap, quorum = replace(self.fragment, first_entry=first), self.metadata.write_quorum
        near = min(end, first + MISSING_NAMED_MAX * len(gap.bookies))
        count, _ = holes(EntryRuns.none(), gap, end, self.slot, quorum)
        return stored_entries(gap, near, self.slot, quorum)[:MISSING_NAMED_MAX], count

    async def windows(self) -> AsyncIterator[tuple[int, int, np.ndarray, np.ndarray]]:
        """Yield (first, end, entries in [first, end) that the slot must have, those that are missing or damaged there),
        ascending. Where the bookie lists no entries of a large fragment, there is no window, and all are missing."""
        from bkspark.core.copies import stored_entries
        from bkspark.ledger.replica_copies import ReplicaReader

        reader = ReplicaReader(self.context, self.ledger_id, self.metadata, self.password)
        for begin, stop in await self._held_parts(reader):
            for first in range(begin, stop, WINDOW_ENTRIES):
                window, end = replace(self.fragment, first_entry=first), min(first + WINDOW_ENTRIES, stop)
                ids = stored_entries(window, end, self.slot, self.metadata.write_quorum)
                yield first, end, ids, await reader.missing(self.bookie, ids)

    async def _held_parts(self, reader: ReplicaReader) -> list[tuple[int, int]]:
        """Return the ranges [first, end) of the fragment in which the bookie may have entries."""
        from bkspark.core.holes import held_parts

        first_entry, end_entry = self.fragment.first_entry, self.end_entry
        is_large = end_entry - first_entry > WINDOW_ENTRIES
        listed = await reader.listed(self.bookie) if is_large else None
        if listed is None:
            return [(first_entry, end_entry)]
        return held_parts([listed], first_entry, end_entry, WINDOW_ENTRIES)


async def copies_at(
    client: Cluster, ledger_id: int, bookie: str, first: int, last: int | None, password: bytes
) -> AsyncIterator[EntryBatch]:
    """Yield the entries of a ledger that one bookie has, digests checked, from its copy alone.

    Raises:
        ConfigurationError: the ledger does not name the bookie.
        BookKeeperError: the bookie cannot be reached, or it is not known where the open ledger ends.
    """
    from bkspark.core.last_confirmed import LastEntries
    from bkspark.core.metadata import Fragment
    from bkspark.ledger.reader import LedgerReader, LedgerTimes

    context = await client.context()
    stored = await context.ledgers.read(ledger_id)
    metadata = stored.metadata
    own = password if metadata.password is None else metadata.password
    if not any(bookie in fragment.bookies for fragment in metadata.fragments):
        raise ConfigurationError(
            f"ledger {ledger_id} has no entry at bookie {bookie}; `ledger locate` shows its copies"
        )
    alone = replace(
        metadata,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, (bookie,)),),
    )
    times, encryption = LedgerTimes.of(stored), client.encryption
    fragments, unknown = await _settled(context, ledger_id, metadata, own)
    confirmed = max((end_entry for _, end_entry in fragments), default=0) - 1
    reader = LedgerReader(context, ledger_id, alone, own, LastEntries(confirmed, confirmed), times, encryption)
    for fragment, end_entry in fragments:
        if bookie not in fragment.bookies:
            continue
        copy = _Copy(context, ledger_id, metadata, own, fragment, end_entry, fragment.bookies.index(bookie))
        async for _, _, ids, lost in copy.windows():
            held = [id for id in ids.tolist() if id >= first and (last is None or id <= last)]
            gone = set(lost.tolist())
            for begin, end in _runs([id for id in held if id not in gone]):
                async for batch in reader.batches(begin, end):
                    yield batch
    if unknown is not None and bookie in metadata.last_fragment.bookies:
        raise unknown


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Return runs of ascending ids, each as (first, the one after the last)."""
    runs: list[tuple[int, int]] = []
    for each in ids:
        if runs and runs[-1][1] == each:
            runs[-1] = (runs[-1][0], each + 1)
        else:
            runs.append((each, each + 1))
    return runs
