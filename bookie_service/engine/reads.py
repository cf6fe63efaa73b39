"""Requests that change nothing: what they may see, who runs them, and what becomes of one that fails.

A `Reading` is a request, or a run of them, that changes nothing. It sees the bookie through a `View`, which has no way
to change it, and only `Reads` runs it. So whatever a reading raises leaves the bookie as it was: the request is
answered EIO, the error is logged with its traceback, and everything else goes on. Requests that change something are
run by `request_stream.Runs`, outside of this; an unexpected error of theirs ends the process.

Readings are answered at once as far as they need no disk, and later, through fetching threads, where they do. When the
next entry is not at hand, the rest of a reading leaves the connection's buffer and waits for it, and the connection
goes on with what follows: replies need no order. So a read that waits for the disk delays no add and no other read.
What waits is bounded (`ReadOptions`), holds no entries, and waits on while its peer does not take replies.

Whatever a read finds missing it looked up at one moment on the event loop, so a negative answer was true then. A place
that was fetched and is not where the entry lies any more, because a compaction moved it, is simply not used.
"""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bkspark.options import BYTES_MAX, COUNT_MAX, bounded, check
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.layout import LAC_AT
from bkspark.wire.status import Status
from bookie_service.engine import rules
from bookie_service.engine.containment import Disconnectable, refuse_after
from bookie_service.engine.responses import Parts
from bookie_service.engine.turns import Turn, Turns
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.byte_source import CachedSource, Fetched, NotCached, Place
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.ledgers.interface import Ledger, LedgerStorage

logger = logging.getLogger(__name__)

_LAC = struct.Struct(">q")

Fetch = Callable[[Place, Callable[[Fetched], None]], None]
"""Reads a place and calls back, on the event loop, with what came of it."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Limits of reads; bytes and counts.

    in_flight_max: entries asked for and not answered before connections must wait; 0: only `waiting_max` limits them.
    waiting_max: entries that wait for the disk; above that a read is answered ETOOMANYREQUESTS.
    batch_bytes_max: of a batch-read reply. replies_bytes_max: single reads are answered in pieces of about this size.
    """

    in_flight_max: int = bounded(0, 0, COUNT_MAX)
    waiting_max: int = bounded(80_000, 1, 1024 * COUNT_MAX)
    batch_bytes_max: int = bounded(5 * 1024 * 1024, 1, 64 * 1024 * 1024, "bytes")
    replies_bytes_max: int = bounded(1280 * 1024, 1, BYTES_MAX, "bytes")

    def __post_init__(self) -> None:
        check(self)


class ReadClient(Disconnectable, Protocol):
    """A connection, as readings see it."""

    @property
    def is_open(self) -> bool:
        """False once the connection is gone."""

    @property
    def is_taking(self) -> bool:
        """False while the peer leaves too much of its replies."""

    def send(self, parts: Parts) -> None:
        """Send the parts back to back; they are valid during the call only. Nothing happens when it is gone."""

    def when_taking(self, callback: Callable[[], None]) -> None:
        """Call back once `is_taking`, or when the connection is gone."""


