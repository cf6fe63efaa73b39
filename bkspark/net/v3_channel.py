"""One V3 connection to one bookie.

Every request has a txnId that is unique in the process; answers are matched by it. Answers to adds are matched by
ledger and entry, as in V2: they go to the ledger's listener. Answers to adds and reads come as arrays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bkspark import tracing
from bkspark.errors import AuthenticationFailed, BookieUnavailable, DigestMismatch, ProtocolError
from bkspark.net.connection import BookieConnection
from bkspark.net.responses import BAD_DIGEST, SINGLE_READS_MAX, EntryResponses, LastEntryResponse, ReadGroup
from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v3, v3_reads
from bkspark.wire.digest import EntryDigest, OpenedEntry
from bkspark.wire.entry_lists import RUNS_MAX, EntryRuns, decode_entry_list
from bkspark.wire.flags import DO_FENCING, HIGH_PRIORITY, LAST_ENTRY
from bkspark.wire.framing import FrameTable
from bkspark.wire.status import EOK, Status
from bkspark.wire.v3_context import encode_context
from bkspark.wire.v3_fields import operation_runs


@dataclass(frozen=True, slots=True)
class LacResponse:
    """A bookie's answer about a ledger's LAC, each value with a right digest; `status` is a V2 code or BAD_DIGEST.

    `explicit_lac` and `entry`, the bookie's last entry, are None if the bookie did not send them, or sent them damaged.
    """

    status: int
    explicit_lac: int | None
    entry: OpenedEntry | None

    @property
    def lac(self) -> int | None:
        """The highest LAC that the answer proves, or None."""
        proven = [] if self.explicit_lac is None else [self.explicit_lac]
        if self.entry is not None:
            proven.append(self.entry.lac)
        return max(proven, default=None)


@dataclass(frozen=True, slots=True)
class PollResponse:
    """Answer of a long poll: the LAC that the bookie knows, and entry `previous LAC + 1` if it has it.

    `lac` is None if the bookie sent no LAC (an error, or no news); `status` is a V2 code or BAD_DIGEST.
    """

    status: int
    lac: int | None
    entry: OpenedEntry | None


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Total and free bytes of a bookie's ledger directories; None if it did not report them."""

    total_bytes: int | None
    free_bytes: int | None


