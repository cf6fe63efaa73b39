"""Reading ranges of entries: which bookie to ask first, which one next, and what a failure means. Decisions only.

A range inside one fragment falls into groups of entries that share a write set: one group if E = Qw (such groups are
read in batches), otherwise E groups of every E-th entry. A group asks one replica at a time and moves to the next on
any error; if the first is slow, it also asks the next one.

A negative answer is certain only from all bookies that could have the entry: `GroupRead.error` is NoSuchEntry when
every replica said so explicitly, and otherwise the first real error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookKeeperError, NoSuchEntry, ProtocolError, ReadFailed


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """Entries [first_entry, end_entry) of one fragment."""

    first_entry: int
    end_entry: int
    bookies: tuple[str, ...]
    """The fragment's ensemble, in order of its slots."""


def next_span(metadata: LedgerMetadata, first_entry: int, end_entry: int, entries_max: int) -> EntrySpan:
    """Return the beginning of a range, which is not empty: at most `entries_max` entries, all in one fragment."""
    end = min(first_entry + entries_max, end_entry)
    found = metadata.fragments[0]
    for fragment in metadata.fragments:
        if fragment.first_entry > first_entry:
            end = min(end, fragment.first_entry)
            break
        found = fragment
    return EntrySpan(first_entry, end, found.bookies)


def groups(
    span: EntrySpan,
    ledger_id: int,
    write_quorum: int,
    preferred: str | None,
    avoided: frozenset[str] = frozenset(),
    slow: frozenset[str] = frozenset(),
) -> list[GroupRead]:
    """Return the reads that together cover a span.

    Args:
        preferred: if this bookie is a replica, it is asked first (the sticky replica).
        avoided: bookies that failed lately; asked last.
        slow: bookies that are slow to answer; asked after the others, and before those that failed.
    """
    size = len(span.bookies)
    step = 1 if write_quorum == size else min(size, span.end_entry - span.first_entry)
    result = []
    for first in range(span.first_entry, span.first_entry + step):
        begin = first % size
        # The write set of this group, in the order of preference (`striping.write_set`).
        replicas = [*span.bookies[begin:], *span.bookies[:begin]][:write_quorum]
        if preferred in replicas:
            replicas.remove(preferred)
            replicas.insert(0, preferred)
        if avoided or slow:
            replicas.sort(key=lambda bookie: (bookie in avoided, bookie in slow))
        result.append(GroupRead(ledger_id, np.arange(first, span.end_entry, step), replicas))
    return result


READ_ENTRIES_FIRST = 8


class AdaptiveReadSize:
    """How many entries to ask for at once, `entries`, so that they have about `bytes_max`.

    The metadata contain only the average size of entries, and not even that for an open ledger. So the number begins
    small, follows the sizes of the received entries, and at most doubles with each answer.
    """

    def __init__(self, bytes_max: int, entries_max: int, entries_first: int = READ_ENTRIES_FIRST) -> None:
        self.bytes_max = bytes_max
        """The number of bytes that an answer should have at most. Constant."""
        self.entries = min(entries_first, entries_max)
        """How many entries to ask for, 1 to `_entries_max`. Only `on_entries` changes it."""
        self._entries_max = entries_max
        """The limit of `entries`. Constant."""

    def on_entries(self, largest_bytes: int) -> None:
        """Record that an answer arrived whose largest entry has this many bytes."""
        fitting = self.bytes_max // max(1, largest_bytes)
        self.entries = max(1, min(self._entries_max, 2 * self.entries, fitting))


class GroupRead:
    """Entries that share a write set, their replicas in the order of asking, and the received entries.

    One replica is asked at a time; if it does not answer within a delay, the caller asks `next_replica` and uses the
    first answer. It must then ignore the other answers to the same `missing`.
    """

    def __init__(self, ledger_id: int, entry_ids: np.ndarray, replicas: Sequence[str]) -> None:
        self.ledger_id = ledger_id
        """The id of the ledger. Constant."""
        self.missing = entry_ids
        """Ids that have not arrived yet, ascending. Shrinks in `on_entries`."""
        self.step = int(entry_ids[1] - entry_ids[0]) if len(entry_ids) > 1 else 1
        """The difference between consecutive ids: 1, or the ensemble size. Constant."""
        self._replicas = list(replicas)
        """The bookies that may have the entries. A bookie that answers moves to the front."""
        self._asked = 0
        """How many of `_replicas` were asked since the last answer with entries."""
        self._first_error: BookKeeperError | None = None
        """The first failure other than NoSuchEntry since the last answer with entries."""
        self._are_refusals = True
        """Whether all such failures are refusals to let this client read."""
        self._negatives = 0
        """How many replicas have answered, since the last answer with entries, that they do not have missing[0]."""

    @property
    def replicas(self) -> Sequence[str]:
        """The bookies that may have the entries, in the order of asking."""
        return self._replicas

    @property
    def preferred_bookie(self) -> str:
        """The replica that is asked first for `missing`."""
        return self._replicas[0]

    @property
    def is_asked(self) -> bool:
        """Whether any replica was asked for `missing` already."""
        return self._asked > 0

    def next_replica(self) -> str | None:
        """Return the next bookie to ask for `missing`; others may still owe an answer. None: all were asked."""
        if self._asked == len(self._replicas):
            return None
        self._asked += 1
        return self._replicas[self._asked - 1]

    def on_entries(self, bookie: str, count: int, error: BookKeeperError | None = None) -> None:
        """Record that the first `count` of `missing` arrived from a bookie and passed their check.

        Args:
            error: why the bookie did not return the next entry, if it was asked for that, too.

        Raises:
            ProtocolError: the bookie returned more entries than requested; some would be repeated or invented.
        """
        if count > len(self.missing):
            raise ProtocolError(
                f"bookie {bookie} returned {count} entries of ledger {self.ledger_id} from {self.missing[0]} on, but "
                f"{len(self.missing)} were requested",
                ledger_id=self.ledger_id,
                bookie=bookie,
            )
        self.missing = self.missing[count:]
        # No replica has been asked for the next entry yet: a replica that failed for the last one may be the only one
        # that has it. The replica that just answered stays the first to ask, and slower ones come last.
        at = self._replicas.index(bookie)
        self._replicas = [*self._replicas[at:], *self._replicas[:at]]
        self._asked = self._negatives = 0
        self._first_error = None
        self._are_refusals = True
        if error is not None and len(self.missing):
            self._asked = 1
            self.on_failure(error)

    def on_failure(self, error: BookKeeperError) -> None:
        """Record why a replica did not return missing[0]."""
        if isinstance(error, NoSuchEntry):
            self._negatives += 1
            return
        self._first_error = self._first_error or error
        self._are_refusals = self._are_refusals and isinstance(error, ReadFailed) and error.is_refusal

    def error(self) -> BookKeeperError:
        """Return why missing[0] could not be read, once every replica has been asked and has failed."""
        entry_id = int(self.missing[0])
        if self._negatives == len(self._replicas):
            return NoSuchEntry(
                f"ledger {self.ledger_id} entry {entry_id}: none of its bookies {', '.join(self._replicas)} has it",
                ledger_id=self.ledger_id,
                entry_id=entry_id,
            )
        error = ReadFailed(
            f"ledger {self.ledger_id} entry {entry_id} could not be read from any of {', '.join(self._replicas)}: "
            f"{self._first_error}",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
            bookie=self._first_error.bookie if self._first_error else None,
        )
        error.is_refusal = self._are_refusals and not self._negatives
        return error
