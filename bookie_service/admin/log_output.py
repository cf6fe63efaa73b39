"""Where and how a server's process logs: to stderr, as text or as JSON, with limits against floods.

JSON has one object a line in the form of OpenTelemetry's log model, as Apache's bookies can log: `Timestamp` (UTC, ms),
`SeverityText`, `Body`, and `Attributes` with `thread.name`, `code.namespace`, `exception.*` and those of the event.
Text has the same attributes only if the message names them (`bkspark.log_lines`).

Lines of the audit log are always written, whatever the level is: only operators who may change something cause them,
and one of these changes is the level.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping

from bkspark.log_limit import DETAILS, LogLimiter, limited
from bkspark.log_lines import TEXT, TextFormatter
from bkspark.one_line import one_line
from bkspark.version import VERSION
from bookie_service.operation.audit import AUDIT_LOGGER
from bookie_service.settings.arguments import fail
from bookie_service.settings.configuration import LOG_FORMATS, Configuration, is_secret
from bookie_service.settings.values import Values

logger = logging.getLogger(__name__)

INSTANCE_VARIABLE = "BKSPARK_INSTANCE"
"""The environment variable with the number of a bookie that shares a host's log with others. Each line names it."""

_SEVERITIES = {logging.WARNING: "WARN", logging.CRITICAL: "FATAL"}


class JsonFormatter(logging.Formatter):
    """Writes one JSON object a line."""

    def __init__(self, instance: str | None = None) -> None:
        super().__init__()
        self._instance = instance

    def format(self, record: logging.LogRecord) -> str:
        attributes: dict[str, object] = {"thread.name": record.threadName, "code.namespace": record.name}
        if self._instance is not None:
            attributes["bookie.instance"] = self._instance
        event = getattr(record, "event", None)
        if event is not None:
            attributes["event.name"] = event
        attributes |= getattr(record, "attributes", {})
        if hasattr(record, DETAILS):
            attributes[DETAILS] = getattr(record, DETAILS)
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
            attributes["exception.message"] = str(record.exc_info[1])
            attributes["exception.stacktrace"] = "".join(traceback.format_exception(*record.exc_info))
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "Timestamp": f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z",
            "SeverityText": _SEVERITIES.get(record.levelno, record.levelname),
            "Body": record.getMessage(),
            "Attributes": attributes,
        }
        return json.dumps(line, default=str)


def log_to_stderr() -> LogLimiter:
    """Log to stderr as text; return the limit that keeps peers from filling the log."""
    handler = logging.StreamHandler(sys.stderr)
    limiter = limited(handler)
    handler.setFormatter(TextFormatter(_text()))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)
    # kazoo logs every attempt to connect. Our errors report the outcome.
    logging.getLogger("bkspark.kazoo").setLevel(logging.ERROR)
    return limiter


def log_start(what: str, configuration: Configuration, **attributes: object) -> None:
    """Log that a server starts, with its version and the keys that are set."""
    keys = {key: "***" if is_secret(key) else value for key, value in sorted(configuration.values.items())}
    logger.info(
        "%s starts: bkspark %s, pid %d; keys that are set: %s",
        what,
        VERSION,
        os.getpid(),
        ", ".join(f"{key}={value}" for key, value in keys.items()) or "none",
        extra={
            "event": "start",
            "attributes": {"version": VERSION, "pid": os.getpid(), "keys": keys, **attributes},
        },
    )


def use(level: str, form: str) -> None:
    """Log from this level on, as `text` or as `json`."""
    set_level(level)
    for handler in logging.getLogger().handlers:
        is_json = form == "json"
        handler.setFormatter(JsonFormatter(os.environ.get(INSTANCE_VARIABLE)) if is_json else TextFormatter(_text()))


def use_given(values: Mapping[str, str]) -> None:
    """Log in the form that these keys name, for what is wrong with the configuration."""
    form = Values(values).text("logFormat")
    if form in LOG_FORMATS:
        use("info", form)


def report_end(program: str, error: object, code: int) -> int:
    """Report why this process ends, as the last line of its log has the form of all others; return its exit code."""
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        return fail(program, error, code)
    attributes = {"exit_code": code}
    logger.critical("%s: %s", program, one_line(str(error)), extra={"event": "failure", "attributes": attributes})
    return code


def _text() -> str:
    instance = os.environ.get(INSTANCE_VARIABLE)
    return TEXT if instance is None else TEXT.replace("%(message)s", f"instance {int(instance)}: %(message)s")


def set_level(level: str) -> None:
    """Log from this level on: debug, info, warning or error."""
    logging.getLogger().setLevel(level.upper())
