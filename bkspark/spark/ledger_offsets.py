"""Offsets of a stream that follows ledgers, as one canonical JSON object. PURE.

    {"created": {"17": 1764500000000}, "finished": [[0, 16], [18, 18]], "ledgers": {"17": 120, "19": 0},
     "selection": "…", "version": 1}

    created     by id, when a ledger of `ledgers` was created, in ms since 1970: a ledger that is deleted and created
                again under its id is another one. Offsets of earlier versions of bkspark have no such member
    finished    ranges of ledger ids, both ends included, of which nothing is to be read any more: read to their end
                after they were closed, or not of the selection, which never changes
    ledgers     by id, the next entry of each other ledger
    selection   what is followed: options `ledgers` and `ledgerMetadata.*`. Another selection needs another checkpoint,
                as `finished` holds for this one only
    version     of this format, 1

An id that no ledger has is in no range: its ledger may appear later. Ids ascend, and all numbers are integers: Spark
compares offsets as text.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bkspark.errors import ConfigurationError
from bkspark.ids import ENTRY_ID_MAX, LEDGER_ID_MAX
from bkspark.log.positions import Position
from bkspark.spark.option_values import shown

VERSION = 1


@dataclass(frozen=True, slots=True)
class LedgerOffset:
    """The next entry to read of a ledger; `is_finished`: the ledger is closed and read to its end."""

    ledger_id: int
    entry_id: int
    is_finished: bool = False
    created_ms: int | None = None
    """When the ledger was created, in ms since 1970; None if the offset does not say so."""

    @property
    def position(self) -> Position:
        return Position(0, self.ledger_id, self.entry_id)

    @property
    def subject(self) -> str:
        """What it is a position in, for messages."""
        return f"ledger {self.ledger_id}"

    @property
    def place(self) -> str:
        """What is read next, for messages."""
        return f"entry {self.entry_id}"


class LedgerIds:
    """A set of ledger ids as ascending ranges (first, last). Immutable."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = tuple(ranges)

    def __contains__(self, ledger_id: object) -> bool:
        assert isinstance(ledger_id, int)
        index = bisect.bisect_right(self.ranges, (ledger_id, float("inf"))) - 1
        return index >= 0 and ledger_id <= self.ranges[index][1]

    def without(self, ledger_ids: np.ndarray) -> np.ndarray:
        """Return those ids that are not in the set."""
        if not self.ranges:
            return ledger_ids
        bounds = np.array(self.ranges, np.int64)
        index = np.searchsorted(bounds[:, 0], ledger_ids, side="right") - 1
        return ledger_ids[(index < 0) | (ledger_ids > bounds[index, 1])]

    def with_ids(self, ledger_ids: Collection[int]) -> LedgerIds:
        """Return the set with some more ids."""
        if not ledger_ids:
            return self
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self.ranges, *((each, each) for each in ledger_ids)]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return LedgerIds(merged)


class ManyLedgers:
    """Encodes and decodes the offsets of a stream that follows ledgers. It keeps where the present trigger begins.

    Args:
        selection: the options that select the ledgers, as one text.
    """

    def __init__(self, selection: str) -> None:
        self._selection = selection
        self.finished = LedgerIds()
        """Ledgers that were read to their end before the present trigger."""
        self.noted: frozenset[int] = frozenset()
        """Ledgers that have an entry in the offset at which the present trigger begins."""

    def begin_at(self, value: Any, source: str) -> None:
        """Take the offset at which a trigger begins; None for a new query. Raises as `from_json`."""
        if value is None:
            self.finished, self.noted = LedgerIds(), frozenset()
        else:
            self.noted = frozenset(each.ledger_id for each in self.from_json(value, source).values())
            self.finished = self.finished_in(value)

    def to_json(self, offsets: Mapping[str, LedgerOffset]) -> dict[str, Any]:
        read = [each.ledger_id for each in offsets.values() if each.is_finished]
        rest = sorted((each for each in offsets.values() if not each.is_finished), key=lambda each: each.ledger_id)
        created = {str(each.ledger_id): each.created_ms for each in rest if each.created_ms is not None}
        return {
            **({"created": created} if created else {}),
            "finished": [list(each) for each in self.finished.with_ids(read).ranges],
            "ledgers": {str(each.ledger_id): each.entry_id for each in rest},
            "selection": self._selection,
            "version": VERSION,
        }

    def from_json(self, value: Any, source: str) -> dict[str, LedgerOffset]:
        """Return the ledgers of an offset that are not finished.

        Raises:
            ConfigurationError: it is the offset of a stream of logs, of another selection, or of a newer version.
        """
        if not isinstance(value, Mapping) or value.keys() - {"created"} != {
            "finished",
            "ledgers",
            "selection",
            "version",
        }:
            raise _no_offset(value, source)
        if value["version"] != VERSION:
            raise ConfigurationError(f"{source} has version {value['version']!r}, this bkspark reads version {VERSION}")
        if value["selection"] != self._selection:
            raise ConfigurationError(
                f"{source} is of ledgers {shown(value['selection'])}, but {shown(self._selection)} are read: give the "
                "same options 'ledgers' and 'ledgerMetadata.*', or use a new checkpoint"
            )
        created = value.get("created", {})
        if not _are_ranges(value["finished"]) or not _are_entries(value["ledgers"]) or not _are_times(created):
            raise _no_offset(value, source)
        return {
            key: LedgerOffset(int(key), entry_id, created_ms=created.get(key))
            for key, entry_id in value["ledgers"].items()
        }

    @staticmethod
    def finished_in(value: Mapping[str, Any]) -> LedgerIds:
        """Return the finished ledgers of an offset."""
        return LedgerIds((first, last) for first, last in value["finished"])


def _no_offset(value: Any, source: str) -> ConfigurationError:
    return ConfigurationError(
        f"{source} is {shown(value)}, not an offset of a stream of ledgers: use the checkpoint of this query, or a new "
        "one"
    )


def _are_ranges(value: Any) -> bool:
    """Return whether a value is a list of ranges of ids that ascend."""
    if not isinstance(value, list):
        return False
    try:
        bounds = np.array(value or np.empty((0, 2), np.int64))
    except (ValueError, OverflowError):
        return False  # items of several lengths
    if bounds.dtype != np.int64 or bounds.ndim != 2 or bounds.shape[1] != 2:
        return False
    firsts, lasts = bounds.T
    return bool((firsts >= 0).all() and (firsts <= lasts).all() and (firsts[1:] > lasts[:-1]).all())


def _are_entries(value: Any) -> bool:
    """Return whether a value is an object of ledger ids and the next entry of each."""
    return isinstance(value, Mapping) and all(
        re.fullmatch("[0-9]{1,19}", key)
        and int(key) <= LEDGER_ID_MAX
        and type(entry_id) is int
        and 0 <= entry_id <= ENTRY_ID_MAX
        for key, entry_id in value.items()
    )


def _are_times(value: Any) -> bool:
    """Return whether a value is an object of times by ledger id."""
    return isinstance(value, Mapping) and all(type(each) is int for each in value.values())
