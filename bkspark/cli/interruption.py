"""How a signal ends a command: by one KeyboardInterrupt, between two callbacks of the event loop."""

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

    A second Ctrl-C must not interrupt the clean-up that the first one began; all clean-up is limited in time. While the
    main thread runs an event loop, the exception is raised between two of its callbacks: within one, a coroutine may
    have been created that is not awaited yet.
    """

    def __init__(self) -> None:
        self.happened = False
        """Whether a signal was received. Set once."""
        self._previous: dict[signal.Signals, Any] = {}
        """The handlers that were set before, by signal. `__exit__` restores them."""

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
        # `asyncio.run(work())` has created the coroutine, and may not have begun it: then there is nothing to clean up.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        raise KeyboardInterrupt


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
