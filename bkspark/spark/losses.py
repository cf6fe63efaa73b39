"""Losses: data that was asked for and is gone is an error, or with failOnDataLoss=false a warning."""

from __future__ import annotations

import logging
from typing import Protocol

from bkspark.errors import DataLoss
from bkspark.log.positions import Position
from bkspark.spark.options import SourceOptions
from bkspark.spark.ranges import EntryRange

_log = logging.getLogger(__name__)

DELETED_AND_CREATED_AGAIN = "deleted and created again"
"""What happened to something that has the name of what a checkpoint names, and is another."""


class NamedPosition(Protocol):
    """A position in one log, as it is recorded in offsets, for messages."""

    @property
    def subject(self) -> str:
        """What it is a position in."""
        ...

    @property
    def place(self) -> str:
        """What is read next, in the words of those who use what is read."""
        ...


class Losses:
    """What a stream has lost. Each loss is one warning, although every trigger finds it again."""

    def __init__(self, options: SourceOptions) -> None:
        self._fails = options.fail_on_data_loss
        """Whether a loss ends the query (failOnDataLoss). Constant."""
        self._warned: set[str] = set()
        """The warnings that were logged."""

    def report(self, noted: NamedPosition, what: str) -> None:
        """Report that what follows a position is gone.

        Raises:
            DataLoss: losses are not allowed (failOnDataLoss).
        """
        lost = f"{noted.subject} was {what}: what was unread, from {noted.place} on, is lost"
        self._report(lost, "use a new checkpoint, or allow the loss (failOnDataLoss=false)")

    def report_unselected(self, noted: NamedPosition, option: str) -> None:
        """Report that an option does not select any more what a checkpoint has a position in.

        Raises:
            DataLoss: losses are not allowed (failOnDataLoss).
        """
        left_out = f"{noted.subject} is in the checkpoint, but {option} does not select it: it is not read from"
        self._report(
            f"{left_out} {noted.place} on",
            "select it again, use a new checkpoint, or leave it out (failOnDataLoss=false)",
        )

    def _report(self, lost: str, remedy: str) -> None:
        if self._fails:
            raise DataLoss(f"{lost}; {remedy}")
        if lost not in self._warned:
            self._warned.add(lost)
            _log.warning("%s", lost)


class LostEntries:
    """What happens with entries that were to be read, and that their ledgers do not have.

    Args:
        kind, remedy: what ranges of a log belong to, and what to do about a loss, for messages.
    """

    def __init__(self, options: SourceOptions, kind: str, remedy: str) -> None:
        self._fails = options.fail_on_data_loss
        """Whether a loss ends the read (failOnDataLoss). Constant."""
        self._kind = kind
        self._remedy = remedy
        self._warned: set[EntryRange] = set()
        """The ranges for which a warning was logged: a plan looks at some several times."""

    def stored_end(self, entries: EntryRange, last_entry: int) -> int:
        """Return the end of a range, or that of its closed ledger if it is before.

        Raises:
            DataLoss: the ledger ends before (failOnDataLoss).
        """
        stored = last_entry + 1
        if stored >= entries.end_entry:
            return entries.end_entry
        ends = f"{self._named(entries)} {f'ends at entry {last_entry}' if stored else 'has no entries'}"
        if self._fails:
            raise DataLoss(
                f"{ends}, entries up to {entries.end_entry - 1} were to be read: {self._remedy}",
                ledger_id=entries.ledger_id,
            )
        self._warn(entries, ends, entries.end_entry - max(stored, entries.first_entry))
        return stored

    def warn_of_start(self, log: str, wanted: Position, first: Position) -> None:
        """Log a warning that the entries are gone with which a read of a log was to begin."""
        _log.warning(
            "option 'startingOffsets' is %s, but log %s now begins at %s: what was before is lost", wanted, log, first
        )

    def warn_of_gone(self, entries: EntryRange) -> None:
        """Log a warning that the ledger of a range is gone."""
        self._warn(entries, f"{self._named(entries)} does not exist any more", len(entries))

    def _warn(self, entries: EntryRange, what: str, count: int) -> None:
        if entries not in self._warned:
            self._warned.add(entries)
            lost = "1 entry is lost and is" if count == 1 else f"{count} entries are lost and are"
            _log.warning("%s: %s left out", what, lost)

    def _named(self, entries: EntryRange) -> str:
        return f"ledger {entries.ledger_id}{f' of {self._kind} {entries.log}' if entries.log else ''}"
