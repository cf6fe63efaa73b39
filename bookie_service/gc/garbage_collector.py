"""The garbage collector: gathers facts, asks `gc_policy` what may be deleted, and deletes it.

A task on the event loop decides, and does what must not overlap requests: it drops ledgers and logs. Work that reads or
writes much runs on a thread. A pass has these steps, in this order:

1. ledgers that are certainly deleted (`deletion_proofs`) are dropped; fenced ones are remembered first, so that a late
   writer is still refused;
2. at intervals, ledgers that only other bookies hold are dropped;
3. rotated entry logs without a live byte are removed, and those with few live bytes are rewritten
   (`storage.logs.compaction`).

When in doubt, data is kept: if the metadata store fails, steps 1 and 2 end; a damaged log is skipped and reported once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, TypeVarTuple

import numpy as np

from bkspark.errors import BookKeeperError, StorageDamaged
from bookie_service.formats.compaction import Intent
from bookie_service.gc import gc_policy
from bookie_service.gc.collection_options import CollectionOptions
from bookie_service.gc.collection_status import CollectionStatus, PassReport
from bookie_service.gc.compaction_pace import CollectionStopped, CompactionPace, PaceLimit
from bookie_service.gc.deletion_proofs import DeletedLedgersView, DeletionProofs
from bookie_service.gc.gc_policy import CompactionLevel, LogUsage
from bookie_service.gc.query_pace import QueryPace
from bookie_service.gc.said_lines import SaidLines
from bookie_service.storage import ledger_id_sets
from bookie_service.storage.disks import DiskRoom
from bookie_service.storage.io.files import is_disk_failure, is_out_of_space, may_be_repeated
from bookie_service.storage.ledgers.interface import LedgerStorage
from bookie_service.storage.logs.compaction import CompactionBlocked, Compactor, LogInDoubt

logger = logging.getLogger(__name__)

_TURN_S = 0.001
"""How long ledgers are dropped before the event loop serves requests again."""

SUSPENDED = "garbage collection is suspended; resume it first"

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class GarbageView(DeletedLedgersView, Protocol):
    """The collector's queries to the metadata store. Each method raises BookKeeperError if the answer is unknown."""

    def elsewhere(self, ledger_id: int) -> AbstractAsyncContextManager[bool]:
        """Yield whether only other bookies certainly hold a ledger. No process repairs it inside the context."""


@dataclass(frozen=True, slots=True)
class CollectorCallbacks:
    """What a bookie does for its collector. All are called on the event loop.

    flush: `flush()` returns when everything added before is in entry logs and index.
    on_failure: `on_failure(error)`: the index or the list of logs may be half changed, and the process must end.
    room: `room()` returns the room of the ledger directories.
    on_no_space: `on_no_space()`: a compaction found a disk full.
    on_dropped: `on_dropped(ledger id)`: a ledger was dropped.
    """

    flush: Callable[[], Awaitable[None]]
    on_failure: Callable[[BaseException], None]
    room: Callable[[], DiskRoom] = lambda: DiskRoom.ENOUGH
    on_no_space: Callable[[], None] = lambda: None
    on_dropped: Callable[[int], None] = lambda ledger_id: None


@dataclass(frozen=True, slots=True)
class _Request:
    """A caller of `collect` that waits for the report of its pass."""

    report: asyncio.Future[PassReport]
    major: bool
    """Whether the caller allows a major compaction; `minor`: a minor one."""
    minor: bool


@dataclass(frozen=True, slots=True)
class _Copy:
    """`old_id`: a log; `new_id`: the new log with the entries that count; None: no entry counts."""

    old_id: int
    new_id: int | None


