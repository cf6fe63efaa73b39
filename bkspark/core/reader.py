"""Reading ranges of entries: which bookie to ask, whom to ask next, and what a failure means. Decisions only.

A range inside one fragment falls into groups of entries that share a write set: one group where E = Qw (those are
read in batches), else E groups of every E-th entry. A group asks one replica at a time and moves to the next on any
error.

A negative answer is certain only from all who could have the entry: `GroupRead.error` is NoSuchEntry when every replica
said so explicitly, and otherwise the first real error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.striping import write_set
from bkspark.errors import BookKeeperError, NoSuchEntry, ReadFailed


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """Entries [first_entry, end_entry) that lie in one fragment."""

    first_entry: int
    end_entry: int
    bookies: tuple[str, ...]


def spans(metadata: LedgerMetadata, first_entry: int, end_entry: int, entries_max: int) -> Iterator[EntrySpan]:
    """Yield [first_entry, end_entry) in order as spans of at most `entries_max` entries, none across fragments."""
    bounds = [fragment.first_entry for fragment in metadata.fragments[1:]] + [end_entry]
    for fragment, bound in zip(metadata.fragments, bounds):
        while first_entry < min(bound, end_entry):
            end = min(first_entry + entries_max, bound, end_entry)
            yield EntrySpan(first_entry, end, fragment.bookies)
            first_entry = end


def groups(
    span: EntrySpan, ledger_id: int, write_quorum: int, preferred: str | None, avoided: frozenset[str] = frozenset()
) -> list[GroupRead]:
    """Return the reads that together cover a span.

    Args:
        preferred: where the bookie is a replica, it is asked first (the sticky replica).
        avoided: bookies that failed lately; asked last.
    """
    size = len(span.bookies)
    residues = range(1) if write_quorum == size else range(min(size, span.end_entry - span.first_entry))
    result = []
    for residue in residues:
        first = span.first_entry + residue
        slots = write_set(first, size, write_quorum)
        replicas = sorted(
            (span.bookies[slot] for slot in slots), key=lambda bookie: (bookie in avoided, bookie != preferred)
        )
        result.append(GroupRead(ledger_id, np.arange(first, span.end_entry, len(residues)), replicas))
    return result


class GroupRead:
    """Entries that share a write set, their replicas in the order of asking, and what has come back."""

    def __init__(self, ledger_id: int, entry_ids: np.ndarray, replicas: Sequence[str]) -> None:
        self.ledger_id = ledger_id
        self.missing = entry_ids
        self._replicas = list(replicas)
        self._asked = 0
        self._first_error: BookKeeperError | None = None
        self._negatives = 0

    @property
    def replica(self) -> str | None:
        """The bookie to ask now for `missing`; None when all have been asked."""
        return self._replicas[self._asked] if self._asked < len(self._replicas) else None

    def on_entries(self, count: int) -> None:
        """The first `count` of `missing` arrived and passed their check."""
        self.missing = self.missing[count:]
        # The next entry is another one, and nobody has been asked for it: whoever failed for the last may well be the
        # only one that has it. The replica that just answered stays the first to ask.
        asked = self._asked
        self._replicas = [*self._replicas[asked:], *self._replicas[:asked]]
        self._asked = self._negatives = 0
        self._first_error = None

    def on_failure(self, error: BookKeeperError) -> None:
        """The current replica did not give missing[0]: ask the next one."""
        if isinstance(error, NoSuchEntry):
            self._negatives += 1
        elif self._first_error is None:
            self._first_error = error
        self._asked += 1

    def error(self) -> BookKeeperError:
        """Return why missing[0] could not be read, once every replica has been asked."""
        entry_id = int(self.missing[0])
        if self._negatives == len(self._replicas):
            return NoSuchEntry(
                f"ledger {self.ledger_id} entry {entry_id}: none of its bookies {', '.join(self._replicas)} has it",
                ledger_id=self.ledger_id,
                entry_id=entry_id,
            )
        return ReadFailed(
            f"ledger {self.ledger_id} entry {entry_id} could not be read from any of {', '.join(self._replicas)}: "
            f"{self._first_error}",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
            bookie=self._first_error.bookie if self._first_error else None,
        )
