"""LogWriter: appends to a log, ledger after ledger.

A writer has exclusive use of the log: opening it fenced the previous writer, and the next process that opens it fences
this one. The next ledger is listed before the last one is closed, so a writer that dies in between leaves only listed
ledgers. No entry goes into the next ledger before the last one is closed, so acknowledged entries have no gap.

Jobs may publish ledgers while the log is open for writing. Readers do not pass an open ledger. When a job publishes
after the writer's ledger, the writer therefore closes that ledger, and the next append goes to a new one after the
published ledgers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.striping import ENSEMBLE_SIZE_MAX
from bkspark.entries import EntryBatch, as_batch
from bkspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LedgerClosed,
    LedgerFenced,
    MetadataAccessDenied,
    MetadataFormat,
    NoSuchLedger,
)
from bkspark.ids import LEDGER_ID_MAX
from bkspark.ledger import Cluster, LedgerWriter, arguments
from bkspark.ledger.call_order import CallOrder, Ticket
from bkspark.ledger.closing import ClosedAtExit
from bkspark.ledger.ledger_types import parse_ledger_type
from bkspark.log.expiry import Expiry, ExpiryTimer
from bkspark.log.formats import OWN_METADATA, SegmentFacts, SegmentOwner, ledger_identity, own_metadata
from bkspark.log.heads import new_token
from bkspark.log.positions import Position, PositionRange
from bkspark.log.snapshot import LogSnapshot
from bkspark.log.store import LogStore
from bkspark.log.times import OpenTimes
from bkspark.metadata.tree import Callback
from bkspark.options import YEARS_S, bounded, check
from bkspark.tasks import fail, start_kept, start_shared

_T = TypeVar("_T")

ROLL_BYTES = 1 << 30
TIMES_INTERVAL_S = 1.0
"""Least interval between two writes of the times of append calls to the ledger's node."""
OPEN_TRIES_MAX = 10


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Options of a log's new ledgers, with the meaning of the same arguments of `Client.create`, its metadata included.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    ensemble: int = bounded(3, 1, ENSEMBLE_SIZE_MAX)
    write_quorum: int = bounded(3, 1, ENSEMBLE_SIZE_MAX)
    ack_quorum: int = bounded(2, 1, ENSEMBLE_SIZE_MAX)
    ledger_type: str = "PD_JOURNAL"
    metadata: Mapping[str, bytes | str] | None = None

    def __post_init__(self) -> None:
        check(self)
        arguments.quorums(self.ensemble, self.write_quorum, self.ack_quorum)
        taken = sorted(OWN_METADATA & arguments.custom_metadata(self.metadata).keys())
        if taken:
            raise ConfigurationError(f"metadata: {taken[0]!r} is what bkspark writes itself: choose another name")
        parse_ledger_type(self.ledger_type)


DEFAULTS = LedgerOptions()


@dataclass(frozen=True, slots=True)
class RollLimits:
    """When a writer continues in a new ledger: after `roll_bytes` of payload, or `roll_seconds`, if not None.

    Raises:
        ConfigurationError: a limit is out of bounds.
    """

    roll_bytes: int = bounded(ROLL_BYTES, 1, LEDGER_ID_MAX, "bytes")
    roll_seconds: float | None = bounded(None, sys.float_info.min, YEARS_S, "seconds")

    def __post_init__(self) -> None:
        check(self)

    def reached(self, byte_count: int, age_s: float) -> bool:
        return byte_count >= self.roll_bytes or (self.roll_seconds is not None and age_s >= self.roll_seconds)


async def create_ledger(cluster: Cluster, name: str, options: LedgerOptions) -> LedgerWriter:
    """Create a ledger whose custom metadata names its log."""
    return await cluster.create(
        ensemble=options.ensemble,
        write_quorum=options.write_quorum,
        ack_quorum=options.ack_quorum,
        ledger_type=options.ledger_type,
        metadata={**own_metadata(name), **(options.metadata or {})},
    )


async def delete_ledger(cluster: Cluster, name: str, ledger_id: int) -> None:
    """Delete a ledger of a log; one that does not exist, or that is not the log's any more, is not an error.

    One whose metadata cannot be read is deleted: it may be the log's, and must not hold up the deletion of others.
    """
    try:
        try:
            await cluster.delete(ledger_id, having=ledger_identity(name))
        except (MetadataFormat, MetadataAccessDenied):
            await cluster.delete(ledger_id)
    except NoSuchLedger:
        return  # another process deleted it first


