"""Streaming offsets: a place in a log as one canonical JSON object. PURE.

    {"entry": 120, "ledger": 17, "log": "clicks", "ordinal": 3, "version": 1}

    entry     the entry to read next
    ledger    id of the ledger at `ordinal`; -1 when `entry` is 0, where the ledger may not exist yet
    log       name of the log, so that the checkpoint of another log is noticed
    ordinal   the ledger's place in the log, counted from the log's creation; truncation does not change it
    version   of this format, 1

Keys are in this order and all numbers are integers: Spark compares offsets as text, and an offset that is equal but
written differently would be read again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bkspark.errors import ConfigurationError
from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkspark.spark.ranges import Place

FORMAT_VERSION = 1
NO_LEDGER = -1
_KEYS = ("entry", "ledger", "log", "ordinal", "version")
_EXAMPLE = '{"entry": 120, "ledger": 17, "log": "clicks", "ordinal": 3, "version": 1}'


@dataclass(frozen=True, slots=True)
class LogOffset:
    """A place in a named log, with the id of the ledger there when the place is inside it."""

    log: str
    place: Place
    ledger_id: int = NO_LEDGER

    def to_json(self) -> dict[str, Any]:
        """Return the canonical object: the same place always gives the same text."""
        return {
            "entry": self.place.entry,
            "ledger": self.ledger_id if self.place.entry else NO_LEDGER,
            "log": self.log,
            "ordinal": self.place.ordinal,
            "version": FORMAT_VERSION,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], log: str, source: str) -> LogOffset:
        """Return the offset that `value` holds.

        Args:
            log: the log being read; an offset of another one is refused.
            source: where the value comes from, for the message: an option's name, or the checkpoint.

        Raises:
            ConfigurationError: a key is missing, unknown or out of range; the version is newer; the log is another.
        """
        problem = _problem(value)
        if problem:
            raise ConfigurationError(f"{source} is {dict(value)!r}: {problem}; a position is {_EXAMPLE}")
        if value["log"] != log:
            raise ConfigurationError(
                f"{source} is a position in log {value['log']!r}, but log {log!r} is read: "
                "use the checkpoint or position of that log, or a new checkpoint"
            )
        return cls(log, Place(value["ordinal"], value["entry"]), value["ledger"])


def _problem(value: Mapping[str, Any]) -> str | None:
    if type(value.get("version")) is not int or value["version"] != FORMAT_VERSION:
        return f"version {value.get('version')!r} of the format is not {FORMAT_VERSION}"
    if set(value) != set(_KEYS):
        return f"it must have exactly the keys {', '.join(_KEYS)}"
    if type(value["log"]) is not str:
        return "'log' is not a text"
    bounds = {"entry": (0, ENTRY_ID_MAX), "ledger": (NO_LEDGER, LEDGER_ID_MAX), "ordinal": (0, LEDGER_ID_MAX)}
    for key, (least, greatest) in bounds.items():
        if type(value[key]) is not int or not least <= value[key] <= greatest:
            return f"{key!r} is not a whole number of {least} to {greatest}"
    if value["entry"] and value["ledger"] == NO_LEDGER:
        return "'ledger' is missing while 'entry' is above 0"
    return None
