"""AdvancedLedgerWriter: appends entries under ids that the caller chooses, like Apache's LedgerHandleAdv."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import functools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from bkspark.core.metadata import LedgerMetadata
from bkspark.entries import EntryBatch, as_batch
from bkspark.errors import BookKeeperError, DuplicateEntryId, LedgerClosed, TooManyRequests
from bkspark.ledger import arguments
from bkspark.ledger.closing import ClosedAtExit
from bkspark.ledger.writer import LedgerWriter
from bkspark.tasks import fail

AHEAD_ENTRIES_MAX = 65_536
"""How far above a gap an entry id may lie."""
AHEAD_BYTES_MAX = 64 * 1024 * 1024
"""Payload bytes of all entries that are kept until the gap below them is filled."""


@dataclass(slots=True)
class _Held:
    """Submitted entries, until the writer has taken them."""

    first_entry: int
    """The id of the first entry, which the caller chose."""
    batch: EntryBatch
    """The entries; their own ids are not used."""
    result: asyncio.Future[int]
    """The future that the caller has: the last id once all are acknowledged, or the error."""
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the writer has the entries, or when they failed."""

    @property
    def end_entry(self) -> int:
        return self.first_entry + len(self.batch)

    def fail(self, error: BookKeeperError) -> None:
        if not self.result.done():
            fail(self.result, error)
        self.is_taken.set()


