"""Limits how much is logged, whatever peers do. Repeated lines are counted and summarised.

The kind of a line depends on the code that logs it, not on data from a peer: on the logger, level and format, and on
`kind` if the caller names one (`extra={"kind": ...}`). The first line of a kind always passes, with its traceback.
Later lines of the kind pass while there is room: `_LINES_PER_S` a second in all, and few of one kind. The others are
counted. A summary line, at most one in `_SUMMARY_S`, gives their number, and the last of them as an example.

Lines of the audit log are never left out: only operators who may change something cause them.
"""

from __future__ import annotations

import copy
import logging
import re
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from bkspark.buckets import Bucket

_LINES_PER_S = 5.0
"""Not counting first lines and summaries. All together stay below ten per second."""
_BURST = 5.0
_LINES_PER_S_OF_KIND = 1.0
_BURST_OF_KIND = 3.0
_SUMMARY_S = 10.0
_RARE = frozenset({"opentelemetry"})
"""Packages that repeat lines for as long as a server is away. Only the first line of a kind passes; later ones are
summarised, at most once in _RARE_S."""
_RARE_S = 60.0
FLUSH_S = 1.0
"""How often a process flushes its limiter."""
AUDIT = "audit"
"""The name of the event in `extra` of the audit log's lines."""
KINDS_MAX = 1000
"""Limit for kinds that callers name. Lines of further kinds count as lines of their format."""
_DIGITS = re.compile(r"[0-9]+")
DETAILS = "details"
"""The name in `extra` of a text of several lines that belongs to an event, such as a stack."""


@dataclass(slots=True)
class _Kind:
    """A kind of line that was seen."""

    bucket: Bucket
    """How many lines may be written now."""
    left_out: int = 0
    """How many lines were left out since the last summary of this kind."""
    since: float = 0.0
    """When the first line that was left out came."""
    last: logging.LogRecord | None = None
    """The last line that was left out; None: no line was."""
    summary_s: float = _SUMMARY_S
    """How long lines are counted before a summary."""


class LogLimiter(logging.Filter):
    """A filter for a log handler. Call `flush` every FLUSH_S, and `finish` before the process ends. Records are not
    changed: other handlers may share them."""

    def __init__(self, clock: Callable[[], float], emit: Callable[[logging.LogRecord], object]) -> None:
        """`clock` returns seconds; `emit(record)` writes a line that does not pass this filter again."""
        super().__init__()
        self._clock = clock
        self._emit = emit
        self._kinds: dict[Hashable, _Kind] = {}
        """All kinds that were seen. From KINDS_MAX on, new kinds that callers name count as their format."""
        self._all = Bucket(_LINES_PER_S, _BURST, clock())
        self._lock = threading.RLock()
        """Held while a record is judged: any thread may log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the handler is to write a line; count it if it is left out."""
        if getattr(record, "event", None) == AUDIT:
            return True
        with self._lock:
            return self._takes(record, self._clock())

    def _takes(self, record: logging.LogRecord, now: float) -> bool:
        key = (record.name, record.levelno, record.msg, getattr(record, "kind", None))
        kind = self._kinds.get(key)
        if kind is None and len(self._kinds) >= KINDS_MAX:
            # A peer that can choose a kind must not get a line, and memory, for each of its texts.
            key = (*key[:3], None)
            kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = kind = _new_kind(record.name, now)
            self._take(kind, _lines_of(record))
            return True
        if kind.bucket.has_room(now) and self._all.has_room(now):
            self._take(kind, 1.0)
            if not (record.exc_info or record.exc_text):
                return True
            # Its traceback was written the first time.
            brief = copy.copy(record)
            brief.exc_info = brief.exc_text = None
            self._emit(brief)
            return False
        if not kind.left_out:
            kind.since = now
        kind.left_out += 1
        kind.last = record
        return False

    def _take(self, kind: _Kind, lines: float) -> None:
        kind.bucket.take(1.0)
        self._all.take(lines)

    def flush(self) -> None:
        """Write summaries of lines that were left out, as far as the last ones are old enough and there is room."""
        with self._lock:
            now = self._clock()
            for kind in self._kinds.values():
                if kind.left_out and now - kind.since >= kind.summary_s and self._all.has_room(now):
                    self._all.take(1.0)
                    self._summarise(kind, now)

    def finish(self) -> None:
        """Write summaries of all lines that were left out, because the process ends."""
        with self._lock:
            now = self._clock()
            for kind in self._kinds.values():
                if kind.left_out:
                    self._summarise(kind, now)

    def _summarise(self, kind: _Kind, now: float) -> None:
        last = kind.last
        assert last is not None
        text = "%d more lines like this one were left out in %.0f s: %s"
        values = (kind.left_out, now - kind.since, last.getMessage())
        self._emit(logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, values, None))
        kind.left_out, kind.last = 0, None


def _new_kind(logger_name: str, now: float) -> _Kind:
    if logger_name.partition(".")[0] in _RARE:
        return _Kind(Bucket(0.0, 1.0, now), summary_s=_RARE_S)
    return _Kind(Bucket(_LINES_PER_S_OF_KIND, _BURST_OF_KIND, now))


def limited(handler: logging.Handler) -> LogLimiter:
    """Limit what a handler writes; return the limiter."""

    def emit(record: logging.LogRecord) -> None:
        handler.acquire()
        try:
            handler.emit(record)
        finally:
            handler.release()

    limiter = LogLimiter(time.monotonic, emit)
    handler.addFilter(limiter)
    return limiter


def _lines_of(record: logging.LogRecord) -> float:
    """Return how many lines a record makes."""
    lines = getattr(record, DETAILS, "").count("\n") + 1
    if record.exc_info:
        lines += "".join(traceback.format_exception(*record.exc_info)).count("\n")
    return float(lines)


def place_of(error: BaseException) -> Hashable:
    """Return the place in the code where an error was raised, as a `kind`."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return (type(error).__name__, at and (at.tb_frame.f_code.co_filename, at.tb_lineno))


def no_digits(text: str) -> str:
    """Return a text without its digits, as a `kind`: for texts of our own with numbers that a peer can vary."""
    return _DIGITS.sub("", text)
