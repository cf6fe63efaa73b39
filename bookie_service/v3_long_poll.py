"""A V3 read with `previousLAC`: wait until the LAC is above that one, then answer (interop §2.7, long poll).

With ENTRY_PIGGYBACK the answer is the LAC, and entry previousLAC + 1 if the LAC has advanced and the entry is held
here; "nothing new" and "not here" are EOK without a body. Otherwise the answer is that to a plain read of the entry
asked for. Without `timeOut` nothing is waited for.
"""

from __future__ import annotations

import time

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.v2 import LAST_ENTRY, Status
from bookie_service.answers import V3Answers, txn_id_array, v3_status
from bookie_service.bookie import Bookie, Client
from bookie_service.reads import LacLookup, SingleReads
from bookie_service.v3_answers import answer


class LongPoll:
    """One such read, from `start` until it is answered."""

    def __init__(self, bookie: Bookie, client: Client, request: protocol.Request) -> None:
        self._bookie = bookie
        self._client = client
        self._request = request
        self._read = request.readRequest
        self._is_piggyback = self._read.flag == protocol.ReadRequest.ENTRY_PIGGYBACK and self._read.HasField("flag")

    def start(self) -> None:
        """Answer now or later."""
        if self._is_piggyback and self._read.entryId != LAST_ENTRY:
            self._refuse(Status.EBADREQ)
        else:
            self._bookie.read_later(LacLookup(self._client, self._read.ledgerId, self._refuse, self._on_lac))

    def _refuse(self, status: int) -> None:
        self._client.send((answer(self._request, v3_status(status)),))

    def _on_lac(self, lac: int) -> None:
        read = self._read
        if lac > read.previousLAC or read.timeOut <= 0:
            self._end(lac, None)
            return
        is_taken = self._bookie.long_polls.wait(
            self._client,
            read.ledgerId,
            read.previousLAC,
            read.timeOut / 1000,
            lambda advanced: self._end(lac if advanced is None else advanced, advanced),
        )
        if not is_taken:
            self._refuse(Status.ETOOMANYREQUESTS)

    def _end(self, lac: int, advanced: int | None) -> None:
        """Answer; `advanced`: the LAC to which it was seen to grow."""
        if not self._is_piggyback:
            answers = V3Answers(txn_id_array(self._request.header.txnId))
            self._read_entry(answers, self._read.entryId)
            return
        found = {"maxLAC": lac}
        if advanced is not None:
            found["lacUpdateTimestamp"] = time.time_ns() // 1_000_000
        if lac > self._read.previousLAC:
            self._read_entry(_PiggybackAnswers(self._request, found), self._read.previousLAC + 1)
        else:
            self._client.send((answer(self._request, v3.Status.EOK, found),))

    def _read_entry(self, answers: V3Answers | _PiggybackAnswers, entry_id: int) -> None:
        ids = np.array([self._read.ledgerId]), np.array([entry_id])
        self._bookie.read_later(SingleReads(self._client, answers, *ids))


class _PiggybackAnswers:
    """The answer of a long poll whose LAC has advanced; see `ReadAnswers`."""

    wants_lac = False

    def __init__(self, request: protocol.Request, found: dict[str, int]) -> None:
        self._request = request
        self._found = found

    def found(
        self, row: int, ledger_id: int, first_entry: int, items: bytes | memoryview, sizes: np.ndarray, lac: int | None
    ) -> bytes:
        """Return the answer with the entry."""
        entry = bytes(memoryview(items)[LENGTH_BYTES : sizes.item(0)])
        return answer(self._request, v3.Status.EOK, {**self._found, "entryId": first_entry, "body": entry})

    def not_found(self, row: int, status: int, ledger_ids: np.ndarray, entry_ids: np.ndarray) -> bytes:
        """Return the answer without: of a striped ledger the entry may lie elsewhere."""
        if status == Status.ENOENTRY:
            return answer(self._request, v3.Status.EOK, self._found)
        return answer(self._request, v3_status(status))

    def take(self, rows: slice) -> _PiggybackAnswers:
        """Return itself: there is but one read."""
        return self
