"""The bookie's event loop: asyncio's, which also knows how long its present turn has taken.

A turn is what the loop does between two looks at the sockets. `Turns` asks for its length, to put off what can wait. A
`TurnRecorder`, for tests and for looking into a stall, keeps the longest one, and writes down what it was doing:
`BKSPARK_SLOW_TURN_MS=50 bkspark bookie ...` logs each turn above 50 ms with the stack, and the longest one at the end.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

SLOW_TURN_VARIABLE = "BKSPARK_SLOW_TURN_MS"
T = TypeVar("T")


class TurnSelector(selectors.DefaultSelector):
    """Notes when each turn begins."""

    def __init__(self) -> None:
        super().__init__()
        self.turn_began = time.monotonic()

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(timeout)
        self.turn_began = time.monotonic()
        return found


class TurnRecorder(TurnSelector):
    """Keeps the longest turn, by the clock and in processor time, and reports what a slow one is doing.

    Processor time is what a request costs; by the clock a turn also waits for disks and, on a busy machine, for a
    processor.
    """

    def __init__(self, slow_s: float, report: Callable[[str], None]) -> None:
        """`report(text)` gets the stack of a turn that has taken `slow_s`, while it goes on; called on a thread."""
        super().__init__()
        self.longest_s = 0.0
        self.longest_processor_s = 0.0
        self._slow_s = slow_s
        self._report = report
        self._processor_at = time.thread_time()
        self._loop_thread = threading.get_ident()
        self._is_in_turn = False
        self._closing = threading.Event()
        self._reporter = threading.Thread(target=self._report_slow_turns, name="slow-turns", daemon=True)
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


def spare_collections() -> None:
    """Have the garbage collector pass over the objects that there are now, of which most stay: modules, above all.

    Going through them takes 30 ms of processor time, in which nobody is answered; a flood of polls had it done often.
    """
    gc.collect()
    gc.freeze()


def recorder_of(slow_ms: str | None) -> TurnRecorder | None:
    """Return a recorder that logs turns above so many ms, as the variable's text says; None without one.

    Raises:
        ValueError: it is no number above 0.
    """
    if not slow_ms:
        return None
    slow_s = float(slow_ms) / 1000
    if not slow_s > 0:
        raise ValueError(slow_ms)
    return TurnRecorder(
        slow_s, lambda stack: logger.warning("the event loop has been busy for %s ms with this:\n%s", slow_ms, stack)
    )


def turn_began(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return a function that tells when the present turn began, on the monotonic clock.

    Of a loop that does not know it, turns begin whenever that is asked.
    """
    if isinstance(loop, BookieLoop):
        selector = loop.turns
        return lambda: selector.turn_began
    return time.monotonic
