"""CallOrder serves a writer's calls one at a time, in order, and sends single entries of several calls together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from bkspark.tasks import start_shared

_T = TypeVar("_T")


class Ticket:
    """One caller's place in the queue. Enter every ticket with `async with`, once: later callers wait for it."""

    __slots__ = ("_lock", "_waiting")

    def __init__(self, lock: TicketLock, waiting: asyncio.Future[None] | None) -> None:
        self._lock = lock
        self._waiting = waiting
        """Done when it is this caller's turn; None: it is at once."""

    async def __aenter__(self) -> None:
        if self._waiting is None:
            return
        try:
            await self._waiting
        except asyncio.CancelledError:
            self._lock.leave(self._waiting)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class TicketLock:
    """Serves callers in order; `take` is not a coroutine, so the order is that of the calls."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Callers that do not hold the lock yet, in the order of their calls."""
        self.is_taken = False
        """Whether a caller holds the lock. While it is False, no caller waits."""

    def take(self) -> Ticket:
        """Return the next ticket."""
        if not self.is_taken:
            self.is_taken = True
            return Ticket(self, None)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return Ticket(self, waiting)

    def release(self) -> None:
        """Pass the lock from the caller that holds it to the next one that waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self.is_taken = False

    def leave(self, waiting: asyncio.Future[None]) -> None:
        """Remove a cancelled caller; if it had just got the lock, pass the lock on."""
        if waiting.cancelled():
            return
        self.release()


class Singles(Generic[_T]):
    """Gathers single entries of several callers during one turn of the event loop, and sends them together.

    Args:
        ticket: the place of the entries among the calls.
        send: sends the entries when the ticket's turn comes.
    """

    def __init__(self, ticket: Ticket, send: Callable[[Ticket, list[bytes]], Awaitable[_T]]) -> None:
        self.entries: list[bytes] = []
        """The entries so far, in the order of calls. Callers add to it until `is_closed`."""
        self.is_closed = False
        """Whether new entries belong to a later batch. Set once."""
        self._ticket = ticket
        """The place of these entries among the calls of the writer. Constant."""
        self._send = send
        """Sends the gathered entries when it is their turn. Constant."""
        self.sent: asyncio.Task[_T] = start_shared(self._send_soon())
        """The task that sends the entries; its result is that of `send`."""

    async def _send_soon(self) -> _T:
        await asyncio.sleep(0)  # one turn of the loop: entries that are added in it join this batch
        self.is_closed = True
        return await self._send(self._ticket, self.entries)


class CallOrder(Generic[_T]):
    """The order of a writer's calls. Single entries of calls in one turn of the event loop are sent together.

    Args:
        send: sends single entries when the ticket's turn comes.
    """

    def __init__(self, send: Callable[[Ticket, list[bytes]], Awaitable[_T]]) -> None:
        self.lock = TicketLock()
        """Serves one call at a time. It is not held while calls wait for acknowledgements."""
        self._send = send
        """Sends gathered single entries. Constant."""
        self._singles: Singles[_T] | None = None
        """The single entries that later ones join while it is not closed; None: there were none yet."""

    @property
    def last_sent(self) -> asyncio.Task[_T] | None:
        """The task that sends the last single entries so far; None: there were none."""
        return None if self._singles is None else self._singles.sent

    def take(self) -> Ticket:
        """Return a ticket after all calls so far; single entries of later calls come after it."""
        if self._singles is not None:
            self._singles.is_closed = True
        return self.lock.take()

    async def send_single(self, entry: bytes) -> tuple[_T, int]:
        """Send one entry together with other single ones; return the result of `send`, and the entry's place among
        them. Cancelling the call does not withdraw the entry."""
        singles = self._singles
        if singles is None or singles.is_closed:
            singles = self._singles = Singles(self.lock.take(), self._send)
        place = len(singles.entries)
        singles.entries.append(entry)
        return await asyncio.shield(singles.sent), place
