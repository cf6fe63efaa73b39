"""What an index must have of its ledgers after a crash: the model that a walk compares it with.

A row is the header of a ledger or the position of an entry. A crash may leave each version of a row from the last one
that is durable on. A flush that advances the marks makes the last versions durable, and the journal forgets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bookie_service.formats.index import LedgerHeader
from bookie_service.storage.index.index import LedgerUpdate

HEADER = -1
"""The row of a ledger's header. Others are entry ids."""
Rows = dict[int, int]
"""The value of each row: the generation of a header, or a position."""


class Version(NamedTuple):
    """value: None: there is no row. is_journaled: the journal has it until the marks have passed it."""

    value: int | None
    is_journaled: bool


@dataclass(slots=True)
class LedgerModel:
    """One ledger.

    rows: what a reader must find. versions: what a crash may leave of each row, oldest first.
    is_removed: it was removed, but may come back as a whole. is_gone: it may not come back.
    """

    rows: Rows = field(default_factory=dict)
    versions: dict[int, list[Version]] = field(default_factory=dict)
    is_removed: bool = False
    is_gone: bool = False

    @property
    def is_durable(self) -> bool:
        """Whether a crash leaves what a reader finds, in any case."""
        return all(len(found) == 1 and found[0].value == self.rows.get(row) for row, found in self.versions.items())

    def change(self, rows: Mapping[int, int], *, is_journaled: bool) -> None:
        """Note rows that will be held, so a crash may leave them."""
        for row, value in rows.items():
            self.versions.setdefault(row, [Version(None, False)]).append(Version(value, is_journaled))

    def become_durable(self) -> None:
        """Note that everything that was held is durable."""
        self.versions = {row: [Version(value, True)] for row, value in self.rows.items()}

    def leave_journal(self) -> None:
        """Note that the journal is gone, and that the ledger cannot be read. Moves may not be durable."""
        for row, found in self.versions.items():
            first = max((at for at, version in enumerate(found) if version.is_journaled), default=0)
            self.versions[row] = found[first:]

    def wrong(self, found: Rows) -> str:
        """Return what is wrong with the rows that were found after a crash."""
        if self.is_removed and not found:
            return ""
        if self.is_gone:
            return f"it came back after its removal was durable: {found}"
        for row in sorted({*self.versions, *found}):
            allowed = [version.value for version in self.versions.get(row, [Version(None, False)])]
            if found.get(row) not in allowed:
                return f"row {row} is {found.get(row)}, allowed: {allowed}, removed: {self.is_removed}, rows: {found}"
        return ""

    def accept(self, found: Rows) -> None:
        """Go on with what was found after a crash."""
        self.rows = found
        if found:
            self.is_removed = False


def header_of(ledger_id: int, generation: int) -> LedgerHeader:
    """Return the header that a walk gives a ledger: some are fenced, some have an explicit LAC."""
    lac = b"lac %d" % generation if generation % 3 == 0 else b""
    return LedgerHeader(ledger_id, generation, generation % 2 == 1, b"k" * 20, lac)


def update_of(ledger_id: int, rows: Rows) -> LedgerUpdate:
    """Return the change of an index that sets rows of a ledger."""
    entries = sorted(row for row in rows if row != HEADER)
    header = header_of(ledger_id, rows[HEADER]) if HEADER in rows else None
    return LedgerUpdate(
        ledger_id, header, np.array(entries, np.int64), np.array([rows[entry] for entry in entries], np.int64)
    )


def rows_of(update: LedgerUpdate) -> Rows:
    """Return the rows that a change sets."""
    rows: Rows = dict(zip(update.entry_ids.tolist(), update.positions.tolist()))
    if update.header is not None:
        rows[HEADER] = update.header.generation
    return rows
