"""AppendWindow: limits what one writer has in flight, and completes the futures of its callers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from bkspark.core.writer import WriterCore
from bkspark.core.writer_options import WriterOptions
from bkspark.errors import BookKeeperError
from bkspark.tasks import fail

_Waits = deque[tuple[int, asyncio.Future[int]]]


class AppendWindow:
    """The window of one writer: its entries in flight, and the callers that wait for room or for an entry.

    Args:
        congested: returns the slots whose connections have too many unsent bytes; the window is full if one of them can
            hold back acknowledgements.
    """

    def __init__(self, core: WriterCore, options: WriterOptions, congested: Callable[[], Sequence[int]]) -> None:
        self._core = core
        """The writer's core. The window only reads its state."""
        self._options = options
        """Limits and time-outs. Constant."""
        self._congested = congested
        """Returns the slots whose connections have too many unsent bytes. Constant."""
        kept_bytes_max = core.durability.unsynced_bytes_max
        self._kept_bytes_max = kept_bytes_max or options.pending_bytes_max + options.lag_bytes_max
        """Limit of the bytes that the core keeps to send again, acknowledged entries included. Constant."""
        self._loop = asyncio.get_running_loop()
        """The event loop on which this object was made, and on which all its calls are. Constant."""
        self._pieces: deque[tuple[int, int]] = deque()
        """(last entry, payload bytes) of pieces that are not acknowledged, in entry order."""
        self._pending_bytes = 0
        """The sum of the bytes in `_pieces`."""
        self._waits: _Waits = deque()
        """(entry id, future) of callers that wait until an entry is acknowledged, in entry order."""
        self._sync_waits: _Waits = deque()
        """(entry id, future) of callers that wait until an entry is confirmed, in entry order."""
        self._room: asyncio.Future[None] | None = None
        """What the caller awaits that found the window full; the writer's TicketLock lets in one at a time."""

    # ---- room ----

    def is_idle(self) -> bool:
        """Return whether nothing is in flight and the window is not full."""
        return not self._pieces and not self.is_full()

    def is_full(self) -> bool:
        """Return whether callers must wait: a limit of the options is reached, or a needed connection is congested.

        The window of a writer that has ended is never full: callers get the error instead.
        """
        options, pending, slots = self._options, self._core.pending, self._core.slots
        if self._core.error is not None:
            return False
        if pending.next_entry - pending.acknowledged > options.pending_entries_max:
            return True
        if self._pending_bytes >= options.pending_bytes_max or pending.kept_bytes >= self._kept_bytes_max:
            return True
        if slots.outstanding_max >= options.lag_entries_max:
            return True
        congested = self._congested()
        return bool(congested) and any(slots.may_hold_back(slot) for slot in congested)

    async def wait_for_room(self) -> None:
        """Return when the window is not full, or the writer has ended."""
        while self.is_full():
            self._room = self._loop.create_future()
            await self._room

    def look_for_room(self) -> None:
        """Let the waiting caller continue if there is room now."""
        if self._room is not None and not self._room.done() and not self.is_full():
            self._room.set_result(None)

    # ---- entries ----

    def add(self, last_entry: int, payload_bytes: int) -> None:
        """Record a piece in flight that ends at `last_entry`, which is above all earlier ones."""
        self._pending_bytes += payload_bytes
        self._pieces.append((last_entry, payload_bytes))

    def wait_for(self, last_entry: int) -> asyncio.Future[int]:
        """Return a future that is done when `last_entry`, the newest one, is acknowledged; its result is that id.

        Raises:
            BookKeeperError: the writer has ended.
        """
        if self._core.error is not None:
            raise self._core.error
        future: asyncio.Future[int] = self._loop.create_future()
        if last_entry <= self._core.pending.acknowledged:
            future.set_result(last_entry)
        else:
            self._waits.append((last_entry, future))
        return future

    def wait_for_sync(self, target: int) -> asyncio.Future[int]:
        """Return a future that is done when `target` is confirmed. It must not be confirmed yet."""
        synced: asyncio.Future[int] = self._loop.create_future()
        self._sync_waits.append((target, synced))
        return synced

    def acknowledge(self, last_entry: int) -> None:
        """Complete the waits for entries up to `last_entry`, which are acknowledged."""
        while self._pieces and self._pieces[0][0] <= last_entry:
            self._pending_bytes -= self._pieces.popleft()[1]
        settle(self._waits, last_entry)

    def confirm(self, last_entry: int) -> None:
        """Complete the waits for confirmation up to `last_entry`, which is confirmed."""
        settle(self._sync_waits, last_entry)

    def fail(self, error: BookKeeperError) -> None:
        """Fail all waiting callers: the writer has ended."""
        waits = [*self._waits, *self._sync_waits]
        self._waits.clear()
        self._sync_waits.clear()
        self._pieces.clear()
        self._pending_bytes = 0
        for _, future in waits:
            if not future.done():
                fail(future, error)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


def settle(waits: _Waits, last_entry: int) -> None:
    """Complete the futures for entries up to `last_entry`."""
    while waits and waits[0][0] <= last_entry:
        entry_id, future = waits.popleft()
        if not future.done():
            future.set_result(entry_id)
