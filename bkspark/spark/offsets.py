"""Streaming offsets: positions in one log, or in many, as one canonical JSON object. PURE.

An offset in one log:

    {"entry": 120, "ledger": 17, "log": "clicks", "log_id": "00000000000000aa", "ordinal": 3, "version": 1}

    entry, ledger, ordinal    the position, as `bkspark.log.positions` specifies it
    log                       name of the log, so that the checkpoint of another log is noticed
    log_id                    the log's own id, so that a log deleted and created again is noticed
    version                   of this format, 1

An offset in the logs that a pattern names, sorted by name:

    {"logs": {"clicks": {...as above...}, "orders": {...}}, "version": 1}

Keys are in this order and all numbers are integers: Spark compares offsets as text, and an offset that is equal but
written differently would be read again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bkspark.errors import ConfigurationError, NoSuchLog
from bkspark.log.positions import VERSION, Position
from bkspark.spark.option_values import shown


@dataclass(frozen=True, slots=True)
class LogOffset:
    """A position in one log."""

    log: str
    log_id: str
    """The token in the log's head: another log of this name has another one."""
    position: Position

    @property
    def subject(self) -> str:
        """What the position belongs to, for messages."""
        return f"log {self.log}"

    @property
    def place(self) -> str:
        """What is read next, for messages: a position as options take it."""
        return f"position {self.position}"

    def to_json(self) -> dict[str, Any]:
        """Return the canonical object: the same position always gives the same text."""
        return dict(sorted({**self.position.to_json(), "log": self.log, "log_id": self.log_id}.items()))

    @classmethod
    def from_json(cls, value: Mapping[str, Any], log: str, source: str) -> LogOffset:
        """Return the offset that `value` holds.

        Args:
            log: the log being read; an offset of another one is refused.
            source: the origin of the value, for the message: an option's name, or the checkpoint.

        Raises:
            ConfigurationError: a key is missing, unknown or out of range; the version is newer; the log is another.
        """
        name, log_id = value.get("log"), value.get("log_id")
        if not isinstance(name, str) or not isinstance(log_id, str):
            raise ConfigurationError(
                f"{source} {dict(value)!r} is not an offset of a stream: 'log' and 'log_id' are missing"
            )
        if name != log:
            raise ConfigurationError(
                f"{source} is a position in log {name!r}, but log {log!r} is read: "
                "use the checkpoint or position of that log, or a new checkpoint"
            )
        position = {key: item for key, item in value.items() if key not in ("log", "log_id")}
        return cls(log, log_id, position_of(position, source))


class OneLog:
    """Encodes and decodes the offsets of a stream that reads one log."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._last: dict[str, LogOffset] = {}
        """The offset that was decoded or encoded last, by log; empty before the first one."""

    def to_json(self, offsets: Mapping[str, LogOffset]) -> dict[str, Any]:
        """Return the offset of the log; without one, the log was deleted: then the last one, which stays."""
        self._last = {**self._last, **offsets}
        if self._log not in self._last:
            raise NoSuchLog(f"log {self._log} does not exist, and a stream cannot begin without it: create it first")
        return self._last[self._log].to_json()

    def from_json(self, value: Any, source: str) -> dict[str, LogOffset]:
        """Raises ConfigurationError as `LogOffset.from_json`, and if `value` belongs to a stream of many logs."""
        value = _object(value, source)
        if "logs" in value:
            raise ConfigurationError(
                f"{source} is of a stream with 'logsPattern': use that option, or a new checkpoint"
            )
        self._last = {self._log: LogOffset.from_json(value, self._log, source)}
        return self._last


class ManyLogs:
    """Encodes and decodes the offsets of a stream that reads all logs of a pattern."""

    def to_json(self, offsets: Mapping[str, LogOffset]) -> dict[str, Any]:
        return {"logs": {name: offsets[name].to_json() for name in sorted(offsets)}, "version": VERSION}

    def from_json(self, value: Any, source: str) -> dict[str, LogOffset]:
        """Raises ConfigurationError as `LogOffset.from_json`, and if `value` belongs to a stream of one log."""
        value = _object(value, source)
        logs = value.get("logs")
        if not isinstance(logs, Mapping) or set(value) != {"logs", "version"}:
            raise ConfigurationError(f"{source} {dict(value)!r} is not an offset of 'logsPattern': use 'log'")
        if value["version"] != VERSION:
            raise ConfigurationError(f"{source} has version {value['version']!r}, this bkspark reads version {VERSION}")
        return {name: LogOffset.from_json(_object(each, source), name, source) for name, each in logs.items()}


def _object(value: Any, source: str) -> Mapping[str, Any]:
    # Offsets of other sources, Spark's rate for one, are numbers or lists.
    if not isinstance(value, Mapping):
        raise ConfigurationError(
            f"{source} is {shown(value)}, no offset of a stream of this format: use the checkpoint of this query, or a "
            "new one"
        )
    return value


def position_of(value: Any, source: str) -> Position:
    """Return the position that an option or offset holds.

    Raises:
        ConfigurationError: it is not a position; the message names `source` and says why.
    """
    try:
        return Position.parse(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None
