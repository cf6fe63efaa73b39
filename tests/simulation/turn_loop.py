"""An asyncio event loop without clock, sockets and handles: turns, and who waits for which one.

Half of what a small simulated schedule costs on asyncio's own loop is the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio.events import _get_running_loop, _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(AssertionError):
    """All coroutines wait for each other."""


class TurnLoop(asyncio.AbstractEventLoop):
    """Runs ready coroutines in the order in which they became ready; a turn is over when all of them have run."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._turn = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Return what `main` returns; unfinished coroutines get no further turn."""
        outer = _get_running_loop()
        _set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._take_turn()
            return task.result()
        finally:
            _set_running_loop(outer)

    def _take_turn(self) -> None:
        if not self._ready and not self._waiting:
            raise Stuck("the simulated processes wait for each other")
        self._turn = self._turn + 1 if self._ready else self._waiting[0][0]
        while self._waiting and self._waiting[0][0] <= self._turn:
            heapq.heappop(self._waiting)[2].set_result(None)
        for _ in range(len(self._ready)):
            callback, arguments = self._ready.popleft()
            callback(*arguments)

    def pause(self, turns: int) -> asyncio.Future[None]:
        """Return what is done after this many turns."""
        future = self.create_future()
        heapq.heappush(self._waiting, (self._turn + turns, next(self._numbers), future))
        return future

    # ---- what asyncio asks of a loop ----

    def call_soon(self, callback: Callable[..., object], *args: Any, context: object = None) -> None:  # type: ignore[override]
        self._ready.append((callback, args))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **_: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        return asyncio.Task(coro, loop=self)

    def time(self) -> float:
        return float(self._turn)

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: an error in a killed process is not reported."""
