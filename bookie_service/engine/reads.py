"""Requests that change nothing: what they may see, how they run, and what happens when one fails.

A `Reading` is a request, or a run of requests, that changes nothing. It sees the bookie through a `View`, which cannot
change it, and only `Reads` runs it. So an error in a reading leaves the bookie unchanged: the request is answered EIO,
the error is logged with its traceback, and everything else continues. Requests that change state are run by
`RequestStream`; an unexpected error of theirs ends the process.

A reading is answered at once as far as its entries are in memory, and the rest later, through fetch threads. The rest
is copied out of the connection's buffer, and the connection continues with its next requests, because replies need no
order. So a read that waits for the disk delays no add and no other read. Waiting readings are limited (`ReadOptions`)
and hold no entries, but for a few MiB that were fetched and wait for their turn. They keep waiting while their peer
does not take replies. If the authorization rules change in between, the rest is judged again.

A read looks entries up at one moment on the event loop, so a negative answer was true at that moment. Bytes that were
fetched from a position are not used if a compaction has moved the entry since.
"""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bkspark.options import BYTES_MAX, COUNT_MAX, bounded, check
from bkspark.security.authorization import Rules
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.layout import LAC_AT
from bkspark.wire.status import Status
from bookie_service.engine import rules
from bookie_service.engine.authorization import Authorization
from bookie_service.engine.containment import Disconnectable, refuse_after
from bookie_service.engine.responses import Parts
from bookie_service.engine.turns import Turn, Turns
from bookie_service.metrics.requests import READ_ENTRY, ROWS_MAX, RequestTimes
from bookie_service.storage.disks import FileSystemSpace
from bookie_service.storage.io.byte_source import CachedSource, Fetched, FileRange, NotCached
from bookie_service.storage.io.framed_entries import FramedEntries
from bookie_service.storage.ledgers.interface import Ledger, LedgerStorage, LookResult

logger = logging.getLogger(__name__)

ABSENT_COST = 1 / 16
"""The cost of an answer for an absent ledger, in requests."""
_LAC = struct.Struct(">q")

Fetch = Callable[[FileRange, Callable[[Fetched], None]], None]
"""Reads a range of a file, and calls back with the result on the event loop."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Limits of reads; bytes and counts.

    in_flight_max: how many requested entries may be unanswered before connections wait; 0: only `waiting_max` counts.
    waiting_max: how many entries may wait for the disk; further reads are answered ETOOMANYREQUESTS.
    batch_bytes_max: bytes of the response to a batch read. replies_bytes_max: single reads are answered in pieces of
        this size.
    queued_bytes_max: bytes that were fetched and wait for a turn of their connection. Those of one read may be more.
        Others are dropped, because the operating system most likely has them in memory now.
    """

    in_flight_max: int = bounded(0, 0, COUNT_MAX)
    waiting_max: int = bounded(80_000, 1, 1024 * COUNT_MAX)
    batch_bytes_max: int = bounded(5 * 1024 * 1024, 1, 64 * 1024 * 1024, "bytes")
    replies_bytes_max: int = bounded(1280 * 1024, 1, BYTES_MAX, "bytes")
    queued_bytes_max: int = bounded(8 * 1024 * 1024, 0, BYTES_MAX, "bytes")

    def __post_init__(self) -> None:
        check(self)


class ReadClient(Disconnectable, Hashable, Protocol):
    """The part of a connection that readings use."""

    @property
    def connection(self) -> Hashable:
        """The connection itself, where this is something around it."""

    @property
    def is_open(self) -> bool:
        """False once the connection is closed."""

    @property
    def is_taking(self) -> bool:
        """False while too many replies wait for the peer."""

    def send(self, parts: Parts) -> None:
        """Send the parts back to back; they need be valid only during the call. A closed connection sends nothing."""

    def when_taking(self, callback: Callable[[], None]) -> None:
        """Call back once `is_taking`, or when the connection is closed."""


