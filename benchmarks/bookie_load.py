"""Peers of one bookie over one raw socket: what the server alone can do, without our client in the way.

Adds are encoded as a client encodes them, digest included; replies are all looked at. A block is what is sent at once.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.wire import v2
from bkspark.wire.digest import DigestType, EntryDigest, master_key

BLOCK_ENTRIES = 256
READ_BYTES_MAX = 1 << 20
BATCH_READS_IN_FLIGHT = 2

_KEY = master_key(b"")
_DIGEST = EntryDigest(DigestType.CRC32C, b"")
_REPLY = np.dtype([("size", ">i4"), ("word", ">i4"), ("status", ">i4"), ("ledger", ">i8"), ("entry", ">i8")])
ITEM_BYTES_MORE = 4 + 36
"""What an item of a batch read holds in addition to its payload: length, ids, LAC, ledger length and CRC32C digest."""


def connect(port: int) -> socket.socket:
    """Return a connection to a bookie of this machine."""
    peer = socket.create_connection(("127.0.0.1", port), timeout=60)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


# ---- adds ----


def encode_block(ledger_id: int, first_entry: int, payloads: list[bytes]) -> memoryview:
    """Return ADD frames of consecutive entries."""
    batch = EntryBatch.of(payloads, ledger_id, first_entry)
    return v2.encode_adds(batch, first_entry - 1, first_entry * len(payloads[0]), _DIGEST, _KEY).buffer


def encode_blocks(ledger_id: int, entries: int, entry_size: int) -> list[memoryview]:
    """Return ADD frames of entries 0 to `entries`, rounded up to whole blocks."""
    payloads = [os.urandom(entry_size)] * BLOCK_ENTRIES
    return [encode_block(ledger_id, first, payloads) for first in range(0, entries, BLOCK_ENTRIES)]


class Adder:
    """Sends blocks of adds, at most `window` entries and a block of them unacknowledged."""

    def __init__(self, peer: socket.socket, window: int) -> None:
        self._peer = peer
        self._window = window
        self._unread = bytearray()
        self.sent = 0
        self.acknowledged = 0

    def send(self, block: memoryview, entries: int) -> None:
        """Send a block of adds, once there is room in the window."""
        while self.sent - self.acknowledged > self._window:
            self._receive()
        self._peer.sendall(block)
        self.sent += entries

    def finish(self) -> None:
        """Return when everything sent is acknowledged."""
        while self.acknowledged < self.sent:
            self._receive()

    def _receive(self) -> None:
        received = self._peer.recv(1 << 18)
        if not received:
            raise ConnectionError("the bookie closed the connection")
        self._unread += received
        count = len(self._unread) // _REPLY.itemsize
        replies = np.frombuffer(bytes(self._unread[: count * _REPLY.itemsize]), _REPLY)
        if (replies["status"] != v2.Status.EOK).any():
            raise ValueError(f"the bookie answered an add with status {replies['status'].max()}")
        del self._unread[: count * _REPLY.itemsize]
        self.acknowledged += count


def add_all(peer: socket.socket, blocks: Iterable[memoryview], window: int) -> float:
    """Send whole blocks of adds; return the seconds until the last is acknowledged."""
    adder = Adder(peer, window)
    began = time.perf_counter()
    for block in blocks:
        adder.send(block, BLOCK_ENTRIES)
    adder.finish()
    return time.perf_counter() - began


def blocks_in_turn(ledger_ids: list[int], entry_size: int, turns: int | None = None) -> Iterator[memoryview]:
    """Yield a block for each ledger in turn, for a number of turns or for ever; encoded on demand."""
    payloads = [os.urandom(entry_size)] * BLOCK_ENTRIES
    turn = 0
    while turns is None or turn < turns:
        for ledger_id in ledger_ids:
            yield encode_block(ledger_id, turn * BLOCK_ENTRIES, payloads)
        turn += 1


def one_by_one(
    peer: socket.socket, ledger_id: int, first_entry: int, count: int, entry_size: int, between: Callable[[], None]
) -> list[float]:
    """Return the latencies in seconds of adds with one in flight; `between` is called after each."""
    latencies_s = []
    adder = Adder(peer, 0)
    for entry in range(first_entry, first_entry + count):
        block = encode_block(ledger_id, entry, [bytes(entry_size)])
        began = time.perf_counter()
        adder.send(block, 1)
        adder.finish()
        latencies_s.append(time.perf_counter() - began)
        between()
    return latencies_s


# ---- reads ----


def batch_read_all(peer: socket.socket, ledger_id: int, entries: int, entry_size: int) -> float:
    """Read entries 0 to `entries` with batch reads, two in flight; return the seconds.

    An answer that ends early, at the end of an entry log say, is followed by a read of the rest.
    """
    item_bytes = entry_size + ITEM_BYTES_MORE
    at_most = max(1, (READ_BYTES_MAX - v2.BATCH_REPLY_BYTES - 4) // item_bytes)
    wanted = deque((first, min(at_most, entries - first)) for first in range(0, entries, at_most))
    asked: dict[int, int] = {}
    body = memoryview(bytearray(READ_BYTES_MAX))
    head = memoryview(bytearray(4 + v2.BATCH_REPLY_BYTES))
    began = time.perf_counter()
    while wanted or asked:
        while wanted and len(asked) < BATCH_READS_IN_FLIGHT:
            first, count = wanted.popleft()
            peer.sendall(v2.encode_batch_read(ledger_id, first, first, count, READ_BYTES_MAX))
            asked[first] = count
        first, got = _receive_batch(peer, head, body, item_bytes, ledger_id)
        count = asked.pop(first)
        if got < count:
            wanted.appendleft((first + got, count - got))
    return time.perf_counter() - began


def _receive_batch(
    peer: socket.socket, head: memoryview, body: memoryview, item_bytes: int, ledger_id: int
) -> tuple[int, int]:
    """Return (first entry, how many items) of the next answer, to whichever request; it looks at first and last item.

    The request id is the first entry asked for.
    """
    _receive(peer, head)
    size, _, status = np.frombuffer(head[:12], ">i4").tolist()
    (first_entry,) = np.frombuffer(head[28:36], ">i8").tolist()
    count, rest = divmod(size - v2.BATCH_REPLY_BYTES, item_bytes)
    if status != v2.Status.EOK or rest or not count:
        raise ValueError(f"the bookie answered a batch read at {ledger_id}:{first_entry} with status {status}")
    _receive(peer, body[: count * item_bytes])
    for at in (0, count - 1):
        ids = np.frombuffer(body[at * item_bytes + 4 : at * item_bytes + 20], ">i8").tolist()
        if ids != [ledger_id, first_entry + at]:
            raise ValueError(f"the bookie answered with entry {ids} instead of {ledger_id}:{first_entry + at}")
    return first_entry, count


def read_all(peer: socket.socket, ledger_id: int, entries: int, entry_size: int, run: int = 512) -> float:
    """Read entries with single reads, `run` at a time; return the seconds."""
    reply_bytes = _REPLY.itemsize + entry_size + ITEM_BYTES_MORE - 4
    buffer = memoryview(bytearray(run * reply_bytes))
    began = time.perf_counter()
    for first in range(0, entries, run):
        entry_ids = np.arange(first, min(first + run, entries))
        peer.sendall(v2.encode_reads(ledger_id, entry_ids))
        _receive(peer, buffer[: len(entry_ids) * reply_bytes])
    return time.perf_counter() - began


def _receive(peer: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        received = peer.recv_into(view[done:])
        if not received:
            raise ConnectionError("the bookie closed the connection")
        done += received
