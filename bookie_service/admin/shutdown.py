"""What SIGTERM and SIGINT do to a server's process, from its first moment to its last. Imports next to nothing.

Until the server serves, nothing has been promised to anybody, and every file is as a crash may leave it: the process
ends at once, in the middle of an import or of a replay of many minutes. From then on it is asked to stop in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ShutdownSignals:
    """Takes the signals, once it was told to `begin`."""

    def __init__(self, program: str = "bookie", *, is_command: bool = False) -> None:
        """`is_command`: no server runs, and who is interrupted has not done what was asked: exit code 1."""
        self._program = program
        self._is_command = is_command
        self._stop: Callable[[], object] | None = None

    def begin(self) -> None:
        """Take the signals from now on."""
        for number in SIGNALS:
            signal.signal(number, lambda *_: self.request())
        # Whoever started this process in our place held them back meanwhile.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def request(self) -> None:
        """End the process now, or ask what runs to stop."""
        if self._stop is not None:
            self._stop()
            return
        if self._is_command:
            with contextlib.suppress(RuntimeError):  # the signal came in the middle of another line
                print(f"{self._program}: interrupted", file=sys.stderr, flush=True)
        # Not by an exception: imports and threads would make another of it, with a traceback.
        os._exit(1 if self._is_command else 0)

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Call `stop` from now on."""
        self._stop = stop