class View:
    """What readings may see of a bookie. No method changes the bookie's state."""

    def __init__(self, store: LedgerStorage, space: Callable[[], FileSystemSpace], options: ReadOptions) -> None:
        """`space()` returns the total space of the ledger directories."""
        self.options = options
        self.ledger = store.ledger
        """Returns a ledger, or None if this bookie certainly never had it; raises StorageDamaged, OSError."""
        self.absent = store.absent
        """Returns which of some ledgers this bookie certainly never had; of the others only `ledger` can decide."""
        self.waiting_entries = store.waiting_entries
        """Returns the entries of a ledger that are not in the index yet."""
        self.index_view = store.index.view
        """Opens a view of the index for another thread, which must close it."""
        self.space = space
        self.hits = self.misses = self.entries_read = self.bytes_read = 0
        """Since the start: how often readings looked for entries and needed no disk, how often an entry was not in
        memory, how many entries they found, and the bytes of those (with the length word of each entry). Changed by
        `read` and `read_each`."""
        self._read = store.read
        self._read_each = store.read_each
        self._in_limbo = store.limbo.__contains__
        """Returns whether entries of a ledger may be lost here, so that "no such entry" is not certain."""
        self._source = CachedSource(options.batch_bytes_max + options.replies_bytes_max)

    def read(
        self, ledger: Ledger | None, first_entry: int, count_max: int, bytes_max: int, fetched: Fetched | None
    ) -> list[FramedEntries]:
        """Return entries as `LedgerStorage.read` does, lent, without waiting for the disk.

        Raises:
            NotCached: the first entry is neither in memory nor in `fetched`.
        """
        if ledger is None or first_entry <= NO_ENTRY:
            return []
        self._source.begin(fetched)
        try:
            found = self._read(ledger, first_entry, count_max, bytes_max, self._source)
        except NotCached:
            self.misses += 1
            raise
        # What was fetched has counted as a miss.
        self.hits += not self._source.has_used_fetched
        for entries in found:
            self.entries_read += len(entries.sizes)
            self.bytes_read += len(entries.buffer)
        return found

    def read_each(
        self,
        ledgers: Sequence[Ledger],
        ends: Sequence[int],
        entry_ids: np.ndarray,
        bytes_max: int,
        fetched: Fetched | None,
    ) -> LookResult:
        """Return entries as `LedgerStorage.read_each` does, lent, without waiting for the disk.

        Raises:
            NotCached: no entry is in memory or in `fetched`.
        """
        self._source.begin(fetched)
        try:
            found = self._read_each(ledgers, ends, entry_ids, bytes_max, self._source)
        except NotCached:
            self.misses += 1
            raise
        self.hits += not self._source.has_used_fetched
        for _, entries in found.pieces:
            self.entries_read += len(entries)
            self.bytes_read += int(entries.sizes.sum()) + LENGTH_BYTES * len(entries)
        return found

    def known_lac(self, ledger: Ledger, fetched: Fetched | None = None) -> int:
        """Return the highest LAC that the explicit LAC, or an entry that can be read, names; remember it in the ledger.

        Raises:
            NotCached: the last entry is not in memory.
        """
        if ledger.lac_entry != ledger.last_entry:
            try:
                self._source.begin(fetched)
                is_stored = ledger.last_entry > NO_ENTRY
                pieces = self._read(ledger, ledger.last_entry, 1, 0, self._source) if is_stored else []
            except (StorageDamaged, OSError):
                # A read of this entry is answered EIO; other reads get a lower LAC. It is remembered, so that no read
                # tries again: with an empty page cache, a read would fetch this entry and its own in alternation.
                ledger.note_lac(NO_ENTRY)
                return ledger.known_lac
            if pieces:
                entry = memoryview(pieces[0].buffer)[LENGTH_BYTES:]
                has_lac = len(entry) >= LAC_AT + _LAC.size
                ledger.note_lac(_LAC.unpack_from(entry, LAC_AT)[0] if has_lac else NO_ENTRY)
        return ledger.known_lac

    def lac_at_hand(self, ledger_id: int) -> int:
        """Return the LAC of a ledger as known in memory, without reading the disk; NO_ENTRY if none is known."""
        ledger = self.ledger(ledger_id)
        if ledger is None:
            return NO_ENTRY
        try:
            self.known_lac(ledger)
        except NotCached:
            # The ledger is looked up when a client asks for it.
            return ledger.known_lac
        return ledger.known_lac

    def last_entry(self, ledger: Ledger) -> int:
        """Return the last entry that is held; NO_ENTRY for a ledger in limbo, which may have had a later one."""
        return NO_ENTRY if self._in_limbo(ledger.ledger_id) else ledger.last_entry

    def absence(self, ledger_id: int, ledger: Ledger | None) -> Status:
        """Return the answer to a read of an entry that is not held."""
        return rules.absence_status(is_known=ledger is not None, in_limbo=self._in_limbo(ledger_id))

    def is_in_limbo(self, ledger_id: int) -> bool:
        """Return whether this bookie may have lost entries of a ledger."""
        return self._in_limbo(ledger_id)


