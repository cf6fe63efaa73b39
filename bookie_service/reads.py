"""Answers reads: at once what needs no disk, and later, through fetching threads, what does.

A run of single reads is answered in pieces of limited size. When the next entry is not at hand, the rest of the run
leaves the connection's buffer and waits for it, and the connection goes on with what follows: replies need no order.
So a read that waits for the disk delays no add and no other read. What waits is bounded (`ReadOptions`), holds no
entries, and waits on while its peer does not take replies.

Whatever a read finds missing it looked up at one moment on the event loop, so a negative answer was true then. A place
that was fetched and is not where the entry lies any more, because a compaction moved it, is simply not used.
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bkspark.wire import v2
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.v2 import Status
from bookie_service import rules
from bookie_service.answers import ReadAnswers, v2_status
from bookie_service.formats.journal import BODY_BYTES_MAX
from bookie_service.outbox import Parts
from bookie_service.storage.byte_source import CachedSource, Fetched, NotCached, Place
from bookie_service.storage.items import Items
from bookie_service.storage.ledger_storage import Ledger, LedgerStorage

logger = logging.getLogger(__name__)


LAC_AT = 16
"""Where the LAC lies in an entry."""
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

    in_flight_max: int = 0
    waiting_max: int = 80_000
    batch_bytes_max: int = 5 * 1024 * 1024
    replies_bytes_max: int = 1280 * 1024


class ReadClient(Protocol):
    """A connection, as reads see it."""

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


@dataclass(slots=True)
class SingleReads:
    """Single reads that came together, from `row` on."""

    client: ReadClient
    answers: ReadAnswers
    ledger_ids: np.ndarray
    entry_ids: np.ndarray
    row: int = 0

    def __len__(self) -> int:
        return len(self.entry_ids) - self.row

    def keep(self, count: int) -> None:
        """Become the next `count` of them, in memory of their own: the arrays may be views of a receive buffer's."""
        rows = slice(self.row, self.row + count)
        self.ledger_ids, self.entry_ids = self.ledger_ids[rows].copy(), self.entry_ids[rows].copy()
        self.answers = self.answers.take(rows)
        self.row = 0

    def refuse(self, status: int, first_row: int = 0) -> None:
        """Answer those from `first_row` on with a status."""
        ledger_ids, entry_ids = self.ledger_ids[first_row:], self.entry_ids[first_row:]
        if len(ledger_ids):
            self.client.send((self.answers.not_found(first_row, status, ledger_ids, entry_ids),))


@dataclass(slots=True)
class BatchRead:
    """One batch read."""

    client: ReadClient
    ledger_id: int
    first_entry: int
    request_id: int
    count_max: int
    bytes_max: int
    is_answered: bool = False

    def __len__(self) -> int:
        return 0 if self.is_answered else 1

    def refuse(self, status: int) -> None:
        """Answer with a status."""
        self.is_answered = True
        self.client.send((self.head(status),))

    def head(self, status: int, items_bytes: int = 0) -> bytes:
        """Return what precedes the items of the answer."""
        return v2.encode_batch_reply_head(
            self.ledger_id, self.first_entry, self.request_id, v2_status(status), items_bytes
        )


@dataclass(slots=True)
class LacLookup:
    """The question which LAC is known of a ledger; asked on behalf of a connection."""

    client: ReadClient
    ledger_id: int
    on_refused: Callable[[int], None]
    on_lac: Callable[[int], None]
    is_answered: bool = False

    def __len__(self) -> int:
        return 0 if self.is_answered else 1

    def refuse(self, status: int) -> None:
        """Answer with a status."""
        self.is_answered = True
        self.on_refused(status)


Request = SingleReads | BatchRead | LacLookup


