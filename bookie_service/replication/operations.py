"""Commands of operators that run once: check or repair ledgers, move a bookie's data away, retire a bookie."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bkspark.core.copies import names, share_of
from bkspark.errors import BookKeeperError, ConfigurationError, MetadataError, NoSuchBookie, NoSuchLedger, NoSuchNode
from bkspark.ids import check_bookie_id
from bkspark.options import MIB
from bkspark.wall_clock import wall_clock_ms
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.ledger_check import Lack, LedgerCheck, LedgerFindings
from bookie_service.replication.listing import read_naming
from bookie_service.replication.options import AutoRecoveryOptions
from bookie_service.replication.outages import through_outages
from bookie_service.replication.recent_rate import RecentRate
from bookie_service.replication.worker import ReplicationWorker

Progress = Callable[[str], None]

POLL_S = 0.5
REPORT_S = 10.0
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
    """How many of the checked `ledgers` lack something."""
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
    await cluster.store.mark(ledger_id, found.bookies, wall_clock_ms())
    worker = cluster.worker(this_process(), options)
    while await cluster.store.find(ledger_id) is not None:
        if not await worker.repair_listed({ledger_id}):
            worker.raise_failure({ledger_id})
            await asyncio.sleep(POLL_S)
    return found


@dataclass(frozen=True, slots=True)
class Skips:
    """Which ledgers a move leaves where they are."""

    open: bool = False
    """Whether it leaves open ones."""
    failing: bool = False
    """Whether it leaves those whose repair fails again and again."""


NO_SKIPS = Skips()


async def move_away(
    cluster: RepairedCluster,
    bookie: str,
    options: AutoRecoveryOptions,
    progress: Progress,
    skips: Skips = NO_SKIPS,
) -> int:
    """Copy all entries of a bookie to others, until no ledger names it; return how many ledgers were moved.

    It works together with any autorecovery, and while that is disabled: other processes repair the ledgers that they
    have locked. Open ledgers wait for the grace period.

    Raises:
        ConfigurationError: the id cannot be that of a bookie.
        NoSuchBookie: the bookie is unknown.
        NotEnoughBookies, ReadFailed, ...: the error of what remains, when nothing else is left to do.
        MetadataFormat: a ledger's metadata cannot be decoded; the other ledgers were moved.
        MetadataError: the bookie still serves, or the metadata store failed, for longer than `OUTAGE_S_MAX` if it is
            an outage.
    """
    await check_is_down(cluster, bookie)
    worker = cluster.worker(this_process(), options)
    named, skipped = set[int](), set[int]()

    async def move() -> None:
        while True:
            # Repeated until no ledger names it, because a writer with old information may name the bookie once more.
            shares, unreadable = await _naming(cluster, bookie, skips_open=skips.open)
            left = {ledger_id: size for ledger_id, size in shares.items() if ledger_id not in skipped}
            if not left:
                break
            named.update(left)
            skipped.update(await _move(cluster, bookie, left, worker, progress, skips))
        if unreadable is not None:
            raise unreadable

    def say(what: str) -> None:
        progress(f"the copying from {bookie} {what}")

    await through_outages(cluster.context.registry, move, lambda: worker.repaired, say)
    return len(named) - len(skipped)


class _Moving:
    """How far a move is, by the estimated sizes of the ledgers that are left."""

    def __init__(self, worker: ReplicationWorker, sizes: Mapping[int, int]) -> None:
        self._worker = worker
        self._sizes = sizes
        """Bytes to copy of each ledger, at the beginning."""
        self._rate = RecentRate()
        self._rate.update(time.monotonic(), 0)
        self.left = frozenset(sizes)
        """Ledgers that still named the bookie when they were last looked at."""
        self._repaired = worker.repaired
        """How many ledgers the worker had repaired when `left` was determined."""
        self._copied = _copied_bytes(worker)
        """The same for bytes."""

    def update(self, left: frozenset[int]) -> None:
        """Take the ledgers that still name the bookie."""
        self.left, self._repaired, self._copied = left, self._worker.repaired, _copied_bytes(self._worker)

    def line(self) -> str:
        """Return how far it is now, with what was done since `left` was determined."""
        ledgers = len(self._sizes)
        done = min(ledgers, ledgers - len(self.left) + self._worker.repaired - self._repaired)
        size, size_left = sum(self._sizes.values()), sum(self._sizes[ledger_id] for ledger_id in self.left)
        copied = min(size, size - size_left + _copied_bytes(self._worker) - self._copied)
        rate = self._rate.update(time.monotonic(), copied)
        failing = self._worker.failing(self.left)
        # What fails now is not copied, however long it takes.
        movable = size - copied - sum(self._sizes[ledger_id] for ledger_id in failing)
        left = f", {movable / rate:.0f} s left" if rate and movable > 0 else ", time left unknown"
        blocked = f"; {len(failing)} are blocked" if failing else ""
        return (
            f"{done} of {ledgers} ledgers are moved, {copied / MIB:.1f} of {size / MIB:.1f} MiB, "
            f"{rate / MIB:.1f} MiB/s{left if self.left else ''}{blocked}"
        )


def _copied_bytes(worker: ReplicationWorker) -> int:
    """Return what a worker has copied, in the repairs that run, too."""
    report = worker.report()
    return report.copied_bytes + sum(each.copied_bytes for each in report.repairs)


async def _move(
    cluster: RepairedCluster,
    bookie: str,
    sizes: Mapping[int, int],
    worker: ReplicationWorker,
    progress: Progress,
    skips: Skips,
) -> frozenset[int]:
    """Return when none of these ledgers names the bookie, or only those that are skipped because they fail."""
    moving = _Moving(worker, sizes)
    progress(f"{len(sizes)} ledgers have data at {bookie}, about {sum(sizes.values()) / MIB:.1f} MiB")
    reporting = asyncio.ensure_future(_report_often(moving, progress))
    try:
        while moving.left:
            unlisted = set(moving.left)
            async for ledger_id in cluster.store.ids():
                unlisted.discard(ledger_id)
            for ledger_id in unlisted:
                await cluster.store.mark(ledger_id, [bookie], wall_clock_ms())
            done = await worker.repair_listed(moving.left)
            before = moving.left
            moving.update(frozenset([id for id in before if await _names(cluster, id, bookie, skips_open=skips.open)]))
            if not done and (failing := _failing(worker, moving.left, progress, skips)):
                return failing
            if not done:
                await asyncio.sleep(POLL_S)
            if len(moving.left) < len(before):
                progress(moving.line())
    finally:
        reporting.cancel()
    return frozenset()


async def _report_often(moving: _Moving, progress: Progress) -> None:
    """Say how far it is every few seconds; for ever."""
    while True:
        await asyncio.sleep(REPORT_S)
        progress(moving.line())


def _failing(worker: ReplicationWorker, ledger_ids: frozenset[int], progress: Progress, skips: Skips) -> frozenset[int]:
    """Return these ledgers if all of them fail again and again and are to be skipped, else none. Raises the error."""
    try:
        worker.raise_failure(ledger_ids)
    except BookKeeperError as error:
        if not skips.failing:
            raise
        progress(f"{len(ledger_ids)} ledgers cannot be moved, and are skipped; one of them because: {error}")
        return ledger_ids
    return frozenset()


async def decommission(
    cluster: RepairedCluster,
    bookie: str,
    options: AutoRecoveryOptions,
    progress: Progress,
    skips: Skips = NO_SKIPS,
) -> int:
    """`move_away`, then forget the bookie: its cookie is deleted, so that its directories never serve again
    unnoticed, and its plan."""
    moved = await move_away(cluster, bookie, options, progress, skips)
    await check_is_down(cluster, bookie)
    if skips != NO_SKIPS and (still := (await _naming(cluster, bookie))[0]):
        raise BookKeeperError(f"{len(still)} ledgers still name bookie {bookie}, so it is not removed from the cluster")
    try:
        await cluster.context.registry.delete_cookie(bookie)
    except NoSuchNode:
        progress(f"the cookie of {bookie} was removed already")
    await cluster.plans().end(bookie)
    return moved


def no_such_bookie(bookie: str, known: Iterable[str]) -> NoSuchBookie:
    """Return the error for an id that is not that of a bookie of the cluster. `known`: the ids of its bookies."""
    return NoSuchBookie(f"there is no bookie {bookie}; known are {', '.join(sorted(known)) or 'none'}", bookie=bookie)


async def check_is_down(cluster: RepairedCluster, bookie: str) -> None:
    """Raise ConfigurationError, MetadataError or NoSuchBookie unless the bookie exists and is stopped.

    If it has no cookie, the metadata of all ledgers are read, because one of them may still name it.
    """
    try:
        check_bookie_id(bookie)
    except ValueError as error:
        raise ConfigurationError(f"bookie {bookie!r}: {error}") from None
    registry = cluster.context.registry
    if bookie in await registry.registered_ids():
        raise MetadataError.answer(f"bookie {bookie} is serving: stop it first, then run this again")
    known = await registry.known()
    if bookie not in known and not (await _naming(cluster, bookie))[0]:
        raise no_such_bookie(bookie, known)


async def _naming(
    cluster: RepairedCluster, bookie: str, *, skips_open: bool = False
) -> tuple[dict[int, int], BookKeeperError | None]:
    """Return the ledgers that name a bookie, each with about how many bytes it must hold of it, and the error of one
    ledger whose metadata could not be read."""
    naming: dict[int, int] = {}
    unreadable: BookKeeperError | None = None
    async for ledger_id, metadata in read_naming(cluster.context.ledgers, bookie, cluster.unexpected):
        if isinstance(metadata, BookKeeperError):
            unreadable = metadata
        elif metadata.is_closed or not skips_open:
            naming[ledger_id] = share_of(metadata, {bookie}).bytes
    return naming, unreadable


async def _names(cluster: RepairedCluster, ledger_id: int, bookie: str, *, skips_open: bool) -> bool:
    try:
        metadata = (await cluster.context.ledgers.read(ledger_id)).metadata
    except NoSuchLedger:
        return False
    return names(metadata, bookie) and (metadata.is_closed or not skips_open)
