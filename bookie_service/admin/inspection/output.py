"""Prints findings: one JSON object a line for programs, a table for people; filtered by ledger and entry.

JSON keys: `kind`, `file`, `offset` and `length` (bytes, where the thing lies in the file; null in a key-value store),
`checksum_ok` (null: it carries none, or it cannot be verified here), then what the kind has:

    journal       journal, previous, previous_end, bytes      record      record, count, synced
    ledger-key    ledger                                      fence       ledger
    explicit-lac  ledger, explicit_lac
    entry         ledger, entry; value with --payloads        entry-log   log, version, map_offset, map_ledgers, bytes
    ledgers-map   log                                         padding     log
    index         ledger, generation, fenced, explicit_lac (only where there is one)
    header        ledger, fenced, explicit_lac (only where there is one); header-dropped: ledger
    position      ledger, entry, log, log_offset
    mark          journal_index, journal, journal_file, journal_offset
    last-id       log                                         compaction  new_log, old_log
    fenced-deleted  ledger, dropped_at_s (seconds since the epoch)
    damage        reason, ledger, entry (null: not known)     incomplete  reason
    summary       files, entries, unverified, damaged, incomplete (the last line; no file)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TextIO

import numpy as np

from bookie_service.admin.inspection.findings import (
    UNVERIFIED,
    VERIFIED,
    WRONG,
    Damage,
    Fact,
    Finding,
    FoundEntries,
    FoundPositions,
    Incomplete,
)
from bookie_service.admin.inspection.index import position_place
from bookie_service.formats.index import POSITION_BYTES

Row = dict[str, object]

_SHOWN = {VERIFIED: True, WRONG: False, UNVERIFIED: None}
_MARKS: dict[object, str] = {True: "ok", False: "WRONG", None: "-"}
_COLUMNS = "{:>12} {:>10}  {:<12} {:>8}  {}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The ledger and the entry that are shown; None: all. Damage is always shown."""

    ledger_id: int | None = None
    entry_id: int | None = None

    def rows(self, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> np.ndarray:
        """Return the rows that are shown."""
        shown = np.ones(len(entry_ids), bool)
        if self.ledger_id is not None:
            shown &= ledger_ids == self.ledger_id
        if self.entry_id is not None:
            shown &= entry_ids == self.entry_id
        return np.flatnonzero(shown)

    def shows(self, fact: Fact) -> bool:
        """Return whether a fact is shown: it is of the right ledger, and not a record if entries are filtered."""
        if self == Selection():
            return True
        ledger_id = fact.values.get("ledger")
        if ledger_id is None:
            return fact.kind not in ("record", "padding", "ledgers-map")
        return self.ledger_id in (None, ledger_id) and (self.entry_id is None or fact.kind in ("index", "header"))


@dataclass(slots=True)
class Counts:
    """Counts of everything that was found, shown or not."""

    files: int = 0
    """How many files were read."""
    entries: int = 0
    """How many entries and positions there are."""
    unverified: int = 0
    """How many of them have a digest that could not be checked."""
    damaged: int = 0
    """How many findings of damage there are."""
    incomplete: int = 0
    """How many places have a write that is running or was interrupted."""

    def add(self, finding: Finding) -> None:
        if isinstance(finding, (FoundEntries, FoundPositions)):
            self.entries += len(finding.states)
            self.unverified += int((finding.states == UNVERIFIED).sum())
        elif isinstance(finding, Damage):
            self.damaged += 1
        elif isinstance(finding, Incomplete):
            self.incomplete += 1

    def row(self) -> Row:
        return {
            "kind": "summary",
            "files": self.files,
            "entries": self.entries,
            "unverified": self.unverified,
            "damaged": self.damaged,
            "incomplete": self.incomplete,
        }


class ShownPayloads(Protocol):
    """Shows the payloads of entries."""

    def added(self, row: Row) -> Row:
        """Return a row with the payload, if it is that of an entry."""

    def line(self, row: Row) -> str | None:
        """Return the payload of a row as a line; None: the row is not that of an entry."""


def write_json(
    findings: Iterable[Finding], selection: Selection, out: TextIO, payloads: ShownPayloads | None = None
) -> None:
    """Write the selected findings of one file, one object per line; None: without payloads."""
    for finding in findings:
        rows = _rows(finding, selection)
        out.writelines(json.dumps(row if payloads is None else payloads.added(row)) + "\n" for row in rows)
        # A reader of the output sees each run as soon as it was read.
        out.flush()


def write_row(row: Row, out: TextIO) -> None:
    print(json.dumps(row), file=out)


def write_table(
    path: str, findings: Iterable[Finding], selection: Selection, out: TextIO, payloads: ShownPayloads | None = None
) -> None:
    """Write the selected findings of one file as a table under its name; None: without payloads."""
    print(f"{path}:", file=out)
    has_head = False
    for finding in findings:
        for row in _rows(finding, selection):
            if not has_head:
                print(_COLUMNS.format("offset", "length", "kind", "checksum", "").rstrip(), file=out)
                has_head = True
            print(_line(row), file=out)
            if payloads is not None and (payload := payloads.line(row)) is not None:
                print(f"  {payload}", file=out)
    if not has_head:
        print("  nothing of what was asked for", file=out)


def summary_line(counts: Counts) -> str:
    """Return the last line for people."""
    unverified = f", {counts.unverified} of them without a digest that can be verified" if counts.unverified else ""
    return (
        f"files: {counts.files}, entries: {counts.entries}{unverified}, damaged: {counts.damaged}, "
        f"incomplete: {counts.incomplete}"
    )


def _rows(finding: Finding, selection: Selection) -> Iterator[Row]:
    if isinstance(finding, FoundEntries):
        yield from _entry_rows(finding, selection)
    elif isinstance(finding, FoundPositions):
        yield from _position_rows(finding, selection)
    elif isinstance(finding, Fact):
        if selection.shows(finding):
            front = _front(finding.kind, finding.path, finding.offset, finding.length, finding.checksum_ok)
            yield {**front, **finding.values}
    elif isinstance(finding, Damage):
        front = _front("damage", finding.path, finding.offset, finding.length, False)
        yield {**front, "reason": finding.reason, "ledger": finding.ledger_id, "entry": finding.entry_id}
    else:
        yield {**_front("incomplete", finding.path, finding.offset, finding.length, None), "reason": finding.reason}


def _front(kind: str, path: str, offset: int | None, length: int | None, checksum_ok: bool | None) -> Row:
    return {"kind": kind, "file": path, "offset": offset, "length": length, "checksum_ok": checksum_ok}


def _entry_rows(run: FoundEntries, selection: Selection) -> Iterator[Row]:
    rows = selection.rows(run.ledger_ids, run.entry_ids)
    columns = (run.offsets, run.sizes, run.ledger_ids, run.entry_ids, run.states)
    for offset, size, ledger_id, entry_id, state in zip(*(column[rows].tolist() for column in columns)):
        yield {**_front("entry", run.path, offset, size, _SHOWN[state]), "ledger": ledger_id, "entry": entry_id}


def _position_rows(run: FoundPositions, selection: Selection) -> Iterator[Row]:
    rows = selection.rows(np.full(len(run.entry_ids), run.ledger_id), run.entry_ids)
    columns = (run.entry_ids, run.positions, run.states)
    offsets = [None] * len(rows) if run.offsets is None else run.offsets[rows].tolist()
    for entry_id, position, state, at in zip(*(column[rows].tolist() for column in columns), offsets, strict=True):
        log_id, offset = position_place(position)
        front = _front("position", run.path, at, None if at is None else POSITION_BYTES, _SHOWN[state])
        yield {**front, "ledger": run.ledger_id, "entry": entry_id, "log": log_id, "log_offset": offset}


def _line(row: Row) -> str:
    facts = dict(row)
    kind, _, offset, length = (facts.pop(name) for name in ("kind", "file", "offset", "length"))
    checksum = _MARKS[facts.pop("checksum_ok")]
    reason = facts.pop("reason", None)
    if kind in ("damage", "incomplete"):
        said, checksum = str(reason), ""
    else:
        said = "  ".join(f"{name} {_text(value)}" for name, value in facts.items())
    kind = "DAMAGED" if kind == "damage" else kind
    unknown = "-" if offset is None else "?"
    columns = (unknown if value is None else value for value in (offset, length))
    return _COLUMNS.format(*columns, kind, checksum, said).rstrip()


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
