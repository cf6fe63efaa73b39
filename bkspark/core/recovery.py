"""RecoveryCore: finds the end of a ledger whose writer is gone, and closes it there. Decisions only.

    CLAIMING  store IN_RECOVERY
    FENCING   fence every bookie of the last fragment and collect their LACs, until coverage
    READING   read forward from LAC + 1, every read with the fencing flag, window by window
    REWRITING the entries found go to their full write sets (through a WriterCore in recovery mode)
    MEASURING read the last entry for the ledger's length: no entry was rewritten, so nothing in memory has it
    CLOSING   store CLOSED
    DONE, FAILED

Rules (BookKeeper protocol.md, "Closing a ledger as a reader"):
* The recovery LAC is max(highest valid LAC received, first entry of the last fragment - 1), frozen for the whole
  recovery: rewritten entries carry it. With a moving LAC, a second recovery could begin above entries that too few
  published bookies have.
* Reads go to the fragment as it was when recovery began, whatever ensemble changes the rewriting makes.
* An entry exists when one bookie returns it with a valid digest; it does not when (Qw - Qa) + 1 bookies say so
  explicitly. Other answers count for neither; if neither is reached, recovery fails and the ledger stays IN_RECOVERY.
* A bookie that failed once is not asked again, and the rewriting does not wait for one that did not answer: a dead
  bookie costs one time-out, not one for each entry.
* A bookie that refuses load (TOOMANYREQUESTS) has not answered: it is asked again after a pause that doubles up to a
  limit, without a limit of attempts; meanwhile other replicas may decide. No recovery fails because of it.
* A failed rewrite fails the recovery; it never counts as the end of the ledger.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from bkspark.core import effects
from bkspark.core.last_confirmed import wrong_lac
from bkspark.core.metadata import LENGTH_MAX, Fragment, LedgerMetadata, LedgerState
from bkspark.core.quorum import has_coverage, negatives_needed
from bkspark.core.recovery_window import RecoveryWindow, Response
from bkspark.core.striping import ENSEMBLE_SIZE_MAX, mask_of
from bkspark.errors import (
    BookieUnavailable,
    BookKeeperError,
    LedgerRecoveryFailed,
    RequestTimeout,
    UnauthorizedAccess,
)
from bkspark.ids import LAST_ENTRY_MAX

WINDOW_FIRST = 4
WINDOW_GROWTH = 4
WINDOW_ENTRIES_MAX = 4096
WINDOW_BYTES_MAX = 8 * 1024 * 1024
"""Number of entries that are read forward at once, and kept until they are rewritten.

