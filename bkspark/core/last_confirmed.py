"""LastConfirmed: determines LAC, LAP and length of an open ledger from its last fragment's bookies. Decisions only."""

from __future__ import annotations

from dataclasses import dataclass

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.quorum import has_coverage
from bkspark.errors import BookKeeperError, DigestMismatch, ReadFailed
from bkspark.ids import NO_ENTRY


def wrong_lac(ledger_id: int, entry_id: int, lac: int, bookie: str) -> DigestMismatch:
    """Return the error for a last entry that carries a LAC which its writer cannot have known."""
    message = f"ledger {ledger_id} entry {entry_id} at bookie {bookie}: it carries LAC {lac}"
    return DigestMismatch(message, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)


@dataclass(frozen=True, slots=True)
class LastEntries:
    """How far an open ledger goes: its LAC, the last entry that any bookie has (LAP), which is not below the LAC, and
    `length`, the payload bytes up to the LAP."""

    lac: int = NO_ENTRY
    lap: int = NO_ENTRY
    length: int = 0

    def joined(self, other: LastEntries) -> LastEntries:
        """Return the maximum of each field."""
        return LastEntries(max(self.lac, other.lac), max(self.lap, other.lap), max(self.length, other.length))


class LastConfirmed:
    """Collects the last entries of the last fragment's bookies, until the answers cover every write set.

    For each entry that Qa bookies acknowledged, one of the covering bookies has it, and entries before the fragment
    were confirmed when the fragment began. The returned LAC may be lower than one that an earlier reader saw: that
    reader may have seen it in an entry in flight, at a bookie that is not in this quorum.
    """

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self._ledger_id = ledger_id
        """The id of the ledger. Constant."""
        self._metadata = metadata
        """The ledger's metadata when the reading began. Constant."""
        self._known: set[int] = set()
        """Slots whose answer is certain. Grows in `on_entry` and `on_nothing`."""
        self._first_error: BookKeeperError | None = None
        """The first uncertain answer, for the message if too few are certain."""
        self._are_refusals = True
        """Whether all uncertain answers are refusals to let this client read."""
        last = metadata.last_fragment.first_entry - 1
        self.found = LastEntries(last, last)
        """The maximum of the answers so far. Never decreases."""

    @property
    def is_covered(self) -> bool:
        """Whether enough bookies have answered."""
        metadata = self._metadata
        return has_coverage(self._known, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)

    def on_entry(self, slot: int, entry_id: int, lac: int, length: int) -> None:
        """The bookie in `slot` returned its last entry, whose digest is right."""
        bounds = self._metadata.lac_bounds
        if not bounds.admits(entry_id, lac):
            self.on_failure(wrong_lac(self._ledger_id, entry_id, lac, self._metadata.last_fragment.bookies[slot]))
            return
        self.found = self.found.joined(LastEntries(bounds.learned(entry_id, lac), entry_id, length))
        self._known.add(slot)

    def on_explicit_lac(self, lac: int) -> None:
        """A bookie returned an explicit LAC, whose digest is right. It reports its last entry separately."""
        self.found = self.found.joined(LastEntries(lac, lac))

    def on_nothing(self, slot: int) -> None:
        """The bookie in `slot` answered with a negative: it has no entry, or does not know the ledger."""
        self._known.add(slot)

    def on_failure(self, error: BookKeeperError) -> None:
        """A bookie returned no certain answer."""
        self._first_error = self._first_error or error
        self._are_refusals = self._are_refusals and isinstance(error, ReadFailed) and error.is_refusal

    def result(self) -> LastEntries:
        """Return how far the ledger goes.

        Raises:
            ReadFailed: the bookies that answered do not cover every write set.
        """
        if self.is_covered:
            return self.found
        bookies = ", ".join(self._metadata.last_fragment.bookies)
        error = ReadFailed(
            f"the last add confirmed of ledger {self._ledger_id} is unknown: too few of {bookies} answered "
            f"({self._first_error})",
            ledger_id=self._ledger_id,
            bookie=self._first_error.bookie if self._first_error else None,
        )
        error.is_refusal = self._are_refusals and not self._known
        raise error
