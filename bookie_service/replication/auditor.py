"""Auditor: lists the ledgers that lack copies. At any time only one elected process of the cluster does so.

It audits when bookies come or go, when an operator writes `lostBookieRecoveryDelay`, and at intervals. When its session
expires, its term ends: it becomes a candidate again, and begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, MetadataFormat, SessionExpired
from bkspark.failure_log import RepeatedFailure
from bkspark.metadata.bookie_plans import MAINTENANCE
from bkspark.metadata.election import AuditorElection
from bkspark.metadata.tree import Callback
from bkspark.metadata.underreplication import RecoveryDelay
from bkspark.wall_clock import wall_clock_ms
from bookie_service.metrics.histograms import Histograms
from bookie_service.replication.cluster_parts import ClusterParts
from bookie_service.replication.ledger_check import LedgerCheck
from bookie_service.replication.listing import read_all
from bookie_service.replication.lost_bookies import LostBookies, lost_in
from bookie_service.replication.options import AuditOptions

logger = logging.getLogger(__name__)

RETRY_S = 5.0
"""The pause after a failure of the metadata store."""


class Auditor:
    """Takes part in the election, and audits while elected: `run` for ever, or `audit` once for an operator."""

    def __init__(self, cluster: ClusterParts, who: str, options: AuditOptions) -> None:
        """`who`: the name of this process in the election."""
        self._context = cluster.context
        """This, and the parts below that are not made here, are the cluster's. Constant."""
        self._tree = cluster.tree
        self._store = cluster.store
        self._election = AuditorElection(cluster.tree, cluster.uri, who)
        self._plans = cluster.plans()
        """Plans of operators: bookies in maintenance are not lost. Constant."""
        self._unexpected = cluster.unexpected
        """Reports errors of our own, one of each kind. Constant."""
        self._options = options
        self._wake = asyncio.Event()
        """Set when something may have changed that an audit depends on."""
        self._lost = LostBookies()
        """Which bookies are lost, as known since this process was elected."""
        self._was_elected = False
        """Whether this process was elected at its last check."""
        self._delay: RecoveryDelay | None = None
        """The recovery delay as last read; None: there is none."""
        self._bookies_due_s = 0.0
        """When all bookies are next audited, even if nothing changes."""
        self._checking: asyncio.Task[None] | None = None
        """The check of ledgers in progress, or None."""
        self._failure = RepeatedFailure(
            logger, "the auditor cannot work now, and tries again later", "the auditor works again"
        )
        self._complaint = ""
        """The last failure that was logged. It is not logged again until it changes."""
        self.found = Histograms()
        """How many ledgers each audit listed."""

    async def run(self) -> None:
        """Audit while elected, for ever. After a failure of the metadata store or an unexpected error it waits and
        tries again."""
        self._tree.on_session_expired(self._wake.set)
        while True:
            try:
                async with self._watching():
                    while True:
                        self._wake.clear()
                        pause_s = await self.refresh()
                        self._failure.worked()
                        await self._sleep(pause_s)
            except Exception as error:
                if not isinstance(error, BookKeeperError):
                    error = self._unexpected.failure(error, "the audit")
                self._was_elected = False
                self._failure.failed(error)
                await asyncio.sleep(RETRY_S)

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        await self._election.stand()
        ends: list[Callback] = []
        await self._plans.prepare()
        try:
            for watch in (
                self._plans.watch_all,
                self._election.watch,
                self._store.watch_enabled,
                self._store.watch_lost_bookie_recovery_delay,
                self._context.registry.watch_writable,
                self._context.registry.watch_read_only,
            ):
                ends.append(await watch(self._wake.set))
            yield
        finally:
            self._stop_checking()
            for end in ends:
                end()

    async def _sleep(self, pause_s: float | None) -> None:
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def refresh(self) -> float | None:
        """Do what is due; return in how many seconds to check again. None: check after a change.

        Raises:
            BookKeeperError: the metadata store failed.
        """
        await self._election.stand()
        # Also before it is elected: where a bookie is can only be read while the bookie is registered.
        host_of = (await self._context.watcher.replacements()).topology.host_of
        if not await self._election.is_elected():
            self._was_elected = False
            self._stop_checking()
            return None
        if not self._was_elected:
            self._was_elected, self._lost, self._delay = True, LostBookies(), None
            self._bookies_due_s = _now_s()
            # Apache's shell reads it before it requests an audit, and gives up if it is missing.
            await self._store.offer_lost_bookie_recovery_delay_s(int(self._options.lost_bookie_delay_s))
            logger.info("this process is the auditor now")
        if not await self._store.is_enabled():
            self._stop_checking()
            return None
        waits = [await self._audit_bookies(host_of), await self._check_ledgers_if_due()]
        if self._options.bookie_check_interval_s > 0:
            waits.append(max(0.0, self._bookies_due_s - _now_s()))
        return min((wait for wait in waits if wait is not None), default=None)

    async def _audit_bookies(self, host_of: Callable[[str], str]) -> float | None:
        interval_s, now_s = self._options.bookie_check_interval_s, _now_s()
        is_due = interval_s > 0 and now_s >= self._bookies_due_s
        if is_due:
            self._lost.forget_audits()
        delay_s = await self._recovery_delay_s()
        known, registered = await self._bookies()
        maintained, ends_s = await self._maintained()
        verdict = self._lost.decide(known - maintained, registered, now_s, delay_s, host_of)
        if verdict.audit or is_due:
            # A due check also finds bookies that ledgers name but that have neither cookie nor registration.
            listed = await self.audit(verdict.audit, self.check_elected)
            self.found.record(0, listed)
            self._lost.on_audited(verdict.audit)
            self._bookies_due_s = now_s + interval_s
            if verdict.audit or listed:
                lost = ", ".join(sorted(verdict.audit)) or "without a cookie"
                logger.warning("lost bookies %s: %d ledgers listed", lost, listed)
        waits = [wait_s for wait_s in (verdict.look_after_s, ends_s) if wait_s is not None]
        return min(waits, default=None)

    async def _maintained(self) -> tuple[frozenset[str], float | None]:
        """Return the bookies in maintenance, and in how many seconds the first maintenance ends."""
        now_ms = wall_clock_ms()
        plans = [each async for each in self._plans.all() if each.kind == MAINTENANCE and not each.is_over(now_ms)]
        ends = [each.until_ms for each in plans if each.until_ms]
        wait_s = max(0.1, (min(ends) - now_ms) / 1000) if ends else None
        return frozenset(each.bookie for each in plans), wait_s

    async def _recovery_delay_s(self) -> float:
        """Return how long to wait for one lost bookie.

        An operator who writes 0, or the old value again, requests an audit now, as with Apache's auditor. An unreadable
        value counts as missing.
        """
        before, self._delay = self._delay, None
        try:
            delay = self._delay = await self._store.lost_bookie_recovery_delay()
        except MetadataFormat as error:
            self._complain(str(error))
            delay = None
        if delay is None:
            # An operator removed it, or it is unreadable.
            return self._options.lost_bookie_delay_s
        if before is not None and before.version != delay.version and delay.seconds in (0, before.seconds):
            self._lost.end_delay()
        return float(delay.seconds)

    async def _check_ledgers_if_due(self) -> float | None:
        """Begin a check of all ledgers if it is due. It runs in the background: it may take hours, and lost bookies
        must not wait for it."""
        interval_s = self._options.ledger_check_interval_s
        if self._checking is not None:
            if not self._checking.done():
                return None
            checked, self._checking = self._checking, None
            checked.result()
        if interval_s <= 0:
            return None
        checked_ms = None
        try:
            checked_ms = await self._store.all_checked_ms()
        except MetadataFormat as error:
            # The check that is due now writes it again.
            self._complain(str(error))
        now_ms = wall_clock_ms()
        if checked_ms is not None and 0 <= now_ms - checked_ms < interval_s * 1000:
            return interval_s - (now_ms - checked_ms) / 1000
        self._checking = asyncio.ensure_future(self.check_ledgers())
        self._checking.add_done_callback(lambda _: self._wake.set())
        return None

    async def check_ledgers(self) -> None:
        """List the ledgers of which bookies lack entries, and record when all were checked.

        Raises:
            SessionExpired: this process is not the auditor any more. What is found after that is not listed.
        """
        check = LedgerCheck(
            self._context, self._options.verified_share, blames_silent=False, unexpected=self._unexpected
        )
        async for found in check.findings():
            if found.error is not None:
                logger.warning("ledger %d is not checked: %s", found.ledger_id, found.error)
            if found.bookies:
                await self.check_elected()
                await self._store.mark(found.ledger_id, found.bookies, wall_clock_ms())
        await self.check_elected()
        await self._store.set_all_checked_ms(wall_clock_ms())

    def _complain(self, what: str) -> None:
        """Log what is wrong with a node, but only once until the problem changes."""
        if what != self._complaint:
            logger.warning("%s; it is ignored", what)
            self._complaint = what

    def _stop_checking(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None

    async def check_elected(self) -> None:
        """Raise SessionExpired if this process is not the auditor any more."""
        if not await self._election.is_elected():
            raise SessionExpired("this process is not the auditor any more")

    async def _bookies(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return (bookies with a cookie, bookies that serve)."""
        registry = self._context.registry
        known = frozenset(await registry.known())
        return known, await registry.registered_ids()

    async def audit(self, lost: Collection[str], before_write: Callable[[], Awaitable[None]] | None = None) -> int:
        """List every ledger that names a lost bookie; return how many there are.

        Args:
            before_write: awaited before each write; its error ends the audit.

        A ledger whose metadata cannot be read is skipped with a warning, so the other ledgers do not wait for it.

        Raises:
            BookKeeperError: the metadata store failed, and some ledgers may not be listed.
        """
        known, registered = await self._bookies()
        registered -= frozenset(lost)
        listed = 0

        async def look_at(ledger_id: int, metadata: LedgerMetadata | BookKeeperError) -> bool:
            if isinstance(metadata, BookKeeperError):
                logger.warning("ledger %d is not audited: %s", ledger_id, metadata)
                return False
            ensembles = [fragment.bookies for fragment in metadata.fragments]
            missing = lost_in(ensembles, lost, known, registered)
            if not missing:
                return False
            if before_write is not None:
                await before_write()
            await self._store.mark(ledger_id, missing, wall_clock_ms())
            return True

        async for some in read_all(self._context.ledgers, self._options.ledgers_at_once, self._unexpected):
            listed += sum(await asyncio.gather(*(look_at(*each) for each in some)))
        return listed


def _now_s() -> float:
    return asyncio.get_running_loop().time()
