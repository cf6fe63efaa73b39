"""What SIGTERM and SIGINT do to a server's process, from its start to its end. Imports next to nothing.

Before the server serves, it has promised nothing to any client, and every file may be left as after a crash. So the
process ends at once, even in the middle of an import or of a replay of many minutes. Once it serves, a signal requests
an orderly stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)
HARMLESS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals from closed terminals and from programs that rotate logs. None of them may end a server."""


def ignore_harmless() -> None:
    """Ignore these signals from now on, also in a program that replaces this one."""
    for number in HARMLESS:
        signal.signal(number, signal.SIG_IGN)


class ShutdownSignals:
    """Handles SIGTERM and SIGINT from `begin` on."""

    def __init__(self, program: str = "bookie", *, is_command: bool = False) -> None:
        """`is_command`: this is not a server, and an interrupted command has failed: exit code 1."""
        self._program = program
        """What messages call this process."""
        self._is_command = is_command
        self._stop: Callable[[], object] | None = None
        """Called by a signal; None: the process does not serve yet, and ends at once."""

    def begin(self) -> None:
        """Handle the signals from now on."""
        for number in SIGNALS:
            signal.signal(number, lambda *_: self.request())
        # Once a bookie serves, SIGHUP lets it read its configuration again, and SIGUSR1 lets it log its state.
        ignore_harmless()
        # The process that this one replaced had blocked them.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def request(self) -> None:
        """End the process now, or let the server stop in order."""
        if self._stop is not None:
            self._stop()
            return
        if self._is_command:
            with contextlib.suppress(RuntimeError):  # the signal came in the middle of another line
                print(f"{self._program}: interrupted", file=sys.stderr, flush=True)
        # Not by an exception, because imports and threads would turn it into another one, with a traceback.
        os._exit(1 if self._is_command else 0)

    def stop_by(self, stop: Callable[[], object]) -> None:
        """Let a signal call `stop` from now on."""
        self._stop = stop
