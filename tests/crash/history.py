"""What a bookie was asked and what it promised: the model that every crash image is held against.

An entry may be written several times. Its versions count from the oldest; the last acknowledged one and whatever was
asked for after it may be read back, nothing else, and once one is acknowledged, one of these must be. A refused version
must never be seen. A fence and a master key that were acknowledged hold for ever; an explicit LAC holds until a higher
one was asked for.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bkspark.wire.status import Status

NEVER = -1


@dataclass(slots=True)
class EntryHistory:
    """All versions of one entry."""

    versions: list[bytes] = field(default_factory=list)
    acknowledged: int = NEVER
    refused: set[int] = field(default_factory=set)
    waiting: deque[int] = field(default_factory=deque)

    def may_be(self, content: bytes) -> bool:
        """Say whether reading `content` is right."""
        first = max(self.acknowledged, 0)
        return any(
            content == self.versions[version]
            for version in range(first, len(self.versions))
            if version not in self.refused
        )

    def copy(self) -> EntryHistory:
        return EntryHistory(list(self.versions), self.acknowledged, set(self.refused), deque(self.waiting))


@dataclass(slots=True)
class LedgerHistory:
    """What is known of one ledger."""

    master_key: bytes
    entries: dict[int, EntryHistory] = field(default_factory=dict)
    fence_asked: bool = False
    fence_acknowledged: bool = False
    lacs_asked: set[int] = field(default_factory=set)
    lac_acknowledged: int = NEVER
    bypasses_journal: bool = False
    """No journal has its entries."""

    def may_be_torn(self, entry_id: int) -> bool:
        """Say whether a crash may tear the position of an entry, so that EIO is right: it was being written.

        A disk writes the eight bytes of a position or does not. The images cut writes at any byte nevertheless, which
        replay repairs, where the journal has the entry.
        """
        entry = self.entries.get(entry_id)
        return self.bypasses_journal and entry is not None and entry.acknowledged < len(entry.versions) - 1

    @property
    def is_acknowledged(self) -> bool:
        """True when the bookie promised anything that it cannot keep without knowing the ledger."""
        if self.fence_acknowledged or self.lac_acknowledged != NEVER:
            return True
        return any(entry.acknowledged != NEVER for entry in self.entries.values())

    def copy(self) -> LedgerHistory:
        entries = {entry_id: entry.copy() for entry_id, entry in self.entries.items()}
        return LedgerHistory(
            self.master_key,
            entries,
            self.fence_asked,
            self.fence_acknowledged,
            set(self.lacs_asked),
            self.lac_acknowledged,
            self.bypasses_journal,
        )


class History:
    """All ledgers, and how many promises were made."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerHistory] = {}
        self.deleted: dict[int, LedgerHistory] = {}
        """Ledgers that nothing is promised of, but that those which were fenced take no ordinary adds any more."""
        self.promises = 0

    def ledger(self, ledger_id: int) -> LedgerHistory:
        if ledger_id not in self.ledgers:
            self.ledgers[ledger_id] = LedgerHistory(b"key of %013d" % ledger_id)
        return self.ledgers[ledger_id]

    def add_asked(self, ledger_id: int, entry_id: int, content: bytes) -> None:
        entry = self.ledger(ledger_id).entries.setdefault(entry_id, EntryHistory())
        entry.waiting.append(len(entry.versions))
        entry.versions.append(content)

    def delete(self, ledger_id: int) -> None:
        """Note that a ledger was deleted in the metadata store."""
        self.deleted[ledger_id] = self.ledger(ledger_id)
        del self.ledgers[ledger_id]

    def add_answered(self, ledger_id: int, entry_id: int, status: int) -> None:
        """Note a reply; the bookie answers the versions of one entry in order, and refusals at once."""
        if ledger_id in self.deleted:
            return
        entry = self.ledgers[ledger_id].entries[entry_id]
        if status != Status.EOK:
            entry.refused.add(entry.waiting.pop())
            return
        entry.acknowledged = max(entry.acknowledged, entry.waiting.popleft())
        self.promises += 1

    def fence_asked(self, ledger_id: int) -> None:
        self.ledger(ledger_id).fence_asked = True

    def fence_answered(self, ledger_id: int) -> None:
        """Note the answer to a fencing read, whichever it was: from now on the ledger is fenced."""
        (self.ledgers.get(ledger_id) or self.deleted[ledger_id]).fence_acknowledged = True
        self.promises += 1

    def lac_asked(self, ledger_id: int, lac: int) -> None:
        self.ledger(ledger_id).lacs_asked.add(lac)

    def lac_answered(self, ledger_id: int, lac: int) -> None:
        """Note that an explicit LAC, or a higher one, is kept: from now on it never goes below that."""
        if ledger_id in self.ledgers:
            ledger = self.ledgers[ledger_id]
            ledger.lac_acknowledged = max(ledger.lac_acknowledged, lac)
            self.promises += 1

    def after_crash(self) -> History:
        """Return a copy in which nothing is on its way any more."""
        copy = History()
        copy.promises = self.promises
        copy.ledgers = {ledger_id: ledger.copy() for ledger_id, ledger in self.ledgers.items()}
        copy.deleted = {ledger_id: ledger.copy() for ledger_id, ledger in self.deleted.items()}
        for ledger in copy.ledgers.values():
            for entry in ledger.entries.values():
                entry.waiting.clear()
        return copy
