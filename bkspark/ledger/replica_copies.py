"""Copies stored entries to one bookie byte for byte, and finds which entries one bookie lacks. Repair uses both.

Entries are written as recovery adds: a fenced bookie accepts them, and a bookie that has the entry already keeps its
bytes. A caller that copies and checks at the same time reserves a connection (`BookiePool.reserve_connection`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from bkspark.core.metadata import LedgerMetadata
from bkspark.errors import BookieUnavailable, BookKeeperError, RequestTimeout, UnauthorizedAccess
from bkspark.ledger.context import ClientContext
from bkspark.ledger.listed import entry_list
from bkspark.ledger.replica_reads import ReplicaReads, read_error
from bkspark.net.channel import BookieChannel
from bkspark.net.connection import AddListener
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest
from bkspark.wire.entry_lists import EntryRuns

PIECES_IN_FLIGHT_MAX = 4
"""Pieces of one ReplicaWriter that may be unacknowledged: `send` waits until there are fewer."""

REFUSED_PAUSE_S = 0.1
"""Pause before entries are sent again that the bookie refused because of its load."""
ACK_TIMEOUT_S = 30.0
"""How long a bookie may acknowledge no entry before the writer fails."""


@dataclass(slots=True)
class _Piece:
    """Add frames in flight to one bookie."""

    ids: np.ndarray
    """The entry ids. Constant."""
    waiting: np.ndarray
    """bool array: whether entry ids[i] was sent and is not acknowledged. Replies clear items."""
    frames: bytes
    """The frames of all entries, back to back. Constant."""
    bounds: np.ndarray
    """int64 array of len(ids) + 1 positions: the frame of entry ids[i] is frames[bounds[i]:bounds[i + 1]]. Constant."""


class ReplicaWriter:
    """Copies entries of a ledger to one bookie that lacks them; at most PIECES_IN_FLIGHT_MAX pieces are in flight."""

    def __init__(self, context: ClientContext, ledger_id: int, bookie: str, connection_index: int) -> None:
        self.bookie = bookie
        self._context = context
        self._ledger_id = ledger_id
        self._connection_index = connection_index
        """Which of the pool's connections to the bookie it uses: adds of one ledger need one of their own."""
        self._channel: BookieChannel | None = None
        """The connection; None before `connect` and after `close`."""
        self._pieces: list[_Piece] = []
        """Pieces in flight, oldest first. A piece is removed when all its entries are acknowledged."""
        self._error: BookKeeperError | None = None
        """The first error; nothing is sent after it. Set once."""
        self._changed = asyncio.Event()
        """Set by every acknowledgement and error, for callers that wait in `drained`, which clears it."""
        self._resending: set[asyncio.TimerHandle] = set()
        """Timers that send refused entries again. Cancelled by `close`."""

    async def connect(self) -> None:
        """Connect; `close` undoes it. Raises BookieUnavailable."""
        channel = await self._context.pool.channel(self.bookie, self._connection_index)
        assert isinstance(channel, BookieChannel), "stored entries travel by V2"
        self._channel = channel
        self._channel.listen_adds(self._ledger_id, AddListener(self._on_replies, self._on_lost))

    def close(self) -> None:
        """Drop all requests in flight."""
        for timer in self._resending:
            timer.cancel()
        if self._channel is not None:
            self._channel.unlisten_adds(self._ledger_id)
            self._channel = None

    async def send(self, ids: np.ndarray, wanted: np.ndarray, frames: bytes, bounds: np.ndarray) -> None:
        """Send the wanted entries of a piece as soon as fewer than PIECES_IN_FLIGHT_MAX pieces are in flight.

        Args:
            ids: entry ids, int64 (n,).
            wanted: bool (n,): which of them are sent.
            frames, bounds: the add frames of all n entries, from `v2.encode_stored_adds`.

        Raises:
            BookKeeperError: the bookie refused, timed out or disconnected; nothing more can be sent.
        """
        await self.drained(PIECES_IN_FLIGHT_MAX - 1)
        piece = _Piece(ids, wanted.copy(), frames, bounds)
        self._pieces.append(piece)
        self._put(piece, wanted)

    def _put(self, piece: _Piece, chosen: np.ndarray) -> None:
        if self._channel is None:
            return
        try:
            if chosen.all():
                self._channel.send_adds(piece.frames)
                return
            view = memoryview(piece.frames)
            starts, ends = piece.bounds[:-1][chosen].tolist(), piece.bounds[1:][chosen].tolist()
            self._channel.send_adds(b"".join([view[start:end] for start, end in zip(starts, ends)]))
        except BookKeeperError as error:
            self._fail(error)

    async def drained(self, pieces_max: int) -> None:
        """Return when at most this many pieces are unacknowledged. Raises as `send`."""
        while self._error is None and len(self._pieces) > pieces_max:
            self._changed.clear()
            try:
                async with asyncio.timeout(ACK_TIMEOUT_S):
                    await self._changed.wait()
            except TimeoutError:
                message = f"bookie {self.bookie} acknowledged nothing for {ACK_TIMEOUT_S:g} s"
                self._fail(RequestTimeout(message, bookie=self.bookie))
        if self._error is not None:
            raise self._error

    def _on_replies(self, entry_ids: np.ndarray, statuses: np.ndarray, last_synced: int | None) -> None:
        good = statuses == v2.EOK
        refused = statuses == v2.Status.ETOOMANYREQUESTS
        bad = ~good & ~refused
        if bad.any():
            self._fail(self._refusal(int(statuses[bad][0]), int(entry_ids[bad][0])))
            return
        for piece in self._pieces:
            piece.waiting &= ~np.isin(piece.ids, entry_ids[good])
            again = piece.waiting & np.isin(piece.ids, entry_ids[refused])
            if again.any():
                self._put_later(piece, again)
        self._pieces = [piece for piece in self._pieces if piece.waiting.any()]
        if good.any():
            self._changed.set()

    def _put_later(self, piece: _Piece, chosen: np.ndarray) -> None:
        def put() -> None:
            self._resending.discard(timer)
            self._put(piece, chosen)

        timer = asyncio.get_running_loop().call_later(REFUSED_PAUSE_S, put)
        self._resending.add(timer)

    def _refusal(self, status: int, entry_id: int) -> BookKeeperError:
        if status == v2.Status.EUA:
            message = f"bookie {self.bookie} refuses copies of ledger {self._ledger_id}: it has another password for it"
            return UnauthorizedAccess(message, ledger_id=self._ledger_id, bookie=self.bookie)
        message = f"bookie {self.bookie} refuses ledger {self._ledger_id} entry {entry_id} with status {status}"
        return BookieUnavailable(message, ledger_id=self._ledger_id, entry_id=entry_id, bookie=self.bookie)

    def _on_lost(self, error: BookKeeperError) -> None:
        self._fail(error)

    def _fail(self, error: BookKeeperError) -> None:
        self._error = self._error or error
        self._changed.set()