async def create_pending(
    cluster: Cluster, store: LogStore, name: str, owner: SegmentOwner, options: LedgerOptions, *, make_log: bool = False
) -> LedgerWriter:
    """Create a ledger and register it as pending. `make_log`: create the log if it does not exist.

    The ledger is created first, so that no log is created if there are too few bookies. If the rest fails, the ledger
    is deleted.
    """
    writer = await create_ledger(cluster, name, options)
    try:
        if make_log:
            await store.create(name, exist_ok=True)
        unchanged = await (await cluster.context()).ledgers.as_created(writer.ledger_id)
        await store.attempts.add(name, writer.ledger_id, owner, unchanged=unchanged)
    except BaseException:
        writer.abandon()
        await delete_ledger(cluster, name, writer.ledger_id)
        raise
    return writer


async def fence(
    cluster: Cluster, snapshot: LogSnapshot, only: Collection[int] | None = None
) -> list[tuple[int, SegmentFacts]]:
    """Fence and close every ledger that is open in the list; return their ordinals and ends.

    Args:
        only: the ids of the ledgers to close; None: all.

    Raises:
        LedgerRecoveryFailed, ReadFailed: too few bookies answered.
    """
    closed = []
    for ordinal in snapshot.open_ordinals:
        ledger_id = (await snapshot.ledger(ordinal)).ledger_id
        if only is not None and ledger_id not in only:
            continue
        try:
            metadata = await cluster.recover(ledger_id, having=ledger_identity(snapshot.name))
            closed.append((ordinal, facts_of(ledger_id, metadata)))
        except NoSuchLedger:
            # Only the ledger was deleted, and another one may have its id: no process can write to it, and readers will
            # report that it is missing.
            closed.append((ordinal, SegmentFacts(ledger_id)))
    return closed


def facts_of(ledger_id: int, metadata: LedgerMetadata) -> SegmentFacts:
    """Return the list's item of a closed ledger."""
    return SegmentFacts(ledger_id, metadata.last_entry, metadata.length)


@dataclass(slots=True)
class _Current:
    """The ledger of the log that new entries are appended to."""

    ordinal: int
    """The ordinal of the ledger in the log."""
    ledger: LedgerWriter
    """Its writer."""
    since_s: float
    """When it was added to the log, by the event loop's clock."""
    times: OpenTimes
    """When entries were appended to it."""