class AdvancedLedgerWriter(ClosedAtExit):
    """Appends to one open ledger under the caller's entry ids, in any order.

    An entry is acknowledged when it is durable and every id below it is acknowledged. A gap therefore delays all
    entries above it, and closing ends the ledger before the gap. Entries above a gap wait here, within
    AHEAD_ENTRIES_MAX and AHEAD_BYTES_MAX; entries without a gap below them are sent as soon as the writer's window has
    room.

    Args:
        writer: the writer of a new ledger; no other caller may append with it.

    Raises:
        ValueError: `writer` has appended already.
    """

    def __init__(self, writer: LedgerWriter) -> None:
        if writer.core.pending.next_entry:
            raise ValueError(
                f"the writer of ledger {writer.ledger_id} has chosen entry ids already: create another one"
            )
        self._writer = writer
        """The writer that appends. Constant."""
        self._loop = asyncio.get_running_loop()
        """The event loop on which this object was made, and on which all its calls are. Constant."""
        self._end = 0
        """The first id that was not submitted: all ids below it were. Grows."""
        self._queue: deque[_Held] = deque()
        """Entries without a gap below them that the writer has not taken yet, in order; the last ends at `_end`."""
        self._pump: asyncio.Task[None] | None = None
        """Passes `_queue` to the writer, and ends when the queue is empty. Started by `submit`."""
        self._ahead: dict[int, _Held] = {}
        """Entries above a gap, by first entry id; they move to `_queue` when the gap is filled."""
        self._firsts: list[int] = []
        """The keys of `_ahead`, sorted."""
        self._ahead_bytes = 0
        """Payload bytes in `_ahead`, at most AHEAD_BYTES_MAX."""
        self._is_closing = False
        """Whether `close` was called. Set once."""
        writer.run.on_failed = self._fail

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def last_entry(self) -> int:
        """The LAC: the last entry that is acknowledged and durable on Qa bookies; -1 when there is none."""
        return self._writer.last_entry

    @property
    def length(self) -> int:
        """Payload bytes of every entry below the first gap that the writer has taken."""
        return self._writer.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    async def append(self, entry_id: int, entry: bytes) -> int:
        """Append one entry; return its id once it and every id below are acknowledged.

        Cancelling the call does not withdraw the entry.

        Raises:
            DuplicateEntryId: the id was used before; the earlier entry is kept.
            TooManyRequests: the id is too far above a gap, or too many bytes wait above it; nothing was added.
            ConfigurationError: the id is not an entry id.
            ValueError: the entry does not fit into a frame.
            LedgerFenced, LedgerClosed, NotEnoughBookies, ...: as `LedgerWriter.append`.
        """
        if not isinstance(entry, (bytes, bytearray, memoryview)):
            raise TypeError(f"an entry is bytes, not {type(entry).__name__}")
        return await (await self.submit(entry_id, [entry]))

    async def append_many(self, first_entry: int, entries: Any) -> int:
        """Append entries under consecutive ids (iterable of bytes, EntryBatch, Arrow array); return the last id.

        Raises as `append`. If one id is a duplicate, no entry is added.
        """
        return await (await self.submit(first_entry, entries))

    async def submit(self, first_entry: int, entries: Any) -> asyncio.Future[int]:
        """Submit entries under consecutive ids; return a future of the last id, done when acknowledged.

        It waits for room in the writer's window if there is no gap below. Call and future raise as `append`.
        """
        first_entry = arguments.whole_number("first_entry", first_entry)
        batch = as_batch(entries)
        if not len(batch):
            raise ValueError("no entries were given")
        arguments.check_entry_sizes(batch, self._writer.entry_bytes_max)
        self._check_open()
        held = _Held(first_entry, batch, self._loop.create_future())
        self._check_new(held)
        if first_entry > self._end:
            self._keep(held)
            return held.result
        self._queue.append(held)
        self._end = held.end_entry
        while self._end in self._ahead:
            self._queue.append(self._let_in(self._end))
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._hand_over())
        await held.is_taken.wait()
        return held.result

    async def sync(self) -> int:
        """Wait until everything below the first gap is durable; return the last synced entry id."""
        if self._pump is not None:
            await asyncio.shield(self._pump)
        return await self._writer.sync()

    async def close(self) -> LedgerMetadata:
        """Close the ledger before the first gap; entries above it fail with LedgerClosed. See `LedgerWriter.close`."""
        self._is_closing = True
        for held in self._drop_ahead():
            held.fail(
                LedgerClosed(
                    f"ledger {self.ledger_id} was closed before entry {self._end}, which was never added",
                    ledger_id=self.ledger_id,
                    entry_id=held.first_entry,
                )
            )
        deadline_s = self._writer.run.close_deadline_s()
        if self._pump is not None:
            with contextlib.suppress(TimeoutError):  # then `close_until` ends the writer, and raises RequestTimeout
                async with asyncio.timeout_at(deadline_s):
                    await asyncio.shield(self._pump)
        return await self._writer.close_until(deadline_s)

    def abandon(self) -> None:
        """Stop without closing the ledger; entries that are not acknowledged end with an error."""
        self._writer.abandon()

    # ---- ids ----

    def _check_open(self) -> None:
        self._writer.core.check_open()
        if self._is_closing:
            raise LedgerClosed(f"ledger {self.ledger_id} is closed", ledger_id=self.ledger_id)

    def _check_new(self, held: _Held) -> None:
        """Raise DuplicateEntryId or TooManyRequests if one of the ids was used before, or is too far above a gap."""
        at = bisect.bisect_left(self._firsts, held.first_entry)
        below = self._ahead[self._firsts[at - 1]].end_entry if at else 0
        taken = None
        if held.first_entry < max(self._end, below):
            taken = held.first_entry
        elif at < len(self._firsts) and self._firsts[at] < held.end_entry:
            taken = self._firsts[at]
        if taken is not None:
            raise DuplicateEntryId(
                f"entry {taken} of ledger {self.ledger_id} was added before: every id is given once",
                ledger_id=self.ledger_id,
                entry_id=taken,
            )
        if held.first_entry == self._end:
            return
        if held.end_entry > self._end + AHEAD_ENTRIES_MAX:
            limit = f"at most {AHEAD_ENTRIES_MAX} ids above a gap are taken"
        elif self._ahead_bytes + held.batch.payload_bytes > AHEAD_BYTES_MAX:
            limit = f"at most {AHEAD_BYTES_MAX} bytes above a gap are kept"
        else:
            return
        raise TooManyRequests(
            f"entry {held.first_entry} of ledger {self.ledger_id} must wait for entry {self._end}, and {limit}: "
            "add that one first",
            ledger_id=self.ledger_id,
            entry_id=held.first_entry,
        )

    def _keep(self, held: _Held) -> None:
        self._ahead[held.first_entry] = held
        bisect.insort(self._firsts, held.first_entry)
        self._ahead_bytes += held.batch.payload_bytes

    def _let_in(self, first_entry: int) -> _Held:
        held = self._ahead.pop(first_entry)
        self._firsts.remove(first_entry)
        self._ahead_bytes -= held.batch.payload_bytes
        self._end = held.end_entry
        return held

    def _drop_ahead(self) -> list[_Held]:
        dropped = list(self._ahead.values())
        self._ahead.clear()
        self._firsts.clear()
        self._ahead_bytes = 0
        return dropped

    # ---- the writer ----

    async def _hand_over(self) -> None:
        """Pass entries without a gap below to the writer, in order, as its window has room."""
        while self._queue:
            held = self._queue[0]
            try:
                done = await self._writer.submit(held.batch)
            except BookKeeperError as error:
                self._fail(error)
                return
            self._queue.popleft()
            held.is_taken.set()
            done.add_done_callback(functools.partial(_settle, held))

    def _fail(self, error: BookKeeperError) -> None:
        """The writer has ended: all waiting entries fail."""
        waiting = [*self._queue, *self._drop_ahead()]
        self._queue.clear()
        for held in waiting:
            held.fail(error)


def _settle(held: _Held, done: asyncio.Future[int]) -> None:
    error = None if done.cancelled() else done.exception()
    if isinstance(error, BookKeeperError):
        held.fail(error)
    elif not held.result.done():
        if error is not None:
            held.result.set_exception(error)
        else:
            held.result.set_result(held.end_entry - 1)
