"""Reads entries of a bookie on this host from the page cache of its entry logs; `bkspark.wire.local_reads` specifies
the protocol.

Most of the cost of a scan over the network is the socket's: copies, page faults and wake-ups on both sides. Here the
bookie only reports where entries are, and a thread reads the bytes once.

**The invariant.** A local read returns entries whose digests are right: a prefix of the requested ones, possibly empty.
It never returns an error, a negative or a report of damage: the caller reads missing entries over the network, and that
answer decides, as if local reads did not exist. If anything except the check of an entry fails, the bookie is read only
over the network, as long as the connection to it lasts.

**Authentication.** Every user of the host could use the socket's name, and forge entries with their digests. The client
therefore asks the kernel for the socket's user: it must be this user, root, or the user that listens at the bookie's
port.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bkspark.entries import EntryBatch
from bkspark.errors import ProtocolError
from bkspark.memory import ReusedMemory
from bkspark.net.connection import BookieConnection
from bkspark.net.responses import joined
from bkspark.tasks import start_shared
from bkspark.wire.digest import EntryDigest, OpenedEntries
from bkspark.wire.framing import LENGTH_BYTES, gather_i32
from bkspark.wire.local_reads import CREDENTIALS, ENTRIES_MAX, REPLY_BYTES_MAX, LocalRead, decode_reply, socket_name

logger = logging.getLogger(__name__)

PIECE_BYTES = 2 << 20
"""Bytes of items that are read, checked and packed at once: few enough for a processor cache, many enough to amortise a
call."""

AHEAD_BYTES = 16 << 20
"""Bytes of a file that are fetched from the disk at once when it is read for the first time."""

_TCP_SOCKETS = Path("/proc/net/tcp")
_LISTENS = "0A"

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""0 if Python or its C library lacks it: then reads wait for the disk."""

IN_PLACE_BYTES = 64 << 10
"""Entries of at least this mean size are read one by one, each to its place in a batch. Others are copied to it."""

BATCH_BYTES = 8 << 20
"""Limit of a batch of such entries; a single one may be larger. `ReusedMemory` keeps two of them."""


class LocalReads:
    """Local reads of one bookie to which a connection exists, one at a time. For one event loop, until `close`."""

    def __init__(self, channel: BookieConnection, timeout_s: float, slow_s: float) -> None:
        """`timeout_s`: for the bookie's answer. `slow_s`: if local reads take longer, the bookie is read over the
        network."""
        self.channel = channel
        """The network connection to the bookie, which also gives its address."""
        address = channel.address_on_this_host
        self._bookie = None if address is None else LocalBookie(channel.bookie, address, timeout_s)
        self._slow_s = slow_s
        self._turn = asyncio.Lock()
        """Held by the scan that uses the bookie's only local connection."""

    async def read(
        self, ledger_id: int, first_entry: int, count_max: int, bytes_max: int, digest: EntryDigest
    ) -> EntryBatch | None:
        """Return some of the entries from `first_entry` on, at least that one, or None; their items fit `bytes_max`."""
        bookie = self._bookie
        if bookie is None or bookie.is_off:
            return None

        async def in_turn() -> EntryBatch | None:
            async with self._turn:
                entries = bookie.read(ledger_id, first_entry, count_max, bytes_max, digest)
                parts = await asyncio.to_thread(list, entries)
            return joined(parts, ledger_id, first_entry) if parts else None

        # Shielded: its thread cannot be cancelled with the caller, and the next read must wait for it.
        job = start_shared(in_turn())
        try:
            async with asyncio.timeout(self._slow_s):
                return await asyncio.shield(job)
        except TimeoutError:
            bookie.turn_off(f"a local read took more than {self._slow_s:g} s")
            return None

    async def close(self) -> None:
        """End local reads; a read that waits for the bookie is interrupted."""
        if self._bookie is not None:
            self._bookie.interrupt()
            async with self._turn:
                self._bookie.close()


