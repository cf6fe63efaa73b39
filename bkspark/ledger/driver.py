"""Driver: runs a core on the event loop: has its effects performed, and keeps the tasks that they take."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

_Effect = TypeVar("_Effect")
Work = Coroutine[Any, Any, Sequence[_Effect] | None]
"""Work that takes time. Its result is the core's next effects; None: the core was not called."""


class Driver(Generic[_Effect]):
    """Does the work that the effects of one core take, whose closed union of effects is `_Effect`.

    Args:
        perform: performs a list of effects, in order, and `spawn`s the work that they take. It is a `match` over the
            union with `assert_never` at the end, so that mypy finds an effect that is not performed.
        broke: called when a piece of work ends with an unexpected error. Without it the event loop reports that.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[_Effect]], None],
        broke: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._perform = perform
        """Constant."""
        self._broke = broke
        """Constant."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Work in progress. `spawn` adds to it, a finished task is removed."""

    def spawn(self, work: Work[_Effect]) -> asyncio.Task[None]:
        """Run some work in the background, and then perform its resulting effects."""
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
        # A task that is cancelled before its first step has not begun its work.
        work.close()
        if self._broke is None or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._broke(error)

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel all work except the caller's; return it."""
        current = asyncio.current_task()
        stopped = [task for task in self._tasks if task is not current]
        for task in stopped:
            task.cancel()
        return stopped
