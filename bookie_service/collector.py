"""Garbage collection at work: gathers facts, asks `collection` what may go, and lets it go.

One task on the event loop decides and does what must not cross requests: letting go of ledgers and logs. Everything
that reads or writes much runs on one thread of its own. A pass, in this order:

1. the bookie's own ledgers, then the listing of all ledgers, then a direct read of each that is missing there;
   what passes all three is dropped (fenced ones are remembered first, so that a late writer is still refused);
2. now and then, ledgers that live on other bookies only;
3. settled entry logs without a live byte are removed, and those with few are rewritten (`storage.compaction`).

What cannot be told is kept: a failing metadata store ends steps 1 and 2, a damaged log is left out and said once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from bkspark.errors import BookKeeperError, StorageDamaged
from bookie_service import collection
from bookie_service.collection import CompactionLevel, LogUsage
from bookie_service.storage.compaction import Compactor
from bookie_service.storage.ledger_storage import LedgerStorage

logger = logging.getLogger(__name__)

_LEDGERS_PER_TURN = 64
"""Ledgers dropped before the event loop serves requests again."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CollectionOptions:
    """When and how fast garbage is collected.

    deleted_share_max: more than this share of the bookie's ledgers never vanishes in one pass.
    entries_per_s, bytes_per_s: of what compaction copies; which of the two counts, `limit_by_bytes` says. 0: no limit.
    """

    interval_s: float = 600.0
    overreplicated_interval_s: float = 86_400.0
    minor: CompactionLevel = field(default_factory=lambda: CompactionLevel(0.2, 3600.0))
    major: CompactionLevel = field(default_factory=lambda: CompactionLevel(0.8, 86_400.0))
    deleted_share_max: float = 0.9
    entries_per_s: int = 1000
    bytes_per_s: int = 1_000_000
    limit_by_bytes: bool = False

    def __post_init__(self) -> None:
        for name, level in (("minor", self.minor), ("major", self.major)):
            if level.threshold >= 1:
                raise ValueError(f"{name}CompactionThreshold {level.threshold:g} must be below 1; 0 turns it off")
            if level.is_on and level.interval_s < self.interval_s:
                raise ValueError(
                    f"{name}CompactionInterval {level.interval_s:g} s is shorter than gcWaitTime "
                    f"{round(self.interval_s * 1000)} ms, which says how often it is looked at"
                )
        if self.minor.is_on and self.major.is_on:
            if self.minor.threshold >= self.major.threshold:
                raise ValueError(
                    f"minorCompactionThreshold {self.minor.threshold:g} must be below majorCompactionThreshold "
                    f"{self.major.threshold:g}"
                )
            if self.minor.interval_s >= self.major.interval_s:
                raise ValueError(
                    f"minorCompactionInterval {self.minor.interval_s:g} must be below majorCompactionInterval "
                    f"{self.major.interval_s:g}"
                )


class LedgerCensus(Protocol):
    """What the collector asks the metadata store; every method raises BookKeeperError when nothing is known."""

    async def listed(self) -> np.ndarray:
        """Return the ids of all ledgers."""

    async def is_deleted(self, ledger_id: int) -> bool:
        """Return whether a direct read says that a ledger does not exist."""

    def elsewhere(self, ledger_id: int) -> AbstractAsyncContextManager[bool]:
        """Give whether a ledger certainly lives on other bookies only; while inside, nobody repairs it."""


@dataclass(slots=True)
class PassReport:
    """What one pass did."""

    dropped_ledgers: int = 0
    removed_logs: int = 0
    compacted_logs: int = 0
    damaged_logs: int = 0
    freed_bytes: int = 0


class _Stopped(Exception):
    """The collector was told to stop."""


