"""Tasks and futures of asyncio: kept until they are done, shared by several callers, and ended without a warning."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def start_kept(work: Coroutine[Any, Any, _T], tasks: set[asyncio.Task[_T]]) -> asyncio.Task[_T]:
    """Start work, and keep its task in `tasks` until it is done: the event loop alone would not keep it alive."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def start_shared(work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Start work that several callers wait for, by `asyncio.shield`: it goes on when one of them is cancelled.

    Where it fails and no caller waits for it any more, asyncio warns about nothing.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(forget_failure)
    return task


def forget_failure(task: asyncio.Future[Any]) -> None:
    """Take note of how a task ended, so that asyncio does not warn that no caller did."""
    if not task.cancelled():
        task.exception()


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Give a future an error; that its caller went away is not a programming error worth a warning."""
    future.set_exception(error)
    forget_failure(future)
