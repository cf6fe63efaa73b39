"""Repairing one ledger: what to copy where, and when metadata may name the new bookie. Decisions only.

The driver performs the effects that each call returns, and calls back. Fragments are repaired one after the other:
check copies that were reported missing (`InspectCopies`), copy what is missing (`CopyEntries`), and only when the new
bookies have acknowledged every entry, name them by compare-and-set (`WriteMetadata`).

Invariants (A1 to A5, M2):
* Metadata change only in the names of bookies, only in fragments that get no more entries, and only in slots whose new
  bookie has acknowledged every entry of that slot. So the number of valid copies on named bookies never decreases.
* The fragments that get no more entries are all fragments of a closed ledger, and all except the last of an open one,
  whose owner begins a new fragment after the acknowledged entries. The last fragment of an open ledger that names a
  lost bookie is left alone for the grace period. Then the ledger is recovered and repaired as a closed one. Recovery
  claims it by compare-and-set, which fails if a live owner has replaced the lost bookie, and fences and closes it. It
  leaves only Qa copies of the entries that it rewrote, so every bookie of that fragment is checked then.
* A bookie that serves never counts as lost: its copies are checked, and it receives those that it lacks. Another bookie
  takes its slot only if it is unreachable or does not accept the copies.
* Compare-and-set resolves conflicts with other writers. After a lost one the stored metadata are checked again: a slot
  that has another bookie by now is left alone, and a new bookie is never named twice in an ensemble.
* Every path ends: complete, gone, waiting for the grace period, or deferred with the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bkspark.core.copies import settled_fragments
from bkspark.core.effects import WriteMetadata
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.placement import FLAT, Topology
from bkspark.errors import BookKeeperError, NoSuchLedger, NotEnoughBookies
from bookie_service.replication.repair_targets import RepairTargets

TARGETS_TRIED_MAX = 3
"""How many bookies may fail to take copies before the ledger is deferred."""

WINDOW_ENTRIES = 1 << 20
"""How many entry ids are in memory at once."""

HOLES_MAX = 4 * WINDOW_ENTRIES
"""How many entry ids that one bookie lacks are in memory. If it lacks more, it gets all entries of its slot again."""

CONFLICTS_MAX = 16
"""How often a lost compare-and-set is tried again before the ledger is deferred."""


class Outcome(enum.Enum):
    COMPLETE = enum.auto()
    """No copy is known to be missing: the ledger is removed from the list."""
    GONE = enum.auto()
    """The ledger was deleted: it is removed from the list."""
    OPEN = enum.auto()
    """An owner may be writing to the fragment that names a lost bookie: try again after the grace period."""
    DEFERRED = enum.auto()
    """The ledger is not repaired now; the error says why."""


@dataclass(frozen=True, slots=True)
class InspectCopies:
    """Read the entries of [first_entry, end_entry) that the bookie in a slot must have; then call `on_inspected`, or
    `on_most_missing` if it lacks more than HOLES_MAX of them."""

    fragment: Fragment
    end_entry: int
    slot: int


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """Copy to `target` the entries that `slot` of a fragment must hold: those in `missing`, or all if it is None."""

    slot: int
    target: str
    missing: np.ndarray | None


@dataclass(frozen=True, slots=True)
class CopyEntries:
    """Copy the entries of a fragment below `end_entry`, with checked digests and the recovery flag.

    Then call `on_copied` when every target has acknowledged all its entries, or `on_copy_failed` or `on_unreadable`.
    """

    fragment: Fragment
    end_entry: int
    copies: tuple[SlotCopy, ...]
    """What each slot's new bookie must get."""


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Fence and close the ledger; then call `on_recovered` or `on_metadata_failed`."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last effect. `error`: why the ledger is deferred."""

    outcome: Outcome
    error: BookKeeperError | None = None


Effect = InspectCopies | CopyEntries | WriteMetadata | RecoverLedger | Ended


