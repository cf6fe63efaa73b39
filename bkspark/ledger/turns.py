"""Turns: callers are served one at a time, in the order of their calls; single entries are gathered into batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from bkspark.tasks import start_shared

_T = TypeVar("_T")


class Turn:
    """One caller's place; `async with` it once. Enter it always: later callers wait for it."""

    __slots__ = ("_turns", "_waiting")

    def __init__(self, turns: Turns, waiting: asyncio.Future[None] | None) -> None:
        self._turns = turns
        self._waiting = waiting

    async def __aenter__(self) -> None:
        if self._waiting is None:
            return
        try:
            await self._waiting
        except asyncio.CancelledError:
            self._turns.leave(self._waiting)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._turns.go_on()


class Turns:
    """Assigns turns; `take` is not a coroutine, so the order is that of the calls."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Callers whose turn has not come, in the order of their calls."""
        self.is_taken = False
        """Whether a caller has its turn; no one waits while it is False."""

    def take(self) -> Turn:
        """Return the next turn."""
        if not self.is_taken:
            self.is_taken = True
            return Turn(self, None)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return Turn(self, waiting)

    def go_on(self) -> None:
        """A turn is over."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self.is_taken = False

    def leave(self, waiting: asyncio.Future[None]) -> None:
        """A caller that waited for its turn was cancelled; if its turn had just come, the next caller has it."""
        if waiting.cancelled():
            return
        self.go_on()


class Singles(Generic[_T]):
    """Single entries of any number of callers that come in one turn of the event loop, sent together.

    Args:
        turn: the turn in which they are sent. send: sends them in it; its result is what `sent` has.
    """

    def __init__(self, turn: Turn, send: Callable[[Turn, list[bytes]], Awaitable[_T]]) -> None:
        self.entries: list[bytes] = []
        """The entries so far, in the order of calls. Callers add to it until `is_closed`."""
        self.is_closed = False
        """Whether new entries belong to a later batch. Set once."""
        self._turn = turn
        """Constant."""
        self._send = send
        """Constant."""
        self.sent: asyncio.Task[_T] = start_shared(self._send_soon())
        """What `send` returned."""

    async def _send_soon(self) -> _T:
        await asyncio.sleep(0)  # one turn of the loop: entries that are added in it join this batch
        self.is_closed = True
        return await self._send(self._turn, self.entries)
