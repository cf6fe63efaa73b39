"""Commands of operators that run once: check or repair ledgers, move a bookie's data away, retire a bookie."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from bkspark.core.copies import names
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataError, NoSuchLedger, NoSuchNode
from bkspark.ids import check_bookie_id
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.ledger_check import Lack, LedgerCheck, LedgerFindings
from bookie_service.replication.listing import read_all
from bookie_service.replication.options import AutoRecoveryOptions
from bookie_service.replication.worker import ReplicationWorker

Progress = Callable[[str], None]

POLL_S = 0.5
REPORT_S = 10.0
LEDGERS_AT_ONCE = 64
"""How many metadata nodes are read together."""

LACKING_REPORTED_MAX = 10_000
"""How many missing copies a check lists; more are only counted."""

REPORT_LEDGERS = 1000
"""How many ledgers a line of progress covers."""


def this_process() -> str:
    """Return the name of this process in locks and votes, for a process without a bookie id."""
    return socket.gethostname()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a cluster lacks: `missing_copies` of entries, and `missing_entries` that no bookie returns.

    `unreadable`: ledgers whose state is unknown, because their metadata cannot be decoded. `lacking`: the first
    LACKING_REPORTED_MAX pairs of a ledger and what a bookie lacks of a fragment.
    """

    ledgers: int
    underreplicated: int
    missing_entries: int
    missing_copies: int
    unreadable: int
    lacking: tuple[tuple[int, Lack], ...]

    @property
    def ok(self) -> bool:
        return not self.underreplicated and not self.unreadable


async def check_cluster(cluster: RepairedCluster, options: AutoRecoveryOptions, progress: Progress) -> CheckResult:
    """Read every entry from every bookie that must have it, and return what is missing. Nothing is fenced or repaired.

    Raises:
        MetadataError: the metadata store failed, and nothing is known.
    """
    check = LedgerCheck(
        cluster.context,
        1.0,
        blames_silent=True,
        password=options.repair.password,
        unexpected=cluster.unexpected,
    )
    underreplicated = entries = copies = unreadable = 0
    lacking: list[tuple[int, Lack]] = []
    async for found in check.findings():
        if found.error is not None:
            unreadable += 1
            progress(f"ledger {found.ledger_id}: {found.error}")
        if found.bookies:
            underreplicated += 1
            entries += found.entries
            copies += found.copies
            lacking += [(found.ledger_id, lack) for lack in found.lacks[: LACKING_REPORTED_MAX - len(lacking)]]
            lost = f", {found.entries} entries have no copy at all" if found.entries else ""
            bookies = ", ".join(found.bookies)
            progress(f"ledger {found.ledger_id}: {found.copies} copies are missing at {bookies}{lost}")
        if check.ledgers % REPORT_LEDGERS == 0:
            progress(f"{check.ledgers} ledgers checked, {underreplicated} lack copies")
    return CheckResult(check.ledgers, underreplicated, entries, copies, unreadable, tuple(lacking))