class Reads:
    """Answers reads of one bookie. For the event loop."""

    def __init__(self, store: LedgerStorage, fetch: Fetch, options: ReadOptions, on_room: Callable[[], None]) -> None:
        """`on_room()` is called when reads that were refused for `is_full` may be offered again."""
        self._store = store
        self._fetch = fetch
        self._options = options
        self._on_room = on_room
        self._source = CachedSource(options.batch_bytes_max + options.replies_bytes_max)
        self._waiting = 0

    @property
    def is_full(self) -> bool:
        """True while so many reads are in flight that no more are to be taken."""
        return 0 < self._options.in_flight_max <= self._waiting

    def answer(self, request: Request) -> int:
        """Answer a request, now or later; return how many of its entries are seen to, the first ones.

        Fewer than all: the peer takes no replies now, and the rest is to be offered again. None while `is_full`.
        """
        asked = len(request)
        place = self._answer(request, None)
        if place is not None:
            self._answer_later(request, place)
            return asked
        return asked - len(request)

    def promise(self, request: Request) -> None:
        """Answer all of a request, now or later."""
        place = self._answer(request, None) if request.client.is_taking else None
        if len(request):
            self._answer_later(request, place)

    def _answer_later(self, request: Request, place: Place | None) -> None:
        """Have as many entries wait as there is room for; refuse the others."""
        room = self._options.waiting_max - self._waiting
        if isinstance(request, SingleReads):
            request.refuse(Status.ETOOMANYREQUESTS, request.row + max(0, room))
            request.keep(max(0, room))
        elif room <= 0:
            request.refuse(Status.ETOOMANYREQUESTS)
        if len(request):
            self._waiting += len(request)
            self._wait(request, place)

    def _answer(self, request: Request, fetched: Fetched | None) -> Place | None:
        """Answer as much as is at hand and the peer takes; return what the next entry needs to be fetched."""
        if isinstance(request, BatchRead):
            return self._answer_batch(request, fetched)
        if isinstance(request, LacLookup):
            return self._answer_lookup(request, fetched)
        return self._answer_singles(request, fetched)

    def _wait(self, request: Request, place: Place | None) -> None:
        """Go on when a place is fetched; None: when the peer takes replies again."""
        if place is None:
            request.client.when_taking(lambda: self._go_on(request, None))
        else:
            self._fetch(place, lambda fetched: self._go_on(request, fetched))

    def _go_on(self, request: Request, fetched: Fetched | None) -> None:
        before = len(request)
        if not request.client.is_open:
            self._release(before)
            return
        place = None
        # Who takes nothing gets nothing; what was fetched is fetched again then, for it would only wait in memory.
        if request.client.is_taking:
            place = self._answer(request, fetched)
        if len(request):
            self._wait(request, place)
        self._release(before - len(request))

    def _release(self, count: int) -> None:
        was_full = self.is_full
        self._waiting -= count
        if was_full and not self.is_full:
            self._on_room()

    # ---- single reads ----

    def _answer_singles(self, request: SingleReads, fetched: Fetched | None) -> Place | None:
        place = None
        while len(request) and place is None and request.client.is_taking and request.client.is_open:
            parts: list[bytes | memoryview] = []
            room = self._options.replies_bytes_max
            ledger_ids, entry_ids = request.ledger_ids[request.row :], request.entry_ids[request.row :]
            breaks = np.flatnonzero((np.diff(ledger_ids) != 0) | (np.diff(entry_ids) != 1) | (entry_ids[:-1] < 0)) + 1
            try:
                for first, last in itertools.pairwise([0, *breaks.tolist(), len(ledger_ids)]):
                    while first < last and room > 0:
                        reply, count = self._read_run(request, last - first, room, fetched)
                        parts.append(reply)
                        room -= len(reply)
                        first += count
                        request.row += count
                    if room <= 0:
                        break
            except NotCached as miss:
                place = miss.place
            if parts:
                request.client.send(parts)
        return place

    def _read_run(
        self, request: SingleReads, count_max: int, bytes_max: int, fetched: Fetched | None
    ) -> tuple[bytes | memoryview, int]:
        """Return (answers to the next reads, whose entries follow each other, how many), at least one.

        Raises:
            NotCached: the first entry, or what the answer says beside it, is not at hand.
        """
        row = request.row
        ledger_id, first_entry = request.ledger_ids.item(row), request.entry_ids.item(row)
        next_one = slice(row, row + 1)
        try:
            ledger = self._store.ledger(ledger_id)
            stored_id = first_entry
            if ledger is not None and first_entry == v2.LAST_ENTRY:
                stored_id = self._last_entry(ledger)
            lac = self._known_lac(ledger, fetched) if ledger is not None and request.answers.wants_lac else None
            pieces = self._read_items(ledger, stored_id, count_max, bytes_max, fetched)
        except (StorageDamaged, OSError) as error:
            ids = request.ledger_ids[next_one], request.entry_ids[next_one]
            return request.answers.not_found(row, failed(error), *ids), 1
        if not pieces:
            ids = request.ledger_ids[next_one], request.entry_ids[next_one]
            return request.answers.not_found(row, self._absence(ledger_id, ledger), *ids), 1
        replies = []
        for items in pieces:
            past = items.first_entry - stored_id
            replies.append(
                request.answers.found(row + past, ledger_id, first_entry + past, items.buffer, items.sizes, lac)
            )
        return b"".join(replies) if len(replies) > 1 else replies[0], sum(map(len, pieces))

    def _known_lac(self, ledger: Ledger, fetched: Fetched | None) -> int | None:
        """Return the highest LAC that entries held and the explicit LAC name. Raises NotCached."""
        if ledger.lac_entry != ledger.last_entry:
            try:
                pieces = self._read_items(ledger, ledger.last_entry, 1, 0, fetched)
            except (StorageDamaged, OSError):
                # Whoever asks for that entry is told; others are only not told the LAC.
                return None
            if pieces:
                entry = memoryview(pieces[0].buffer)[LENGTH_BYTES:]
                ledger.note_lac(_LAC.unpack_from(entry, LAC_AT)[0] if len(entry) >= LAC_AT + _LAC.size else NO_ENTRY)
        return ledger.known_lac

    def _read_items(
        self, ledger: Ledger | None, first_entry: int, count_max: int, bytes_max: int, fetched: Fetched | None
    ) -> list[Items]:
        if ledger is None or first_entry <= NO_ENTRY:
            return []
        self._source.begin(fetched)
        return self._store.read(ledger, first_entry, count_max, bytes_max, self._source)

    def lac_at_hand(self, ledger: Ledger) -> int:
        """Return the LAC that is known of a ledger, without what only the disk tells."""
        try:
            self._known_lac(ledger, None)
        except NotCached:
            # It is looked up when somebody asks for it.
            return ledger.known_lac
        return ledger.known_lac

    def _answer_lookup(self, request: LacLookup, fetched: Fetched | None) -> Place | None:
        try:
            ledger = self._store.ledger(request.ledger_id)
            if ledger is not None:
                self._known_lac(ledger, fetched)
        except NotCached as miss:
            return miss.place
        except (StorageDamaged, OSError) as error:
            request.refuse(failed(error))
            return None
        if ledger is None:
            request.refuse(self._absence(request.ledger_id, ledger))
        else:
            request.is_answered = True
            request.on_lac(ledger.known_lac)
        return None

    # ---- batch reads ----

    def _answer_batch(self, request: BatchRead, fetched: Fetched | None) -> Place | None:
        """Answer with the first entry, then as many as the limits allow."""
        try:
            status, pieces = self._read_batch(request, fetched)
        except NotCached as miss:
            return miss.place
        request.is_answered = True
        buffers = [items.buffer for items in pieces]
        request.client.send([request.head(status, sum(map(len, buffers))), *buffers])
        return None

    def _read_batch(self, request: BatchRead, fetched: Fetched | None) -> tuple[Status, list[Items]]:
        first_entry, count_max = request.first_entry, request.count_max
        room = min(request.bytes_max, self._options.batch_bytes_max) - v2.BATCH_ACCOUNT_BYTES
        try:
            ledger = self._store.ledger(request.ledger_id)
            if ledger is not None and first_entry == v2.LAST_ENTRY:
                first_entry, count_max = self._last_entry(ledger), 1
            if count_max <= 0:
                count_max = BODY_BYTES_MAX
            pieces = self._read_items(ledger, first_entry, count_max, room, fetched)
        except (StorageDamaged, OSError) as error:
            return failed(error), []
        if pieces:
            return Status.EOK, pieces
        return self._absence(request.ledger_id, ledger), []

    # ---- what is not held ----

    def _absence(self, ledger_id: int, ledger: Ledger | None) -> Status:
        """Say that an entry is not held."""
        return rules.absence_status(is_known=ledger is not None, in_limbo=ledger_id in self._store.limbo)

    def _last_entry(self, ledger: Ledger) -> int:
        """Return the last entry held; NO_ENTRY of a ledger in limbo, which may have had a later one."""
        return NO_ENTRY if ledger.ledger_id in self._store.limbo else ledger.last_entry


def failed(error: Exception) -> Status:
    """Say why a request is answered EIO: the peer learns only that it was."""
    logger.error("%s", error)
    return Status.EIO