class Reading(ABC):
    """A request, or a run of requests, that changes nothing."""

    client: ReadClient
    operation: ClassVar[int] = -1
    """The number of the operation in `metrics.requests.OPERATIONS`; -1: its times are not recorded."""
    needed: ClassVar[int]
    """The rights that the reading needs on the ledger of each request (`bkspark.security.authorization`)."""
    received_ns: int = 0
    """When the requests were received; 0: they do not wait. Set by `Reads` when they begin to wait."""
    is_waiting: bool = False
    """Whether it is answered later: a long poll that waits for a change of its ledger, and is enqueued again then, or a
    list of entries that waits for its turn, and is answered by itself."""
    judged_by: Rules | None = None
    """The authorization rules that allow all of it but `unjudged`; None: not known."""
    unjudged: Sequence[int] = ()
    """Ledgers that must be looked up before the rules can be applied to them. It does not proceed before."""
    failures: int = 0
    """How many requests were answered with an error. Readings of READ_ENTRY do not count them: `View` counts what they
    find."""

    def ledgers(self) -> int | np.ndarray | None:
        """Return the ledger of all unanswered requests, or that of each; None: they name no ledger."""
        return None

    @abstractmethod
    def __len__(self) -> int:
        """Return how many requests are not answered yet."""

    @abstractmethod
    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        """Answer as many requests as are in memory, the peer takes, and the turn has time for.

        Returns:
            What must be fetched before the next request can be answered; None: nothing.
        """

    @abstractmethod
    def refuse(self, status: int) -> None:
        """Answer all unanswered requests with a status."""

    def refuse_next(self, status: int) -> None:
        """Answer the next request with a status."""
        self.refuse(status)

    def keep(self, count: int) -> None:
        """Reduce to the next `count` requests, copied out of the receive buffer."""
        assert count == len(self)

    def refuse_beyond(self, count: int, status: int) -> None:
        """Answer the requests after the next `count` ones with a status."""
        if not count:
            self.refuse(status)

    def arrange(self, order: np.ndarray) -> None:
        """Reorder the next requests, of which there is one."""
        assert len(order) == 1

    def review(self, ledger_ids: Iterable[int], status_of: Callable[[int], Status | None]) -> list[int]:
        """Refuse the unanswered requests for those of some ledgers whose status is not EOK.

        Returns:
            The ledgers whose status is not known. Their requests are left.
        """
        statuses = {ledger_id: status_of(ledger_id) for ledger_id in ledger_ids}
        for status in set(statuses.values()) - {Status.EOK, None}:
            assert status is not None
            refused = np.isin(np.asarray(self.ledgers()), [each for each, found in statuses.items() if found == status])
            self.arrange(np.argsort(refused, axis=None, kind="stable"))
            self.refuse_beyond(int(np.count_nonzero(~refused)), status)
        return [ledger_id for ledger_id, found in statuses.items() if found is None]


Pieces = list[bytes | memoryview]
"""Responses that are sent together."""


def answer_in_pieces(reading: Reading, turn: Turn, answer_some: Callable[[Pieces], None]) -> FileRange | None:
    """Answer requests of a reading, as `Reading.proceed` does.

    Args:
        answer_some: adds responses to its argument; raises NotCached when the next request needs the disk.
    """
    client = reading.client
    while len(reading) and client.is_taking and client.is_open and not turn.is_over:
        parts: Pieces = []
        try:
            answer_some(parts)
        except NotCached as miss:
            return miss.place
        finally:
            # The responses to requests before one that failed are sent as well.
            if parts:
                client.send(parts)
    return None