class LogWriter(ClosedAtExit):
    """The log's writer until it is closed or another process opens the log. Get one by `Log.open_for_writing`."""

    def __init__(
        self, cluster: Cluster, store: LogStore, name: str, options: LedgerOptions, limits: RollLimits
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._name = name
        self._options = options
        self._limits = limits
        self._token = new_token()
        """The head's `writer` while this writer has the log. Constant."""
        self._current: _Current | None = None
        """The ledger that is being written; None until the next append creates one, and after the end. Set by `open`
        and `_roll`, cleared by `_check_log`, `close` and `abandon`."""
        self._entry_bytes_max = 0
        """The largest entry that is accepted; the same for all ledgers of the log. Set by `open`."""
        self._closed: list[tuple[int, SegmentFacts]] = []
        """(ordinal, facts) of closed ledgers whose end is not recorded in the head yet. Emptied by `_roll` and
        `_record_closed`."""
        self._unsure: set[int] = set()
        """Ledgers that were to be added to the list, and the outcome is unknown. Nothing is written to them. Open, they
        would stop readers: those that are in the list are closed by `_check_log`, by `close` and after a failure, also
        of `open`, and then removed from here."""
        self._error: BookKeeperError | None = None
        """Why the writer ended; None while it works. Set by a failure, `close` or `abandon`; never cleared."""
        self._calls = CallOrder(self._send_singles)
        """Serves one submission, roll or check of the log at a time."""
        self._change: asyncio.Task[Any] | None = None
        """The last change of `_current`. Cancelling the call that needed it does not cancel it; `abandon` does."""
        self._is_stale = False
        """Whether the log may have changed since it was last read. Set by the watch, cleared by `_check_log`."""
        self._is_closed = False
        """Whether `close` or `abandon` was called. Set once."""
        self._unwatch: Callback | None = None
        """Ends the watch of the log; None before `open` and after the end."""
        self._checks: set[asyncio.Task[None]] = set()
        """The check of the log that runs, and those that wait for their turn."""
        self._notes: set[asyncio.Task[None]] = set()
        """The task that writes times of append calls to the ledger's node; at most one."""
        self._upkeep: set[asyncio.Task[None]] = set()
        """Tasks that remove expired ledgers; `close` waits for them, `abandon` cancels them."""
        self._expiry_timer = ExpiryTimer(self._expiry)

    @property
    def name(self) -> str:
        return self._name

    @property
    def ledger_id(self) -> int | None:
        """The ledger being written; None when the next append will make one."""
        return None if self._current is None else self._current.ledger.ledger_id

    # ---- opening ----

    async def open(self) -> LogWriter:
        """Open the log; called once. Raises as `Log.open_for_writing`."""
        ledger = await self._new_ledger(make_log=True)
        self._entry_bytes_max = ledger.entry_bytes_max
        try:
            for _ in range(OPEN_TRIES_MAX):
                snapshot = await self._store.snapshot(self._name)
                closed = await fence(self._cluster, snapshot)
                ordinal = await self._store.open_writer(self._name, ledger.ledger_id, self._token, closed)
                if ordinal is not None:
                    self._current = _Current(ordinal, ledger, asyncio.get_running_loop().time(), OpenTimes())
                    is_routed = snapshot.head.is_routed
                    self._unwatch = await self._store.watch(self._name, self._on_change, is_routed=is_routed)
                    self._on_change()  # others may have published before the watch was set
                    return self
        except BaseException:
            await self._drop(ledger)
            self._unsure.add(ledger.ledger_id)
            await self._close_unsure_after_end()
            raise
        await self._drop(ledger)
        raise LedgerFenced(f"log {self._name} is opened for writing by others repeatedly: let one process write it")

    async def _new_ledger(self, *, make_log: bool = False) -> LedgerWriter:
        owner = SegmentOwner("writer", self._token)
        return await create_pending(self._cluster, self._store, self._name, owner, self._options, make_log=make_log)

    async def _drop(self, ledger: LedgerWriter) -> None:
        """Abandon and delete a ledger that is not in the list; if that fails, it stays pending for a vacuum."""
        ledger.abandon()
        try:
            await self._store.attempts.discard(
                self._name,
                lambda pending, _: pending.ledger_id == ledger.ledger_id,
                partial(delete_ledger, self._cluster, self._name),
            )
        except BookKeeperError:
            return  # the caller raises the error that came first; the ledger stays registered as pending

    # ---- appending ----

    async def append(self, entry: bytes) -> Position:
        """Append one entry; return its position once it is acknowledged. Entries of concurrent calls are sent together.

        Raises as `append_many`.
        """
        if not isinstance(entry, (bytes, bytearray, memoryview)):
            raise TypeError(f"an entry is bytes, not {type(entry).__name__}")
        data = bytes(entry)
        if len(data) > self._entry_bytes_max:
            raise arguments.too_large(len(data), self._entry_bytes_max)
        positions, place = await self._calls.send_single(data)
        return positions[place]

    async def _send_singles(self, ticket: Ticket, entries: list[bytes]) -> PositionRange:
        return await (await self._submit_in(ticket, as_batch(entries)))

    async def append_many(self, entries: Any) -> PositionRange:
        """Append entries (iterable of bytes, EntryBatch, Arrow binary array); return their positions once all are
        acknowledged.

        The entries are consecutive in one ledger. Several calls may be in progress, also of `append`; their entries are
        stored in the order of the calls.

        Raises:
            LedgerFenced: another process opened, overwrote or deleted the log. Unacknowledged entries may be stored.
            NotEnoughBookies, MetadataError, ...: the writer has ended, or the next ledger could not be made.
        """
        return await (await self.submit(entries))

    async def submit(self, entries: Any) -> asyncio.Future[PositionRange]:
        """Send entries as soon as there is room; return a future of their positions, done when acknowledged."""
        batch = as_batch(entries)
        arguments.check_entry_sizes(batch, self._entry_bytes_max)
        return await self._submit_in(self._calls.take(), batch)

    async def _submit_in(self, ticket: Ticket, batch: EntryBatch) -> asyncio.Future[PositionRange]:
        async with ticket:
            current = await self._ready()
            first_entry = current.ledger.core.pending.next_entry
            now_ms = self._store.clock_ms()
            try:
                waiting = await current.ledger.submit(batch)
            except LedgerClosed as error:
                raise _overtaken(error) from error
            if len(batch):
                current.times.note(first_entry, first_entry + len(batch), now_ms)
                if not self._notes:
                    start_kept(self._note_times(), self._notes)
        result: asyncio.Future[PositionRange] = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(partial(_pass_on, result, current.ordinal, current.ledger.ledger_id, len(batch)))
        return result

    async def _note_times(self) -> None:
        """Write new times of append calls to the ledger's node, once in TIMES_INTERVAL_S, until there are no new
        ones."""
        while (current := self._current) is not None and not current.times.is_recorded:
            await self._note_times_of(current)
            await asyncio.sleep(TIMES_INTERVAL_S)

    async def _note_times_of(self, current: _Current) -> None:
        try:
            await self._store.note_times(self._name, current.ledger.ledger_id, current.times)
        except BookKeeperError:
            return  # the next append, or the close, writes them again

    async def _ready(self) -> _Current:
        """Return the ledger to write to; create it if there is none or the present one is full. Call with the lock."""
        await self._change_over()
        if self._error is not None:
            raise self._error
        if self._is_stale:
            await self._to_its_end(self._check_log())
        current = self._current
        if current is None:
            return await self._to_its_end(self._roll(None))
        age_s = asyncio.get_running_loop().time() - current.since_s
        # An empty ledger is never replaced, however old it is.
        if current.ledger.core.pending.next_entry and self._limits.reached(current.ledger.length, age_s):
            return await self._to_its_end(self._roll(current))
        return current

    async def _to_its_end(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Run a change of `_current` to its end, also if the caller is cancelled: otherwise an open ledger could stay
        before other ledgers, and block readers."""
        self._change = start_shared(change)
        return await asyncio.shield(self._change)

    async def _change_over(self) -> None:
        """Wait for the end of a change whose caller was cancelled. If it failed, `_error` says so, or the next change
        fails in the same way."""
        if self._change is not None and not self._change.done():
            await asyncio.wait([self._change])

    async def roll(self) -> None:
        """Continue in a new ledger; the old one is closed, so that readers can pass it. Raises as `append_many`."""
        async with self._calls.take():
            current = await self._ready()
            await self._to_its_end(self._roll(current))

    async def _roll(self, old: _Current | None) -> _Current:
        ledger = await self._new_ledger()
        try:
            ordinal = await self._store.add_writer_ledger(self._name, ledger.ledger_id, self._token, self._closed)
        except BaseException as error:
            await self._drop(ledger)
            if isinstance(error, LedgerFenced):
                self._error = error
            else:
                # If the list gets it, now or late, the watch fires.
                self._unsure.add(ledger.ledger_id)
            raise
        self._closed = []
        self._current = _Current(ordinal, ledger, asyncio.get_running_loop().time(), OpenTimes())
        if old is not None:
            await self._close_ledger(old)
        start_kept(self._expiry_timer.tick(), self._upkeep)
        return self._current

    async def _expiry(self) -> Expiry:
        return Expiry(self._cluster, self._store, self._name, partial(delete_ledger, self._cluster, self._name))

    async def _close_ledger(self, current: _Current) -> None:
        try:
            metadata = await current.ledger.close()
        except LedgerClosed as error:
            self._error = _overtaken(error)
            await self._close_unsure_after_end()
            raise self._error from error
        except BookKeeperError as error:
            # Acknowledged entries are safe. End the writer, so that no later entry is written after a gap.
            self._error = error
            await self._close_unsure_after_end()
            raise
        await self._note_times_of(current)
        self._closed.append((current.ordinal, facts_of(current.ledger.ledger_id, metadata)))

    # ---- being overtaken ----

    def _on_change(self) -> None:
        was_stale, self._is_stale = self._is_stale, True
        # A check that waits for its turn will see this change. One that has begun may have read the log before it.
        if not (was_stale and self._checks):
            start_kept(self._check_in_turn(), self._checks)

    async def _check_in_turn(self) -> None:
        async with self._calls.take():
            try:
                await self._change_over()
                if self._is_stale and not self._is_closed:
                    await self._to_its_end(self._check_log() if self._error is None else self._close_unsure_after_end())
            except BookKeeperError:
                return  # the next append raises to its caller: the error that ended the writer, or that of a new check

    async def _check_log(self) -> None:
        """Read the log; close the ledger if the list has others after it, and those that this writer was unsure of,
        also if the ledger cannot be closed. Call with the lock."""
        self._is_stale = False
        try:
            snapshot = await self._store.snapshot(self._name)
            current = self._current
            is_overtaken = current is not None and snapshot.end_ordinal != current.ordinal + 1
            if current is not None and is_overtaken:
                self._current = None
                await self._close_ledger(current)
            if await self._close_unsure(snapshot) or is_overtaken:
                await self._record_closed(is_end=False)
        except BaseException:
            self._is_stale = True
            raise

    async def _close_unsure(self, snapshot: LogSnapshot) -> bool:
        """Close the ledgers that were added to the list without this writer knowing; return whether there are any."""
        found = await fence(self._cluster, snapshot, self._unsure) if self._unsure else []
        self._closed += found
        self._unsure.difference_update(facts.ledger_id for _, facts in found)
        return bool(found)

    async def _close_unsure_after_end(self) -> None:
        """Close, for a writer that has ended, the ledgers that it was unsure of, if that can be done now."""
        if not self._unsure:
            return
        try:
            await self._close_unsure(await self._store.snapshot(self._name))
        except BookKeeperError:
            # Callers get the error that ended the writer. These ledgers have no entries, so nothing that was
            # acknowledged depends on this. They stay in `_unsure`, for the next change of the log and for `close`;
            # the next process that opens the log closes them in any case.
            return

    async def _record_closed(self, *, is_end: bool) -> None:
        await self._store.record_closed(self._name, self._token, self._closed, is_end=is_end)
        self._closed = []

    # ---- the end ----

    async def close(self) -> None:
        """Wait for pending entries, close the ledger and release the log. A second call does nothing.

        Raises:
            LedgerFenced, MetadataError, ...: as `LedgerWriter.close`; acknowledged entries are safe nevertheless.
        """
        self._stop_watching()
        sent = self._calls.last_sent
        async with self._calls.take():
            if self._is_closed:
                return
            await self._change_over()
            self._is_closed = True
            error, self._error = self._error, LedgerClosed(f"the writer of log {self._name} is closed: open another")
            current, self._current = self._current, None
            if error is not None:
                if current is not None:
                    current.ledger.abandon()
                await self._close_unsure_after_end()
                raise error
            if current is not None:
                await self._close_ledger(current)
            if self._unsure:
                await self._close_unsure(await self._store.snapshot(self._name))
            await self._record_closed(is_end=True)
        if sent is not None:
            await asyncio.wait([sent])  # so that earlier calls of `append` return before this call
        if self._upkeep:
            await asyncio.wait(self._upkeep)

    def abandon(self) -> None:
        """Stop without closing the ledger: the next process that opens the log fences it and finds its end."""
        self._stop_watching()
        for upkeep in self._upkeep:
            upkeep.cancel()
        self._is_closed = True
        self._error = LedgerClosed(f"the writer of log {self._name} went away: open another")
        if self._change is not None:
            self._change.cancel()
        if self._current is not None:
            self._current.ledger.abandon()
            self._current = None

    def _stop_watching(self) -> None:
        for notes in self._notes:
            notes.cancel()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


def _pass_on(
    result: asyncio.Future[PositionRange], ordinal: int, ledger_id: int, count: int, done: asyncio.Future[int]
) -> None:
    if result.done():
        return
    error = None if done.cancelled() else done.exception()
    if done.cancelled():
        result.cancel()
    elif error is not None:
        fail(result, _overtaken(error) if isinstance(error, LedgerClosed) else error)
    else:
        end_entry = done.result() + 1
        result.set_result(PositionRange(ordinal, ledger_id, end_entry - count, end_entry))


def _overtaken(error: LedgerClosed) -> LedgerFenced:
    """Return the error for callers of the log: if another client closed the ledger, it has opened the log."""
    return LedgerFenced(f"another client opened the log: {error}", ledger_id=error.ledger_id, entry_id=error.entry_id)
