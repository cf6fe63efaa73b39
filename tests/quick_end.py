"""A forked program ends as soon as it has done all that can be noticed of its end.

An interpreter frees everything when it ends. A process that was forked from one with many modules shares their memory
with it until it frees them: the kernel then copies each page, which takes longer than most of what such a process does.
`run_module` waits for threads and calls what was registered with `atexit`, as usual, and leaves the memory to the
kernel.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys


class _Program:
    """The program that this process runs."""

    def __init__(self) -> None:
        self.pid = 0
        """The process that runs it; 0: none does. Another one is a fork of the program, which ends as usual."""
        self.exit_code = 0


_program = _Program()


def prepare() -> None:
    """Must be called before anything else is registered with `atexit`: the last callback is the one that ends."""
    atexit.register(_leave)


def run_module(name: str) -> None:
    """Run a module as `python -m` does."""
    _program.pid, _program.exit_code = os.getpid(), 0
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        _program.exit_code = _exit_code(end.code)
        raise
    except KeyboardInterrupt:
        # The interpreter ends by the signal.
        _program.pid = 0
        raise
    except BaseException:
        _program.exit_code = 1
        raise


def _exit_code(code: object) -> int:
    """Return the exit code of `SystemExit(code)`; a text is printed by the interpreter."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def _leave() -> None:
    if _program.pid != os.getpid():
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            return  # the interpreter tries again, and reports it
    os._exit(_program.exit_code)
