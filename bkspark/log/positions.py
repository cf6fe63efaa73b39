"""Position: a point in a log: which entry is read next. PURE.

A position is (ordinal, ledger id, entry id): the ledger's index in the log's list, counted from 0 and never reused, the
ledger, and the entry to read next. The ledger's last entry + 1 is the position at the ledger's end; the next entry is
then in the next ledger that has one.

Each position has exactly one text: canonical JSON, keys sorted, no spaces, whole numbers only. Spark compares stream
offsets as text.

    {"entry":5,"ledger":12,"ordinal":3,"version":1}

Each point has one normal form: it names the ledger of the entry *before* the point. The end of ledger 3 is therefore
never written as the beginning of ledger 4, and its text stays the same when the ledger is closed, and when ledgers
without entries follow. If there is no entry before the point (in a new log, or one that was just overwritten), the
ledger id is -1 and the ordinal is that of the next ledger. A position at entry 0 of a ledger is also valid (positions
of appended entries have this form); `Log` always returns the ends of reads in normal form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from bkspark.entries import EntryBatch
from bkspark.errors import ConfigurationError
from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX

VERSION = 1
NO_LEDGER = -1
EARLIEST = "earliest"
LATEST = "latest"
_KEYS = {"entry", "ledger", "ordinal", "version"}
_EXAMPLE = '{"entry":0,"ledger":12,"ordinal":0,"version":1}'


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The entry to read next. Positions of one log are ordered as its entries are.

    >>> str(Position(3, 12, 5))
    '{"entry":5,"ledger":12,"ordinal":3,"version":1}'
    """

    ordinal: int
    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    def to_json(self) -> dict[str, int]:
        """Return the members of the JSON object that the text form is."""
        return {"entry": self.entry_id, "ledger": self.ledger_id, "ordinal": self.ordinal, "version": VERSION}

    @classmethod
    def parse(cls, text: str | Mapping[str, Any]) -> Position:
        """Return the position of its text, or of the JSON object already read from it.

        Raises:
            ConfigurationError: it is not a position; the message says why.
        """
        found = _parse_json(text) if isinstance(text, str) else text
        if not isinstance(found, Mapping) or set(found) != _KEYS:
            raise ConfigurationError(f"position {_shown(text)} must have exactly the members of {_EXAMPLE}")
        if found["version"] != VERSION or isinstance(found["version"], bool):
            raise ConfigurationError(
                f"position {_shown(text)} has version {found['version']!r}, this bkspark reads version {VERSION}"
            )
        ordinal = _whole(text, found, "ordinal", 0, ENTRY_ID_MAX)
        ledger_id = _whole(text, found, "ledger", NO_LEDGER, LEDGER_ID_MAX)
        entry_id = _whole(text, found, "entry", 0, ENTRY_ID_MAX)
        if ledger_id == NO_LEDGER and entry_id:
            raise ConfigurationError(f"position {_shown(text)} names an entry but no ledger (-1)")
        return cls(ordinal, ledger_id, entry_id)

    @classmethod
    def beginning(cls, ordinal: int = 0) -> Position:
        """Return the position before every entry of ledger `ordinal` and later ledgers."""
        return cls(ordinal, NO_LEDGER, 0)


BEGINNING = Position.beginning()
OffsetSpec = Position | str
"""A position, or `earliest` or `latest`."""


def parse_place(text: str | Mapping[str, Any]) -> OffsetSpec:
    """Return `earliest` or `latest` (in any case) as these words, anything else as a position.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(text, str) and text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    if isinstance(text, str) and not text.lstrip().startswith("{"):
        raise ConfigurationError(f"{_shown(text)} is not {EARLIEST}, {LATEST} or a position such as {_EXAMPLE}")
    return Position.parse(text)


def check_offset(name: str, place: object) -> OffsetSpec:
    """Return the argument `name` as a place: a position, or what `parse_place` takes.

    Raises:
        ConfigurationError: it is not a place; the message names the argument.
    """
    if isinstance(place, Position):
        return place
    if not isinstance(place, str):
        raise ConfigurationError(f"{name} must be {EARLIEST}, {LATEST} or a position, not {place!r}")
    try:
        return parse_place(place)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def position_at(ordinal: int, ledger_id: int, entry_id: int, before: Position) -> Position:
    """Return the normal form of the point before `entry_id`. `before`: the point before the ledger, in normal form."""
    return Position(ordinal, ledger_id, entry_id) if entry_id else before


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"position {_shown(text)} is not JSON such as {_EXAMPLE}") from None


def _whole(text: object, found: Mapping[str, Any], key: str, lowest: int, highest: int) -> int:
    value = found[key]
    if type(value) is not int or not lowest <= value <= highest:
        raise ConfigurationError(
            f"position {_shown(text)}: {key} must be a whole number from {lowest} to {highest}, not {value!r}"
        )
    return value


def _shown(text: object) -> str:
    shown = text if isinstance(text, str) else repr(text)
    return repr(shown if len(shown) <= 200 else f"{shown[:200]}...")


class PositionRange(Sequence[Position]):
    """Positions of the consecutive entries [first_entry, end_entry) of one ledger; item i is created on demand."""

    __slots__ = ("end_entry", "first_entry", "ledger_id", "ordinal")

    def __init__(self, ordinal: int, ledger_id: int, first_entry: int, end_entry: int) -> None:
        self.ordinal = ordinal
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.end_entry = end_entry

    @property
    def end(self) -> Position:
        """The position after the last of these entries: continue reading here."""
        return Position(self.ordinal, self.ledger_id, self.end_entry)

    def __len__(self) -> int:
        return self.end_entry - self.first_entry

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        entries = range(self.first_entry, self.end_entry)[index]
        if isinstance(entries, range):
            return [Position(self.ordinal, self.ledger_id, entry_id) for entry_id in entries]
        return Position(self.ordinal, self.ledger_id, entries)

    def __iter__(self) -> Iterator[Position]:
        for entry_id in range(self.first_entry, self.end_entry):
            yield Position(self.ordinal, self.ledger_id, entry_id)

    def __repr__(self) -> str:
        return f"PositionRange(ledger {self.ledger_id}, ordinal {self.ordinal}, [{self.first_entry}, {self.end_entry}))"


class LogBatch(EntryBatch):
    """An EntryBatch that knows its ledger's ordinal in the log; never empty."""

    __slots__ = ("ordinal",)

    def __init__(self, batch: EntryBatch, ordinal: int) -> None:
        super().__init__(batch.buffer, batch.offsets, batch.ledger_id, batch.first_entry, batch.sealed_with)
        self.ordinal = ordinal

    @property
    def positions(self) -> PositionRange:
        """The positions of the entries of this batch, in their order."""
        return PositionRange(self.ordinal, self.ledger_id, self.first_entry, self.end_entry)

    @property
    def end(self) -> Position:
        """The position after the batch, in normal form."""
        return Position(self.ordinal, self.ledger_id, self.end_entry)
