"""RecoveryCore: find the end of a ledger whose writer is gone, and close it there. Decisions only.

    CLAIMING  store IN_RECOVERY
    FENCING   fence every bookie of the last fragment and hear their LACs, until coverage
    READING   read forward from LAC + 1, every read with the fencing flag, window by window
    REWRITING the entries found go to their full write sets (through a WriterCore in recovery mode)
    CLOSING   store CLOSED
    DONE, FAILED

Rules (BookKeeper protocol.md, "Closing a ledger as a reader"):
* The recovery LAC is max(highest valid LAC heard, first entry of the last fragment - 1), frozen for the whole
  recovery: rewritten entries carry it. A moving one would let a second recoverer start above entries that too few
  published bookies hold.
* Reads go to the fragment as it was when recovery began, whatever ensemble changes the rewriting makes.
* An entry exists when one bookie returns it with a valid digest; it does not when (Qw - Qa) + 1 said so explicitly.
  Anything else counts for neither side: with neither reached, recovery fails and the ledger stays IN_RECOVERY.
* A bookie that failed once is not asked again: a dead one costs one time-out, not one per entry.
* A bookie that refuses load (TOOMANYREQUESTS) has said nothing: it is asked again after a pause that doubles up to a
  limit, as often as it takes; meanwhile other replicas may decide. No recovery fails because of it.
* A failed rewrite is a failed recovery, never the end of the ledger.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np

from bkspark.core import effects
from bkspark.core.metadata import Fragment, LedgerMetadata, LedgerState
from bkspark.core.quorum import has_coverage, negatives_needed
from bkspark.core.striping import write_set
from bkspark.errors import (
    BookieUnavailable,
    BookKeeperError,
    LedgerRecoveryFailed,
    RequestTimeout,
    UnauthorizedAccess,
)

WINDOW_FIRST = 4
WINDOW_MAX = 256
"""Entries read forward at once: few at first, as most ledgers end soon after their LAC, then doubling."""

REST_NS_MIN = 5_000_000
REST_NS_MAX = 500_000_000
"""How long a bookie that refuses load is left alone: first, and at most."""


class RecoveryState(enum.Enum):
    CLAIMING = enum.auto()
    FENCING = enum.auto()
    READING = enum.auto()
    REWRITING = enum.auto()
    MEASURING = enum.auto()
    CLOSING = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class Answer(enum.Enum):
    """What one bookie said about one entry."""

    FOUND = enum.auto()
    NEGATIVE = enum.auto()
    FAILED = enum.auto()
    REFUSED = enum.auto()


@dataclass(slots=True)
class _Entry:
    """What is known of one entry of the window."""

    waiting: set[int] = field(default_factory=set)
    unasked: list[int] = field(default_factory=list)
    negatives: int = 0
    payload: bytes | None = None
    length: int = 0


class RecoveryCore:
    """Decides the end of one ledger; see the module's text for states and rules."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> None:
        self.ledger_id = ledger_id
        self._begin(metadata, version)

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        self.metadata = metadata
        self.version = version
        self.state = RecoveryState.CLAIMING
        self.lac = metadata.last_fragment.first_entry - 1
        self.length = 0
        self._ensemble = metadata.last_fragment.bookies
        self._fragments: tuple[Fragment, ...] = metadata.fragments
        self._known: set[int] = set()
        self._fences_waiting: set[int] = set()
        self._dead: set[int] = set()
        # Bookies that refuse load and are left alone now; how long each was, when last it was.
        self._resting: set[int] = set()
        self._rest_ns: dict[int, int] = {}
        self._first_error: BookKeeperError | None = None
        self._heard_length = 0
        self._next_entry = 0
        self._window = WINDOW_FIRST
        self._entries: dict[int, _Entry] = {}
        self._at_end = False

    @property
    def last_entry(self) -> int:
        """The last entry found so far; the ledger's end once reading is over."""
        return self._next_entry - 1

    # ---- events ----

    def start(self) -> list[effects.Effect]:
        """Begin: claim the ledger, or go straight to fencing where an earlier recovery claimed it."""
        if self.metadata.is_closed:
            self.state = RecoveryState.DONE
            return [effects.Recovered(self.metadata)]
        if self.metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()
        return [effects.WriteMetadata(self.metadata.in_recovery(), self.version)]

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[effects.Effect]:
        """The compare-and-set took effect."""
        if self.state is RecoveryState.FAILED:
            return []
        self.metadata, self.version = metadata, version
        if self.state is RecoveryState.CLAIMING:
            return self._fence()
        assert self.state is RecoveryState.CLOSING
        self.state = RecoveryState.DONE
        return [effects.Recovered(metadata)]

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[effects.Effect]:
        """The compare-and-set lost. Closed by somebody: take that. Otherwise begin again from what is stored now.

        Beginning again is always right: what was rewritten so far only adds copies of entries that exist.
        """
        if self.state is RecoveryState.FAILED:
            return []
        if current.is_closed:
            self.state = RecoveryState.DONE
            return [effects.Recovered(current)]
        self._begin(current, version)
        return [effects.AbandonRewriting(), *self.start()]

    def on_metadata_failed(self, error: BookKeeperError) -> list[effects.Effect]:
        """The metadata store could not be asked."""
        return self._fail(error)

    def on_fence_answer(
        self, slot: int, answer: Answer, lac: int = -1, length: int = 0, error: BookKeeperError | None = None
    ) -> list[effects.Effect]:
        """The bookie in `slot` answered the fencing read of its last entry.

        Args:
            answer: FOUND only with a valid digest; then `lac` and `length` are the entry's.
            error: with FAILED. Unauthorised is decisive.
        """
        if answer is Answer.REFUSED:
            return self._rest(slot) if self.state is RecoveryState.FENCING else []
        self._rest_ns.pop(slot, None)
        self._fences_waiting.discard(slot)
        if isinstance(error, UnauthorizedAccess):
            return self._fail(error)
        if answer is Answer.FAILED:
            self._bury(slot, error)
        if self.state is not RecoveryState.FENCING:
            return []
        if answer is Answer.FOUND and lac >= self.lac:
            self.lac, self._heard_length = lac, length
        if answer is not Answer.FAILED:
            self._known.add(slot)
        quorums = (self.metadata.ensemble_size, self.metadata.write_quorum, self.metadata.ack_quorum)
        if has_coverage(self._known, *quorums):
            self.state = RecoveryState.READING
            self._next_entry = self.lac + 1
            return self._read_window()
        if not self._fences_waiting:
            return self._fail(self._undecided("its last fragment could not be fenced"))
        return []

    def on_read_answer(
        self,
        slot: int,
        entry_id: int,
        answer: Answer,
        payload: bytes = b"",
        length: int = 0,
        error: BookKeeperError | None = None,
    ) -> list[effects.Effect]:
        """The bookie in `slot` answered the fencing read of one entry of the window."""
        if isinstance(error, UnauthorizedAccess):
            return self._fail(error)
        if answer is Answer.FAILED:
            self._bury(slot, error)
        entry = self._entries.get(entry_id)
        if self.state is not RecoveryState.READING or entry is None or slot not in entry.waiting:
            return []
        entry.waiting.discard(slot)
        if answer is Answer.REFUSED:
            entry.unasked.append(slot)
            return self._rest(slot) + self._decide()
        self._rest_ns.pop(slot, None)
        if answer is Answer.FOUND and entry.payload is None:
            entry.payload, entry.length = payload, length
        elif answer is Answer.NEGATIVE:
            entry.negatives += 1
        return self._decide()

    def on_rested(self, slot: int) -> list[effects.Effect]:
        """The bookie in `slot` was left alone for long enough: ask it again what it refused."""
        if slot not in self._resting:
            return []
        self._resting.discard(slot)
        if self.state is RecoveryState.FENCING and slot in self._fences_waiting:
            return [effects.Fence(slot, self._ensemble[slot])]
        return self._decide() if self.state is RecoveryState.READING else []

    def on_rewritten(self) -> list[effects.Effect]:
        """Every entry given out for rewriting is acknowledged by Qa bookies."""
        assert self.state is RecoveryState.REWRITING
        return self._finish() if self._at_end else self._read_window()

    def on_rewrite_failed(self, error: BookKeeperError) -> list[effects.Effect]:
        """An entry that exists could not be written to Qa bookies. Later failures of that writer change nothing."""
        return self._fail(error) if self.state is RecoveryState.REWRITING else []

    def on_ensemble_changed(self, fragments: tuple[Fragment, ...]) -> None:
        """The rewriting replaced bookies; published by the closing compare-and-set only."""
        self._fragments = fragments

    def on_length(self, length: int | None) -> list[effects.Effect]:
        """Answer to ReadLength; None where the entry could not be read (length is informative only)."""
        assert self.state is RecoveryState.MEASURING
        self.length = self._heard_length if length is None else length
        return self._close()

    # ---- decisions ----

    def _fence(self) -> list[effects.Effect]:
        self.state = RecoveryState.FENCING
        self._fences_waiting = set(range(len(self._ensemble)))
        return [effects.Fence(slot, bookie) for slot, bookie in enumerate(self._ensemble)]

    def _bury(self, slot: int, error: BookKeeperError | None) -> None:
        # One damaged entry says nothing of the others; a bookie that cannot be reached is not asked again.
        if isinstance(error, (BookieUnavailable, RequestTimeout)):
            self._dead.add(slot)
        self._first_error = self._first_error or error

    def _rest(self, slot: int) -> list[effects.Effect]:
        if slot in self._resting:
            return []
        self._resting.add(slot)
        delay_ns = self._rest_ns[slot] = min(2 * self._rest_ns.get(slot, REST_NS_MIN // 2), REST_NS_MAX)
        return [effects.Rest(slot, delay_ns)]

    def _read_window(self) -> list[effects.Effect]:
        """Ask one replica for each entry of the next window; the first one alive."""
        self.state = RecoveryState.READING
        self._entries = {}
        for entry_id in range(self._next_entry, self._next_entry + self._window):
            slots = write_set(entry_id, len(self._ensemble), self.metadata.write_quorum)
            self._entries[entry_id] = _Entry(unasked=list(slots))
        return self._ask(list(self._entries), replicas=1) or self._decide()

    def _ask(self, entry_ids: list[int], replicas: int) -> list[effects.Effect]:
        """Return reads of each entry from up to `replicas` of its unasked bookies, one per bookie.

        Dead ones are left out for good, those that rest stay unasked.
        """
        by_slot: dict[int, list[int]] = {}
        for entry_id in entry_ids:
            entry = self._entries[entry_id]
            alive = [slot for slot in entry.unasked if slot not in self._dead and slot not in self._resting][:replicas]
            entry.unasked = [slot for slot in entry.unasked if slot not in self._dead and slot not in alive]
            entry.waiting.update(alive)
            for slot in alive:
                by_slot.setdefault(slot, []).append(entry_id)
        return [
            effects.RecoveryRead(slot, self._ensemble[slot], np.array(ids, np.int64)) for slot, ids in by_slot.items()
        ]

    def _decide(self) -> list[effects.Effect]:
        """Take the window once every entry up to the first missing one is decided; ask on where one replica did not do.

        An entry is asked on as soon as whoever was asked has answered: a bookie that is silent about a later one holds
        up neither the end of the ledger nor the entries in front.
        """
        needed = negatives_needed(self.metadata.write_quorum, self.metadata.ack_quorum)
        undecided = []
        is_blocked = False
        for entry_id, entry in self._entries.items():
            if entry.payload is not None:
                continue
            if entry.negatives >= needed:
                # Entries above the first missing one are not part of the ledger, whoever may hold them.
                break
            if entry.waiting:
                is_blocked = True
                break
            undecided.append(entry_id)
        if not undecided:
            return [] if is_blocked else self._take_window()
        asked = self._ask(undecided, replicas=self.metadata.write_quorum)
        left = self._entries
        hopeless = [entry_id for entry_id in undecided if not left[entry_id].waiting and not left[entry_id].unasked]
        if hopeless and hopeless[0] == undecided[0]:
            return self._fail(self._undecided(f"too few bookies answered for entry {hopeless[0]}"))
        return asked

    def _take_window(self) -> list[effects.Effect]:
        """Every entry up to the first missing one was found: rewrite them."""
        found = []
        for entry in self._entries.values():
            if entry.payload is None:
                break
            found.append(entry)
        self._at_end = len(found) < len(self._entries)
        self._entries = {}
        if not found:
            return self._finish()
        first_entry = self._next_entry
        payloads = tuple(entry.payload for entry in found if entry.payload is not None)
        self._next_entry += len(found)
        self._window = min(2 * self._window, WINDOW_MAX)
        length_before = found[0].length - len(payloads[0])
        self.length = length_before + sum(map(len, payloads))
        self.state = RecoveryState.REWRITING
        return [effects.RewriteEntries(first_entry, payloads, length_before, self.lac)]

    def _finish(self) -> list[effects.Effect]:
        if self.length == 0 and self.last_entry >= 0:
            # Nothing was rewritten, so no entry at hand carries the length at the end.
            self.state = RecoveryState.MEASURING
            return [effects.ReadLength(self.last_entry)]
        return self._close()

    def _close(self) -> list[effects.Effect]:
        self.state = RecoveryState.CLOSING
        closed = self.metadata.closed(self.last_entry, self.length, self._fragments)
        return [effects.WriteMetadata(closed, self.version)]

    def _undecided(self, what: str) -> LedgerRecoveryFailed:
        cause = f" ({self._first_error})" if self._first_error else ""
        return LedgerRecoveryFailed(
            f"ledger {self.ledger_id} could not be recovered: {what}{cause}; it stays IN_RECOVERY, try again later",
            ledger_id=self.ledger_id,
            entry_id=self._next_entry,
            bookie=self._first_error.bookie if self._first_error else None,
        )

    def _fail(self, error: BookKeeperError) -> list[effects.Effect]:
        if self.state in (RecoveryState.DONE, RecoveryState.FAILED):
            return []
        self.state = RecoveryState.FAILED
        return [effects.Fail(error)]
