"""A program that prints what it finds of itself as JSON, for `tests/test_warm_starts.py`; its exit code is 7."""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import sys
import threading


def say_last() -> None:
    """Say something when the main thread has ended."""
    threading.main_thread().join()
    print("a thread", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:] == ["waits"]:
        signal.pause()
    facts = {
        "parent": os.getppid(),
        "leads its group": os.getpgid(0) == os.getpid(),
        "session": os.getsid(0),
        "folder": os.getcwd(),
        "arguments": sys.argv,
        "command": sys.orig_argv,
        "path": sys.path[0],
        "variables": dict(os.environ),
        "limits": resource.getrlimit(resource.RLIMIT_CORE),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "handlers": [repr(signal.getsignal(number)).split(" at ")[0] for number in sorted(signal.valid_signals())],
        "umask": os.umask(0),
        "files": [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")],
        "input": sys.stdin.read(),
        "streams": [[each.encoding, each.errors, each.line_buffering] for each in (sys.stdin, sys.stdout, sys.stderr)],
        "threads": threading.active_count(),
    }
    threading.Thread(target=say_last).start()
    atexit.register(print, "the end", file=sys.stderr, end="")
    print(json.dumps(facts))
    print("an error", file=sys.stderr)
    sys.exit(7)
