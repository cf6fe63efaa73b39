"""ReplicationWorker: takes ledgers from the list of under-replicated ledgers and repairs them, a few at a time.

A ledger is repaired under its lock, an ephemeral node. If the lock is lost with its session, this does no harm: the
compare-and-set decides, and this worker stops before its next one.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from bkspark.core.copies import share_of
from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataError, MetadataFormat, NoSuchLedger
from bkspark.failure_log import RepeatedFailure
from bkspark.log_limit import no_digits
from bkspark.metadata.repair_reports import (
    ERROR_CHARACTERS_MAX,
    REPORTED_MAX,
    Postponed,
    Repairing,
    RepairReport,
    RepairReports,
)
from bkspark.metadata.underreplication import Underreplicated
from bkspark.tasks import together
from bkspark.wall_clock import wall_clock_ms
from bookie_service.replication.cluster_parts import ClusterParts
from bookie_service.replication.copying import CopyBudget
from bookie_service.replication.options import RepairOptions
from bookie_service.replication.repair import (
    Ended,
    Outcome,
    RepairBookies,
    RepairCore,
)
from bookie_service.replication.repair_log import RepairLog
from bookie_service.replication.repair_run import RepairRun
from bookie_service.replication.repair_targets import RepairTargets

logger = logging.getLogger(__name__)

FAILED_PAUSE_FIRST_S = 1.0
FAILURES_REPORTED = 3
REPORT_S = 2.0
CAUSES_MAX = 20
DEFERRED_MAX = 100_000
"""How many ledgers are remembered as not due yet. Beyond this number, the oldest are tried again."""


@dataclass(slots=True)
class _Deferred:
    """A listed ledger that waits."""

    due_s: float
    """When it may be tried again, by `_now_s`."""
    fragment: Fragment | None = None
    """Its open last fragment when it was last checked; None: its last fragment is closed."""
    since_s: float = 0.0
    """Since when `fragment` is unchanged."""
    failures: int = 0
    """How often its repair failed."""
    error: BookKeeperError | None = None
    """Why its repair last failed; None: it has not failed."""


@dataclass(slots=True)
class _Running:
    """A repair in progress."""

    bytes: int
    """The estimated bytes to copy."""
    since_ms: int
    """When it began, by the wall clock."""
    run: RepairRun
    """The repair itself."""


class ReplicationWorker:
    """Repairs listed ledgers: `run` for ever, or `repair` one ledger."""

    def __init__(
        self,
        cluster: ClusterParts,
        who: str,
        options: RepairOptions,
        reports: RepairReports | None = None,
    ) -> None:
        """`who`: the name of this process in locks.

        `reports`: where `run` reports its work, and finds the rate that an operator set; None: nowhere."""
        self._context = cluster.context
        """This, and the three below, are the cluster's. Constant."""
        self._tree = cluster.tree
        self._store = cluster.store
        self._unexpected = cluster.unexpected
        """Reports errors of our own, one of each kind. Constant."""
        self._who = who
        self._options = options
        """The options in force. Replaced by `set_options`."""
        self._budget = CopyBudget.of(options)
        self._targets = RepairTargets(cluster.context.random)
        """Chooses who takes copies."""
        self._deferred: dict[int, _Deferred] = {}
        """Listed ledgers that are tried again later, by id; at most DEFERRED_MAX."""
        self._wake = asyncio.Event()
        """Set when the list of ledgers changes."""
        self.repaired = 0
        """How many ledgers were repaired since the start. Only grows."""
        self.copied_bytes = 0
        """How many bytes were copied since the start. Only grows."""
        self.copied_sizes = self._budget.sizes
        """Sizes of the copied entries."""
        self.failures = 0
        """How many repairs failed since the start. Only grows."""
        self.listed = 0
        """How many ledgers were listed when the list was last read."""
        self._log = RepairLog(self._now_s)
        self._failure = RepeatedFailure(
            logger, "autorecovery cannot work now, and tries again later", "autorecovery works again"
        )
        self._rate_failure = RepeatedFailure(
            logger,
            "repairs run at the configured rate, because an operator's rate cannot be read",
            "an operator's rate of repairs can be read again, or there is none",
        )
        """Reports that the rate's node is damaged. Constant."""
        self._running: dict[int, _Running] = {}
        """Repairs in progress, by ledger id."""
        self._reports = reports

    def set_options(self, options: RepairOptions) -> None:
        """Use other rates and pauses from now on, also for repairs in progress."""
        self._options = options
        self._budget.rate.bytes_per_s = options.bytes_per_s

    # ---- the list ----

    async def run(self) -> None:
        """Repair listed ledgers, for ever. After errors of the metadata store and unexpected errors it waits and tries
        again."""
        reporting = None if self._reports is None else asyncio.ensure_future(self._report_often(self._reports))
        stop_watching = None
        try:
            while True:
                try:
                    if stop_watching is None:
                        stop_watching = await self._store.watch(self._wake.set)
                    done = await self.repair_listed()
                    self._failure.worked()
                except Exception as error:
                    if not isinstance(error, BookKeeperError):
                        error = self._unexpected.failure(error, "the list of under-replicated ledgers")
                    self._failure.failed(error)
                    done = 0
                if not done:
                    await self._pause()
        finally:
            if stop_watching is not None:
                stop_watching()
            if reporting is not None:
                reporting.cancel()

    # ---- what it reports ----

    async def _report_often(self, reports: RepairReports) -> None:
        """Report changes every few seconds, and use the rate that an operator set; for ever."""
        last: RepairReport | None = None
        while True:
            try:
                rate = await self._operators_rate(reports)
                self._budget.rate.bytes_per_s = self._options.bytes_per_s if rate is None else rate
                report = self.report()
                if last is None or replace(report, at_ms=last.at_ms) != last:
                    await reports.put(report)
                    last = report
            except MetadataError as error:
                logger.debug("the repairs of this process are not reported: %s", error)
                last = None
            await asyncio.sleep(REPORT_S)

    async def _operators_rate(self, reports: RepairReports) -> int | None:
        """Return the rate that an operator set; None: there is none, or it is unreadable. Raises MetadataError."""
        try:
            rate = await reports.bytes_per_s()
        except MetadataFormat as error:
            self._rate_failure.failed(error)
            return None
        self._rate_failure.worked()
        return rate

    def report(self) -> RepairReport:
        """Return what this process does now."""
        now_s, now_ms = self._now_s(), wall_clock_ms()
        postponed = [(id, each) for id, each in self._deferred.items() if id not in self._running]
        counts: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for _, each in postponed:
            error = _error(each)
            cause = no_digits(error)
            counts[cause] += 1
            examples.setdefault(cause, error)
        return RepairReport(
            self._who,
            now_ms,
            self._budget.rate.bytes_per_s,
            self.listed,
            self.repaired,
            self.copied_bytes,
            self.failures,
            len(postponed),
            tuple(
                Repairing(id, each.bytes, each.run.copied_bytes, each.since_ms)
                for id, each in list(self._running.items())[:REPORTED_MAX]
            ),
            tuple(
                Postponed(id, _error(each), each.failures, (now_ms + int((each.due_s - now_s) * 1000)) // 1000 * 1000)
                for id, each in sorted(postponed, key=lambda it: it[1].due_s)[:REPORTED_MAX]
            ),
            {examples[cause]: count for cause, count in counts.most_common(CAUSES_MAX)},
        )

    async def _pause(self) -> None:
        self._wake.clear()
        now_s = self._now_s()
        due_s = min((wait.due_s for wait in self._deferred.values()), default=now_s + self._options.pause_s)
        try:
            async with asyncio.timeout(min(max(due_s - now_s, 0.05), self._options.pause_s)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def repair_listed(self, only: Collection[int] | None = None) -> int:
        """Try every listed ledger that is due once; return how many have left the list.

        Args:
            only: try only these ledgers, even if autorecovery is disabled, because an operator requested them.

        Raises:
            MetadataError: the store failed.
        """
        listed = array.array("q", [])
        async for ledger_id in self._store.ids():
            if only is None or ledger_id in only:
                listed.append(ledger_id)
        self.listed = len(listed)
        self._targets.begin_pass()
        self._deferred = {ledger_id: self._deferred[ledger_id] for ledger_id in listed if ledger_id in self._deferred}
        now_s = self._now_s()
        due = array.array("q", (id for id in listed if id not in self._deferred or self._deferred[id].due_s <= now_s))
        # Other workers see the same list, so each begins at another place.
        self._context.random.shuffle(due)
        waiting = iter(due)
        done = 0

        async def lane() -> None:
            nonlocal done
            for ledger_id in waiting:
                if only is None and not await self._store.is_enabled():
                    return
                is_gone = await self.repair(ledger_id)  # not within the sum: other lanes change it meanwhile
                done += is_gone
                self._log.tick(len(listed) - done)

        await together(lane() for _ in range(min(self._options.ledgers_at_once, len(due))))
        self._log.tick(len(listed) - done, is_last=True)
        return done

    async def repair(self, ledger_id: int) -> bool:
        """Repair one listed ledger under its lock; return whether it left the list.

        Raises:
            MetadataError: the store failed.
        """
        if not await self._store.lock(ledger_id, self._who):
            return False
        session, began_s = self._tree.session_id, self._now_s()
        try:
            try:
                work = await self._store.find(ledger_id)
                if work is None:
                    return False
                ended, fragment, copied_bytes = await self._repaired(work, session)
            except Exception as error:
                failure = self._unexpected.of_ledger(error, f"the repair of ledger {ledger_id}", ledger_id)
                self._defer(ledger_id, Ended(Outcome.DEFERRED, failure), None)
                return False
            if ended.outcome not in (Outcome.COMPLETE, Outcome.GONE):
                self._defer(ledger_id, ended, fragment)
                return False
            self._deferred.pop(ledger_id, None)
            self.repaired += 1
            self._log.repaired(ledger_id, copied_bytes, began_s)
            return await self._store.finish(work)
        finally:
            # The error must not replace a cancellation. The lock ends with the session, or the next `lock` finds that
            # the session already holds it.
            with contextlib.suppress(MetadataError):
                await self._store.unlock(ledger_id)

    def _defer(self, ledger_id: int, ended: Ended, fragment: Fragment | None) -> None:
        options, now_s = self._options, self._now_s()
        known = self._deferred.get(ledger_id) or _Deferred(now_s)
        if ended.outcome is Outcome.OPEN:
            if known.fragment != fragment:
                known.fragment, known.since_s = fragment, now_s
            known.due_s = max(known.since_s + options.grace_s, now_s)
        else:
            pause_s = min(FAILED_PAUSE_FIRST_S * 2**known.failures, options.failed_pause_max_s)
            known.failures = min(known.failures + 1, 16)
            known.due_s = now_s + pause_s
            known.error = ended.error
            self.failures += 1
            self._log.failed(ledger_id, ended.error, pause_s)
        if len(self._deferred) >= DEFERRED_MAX and ledger_id not in self._deferred:
            self._deferred.pop(next(iter(self._deferred)))
        self._deferred[ledger_id] = known

    def failing(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of these ledgers whose repair failed when it was last tried."""
        deferred = self._deferred
        return frozenset(id for id in ledger_ids if id in deferred and deferred[id].error is not None)

    def raise_failure(self, ledger_ids: Collection[int]) -> None:
        """Raise the error of one of these ledgers if each of them has failed `FAILURES_REPORTED` times."""
        errors = []
        for ledger_id in ledger_ids:
            known = self._deferred.get(ledger_id)
            if known is None or known.error is None or known.failures < FAILURES_REPORTED:
                return
            errors.append(known.error)
        if errors:
            raise errors[0]

    def _may_recover(self, ledger_id: int, fragment: Fragment) -> bool:
        known = self._deferred.get(ledger_id)
        if self._options.grace_s <= 0:
            return True
        if known is None or known.fragment != fragment:
            return False
        return self._now_s() >= known.since_s + self._options.grace_s

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # ---- one ledger ----

    async def _repaired(self, work: Underreplicated, session: int) -> tuple[Ended, Fragment | None, int]:
        """Return how the repair ended, the last fragment as it was then, and how many bytes were copied."""
        ledger_id = work.ledger_id
        # Read after the list, so that a bookie that was reported since then does not count as serving.
        candidates = await self._context.watcher.replacements()
        registered = candidates.writable | await self._context.registry.registered_ids()
        try:
            stored = await self._context.ledgers.read(ledger_id)
        except NoSuchLedger:
            return Ended(Outcome.GONE), None, 0
        core = RepairCore(
            ledger_id,
            stored.metadata,
            stored.version,
            RepairBookies(frozenset(work.missing), candidates.writable, registered, topology=candidates.topology),
            self._targets,
            may_recover=self._may_recover(ledger_id, stored.metadata.last_fragment),
        )
        run = RepairRun(self._context, core, registered, self._options.password, self._budget)
        lost = work.missing or tuple(frozenset(_named(stored.metadata)) - registered)
        self._running[ledger_id] = _Running(share_of(stored.metadata, lost).bytes, wall_clock_ms(), run)
        try:
            ended = await run.until_ended(lambda: self._tree.session_id == session)
        finally:
            del self._running[ledger_id]
            self.copied_bytes += run.copied_bytes
        return ended, core.metadata.last_fragment, run.copied_bytes


def _named(metadata: LedgerMetadata) -> Iterator[str]:
    for fragment in metadata.fragments:
        yield from fragment.bookies


def _error(deferred: _Deferred) -> str:
    """Return why a ledger waits."""
    if deferred.error is None:
        return "it is open, and its writer may leave the lost bookie by itself"
    return str(deferred.error)[:ERROR_CHARACTERS_MAX]