class ReplicaReader:
    """Finds out which entries of a ledger a bookie has: `missing` reads them, `listed` requests the bookie's list."""

    def __init__(self, context: ClientContext, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> None:
        self._context = context
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = EntryDigest(metadata.digest, password, metadata.lac_bounds, gives_stored=True)

    async def missing(self, bookie: str, entry_ids: np.ndarray) -> np.ndarray:
        """Return those of `entry_ids` (ascending) that the bookie does not return, or returns damaged.

        Raises:
            BookieUnavailable, RequestTimeout, TooManyRequests: the bookie cannot be reached.
        """
        found = [np.empty(0, np.int64)]
        reads = ReplicaReads(self._context.pool, self._ledger_id, self._digest)
        while len(entry_ids):
            responses = await reads.some(bookie, entry_ids)
            statuses = responses.statuses
            if (statuses == v2.Status.ETOOMANYREQUESTS).any():
                raise read_error(v2.Status.ETOOMANYREQUESTS, self._ledger_id, int(entry_ids[0]), bookie)
            found.append(entry_ids[: len(statuses)][statuses != v2.EOK])
            entry_ids = entry_ids[len(statuses) :]
        return np.concatenate(found)

    async def listed(self, bookie: str) -> EntryRuns | None:
        """As `entry_list`."""
        return await entry_list(self._context.pool, bookie, self._ledger_id, self._metadata)
