"""Drain: copies everything that a serving bookie holds to others, with the bookie itself as a source.

No copy is given up early: a fragment names another bookie only when that one has acknowledged every entry of its slot
(`repair`). The bookie is read-only meanwhile, because it follows the plan (`bkspark.metadata.bookie_plans`).

* A drain can be interrupted at any time. Its state is the metadata of the ledgers: those that still name the bookie are
  left. Running it again continues. Several processes may drain a bookie together, because each ledger has its lock;
  they report to each other (`drain_sharing`).
* It goes on after an outage of the metadata store (`outages`).
* Deleting the plan cancels the drain. What was copied stays where it is, and the bookie takes entries again.
* The last fragment of an open ledger may still grow. Its writer leaves a read-only bookie at its next entry, and the
  ledger waits until then. With `closes_open` it is fenced and closed after the grace period, as when a bookie is lost.
* The plan has the progress, and a rate that can be changed while the drain runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from bkspark.core.copies import names, share_of
from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    MetadataError,
    NoSuchLedger,
)
from bkspark.ids import INT64_MAX
from bkspark.metadata.bookie_plans import DRAIN, FOLLOWED_S_MAX, BookiePlan
from bkspark.tasks import end_all, together
from bkspark.wall_clock import wall_clock_ms
from bookie_service.replication.autorecovery import RepairedCluster
from bookie_service.replication.copying import CopyBudget
from bookie_service.replication.drain_ledgers import DrainedLedger, LedgersLeft
from bookie_service.replication.drain_plans import check_serves
from bookie_service.replication.drain_sharing import OtherProcesses, ProcessReport, as_stored, reports_of
from bookie_service.replication.listing import read_naming
from bookie_service.replication.options import AutoRecoveryOptions
from bookie_service.replication.outages import through_outages
from bookie_service.replication.recent_rate import RecentRate
from bookie_service.replication.repair import Ended, Outcome, RepairBookies, RepairCore
from bookie_service.replication.repair_run import RepairRun
from bookie_service.replication.repair_targets import RepairTargets

logger = logging.getLogger(__name__)

REPORT_S = 1.0
PAUSE_S = 0.5
FAILED_PAUSE_MAX_S = 60.0
FAILURES_MAX = 3
"""The drain gives up when each remaining ledger has failed this often."""
REPORTED_MAX = 20
"""How many waiting or blocked ledgers the progress names."""
_NUMBERS = ("ledgers", "ledgers_left", "bytes", "bytes_left", "copied_bytes", "bytes_per_s", "seconds_left")


class DrainCancelled(BookKeeperError):
    """An operator cancelled the drain."""


@dataclass(frozen=True, slots=True)
class DrainPreview:
    """What a drain would do.

    bytes: an estimate, without open ledgers. growing: ledgers that are being written. without_spare: ledgers for which
    there is no other writable bookie. targets: bookies that may take copies.
    """

    ledgers: int
    fragments: int
    """The fragments that name the bookie, of the `ledgers` that have one."""
    bytes: int
    growing: int
    without_spare: int
    targets: tuple[str, ...]
    unreadable: int = 0
    """Ledgers whose metadata cannot be read: whether they name the bookie is not known."""

    @property
    def is_possible(self) -> bool:
        """Whether a drain can end without an error, as things are."""
        return not self.without_spare and not self.unreadable


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain is.

    ledgers, bytes: totals at its beginning.
    copied_bytes: what this process has copied.
    bytes_per_s: the rate of all processes that drain the bookie, in the last minute.
    seconds_left: for what can be copied now, at that rate. None: unknown, because nothing is being copied, or only
        ledgers are left that wait or are blocked.
    waiting: ledgers that their writers must leave. blocked: why ledgers cannot be moved now. Both name at most
        REPORTED_MAX ledgers.
    """

    ledgers: int = 0
    ledgers_left: int = 0
    """Those that still name the bookie, and about how many bytes are to be copied (`bytes_left`)."""
    bytes: int = 0
    bytes_left: int = 0
    copied_bytes: int = 0
    bytes_per_s: int = 0
    seconds_left: int | None = None
    waiting: tuple[int, ...] = ()
    blocked: dict[str, str] = field(default_factory=dict)