def entry_windows(fragment: Fragment, end_entry: int) -> Iterator[tuple[Fragment, int]]:
    """Yield a fragment below `end_entry` in parts of WINDOW_ENTRIES, each as (part, the entry id after its last).

    So a check of every entry has the ids of only one part in memory, however many entries the ledger has.

    >>> [(part.first_entry, end) for part, end in entry_windows(Fragment(5, ("a",)), WINDOW_ENTRIES + 7)]
    [(5, 1048581), (1048581, 1048583)]
    """
    for first in range(fragment.first_entry, end_entry, WINDOW_ENTRIES):
        yield Fragment(first, fragment.bookies), min(first + WINDOW_ENTRIES, end_entry)


def swapped(metadata: LedgerMetadata, first_entry: int, names: Mapping[int, str]) -> LedgerMetadata:
    """Return the metadata with other bookies in some slots of the fragment that begins at `first_entry`."""
    fragments = tuple(
        replace(fragment, bookies=tuple(names.get(slot, bookie) for slot, bookie in enumerate(fragment.bookies)))
        if fragment.first_entry == first_entry
        else fragment
        for fragment in metadata.fragments
    )
    return replace(metadata, fragments=fragments)


@dataclass(frozen=True, slots=True)
class RepairBookies:
    """The bookies of a cluster when a repair begins.

    reported: bookies whose copies were reported missing; empty: all bookies that are not registered.
    writable, registered: bookies that accept writes, and bookies that serve.
    leaving: bookies that serve, and whose copies are moved to others: they are replaced, but read from.
    topology: where bookies are, and which ones to avoid.
    """

    reported: frozenset[str]
    writable: frozenset[str]
    registered: frozenset[str]
    leaving: frozenset[str] = frozenset()
    topology: Topology = FLAT


