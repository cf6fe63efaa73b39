"""Failures that repeat: the first of a cause has a line at once; later ones are counted, and have one line a minute.

`log_limit` limits all lines of a process, whatever they say. This module is for code that knows the cause of a failure
and when it works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MINUTE_S = 60.0
"""After this time failures of a cause have another line."""
_TYPES_MAX = 100
"""More than there are types of errors that repeat."""
T = TypeVar("T")


@dataclass(slots=True)
class CountedFailures(Generic[T]):
    """Failures of one cause that no line has reported yet."""

    since_s: float
    """When the last line about the cause was written, by the caller's clock."""
    last: T
    """The last failure; before there is one, the last one that a line reported."""
    count: int = 0
    """How many failures there are."""


class FailureCounts(Generic[T]):
    """Counts failures by cause. The caller passes the times, in seconds of a clock that never goes back."""

    def __init__(self, causes_max: int) -> None:
        """`causes_max`: how many causes are counted separately. More are counted as one cause."""
        self._causes_max = causes_max
        self._causes: dict[Hashable, CountedFailures[T]] = {}
        """By cause; at most `causes_max`, and None for all others."""

    def note(self, cause: Hashable, failure: T, now_s: float) -> bool:
        """Note a failure. Return True if it is the first of its cause: it needs a line now, and is not counted."""
        if cause not in self._causes and len(self._causes) >= self._causes_max:
            cause = None
        known = self._causes.get(cause)
        if known is None:
            self._causes[cause] = CountedFailures(now_s, failure)
            return True
        known.count += 1
        known.last = failure
        return False

    def due(self, now_s: float) -> list[tuple[Hashable, CountedFailures[T]]]:
        """Return the causes that need a line now, and count them from zero. Causes without a failure are forgotten."""
        found = []
        for cause, known in list(self._causes.items()):
            if now_s - known.since_s < MINUTE_S:
                continue
            if known.count:
                found.append((cause, known))
                self._causes[cause] = CountedFailures(now_s, known.last)
            else:
                del self._causes[cause]
        return found

    def forget(self) -> bool:
        """Forget all causes, because it works again; return whether there were any."""
        had_some = bool(self._causes)
        self._causes.clear()
        return had_some


class RepeatedFailure:
    """Logs that something fails whenever it is tried: at once, then once a minute with the number of failures, and when
    it works again. The cause is the name of the error's type. For an event loop."""

    def __init__(self, logger: logging.Logger, failing: str, working: str) -> None:
        """`failing`: the line without the error. `working`: the line when it works again."""
        self._logger = logger
        self._failing = failing
        self._working = working
        self._failures = FailureCounts[str](causes_max=_TYPES_MAX)

    def failed(self, error: BaseException) -> None:
        """Note a failure. Its text is kept, not the error, whose traceback may hold much memory."""
        now = asyncio.get_running_loop().time()
        if self._failures.note(type(error).__name__, str(error), now):
            self._logger.warning("%s: %s", self._failing, error)
        for _, known in self._failures.due(now):
            text = "%s: %s; %d failures since the last line"
            self._logger.warning(text, self._failing, known.last, known.count)

    def worked(self) -> None:
        """Note that it works."""
        if self._failures.forget():
            self._logger.info("%s", self._working)