class Drain:
    """Drains one bookie: `preview`, or `run` once its plan is stored."""

    def __init__(
        self,
        cluster: RepairedCluster,
        bookie: str,
        who: str,
        options: AutoRecoveryOptions,
        report: Callable[[DrainProgress], None],
        *,
        closes_open: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`who`: the name of this process in locks. `report` is called with the progress once a second, and `say` with
        a line about each outage of the metadata store, which is also logged."""
        self._cluster = cluster
        self._bookie = bookie
        self._who = who
        self._options = options.repair
        self._report = report
        self._closes_open = closes_open
        """Whether open ledgers whose writers are gone are recovered and closed."""
        self._tell = say
        self._had_outage = False
        """Whether the metadata store was away since the drain began: it may have ended the bookie's registration."""
        self._rounds = 0
        """How often all ledgers that were due have been tried without an outage."""
        self._plans = cluster.plans()
        self._budget = CopyBudget.of(self._options)
        self._targets = RepairTargets(cluster.context.random)
        self._left = LedgersLeft({})
        """Ledgers that still name the bookie. Replaced by each survey."""
        self._is_surveyed = False
        """Whether `_left` was read from the metadata."""
        self._rate = RecentRate()
        self._copied_bytes = 0
        """How many bytes finished repairs have copied."""
        self._moved_bytes = 0
        """How many bytes of the shares in `_left` finished repairs have moved."""
        self._others = OtherProcesses()
        self._name = f"{who}-{cluster.tree.session_id:x}"
        """The name of this process in reports."""
        self._before = DrainProgress()
        """The progress at the last survey, and at first what an earlier run stored. Totals never fall below it."""
        self._unreadable: BookKeeperError | None = None
        """Why some metadata cannot be read, or None. The run ends with this error."""
        self.moved = 0
        """How many ledgers this process has moved."""

    # ---- before ----

    async def preview(self) -> DrainPreview:
        """Return what a drain would do. Raises ConfigurationError if there is no such bookie; MetadataError."""
        await check_serves(self._cluster, self._bookie)
        return await preview_of(self._cluster, self._bookie)

    async def _until_read_only(self) -> None:
        registry = self._cluster.context.registry
        deadline = _now_s() + FOLLOWED_S_MAX
        while self._bookie in await registry.writable_ids():
            await self._plan()
            if _now_s() > deadline:
                raise BookKeeperError(
                    f"bookie {self._bookie} is still writable after {FOLLOWED_S_MAX:g} s. Apache's bookies do not "
                    "follow plans: make it read-only by PUT /api/v1/bookie/state/readonly, then run this again"
                )
            await asyncio.sleep(0.1)

    # ---- the drain ----

    async def run(self) -> int:
        """Drain the bookie until no ledger names it; return how many ledgers were moved.

        Raises:
            DrainCancelled: the plan was deleted.
            ConfigurationError: the bookie is unknown or does not run.
            NotEnoughBookies, ReadFailed, ...: the error of what remains, when nothing else is left to do.
            MetadataError: the metadata store failed, for longer than `OUTAGE_S_MAX` if it is an outage.
        """
        registry = self._cluster.context.registry
        return await through_outages(registry, self._run, lambda: self.moved + self._rounds, self._note_outage)

    def _note_outage(self, what: str) -> None:
        self._had_outage = True
        line = f"the drain of bookie {self._bookie} {what}"
        logger.warning("%s", line)
        self._tell(line)

    async def _check_serves(self) -> None:
        """Raise ConfigurationError unless the bookie is registered; MetadataError if an outage may be the reason."""
        try:
            await check_serves(self._cluster, self._bookie)
        except ConfigurationError as error:
            if not self._had_outage:
                raise
            await self._plan()  # an operator may have cancelled it meanwhile
            raise MetadataError(f"after an outage of the metadata store: {error}") from error

    async def _run(self) -> int:
        """`run` until an outage of the metadata store."""
        await self._check_serves()
        plan = await self._plan()
        self._before = progress_of(plan)
        self._others.update(_now_s(), reports_of(plan.progress, self._name))
        self._budget.rate.bytes_per_s = plan.bytes_per_s or self._options.bytes_per_s
        await self._until_read_only()
        moving, watching = asyncio.ensure_future(self._move_all()), asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait([moving, watching], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            moving.result()
        finally:
            await end_all((moving, watching))
        with contextlib.suppress(DrainCancelled):
            await self._store_progress(is_last=True)
        if self._unreadable is not None:
            raise self._unreadable
        return self.moved

    async def _plan(self) -> BookiePlan:
        plan = await self._plans.find(self._bookie)
        if plan is None or plan.kind != DRAIN:
            raise self._cancelled()
        return plan

    def _cancelled(self) -> DrainCancelled:
        return DrainCancelled(f"the drain of bookie {self._bookie} was cancelled; what was copied stays")

    async def _watch(self) -> None:
        """Report the progress, follow the plan's rate, and raise DrainCancelled if the plan is deleted; for ever."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self._store_progress()

    async def _store_progress(self, *, is_last: bool = False) -> None:
        """`is_last`: this process copies nothing any more."""
        progress, own = self.progress(), self._own_report()
        self._report(progress)
        own = dataclasses.replace(own, bytes_per_s=0) if is_last else own
        facts = {**dataclasses.asdict(progress), "at_ms": own.at_ms, "by": self._who}

        def reported(plan: BookiePlan) -> BookiePlan:
            now_s = _now_s()
            self._others.update(now_s, reports_of(plan.progress, self._name))
            processes = as_stored({**self._others.kept(now_s), self._name: own})
            return dataclasses.replace(plan, progress={**facts, **processes})

        plan = await self._plans.update(self._bookie, DRAIN, reported)
        if plan is None:
            raise self._cancelled()
        self._budget.rate.bytes_per_s = plan.bytes_per_s or self._options.bytes_per_s

    def progress(self) -> DrainProgress:
        """Return how far the drain is; before the first survey, what an earlier run stored."""
        if not self._is_surveyed:
            return dataclasses.replace(self._before, copied_bytes=0, bytes_per_s=0, seconds_left=None)
        left, others = self._left, self._others
        # At least one is left: the last one counts as moved when this process has seen that it is.
        ledgers_left = max(min(1, len(left)), len(left) - others.ledgers)
        bytes_left = max(0, left.bytes_left - others.bytes)
        rate = self._own_report().bytes_per_s + others.bytes_per_s(_now_s())
        return DrainProgress(
            max(self._before.ledgers, len(left)),
            ledgers_left,
            max(self._before.bytes, bytes_left),
            bytes_left,
            self._all_copied_bytes,
            rate,
            seconds_left(left, others.bytes, rate),
            left.waiting(REPORTED_MAX),
            left.blocked(REPORTED_MAX),
        )

    @property
    def _all_copied_bytes(self) -> int:
        return self._copied_bytes + self._left.copied_bytes

    def _own_report(self) -> ProcessReport:
        copied = self._all_copied_bytes
        moved_bytes = self._moved_bytes + self._left.done_bytes
        return ProcessReport(self.moved, moved_bytes, self._rate.update(_now_s(), copied), wall_clock_ms())

    async def _move_all(self) -> None:
        # Repeated until no ledger names it, because a writer with old information may name the bookie once more.
        while True:
            self._left = await self._survey()
            self._others.begin_list()
            self._is_surveyed = True
            self._before = self.progress()
            if not self._left:
                return
            while self._left:
                await self._move_due()
                self._rounds += 1
                self._raise_failure()
                await asyncio.sleep(PAUSE_S if self._left else 0.0)

    async def _move_due(self) -> None:
        due = self._left.due(_now_s())
        self._cluster.context.random.shuffle(due)
        waiting = iter(due)

        async def lane() -> None:
            for ledger_id in waiting:
                await self._move(ledger_id)

        await together(lane() for _ in range(min(self._options.ledgers_at_once, len(due))))

    async def _move(self, ledger_id: int) -> None:
        """Move what a ledger has at the bookie, under the ledger's lock. Raises MetadataError if the store failed."""
        left, store = self._left[ledger_id], self._cluster.store
        if not await store.lock(ledger_id, self._who):
            return  # another process repairs it; it is tried again
        session = self._cluster.tree.session_id
        try:
            ended, metadata = await self._moved(ledger_id, left, session)
        except Exception as error:
            failure = self._cluster.unexpected.of_ledger(error, f"the drain of ledger {ledger_id}", ledger_id)
            ended, metadata = Ended(Outcome.DEFERRED, failure), None
        finally:
            self._copied_bytes += self._left.end(ledger_id)
            # The error must not replace a cancellation. The lock ends with the session.
            with contextlib.suppress(MetadataError):
                await store.unlock(ledger_id)
        if ended.outcome is Outcome.GONE or (metadata is not None and not names(metadata, self._bookie)):
            self._left.remove(ledger_id)
            if left.is_named:
                self.moved += 1
                self._moved_bytes += left.share.bytes
            elif ended.outcome is not Outcome.GONE:
                self._others.found_moved(left.share.bytes)
            return
        share = left.share if metadata is None else share_of(metadata, {self._bookie})
        self._moved_bytes += max(0, left.share.bytes - share.bytes)
        self._left.change(ledger_id, share, ended.error)
        if ended.error is not None:
            left.failures += 1
            left.due_s = _now_s() + min(2.0 ** (left.failures - 1), FAILED_PAUSE_MAX_S)

    async def _moved(self, ledger_id: int, left: DrainedLedger, session: int) -> tuple[Ended, LedgerMetadata | None]:
        """Return how the repair ended, and the metadata after it."""
        context = self._cluster.context
        candidates = await context.watcher.replacements()
        registered = candidates.writable | await context.registry.registered_ids()
        try:
            stored = await context.ledgers.read(ledger_id)
        except NoSuchLedger:
            left.is_named = False
            return Ended(Outcome.GONE), None
        left.is_named = names(stored.metadata, self._bookie)
        this = frozenset({self._bookie})
        core = RepairCore(
            ledger_id,
            stored.metadata,
            stored.version,
            RepairBookies(this, candidates.writable, registered, leaving=this, topology=candidates.topology),
            self._targets,
            may_recover=self._may_recover(left, stored.metadata),
        )
        run = RepairRun(context, core, registered, self._options.password, self._budget)
        self._left.begin(ledger_id, run)
        return await run.until_ended(lambda: self._cluster.tree.session_id == session), core.metadata

    def _may_recover(self, left: DrainedLedger, metadata: LedgerMetadata) -> bool:
        """Return whether an open ledger may be fenced: an operator allows it, and the grace period is over."""
        now_s = _now_s()
        if left.fragment != metadata.last_fragment:
            left.fragment, left.since_s = metadata.last_fragment, now_s
        return self._closes_open and now_s >= left.since_s + self._options.grace_s

    def _raise_failure(self) -> None:
        """Raise the error of one ledger if every remaining ledger has failed `FAILURES_MAX` times."""
        error = self._left.error_if_all_failed(FAILURES_MAX)
        if error is not None:
            raise error

    async def _survey(self) -> LedgersLeft:
        """Return the ledgers that name the bookie."""
        return LedgersLeft({id: share_of(metadata, {self._bookie}) async for id, metadata in self._naming()})

    async def _naming(self) -> AsyncIterator[tuple[int, LedgerMetadata]]:
        """Yield the ledgers that name the bookie; `_unreadable` is the error of one that cannot be read."""
        cluster = self._cluster
        async for ledger_id, metadata in read_naming(cluster.context.ledgers, self._bookie, cluster.unexpected):
            if isinstance(metadata, BookKeeperError):
                self._unreadable = metadata
            else:
                yield ledger_id, metadata


async def preview_of(cluster: RepairedCluster, bookie: str) -> DrainPreview:
    """Return what there is to copy if all of a bookie's ledgers leave it. Raises MetadataError."""
    writable = await cluster.context.registry.writable_ids() - {bookie}
    shares, without_spare, unreadable = [], 0, 0
    async for _, metadata in read_naming(cluster.context.ledgers, bookie, cluster.unexpected):
        if isinstance(metadata, BookKeeperError):
            unreadable += 1
            continue
        shares.append(share_of(metadata, {bookie}))
        ensembles = [each.bookies for each in metadata.fragments if bookie in each.bookies]
        without_spare += any(not writable.difference(ensemble) for ensemble in ensembles)
    return DrainPreview(
        len(shares),
        sum(each.fragments for each in shares),
        sum(each.bytes for each in shares),
        sum(each.is_growing for each in shares),
        without_spare,
        tuple(sorted(writable)),
        unreadable,
    )


def seconds_left(left: LedgersLeft, moved_bytes: int, rate: int) -> int | None:
    """Return how long it takes to copy what can be copied now; None: unknown.

    Args:
        moved_bytes: what other processes have moved of `left`.
    """
    if not left:
        return 0
    movable_bytes = left.movable_bytes_left
    return None if movable_bytes is None or not rate else max(0, movable_bytes - moved_bytes) // rate


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def progress_of(plan: BookiePlan) -> DrainProgress:
    """Return the progress that a process stored in a plan. What is not of its form counts as not reported."""
    facts = plan.progress
    numbers = {
        name: value
        for name, value in facts.items()
        if name in _NUMBERS and type(value) is int and 0 <= value <= INT64_MAX
    }
    waiting, blocked = facts.get("waiting"), facts.get("blocked")
    return DrainProgress(
        **numbers,
        waiting=tuple(each for each in waiting if type(each) is int) if isinstance(waiting, list) else (),
        blocked={
            ledger: reason
            for ledger, reason in (blocked.items() if isinstance(blocked, dict) else ())
            if isinstance(reason, str)
        },
    )
