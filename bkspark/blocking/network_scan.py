"""Scans ledgers over the network in the caller's thread, without the event loop.

A Spark task that gets its batches from the loop's thread takes 50 % more processor time: two threads take turns with
the interpreter lock, and a reply of some MiB wakes the loop many times. Here the kernel wakes the thread once for each
reply, while the bookie prepares the next ones.

**The invariant.** A scan yields entries whose digests are right: a prefix of the requested ones, possibly empty. It
never reports an error or a negative: the caller reads what is missing with a `RangeReader`, which asks all replicas and
decides. After any failure a bookie is not scanned again.

Scans use V2's batch reads on separate connections, without TLS or authentication. Striped ledgers are not scanned.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping

from bkspark.core.metadata import LedgerMetadata
from bkspark.core.speeds import ReadSpeeds
from bkspark.entries import EntryBatch
from bkspark.errors import ProtocolError
from bkspark.memory import ReusedMemory
from bkspark.net.channel import BatchRequest
from bkspark.net.pool import NetOptions
from bkspark.wire import v2
from bkspark.wire.digest import EntryDigest
from bkspark.wire.framing import LENGTH_BYTES, scan_frames

logger = logging.getLogger(__name__)

REQUEST_BYTES = 2 << 20
"""Payload bytes of a request; they fit a frame unless entries are tiny."""
REQUESTS_IN_FLIGHT = 3
_TIME = struct.Struct("@ll")


class NetworkScan:
    """Reads entries of bookies over the network. For one thread, until `close`."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]], options: NetOptions) -> None:
        """`addresses`: (host, port) of bookies, by id."""
        self._addresses = addresses
        self._options = options
        self._connections: dict[str, _Connection] = {}
        """Connections by bookie id. Added by `_connected`; removed when the bookie fails."""
        self._failed: set[str] = set()
        """Bookies that failed; they are not scanned again. Only grows."""
        self._speeds = ReadSpeeds()
        """How fast bookies answered. Every connection records its answers here."""

    def read(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        first_entry: int,
        end_entry: int,
        entry_bytes: int,
        digest: EntryDigest,
    ) -> Iterator[EntryBatch]:
        """Yield the leading entries of [first_entry, end_entry), which lie in one fragment; possibly none of them.

        Args:
            entry_bytes: approximate size of an entry, at least 1.
        """
        bookie = self._chosen(ledger_id, self._usable(metadata, first_entry))
        if bookie is None:
            return
        try:
            connection = self._connected(bookie)
            while first_entry < end_entry:
                before = first_entry
                for entries in connection.read(ledger_id, first_entry, end_entry, entry_bytes, digest):
                    first_entry, entry_bytes = entries.end_entry, max(1, entries.payload_bytes // len(entries))
                    yield entries
                if first_entry == before:
                    return
        except (OSError, OverflowError, ValueError, ProtocolError) as error:
            # Not only network errors: a registration may have an invalid host or port.
            logger.info("bookie %s is not scanned from now on: %s", bookie, error)
            self._failed.add(bookie)
            self._connections.pop(bookie).close()

    def can_read(self, metadata: LedgerMetadata, entry_id: int) -> bool:
        """Return whether a bookie can be scanned for an entry, and those around it."""
        return bool(self._usable(metadata, entry_id))

    def _usable(self, metadata: LedgerMetadata, entry_id: int) -> list[str]:
        replicas = metadata.fragment_of(entry_id).bookies
        if metadata.write_quorum < len(replicas):
            return []
        return [bookie for bookie in replicas if bookie in self._addresses and bookie not in self._failed]

    def _chosen(self, ledger_id: int, usable: list[str]) -> str | None:
        """Return the bookie to scan, or None if there is none.

        All readers of a ledger prefer the same bookie, so that its page cache serves them; ledgers differ in it.
        """
        if not usable:
            return None
        first, now_s = ledger_id % len(usable), time.monotonic()
        slow = self._speeds.slow(usable, REQUEST_BYTES, now_s)
        tried = self._speeds.to_try(usable, REQUEST_BYTES, now_s)
        return tried or min([*usable[first:], *usable[:first]], key=slow.__contains__)

    def _connected(self, bookie: str) -> _Connection:
        connection = self._connections.get(bookie)
        if connection is None:
            connection = self._connections[bookie] = _Connection(bookie, self._speeds, self._options)
            connection.open(self._addresses[bookie])
        return connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class _Connection:
    """A blocking V2 connection to one bookie."""

    def __init__(self, bookie: str, speeds: ReadSpeeds, options: NetOptions) -> None:
        self._bookie = bookie
        self._speeds = speeds
        self._options = options
        self._socket: socket.socket | None = None
        """None before `open`. Set once."""
        self._buffer = bytearray(LENGTH_BYTES)
        """The frame that is being received. Replaced by a larger one when a frame does not fit."""
        self._memory = ReusedMemory()
        """Memory of the batches that `read` yields."""
        self._next_id = 0
        """The id of the last request. Only grows."""

    def open(self, address: tuple[str, int]) -> None:
        """Connect. Raises OSError."""
        options = self._options
        connected = self._socket = socket.create_connection(address, options.connect_timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's time-outs: Python's would call poll before each receive, which doubles the system calls.
        connected.settimeout(None)
        limit_s = min(options.read_timeout_s, max(options.speculative_read_s, 0.001))
        part, whole = math.modf(limit_s)
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, limit, _TIME.pack(int(whole), int(part * 1_000_000)))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def read(
        self, ledger_id: int, first_entry: int, end_entry: int, entry_bytes: int, digest: EntryDigest
    ) -> Iterator[EntryBatch]:
        """Yield the leading entries, and end after a reply with fewer than requested; later replies are dropped.

        Raises:
            OSError: the connection was lost, or nothing arrived for `speculative_read_s`, or a reply took longer than
                `read_timeout_s`.
            ProtocolError: a frame is not a reply to a batch read.
        """
        waiting: deque[tuple[int, BatchRequest, float]] = deque()
        early: dict[int, EntryBatch] = {}
        per_request = max(1, REQUEST_BYTES // max(1, entry_bytes))
        while first_entry < end_entry or waiting:
            while first_entry < end_entry and len(waiting) < REQUESTS_IN_FLIGHT:
                count = min(per_request, end_entry - first_entry)
                request = BatchRequest(ledger_id, first_entry, count, self._options.frame_bytes_max, digest)
                waiting.append((self._ask(request), request, time.monotonic()))
                first_entry += count
            request_id, request, asked_s = waiting.popleft()
            wanted = {request_id: request, **{each_id: each for each_id, each, _ in waiting}}
            while request_id not in early:
                self._receive_one(wanted, early)
            entries, now_s = early.pop(request_id), time.monotonic()
            self._speeds.on_answer(self._bookie, entries.payload_bytes, now_s - asked_s, now_s)
            if len(entries):
                yield entries
            if len(entries) < request.entries_max:
                return

    def _ask(self, request: BatchRequest) -> int:
        assert self._socket is not None
        self._next_id += 1
        self._socket.sendall(request.encode(self._next_id))
        return self._next_id

    def _receive_one(self, wanted: Mapping[int, BatchRequest], found: dict[int, EntryBatch]) -> None:
        """Receive one reply, and put its entries into `found` if it was wanted: replies may come in any order."""
        latest_s = time.monotonic() + self._options.read_timeout_s
        self._receive(memoryview(self._buffer)[:LENGTH_BYTES], latest_s)
        size, limit = int.from_bytes(self._buffer[:LENGTH_BYTES], "big"), self._options.frame_bytes_max
        if size > limit:
            raise ProtocolError(f"a frame of {size} bytes is longer than the limit of {limit}", bookie=self._bookie)
        end = LENGTH_BYTES + size
        if end > len(self._buffer):
            self._buffer = self._buffer[:LENGTH_BYTES] + bytearray(size)
        view = memoryview(self._buffer)
        self._receive(view[LENGTH_BYTES:end], latest_s)
        replies = v2.decode_replies(view, scan_frames(view, end, limit))
        if replies.opcodes.item(0) != v2.BATCH_READ:
            raise ProtocolError(f"opcode {replies.opcodes.item(0)} is not that of a batch read", bookie=self._bookie)
        request_id = replies.request_ids.item(0)
        request = wanted.get(request_id)
        if request is not None and request_id not in found:
            opened, _ = request.open(replies, 0, view)
            found[request_id] = opened.to_batch(request.ledger_id, request.first_entry, self._memory.take)

    def _receive(self, room: memoryview, latest_s: float) -> None:
        """Fill `room`. Raises TimeoutError after `latest_s` of `time.monotonic`."""
        assert self._socket is not None
        filled = 0
        while filled < len(room):
            if time.monotonic() > latest_s:
                raise TimeoutError(f"bookie {self._bookie} did not finish a reply in time")
            # The kernel fills the room, in one system call unless the time-out ends it. Not with SO_RCVLOWAT: what was
            # copied before the thread sleeps does not count for it, so the last bytes of a reply would not wake it.
            received = self._socket.recv_into(room[filled:], 0, socket.MSG_WAITALL)
            if not received:
                raise ConnectionResetError(f"bookie {self._bookie} closed the connection")
            filled += received
