"""Ties the life of a child process to that of its parent: prctl(2), PR_SET_PDEATHSIG. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent_pid: int) -> Callable[[], None] | None:
    """Return a `preexec_fn` for a new child, so that the kernel kills it when its parent dies; None if not on Linux.

    The kernel ties the child to the thread that started it: it is killed when that thread ends.
    """
    if _LIBC is None:
        return None
    prctl = _LIBC.prctl

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the call above: then the kernel does not kill this process.
        if os.getppid() != parent_pid:
            os._exit(1)

    return tie
