"""What clients asked for and were told, ledger by ledger: what the checkers look at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bkspark.metadata import paths
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.uri import LedgerManager


@dataclass(frozen=True, slots=True)
class Close:
    """Somebody learned that the ledger is closed here."""

    who: str
    last_entry: int
    length: int
    when: int


@dataclass(slots=True)
class Copies:
    """The copies of one entry on the bookies that metadata names for it: durable ones, and of those the damaged."""

    valid: int
    damaged: int = 0
    payloads: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Audit:
    """The ledger's entries as they stood on disks at one moment; index in `copies` is the entry id."""

    when: int
    what: str
    last_entry: int
    ack_quorum: int
    copies: list[Copies]
    fenced: tuple[bool, ...] | None = None
    """At the close by a recovery: which slots of the last fragment are fenced, durably."""
    write_quorum: int = 0


@dataclass(slots=True)
class LedgerHistory:
    """One ledger. Times are virtual nanoseconds."""

    invoked: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    copies_at_ack: list[tuple[int, int, Copies]] = field(default_factory=list)
    """(entry id, Qa, copies) of every entry at the moment of its acknowledgement."""
    closes: list[Close] = field(default_factory=list)
    lacs: list[tuple[str, int, int]] = field(default_factory=list)
    reads: list[tuple[str, int, bytes]] = field(default_factory=list)
    denied: list[tuple[str, int, int]] = field(default_factory=list)
    changes: list[tuple[int, Versioned, str]] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    """What was still under way when the time after healing was over, or ended without a cause."""

    @property
    def last_acknowledged(self) -> int:
        return max((last for last, _ in self.acknowledged), default=-1)


class History:
    """All ledgers of a schedule, and the faults that really happened."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerHistory] = {}
        self.paths: list[str] = []
        self.faults: Counter[str] = Counter()
        self.changes_of_ensemble = 0
        self.recoveries_begun = 0
        self.is_raced = False

    def ledger(self, ledger_id: int) -> LedgerHistory:
        if ledger_id not in self.ledgers:
            self.ledgers[ledger_id] = LedgerHistory()
            self.paths.append("/ledgers" + paths.ledger_path(ledger_id, LedgerManager.FLAT))
        return self.ledgers[ledger_id]

    def count_fault(self, kind: str) -> None:
        self.faults[kind] += 1

    def metadata_written(self, ledger_id: int, stored: Versioned, by: str, when: int) -> None:
        self.ledger(ledger_id).changes.append((when, stored, by))