class BookieV3Channel(BookieConnection):
    """A V3 connection to one bookie, and the requests in flight on it.

    Each call raises:
        BookieUnavailable: the connection was lost.
        RequestTimeout: no answer in time; it is unknown whether the request took effect.
    """

    # Each entry has its own frame: the more frames are received at once, the less each of them costs.
    RECEIVE_BYTES = 1280 * 1024

    def __init__(self, bookie: str, frame_bytes_max: int, read_timeout_s: float, txn_ids: v3.TxnIds) -> None:
        super().__init__(bookie, frame_bytes_max, read_timeout_s)
        self._txn_ids = txn_ids
        self._groups: dict[int, ReadGroup] = {}
        """Reads that were sent together and are in flight, by the first id."""
        self._asked: dict[int, asyncio.Future[protocol.Response]] = {}
        """Other requests in flight, by id."""

    # ---- entries ----

    async def read_entries(
        self,
        ledger_id: int,
        entry_ids: np.ndarray,
        digest: EntryDigest,
        flags: int = 0,
        master_key: bytes | None = None,
    ) -> EntryResponses:
        """Read single entries, ascending ids, at most SINGLE_READS_MAX, all in flight at once. `flags` are V2's."""
        assert len(entry_ids) <= SINGLE_READS_MAX
        first_txn_id = self._txn_ids.reserve(len(entry_ids))
        group = ReadGroup(ledger_id, entry_ids, digest, self._loop.create_future())
        self._groups[first_txn_id] = group
        try:
            place = tracing.carried() if tracing.tracer is not None else ""
            context = encode_context(tracing.TRACEPARENT, place) if place else b""
            options = _read_options(flags, master_key)
            self._send(v3_reads.encode_reads(ledger_id, entry_ids, first_txn_id, *options, context))
            return await self._answered_all(group, f"{len(entry_ids)} reads of ledger {ledger_id}")
        finally:
            del self._groups[first_txn_id]

    async def read_last_entry(
        self, ledger_id: int, digest: EntryDigest, flags: int = 0, master_key: bytes | None = None
    ) -> LastEntryResponse:
        """Read the highest entry that the bookie has of a ledger; DO_FENCING in `flags` fences the ledger first."""
        key, priority = _read_options(flags, master_key)
        read = v3_reads.read_message(ledger_id, LAST_ENTRY, key)
        answer = await self._ask(
            protocol.READ_ENTRY, f"the last entry of ledger {ledger_id}", priority=priority, readRequest=read
        )
        inner = answer.readResponse
        return LastEntryResponse.of(_status(answer, inner, "readResponse"), inner.body, ledger_id, digest)

    async def poll_entry(self, ledger_id: int, previous_lac: int, wait_s: float, digest: EntryDigest) -> PollResponse:
        """Wait until the bookie knows a LAC above `previous_lac`, at most `wait_s`; also request the entry after
        `previous_lac`.

        `BookieUnavailable` is raised as soon as the bookie disconnects, not after the wait.
        """
        read = protocol.ReadRequest(
            flag=protocol.ReadRequest.ENTRY_PIGGYBACK,
            ledgerId=ledger_id,
            entryId=LAST_ENTRY,
            previousLAC=previous_lac,
            timeOut=round(wait_s * 1000),
        )
        what = f"a long poll of ledger {ledger_id} after entry {previous_lac}"
        answer = await self._ask(protocol.READ_ENTRY, what, waits_s=wait_s, readRequest=read)
        inner = answer.readResponse
        status = _status(answer, inner, "readResponse")
        if status != EOK:
            return PollResponse(status, None, None)
        lac = inner.maxLAC if inner.HasField("maxLAC") else None
        if not inner.HasField("body"):
            return PollResponse(status, lac, None)
        try:
            return PollResponse(status, lac, digest.open_entry(inner.body, ledger_id, previous_lac + 1))
        except DigestMismatch:
            return PollResponse(BAD_DIGEST, lac, None)

    # ---- LAC ----

    async def read_lac(self, ledger_id: int, digest: EntryDigest) -> LacResponse:
        """Read the explicit LAC and the last entry that the bookie has."""
        answer = await self._ask(
            protocol.READ_LAC,
            f"the LAC of ledger {ledger_id}",
            readLacRequest=protocol.ReadLacRequest(ledgerId=ledger_id),
        )
        inner = answer.readLacResponse
        status, explicit_lac, entry = _status(answer, inner, "readLacResponse"), None, None
        try:
            # Apache's bookie answers EIO with an explicit LAC when it has no entry: the LAC counts nevertheless.
            if inner.HasField("lacBody"):
                explicit_lac = digest.open_lac(inner.lacBody, ledger_id)
                status = EOK
            if inner.lastEntryBody:
                entry = digest.open_entry(inner.lastEntryBody, ledger_id, None)
        except DigestMismatch:
            status = BAD_DIGEST
        return LacResponse(status, explicit_lac, entry)

    async def write_lac(self, ledger_id: int, lac: int, digest: EntryDigest, master_key: bytes) -> int:
        """Store an explicit LAC; return the status. EOK: it is durable on this bookie."""
        request = protocol.WriteLacRequest(
            ledgerId=ledger_id, lac=lac, masterKey=master_key, body=digest.seal_lac(ledger_id, lac)
        )
        answer = await self._ask(protocol.WRITE_LAC, f"writing the LAC of ledger {ledger_id}", writeLacRequest=request)
        return _status(answer, answer.writeLacResponse, "writeLacResponse")

    # ---- other requests ----

    async def force(self, ledger_id: int, waits_s: float = 0.0) -> int:
        """Make every add acknowledged so far durable; return the status. EOK: they are durable.

        `waits_s`: how much longer than an ordinary answer this one may take.
        """
        request = protocol.ForceLedgerRequest(ledgerId=ledger_id)
        what = f"forcing ledger {ledger_id}"
        answer = await self._ask(protocol.FORCE_LEDGER, what, waits_s=waits_s, forceLedgerRequest=request)
        return _status(answer, answer.forceLedgerResponse, "forceLedgerResponse")

    async def disk_space(self) -> DiskSpace:
        """Return the size and the free space of the bookie's ledger directories.

        Raises:
            BookieUnavailable: also if the bookie refuses the request.
            AuthenticationFailed: the bookie does not serve this client.
        """
        wanted = protocol.GetBookieInfoRequest.TOTAL_DISK_CAPACITY | protocol.GetBookieInfoRequest.FREE_DISK_SPACE
        request = protocol.GetBookieInfoRequest(requested=wanted)
        answer = await self._ask(protocol.GET_BOOKIE_INFO, "its disk space", getBookieInfoRequest=request)
        inner = answer.getBookieInfoResponse
        status = _status(answer, inner, "getBookieInfoResponse")
        if status == Status.EUA:
            raise self._unauthenticated()
        if status != EOK:
            raise BookieUnavailable(
                f"bookie {self.bookie} does not report its disk space: status {status}", bookie=self.bookie
            )
        return DiskSpace(
            inner.totalDiskCapacity if inner.HasField("totalDiskCapacity") else None,
            inner.freeDiskSpace if inner.HasField("freeDiskSpace") else None,
        )

    async def entry_list(self, ledger_id: int, runs_max: int = RUNS_MAX) -> tuple[int, EntryRuns]:
        """Return which entries of a ledger the bookie has, and the status, a V2 code.

        Raises:
            ProtocolError: the answer is not a list of entries, or has more than `runs_max` runs.
        """
        answer = await self._ask(
            protocol.GET_LIST_OF_ENTRIES_OF_LEDGER,
            f"the list of entries of ledger {ledger_id}",
            getListOfEntriesOfLedgerRequest=protocol.GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id),
        )
        inner = answer.getListOfEntriesOfLedgerResponse
        status = _status(answer, inner, "getListOfEntriesOfLedgerResponse")
        if status != EOK:
            return status, EntryRuns.none()
        return status, decode_entry_list(inner.availabilityOfEntriesOfLedger, runs_max)

    async def _ask(
        self, operation: int, what: str, *, priority: int = 0, waits_s: float = 0.0, **message: Any
    ) -> protocol.Response:
        """Send one request; return its response."""
        txn_id = self._txn_ids.reserve(1)
        future: asyncio.Future[protocol.Response] = self._loop.create_future()
        self._asked[txn_id] = future
        try:
            request = protocol.Request(header=v3.header(operation, txn_id, priority), **message)
            if tracing.tracer is not None and (place := tracing.carried()):
                request.requestContext.add(key=tracing.TRACEPARENT, value=place)
            self._send(v3.encode_message(request))
            return await self._answered(future, what, waits_s)
        finally:
            del self._asked[txn_id]

    # ---- responses ----

    def _take_single(self) -> bool:
        return False

    def _take_frames(self, table: FrameTable) -> None:
        octets = np.frombuffer(self._buffer, np.uint8)
        row = 0
        for end in operation_runs(octets, table):
            if end - row > 1:
                self._take_run(octets, table.take(slice(end)), row)
            else:
                self._take_response(v3.decode_response(octets[table.starts[row] : table.ends[row]].tobytes()))
            row = end

    def _take_run(self, octets: np.ndarray, table: FrameTable, row: int) -> None:
        """Deliver the answers from `row` on, all of one operation."""
        while row < len(table):
            adds = v3.decode_add_responses(octets, table, row)
            if adds is not None:
                self._deliver_adds(adds.ledger_ids, adds.entry_ids, v3.statuses_of(adds.statuses), adds.last_synced)
                row += len(adds)
                continue
            reads = v3_reads.decode_read_responses(octets, table, row)
            # Single reads, as that of the last entry, have answers of the same form.
            if reads is not None and not np.isin(reads.txn_ids, list(self._asked)).any():
                self._take_reads(reads, octets.data)
                row += len(reads)
                continue
            self._take_response(v3.decode_response(octets[table.starts[row] : table.ends[row]].tobytes()))
            row += 1

    def _take_reads(self, reads: v3_reads.ReadResponses, buffer: memoryview) -> None:
        """Complete the reads of groups that these answer; for other answers no caller waits any more."""
        statuses = v3.statuses_of(reads.statuses)
        for first_txn_id, group in self._groups.items():
            at = reads.txn_ids - first_txn_id
            mine = np.flatnonzero((at >= 0) & (at < len(group.entry_ids)))
            # Duplicate answers are ignored.
            if not (np.diff(at[mine]) > 0).all():
                mine = mine[np.sort(np.unique(at[mine], return_index=True)[1])]
            mine = mine[group.waiting[at[mine]]]
            if len(mine):
                group.settle(at[mine], statuses[mine], buffer, reads.body_starts[mine], reads.body_ends[mine])

    def _take_response(self, response: protocol.Response) -> None:
        operation, txn_id = response.header.operation, response.header.txnId
        asked = self._asked.get(txn_id)
        if asked is not None:
            if not asked.done():
                asked.set_result(response)
        elif operation == protocol.READ_ENTRY:
            self._take_read(response, txn_id)
        elif operation == protocol.ADD_ENTRY:
            self._take_add(response)
        elif operation == protocol.AUTH and response.status == v3.StatusCode.EUA:
            self._lose(AuthenticationFailed(f"bookie {self.bookie} refuses this user", bookie=self.bookie))
        elif operation == protocol.START_TLS and response.status != v3.StatusCode.EOK:
            self._lose(self._refused())
        # Any other answer belongs to a request for which no caller waits any more.

    def _take_read(self, response: protocol.Response, txn_id: int) -> None:
        for first_txn_id, group in self._groups.items():
            at = txn_id - first_txn_id
            if 0 <= at < len(group.entry_ids) and group.waiting[at]:
                inner = response.readResponse
                status = _status(response, inner, "readResponse")
                body = inner.body
                ends = np.array([len(body)])
                group.settle(np.array([at]), np.array([status]), memoryview(body), ends - len(body), ends)
                return

    def _take_add(self, response: protocol.Response) -> None:
        if not response.HasField("addResponse"):
            # A bookie answers like this if it serves no requests on this connection, for example before authentication.
            if response.status == v3.StatusCode.EUA:
                self._lose(self._unauthenticated())
                return
            raise ProtocolError(f"it refuses adds on this connection: {v3.StatusCode(response.status).name}")
        inner = response.addResponse
        status = _status(response, inner, "addResponse")
        synced = np.array([inner.lastAddSynced]) if inner.HasField("lastAddSynced") else None
        self._deliver_adds(np.array([inner.ledgerId]), np.array([inner.entryId]), np.array([status]), synced)

    def _unauthenticated(self) -> AuthenticationFailed:
        why = f"bookie {self.bookie} serves only authenticated clients, or only TLS"
        return AuthenticationFailed(why, bookie=self.bookie)

    def _waiting(self) -> Iterator[asyncio.Future[Any]]:
        yield from self._asked.values()
        yield from (group.future for group in self._groups.values())


def _read_options(flags: int, master_key: bytes | None) -> tuple[bytes | None, int]:
    """Return (the key of a fencing read, priority) that V2's flags of a read stand for."""
    key = master_key if flags & DO_FENCING else None
    return key, v3.URGENT_PRIORITY if flags & HIGH_PRIORITY else 0


def _status(response: protocol.Response, inner: Any, name: str) -> int:
    """Return the status of a response as a V2 code: that of its operation's message, if there is one."""
    return v3.statuses_of(np.array([inner.status if response.HasField(name) else response.status])).item()
