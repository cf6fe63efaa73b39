"""Requests and results of clients, ledger by ledger: the input of the checkers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bkspark.metadata import paths
from bkspark.metadata.ledgers import Versioned
from bkspark.metadata.uri import LedgerManager


@dataclass(frozen=True, slots=True)
class Close:
    """A client learned that the ledger is closed here."""

    who: str
    last_entry: int
    length: int
    when: int


@dataclass(frozen=True, slots=True)
class Look:
    """A reader asked for the LAC of an open ledger: its result, and the least allowed result."""

    who: str
    lac: int
    owed: int
    when: int


@dataclass(frozen=True, slots=True)
class Wait:
    """How long an operation took that had nothing to wait for but healthy bookies and the metadata store."""

    what: str
    began: int
    ended: int


@dataclass(slots=True)
class Copies:
    """The copies of one entry on the bookies that metadata names for it: durable ones, and of those the damaged.

    `missing`: the bookies that do not hold it at all, not even in memory; only the last audit lists them.
    """

    valid: int
    damaged: int = 0
    payloads: frozenset[bytes] = frozenset()
    missing: tuple[str, ...] = ()


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
    acknowledged_before: dict[int, int] = field(default_factory=dict)
    """The last entry that was acknowledged when an entry was added: the LAC which that entry carries, at least."""
    looks: list[Look] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    prompt_ns: int | None = None
    """How long an add, or one of `waits`, may take; None where a fault struck that only a time-out reveals."""
    prompt_adds_only: bool = False
    """`prompt_ns` holds for adds alone."""
    disturbed: set[tuple[str, str]] = field(default_factory=set)
    """(client, bookie) whose connection met a fault; "" means every client, or every bookie."""
    loaded: set[str] = field(default_factory=set)
    """Bookies that refused load (TOOMANYREQUESTS)."""
    is_settled: bool = False
    """Since bookies refused load for the last time the owner had the time to send again what they had refused."""
    fenced_out: set[tuple[str, int]] = field(default_factory=set)
    """(bookie, entry) whose add by the owner a fence refused."""
    rewritten: dict[str, set[int]] = field(default_factory=dict)
    """The entries that each recovery wrote back in its last attempt."""

    unfenced_negatives: list[tuple[str, str, int]] = field(default_factory=list)
    """(recovery, bookie, entry): the bookie said that it lacks the entry, and was not fenced durably."""
    recovery_lacs: dict[str, set[int]] = field(default_factory=dict)
    """The LACs of the entries that each recovery wrote back, attempt by attempt."""
    wrong_lengths: list[tuple[str, int, int]] = field(default_factory=list)
    """(bookie, entry, length): a copy whose cumulative length is not that of the payloads."""
    size_of: Callable[[bytes], int] = len
    """How many bytes an entry has. Recorded histories have a digest in place of each."""

    @property
    def last_acknowledged(self) -> int:
        return max((last for last, _ in self.acknowledged), default=-1)

    @property
    def lac_owed(self) -> int:
        """The least LAC that a reader must get now: that in the last acknowledged entry.

        Any coverage has a bookie of the last acknowledged entry.
        """
        return self.acknowledged_before.get(self.last_acknowledged, -1)

    def is_disturbed(self, client: str, bookie: str) -> bool:
        """Whether a fault struck the client, the bookie, or what connects them."""
        pairs = ((client, bookie), ("", bookie), (client, ""))
        return any(pair in self.disturbed for pair in pairs)


class History:
    """All ledgers of a schedule, and the faults that really happened."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerHistory] = {}
        self.paths: list[str] = []
        self.faults: Counter[str] = Counter()
        self.changes_of_ensemble = 0
        self.recoveries_begun = 0
        self.is_raced = False
        self.pressed = False
        """The owner's window was small: an add may wait for room."""

    def ledger(self, ledger_id: int) -> LedgerHistory:
        if ledger_id not in self.ledgers:
            self.ledgers[ledger_id] = LedgerHistory()
            self.paths.append("/ledgers" + paths.ledger_path(ledger_id, LedgerManager.FLAT))
        return self.ledgers[ledger_id]

    def count_fault(self, kind: str) -> None:
        self.faults[kind] += 1

    def metadata_written(self, ledger_id: int, stored: Versioned, by: str, when: int) -> None:
        self.ledger(ledger_id).changes.append((when, stored, by))