class LocalBookie:
    """Blocking local reads of one bookie. For one thread at a time, except `interrupt`."""

    def __init__(self, bookie: str, address: tuple[str, int], timeout_s: float) -> None:
        """`address`: where its port is reached, one of this host's. `timeout_s`: for its answer."""
        self.is_off = sys.platform != "linux"
        """Whether the bookie must be read over the network. Set once, by `turn_off` or `interrupt`."""
        self._bookie = bookie
        self._host, self._port = socket.inet_aton(address[0]), address[1]
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        """None before the first read, and after a failure or `interrupt`."""
        self._memory = ReusedMemory()

    def read(
        self, ledger_id: int, first_entry: int, count_max: int, bytes_max: int, digest: EntryDigest
    ) -> Iterator[EntryBatch]:
        """Yield some of the entries from `first_entry` on, possibly none of them; their items fit `bytes_max`."""
        if self.is_off:
            return
        count = min(count_max, ENTRIES_MAX)
        try:
            request = LocalRead(self._bookie, self._host, ledger_id, first_entry, count, bytes_max)
            found = self._ask(request)
            if found is None:
                return
            descriptor, starts = found
            try:
                yield from self._entries(descriptor, starts, request, digest)
            finally:
                os.close(descriptor)
        except (OSError, ProtocolError) as error:
            self.turn_off(error)
            self.close()

    def turn_off(self, reason: object) -> None:
        """Return no entries from now on; log the reason."""
        if not self.is_off:
            logger.info("bookie %s is read over the network from now on: %s", self._bookie, reason)
        self.is_off = True

    def interrupt(self) -> None:
        """Return no entries from now on, and end a read that waits for the bookie. May be called on any thread."""
        self.is_off = True
        waiting = self._socket
        if waiting is not None:
            with contextlib.suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Disconnect; a read connects again."""
        connected, self._socket = self._socket, None
        if connected is not None:
            connected.close()

    def _ask(self, request: LocalRead) -> tuple[int, np.ndarray] | None:
        """Return (descriptor of an entry log, positions of the items in it), or None if the bookie does not report
        them.

        The caller closes the descriptor.
        """
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(self._timeout_s)
            self._socket.connect(socket_name(self._port))
            self._check_owner(self._socket)
        self._socket.send(request.encode())
        message, descriptors, _, _ = socket.recv_fds(self._socket, REPLY_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            starts = decode_reply(message)
            if starts is None:
                return None
            is_asked_for = len(starts) <= request.entries_max and starts[-1] - starts[0] < request.bytes_max
            if not is_asked_for or not descriptors:
                raise ProtocolError(f"a local read was answered with {len(starts)} places, {len(descriptors)} files")
            return descriptors.pop(), starts
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _check_owner(self, connected: socket.socket) -> None:
        """Raise PermissionError when the socket may not be the bookie's."""
        uid = peer_uid(connected)
        if is_trusted(uid, own=os.geteuid(), of_port=None):
            return
        of_port = listener_uid(self._host, self._port)
        if not is_trusted(uid, own=os.geteuid(), of_port=of_port):
            name = socket_name(self._port)[1:].decode()
            reason = f"socket {name} belongs to user {uid}, and the bookie's port to user {of_port}"
            logger.warning("bookie %s is not read locally: %s", self._bookie, reason)
            raise PermissionError(reason)

    def _entries(
        self, descriptor: int, starts: np.ndarray, request: LocalRead, digest: EntryDigest
    ) -> Iterator[EntryBatch]:
        """Yield the leading entries that are whole and whose digests are right."""
        ledger_id, first_entry = request.ledger_id, request.first_entry
        ends = np.append(starts[1:], _end_of_item(descriptor, starts.item(-1)))
        # The bookie does not know how long the last one is.
        count = len(starts) if ends.item(-1) - starts.item(0) <= request.bytes_max else len(starts) - 1
        starts, ends = starts[:count], ends[:count]
        if count and ends.item(-1) - starts.item(0) >= count * IN_PLACE_BYTES:
            yield from self._large(descriptor, starts, ends, request, digest)
            return
        at = 0
        while at < count:
            in_piece = int(np.searchsorted(ends, starts.item(at) + PIECE_BYTES, side="right")) - at
            piece = slice(at, at + max(1, in_piece))
            opened = self._piece(descriptor, starts[piece], ends[piece], ledger_id, first_entry + at, digest)
            if len(opened):
                yield opened.to_batch(ledger_id, first_entry + at, self._memory.take)
            at += len(opened)
            if at < piece.stop:
                return

    def _large(
        self, descriptor: int, starts: np.ndarray, ends: np.ndarray, request: LocalRead, digest: EntryDigest
    ) -> Iterator[EntryBatch]:
        """As `_entries`, without a copy: the kernel writes each entry directly after the one before it."""
        places = _places_of_items(descriptor, starts, ends, LENGTH_BYTES + digest.overhead_bytes)
        front = memoryview(bytearray(LENGTH_BYTES + digest.given_from))
        first_entry = request.first_entry
        for some in _in_batches(places, len(front)):
            offsets = np.zeros(len(some) + 1, np.int64)
            np.cumsum([size - len(front) for _, size in some], out=offsets[1:])
            # Pieces of one size are used again.
            memory = self._memory.take(max(BATCH_BYTES, offsets.item(-1))).data[: offsets.item(-1)]
            bounds = offsets.tolist()
            count = 0
            for (start, _), low, high in zip(some, bounds, bounds[1:]):
                item = (front, memory[low:high])
                ids = request.ledger_id, first_entry + count
                if not read_all(descriptor, item, start) or _fault_of(item, digest, *ids) is not None:
                    break
                count += 1
            if count:
                yield EntryBatch(memory, offsets[: count + 1], request.ledger_id, first_entry)
            if count < len(some):
                return
            first_entry += count

    def _piece(
        self,
        descriptor: int,
        starts: np.ndarray,
        ends: np.ndarray,
        ledger_id: int,
        first_entry: int,
        digest: EntryDigest,
    ) -> OpenedEntries:
        """As `_entries`, for the items at [start, end) of a file, in one batch."""
        low = starts.item(0)
        items = self._memory.take(ends.item(-1) - low)
        count = len(starts) if read_all(descriptor, [items.data], low) else 0
        starts = starts[:count] - low
        lengths = gather_i32(items, starts)
        starts += LENGTH_BYTES
        stops = starts + lengths
        whole = (lengths >= 0) & (stops <= ends[:count] - low)
        if not whole.all():
            count = int(np.argmin(whole))
        ids = np.arange(first_entry, first_entry + count)
        return digest.open_entries(items.data, starts[:count], stops[:count], ledger_id, ids)


