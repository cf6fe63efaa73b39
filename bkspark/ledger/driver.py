"""Driver: runs a core on the event loop: it owns the tasks that the core's effects take, and feeds results back."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

_Effect = TypeVar("_Effect")
Work = Coroutine[Any, Any, Sequence[_Effect] | None]
"""Background work. Its result is the core's next effects; None if the core was not called."""


class Driver(Generic[_Effect]):
    """Runs the background work of one core; `_Effect` is the core's closed union of effects.

    Args:
        perform: performs a list of effects, in order, and calls `spawn` for those that take time. It is a `match` over
            the union with `assert_never` at the end, so that mypy finds an effect that is not performed.
        broke: called when background work ends with an unexpected error. Without it the event loop reports the error.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[_Effect]], None],
        broke: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._perform = perform
        """Performs effects in order; it is also called with the effects that background work returns. Constant."""
        self._broke = broke
        """Called with an unexpected error of background work; None: the event loop reports it. Constant."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Work in progress. `spawn` adds a task; a finished task is removed."""

    def spawn(self, work: Work[_Effect]) -> asyncio.Task[None]:
        """Run work in the background, then perform the effects that it returns."""
        task = asyncio.ensure_future(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, work))
        return task

    async def _run(self, work: Work[_Effect]) -> None:
        todo = await work
        if todo is not None:
            self._perform(todo)

    def _ended(self, work: Work[_Effect], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # If the task was cancelled before its first step, the coroutine never ran: without `close`, Python would warn.
        work.close()
        if self._broke is None or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._broke(error)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel all background work except the task that calls this; return the cancelled tasks."""
        current = asyncio.current_task()
        stopped = [task for task in self._tasks if task is not current]
        for task in stopped:
            task.cancel()
        return stopped
