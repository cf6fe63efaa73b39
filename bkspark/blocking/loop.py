"""The event loop of the blocking client: one for each process, on its own thread, called from any other thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Loop:
    """The process's event loop and its thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        """The process that it was made in: a forked child, which has no such thread, makes one of its own."""
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="bkspark-client", daemon=True)
        self.thread.start()


_lock = threading.Lock()
"""Held while `_current` is read or replaced; a new one after a fork."""
_current: _Loop | None = None
"""The loop of this process; None before the first call and after a fork."""


def _loop() -> asyncio.AbstractEventLoop:
    global _current
    if sys.is_finalizing():
        raise RuntimeError("a blocking call at interpreter exit would never return: the client's thread has ended")
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


@dataclass(slots=True)
class _Step:
    """A call that `run` makes: `task` runs it on the loop, None before it begins."""

    task: asyncio.Task[Any] | None = None


def run(work: Callable[[], Awaitable[_T]], step: _Step | None = None) -> _T:
    """Run `work()` on the process's event loop and return its result; Ctrl-C cancels it.

    `step`: gets the task that runs it.

    Raises:
        RuntimeError: it was called on the loop's own thread, where it would wait for itself for ever, or at interpreter
            exit, when that thread has ended.
    """

    async def call() -> _T:
        if step is not None:
            step.task = asyncio.current_task()
        return await work()

    loop = _loop()
    future = asyncio.run_coroutine_threadsafe(call(), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def check_process(made_in: int) -> None:
    """Raise RuntimeError unless this is the process with the id `made_in`, in which an object was made.

    A process made by fork has the sockets of its parent. What it sent there would mix with the parent's requests, and
    its entries would take the ids of the parent's.
    """
    if made_in != os.getpid():
        raise _made_elsewhere(made_in)


def _made_elsewhere(made_in: int) -> RuntimeError:
    return RuntimeError(
        f"process {made_in} made this object, and only that process can use it: make clients after forking"
    )


def run_unless_leaving(work: Callable[[], Awaitable[object]], made_in: int) -> None:
    """Call `run` to close what process `made_in` made, except in two cases.

    At interpreter exit the loop's thread has stopped, and the call would never return. In a process made by fork, the
    connections are those of the parent, which goes on using them.
    """
    if not sys.is_finalizing() and made_in == os.getpid():
        run(work)


def iterate(make: Callable[[], AsyncIterator[_T]]) -> Iterator[_T]:
    """Yield what the asynchronous iterator `make()` yields; closing the generator closes it."""
    items, made_in = make(), os.getpid()
    closing = getattr(items, "aclose", None)
    step = _Step()

    async def close() -> None:
        # A step that Ctrl-C interrupted may not have ended yet, and a generator that runs cannot be closed. Ctrl-C may
        # also have come before `run` could cancel the step.
        if step.task is not None and not step.task.done():
            if not step.task.cancelling():
                step.task.cancel()
            await asyncio.wait([step.task])
        if closing is not None:
            await closing()

    try:
        while True:
            # As `check_process`, without a call for each item of a scan.
            if made_in != os.getpid():
                raise _made_elsewhere(made_in)
            try:
                item = run(items.__anext__, step)
            except StopAsyncIteration:
                closing = None
                return
            yield item
    finally:
        if closing is not None:
            run_unless_leaving(close, made_in)


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
