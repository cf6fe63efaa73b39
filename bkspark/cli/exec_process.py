"""Runs a command of the server's package in place of this process, because this package must not import it."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def exec_replacing_process(command: list[str]) -> NoReturn:
    """Replace this process by a program whose first lines take SIGTERM and SIGINT; returns never.

    Raises:
        OSError: there is no such program.
    """
    # Python is not ready for a signal until those lines run; they let these through again.
    held_before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        os.execv(command[0], command)
    finally:
        # Only reached when there is no such program: this process goes on, and so do its children's signals.
        signal.pthread_sigmask(signal.SIG_SETMASK, held_before)
