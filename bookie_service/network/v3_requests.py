"""V3 requests: adds, reads and LAC reads as arrays, other requests one by one.

Every request that can be parsed is answered. An unknown version is answered EBADVERSION. A request that is not served,
or that lacks the message of its operation, is answered EBADREQ. An add that names other ids than its entry is, too,
because it would be acknowledged under ids that are not held. A frame that is not a request ends the connection, as at
Apache's bookies.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from functools import partial

import numpy as np

from bkspark.tracing import TRACEPARENT, CallerSpan
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_adds, v3_lacs, v3_reads
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, gather_i64
from bkspark.wire.layout import ENTRY_BYTES_MIN, ENTRY_ID_AT, MASTER_KEY_BYTES
from bkspark.wire.status import Status
from bkspark.wire.v3_fields import operation_runs
from bkspark.wire.v3_single_add import decode_single_add
from bkspark.wire.v3_single_read import SINGLE_READ_BYTES_MAX, decode_single_read
from bookie_service.engine.authorization import ConnectionRights
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.reads import ids_of
from bookie_service.engine.responses import Parts
from bookie_service.engine.single_reads import SingleReads
from bookie_service.network import v3_responses
from bookie_service.network.add_decoders import v3_add_batch
from bookie_service.network.changes import Adds, ConnectionChange, FencingRead, LedgerChange
from bookie_service.network.known_responses import KnownResponse, SpaceRead
from bookie_service.network.request_spans import (
    AddSpans,
    TracedReads,
    caller_of,
    caller_of_message,
    traced_answer,
)
from bookie_service.network.request_stream import FEW, RequestStream, Step
from bookie_service.network.response_encoders import V3Responses, V3SingleRead, txn_id_array
from bookie_service.network.v2_requests import NO_AUTHENTICATION
from bookie_service.network.v3_entry_list import EntryList
from bookie_service.network.v3_lac_reads import LacReads
from bookie_service.network.v3_long_poll import LongPollRead
from bookie_service.network.v3_responses import response

_OPERATION_AT = 5
"""Where the operation of a request is, if its header has the usual form."""


class V3RequestStream(RequestStream):
    """The V3 requests of a receive buffer; see `RequestStream`."""

    def __init__(
        self,
        bookie: Bookie,
        client: BookieClient,
        table: FrameTable,
        start_tls: Callable[[bytes, int], None] | None = None,
        rights: ConnectionRights | None = None,
    ) -> None:
        """`start_tls(answer, end)` begins TLS after a request that ends at `end`; None: TLS cannot begin."""
        super().__init__(bookie, client, len(table), rights)
        self._table = table
        self._start_tls = start_tls
        self._add_spans: AddSpans | None = None
        """Created with the first adds that have spans; None: there were none."""
        self._ends: list[int] = []
        """Where runs of requests with the same operation end. Empty: not known yet."""

    def _next(self, octets: np.ndarray) -> tuple[Step, int]:
        end = self._run_end(octets)
        if end - self._row <= FEW:
            step = self._next_single(octets, end)
            if step is not None:
                return step, 1
        table = self._table.take(slice(end))
        adds = v3_adds.decode_adds(octets, table, self._row)
        if adds is not None:
            return self._add(octets, adds)
        reads = v3_reads.decode_reads(octets, table, self._row)
        if reads is not None:
            return self._read_run(reads)
        lacs = v3_lacs.decode_lac_reads(octets, table, self._row)
        if lacs is not None:
            return LacReads(self._client, lacs.txn_ids, lacs.ledger_ids), len(lacs)
        start, end = self._table.starts.item(self._row), self._table.ends.item(self._row)
        return self._single(v3.decode_request(octets[start:end].tobytes())), 1

    def _run_end(self, octets: np.ndarray) -> int:
        """Return the end of the run of requests with one operation that the next request is in.

        If adds and reads alternate, as those of a broker do, each is decoded with numbers.
        """
        if self._count - self._row <= FEW:
            return self._count
        if not self._ends:
            self._ends = operation_runs(octets, self._table)
        return self._ends[bisect.bisect_right(self._ends, self._row)]

    def _next_single(self, octets: np.ndarray, end: int) -> Step | None:
        """Return the next request as a step, if it is a single add or read in the form that known peers use.

        `end`: where the run of its operation ends.
        """
        start, stop = self._table.starts.item(self._row), self._table.ends.item(self._row)
        operation = octets.item(start + _OPERATION_AT) if stop - start > _OPERATION_AT else -1
        if operation == protocol.ADD_ENTRY:
            begin = start - LENGTH_BYTES
            add = decode_single_add(octets.data[begin:stop], stop - begin, stop - begin)
            return None if add is None else self._add_single(octets, add._replace(entry_at=begin + add.entry_at))
        # Each of these reads is answered by itself; from three on, a run costs less.
        if operation == protocol.READ_ENTRY and end - self._row <= 2 and stop - start <= SINGLE_READ_BYTES_MAX:
            read = decode_single_read(octets[start:stop].tobytes())
            if read is not None:
                answer = V3SingleRead(read.txn_id, wants_lac=read.fencing_key is None)
                reads = SingleReads(self._client, answer, *ids_of(read.ledger_id, read.entry_id))
                key = read.fencing_key
                return reads if key is None else self._fence(read.ledger_id, key, reads)
        return None

    def _add(self, octets: np.ndarray, adds: v3_adds.AddRequests) -> tuple[Step, int]:
        run, count = v3_add_batch(adds), _count_right(octets, adds)
        if not count:
            return KnownResponse(self._client, run.take(slice(0, 1)).encode_responses(Status.EBADREQ)), 1
        right = run if count == len(run) else run.take(slice(0, count))
        caller = caller_of(adds.context) if adds.context else None
        if caller is None:
            return Adds(self._bookie, self._client, octets, right), len(right)
        spans = self._add_spans = self._add_spans or AddSpans(self._client)
        return Adds(self._bookie, spans, octets, spans.traced(right, caller)), len(right)

    def _read_run(self, reads: v3_reads.ReadRequests) -> tuple[Step, int]:
        is_fencing = reads.fencing_key is not None
        # A read that fences does not return the LAC: recovery derives it from the metadata and the entries.
        answers = V3Responses(reads.txn_ids, wants_lac=not is_fencing)
        caller = caller_of(reads.context) if reads.context else None
        run = self._reads(answers, caller, reads.ledger_ids, reads.entry_ids)
        if reads.fencing_key is None:
            return run, len(reads)
        run.keep(len(run))
        return self._fence(reads.ledger_ids.item(0), reads.fencing_key, run), len(reads)

    def _reads(
        self, answers: V3Responses, caller: CallerSpan | None, ledger_ids: np.ndarray, entry_ids: np.ndarray
    ) -> SingleReads:
        encoder = answers if caller is None else TracedReads.of(answers, caller, ledger_ids, entry_ids)
        return SingleReads(self._client, encoder, ledger_ids, entry_ids)

    def _fence(self, ledger_id: int, key: bytes, reads: SingleReads) -> FencingRead:
        return FencingRead(self._bookie, self._client, ledger_id, key, reads)

    # ---- one at a time ----

    def _single(self, request: protocol.Request) -> Step:
        operation = request.header.operation
        if request.header.version != protocol.VERSION_THREE:
            return self._refusal(request, v3.StatusCode.EBADVERSION)
        if operation == protocol.AUTH:
            return KnownResponse(self._client, response(request, v3.StatusCode.EOK, authResponse=NO_AUTHENTICATION))
        if operation == protocol.START_TLS and self._start_tls is not None and request.HasField("startTLSRequest"):
            return self._begin_tls(request, self._start_tls)
        if not v3_responses.has_message(request):
            # These include START_TLS, if TLS cannot begin or has begun.
            return self._refusal(request, v3.StatusCode.EBADREQ)
        # Operations that have a message are in this table.
        steps: dict[int, Callable[[protocol.Request], Step]] = {
            protocol.READ_ENTRY: self._read,
            protocol.READ_LAC: self._read_lac,
            protocol.ADD_ENTRY: self._add_one,
            protocol.WRITE_LAC: self._write_lac,
            protocol.GET_BOOKIE_INFO: self._read_space,
            protocol.FORCE_LEDGER: self._force,
            protocol.GET_LIST_OF_ENTRIES_OF_LEDGER: self._list_entries,
        }
        return steps[operation](request)

    def _begin_tls(self, request: protocol.Request, start_tls: Callable[[bytes, int], None]) -> Step:
        end = self._table.ends.item(self._row)

        def begin() -> None:
            # The bytes that follow are not a request.
            self._count = self._row + 1
            start_tls(v3_responses.started_tls(request), end)

        return ConnectionChange(begin)

    def _refusal(self, request: protocol.Request, status: v3.StatusCode) -> KnownResponse:
        return KnownResponse(self._client, response(request, status))

    def _add_one(self, request: protocol.Request) -> Step:
        """Return the step of an add whose fields are in an order that no known peer uses."""
        add = request.addRequest
        if len(add.masterKey) != MASTER_KEY_BYTES:
            return self._refusal(request, v3.StatusCode.EUA)
        octets = np.frombuffer(bytearray(add.masterKey + bytes(LENGTH_BYTES) + add.body), np.uint8)
        entry_at = MASTER_KEY_BYTES + LENGTH_BYTES
        adds = v3_adds.AddRequests(
            txn_id_array(request.header.txnId),
            np.array([add.ledgerId]),
            np.array([add.entryId]),
            key_starts=np.array([0]),
            body_starts=np.array([entry_at]),
            body_ends=np.array([entry_at + len(add.body)]),
            priority=request.header.priority,
            is_recovery=add.flag == protocol.AddRequest.RECOVERY_ADD and add.HasField("flag"),
            write_flags=add.writeFlags,
            bypasses_journal=add.bypassJournal,
            context=next((pair.SerializeToString() for pair in request.requestContext if pair.key == TRACEPARENT), b""),
        )
        return self._add(octets, adds)[0]

    def _read(self, request: protocol.Request) -> Step:
        read = request.readRequest
        is_fencing = read.HasField("flag") and read.flag == protocol.ReadRequest.FENCE_LEDGER
        if read.HasField("previousLAC") and not is_fencing:
            return LongPollRead(self._bookie.long_polls, self._client, request)
        # A read that fences does not return the LAC: recovery derives it from the metadata and the entries.
        answers = V3Responses(txn_id_array(request.header.txnId), wants_lac=not is_fencing)
        caller = caller_of_message(request.requestContext)
        reads = self._reads(answers, caller, *ids_of(read.ledgerId, read.entryId))
        if not is_fencing:
            return reads
        if len(read.masterKey) != MASTER_KEY_BYTES:
            return self._refusal(request, v3.StatusCode.EUA)
        return self._fence(read.ledgerId, read.masterKey, reads)

    def _read_lac(self, request: protocol.Request) -> Step:
        ledger_ids = np.array([request.readLacRequest.ledgerId])
        return LacReads(self._client, txn_id_array(request.header.txnId), ledger_ids)

    def _read_space(self, request: protocol.Request) -> Step:
        return SpaceRead(self._client, request)

    def _list_entries(self, request: protocol.Request) -> Step:
        return EntryList(self._bookie.entry_lists, self._client, request, self._bookie.reads.note_answered)

    def _write_lac(self, request: protocol.Request) -> Step:
        given = request.writeLacRequest

        def write(encode: Callable[[Status], Parts]) -> int | None:
            return self._bookie.write_lac(self._client, given.ledgerId, given.masterKey, given.body, encode)

        return LedgerChange(self._client, given.ledgerId, write, self._answer_of(request, "write_lac", given.ledgerId))

    def _force(self, request: protocol.Request) -> Step:
        ledger_id = request.forceLedgerRequest.ledgerId

        def force(encode: Callable[[Status], Parts]) -> None:
            self._bookie.force(self._client, ledger_id, encode)

        return LedgerChange(self._client, ledger_id, force, self._answer_of(request, "force", ledger_id))

    def _answer_of(self, request: protocol.Request, what: str, ledger_id: int) -> Callable[[int], bytes]:
        answer = partial(v3_responses.refusal, request)
        return traced_answer(answer, caller_of_message(request.requestContext), what, ledger_id)


def _count_right(octets: np.ndarray, adds: v3_adds.AddRequests) -> int:
    """Return how many adds come before the first one whose entry has other ids than the request, or none."""
    has_ids = adds.body_ends - adds.body_starts >= ENTRY_BYTES_MIN
    count = len(adds) if has_ids.all() else int(np.argmin(has_ids))
    starts = adds.body_starts[:count]
    is_right = (gather_i64(octets, starts) == adds.ledger_ids[:count]) & (
        gather_i64(octets, starts + ENTRY_ID_AT) == adds.entry_ids[:count]
    )
    return count if is_right.all() else int(np.argmin(is_right))