class Reads:
    """Runs all readings of one bookie. For the event loop. No method raises an error of a reading."""

    def __init__(
        self,
        view: View,
        fetch: Fetch,
        turns: Turns,
        on_room: Callable[[], None],
        times: RequestTimes | None = None,
        authorization: Authorization | None = None,
    ) -> None:
        """`on_room()` is called when readings that were refused because of `is_full` may be offered again."""
        self._authorization = authorization
        self._times = times or RequestTimes()
        self._view = view
        self._fetch = fetch
        self._turns = turns
        self._on_room = on_room
        self._waiting = 0
        """Requests whose reading waits for a fetch or for its peer."""
        self._queued_bytes = 0
        """Fetched bytes of readings that wait for a turn of their connection."""
        self._readings: Counter[ReadClient] = Counter()
        """How many readings of each client wait. A client without one has no entry."""
        self.refused = 0
        """Requests that were refused because too many waited. Only grows."""

    @property
    def waiting(self) -> int:
        """How many requests wait for the disk or for their peer."""
        return self._waiting

    def clients(self) -> Iterable[ReadClient]:
        """Return the clients whose readings wait."""
        return self._readings.keys()

    @property
    def is_full(self) -> bool:
        """True while there are too many waiting reads to accept more."""
        return 0 < self._view.options.in_flight_max <= self._waiting

    def answer(self, reading: Reading, turn: Turn) -> bool:
        """Answer a reading now, or later if it needs the disk.

        False: the turn is over, or the peer takes no replies now; offer the reading again.
        """
        place, left = self._proceed(reading, None, turn)
        must_wait = place is not None or bool(reading.unjudged)
        if must_wait:
            self._answer_later(reading, place)
        return not left or must_wait

    def enqueue(self, reading: Reading, turn: Turn | None = None) -> None:
        """Answer all of a reading, now or later."""
        turn = turn or self._turns.begin(reading.client)
        place, left = self._proceed(reading, None, turn) if reading.client.is_taking else (None, len(reading))
        if left:
            self._answer_later(reading, place)

    def refuse(self, reading: Reading, status: int) -> None:
        """Answer all of a reading with an error, without looking for anything."""
        self._note_refused(reading, len(reading))
        reading.refuse(status)

    def later(self, reading: Reading) -> None:
        """Answer all of a reading, but in a later call: for callers that are in the middle of a change."""
        self._turns.go_on(reading.client, lambda turn: self.enqueue(reading, turn))

    def _proceed(self, reading: Reading, fetched: Fetched | None, turn: Turn) -> tuple[FileRange | None, int]:
        """Let a reading proceed, and record the times; return what `proceed` returns, and how many requests are left.

        If a request fails, it is answered EIO, and the reading continues after it.
        """
        times, view, place = self._times, self._view, None
        before, found, failures, began = len(reading), view.entries_read, reading.failures, times.clock_ns()
        authorization = self._authorization
        is_over = authorization is not None and not self._is_still_allowed(reading, authorization)
        while not is_over:
            try:
                place = reading.proceed(view, fetched, turn)
                break
            except Exception as error:
                refuse_after(error, reading.client, lambda: reading.refuse_next(Status.EIO))
                turn.spend()
                if not len(reading) or not reading.client.is_open or turn.is_over:
                    break
        operation, left = reading.operation, len(reading)
        if reading.is_waiting:
            reading.received_ns = reading.received_ns or times.received_ns
        elif times.is_on and operation >= 0 and left < before:
            answered = before - left
            is_entry = operation == READ_ENTRY
            failed = max(0, answered - (view.entries_read - found)) if is_entry else reading.failures - failures
            received = reading.received_ns or times.received_ns or began
            rows = times.reads.rows
            rows += (operation, answered - failed, failed, received, began, times.clock_ns())
            if len(rows) >= ROWS_MAX:
                times.reads.fold()
        return place, left

    @staticmethod
    def _is_still_allowed(reading: Reading, authorization: Authorization) -> bool:
        """Refuse the requests that changed rules no longer allow; return whether the others may proceed."""
        rules, connection = authorization.rules, reading.client.connection
        if reading.judged_by is rules and not reading.unjudged:
            return True
        try:
            if reading.judged_by is not rules:
                ledgers = reading.ledgers()
                reading.judged_by = rules
                reading.unjudged = () if ledgers is None else np.unique(ledgers).tolist()
            reading.unjudged = reading.review(
                reading.unjudged, lambda ledger_id: authorization.known_status_of(connection, ledger_id)
            )
        except Exception as error:
            # Which requests are allowed is not known, and they may be sorted in part.
            reading.unjudged = ()
            refuse_after(error, reading.client, lambda: reading.refuse(Status.EIO))
            return False
        return len(reading) > 0 and not reading.unjudged

    def note_answered(self, reading: Reading) -> None:
        """Count the one request of a reading that was answered by itself, and not while it proceeded."""
        self._note(reading, 1 - reading.failures, reading.failures)

    def _note_refused(self, reading: Reading, count: int) -> None:
        """Count requests of a reading that are refused without a look."""
        self._note(reading, 0, count)

    def _note(self, reading: Reading, succeeded: int, failed: int) -> None:
        times = self._times
        if times.is_on and reading.operation >= 0:
            now = times.clock_ns()
            received = reading.received_ns or times.received_ns or now
            times.reads.rows += (reading.operation, succeeded, failed, received, now, now)
            if len(times.reads.rows) >= ROWS_MAX:
                times.reads.fold()

    def _answer_later(self, reading: Reading, place: FileRange | None) -> None:
        """Let as many requests wait as there is room for; refuse the others with ETOOMANYREQUESTS."""
        room = max(0, self._view.options.waiting_max - self._waiting)
        if len(reading) > room:
            self.refused += len(reading) - room
            self._note_refused(reading, len(reading) - room)
            reading.refuse_beyond(room, Status.ETOOMANYREQUESTS)
        if room:
            reading.received_ns = reading.received_ns or self._times.received_ns
            reading.keep(min(room, len(reading)))
            self._waiting += len(reading)
            self._readings[reading.client] += 1
            self._wait(reading, place)

    def _wait(self, reading: Reading, place: FileRange | None) -> None:
        """Continue when ledgers are looked up that changed rules may allow, or when `place` is fetched.

        None: in the next turn of the connection, once the peer takes replies.
        """
        client = reading.client
        if reading.unjudged and client.is_taking and client.is_open:
            # It was judged a moment ago. Where the peer takes nothing it was not, and the ledgers may be known by now.
            assert self._authorization is not None
            self._authorization.find(client.connection, reading.unjudged, lambda: self._go_on_soon(reading, None))
        elif place is not None:
            began = self._times.clock_ns()

            def on_fetched(fetched: Fetched) -> None:
                if self._times.is_on:
                    self._times.reads.note_fetch(self._times.clock_ns() - began)
                self._go_on_soon(reading, fetched)

            self._fetch(place, on_fetched)
        elif client.is_taking:
            self._turns.go_on(client, lambda turn: self._go_on(reading, None, turn))
        else:
            client.when_taking(lambda: self._go_on(reading, None, self._turns.begin(client)))

    def _go_on_soon(self, reading: Reading, fetched: Fetched | None) -> None:
        """Continue at once, or in a later turn of the connection if this turn of the event loop has taken long.

        Much may be fetched at the same time, and each answer may have megabytes. A reading waits without its fetched
        bytes if too many wait already.
        """
        client, turns = reading.client, self._turns
        if not turns.must_queue(client, is_demanding=False):
            self._go_on(reading, fetched, turns.begin(client))
            return
        size = 0 if fetched is None else len(fetched.data)
        if self._queued_bytes and self._queued_bytes + size > self._view.options.queued_bytes_max:
            fetched, size = None, 0
        self._queued_bytes += size

        def go_on(turn: Turn) -> None:
            self._queued_bytes -= size
            self._go_on(reading, fetched, turn)

        turns.go_on(client, go_on)

    def _go_on(self, reading: Reading, fetched: Fetched | None, turn: Turn) -> None:
        client, place = reading.client, None
        before = left = len(reading)
        # A peer that takes no replies gets nothing now. The fetched bytes are dropped, and fetched again later: they
        # would only occupy memory.
        if client.is_open and client.is_taking:
            place, left = self._proceed(reading, fetched, turn)
        if left and client.is_open:
            self._wait(reading, place)
            self._release(before - left)
        else:
            self._readings[client] -= 1
            if not self._readings[client]:
                del self._readings[client]
            self._release(before)

    def _release(self, count: int) -> None:
        was_full = self.is_full
        self._waiting -= count
        if was_full and not self.is_full:
            self._on_room()


def failed(error: Exception) -> Status:
    """Log why a request is answered EIO, because the peer learns only the status."""
    logger.error("%s", error)
    return Status.EIO


def ids_of(ledger_id: int, entry_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a ledger's and an entry's id as arrays of one."""
    return np.array([ledger_id]), np.array([entry_id])
