"""Attacks a bookie: brings connections into a state, then sends hostile frames on them.

A frame counts as processed when the bookie answered a valid request after it, or served the frames before it and
closed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire import v2, v3
from bkspark.wire.framing import LENGTH_BYTES, scan_frames
from bkspark.wire.v3_fields import varint
from tests.fuzzing.frames import KEY, LEDGERS, Frames

BURST_FRAMES_MAX = 96
PROBE_LEDGER = 999_983
"""Probes read an entry of this ledger, which does not exist."""
ANSWER_S = 30.0
"""A probe that takes longer is a hang."""
_LARGE = 64 * 1024


class Hang(Exception):
    """The bookie neither answered nor closed."""


@dataclass
class Count:
    """What one attack did."""

    sent: int = 0
    looked_at: int = 0
    connections: int = 0
    closed_by_bookie: int = 0


class Link:
    """One connection, blocking, that counts the frames it gets."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self.answers = 0
        self.is_open = True
        self.rest = b""
        """What comes before all else: the end of a frame that was begun."""
        self._probes = 0

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send; what comes meanwhile is read, so that neither side waits for the other."""
        view = memoryview(data)
        until = time.monotonic() + ANSWER_S
        while view and self.is_open:
            readable, writable, _ = select.select([self.socket], [self.socket], [], ANSWER_S)
            if readable:
                self.receive()
            if writable:
                try:
                    view = view[self.socket.send(view[: 1 << 16]) :]
                except OSError:
                    self.is_open = False
            if time.monotonic() > until:
                raise Hang(f"{len(view)} bytes are not taken in {ANSWER_S:.0f} s")

    def send_unread(self, data: bytes, seconds: float = 2.0) -> int:
        """Send without reading anything; stop when the bookie takes no more. Return how many bytes went."""
        sent = 0
        self.socket.setblocking(False)
        until = time.monotonic() + seconds
        try:
            while sent < len(data) and time.monotonic() < until:
                if not select.select([], [self.socket], [], 0.2)[1]:
                    break
                try:
                    sent += self.socket.send(data[sent : sent + (1 << 16)])
                except BlockingIOError:
                    continue
                except OSError:
                    self.is_open = False
                    break
        finally:
            self.socket.settimeout(ANSWER_S)
        return sent

    def receive(self) -> list[bytes]:
        """Return the frames that one receipt completes; `is_open` is False at the end."""
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            raise Hang(f"nothing came in {ANSWER_S:.0f} s") from None
        except OSError:
            data = b""
        if not data:
            self.is_open = False
            return []
        self._unread += data
        table = scan_frames(self._unread, len(self._unread), 1 << 30)
        found = [self._unread[start:end] for start, end in zip(table.starts.tolist(), table.ends.tolist())]
        self._unread = self._unread[table.consumed :]
        self.answers += len(found)
        return found

    def probe(self, is_v3: bool) -> bool:
        """Request a missing entry; True when the answer came, False when the bookie closed instead."""
        self._probes += 1
        entry_id = (1 << 50) + self._probes
        if is_v3:
            self.send(_read_v3(entry_id))
            wanted = varint(entry_id)
        else:
            self.send(v2.encode_reads(PROBE_LEDGER, np.array([entry_id])))
            wanted = struct.pack(">qq", PROBE_LEDGER, entry_id)
        until = time.monotonic() + ANSWER_S
        while self.is_open:
            if any(wanted in frame for frame in self.receive()):
                return True
            if time.monotonic() > until:
                raise Hang("a valid request after hostile ones has no answer")
        return False


Prepare = Callable[[Link, Frames], bool]
"""Brings a new connection into a state; returns whether it speaks V3."""


def _fresh(link: Link, frames: Frames) -> bool:
    return frames.luck.random() < 0.5


def _v2_begun(link: Link, frames: Frames) -> bool:
    link.probe(False)
    return False


def _v3_begun(link: Link, frames: Frames) -> bool:
    link.probe(True)
    return True


def _mid_frame(link: Link, frames: Frames) -> bool:
    """Half a frame has come, and the bookie has looked at it; the other half is right, or of the right length."""
    is_v3 = frames.luck.random() < 0.5
    whole = frames.mild(is_v3)
    link.probe(is_v3)
    cut = frames.luck.randint(1, len(whole) - 1)
    link.send(whole[:cut])
    link.rest = (
        whole[cut:] if frames.luck.random() < 0.7 or cut < LENGTH_BYTES else frames.luck.randbytes(len(whole) - cut)
    )
    return is_v3


def _long_polls(link: Link, frames: Frames) -> bool:
    """Reads wait for a LAC that does not come."""
    for number in range(8):
        request = protocol.Request(header=v3.header(protocol.READ_ENTRY, (1 << 40) + number))
        read = request.readRequest
        read.ledgerId, read.entryId = frames.luck.randint(1, LEDGERS), -1
        read.previousLAC, read.timeOut = (1 << 62), frames.luck.choice((50, 1000, 60_000))
        read.flag = protocol.ReadRequest.ENTRY_PIGGYBACK
        link.send(v3.encode_message(request))
    return True


def _unread(link: Link, frames: Frames) -> bool:
    """Replies lie unread, more than the sockets hold: the bookie keeps them, and serves this connection no further."""
    reads = v2.encode_batch_read(LARGE_LEDGER, 0, 1, 0, 5 << 20) * 3
    link.send_unread(reads, seconds=0.5)
    return False


def _paused(link: Link, frames: Frames) -> bool:
    """More adds than the write cache takes at once: the connection is not read until it is flushed."""
    ledger_id = LEDGERS + 1 + frames.luck.randrange(4)
    first = frames.luck.randrange(1 << 30)
    adds = b"".join(_add(ledger_id, first + row, bytes(_LARGE)) for row in range(256))
    link.rest = adds[link.send_unread(adds, seconds=2.0) :]
    return False


def _queued(link: Link, frames: Frames) -> bool:
    """More requests came than one turn serves: the rest waits in the queue of turns."""
    is_v3 = frames.luck.random() < 0.5
    if is_v3:
        requests = [_read_v3((1 << 41) + number) for number in range(QUEUED_REQUESTS)]
    else:
        requests = [v2.encode_reads(PROBE_LEDGER, np.array([number])) for number in range(QUEUED_REQUESTS)]
    link.send(b"".join(requests))
    return is_v3


def _lists_waiting(link: Link, frames: Frames) -> bool:
    """Lists of entries are made on a thread, one after the other."""
    for number in range(LISTS):
        request = protocol.Request(header=v3.header(protocol.GET_LIST_OF_ENTRIES_OF_LEDGER, (1 << 42) + number))
        request.getListOfEntriesOfLedgerRequest.ledgerId = frames.luck.choice((LARGE_LEDGER, PROBE_LEDGER, 1))
        link.send(v3.encode_message(request))
    return True


def _syncs_waiting(link: Link, frames: Frames) -> bool:
    """Adds whose sync is deferred were answered, or will be, and syncs of them wait for the journal."""
    for number in range(8):
        add = protocol.Request(header=v3.header(protocol.ADD_ENTRY, (1 << 43) + number))
        request, entry_id = add.addRequest, frames.luck.randrange(1 << 30)
        request.ledgerId, request.entryId, request.masterKey = SYNCED_LEDGER, entry_id, KEY
        request.body = struct.pack(">qqqq", SYNCED_LEDGER, entry_id, entry_id - 1, 0)
        request.writeFlags = v3.DEFERRED_SYNC
        force = protocol.Request(header=v3.header(protocol.FORCE_LEDGER, (1 << 44) + number))
        force.forceLedgerRequest.ledgerId = SYNCED_LEDGER
        link.send(v3.encode_message(add) + v3.encode_message(force))
    return True


def _read_v3(entry_id: int) -> bytes:
    request = protocol.Request(header=v3.header(protocol.READ_ENTRY, entry_id))
    request.readRequest.ledgerId, request.readRequest.entryId = PROBE_LEDGER, entry_id
    return v3.encode_message(request)


LARGE_LEDGER, SYNCED_LEDGER = LEDGERS + 9, LEDGERS + 10
QUEUED_REQUESTS, LISTS = 3000, 64
STATES: dict[str, Prepare] = {
    "fresh": _fresh,
    "v2 begun": _v2_begun,
    "v3 begun": _v3_begun,
    "mid-frame": _mid_frame,
    "long polls waiting": _long_polls,
    "unread replies": _unread,
    "paused": _paused,
    "queued": _queued,
    "lists waiting": _lists_waiting,
    "syncs waiting": _syncs_waiting,
    "half-closed": _fresh,
}


LASTING = ("v2 begun", "v3 begun", "long polls waiting", "syncs waiting")
"""The other states are over after one burst."""


def _add(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """Return an ADD frame whose entry has no digest: the bookie does not look at it."""
    head = v2.header_word(v2.ADD).to_bytes(4, "big") + KEY
    body = head + struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0) + payload
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def fill(port: int) -> None:
    """Give the ledgers that are attacked a few entries, and one ledger large ones."""
    link = Link(port)
    frames = Frames(0)
    for ledger_id in range(1, LEDGERS + 1):
        for entry_id in range(5):
            link.send(_add(ledger_id, entry_id, frames.luck.randbytes(60)))
    for entry_id in range(200):
        link.send(_add(LARGE_LEDGER, entry_id, bytes(_LARGE)))
    assert link.probe(False)
    link.close()


def attack(port: int, state: str, frames_wanted: int, seed: int, until: float = float("inf")) -> Count:
    """Send hostile frames on connections in one state, until this many were processed.

    Raises:
        Hang: the bookie neither answered nor closed.
    """
    frames, count = Frames(seed), Count()
    while count.looked_at < frames_wanted and time.monotonic() < until:
        link = Link(port)
        count.connections += 1
        try:
            _attack_once(link, state, frames, count)
        finally:
            link.close()
    return count


def _attack_once(link: Link, state: str, frames: Frames, count: Count) -> None:
    """Send bursts on one connection until it ends."""
    is_v3 = STATES[state](link, frames)
    bursts = frames.luck.randint(1, 12) if state in LASTING else 1
    for _ in range(bursts):
        size = frames.luck.randint(1, BURST_FRAMES_MAX)
        wild_share = frames.luck.choice((0.0, 0.0, 0.02, 0.3))
        burst = [frames.wild(is_v3) if frames.luck.random() < wild_share else frames.mild(is_v3) for _ in range(size)]
        is_misframed = frames.luck.random() < 0.03
        if is_misframed:
            burst[frames.luck.randrange(size)] = frames.misframed(is_v3)
        before = link.answers
        count.sent += size
        if state in ("unread replies", "paused"):
            data = b"".join((link.rest, *burst))
            # What a slow bookie has not taken is sent later: a probe within a frame would be part of that frame.
            link.rest = data[link.send_unread(data, seconds=0.2) :]
            if frames.luck.random() < 0.1:
                return  # with all of it unread
            link.send(link.rest)
        else:
            link.send(b"".join((link.rest, *burst)))
        if state == "half-closed" or is_misframed:
            # A probe might be taken for the rest of a frame: the bookie serves what it can, and closes.
            _finish(link)
            count.looked_at += min(size, link.answers - before + 1)
            return
        if not link.probe(is_v3):
            count.closed_by_bookie += 1
            count.looked_at += min(size, link.answers - before + 1)
            return
        count.looked_at += size


def _finish(link: Link) -> None:
    """Send no more, and read until the bookie closes."""
    with contextlib.suppress(OSError):
        link.socket.shutdown(socket.SHUT_WR)
    until = time.monotonic() + ANSWER_S
    while link.is_open:
        link.receive()
        if time.monotonic() > until:
            raise Hang("a connection that its peer has half closed stays open")