class GarbageCollector:
    """Runs passes from `start` to `stop`. For one event loop."""

    def __init__(
        self,
        store: LedgerStorage,
        compactor: Compactor,
        metadata_view: GarbageView,
        options: CollectionOptions,
        callbacks: CollectorCallbacks,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        copies_at_once: int = 1,
    ) -> None:
        """Create a collector; `start` begins its passes.

        Args:
            clock_s: `clock_s()` returns seconds, for the time between passes and compactions, and how long these take.
            copies_at_once: how many logs, of different ledger directories, compaction copies at the same time.
        """
        self._store = store
        """The storage of the bookie's ledgers."""
        self._compactor = compactor
        self._metadata_view = metadata_view
        self._options = options
        """The options in force. Replaced by `set_options`."""
        self._callbacks = callbacks
        self._thread = ThreadPoolExecutor(1, "collector")
        self._copiers = ThreadPoolExecutor(copies_at_once, "compaction") if copies_at_once > 1 else None
        self._stopping = threading.Event()
        """Set once, by `abandon`: all threads stop at the next convenient point."""
        self._asked = asyncio.Event()
        """Set when a pass is requested. Cleared when it begins."""
        self._waiting: list[_Request] = []
        """Callers of `collect` whose pass has not begun."""
        self.status = CollectionStatus()
        """What was done since the start. Others read it; only this class changes it."""
        self._task: asyncio.Task[None] | None = None
        """Runs the passes; None before `start`."""
        self._clock_s = clock_s
        self._minor_at = self._major_at = self._overreplicated_at = clock_s()
        """When a minor compaction was last due, or the start, by `clock_s`. `_major_at`: the same for a major
        compaction. `_overreplicated_at`: the same for over-replicated ledgers."""
        self._proofs = DeletionProofs(
            store.index,
            metadata_view,
            options.interval_s,
            options.deleted_share_max,
            self._in_thread,
            clock_s,
        )
        """Determines which ledgers are certainly deleted."""
        self._said = SaidLines()
        """Log lines that were written and are not repeated."""
        self._damaged: set[int] = set()
        """Logs that cannot be rewritten, because they are damaged. Only grows."""

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    @property
    def options(self) -> CollectionOptions:
        """The options in force."""
        return self._options

    def set_options(self, options: CollectionOptions) -> None:
        """Use other thresholds, intervals and rates from now on, and also in the current pass."""
        self._options = replace(
            options, interval_s=self._options.interval_s, deleted_share_max=self._options.deleted_share_max
        )

    async def collect(self, *, major: bool = True, minor: bool = True) -> PassReport:
        """Run a whole pass with a major compaction, a minor one or no compaction, now or after the current pass.

        Raises:
            BookKeeperError: the collector ended before the pass, or an operator suspended collection.
        """
        if self.status.is_suspended:
            raise BookKeeperError(SUSPENDED)
        request = _Request(asyncio.get_running_loop().create_future(), major, minor)
        self._waiting.append(request)
        self._asked.set()
        return await request.report

    def hurry(self) -> None:
        """Request an ordinary pass now, because space is needed."""
        self._asked.set()

    def abandon(self) -> None:
        """Stop at the next convenient point. The next start finishes what is unfinished."""
        self._stopping.set()
        if self._task is not None:
            self._task.cancel()
        for threads in self._executors():
            threads.shutdown(wait=False, cancel_futures=True)

    async def stop(self) -> None:
        """Stop, and return when the collector no longer runs."""
        self.abandon()
        if self._task is not None:
            await asyncio.wait([self._task])
        for threads in self._executors():
            await asyncio.to_thread(threads.shutdown)

    def _executors(self) -> list[ThreadPoolExecutor]:
        return [self._thread, *([] if self._copiers is None else [self._copiers])]

    async def _run(self) -> None:
        waiting: list[_Request] = []
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), self._options.interval_s)
                if self._stopping.is_set():
                    # `wait_for` loses a cancellation that comes together with the result.
                    return
                self._asked.clear()
                waiting, self._waiting = self._waiting, []
                if self.status.is_suspended:
                    _fail(waiting, SUSPENDED)
                    continue
                report = await self.run_pass(
                    is_forced=bool(waiting),
                    major=any(request.major for request in waiting),
                    minor=any(request.minor for request in waiting),
                )
                self._note(report)
                if waiting or report != PassReport():
                    logger.info("garbage collection: %s", report)
                for request in waiting:
                    if not request.report.done():
                        request.report.set_result(report)
        except CollectionStopped:
            return
        except Exception as error:
            _fail(waiting, f"garbage collection failed, which ends the bookie: {error}")
            self._callbacks.on_failure(error)
        finally:
            _fail(waiting + self._waiting, "the bookie stopped before garbage was collected")

    async def run_pass(self, *, is_forced: bool, major: bool = True, minor: bool = True) -> PassReport:
        """Run one pass. A forced pass flushes first, checks everything, and compacts.

        Args:
            major, minor: which compactions a forced pass may run. If both, it runs a major one.

        Raises:
            OSError: an index file or a log could not be changed. Durable data is whole, but the process must end.
        """
        report = PassReport()
        self._said.begin_pass()
        self.status.is_forced = is_forced
        await self._in_thread(self._store.keep_records)
        # Entries that a full disk cannot take wait in memory and in the journal. Garbage is deleted nevertheless.
        is_flushed = is_forced and self._callbacks.room() is not DiskRoom.FULL
        if is_flushed:
            await self._callbacks.flush()
        self._store.watch.begin()
        try:
            await self._drop_deleted(report, is_forced=is_forced)
            if is_forced or self._is_overreplication_due():
                await self._drop_overreplicated(report)
        except BookKeeperError as error:
            self._note_kept(report, f"ledgers are not dropped, because it is unknown which are deleted: {error}")
        finally:
            self._store.watch.end()
        if is_flushed:
            await self._in_thread(self._store.seal_logs)
        level = self.take_due_compaction(is_forced=is_forced, may_major=major, may_minor=minor)
        await self._collect_logs(level, report)
        return report

    def _note(self, report: PassReport) -> None:
        status = self.status
        status.is_forced = False
        status.passes += 1
        status.deleted_ledgers += report.dropped_ledgers
        status.last_report = report

    # ---- ledgers ----

    async def _drop_deleted(self, report: PassReport, *, is_forced: bool) -> None:
        on_kept = functools.partial(self._note_kept, report)
        deleted = await self._proofs.deleted(self._query_pace(), on_kept, is_forced=is_forced)
        await self._drop(deleted.tolist(), report)

    async def _drop_overreplicated(self, report: PassReport) -> None:
        self._overreplicated_at = self._clock_s()
        pace = self._query_pace()
        own = await self._in_thread(self._store.index.ledger_ids)
        # One by one, because a list of a million ids would block the event loop.
        for ledger_id in map(int, own):
            await pace()
            async with self._metadata_view.elsewhere(ledger_id) as is_elsewhere:
                if is_elsewhere:
                    await self._drop([ledger_id], report)

    def _is_overreplication_due(self) -> bool:
        interval_s = self._options.overreplicated_interval_s
        return 0 < interval_s <= self._clock_s() - self._overreplicated_at

    async def _drop(self, ledger_ids: Sequence[int], report: PassReport) -> None:
        """Drop the ledgers that have nothing left to flush, and were not written since the proofs began. A later pass
        proves again that the others are deleted."""
        ledger_ids = await self._in_thread(self._store.watch.unwritten, ledger_ids)
        await self._in_thread(self._store.read_ahead_of_drop, ledger_ids)
        fenced = []
        async for ledger_id in _in_turns(ledger_ids):
            fenced += [each for each, is_fenced in self._store.droppable([ledger_id]) if is_fenced]
        try:
            # Durable before the ledgers are dropped, because no other record says then that they were fenced.
            await self._in_thread(self._store.prepare_drop, ledger_ids, fenced, _now_s())
        except OSError as error:
            if not is_out_of_space(error):
                raise
            self._note_kept(report, f"{len(fenced)} fenced ledgers are not dropped yet: they cannot be noted: {error}")
            ledger_ids = sorted(set(ledger_ids).difference(fenced))
            await self._in_thread(self._store.prepare_drop, ledger_ids, (), _now_s())
        dropped = []
        async for ledger_id in _in_turns(ledger_ids):
            for each in self._store.drop([ledger_id]):
                dropped.append(each)
                self._callbacks.on_dropped(each)
        report.dropped_ledgers += len(dropped)
        await self._in_thread(self._proofs.forget, dropped)
        await self._in_thread(self._store.sync_dropped, dropped)
        if len(dropped) < len(ledger_ids):
            await self._in_thread(self._keep_prepared, ledger_ids, dropped)

    def _keep_prepared(self, prepared: Sequence[int], dropped: Sequence[int]) -> None:
        self._store.keep_prepared(set(prepared).difference(dropped))

    def _held(self) -> np.ndarray:
        return ledger_id_sets.union(self._store.index.ledger_ids(), self._store.limbo.ledger_ids)

    # ---- logs ----

    def take_due_compaction(self, *, is_forced: bool, may_major: bool, may_minor: bool) -> CompactionLevel:
        """Return the compaction that a pass is to run now; its next one is due an interval later."""
        options, now, room = self._options, self._clock_s(), self._callbacks.room()
        status, when_full = self.status, options.compact_when_full
        minor = gc_policy.OFF if status.is_minor_suspended else options.minor
        major = gc_policy.OFF if status.is_major_suspended else options.major
        if is_forced:
            minor, major = minor if may_minor else gc_policy.OFF, major if may_major else gc_policy.OFF
        if is_forced or (when_full and room is DiskRoom.FULL):
            due = gc_policy.forced_level(minor, major, without_interval=options.force_without_interval)
        else:
            due = gc_policy.due_level(minor, major, now - self._minor_at, now - self._major_at)
        level = gc_policy.level_with_room(due, minor, room, when_full=when_full)
        if level != due:
            self._say("compaction waits until there is more room on the disks")
        if level.threshold > 0:
            self._minor_at = now
            if level == major:
                self._major_at = now
        return level

    async def _collect_logs(self, level: CompactionLevel, report: PassReport) -> None:
        unfinished = self._compactor.unfinished
        if unfinished is not None:
            report.compacted_logs += await self._finish(unfinished, report)
        # In this order, because every ledger in a rotated log already has its index file, so no ledger is missed. A
        # ledger in limbo may have entries there and no index file.
        rotated = self._store.logs.rotated()
        held = await self._in_thread(self._held)
        usages = [usage for log_id in rotated if (usage := await self._usage(log_id, held, report)) is not None]
        for log_id in gc_policy.dead_logs(usages):
            await self._remove(log_id, report)
            report.removed_logs += 1
        deleted_bytes = sum(each.log_bytes for each in usages if not each.live_bytes)
        report.freed_bytes += deleted_bytes
        status = self.status
        status.deleted_bytes += deleted_bytes
        status.logs, status.ledgers = len(usages), len(held)
        status.log_bytes, status.live_bytes = sum(u.log_bytes for u in usages), sum(u.live_bytes for u in usages)
        status.usage_counts = tuple(sum(u.share * 10 <= tenth for u in usages) for tenth in range(1, 11))
        await self._compact_logs(level, usages, report)

    async def _compact_logs(self, level: CompactionLevel, usages: Sequence[LogUsage], report: PassReport) -> None:
        """Rewrite the logs with few live bytes, and record that compaction ran."""
        if level.threshold <= 0:
            return
        status, freed = self.status, report.freed_bytes
        is_major = level == self._options.major
        status.compacting = "major" if is_major else "minor"
        try:
            await self._rewrite_logs(level, usages, report)
        finally:
            status.compacting = ""
            status.compacted_bytes += report.freed_bytes - freed
        if is_major:
            status.major_count, status.major_at_ms = status.major_count + 1, _now_s() * 1000
        else:
            status.minor_count, status.minor_at_ms = status.minor_count + 1, _now_s() * 1000

    async def _rewrite_logs(self, level: CompactionLevel, usages: Sequence[LogUsage], report: PassReport) -> None:
        garbage = {each.log_id: each.log_bytes - each.live_bytes for each in usages}
        began = self._clock_s()
        for log_ids in self._side_by_side(gc_policy.logs_to_compact(usages, level.threshold)):
            if self._compactor.unfinished is not None:
                return
            if 0 < level.seconds_max <= self._clock_s() - began:
                self._note_kept(report, f"logs are left for the next compaction after {level.seconds_max:g} s")
                return
            whole = [log_id for log_id in log_ids if log_id not in self._damaged]
            for log_id in await self._compact_together(whole, report):
                report.compacted_logs += 1
                report.freed_bytes += garbage[log_id]

    async def _usage(self, log_id: int, held: np.ndarray, report: PassReport) -> LogUsage | None:
        try:
            return await self._in_thread(self._measure, log_id, held)
        except LogInDoubt as doubt:
            self._note_kept(report, f"entry log {log_id:x} is kept: {doubt}")
            return None
        except (StorageDamaged, OSError) as error:
            self._isolate(log_id, error, report)
            return None

    def _measure(self, log_id: int, held: np.ndarray) -> LogUsage:
        facts = self._compactor.facts(log_id, self._pace())
        hidden = facts.ledger_ids[self._store.index.hidden(facts.ledger_ids)]
        if len(hidden):
            raise LogInDoubt(f"the disk with the index of ledger {hidden[0]} fails")
        return gc_policy.usage(log_id, facts.log_bytes, facts.ledger_ids, facts.ledger_bytes, held)

    def _side_by_side(self, log_ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield groups of logs to copy at the same time: at most one log of each ledger directory."""
        if self._copiers is None:
            yield from ([log_id] for log_id in log_ids)
            return
        by_directory: dict[str, list[int]] = {}
        for log_id in log_ids:
            by_directory.setdefault(os.path.dirname(self._store.logs.path(log_id) or ""), []).append(log_id)
        for group in itertools.zip_longest(*by_directory.values()):
            yield [log_id for log_id in group if log_id is not None]

    async def _compact_together(self, log_ids: Sequence[int], report: PassReport) -> list[int]:
        """Copy logs at the same time, and replace one after the other; return those that were replaced."""
        if len(log_ids) == 1:
            return [log_id for log_id in log_ids if await self._compact(log_id, report)]
        pace = self._pace()
        copies = await asyncio.gather(*(self._copy(log_id, pace, report) for log_id in log_ids), return_exceptions=True)
        for copy in copies:
            if isinstance(copy, BaseException):
                raise copy
        return [copy.old_id for copy in copies if isinstance(copy, _Copy) and await self._replace(copy, report)]

    async def _compact(self, log_id: int, report: PassReport) -> bool:
        copy = await self._copy(log_id, self._pace(), report)
        return copy is not None and await self._replace(copy, report)

    async def _copy(self, log_id: int, pace: CompactionPace, report: PassReport) -> _Copy | None:
        """Copy the entries of a log that count; None: the log stays as it is."""
        loop, thread = asyncio.get_running_loop(), self._copiers or self._thread
        most = self._options.outstanding_max
        try:
            new_id = await loop.run_in_executor(thread, self._compactor.rewrite, log_id, pace, most)
            return _Copy(log_id, new_id)
        except LogInDoubt as doubt:
            self._note_kept(report, f"entry log {log_id:x} is not rewritten: {doubt}")
        except (StorageDamaged, OSError) as error:
            self._isolate(log_id, error, report)
        return None

    async def _replace(self, copy: _Copy, report: PassReport) -> bool:
        """Replace a log by its copy; False: the log stays, at least for now."""
        if copy.new_id is None:
            await self._remove(copy.old_id, report)
            return True
        if self._compactor.unfinished is not None:
            await self._in_thread(self._compactor.abandon, copy.new_id)
            return False
        try:
            intent = await self._in_thread(self._compactor.intend, copy.new_id, copy.old_id)
        except OSError as error:
            self._isolate(copy.old_id, error, report)
            return False
        return await self._finish(intent, report)

    async def _finish(self, intent: Intent, report: PassReport) -> bool:
        """Let the index point to the new log, and remove the old log; False: the old log stays."""
        try:
            await self._in_thread(self._compactor.finish, intent, self._pace())
        except (CompactionBlocked, StorageDamaged) as error:
            self._isolate(intent.old_id, error, report)
            return False
        except OSError as error:
            if not may_be_repeated(error):
                raise
            self._note_kept(report, f"entry log {intent.old_id:x} stays beside its copy for now: {error}")
            self._callbacks.on_no_space()
            return False
        await self._remove(intent.old_id, report)
        await self._in_thread(self._compactor.forget_intent)
        return True

    async def _remove(self, log_id: int, report: PassReport) -> None:
        # On the event loop, between two requests, so no read holds a position in the log.
        self._store.forget_log(log_id)
        try:
            await self._in_thread(self._compactor.remove, log_id)
        except OSError as error:
            if not is_disk_failure(error):
                raise
            why = f"entry log {log_id:x} may stay until the next start, because its disk fails: {error}"
            self._note_kept(report, why)

    def _isolate(self, log_id: int, error: Exception, report: PassReport) -> None:
        report.damaged_logs += 1
        if isinstance(error, StorageDamaged):
            self._damaged.add(log_id)
        self._note_kept(report, f"entry log {log_id:x} is left out of garbage collection: {error}")

    # ---- tools ----

    def _pace(self) -> CompactionPace:
        return CompactionPace(self._limit, self._stopping)

    def _limit(self) -> PaceLimit:
        options = self._options
        rate = options.bytes_per_s if options.limit_by_bytes else options.entries_per_s
        return PaceLimit(rate, options.limit_by_bytes)

    def _query_pace(self) -> QueryPace:
        return QueryPace(lambda: self._options.metadata_ops_per_s)

    async def _in_thread(self, function: Callable[[*Arguments], T], /, *arguments: *Arguments) -> T:
        """Call a function on the collector's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _note_kept(self, report: PassReport, why: str) -> None:
        """Record and log why garbage may remain."""
        report.kept_because = report.kept_because or why
        self._say(why)

    def _say(self, text: str) -> None:
        if line := self._said.to_log(text):
            logger.warning("%s", line)


async def _in_turns(ledger_ids: Sequence[int]) -> AsyncIterator[int]:
    """Yield ledgers. Pause for requests whenever processing them has taken `_TURN_S`."""
    began = time.monotonic()
    for ledger_id in ledger_ids:
        yield ledger_id
        if time.monotonic() - began > _TURN_S:
            await asyncio.sleep(0)
            began = time.monotonic()


def _fail(requests: Sequence[_Request], reason: str) -> None:
    for request in requests:
        if not request.report.done():
            request.report.set_exception(BookKeeperError(reason))


def _now_s() -> int:
    return int(time.time())
