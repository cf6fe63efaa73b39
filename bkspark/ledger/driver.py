"""Driver: runs a core on the event loop: has its effects performed, and keeps the tasks that they take."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

_Effect = TypeVar("_Effect")
Work = Coroutine[Any, Any, Sequence[_Effect] | None]
"""What takes a while. Its result are the effects that the core wants then; None: the core was not asked."""


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
        """Work that is under way. `spawn` adds to it, a task that ends goes."""

    def spawn(self, work: Work[_Effect]) -> asyncio.Task[None]:
        """Do some work beside everything else, and then perform what it results in."""
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
        """Cancel all work but that which calls this; return it."""
        current = asyncio.current_task()
        stopped = [task for task in self._tasks if task is not current]
        for task in stopped:
            task.cancel()
        return stopped