class RepairCore:
    """Repairs one ledger once."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        bookies: RepairBookies,
        targets: RepairTargets,
        *,
        may_recover: bool = False,
    ) -> None:
        """`may_recover`: the grace period of an open last fragment is over."""
        self.ledger_id = ledger_id
        self.metadata = metadata
        """The ledger's metadata as last read or written. Replaced by `on_metadata_written`,
        `on_metadata_conflict` and `on_recovered`."""
        self.version = version
        """The version of `metadata`. They change together."""
        self._bookies = bookies
        self._targets = targets
        self._may_recover = may_recover
        """Whether an open ledger may be recovered. Decided again after a conflict with our claim: if the last fragment
        has changed, the writer lives."""
        self._distrusted: frozenset[str] = frozenset()
        """Bookies whose copies count as lost, because they could not be reached or refused copies. Only grows."""
        self._refusing: frozenset[str] = frozenset()
        """Bookies that did not accept copies, and are not chosen again. Only grows."""
        self._holes: dict[tuple[int, str], np.ndarray | None] = {}
        """The entry ids that a bookie lacks, by (first entry of the fragment, bookie); None: more than HOLES_MAX.
        Filled by `on_inspected` and `on_most_missing`."""
        self._done: set[tuple[int, str]] = set()
        """Copies that were made or cannot be made, by (first entry of the fragment, bookie). Only grows."""
        self._copying: CopyEntries | None = None
        """The copies in progress, until the metadata name them; None: there are none."""
        self._recovered_from: int | None = None
        """The first entry of the fragment that this repair recovered; None: it recovered none. Set once."""
        self._is_claiming = False
        """Whether the metadata write in progress claims an open ledger for recovery."""
        self._failed_targets = 0
        """How many targets refused copies. The repair ends at TARGETS_TRIED_MAX."""
        self._conflicts = 0
        """How many metadata writes met another version. The repair ends at CONFLICTS_MAX."""
        self._shortage: BookKeeperError | None = None
        """Why a fragment cannot be repaired now, or None. The repair ends with this error after the other fragments."""

    def start(self) -> list[Effect]:
        """Begin; every later call continues."""
        return self._next()

    def on_inspected(self, inspected: InspectCopies, holes: np.ndarray | None) -> list[Effect]:
        """Take the entry ids that are missing or damaged at the bookie; None: it could not be reached."""
        bookie = inspected.fragment.bookies[inspected.slot]
        if holes is None:
            self._distrusted |= {bookie}
        else:
            self._holes[inspected.fragment.first_entry, bookie] = holes
        return self._next()

    def on_most_missing(self, inspected: InspectCopies) -> list[Effect]:
        """Copy all entries of the slot to the bookie, which lacks more than HOLES_MAX of them."""
        self._holes[inspected.fragment.first_entry, inspected.fragment.bookies[inspected.slot]] = None
        return self._next()

    def on_busy(self, error: BookKeeperError) -> list[Effect]:
        """Defer the ledger: a serving bookie is too busy for a check, and must not get more work."""
        return self._end(Outcome.DEFERRED, error)

    def on_copied(self) -> list[Effect]:
        """Continue: every target has acknowledged all its entries."""
        copying = self._copying
        assert copying is not None
        for copy in copying.copies:
            if copy.target in copying.fragment.bookies:
                self._done.add((copying.fragment.first_entry, copy.target))
        return self._write()

    def on_copy_failed(self, target: str, error: BookKeeperError) -> list[Effect]:
        """Try another target, because this one does not accept its copies."""
        copying, self._copying = self._copying, None
        assert copying is not None
        self._refusing |= {target}
        if target in copying.fragment.bookies:
            self._distrusted |= {target}
        self._failed_targets += 1
        return self._end(Outcome.DEFERRED, error) if self._failed_targets >= TARGETS_TRIED_MAX else self._next()

    def on_unreadable(self, error: BookKeeperError) -> list[Effect]:
        """Give up this fragment, because no bookie returns an entry of it. The other fragments are repaired."""
        copying, self._copying = self._copying, None
        assert copying is not None
        self._shortage = self._shortage or error
        self._done.update(
            (copying.fragment.first_entry, copying.fragment.bookies[copy.slot]) for copy in copying.copies
        )
        return self._next()

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[Effect]:
        """Continue: the metadata name the new bookies, or claim the ledger for recovery."""
        self.metadata, self.version = metadata, version
        if self._is_claiming:
            self._is_claiming = False
            return [RecoverLedger()]
        self._copying = None
        return self._next()

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[Effect]:
        """Try the changes that still apply to `current`, which is stored now: the compare-and-set was lost."""
        judged = self.metadata.last_fragment
        self.metadata, self.version = current, version
        self._conflicts += 1
        if self._conflicts >= CONFLICTS_MAX:
            error = BookKeeperError(f"the metadata of ledger {self.ledger_id} keep changing")
            return self._end(Outcome.DEFERRED, error)
        if self._is_claiming:
            # Its owner may have replaced the lost bookie just now. Then the grace period is not over.
            self._is_claiming = False
            self._may_recover = current.last_fragment == judged
            return self._next()
        return self._write()

    def on_recovered(self, metadata: LedgerMetadata, version: int) -> list[Effect]:
        """Continue: the ledger is closed."""
        self._recovered_from = self.metadata.last_fragment.first_entry
        self.metadata, self.version = metadata, version
        return self._next()

    def on_gone(self) -> list[Effect]:
        """End: the ledger was deleted."""
        return self._end(Outcome.GONE, None)

    def on_metadata_failed(self, error: BookKeeperError) -> list[Effect]:
        """End: the metadata store failed, the ledger could not be recovered, or it was deleted meanwhile."""
        return self.on_gone() if isinstance(error, NoSuchLedger) else self._end(Outcome.DEFERRED, error)

    # ---- decisions ----

    def _next(self) -> list[Effect]:
        for fragment, end_entry in settled_fragments(self.metadata):
            todo = self._repair(fragment, end_entry)
            if todo is not None:
                return todo
        if self._shortage is not None:
            return self._end(Outcome.DEFERRED, self._shortage)
        last = self.metadata.last_fragment
        # The owner knows better than this process whether a serving bookie answers.
        staying = self._bookies.registered - self._bookies.leaving
        lost = [bookie for bookie in last.bookies if bookie not in staying and self._is_lost(last, bookie)]
        if self.metadata.is_closed or not lost:
            return self._end(Outcome.COMPLETE, None)
        return self._recover() if self._may_recover else self._end(Outcome.OPEN, None)

    def _recover(self) -> list[Effect]:
        if self.metadata.state is not LedgerState.OPEN:
            return [RecoverLedger()]
        self._is_claiming = True
        return [WriteMetadata(replace(self.metadata, state=LedgerState.IN_RECOVERY), self.version)]

    def _is_suspect(self, fragment: Fragment, bookie: str) -> bool:
        is_recovered = self._recovered_from is not None and fragment.first_entry >= self._recovered_from
        return is_recovered or bookie in self._bookies.reported

    def _is_lost(self, fragment: Fragment, bookie: str) -> bool:
        if bookie in self._distrusted or bookie in self._bookies.leaving:
            return True
        return bookie not in self._bookies.registered and (
            not self._bookies.reported or self._is_suspect(fragment, bookie)
        )

    def _repair(self, fragment: Fragment, end_entry: int) -> list[Effect] | None:
        """Return the next step for a fragment; None: nothing more can be done for it."""
        first = fragment.first_entry
        lost: list[int] = []
        lacking: list[int] = []
        for slot, bookie in enumerate(fragment.bookies):
            if (first, bookie) in self._done:
                continue
            if self._is_lost(fragment, bookie):
                lost.append(slot)
            elif self._is_suspect(fragment, bookie):
                if (first, bookie) not in self._holes:
                    return [InspectCopies(fragment, end_entry, slot)]
                holes = self._holes[first, bookie]
                if holes is None or len(holes):
                    (lacking if bookie in self._bookies.writable else lost).append(slot)
        names = fragment.bookies
        copies = [SlotCopy(slot, names[slot], self._holes[first, names[slot]]) for slot in lacking]
        copies += self._replacements(fragment, lost)
        if not copies:
            return None
        self._copying = CopyEntries(fragment, end_entry, tuple(copies))
        has_entries = end_entry > first
        return [self._copying] if has_entries else self.on_copied()

    def _replacements(self, fragment: Fragment, lost: list[int]) -> list[SlotCopy]:
        if not lost:
            return []
        spare = self._bookies.writable - self._distrusted - self._refusing - self._bookies.leaving
        quorum = self.metadata.write_quorum
        chosen = self._targets.choose(fragment.bookies, lost, spare, quorum, self._bookies.topology)
        for slot in lost:
            if slot not in chosen:
                self._shortage = NotEnoughBookies(
                    f"ledger {self.ledger_id}: no spare writable bookie for {fragment.bookies[slot]} in the fragment "
                    f"at entry {fragment.first_entry}: start more bookies",
                    ledger_id=self.ledger_id,
                )
        return [SlotCopy(slot, target, None) for slot, target in sorted(chosen.items())]

    def _names(self, copying: CopyEntries) -> dict[int, str]:
        """Return the new bookies that the stored metadata may name, by slot."""
        for fragment, end_entry in settled_fragments(self.metadata):
            if (fragment.first_entry, end_entry) == (copying.fragment.first_entry, copying.end_entry):
                break
        else:
            return {}
        return {
            copy.slot: copy.target
            for copy in copying.copies
            if fragment.bookies[copy.slot] == copying.fragment.bookies[copy.slot]
            and copy.target not in fragment.bookies
        }

    def _write(self) -> list[Effect]:
        assert self._copying is not None
        names = self._names(self._copying)
        if not names:
            self._copying = None
            return self._next()
        changed = swapped(self.metadata, self._copying.fragment.first_entry, names)
        return [WriteMetadata(changed, self.version)]

    def _end(self, outcome: Outcome, error: BookKeeperError | None) -> list[Effect]:
        return [Ended(outcome, error)]
