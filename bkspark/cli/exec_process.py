"""Runs a command of the server's package in place of this process, because this package must not import it."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def exec_replacing_process(command: list[str]) -> NoReturn:
    """Replace this process by a program whose first lines handle SIGTERM and SIGINT; never returns.

    Raises:
        OSError: there is no such program.
    """
    # Python cannot handle signals until those lines run, so they are blocked; those lines unblock them.
    held_before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    try:
        os.execv(command[0], command)
    finally:
        # Only reached if there is no such program: this process continues, and needs its signals again.
        signal.pthread_sigmask(signal.SIG_SETMASK, held_before)
