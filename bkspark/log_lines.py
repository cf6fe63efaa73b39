"""Lines of a log as text: one line for each event, even if a peer chooses some of its words.

Control characters are escaped, and tracebacks are indented. Otherwise a path, a reason or an error of a peer with a
line end could look like a line of the audit log.
"""

from __future__ import annotations

import logging
from typing import Any

from bkspark.log_limit import DETAILS
from bkspark.one_line import one_line

TEXT = "%(asctime)s %(levelname)s %(message)s"


class TextFormatter(logging.Formatter):
    """Writes one line, and indented lines for a traceback or other details."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name in logging
        line = one_line(super().formatMessage(record))
        details = getattr(record, DETAILS, None)
        return line if details is None else f"{line}\n{_indented(details)}"

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _indented(super().formatException(ei))


def _indented(text: str) -> str:
    return "\n".join(f"  {one_line(line)}" for line in text.splitlines())
