"""The bookie's event loop: asyncio's, with a record of how long its current turn has taken.

A turn is the loop's work between two polls of the sockets. `Turns` uses its length to postpone work that can wait. A
`TurnRecorder`, for tests and for finding stalls, keeps the longest turn and records what it was doing.
`BKSPARK_SLOW_TURN_MS=50 bkspark bookie ...` logs each turn above 50 ms with the stack and, at the end, the longest turn
since the bookie began to serve.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import select
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bkspark.log_limit import DETAILS

logger = logging.getLogger(__name__)

SLOW_TURN_VARIABLE = "BKSPARK_SLOW_TURN_MS"
_SWITCH_S = 0.001
_EPOLL_S = 0.001
"""epoll waits for whole milliseconds: Python rounds a shorter time up."""
_SELECT_MAX = 1024
"""select takes only file descriptors below this."""
_NEW_OBJECTS_MAX = 20_000
"""If this many more objects were made than freed, the new ones are scanned at once. It takes 3 ms; more take longer."""
_NEVER = 1_000_000_000
"""A threshold that is not reached: older objects are scanned by the timer alone."""
T = TypeVar("T")


class TurnSelector(selectors.DefaultSelector):
    """A selector that notes when each turn begins, and whose time-outs may be shorter than a millisecond.

    So newcomers' steps can alternate with pauses of the same length (`Turns`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._waits_exactly = self.fileno() < _SELECT_MAX
        """Whether select can wait for this selector. Constant."""
        self.turn_began = time.monotonic()
        """When the current turn began."""

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and 0 < timeout < _EPOLL_S and self._waits_exactly:
            select.select((self,), (), (), timeout)
            timeout = 0
        found = super().select(timeout)
        self.turn_began = time.monotonic()
        return found


class TurnRecorder(TurnSelector):
    """Keeps the longest turn, in wall-clock time and in processor time, and reports what a slow turn is doing.

    Processor time is what a request costs; wall-clock time includes waiting for disks and, on a busy machine, for a
    processor.
    """

    def __init__(self, slow_s: float, report: Callable[[str], None]) -> None:
        """`report(text)` gets the stack of a turn that has taken `slow_s` and still runs. It is called on a thread."""
        super().__init__()
        self.longest_s = 0.0
        """The longest turn since `forget`, in wall-clock time."""
        self.longest_processor_s = 0.0
        """The same in processor time."""
        self._slow_s = slow_s
        self._report = report
        self._processor_at = time.thread_time()
        """The processor time at the beginning of the turn."""
        self._loop_thread = threading.get_ident()
        """The thread whose stack is reported: the event loop's. Constant."""
        self._is_in_turn = False
        """Whether a turn is in progress."""
        self._closing = threading.Event()
        """Set by `close`: ends the reporter's thread."""
        self._reporter = threading.Thread(target=self._report_slow_turns, name="slow-turns", daemon=True)
        """Looks several times in `slow_s` whether a turn is slow."""
        self._reporter.start()

    def select(self, timeout: float | None = None) -> Any:
        self._is_in_turn = False
        self.longest_s = max(self.longest_s, time.monotonic() - self.turn_began)
        self.longest_processor_s = max(self.longest_processor_s, time.thread_time() - self._processor_at)
        found = super().select(timeout)
        self._processor_at = time.thread_time()
        self._is_in_turn = True
        return found

    def forget(self) -> None:
        """Forget the longest turn so far."""
        self.longest_s = self.longest_processor_s = 0.0

    def _report_slow_turns(self) -> None:
        reported = 0.0
        while not self._closing.wait(self._slow_s / 2):
            began = self.turn_began
            if self._is_in_turn and began != reported and time.monotonic() - began > self._slow_s:
                frame = sys._current_frames().get(self._loop_thread)
                self._report("".join(traceback.format_stack(frame)))
                reported = began

    def close(self) -> None:
        self._closing.set()
        super().close()


class BookieLoop(asyncio.SelectorEventLoop):
    """An event loop with a `TurnSelector`."""

    def __init__(self, selector: TurnSelector) -> None:
        super().__init__(selector)
        self.turns = selector


def run(main: Coroutine[Any, Any, T], selector: TurnSelector | None = None) -> T:
    """Run a coroutine on a new `BookieLoop`, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=lambda: BookieLoop(selector or TurnSelector())) as runner:
        return runner.run(main)


class TimedCollections:
    """Python's garbage collections at set times. For one event loop, from `with` until its end.

    Python begins a collection when 700 more objects were made than freed. Beside a flood of connections, old ones end
    while new ones come, so by then many objects are new: a collection took 2 to 5 ms, 15 times a second. What serves a
    client must not form cycles, so there is little to collect.

    The objects of the start, most of which are modules that stay, are never scanned: that takes 30 ms.
    """

    def __init__(self, interval_s: float = 1.0, recent_every: int = 10, all_every: int = 60) -> None:
        """New objects are scanned every `interval_s`.

        `recent_every`, `all_every`: after this many intervals, objects scanned since the last time are scanned
        again, or all of them: connections of HTTP, which are asyncio's, form cycles and may last for long.
        """
        self._interval_s, self._recent_every, self._all_every = interval_s, recent_every, all_every
        self._intervals = 0
        """How many intervals are over."""
        self._timer: asyncio.TimerHandle | None = None
        """The planned scan; None before the first one is planned. Set by `_plan`."""
        self._thresholds = gc.get_threshold()
        """Python's own thresholds, which are set again at the end. Constant."""

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS_MAX, _NEVER, _NEVER)
        self._plan()

    def __exit__(self, *_: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        gc.set_threshold(*self._thresholds)

    def _plan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._collect)

    def _collect(self) -> None:
        self._intervals += 1
        is_due = [self._intervals % every == 0 for every in (1, self._recent_every, self._all_every)]
        gc.collect(max(generation for generation, is_now in enumerate(is_due) if is_now))
        self._plan()


async def forget_start() -> None:
    """Let the recorder of the running loop, if there is one, forget the turns of the start, which delayed no client."""
    loop = asyncio.get_running_loop()
    # The current turn is one of them.
    await asyncio.sleep(0)
    if isinstance(loop, BookieLoop) and isinstance(loop.turns, TurnRecorder):
        loop.turns.forget()


def share_interpreter() -> None:
    """Let a thread that waits for the interpreter have it after at most a millisecond.

    Python's default is 5 ms. The event loop waited for this long each time while the thread of the garbage collector
    computed (benchmarks/collection.py: a thousandth of the turns came 5.3 ms late, and 2.3 ms with this setting).
    """
    sys.setswitchinterval(_SWITCH_S)


def recorder_of(slow_ms: str | None) -> TurnRecorder | None:
    """Return a recorder that logs turns longer than this text says, in ms; None if `slow_ms` is None.

    Raises:
        ValueError: the text is not a number above 0.
    """
    if not slow_ms:
        return None
    slow_s = float(slow_ms) / 1000
    if not slow_s > 0:
        raise ValueError(slow_ms)
    return TurnRecorder(
        slow_s,
        lambda stack: logger.warning(
            "the event loop has been busy for %s ms with this:", slow_ms, extra={DETAILS: stack}
        ),
    )


def turn_began(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a function that returns when the current turn began, on the monotonic clock.

    On a loop that does not record it, a turn begins at each call.
    """
    if isinstance(loop, BookieLoop):
        selector = loop.turns
        return lambda: selector.turn_began
    return time.monotonic
