"""V2 requests: runs of one opcode go to the bookie together.

Without an authentication plugin every AUTH message is answered at once with the name that Apache's clients take as "the
bookie asks for none".
"""

from __future__ import annotations

import bisect

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.digest import MASTER_KEY_BYTES
from bkspark.wire.framing import FrameTable, gather_octets
from bookie_service.adds import AddRun
from bookie_service.answers import V2_ANSWERS
from bookie_service.bookie import Bookie, Client
from bookie_service.reads import BatchRead, SingleReads

NO_AUTHENTICATION = protocol.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")


class V2Runs:
    """The V2 requests of a receive buffer; see `Runs`."""

    def __init__(self, bookie: Bookie, client: Client, octets: np.ndarray, table: FrameTable) -> None:
        """Raises ProtocolError: one of the frames is no V2 request that is served."""
        self._bookie = bookie
        self._client = client
        self._requests = requests = v2.decode_requests(octets.data, table)
        self._row = 0
        self._ends = [len(requests)]
        if len(requests) > 1:
            breaks = np.flatnonzero(requests.opcodes[1:] != requests.opcodes[:-1]) + 1
            self._ends = [*breaks.tolist(), len(requests)]

    def serve(self, octets: np.ndarray) -> bool:
        """See `Runs`."""
        while self._row < len(self._requests) and self._client.is_open:
            if not self._client.is_taking:
                return False
            taken = self._serve_some(octets, self._ends[bisect.bisect_right(self._ends, self._row)])
            if not taken:
                return False
            self._row += taken
        return True

    def _serve_some(self, octets: np.ndarray, end: int) -> int:
        """Hand on requests of one opcode; return how many were taken."""
        requests, row = self._requests, self._row
        opcode = requests.opcodes.item(row)
        if opcode == v2.ADD:
            return self._bookie.add(self._client, octets, AddRun.of_v2(requests, row, end))
        if opcode == v2.AUTH:
            self._client.send((v2.encode_auth_reply(NO_AUTHENTICATION.SerializeToString()),))
            return 1
        if not self._bookie.takes_reads(self._client):
            return 0
        if opcode == v2.READ:
            return self._read(octets, end)
        self._batch_read(octets)
        return 1

    def _read(self, octets: np.ndarray, end: int) -> int:
        requests, row = self._requests, self._row
        fencing = (requests.flags[row:end] & v2.DO_FENCING) != 0
        is_fencing = bool(fencing[0])
        alike = self._fence_alike(octets, end) if is_fencing else ~fencing
        if not alike.all():
            end = row + int(np.argmin(alike))
        reads = SingleReads(self._client, V2_ANSWERS, requests.ledger_ids[row:end], requests.entry_ids[row:end])
        if not is_fencing:
            return self._bookie.read(reads)
        reads.keep(len(reads))
        self._bookie.fence_and_read(requests.ledger_ids.item(row), self._key(octets, v2.READ_BYTES), reads)
        return end - row

    def _fence_alike(self, octets: np.ndarray, end: int) -> np.ndarray:
        """Say which of the next reads, up to `end`, fence the same ledger with the same master key as the first."""
        requests, rows = self._requests, slice(self._row, end)
        alike = (requests.words[rows] == requests.words[self._row]) & (
            requests.ledger_ids[rows] == requests.ledger_ids[self._row]
        )
        # Only where a read fences does a key lie behind it.
        keys_at = np.where(alike, requests.starts[rows], requests.starts[self._row]) + v2.READ_BYTES
        keys = gather_octets(octets, keys_at, MASTER_KEY_BYTES)
        return np.asarray(alike & (keys == keys[0]).all(axis=1))

    def _batch_read(self, octets: np.ndarray) -> None:
        requests, row = self._requests, self._row
        ledger_id, first_entry = requests.ledger_ids.item(row), requests.entry_ids.item(row)
        limits = v2.decode_batch_read_limits(octets.data, requests.starts.item(row))
        request = BatchRead(self._client, ledger_id, first_entry, *limits)
        if requests.flags.item(row) & v2.DO_FENCING:
            self._bookie.fence_and_read(ledger_id, self._key(octets, v2.BATCH_READ_BYTES), request)
        else:
            self._bookie.read_later(request)

    def _key(self, octets: np.ndarray, offset: int) -> bytes:
        """Return the master key that lies so far behind the beginning of the next request."""
        at = self._requests.starts.item(self._row) + offset
        return octets[at : at + MASTER_KEY_BYTES].tobytes()
