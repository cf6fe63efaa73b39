"""Limits how much the console logs, whatever its users and bookies do: repeated lines are counted.

The kind of a line is its logger, level and format. `LINES_MAX` lines of a kind pass in `WINDOW_S`; the next that passes
says how many were left out. Lines of the audit log always pass.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

WINDOW_S = 10.0
LINES_MAX = 5
KINDS_MAX = 1000
"""Kinds that are counted apart; further ones count as one."""


@dataclass(slots=True)
class _Kind:
    """Lines of one kind."""

    until_s: float
    """The end of the window."""
    lines: int = 0
    """Lines that passed in it."""
    left_out: int = 0
    """Lines that were left out since the last one that passed."""


class ConsoleLogLimiter(logging.Filter):
    """A filter for a handler."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, _Kind] = {}
        """Kinds that were seen; at most KINDS_MAX and one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line; one that follows others that were left out says so."""
        if str(record.msg).startswith("audit: "):
            return True
        with self._lock:
            left_out = self._left_out_before(record)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines like this one were left out)", None
        return left_out is not None

    def _left_out_before(self, record: logging.LogRecord) -> int | None:
        """Count a line; return how many were left out before it, None if it is left out."""
        now_s, key = self._clock(), (record.name, record.levelno, record.msg)
        if key not in self._kinds and len(self._kinds) >= KINDS_MAX:
            key = ("", 0, "")
        kind = self._kinds.setdefault(key, _Kind(now_s + WINDOW_S))
        if now_s >= kind.until_s:
            kind.until_s, kind.lines = now_s + WINDOW_S, 0
        if kind.lines == LINES_MAX:
            kind.left_out += 1
            return None
        left_out, kind.left_out = kind.left_out, 0
        kind.lines += 1
        return left_out
