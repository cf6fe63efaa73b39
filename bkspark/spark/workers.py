"""What the connector does for the Python worker that Spark runs it in.

A worker lives through many calls (tasks, plans, commits), and pyspark's daemon has it collect cycles after each: some
40 ms of processor time, spent on nothing but the modules that were imported.
"""

from __future__ import annotations

import gc
import os

_REUSED = "SPARK_REUSE_WORKER"
"""Set in the environment of workers that serve more than one call."""

_calls = 0


def spare_modules() -> None:
    """Keep what a worker has imported out of later collections; to be called at the beginning of every call.

    Done at the second call: what the first one imported is there, and what it left behind has been collected.
    Elsewhere than in a worker that Spark reuses this does nothing.
    """
    global _calls
    if _REUSED not in os.environ or _calls > 1:
        return
    _calls += 1
    if _calls == 2:
        gc.freeze()
