"""What operators ask for once: check everything, move a bookie's data away, retire a bookie."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from bkspark.errors import ConfigurationError, MetadataError, NoSuchLedger, NoSuchNode
from bkspark.ids import check_bookie_id
from bookie_service.replication.autorecovery import Cluster
from bookie_service.replication.ledger_check import LedgerCheck
from bookie_service.replication.options import AutoRecoveryOptions

Progress = Callable[[str], None]

POLL_S = 0.5
REPORT_LEDGERS = 1000
"""A line of progress every so many ledgers."""


def this_process() -> str:
    """Return what this process calls itself in locks and votes, where no bookie has an id for it."""
    return socket.gethostname()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a cluster lacks: `missing_copies` of entries, and `missing_entries` that no bookie gives at all."""

    ledgers: int
    underreplicated: int
    missing_entries: int
    missing_copies: int

    @property
    def ok(self) -> bool:
        return not self.underreplicated


async def check_cluster(cluster: Cluster, options: AutoRecoveryOptions, progress: Progress) -> CheckResult:
    """Read every entry from every bookie that must have it, and say what is missing. Nothing is fenced or repaired.

    Raises:
        MetadataError: the metadata store failed: nothing is known.
    """
    check = LedgerCheck(cluster.services, 1.0, blames_silent=True, password=options.repair.password)
    underreplicated = entries = copies = 0
    async for found in check.findings():
        if found.bookies:
            underreplicated += 1
            entries += found.entries
            copies += found.copies
            lost = f", {found.entries} entries have no copy at all" if found.entries else ""
            bookies = ", ".join(found.bookies)
            progress(f"ledger {found.ledger_id}: {found.copies} copies are missing at {bookies}{lost}")
        if check.ledgers % REPORT_LEDGERS == 0:
            progress(f"{check.ledgers} ledgers checked, {underreplicated} lack copies")
    return CheckResult(check.ledgers, underreplicated, entries, copies)


async def move_away(cluster: Cluster, bookie: str, options: AutoRecoveryOptions, progress: Progress) -> int:
    """Copy all that a bookie held to others, until no ledger names it; return how many ledgers did.

    Works beside any autorecovery: ledgers that others have locked are theirs. Open ledgers wait for the grace period.

    Raises:
        ConfigurationError: the bookie is unknown, or still serves.
        NotEnoughBookies, ReadFailed, ...: what stands in the way, once nothing else is left to do.
        MetadataError: the metadata store failed.
    """
    await _check_is_down(cluster, bookie)
    who = this_process()
    worker = cluster.worker(who, options)
    listed = await cluster.auditor(who, options).audit([bookie])
    progress(f"{listed} ledgers have data at {bookie}")
    left = await _naming(cluster, bookie)
    while left:
        done = await worker.repair_listed(left)
        still = {ledger_id for ledger_id in left if await _names(cluster, ledger_id, bookie)}
        if len(still) < len(left):
            progress(f"{listed - len(still)} of {listed} ledgers are moved")
        if still == left and not done:
            worker.raise_failure(still)
            await asyncio.sleep(POLL_S)
        left = still
    # Created meanwhile by a writer that did not know yet: looked for until there is none.
    return listed + (await move_away(cluster, bookie, options, progress) if await _naming(cluster, bookie) else 0)


async def decommission(cluster: Cluster, bookie: str, options: AutoRecoveryOptions, progress: Progress) -> int:
    """`move_away`, then forget the bookie: its cookie goes, so that its directories never serve again unseen."""
    moved = await move_away(cluster, bookie, options, progress)
    await _check_is_down(cluster, bookie)
    try:
        await cluster.services.registry.delete_cookie(bookie)
    except NoSuchNode:
        progress(f"the cookie of {bookie} was removed already")
    return moved


async def _check_is_down(cluster: Cluster, bookie: str) -> None:
    try:
        check_bookie_id(bookie)
    except ValueError as error:
        raise ConfigurationError(f"bookie {bookie!r}: {error}") from None
    registry = cluster.services.registry
    if bookie in await registry.writable() or bookie in await registry.read_only():
        raise MetadataError(f"bookie {bookie} is serving: stop it first, then run this again")
    known = await registry.known()
    if bookie not in known and not await _naming(cluster, bookie):
        raise MetadataError(f"there is no bookie {bookie}; known are {', '.join(sorted(known)) or 'none'}")


async def _naming(cluster: Cluster, bookie: str) -> set[int]:
    return {id async for id in cluster.services.ledgers.ids() if await _names(cluster, id, bookie)}


async def _names(cluster: Cluster, ledger_id: int, bookie: str) -> bool:
    try:
        metadata = (await cluster.services.ledgers.read(ledger_id)).metadata
    except NoSuchLedger:
        return False
    return any(bookie in fragment.bookies for fragment in metadata.fragments)
