"""How a command ends by a signal: one KeyboardInterrupt, at a place where nothing is half done."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from types import FrameType
from typing import Any, NoReturn

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While entered, the first ending signal raises KeyboardInterrupt and the later ones do nothing.

    A second Ctrl-C must not interrupt the clean-up that the first one began; that is bounded in time everywhere.
    While the main thread runs an event loop, the exception comes between two of its callbacks: in the middle of one, a
    coroutine may have been made that is not yet awaited.
    """

    def __init__(self) -> None:
        self.happened = False
        """Whether a signal came. Set once."""
        self._previous: dict[signal.Signals, Any] = {}
        """The handlers that are restored."""

    def __enter__(self) -> Interruption:
        # Python lets only the main thread set handlers; a caller in another one keeps its own.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._interrupt) for number in _ENDING_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.happened:
            return
        self.happened = True
        # Not imported here, as not every command needs it; and its own import may be what the signal interrupts.
        running_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
        loop = None if running_loop is None else running_loop()
        if loop is not None:
            loop.call_soon_threadsafe(_interrupt)
            return
        # `asyncio.run(work())` has made the coroutine, and may not have begun it: then nothing is to be cleaned up.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        raise KeyboardInterrupt


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