class View:
    """What readings may see of a bookie. Every way to change its state is missing here."""

    def __init__(self, store: LedgerStorage, space: Callable[[], FileSystemSpace], options: ReadOptions) -> None:
        """`space()` returns how much space the ledger directories have together."""
        self.options = options
        self.ledger = store.ledger
        """Returns a ledger, None when this bookie certainly never held it; raises StorageDamaged, OSError."""
        self.absent = store.absent
        self.waiting_entries = store.waiting_entries
        self.index_view = store.index.view
        self.space = space
        self._read = store.read
        self._in_limbo = store.limbo.__contains__
        self._source = CachedSource(options.batch_bytes_max + options.replies_bytes_max)

    def read(
        self, ledger: Ledger | None, first_entry: int, count_max: int, bytes_max: int, fetched: Fetched | None
    ) -> list[FramedEntries]:
        """Return entries as `LedgerStorage.read` does, lent, without waiting for the disk.

        Raises:
            NotCached: the first entry is not at hand, nor in `fetched`.
        """
        if ledger is None or first_entry <= NO_ENTRY:
            return []
        self._source.begin(fetched)
        return self._read(ledger, first_entry, count_max, bytes_max, self._source)

    def known_lac(self, ledger: Ledger, fetched: Fetched | None = None) -> int:
        """Return the highest LAC that entries held, as far as they can be read, and the explicit LAC name.

        Raises:
            NotCached: the last entry is not at hand.
        """
        if ledger.lac_entry != ledger.last_entry:
            try:
                pieces = self.read(ledger, ledger.last_entry, 1, 0, fetched)
            except (StorageDamaged, OSError):
                # A read of that entry is answered EIO, others a lower LAC. This is noted, so that none looks again:
                # where nothing stays in the page cache, a read would have this entry and its own fetched in turn.
                ledger.note_lac(NO_ENTRY)
                return ledger.known_lac
            if pieces:
                entry = memoryview(pieces[0].buffer)[LENGTH_BYTES:]
                has_lac = len(entry) >= LAC_AT + _LAC.size
                ledger.note_lac(_LAC.unpack_from(entry, LAC_AT)[0] if has_lac else NO_ENTRY)
        return ledger.known_lac

    def lac_at_hand(self, ledger_id: int) -> int:
        """Return the LAC that is known of a ledger, without what only the disk tells; NO_ENTRY for none."""
        ledger = self.ledger(ledger_id)
        if ledger is None:
            return NO_ENTRY
        try:
            self.known_lac(ledger)
        except NotCached:
            # It is looked up when somebody asks for it.
            return ledger.known_lac
        return ledger.known_lac

    def last_entry(self, ledger: Ledger) -> int:
        """Return the last entry held; NO_ENTRY of a ledger in limbo, which may have had a later one."""
        return NO_ENTRY if self._in_limbo(ledger.ledger_id) else ledger.last_entry

    def absence(self, ledger_id: int, ledger: Ledger | None) -> Status:
        """Return the answer to a read of an entry that is not held."""
        return rules.absence_status(is_known=ledger is not None, in_limbo=self._in_limbo(ledger_id))

    def is_in_limbo(self, ledger_id: int) -> bool:
        """Return whether a ledger may have lost something here."""
        return self._in_limbo(ledger_id)


class Reading(ABC):
    """A request, or a run of them, that changes nothing."""

    client: ReadClient

    @abstractmethod
    def __len__(self) -> int:
        """Return how many requests are not answered yet."""

    @abstractmethod
    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> Place | None:
        """Answer what is at hand, what the peer takes, and what the turn has time for.

        Returns:
            What must be fetched before the next request can be answered; None: nothing.
        """

    @abstractmethod
    def refuse(self, status: int) -> None:
        """Answer all requests that are not answered yet with a status, V2's."""

    def refuse_next(self, status: int) -> None:
        """Answer the next request with a status."""
        self.refuse(status)

    def keep(self, count: int) -> None:
        """Become the next `count` requests, in memory of their own: what they lie in may be a receive buffer."""
        assert count == len(self)

    def refuse_behind(self, count: int, status: int) -> None:
        """Answer the requests behind the next `count` ones with a status."""
        if not count:
            self.refuse(status)


Pieces = list[bytes | memoryview]
"""Responses that are sent together."""


def answer_in_pieces(reading: Reading, turn: Turn, answer_some: Callable[[Pieces], None]) -> Place | None:
    """Answer requests of a reading, as `Reading.proceed` does.

    Args:
        answer_some: adds responses to its argument, and raises NotCached when the next request needs the disk.
    """
    client = reading.client
    while len(reading) and client.is_taking and client.is_open and not turn.is_over:
        parts: Pieces = []
        try:
            answer_some(parts)
        except NotCached as miss:
            return miss.place
        finally:
            # Also those of requests before one that failed.
            if parts:
                client.send(parts)
    return None


