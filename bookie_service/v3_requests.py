"""V3 requests: runs of adds and of reads as arrays, the others one by one.

Every request that can be parsed is answered: one of an unknown version with EBADVERSION, one that is not served, or
lacks the message of its operation, with EBADREQ. An add whose request names other ids than its entry is refused
(EBADREQ), too: it would be acknowledged under ids that are not held. A frame that is no request ends the connection, as
Apache's bookies do.
"""

from __future__ import annotations

import logging

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3, v3_adds, v3_reads
from bkspark.wire.digest import MASTER_KEY_BYTES
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, gather_i64
from bookie_service import v3_answers
from bookie_service.adds import AddRun
from bookie_service.answers import V3Answers, txn_id_array
from bookie_service.bookie import Bookie, Client
from bookie_service.reads import SingleReads
from bookie_service.v2_requests import NO_AUTHENTICATION
from bookie_service.v3_answers import LacAnswers, answer
from bookie_service.v3_entry_list import EntryList
from bookie_service.v3_long_poll import LongPoll

logger = logging.getLogger(__name__)


class V3Runs:
    """The V3 requests of a receive buffer; see `Runs`."""

    def __init__(self, bookie: Bookie, client: Client, table: FrameTable) -> None:
        self._bookie = bookie
        self._client = client
        self._table = table
        self._row = 0

    def serve(self, octets: np.ndarray) -> bool:
        """See `Runs`."""
        while self._row < len(self._table) and self._client.is_open:
            if not self._client.is_taking:
                return False
            taken = self._serve_some(octets)
            if not taken:
                return False
            self._row += taken
        return True

    def _serve_some(self, octets: np.ndarray) -> int:
        """Hand on the next request and those that are like it; return how many were taken."""
        adds = v3_adds.decode_adds(octets, self._table, self._row)
        if adds is not None:
            return self._add(octets, adds)
        reads = v3_reads.decode_reads(octets, self._table, self._row)
        if reads is not None:
            if not self._bookie.takes_reads(self._client):
                return 0
            return self._read_run(reads)
        start, end = self._table.starts.item(self._row), self._table.ends.item(self._row)
        return int(self._serve_one(v3.decode_request(octets[start:end].tobytes())))

    def _add(self, octets: np.ndarray, adds: v3_adds.AddRequests) -> int:
        run = AddRun.of_v3(adds)
        is_right = adds.body_ends - adds.body_starts >= v2.ENTRY_BYTES_MIN
        if is_right.all():
            is_right = (gather_i64(octets, adds.body_starts) == adds.ledger_ids) & (
                gather_i64(octets, adds.body_starts + 8) == adds.entry_ids
            )
        if not is_right[0]:
            self._client.send((run.take(slice(0, 1)).replies(v2.Status.EBADREQ),))
            return 1
        return self._bookie.add(
            self._client, octets, run if is_right.all() else run.take(slice(0, int(np.argmin(is_right))))
        )

    def _read_run(self, reads: v3_reads.ReadRequests) -> int:
        is_fencing = reads.fencing_key is not None
        # What fences says nothing of the LAC: recovery has its own from the metadata and the entries.
        answers = V3Answers(reads.txn_ids, wants_lac=not is_fencing)
        run = SingleReads(self._client, answers, reads.ledger_ids, reads.entry_ids)
        if reads.fencing_key is None:
            return self._bookie.read(run)
        run.keep(len(run))
        self._bookie.fence_and_read(reads.ledger_ids.item(0), reads.fencing_key, run)
        return len(reads)

    # ---- one at a time ----

    def _serve_one(self, request: protocol.Request) -> bool:
        """Answer a request, now or later; False: it is to be offered again."""
        operation = request.header.operation
        if request.header.version != protocol.VERSION_THREE:
            self._refuse(request, v3.Status.EBADVERSION)
        elif operation == protocol.AUTH:
            self._client.send((answer(request, v3.Status.EOK, authResponse=NO_AUTHENTICATION),))
        elif not v3_answers.has_message(request):
            # START_TLS too: there is no TLS.
            self._refuse(request, v3.Status.EBADREQ)
        elif operation in (protocol.READ_ENTRY, protocol.READ_LAC):
            if not self._bookie.takes_reads(self._client):
                return False
            if operation == protocol.READ_ENTRY:
                self._read(request)
            else:
                self._read_lac(request)
        elif operation == protocol.ADD_ENTRY:
            return self._add_one(request)
        elif operation == protocol.WRITE_LAC:
            self._write_lac(request)
        elif operation == protocol.GET_BOOKIE_INFO:
            self._tell_space(request)
        elif operation == protocol.FORCE_LEDGER:
            ledger_id = request.forceLedgerRequest.ledgerId
            self._bookie.force(self._client, ledger_id, lambda status: (v3_answers.refusal(request, status),))
        elif operation == protocol.GET_LIST_OF_ENTRIES_OF_LEDGER:
            EntryList(self._bookie, self._client, request).start()
        else:
            self._refuse(request, v3.Status.EBADREQ)
        return True

    def _refuse(self, request: protocol.Request, status: v3.Status) -> None:
        self._client.send((answer(request, status),))

    def _add_one(self, request: protocol.Request) -> bool:
        """Take an add whose fields come in an order that no known peer uses."""
        add = request.addRequest
        if len(add.masterKey) != MASTER_KEY_BYTES:
            self._refuse(request, v3.Status.EUA)
            return True
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
        )
        return bool(self._add(octets, adds))

    def _read(self, request: protocol.Request) -> None:
        read = request.readRequest
        is_fencing = read.HasField("flag") and read.flag == protocol.ReadRequest.FENCE_LEDGER
        if read.HasField("previousLAC") and not is_fencing:
            LongPoll(self._bookie, self._client, request).start()
            return
        # What fences says nothing of the LAC: recovery has its own from the metadata and the entries.
        answers = V3Answers(txn_id_array(request.header.txnId), wants_lac=not is_fencing)
        reads = SingleReads(self._client, answers, np.array([read.ledgerId]), np.array([read.entryId]))
        if not is_fencing:
            self._bookie.read_later(reads)
        elif len(read.masterKey) != MASTER_KEY_BYTES:
            self._refuse(request, v3.Status.EUA)
        else:
            self._bookie.fence_and_read(read.ledgerId, read.masterKey, reads)

    def _read_lac(self, request: protocol.Request) -> None:
        ledger_id = request.readLacRequest.ledgerId
        answers = LacAnswers(request, self._bookie.explicit_lac(ledger_id))
        self._bookie.read_later(SingleReads(self._client, answers, np.array([ledger_id]), np.array([v2.LAST_ENTRY])))

    def _write_lac(self, request: protocol.Request) -> None:
        given = request.writeLacRequest
        self._bookie.write_lac(
            self._client,
            given.ledgerId,
            given.masterKey,
            given.body,
            lambda status: (v3_answers.refusal(request, status),),
        )

    def _tell_space(self, request: protocol.Request) -> None:
        flags = protocol.GetBookieInfoRequest
        asked = request.getBookieInfoRequest.requested
        try:
            space = self._bookie.ledger_space()
        except OSError as error:
            logger.error("the ledger directories cannot be asked for their space: %s", error)
            self._refuse(request, v3.Status.EIO)
            return
        found = {}
        if asked & flags.TOTAL_DISK_CAPACITY:
            found["totalDiskCapacity"] = space.total_bytes
        if asked & flags.FREE_DISK_SPACE:
            found["freeDiskSpace"] = space.free_bytes
        self._client.send((answer(request, v3.Status.EOK, found),))