async def repair_ledger(cluster: RepairedCluster, ledger_id: int, options: AutoRecoveryOptions) -> LedgerFindings:
    """Read every copy of a ledger, and copy what is missing to where it belongs; return what was missing.

    It works while autorecovery is disabled, and together with it: another process may have the ledger's lock.

    Raises:
        NoSuchLedger: there is no such ledger.
        NotEnoughBookies, ReadFailed, ...: why it cannot be repaired.
        MetadataError: the metadata store failed.
    """
    password = options.repair.password
    check = LedgerCheck(cluster.context, 1.0, blames_silent=True, password=password, unexpected=cluster.unexpected)
    found = await check.check(ledger_id)
    if found is None:
        raise NoSuchLedger(f"ledger {ledger_id} does not exist", ledger_id=ledger_id)
    if found.error is not None:
        raise found.error
    if not found.bookies:
        return found
    await cluster.store.mark(ledger_id, found.bookies, time.time_ns() // 1_000_000)
    worker = cluster.worker(this_process(), options)
    while await cluster.store.find(ledger_id) is not None:
        if not await worker.repair_listed({ledger_id}):
            worker.raise_failure({ledger_id})
            await asyncio.sleep(POLL_S)
    return found


async def move_away(cluster: RepairedCluster, bookie: str, options: AutoRecoveryOptions, progress: Progress) -> int:
    """Copy all entries of a bookie to others, until no ledger names it; return how many ledgers named it.

    It works together with any autorecovery, and while that is disabled: other processes repair the ledgers that they
    have locked. Open ledgers wait for the grace period.

    Raises:
        ConfigurationError: the bookie is unknown, or still serves.
        NotEnoughBookies, ReadFailed, ...: the error of what remains, when nothing else is left to do.
        MetadataFormat: a ledger's metadata cannot be decoded; the other ledgers were moved.
        MetadataError: the metadata store failed.
    """
    await check_is_down(cluster, bookie)
    worker = cluster.worker(this_process(), options)
    moved = 0
    while True:
        # Repeated until no ledger names it, because a writer with old information may name the bookie once more.
        left, unreadable = await _naming(cluster, bookie)
        if not left:
            break
        await _move(cluster, bookie, left, worker, progress)
        moved += len(left)
    if unreadable is not None:
        raise unreadable
    return moved


async def _move(
    cluster: RepairedCluster, bookie: str, ledger_ids: frozenset[int], worker: ReplicationWorker, progress: Progress
) -> None:
    """Return when none of these ledgers names the bookie."""
    left, reported_s = ledger_ids, time.monotonic()
    progress(f"{len(left)} ledgers have data at {bookie}")
    while left:
        unlisted = set(left)
        async for ledger_id in cluster.store.ids():
            unlisted.discard(ledger_id)
        for ledger_id in unlisted:
            await cluster.store.mark(ledger_id, [bookie], time.time_ns() // 1_000_000)
        done = await worker.repair_listed(left)
        still = frozenset([ledger_id for ledger_id in left if await _names(cluster, ledger_id, bookie)])
        if not done:
            worker.raise_failure(still)
            await asyncio.sleep(POLL_S)
        if len(still) < len(left) or time.monotonic() - reported_s > REPORT_S:
            reported_s = time.monotonic()
            progress(f"{len(ledger_ids) - len(still)} of {len(ledger_ids)} ledgers are moved")
        left = still


async def decommission(cluster: RepairedCluster, bookie: str, options: AutoRecoveryOptions, progress: Progress) -> int:
    """Do `move_away`, then forget the bookie.

    Its plan is deleted, and its cookie, so that its directories can never serve again unnoticed.
    """
    moved = await move_away(cluster, bookie, options, progress)
    await check_is_down(cluster, bookie)
    try:
        await cluster.context.registry.delete_cookie(bookie)
    except NoSuchNode:
        progress(f"the cookie of {bookie} was removed already")
    await cluster.plans().end(bookie)
    return moved


async def check_is_down(cluster: RepairedCluster, bookie: str) -> None:
    """Raise ConfigurationError or MetadataError unless the bookie exists and is stopped."""
    try:
        check_bookie_id(bookie)
    except ValueError as error:
        raise ConfigurationError(f"bookie {bookie!r}: {error}") from None
    registry = cluster.context.registry
    if bookie in await registry.registered_ids():
        raise MetadataError(f"bookie {bookie} is serving: stop it first, then run this again")
    known = await registry.known()
    if bookie not in known and not (await _naming(cluster, bookie))[0]:
        raise MetadataError(f"there is no bookie {bookie}; known are {', '.join(sorted(known)) or 'none'}")


async def _naming(cluster: RepairedCluster, bookie: str) -> tuple[frozenset[int], BookKeeperError | None]:
    """Return the ledgers that name a bookie, and the error of one ledger whose metadata cannot be read."""
    naming: set[int] = set()
    unreadable: BookKeeperError | None = None
    async for some in read_all(cluster.context.ledgers, LEDGERS_AT_ONCE, cluster.unexpected):
        for ledger_id, metadata in some:
            if isinstance(metadata, BookKeeperError):
                unreadable = metadata
            elif names(metadata, bookie):
                naming.add(ledger_id)
    return frozenset(naming), unreadable


async def _names(cluster: RepairedCluster, ledger_id: int, bookie: str) -> bool:
    try:
        metadata = (await cluster.context.ledgers.read(ledger_id)).metadata
    except NoSuchLedger:
        return False
    return names(metadata, bookie)
