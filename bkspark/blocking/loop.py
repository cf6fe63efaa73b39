"""The event loop of the blocking client: one for each process, on its own thread, called from any other thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


class _Loop:
    """The process's event loop and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="bkspark-client", daemon=True)
        self.thread.start()


_lock = threading.Lock()
"""Held while `_current` is read or replaced; a new one after a fork."""
_current: _Loop | None = None
"""The loop of this process; None before the first call and after a fork."""


def _loop() -> asyncio.AbstractEventLoop:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = _Loop()
        if threading.current_thread() is _current.thread:
            raise RuntimeError(
                "a blocking call on the client's own thread, as in a callback of a future, would wait for itself: make "
                "it in another thread"
            )
        return _current.loop


def _after_fork() -> None:
    # The lock may have been held by a thread that does not exist in the child.
    global _lock, _current
    _lock, _current = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


def run(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run `work()` on the process's event loop and return its result; Ctrl-C cancels it.

    Raises:
        RuntimeError: it was called on the loop's own thread, where it would wait for itself for ever.
    """

    async def call() -> _T:
        return await work()

    loop = _loop()
    future = asyncio.run_coroutine_threadsafe(call(), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def run_unless_exiting(work: Callable[[], Awaitable[object]]) -> None:
    """Call `run`, except at interpreter exit: the loop's thread has stopped then, and the call would never return."""
    if not sys.is_finalizing():
        run(work)


def iterate(make: Callable[[], AsyncIterator[_T]]) -> Iterator[_T]:
    """Yield what the asynchronous iterator `make()` yields; closing the generator closes it."""
    items = make()
    closing = getattr(items, "aclose", None)
    try:
        while True:
            try:
                item = run(items.__anext__)
            except StopAsyncIteration:
                closing = None
                return
            yield item
    finally:
        if closing is not None:
            run_unless_exiting(closing)


def submitted(submit: Callable[[], Awaitable[asyncio.Future[_T]]]) -> concurrent.futures.Future[_T]:
    """Run `submit()` and return a future with the result of its future, for any thread; it cannot be cancelled."""
    result: concurrent.futures.Future[_T] = concurrent.futures.Future()
    # The submission is in flight: `cancel` must not report that it was undone.
    result.set_running_or_notify_cancel()

    async def start() -> None:
        (await submit()).add_done_callback(lambda done: _copy_outcome(done, result))

    run(start)
    return result


def _copy_outcome(done: asyncio.Future[_T], result: concurrent.futures.Future[_T]) -> None:
    error = None if done.cancelled() else done.exception()
    if done.cancelled():
        result.set_exception(concurrent.futures.CancelledError())
    elif error is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())
