"""Spark gives a Python process of a stream ten seconds to start, and has no setting for it: if it is late, again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import StreamingQueryException

TRIES = 10
TOO_LATE = "Python worker failed to connect back"

T = TypeVar("T")


def patiently(run: Callable[[], T]) -> T:
    """Return what `run` returns, which starts a query and waits for it; again if that was too early for Spark."""
    for tries_left in reversed(range(TRIES)):
        try:
            return run()
        except StreamingQueryException as error:
            if not tries_left or TOO_LATE not in str(error):
                raise
    raise AssertionError("the last try returns or raises")
