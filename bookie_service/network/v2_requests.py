"""V2 requests: a run of requests with one opcode is one step.

A request of another version than 2 is answered EBADVERSION. Without an authentication plugin, each AUTH message is
answered at once with the name that Apache's clients take to mean that no authentication is required.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2
from bkspark.wire.flags import RECOVERY_ADD
from bkspark.wire.framing import LENGTH_BYTES, FrameTable, gather_octets
from bkspark.wire.layout import MASTER_KEY_BYTES
from bookie_service.engine.authorization import ConnectionRights
from bookie_service.engine.bookie import Bookie
from bookie_service.engine.bookie_environment import BookieClient
from bookie_service.engine.single_reads import SingleReads
from bookie_service.network.add_decoders import v2_add_batch
from bookie_service.network.changes import Adds, FencingRead, StateChange
from bookie_service.network.known_responses import KnownResponse
from bookie_service.network.request_stream import FEW, RequestStream, Step
from bookie_service.network.response_encoders import V2_RESPONSES
from bookie_service.network.v2_batch_read import BatchRead

NO_AUTHENTICATION = protocol.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")
_LOOK_FRAMES = 32
_LOOK_MORE = 8
_AUTHS_PER_STEP = 256


class V2RequestStream(RequestStream):
    """The V2 requests of a receive buffer; see `RequestStream`."""

    def __init__(
        self,
        bookie: Bookie,
        client: BookieClient,
        octets: np.ndarray,
        table: FrameTable,
        rights: ConnectionRights | None = None,
    ) -> None:
        """Raises ProtocolError if one of the frames is not a V2 request that is served."""
        self._requests = requests = v2.decode_requests(octets.data, table)
        count = len(table.starts)
        super().__init__(bookie, client, count, rights)
        self._ends = [count]
        """Where the runs of requests with one version, opcode and flags end. Constant."""
        if count > 1:
            kinds = requests.words >> 16
            breaks = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
            self._ends = [*breaks.tolist(), count]

    def _next(self, octets: np.ndarray) -> tuple[Step, int]:
        requests, row = self._requests, self._row
        end = self._ends[bisect.bisect_right(self._ends, row)]
        opcode = requests.opcodes.item(row)
        if requests.words.item(row) >> 24 != v2.VERSION:
            return KnownResponse(self._client, v2.refused_version(octets.data, requests, row)), 1
        if opcode == v2.ADD:
            step = self._next_single(octets) if end - row <= FEW else None
            if step is not None:
                return step, 1
            if self._rights is not None:
                end = row + self._count_of_one_kind(end)
            run = v2_add_batch(requests, row, end)
            return Adds(self._bookie, self._client, octets, run), len(run)
        if opcode == v2.READ:
            return self._read(octets, end)
        if opcode == v2.BATCH_READ:
            return self._batch_read(octets), 1
        count = min(end - row, _AUTHS_PER_STEP)
        answers = v2.encode_auth_reply(NO_AUTHENTICATION.SerializeToString()) * count
        return KnownResponse(self._client, answers), count

    def _count_of_one_kind(self, end: int) -> int:
        """Return how many of the next adds, up to `end`, need the same rights as the first one."""
        flags = self._requests.flags
        if not flags[self._row : end].any():
            return end - self._row
        kind = flags.item(self._row) & RECOVERY_ADD
        return _count_while(self._row, end, lambda rows: (flags[rows] & RECOVERY_ADD) == kind)

    def _next_single(self, octets: np.ndarray) -> StateChange | None:
        begin, end = self._requests.starts.item(self._row) - LENGTH_BYTES, self._requests.ends.item(self._row)
        add = v2.decode_single_add(octets.data[begin:end], end - begin, end - begin)
        return None if add is None else self._add_single(octets, add._replace(entry_at=begin + add.entry_at))

    def _read(self, octets: np.ndarray, end: int) -> tuple[Step, int]:
        requests, row = self._requests, self._row
        if requests.flags.item(row) & v2.DO_FENCING:
            count = self._count_alike(octets, end)
            fencing = self._single_reads(row + count)
            fencing.keep(count)
            ledger_id, key = requests.ledger_ids.item(row), self._key(octets, v2.READ_BYTES)
            return FencingRead(self._bookie, self._client, ledger_id, key, fencing), count
        reads = self._single_reads(row + self._count_plain(end))
        return reads, len(reads)

    def _single_reads(self, end: int) -> SingleReads:
        requests, rows = self._requests, slice(self._row, end)
        return SingleReads(self._client, V2_RESPONSES, requests.ledger_ids[rows], requests.entry_ids[rows])

    def _count_plain(self, end: int) -> int:
        """Return how many of the next reads, up to `end`, do not fence."""
        flags = self._requests.flags
        return _count_while(self._row, end, lambda rows: (flags[rows] & v2.DO_FENCING) == 0)

    def _count_alike(self, octets: np.ndarray, end: int) -> int:
        """Return how many of the next reads, up to `end`, fence the same ledger with the same master key."""
        requests, first = self._requests, self._row
        if end - first == 1 or requests.ledger_ids.item(first) != requests.ledger_ids.item(first + 1):
            # Most fences differ from the next one in their ledger: arrays would cost as much as serving the fence.
            return 1

        def alike(rows: slice) -> np.ndarray:
            same = (requests.words[rows] == requests.words[first]) & (
                requests.ledger_ids[rows] == requests.ledger_ids[first]
            )
            # A key follows only in a read that fences.
            keys_at = np.where(same, requests.starts[rows], requests.starts[first]) + v2.READ_BYTES
            key = gather_octets(octets, requests.starts[first : first + 1] + v2.READ_BYTES, MASTER_KEY_BYTES)
            keys = gather_octets(octets, keys_at, MASTER_KEY_BYTES)
            return np.asarray(same & (keys == key).all(axis=1))

        return _count_while(first, end, alike)

    def _batch_read(self, octets: np.ndarray) -> Step:
        requests, row = self._requests, self._row
        ledger_id, first_entry = requests.ledger_ids.item(row), requests.entry_ids.item(row)
        limits = v2.decode_batch_read_limits(octets.data, requests.starts.item(row))
        request = BatchRead(self._client, ledger_id, first_entry, *limits)
        if requests.flags.item(row) & v2.DO_FENCING:
            key = self._key(octets, v2.BATCH_READ_BYTES)
            return FencingRead(self._bookie, self._client, ledger_id, key, request)
        return request

    def _key(self, octets: np.ndarray, offset: int) -> bytes:
        """Return the master key at this offset after the beginning of the next request."""
        at = self._requests.starts.item(self._row) + offset
        return octets[at : at + MASTER_KEY_BYTES].tobytes()


def _count_while(first: int, end: int, holds: Callable[[slice], np.ndarray]) -> int:
    """Return for how many of the rows first, first + 1, ... a condition holds.

    The number of rows that are compared at once grows step by step. So alternating rows do not cost a comparison with
    all later rows.
    """
    at, look = first, _LOOK_FRAMES
    while at < end:
        some = holds(slice(at, min(at + look, end)))
        if not some.all():
            return at + int(np.argmin(some)) - first
        at += len(some)
        look *= _LOOK_MORE
    return end - first