If the fence responses revealed the last entry and length, it covers everything up to it plus one entry. Otherwise it
starts small, as most ledgers end soon after their LAC, and grows. It never exceeds the window's bytes, counted with the
largest entry seen; an entry larger than all before it may exceed that, by a frame for each entry of its window.
"""

REST_NS_MIN = 5_000_000
REST_NS_MAX = 500_000_000
"""Shortest and longest pause for a bookie that refuses load."""

_NO_LENGTHS = np.empty(0, np.int64)


class RecoveryState(enum.Enum):
    """What a recovery does; this module's text describes the states."""

    CLAIMING = enum.auto()
    FENCING = enum.auto()
    READING = enum.auto()
    REWRITING = enum.auto()
    MEASURING = enum.auto()
    CLOSING = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class RecoveryCore:
    """Decides the end of one ledger; see the module's text for states and rules."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> None:
        self.ledger_id = ledger_id
        """The id of the ledger. Constant."""
        self._begin(metadata, version)

    def _begin(self, metadata: LedgerMetadata, version: int) -> None:
        """Begin, or restart with the metadata stored now: every field is reset."""
        self.metadata = metadata
        """The metadata as they were last stored or read. Changed when a compare-and-set is decided."""
        self.version = version
        """The version of `metadata`; they change together."""
        self.state = RecoveryState.CLAIMING
        """See the module's text. DONE and FAILED are final."""
        self.lac = metadata.last_fragment.first_entry - 1
        """The recovery LAC: grows with answers to fences while FENCING, and is frozen from then on."""
        self.length = 0
        """Payload bytes up to the last entry that was sent for rewriting; while CLOSING, those of the ledger."""
        self._ensemble = metadata.last_fragment.bookies
        """The last fragment's bookies when recovery began: the reads go to them, even if rewriting changes the
        ensemble."""
        self._fragments: tuple[Fragment, ...] = metadata.fragments
        """The fragments that the close publishes. Changed by `on_ensemble_changed` alone."""
        self._known: set[int] = set()
        """Slots with a certain answer to their fence. Grows while FENCING, until coverage."""
        self._fences_waiting: set[int] = set()
        """Slots that have not answered a fence, including those that refuse load."""
        self._dead: set[int] = set()
        """Slots that are not asked again: they were unreachable or silent. Grows, by `_bury` alone."""
        self._silent: dict[int, str] = {}
        """Dead slots, with their bookies, that cost a time-out. The rewriting does not wait for them."""
        self._backing_off: set[int] = set()
        """Slots that refuse load and are in a pause. `_back_off` adds, `on_backoff_over` removes."""
        self._rest_ns: dict[int, int] = {}
        """The last pause of each slot that refused; removed once it answers."""
        self._first_error: BookKeeperError | None = None
        """The first error of a bookie, to explain a failure. Set once."""
        self._heard_length = 0
        """The cumulative length that the entry with the highest LAC carries. Informative only."""
        self._reaches = (-1, 0)
        """The highest entry in an answer to a fence, and the cumulative length that it carries."""
        self._next_entry = 0
        """The next entry to read, once FENCING is over; all entries before it exist."""
        self._window: RecoveryWindow | None = None
        """The entries that are being read. Not None exactly while READING."""
        self._window_entries = WINDOW_FIRST
        """Size of the next window if the ledger's last entry is unknown. See WINDOW_FIRST."""
        self._at_end = False
        """Whether the last window ended with an entry that does not exist."""

    @property
    def last_entry(self) -> int:
        """The last entry found so far; the ledger's end once reading is over."""
        return self._next_entry - 1

    # ---- events ----

    def start(self) -> list[effects.RecoveryEffect]:
        """Begin: claim the ledger, or go straight to fencing if an earlier recovery claimed it."""
        if self.metadata.is_closed:
            self.state = RecoveryState.DONE
            return [effects.Recovered(self.metadata)]
        size = self.metadata.ensemble_size
        if size > ENSEMBLE_SIZE_MAX:
            return self._fail(
                LedgerRecoveryFailed(
                    f"ledger {self.ledger_id} has an ensemble of {size} bookies; at most {ENSEMBLE_SIZE_MAX} can be "
                    "recovered: open it with an Apache client",
                    ledger_id=self.ledger_id,
                    entry_id=self.last_entry + 1,
                    bookie=None,
                )
            )
        if self.metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()
        return [effects.WriteMetadata(self.metadata.in_recovery(), self.version)]

    def on_metadata_written(self, metadata: LedgerMetadata, version: int) -> list[effects.RecoveryEffect]:
        """The compare-and-set took effect."""
        if self.state is RecoveryState.FAILED:
            return []
        self.metadata, self.version = metadata, version
        if self.state is RecoveryState.CLAIMING:
            return self._fence()
        assert self.state is RecoveryState.CLOSING
        self.state = RecoveryState.DONE
        return [effects.Recovered(metadata)]

    def on_metadata_conflict(self, current: LedgerMetadata, version: int) -> list[effects.RecoveryEffect]:
        """The compare-and-set lost. If the ledger is closed now, accept that. Otherwise restart from the stored
        metadata.

        A restart is always right: rewriting so far only added copies of existing entries.
        """
        if self.state is RecoveryState.FAILED:
            return []
        if current.is_closed:
            self.state = RecoveryState.DONE
            return [effects.Recovered(current)]
        self._begin(current, version)
        return [effects.AbandonRewriting(), *self.start()]

    def on_metadata_failed(self, error: BookKeeperError) -> list[effects.RecoveryEffect]:
        """The metadata store failed."""
        return self._fail(error)

    def on_fence_answer(
        self,
        slot: int,
        answer: Response,
        lac: int = -1,
        length: int = 0,
        error: BookKeeperError | None = None,
        last_entry: int = -1,
    ) -> list[effects.RecoveryEffect]:
        """The bookie in `slot` answered the fencing read of its last entry.

        Args:
            answer: FOUND only with a valid digest; then `lac`, `length` and `last_entry` (its id) are the entry's.
            error: with FAILED. Unauthorised is decisive.
        """
        if answer is Response.REFUSED:
            return self._back_off(slot) if self.state is RecoveryState.FENCING else []
        self._rest_ns.pop(slot, None)
        self._fences_waiting.discard(slot)
        if isinstance(error, UnauthorizedAccess):
            return self._fail(error)
        bounds = self.metadata.lac_bounds
        if answer is Response.FOUND and last_entry > bounds.copies_to and not bounds.admits(last_entry, lac):
            # If it were accepted, it would become the end of the ledger, because bookies answer correctly that they
            # have nothing above it.
            answer, error = Response.FAILED, wrong_lac(self.ledger_id, last_entry, lac, self._ensemble[slot])
        if answer is Response.FAILED:
            self._bury(slot, error)
        if self.state is not RecoveryState.FENCING:
            return []
        if answer is Response.FOUND:
            lac = bounds.learned(last_entry, lac)
            self._reaches = max(self._reaches, (last_entry, length))
            if lac >= self.lac:
                self.lac, self._heard_length = lac, length
        if answer is not Response.FAILED:
            self._known.add(slot)
        quorums = (self.metadata.ensemble_size, self.metadata.write_quorum, self.metadata.ack_quorum)
        if has_coverage(self._known, *quorums):
            self.state = RecoveryState.READING
            self._next_entry = self.lac + 1
            return self._read_window()
        if not self._fences_waiting:
            return self._fail(self._undecided("its last fragment could not be fenced"))
        return []

    def on_read_answers(
        self,
        slot: int,
        entry_ids: np.ndarray,
        answers: np.ndarray,
        payloads: Sequence[bytes | memoryview | None] = (),
        lengths: np.ndarray = _NO_LENGTHS,
        error: BookKeeperError | None = None,
    ) -> list[effects.RecoveryEffect]:
        """The bookie in `slot` answered fencing reads of the window.

        Args:
            answers: a `Response` for each of `entry_ids`, uint8; FOUND only with a valid digest.
            payloads, lengths: of found entries, in step with `entry_ids`; ignored elsewhere, and omitted if no entry
                was found. Lengths are cumulative.
            error: the first one, where one FAILED. Unauthorised is decisive.
        """
        if isinstance(error, UnauthorizedAccess):
            return self._fail(error)
        if error is not None:
            self._bury(slot, error)
        if self.state is not RecoveryState.READING or self._window is None:
            return []
        heard = self._window.take(slot, entry_ids, answers, payloads, lengths)
        if not len(heard):
            return []
        refused = heard == Response.REFUSED
        if not refused.all():
            self._rest_ns.pop(slot, None)
        return (self._back_off(slot) if refused.any() else []) + self._decide()

    def on_backoff_over(self, slot: int) -> list[effects.RecoveryEffect]:
        """The pause of the bookie in `slot` is over: repeat the request that it refused."""
        if slot not in self._backing_off:
            return []
        self._backing_off.discard(slot)
        if self.state is RecoveryState.FENCING and slot in self._fences_waiting:
            return [effects.Fence(slot, self._ensemble[slot])]
        return self._decide() if self.state is RecoveryState.READING else []

    def on_rewritten(self) -> list[effects.RecoveryEffect]:
        """Every entry sent for rewriting is acknowledged by Qa bookies."""
        assert self.state is RecoveryState.REWRITING
        return self._finish() if self._at_end else self._read_window()

    def on_rewrite_failed(self, error: BookKeeperError) -> list[effects.RecoveryEffect]:
        """An entry that exists could not be written to Qa bookies. Later failures of that writer change nothing."""
        return self._fail(error) if self.state is RecoveryState.REWRITING else []

    def on_ensemble_changed(self, fragments: tuple[Fragment, ...]) -> None:
        """The rewriting replaced bookies; published by the closing compare-and-set only."""
        self._fragments = fragments

    def on_length(self, length: int | None, error: BookKeeperError | None = None) -> list[effects.RecoveryEffect]:
        """Answer to ReadLength; None: no bookie returned the entry.

        Args:
            error: why a bookie that may hold the entry did not answer. Then recovery fails: a later one finds the
                length. If all answered and no bookie returned the entry, the highest length received is used.
        """
        assert self.state is RecoveryState.MEASURING
        if length is None and error is not None:
            self._first_error = self._first_error or error
            return self._fail(self._undecided(f"entry {self.last_entry}, the last one, could not be read"))
        self.length = min(max(0, self._heard_length if length is None else length), LENGTH_MAX)
        return self._close()

    # ---- decisions ----

    def _fence(self) -> list[effects.RecoveryEffect]:
        self.state = RecoveryState.FENCING
        self._fences_waiting = set(range(len(self._ensemble)))
        return [effects.Fence(slot, bookie) for slot, bookie in enumerate(self._ensemble)]

    def _bury(self, slot: int, error: BookKeeperError | None) -> None:
        # One damaged entry does not affect the others; an unreachable bookie is not asked again.
        if isinstance(error, (BookieUnavailable, RequestTimeout)):
            self._dead.add(slot)
        if isinstance(error, RequestTimeout):
            self._silent[slot] = self._ensemble[slot]
        self._first_error = self._first_error or error

    def _back_off(self, slot: int) -> list[effects.RecoveryEffect]:
        if slot in self._backing_off:
            return []
        self._backing_off.add(slot)
        delay_ns = self._rest_ns[slot] = min(2 * self._rest_ns.get(slot, REST_NS_MIN // 2), REST_NS_MAX)
        return [effects.BackOff(slot, delay_ns)]

    def _read_window(self) -> list[effects.RecoveryEffect]:
        """Ask one replica for each entry of the next window: the first live one."""
        self.state = RecoveryState.READING
        size, quorum = len(self._ensemble), self.metadata.write_quorum
        self._window = RecoveryWindow(self._next_entry, self._window_size(), size, quorum)
        return self._ask(slice(None), replicas=1) or self._decide()

    def _window_size(self) -> int:
        last_entry, length = self._reaches
        known = last_entry - self._next_entry + 2
        # Entries up to the last known one have `length` bytes in all, including those read already.
        is_known = 1 < known <= WINDOW_ENTRIES_MAX and length - self.length <= WINDOW_BYTES_MAX
        # No entry can follow the highest id.
        return min(known if is_known else self._window_entries, LAST_ENTRY_MAX + 1 - self._next_entry)

    def _ask(self, rows: np.ndarray | slice, replicas: int) -> list[effects.RecoveryEffect]:
        """Return reads of each row of the window from up to `replicas` of its unasked bookies, one per bookie."""
        assert self._window is not None
        chosen = self._window.choose(rows, replicas, mask_of(tuple(self._dead)), mask_of(tuple(self._backing_off)))
        return [effects.RecoveryRead(slot, self._ensemble[slot], ids) for slot, ids in chosen.items()]

    def _decide(self) -> list[effects.RecoveryEffect]:
        """Accept the window once every entry up to the first missing one is decided; ask further replicas for the
        others.

        The next replica is asked for an entry as soon as the asked ones have answered: a bookie that is silent about a
        later entry delays neither the end of the ledger nor the entries before it.
        """
        window = self._window
        assert window is not None
        needed = negatives_needed(self.metadata.write_quorum, self.metadata.ack_quorum)
        undecided, is_blocked = window.undecided(needed)
        if not len(undecided):
            return [] if is_blocked else self._take_window()
        asked = self._ask(undecided, replicas=self.metadata.write_quorum)
        first = undecided[0]
        if not window.waiting[first] and not window.unasked[first]:
            return self._fail(self._undecided(f"too few bookies answered for entry {window.entry_ids[first]}"))
        return asked

    def _take_window(self) -> list[effects.RecoveryEffect]:
        """Every entry up to the first missing one was found: rewrite them."""
        window, self._window = self._window, None
        assert window is not None
        count = window.found_ahead()
        self._at_end = count < len(window)
        if not count:
            return self._finish()
        payloads = window.batch(count, self.ledger_id)
        sizes = np.diff(payloads.offsets)
        # The writer's length is informative; an impossible number must not end the recovery.
        length_before = min(max(0, int(window.lengths[0]) - int(sizes[0])), LENGTH_MAX - payloads.payload_bytes)
        self.length = length_before + payloads.payload_bytes
        self._next_entry += count
        fitting = WINDOW_BYTES_MAX // max(1, int(sizes.max()))
        self._window_entries = max(1, min(WINDOW_GROWTH * self._window_entries, WINDOW_ENTRIES_MAX, fitting))
        self.state = RecoveryState.REWRITING
        return [effects.RewriteEntries(payloads, length_before, self.lac, dict(self._silent))]

    def _finish(self) -> list[effects.RecoveryEffect]:
        if self.length == 0 and self.last_entry >= 0:
            # Nothing was rewritten, so no entry in memory carries the length at the end.
            self.state = RecoveryState.MEASURING
            return [effects.ReadLength(self.last_entry)]
        return self._close()

    def _close(self) -> list[effects.RecoveryEffect]:
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

    def _fail(self, error: BookKeeperError) -> list[effects.RecoveryEffect]:
        if self.state in (RecoveryState.DONE, RecoveryState.FAILED):
            return []
        self.state = RecoveryState.FAILED
        return [effects.Fail(error)]
