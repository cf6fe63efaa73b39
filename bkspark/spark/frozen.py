"""Keeps the cycle collector of Spark's Python workers from scanning imported modules.

A worker serves many calls (tasks, plans, commits), and pyspark's daemon runs the cycle collector after each: some 40 ms
of processor time, only to scan imported modules.
"""

from __future__ import annotations

import gc
import os

_REUSED = "SPARK_REUSE_WORKER"
"""Set in the environment of workers that serve more than one call."""
_calls = 0


def freeze_imported_modules() -> None:
    """Exclude a worker's imported modules from later collections; call it at the beginning of every call.

    It acts at the second call: the modules of the first call are imported then, and its garbage has been collected.
    Outside of a worker that Spark reuses it does nothing.
    """
    global _calls
    if _REUSED not in os.environ or _calls > 1:
        return
    _calls += 1
    if _calls == 2:
        gc.freeze()
