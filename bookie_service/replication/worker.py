"""ReplicationWorker: takes ledgers off the under-replication list and repairs them, a few at a time.

A ledger is repaired under its lock, an ephemeral node. A lock lost with its session does no harm: the compare-and-set
decides, and this worker stops before its next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from bkspark.core.effects import WriteMetadata
from bkspark.core.metadata import Fragment
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError, MetadataError, MetadataFormat, NoSuchLedger, SessionExpired, TooManyRequests
from bkspark.ledger.context import ClientContext
from bkspark.ledger.metadata_steps import write_metadata
from bkspark.ledger.recovery import recover
from bkspark.ledger.stored import ReplicaReader
from bkspark.metadata.tree import Tree
from bkspark.metadata.underreplication import Underreplicated, UnderreplicationStore
from bookie_service.replication.containment import UnexpectedErrors
from bookie_service.replication.copying import PIECES_MAX, ByteRate, CopyFailed, FragmentCopier
from bookie_service.replication.options import RepairOptions
from bookie_service.replication.repair import (
    CopyEntries,
    Effect,
    Ended,
    InspectCopies,
    Outcome,
    RecoverLedger,
    RepairCore,
    entry_windows,
    stored_entries,
)

logger = logging.getLogger(__name__)

FAILED_PAUSE_FIRST_S = 1.0
FAILURES_TOLD = 3
DEFERRED_MAX = 100_000
"""Ledgers that are remembered as not to be tried yet; beyond this number, the oldest are tried again."""


@dataclass(slots=True)
class _Deferred:
    """A waiting ledger: it is not tried before `due_s`; since when its open last fragment is unchanged; how often it
    failed."""

    due_s: float
    fragment: Fragment | None = None
    since_s: float = 0.0
    failures: int = 0
    error: BookKeeperError | None = None


class ReplicationWorker:
    """Repairs listed ledgers. `run` for ever, or `repair` one ledger."""

    def __init__(
        self,
        context: ClientContext,
        tree: Tree,
        store: UnderreplicationStore,
        who: str,
        options: RepairOptions,
        unexpected: UnexpectedErrors,
    ) -> None:
        self._context = context
        self._tree = tree
        self._store = store
        self._who = who
        self._options = options
        self._rate = ByteRate(options.bytes_per_s)
        self._piece_bytes = max(1, options.copies_in_flight_bytes // (options.ledgers_at_once * PIECES_MAX))
        self._deferred: dict[int, _Deferred] = {}
        self._unexpected = unexpected
        self._wake = asyncio.Event()
        self.repaired = 0
        self.copied_bytes = 0

    # ---- the list ----

    async def run(self) -> None:
        """Repair listed ledgers, for ever. After errors of the metadata store, and unexpected errors, it waits and
        retries."""
        stop_watching = None
        try:
            while True:
                try:
                    if stop_watching is None:
                        stop_watching = await self._store.watch(self._wake.set)
                    done = await self.repair_listed()
                except Exception as error:
                    if not isinstance(error, BookKeeperError):
                        error = self._unexpected.failure(error, "the list of under-replicated ledgers")
                    logger.warning("autorecovery cannot work now, it tries again: %s", error)
                    done = 0
                if not done:
                    await self._pause()
        finally:
            if stop_watching is not None:
                stop_watching()

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
        """Try every listed ledger that is due once; return how many left the list.

        Args:
            only: these and no others, whether autorecovery is enabled or not: an operator requested them.

        Raises:
            MetadataError: the store failed.
        """
        listed = [ledger_id async for ledger_id in self._store.ids() if only is None or ledger_id in only]
        self._deferred = {ledger_id: self._deferred[ledger_id] for ledger_id in listed if ledger_id in self._deferred}
        now_s = self._now_s()
        due = [id for id in listed if id not in self._deferred or self._deferred[id].due_s <= now_s]
        # Other workers see the same list: each begins at another place.
        self._context.random.shuffle(due)
        waiting = iter(due)
        done = 0

        async def lane() -> None:
            nonlocal done
            for ledger_id in waiting:
                if only is None and not await self._store.is_enabled():
                    return
                done += await self.repair(ledger_id)

        lanes = [asyncio.ensure_future(lane()) for _ in range(min(self._options.ledgers_at_once, len(due)))]
        try:
            await asyncio.gather(*lanes)
        finally:
            for task in lanes:
                task.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
        return done

    async def repair(self, ledger_id: int) -> bool:
        """Repair one listed ledger under its lock; return whether it left the list.

        Raises:
            MetadataError: the store failed.
        """
        if not await self._store.lock(ledger_id, self._who):
            return False
        session = self._tree.session_id
        try:
            try:
                work = await self._store.find(ledger_id)
                if work is None:
                    return False
                ended, fragment = await self._repaired(work, session)
            except Exception as error:
                if isinstance(error, MetadataError) and not isinstance(error, MetadataFormat):
                    raise
                if not isinstance(error, BookKeeperError):
                    error = self._unexpected.failure(error, f"the repair of ledger {ledger_id}", ledger_id)
                self._defer(ledger_id, Ended(Outcome.DEFERRED, error), None)
                return False
            if ended.outcome not in (Outcome.COMPLETE, Outcome.GONE):
                self._defer(ledger_id, ended, fragment)
                return False
            self._deferred.pop(ledger_id, None)
            self.repaired += 1
            return await self._store.finish(work)
        finally:
            # The error must not replace a cancellation. The end of the session releases the lock, or its next `lock`
            # finds that it already holds it.
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
            logger.warning("ledger %d is not repaired yet, again in %g s: %s", ledger_id, pause_s, ended.error)
        if len(self._deferred) >= DEFERRED_MAX and ledger_id not in self._deferred:
            self._deferred.pop(next(iter(self._deferred)))
        self._deferred[ledger_id] = known

    def raise_failure(self, ledger_ids: Collection[int]) -> None:
        """Raise the error of one of these ledgers, if each of them was tried and failed `FAILURES_TOLD` times."""
        errors = []
        for ledger_id in ledger_ids:
            known = self._deferred.get(ledger_id)
            if known is None or known.error is None or known.failures < FAILURES_TOLD:
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

    async def _repaired(self, work: Underreplicated, session: int) -> tuple[Ended, Fragment | None]:
        """Return how the repair ended, and the last fragment that it saw."""
        ledger_id = work.ledger_id
        # Read after the list: a bookie that was reported since then does not count as serving.
        candidates = await self._context.watcher.replacements()
        registered = candidates.writable | frozenset(await self._context.registry.read_only())
        try:
            stored = await self._context.ledgers.read(ledger_id)
        except NoSuchLedger:
            return Ended(Outcome.GONE), None
        core = RepairCore(
            ledger_id,
            stored.metadata,
            stored.version,
            reported=work.missing,
            writable=candidates.writable,
            registered=registered,
            random=self._context.random,
            topology=candidates.topology,
            may_recover=self._may_recover(ledger_id, stored.metadata.last_fragment),
        )
        run = _RepairRun(self._context, core, registered, self._options.password, self._rate, self._piece_bytes)
        (effect,) = core.start()
        while not isinstance(effect, Ended):
            if self._tree.session_id != session:
                error = SessionExpired(f"the lock of ledger {ledger_id} went with its session")
                return Ended(Outcome.DEFERRED, error), None
            (effect,) = await run.perform(effect)
        self.copied_bytes += run.copied_bytes
        return effect, core.metadata.last_fragment


class _RepairRun:
    """Performs the effects of one RepairCore."""

    def __init__(
        self,
        context: ClientContext,
        core: RepairCore,
        registered: frozenset[str],
        password: bytes,
        rate: ByteRate,
        piece_bytes: int,
    ) -> None:
        self._context = context
        self._core = core
        self._registered = registered
        self._fallback_password = password
        self._rate = rate
        self._piece_bytes = piece_bytes
        self.copied_bytes = 0

    @property
    def _password(self) -> bytes:
        password = self._core.metadata.password
        return self._fallback_password if password is None else password

    async def perform(self, effect: InspectCopies | CopyEntries | RecoverLedger | WriteMetadata) -> list[Effect]:
        """Return what to do next: one effect at a time, as each waits for the one before."""
        match effect:
            case InspectCopies():
                return await self._inspect(effect)
            case CopyEntries():
                return await self._copy(effect)
            case RecoverLedger():
                return await self._recover()
            case WriteMetadata():
                return await self._write(effect)
            case _:
                assert_never(effect)

    async def _write(self, effect: WriteMetadata) -> list[Effect]:
        try:
            return await write_metadata(self._context.ledgers, self._core, self._core.ledger_id, effect)
        except NoSuchLedger:
            return self._core.on_gone()

    async def _inspect(self, effect: InspectCopies) -> list[Effect]:
        core = self._core
        held = ReplicaReader(self._context, core.ledger_id, core.metadata, self._password)
        bookie, quorum = effect.fragment.bookies[effect.slot], core.metadata.write_quorum
        holes = [np.empty(0, np.int64)]
        try:
            for part, end_entry in entry_windows(effect.fragment, effect.end_entry):
                holes.append(await held.missing(bookie, stored_entries(part, end_entry, effect.slot, quorum)))
        except TooManyRequests as error:
            return core.on_busy(error)
        except BookKeeperError:
            # An unreachable bookie is replaced: an extra copy does no harm.
            return core.on_inspected(effect, None)
        return core.on_inspected(effect, np.concatenate(holes))

    async def _copy(self, effect: CopyEntries) -> list[Effect]:
        core = self._core
        copier = FragmentCopier(
            self._context, core.ledger_id, core.metadata, self._password, self._rate, self._piece_bytes
        )
        lost = frozenset(effect.fragment.bookies) - self._registered
        try:
            await copier.copy(effect, lost)
        except CopyFailed as failure:
            self._context.watcher.on_failure(failure.target)
            return core.on_copy_failed(failure.target, failure.error)
        except BookKeeperError as error:
            return core.on_unreadable(error)
        finally:
            self.copied_bytes += copier.copied_bytes
        return core.on_copied()

    async def _recover(self) -> list[Effect]:
        core, context = self._core, self._context
        try:
            stored = await context.ledgers.read(core.ledger_id)
            if not stored.metadata.is_closed:
                await recover(context, core.ledger_id, stored, self._password, WriterOptions())
                stored = await context.ledgers.read(core.ledger_id)
        except NoSuchLedger:
            return core.on_gone()
        except BookKeeperError as error:
            return core.on_metadata_failed(error)
        return core.on_recovered(stored.metadata, stored.version)
