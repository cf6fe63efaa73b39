"""asyncio's tasks and futures: kept until they are done, shared by several callers, a limited number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

CALLS_AT_ONCE = 64
"""Concurrent calls of one operation to the metadata store or to bookies, at most, if it has no limit of its own."""

_T = TypeVar("_T")
_R = TypeVar("_R")


def start_kept(work: Coroutine[Any, Any, _T], tasks: set[asyncio.Task[_T]]) -> asyncio.Task[_T]:
    """Start work, and keep its task in `tasks` until it is done: the event loop has only a weak reference to it."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def start_shared(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Start work for which several callers wait with `asyncio.shield`, so that it continues when one is cancelled.

    If it fails when no caller waits for it any more, asyncio does not warn.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(forget_failure)
    return task


def forget_failure(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a finished task, so that asyncio does not warn that it was never retrieved."""
    if not task.cancelled():
        task.exception()


async def together(works: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Do all work at the same time. If some fails, the rest is ended before the error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end_all(tasks)


async def each_of(call: Callable[[_T], Awaitable[_R]], items: Sequence[_T], at_once: int = CALLS_AT_ONCE) -> list[_R]:
    """Return the results of `call` for all items, in order, with `at_once` calls at a time.

    An error is raised when the calls that began together with the failed one have ended.
    """
    results: list[_R] = []
    for some in chunks(items, at_once):
        calls = [asyncio.ensure_future(call(item)) for item in some]
        await asyncio.gather(*calls, return_exceptions=True)
        results += [each.result() for each in calls]
    return results


def chunks(items: Sequence[_T], count: int) -> Iterator[Sequence[_T]]:
    """Yield `items` in order, `count` at a time."""
    for start in range(0, len(items), count):
        yield items[start : start + count]


async def end_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until each has ended. Their failures are not raised."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set a future's exception without a warning if no caller retrieves it: the caller may have been cancelled."""
    future.set_exception(error)
    forget_failure(future)


class SharedAttempts:
    """Attempts at the same thing, one at a time. Callers that wait while an attempt fails share its failure.

    If each of them tried again in turn, the last one would wait as long as all attempts together.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """Held during an attempt."""
        self._failure: Exception | None = None
        """Why the last attempt failed; None: it succeeded, or there was none."""

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Wait for other attempts, then make one inside the context. Raises the failure of one that ended meanwhile."""
        before = self._failure
        async with self.lock:
            if self._failure is not None and self._failure is not before:
                # Without the traceback of the attempt, which would grow with each caller.
                raise self._failure.with_traceback(None)
            try:
                yield
            except Exception as error:
                self._failure = error
                raise
            self._failure = None