def _places_of_items(descriptor: int, starts: np.ndarray, ends: np.ndarray, bytes_min: int) -> list[tuple[int, int]]:
    """Return (start, size) of the leading items that fit between `starts` and `ends`."""
    places = []
    for start, end in zip(starts.tolist(), ends.tolist()):
        # Many entries of other ledgers may precede the next one.
        size = _end_of_item(descriptor, start) - start
        if not bytes_min <= size <= end - start:
            break
        places.append((start, size))
    return places


def _fault_of(item: tuple[memoryview, memoryview], digest: EntryDigest, ledger_id: int, entry_id: int) -> str | None:
    """Return the error of an item, or None. `item`: what is read and dropped, and what is returned as the entry."""
    front, entry = item
    in_entry = digest.overhead_bytes - digest.given_from
    envelope = entry[:in_entry] if in_entry else front[LENGTH_BYTES:]
    return digest.fault_of(envelope, entry[in_entry:], ledger_id, entry_id)


def _in_batches(places: list[tuple[int, int]], front_bytes: int) -> Iterator[list[tuple[int, int]]]:
    """Yield items in groups of at most BATCH_BYTES without their fronts, or of one item."""
    some: list[tuple[int, int]] = []
    held = 0
    for place in places:
        octets = place[1] - front_bytes
        if some and held + octets > BATCH_BYTES:
            yield some
            some, held = [], 0
        some.append(place)
        held += octets
    if some:
        yield some


def read_all(descriptor: int, memory: Sequence[memoryview], offset: int) -> bool:
    """Fill pieces of memory, one after the other, with the bytes at `offset` of a file; return False if the file ends
    before."""
    wanted = sum(map(len, memory))
    try:
        found = os.preadv(descriptor, memory, offset, _NOWAIT)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
            raise
        found = 0
    if found < wanted:
        # Not all of it is in memory, or the file system cannot tell. The following bytes are likely to be read next.
        os.posix_fadvise(descriptor, offset + found, AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        found += os.preadv(descriptor, _after(memory, found), offset + found)
    return found == wanted


def _after(memory: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return pieces of memory without the first `count` octets of all."""
    rest = []
    for piece in memory:
        rest.append(piece[count:])
        count = max(0, count - len(piece))
    return rest


def peer_uid(connected: socket.socket) -> int:
    """Return the user id of the process at the other end of a unix socket."""
    _, uid, _ = CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(uid)


def is_trusted(uid: int, *, own: int, of_port: int | None) -> bool:
    """Return whether a user's process is as trustworthy as the bookie.

    Args:
        own: the user of this process.
        of_port: the user that listens at the bookie's port, None if it is unknown.
    """
    return uid in (0, own) or uid == of_port


def listener_uid(host: bytes, port: int) -> int | None:
    """Return the user id that listens at an IPv4 address (four bytes) and port of this host; None if there is none."""
    wanted = {f"{int.from_bytes(address, sys.byteorder):08X}:{port:04X}" for address in (host, bytes(4))}
    with _TCP_SOCKETS.open() as sockets:
        for line in sockets:
            fields = line.split()
            if fields[1] in wanted and fields[3] == _LISTENS:
                return int(fields[7])
    return None


def _end_of_item(descriptor: int, start: int) -> int:
    """Return where an item ends; beyond all limits when it cannot be read."""
    word = os.pread(descriptor, LENGTH_BYTES, start)
    return start + LENGTH_BYTES + int.from_bytes(word, "big") if len(word) == LENGTH_BYTES else 1 << 62


def address_on_this_host(host: str, port: int) -> tuple[str, int] | None:
    """Return the IPv4 address of a bookie's host and port, if it is one of this host's."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the operating system returns the source address that it would use.
            probe.connect((host, port))
            return (probe.getpeername()[0], port) if probe.getpeername()[0] == probe.getsockname()[0] else None
    except (OSError, OverflowError, ValueError):
        return None