class Collector:
    """Runs passes from `start` to `stop`. For one event loop."""

    def __init__(
        self,
        store: LedgerStorage,
        compactor: Compactor,
        census: LedgerCensus,
        options: CollectionOptions,
        flush: Callable[[], Awaitable[None]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`flush()` returns when all that was added before is in entry logs and index; `on_failure(error)`: the index
        or the list of logs may be half changed, and the process must end.
        """
        self._store = store
        self._compactor = compactor
        self._census = census
        self._options = options
        self._flush = flush
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "collector")
        self._stopping = threading.Event()
        self._forced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._minor_at = self._major_at = self._overreplicated_at = time.monotonic()
        self._said: set[str] = set()
        self._damaged: set[int] = set()

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    def force(self) -> None:
        """Begin a full pass with a major compaction now, or right after the one that runs."""
        self._forced.set()

    def abandon(self) -> None:
        """Stop at the next convenient place; what is half done, the next start finishes."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def stop(self) -> None:
        """Stop, and return when nothing of it runs any more."""
        self.abandon()
        if self._task is not None:
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._forced.wait(), self._options.interval_s)
                is_forced = self._forced.is_set()
                self._forced.clear()
                report = await self.run_pass(is_forced)
                if is_forced or report != PassReport():
                    logger.info(
                        "garbage collection: %d ledgers dropped, %d entry logs removed, %d rewritten, %d damaged and "
                        "kept, %d bytes freed",
                        report.dropped_ledgers,
                        report.removed_logs,
                        report.compacted_logs,
                        report.damaged_logs,
                        report.freed_bytes,
                    )
        except _Stopped:
            return
        except Exception as error:
            self._on_failure(error)

    async def run_pass(self, is_forced: bool) -> PassReport:
        """Do one pass. A forced one flushes before it, looks for everything, and compacts as a major one does.

        Raises:
            OSError: an index file or a log could not be changed; what is durable is whole, but the process must end.
        """
        report = PassReport()
        if is_forced:
            await self._flush()
        await self._apart(self._store.tombstones.remember, (), _now_s())
        try:
            await self._drop_deleted(report)
            if is_forced or self._is_overreplication_due():
                await self._drop_overreplicated(report)
        except BookKeeperError as error:
            self._say(f"ledgers are not dropped, for it cannot be told which are deleted: {error}")
        if is_forced:
            await self._apart(self._store.seal_logs)
        await self._collect_logs(self._threshold(is_forced), report)
        return report

    # ---- ledgers ----

    async def _drop_deleted(self, report: PassReport) -> None:
        own = await self._own_ledgers()
        if not len(own):
            return
        missing = collection.missing_ledgers(own, await self._census.listed())
        refusal = collection.refusal(len(own), len(missing), self._options.deleted_share_max)
        if refusal is not None:
            self._say(refusal)
            return
        deleted = []
        for ledger_id in missing:
            if await self._census.is_deleted(ledger_id):
                deleted.append(ledger_id)
            else:
                self._say(f"ledger {ledger_id} is not in the listing of all ledgers, but exists: it is kept")
        await self._drop(deleted, report)

    async def _drop_overreplicated(self, report: PassReport) -> None:
        self._overreplicated_at = time.monotonic()
        for ledger_id in (await self._own_ledgers()).tolist():
            async with self._census.elsewhere(ledger_id) as is_elsewhere:
                if is_elsewhere:
                    await self._drop([ledger_id], report)

    def _is_overreplication_due(self) -> bool:
        interval_s = self._options.overreplicated_interval_s
        return 0 < interval_s <= time.monotonic() - self._overreplicated_at

    async def _drop(self, ledger_ids: Sequence[int], report: PassReport) -> None:
        """Drop ledgers of which nothing waits to be flushed; the others' turn comes in a later pass."""
        fenced = []
        async for some in _in_turns(ledger_ids):
            fenced += [ledger_id for ledger_id, is_fenced in self._store.droppable(some) if is_fenced]
        # Durable before the ledgers go: afterwards nothing else tells that they were fenced.
        await self._apart(self._store.tombstones.remember, fenced, _now_s())
        dropped = []
        async for some in _in_turns(ledger_ids):
            dropped += self._store.drop(some)
        report.dropped_ledgers += len(dropped)
        await self._apart(self._store.index.sync_removed, dropped)

    async def _own_ledgers(self) -> np.ndarray:
        return await self._apart(self._store.index.ledger_ids)

    # ---- logs ----

    def _threshold(self, is_forced: bool) -> float:
        options, now = self._options, time.monotonic()
        threshold = collection.due_threshold(options.minor, options.major, now - self._minor_at, now - self._major_at)
        if is_forced:
            threshold = max(threshold, options.major.threshold)
        if threshold:
            self._minor_at = now
        if threshold and threshold == options.major.threshold:
            self._major_at = now
        return threshold

    async def _collect_logs(self, threshold: float, report: PassReport) -> None:
        # In this order: every ledger in a settled log has its index file already, so none is missed.
        settled = self._store.logs.settled()
        held = await self._own_ledgers()
        usages = [usage for log_id in settled if (usage := await self._usage(log_id, held, report)) is not None]
        for log_id in collection.dead_logs(usages):
            await self._remove(log_id)
            report.removed_logs += 1
        freed = sum(each.log_bytes for each in usages if not each.live_bytes)
        for log_id in collection.logs_to_compact(usages, threshold):
            if log_id not in self._damaged and await self._compact(log_id, report):
                report.compacted_logs += 1
                freed += next(each.log_bytes - each.live_bytes for each in usages if each.log_id == log_id)
        report.freed_bytes += freed

    async def _usage(self, log_id: int, held: np.ndarray, report: PassReport) -> LogUsage | None:
        try:
            facts = await self._apart(self._compactor.facts, log_id, self._pace())
        except (StorageDamaged, OSError) as error:
            self._isolate(log_id, error, report)
            return None
        return collection.usage(log_id, facts.log_bytes, facts.ledger_ids, facts.ledger_bytes, held)

    async def _compact(self, log_id: int, report: PassReport) -> bool:
        try:
            intent = await self._apart(self._compactor.copy, log_id, self._pace())
        except (StorageDamaged, OSError) as error:
            self._isolate(log_id, error, report)
            return False
        if intent is not None:
            await self._apart(self._compactor.finish, intent, self._pace())
        await self._remove(log_id)
        if intent is not None:
            await self._apart(self._compactor.forget_intent)
        return True

    async def _remove(self, log_id: int) -> None:
        # On the event loop, between two requests: no read holds a position into the log any more.
        self._store.forget_log(log_id)
        await self._apart(self._compactor.remove, log_id)

    def _isolate(self, log_id: int, error: Exception, report: PassReport) -> None:
        report.damaged_logs += 1
        if isinstance(error, StorageDamaged):
            self._damaged.add(log_id)
        self._say(f"entry log {log_id:x} is left out of garbage collection: {error}")

    # ---- tools ----

    def _pace(self) -> Callable[[int, int], None]:
        """Return a function that waits after each piece of work as the limits ask, and ends it when told to stop."""
        options = self._options
        rate = options.bytes_per_s if options.limit_by_bytes else options.entries_per_s
        began = time.monotonic()
        done = 0

        def pace(entries: int, size: int) -> None:
            nonlocal done
            done += size if options.limit_by_bytes else entries
            if self._stopping.wait(collection.pause_s(done, rate, time.monotonic() - began)):
                raise _Stopped

        return pace

    async def _apart(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function on the collector's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


async def _in_turns(ledger_ids: Sequence[int]) -> AsyncIterator[Sequence[int]]:
    for first in range(0, len(ledger_ids), _LEDGERS_PER_TURN):
        yield ledger_ids[first : first + _LEDGERS_PER_TURN]
        await asyncio.sleep(0)


def _now_s() -> int:
    return int(time.time())
