"""A V3 read with `previousLAC`: wait until the LAC is above that one, then answer (docs/protocol.md §2.7, long poll).

With ENTRY_PIGGYBACK the response is the LAC, with entry previousLAC + 1 if the LAC has advanced and the entry is held
here. "Nothing new" and "not here" are EOK without a body. Otherwise the response is that of a plain read of the
requested entry. Without `timeOut` the read does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bkspark.errors import StorageDamaged
from bkspark.ids import NO_ENTRY
from bkspark.security.authorization import READ
from bkspark.wall_clock import wall_clock_ms
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.flags import LAST_ENTRY
from bkspark.wire.placed_entries import PlacedEntries
from bkspark.wire.status import Status
from bookie_service.engine.long_polls import LongPolls, Poll, PollClient
from bookie_service.engine.reads import Reading, View, failed, ids_of
from bookie_service.engine.single_reads import SingleReads
from bookie_service.engine.turns import Turn
from bookie_service.metrics.requests import LONG_POLL
from bookie_service.network.known_responses import KnownResponse
from bookie_service.network.response_encoders import V3Responses, txn_id_array
from bookie_service.network.v3_responses import response
from bookie_service.storage.io.byte_source import Fetched, FileRange, NotCached


class LongPollRead(Poll):
    """One such read, from its arrival until it is answered."""

    operation = LONG_POLL
    needed = READ

    def __init__(self, polls: LongPolls, client: PollClient, request: protocol.Request) -> None:
        self.client = client
        self.ledger_id = request.readRequest.ledgerId
        self.previous_lac = request.readRequest.previousLAC
        """The LAC that the client has. The read waits until there is a higher one."""
        self._polls = polls
        self._request = request
        self._read = request.readRequest
        self._is_piggyback = self._read.flag == protocol.ReadRequest.ENTRY_PIGGYBACK and self._read.HasField("flag")
        """Whether the response also carries the entry that the request names. Constant."""
        self._lac = NO_ENTRY
        """The LAC of the response. It rises while the read waits."""
        self._advanced: int | None = None
        """The LAC that woke the read; None: it has not advanced."""
        self.is_waiting = False
        """Whether the read waits for a higher LAC. Cleared by `wake`."""
        self._is_settled = False
        """Whether waiting is over, or not needed. Set once."""
        self._is_answered = False
        """Whether the response was sent. Set once."""
        self._answering: Reading | None = None
        """The read of the entry that the response carries; None: it has not begun."""

    def __len__(self) -> int:
        return 0 if self._is_answered or self.is_waiting else 1

    def ledgers(self) -> int:
        return self.ledger_id

    def refuse(self, status: int) -> None:
        self.failures = 1
        self._is_answered = True
        self.client.send((response(self._request, v3.code_of(status)),))

    def wake(self, lac: int | None) -> None:
        self.is_waiting = False
        self._is_settled = True
        if lac is not None:
            self._lac = self._advanced = lac

    def proceed(self, view: View, fetched: Fetched | None, turn: Turn) -> FileRange | None:
        if not self._is_settled:
            try:
                self._look(view, fetched)
            except NotCached as miss:
                return miss.place
            if not len(self):
                return None
        if self._answering is None:
            self._answering = self._answer()
        place = self._answering.proceed(view, fetched, turn)
        self._is_answered = not len(self._answering)
        return place

    def _look(self, view: View, fetched: Fetched | None) -> None:
        """Check the LAC, and wait if it is not above the client's. Raises NotCached."""
        if self._is_piggyback and self._read.entryId != LAST_ENTRY:
            self.refuse(Status.EBADREQ)
            return
        try:
            ledger = view.ledger(self.ledger_id)
            if ledger is not None:
                view.known_lac(ledger, fetched)
        except (StorageDamaged, OSError) as error:
            self.refuse(failed(error))
            return
        if ledger is None:
            self.refuse(view.absence(self.ledger_id, ledger))
            return
        self._lac = ledger.known_lac
        if self._lac > self.previous_lac or self._read.timeOut <= 0:
            self._is_settled = True
        elif self._polls.wait(self, self._read.timeOut / 1000):
            self.is_waiting = True
        else:
            self.refuse(Status.ETOOMANYREQUESTS)

    def _answer(self) -> Reading:
        """Return the reading that sends the response."""
        if not self._is_piggyback:
            answers = _PlainResponses(txn_id_array(self._request.header.txnId), on_failure=self._note_failure)
            return SingleReads(self.client, answers, *ids_of(self.ledger_id, self._read.entryId))
        found = {"maxLAC": self._lac}
        if self._advanced is not None:
            found["lacUpdateTimestamp"] = wall_clock_ms()
        if self._lac > self.previous_lac:
            entry = ids_of(self.ledger_id, self.previous_lac + 1)
            answer = PiggybackResponses(self._request, found, self._note_failure)
            return SingleReads(self.client, answer, *entry)
        return KnownResponse(self.client, response(self._request, v3.StatusCode.EOK, found))

    def _note_failure(self) -> None:
        self.failures = 1


@dataclass(frozen=True, slots=True)
class _PlainResponses(V3Responses):
    """The response to a long poll that is answered as a plain read. `on_failure()` is called before an error."""

    on_failure: Callable[[], None] = field(kw_only=True)

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        self.on_failure()
        return V3Responses.not_found(self, row, status, ledger_ids, entry_ids)


class PiggybackResponses:
    """The response to a long poll whose LAC has advanced; see `ReadResponseEncoder`.

    `on_failure()` is called before an error.
    """

    wants_lac = False

    def __init__(self, request: protocol.Request, found: dict[str, int], on_failure: Callable[[], None]) -> None:
        self._request = request
        self._found = found
        """The fields of the response that do not depend on the entry, by name."""
        self._on_failure = on_failure

    def found(self, row: int, ledger_ids: np.ndarray, entries: PlacedEntries, lacs: np.ndarray | None) -> bytes:
        """Return the response with the entry."""
        start, size, entry_id = entries.starts.item(), entries.sizes.item(), entries.entry_ids.item()
        entry = bytes(entries.octets[start : start + size])
        return response(self._request, v3.StatusCode.EOK, {**self._found, "entryId": entry_id, "body": entry})

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        """Return the response without the entry: other bookies of a striped ledger may hold it."""
        if status == Status.ENOENTRY:
            return response(self._request, v3.StatusCode.EOK, self._found)
        self._on_failure()
        return response(self._request, v3.code_of(status))

    def take(self, rows: slice) -> PiggybackResponses:
        """Return itself: there is only one read."""
        return self

    def arrange(self, row: int, order: np.ndarray) -> None:
        """Do nothing: there is only one read."""