class Reads:
    """Runs all readings of one bookie. For the event loop. No method raises what a reading raises."""

    def __init__(self, view: View, fetch: Fetch, turns: Turns, on_room: Callable[[], None]) -> None:
        """`on_room()` is called when readings that were refused for `is_full` may be offered again."""
        self._view = view
        self._fetch = fetch
        self._turns = turns
        self._on_room = on_room
        self._waiting = 0

    @property
    def is_full(self) -> bool:
        """True while so many reads are in flight that no more are to be taken."""
        return 0 < self._view.options.in_flight_max <= self._waiting

    def answer(self, reading: Reading, turn: Turn) -> bool:
        """Answer a reading, now or later; False: the turn is over or the peer takes no replies now, offer it again."""
        place = self._proceed(reading, None, turn)
        if place is not None:
            self._answer_later(reading, place)
        return not len(reading) or place is not None

    def enqueue(self, reading: Reading, turn: Turn | None = None) -> None:
        """Answer all of a reading, now or later."""
        turn = turn or self._turns.begin(reading.client)
        place = self._proceed(reading, None, turn) if reading.client.is_taking else None
        if len(reading):
            self._answer_later(reading, place)

    def later(self, reading: Reading) -> None:
        """Answer all of a reading, but not from here: for who is in the middle of a change."""
        self._turns.go_on(reading.client, lambda turn: self.enqueue(reading, turn))

    def _proceed(self, reading: Reading, fetched: Fetched | None, turn: Turn) -> Place | None:
        """Let a reading proceed. One that fails has the request in question answered EIO, and goes on behind it."""
        while True:
            try:
                return reading.proceed(self._view, fetched, turn)
            except Exception as error:
                refuse_after(error, reading.client, lambda: reading.refuse_next(Status.EIO))
                turn.spend()
                if not len(reading) or not reading.client.is_open or turn.is_over:
                    return None

    def _answer_later(self, reading: Reading, place: Place | None) -> None:
        """Have as many requests wait as there is room for; refuse the others."""
        room = max(0, self._view.options.waiting_max - self._waiting)
        if len(reading) > room:
            reading.refuse_behind(room, Status.ETOOMANYREQUESTS)
        if room:
            reading.keep(min(room, len(reading)))
            self._waiting += len(reading)
            self._wait(reading, place)

    def _wait(self, reading: Reading, place: Place | None) -> None:
        """Go on when a place is fetched; None: when the peer takes replies, in the next turn of the connection."""
        if place is not None:
            self._fetch(place, lambda fetched: self._go_on(reading, fetched, self._turns.begin(reading.client)))
        elif reading.client.is_taking:
            self._turns.go_on(reading.client, lambda turn: self._go_on(reading, None, turn))
        else:
            reading.client.when_taking(lambda: self._go_on(reading, None, self._turns.begin(reading.client)))

    def _go_on(self, reading: Reading, fetched: Fetched | None, turn: Turn) -> None:
        before = len(reading)
        if not reading.client.is_open:
            self._release(before)
            return
        place = None
        # Who takes nothing gets nothing; what was fetched is fetched again then, for it would only wait in memory.
        if reading.client.is_taking:
            place = self._proceed(reading, fetched, turn)
        after = len(reading) if reading.client.is_open else 0
        if after:
            self._wait(reading, place)
        self._release(before - after)

    def _release(self, count: int) -> None:
        was_full = self.is_full
        self._waiting -= count
        if was_full and not self.is_full:
            self._on_room()


def failed(error: Exception) -> Status:
    """Say why a request is answered EIO: the peer learns only that it was."""
    logger.error("%s", error)
    return Status.EIO


def ids_of(ledger_id: int, entry_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a ledger's and an entry's id as arrays of one."""
    return np.array([ledger_id]), np.array([entry_id])
