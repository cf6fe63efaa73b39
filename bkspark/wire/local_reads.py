"""Messages of local reads: where a bookie's entries are in its entry logs, for a client on the same host. Optional.

A running bookie may listen on a Linux socket of the abstract namespace, type SOCK_SEQPACKET, named `socket_name(port)`
after the port it serves. One message is one request, and one message answers it. All integers are big endian.

    request  0   4  i32 version, 1
             4   4  the IPv4 address at which the client reached the bookie's port
             8   8  i64 ledger id
            16   8  i64 first entry
            24   4  i32 entries, 1 to ENTRIES_MAX
            28   4  i32 bytes of items, at least 1
            32   n  the bookie's id, UTF-8

    reply    0   4  i32 version, 1
             4   4  i32 status: 0 found, 1 not here
             8   8  i64 offset of the first entry's item in a file, below 2**56  only if found
            16  4m  u32 distance of each further item from the one before it, at least 4  only if found

With a reply of status 0 comes the file, as one open descriptor. At each place there is, as in all entry logs, an item
`i32 length, entry` (`bkspark.wire.digest` describes the entry): those of `first entry` and of the m entries after it.
All begin within the requested bytes. A client that requests another bookie, or sends another message, is disconnected.

**A reply promises nothing.** "Not here" does not mean that the bookie does not have the entry, and bytes that do not
match the entry's ids and digest are not an answer either: in both cases the client reads over the network, as if local
reads did not exist.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from bkspark.errors import ProtocolError
from bkspark.wire.framing import LENGTH_BYTES

VERSION = 1
ENTRIES_MAX = 32_768
"""Most entries of one request: their positions fit into a message that every socket accepts by default."""
REQUEST_BYTES_MAX = 2048
REPLY_HEAD_BYTES = 16
REPLY_BYTES_MAX = REPLY_HEAD_BYTES + 4 * (ENTRIES_MAX - 1)

CREDENTIALS = struct.Struct("=iII")
"""The value of SO_PEERCRED: process, user, group."""
_REQUEST = struct.Struct(">i4sqqii")
_REPLY = struct.Struct(">iiq")
_FOUND, _NOT_HERE = 0, 1
_OFFSET_END = 1 << 56


def socket_name(port: int) -> bytes:
    """Return the address of the socket of the bookie that serves `port`."""
    return b"\0bkspark-bookie-%d" % port


@dataclass(frozen=True, slots=True)
class LocalRead:
    """A request; `address` has four bytes."""

    bookie: str
    """The bookie that must answer."""
    address: bytes
    ledger_id: int
    first_entry: int
    entries_max: int
    """The most entries of the answer; at most ENTRIES_MAX."""
    bytes_max: int
    """Each entry of the answer begins within this number of bytes."""

    def encode(self) -> bytes:
        head = _REQUEST.pack(VERSION, self.address, self.ledger_id, self.first_entry, self.entries_max, self.bytes_max)
        return head + self.bookie.encode()

    @classmethod
    def decode(cls, message: bytes) -> LocalRead:
        """Raises ProtocolError: it is not such a request."""
        try:
            version, address, ledger_id, first_entry, entries_max, bytes_max = _REQUEST.unpack_from(message)
            bookie = message[_REQUEST.size :].decode()
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError(f"a local read of {len(message)} bytes: {error}") from None
        if version != VERSION or min(ledger_id, first_entry) < 0 or bytes_max < 1:
            raise ProtocolError(f"a local read of version {version}, ledger {ledger_id}, entry {first_entry}")
        if not 1 <= entries_max <= ENTRIES_MAX:
            raise ProtocolError(f"a local read of {entries_max} entries")
        return cls(bookie, address, ledger_id, first_entry, entries_max, bytes_max)


NOT_HERE = _REPLY.pack(VERSION, _NOT_HERE, 0)[:8]


def encode_found(offsets: np.ndarray) -> bytes:
    """Return the reply that names ascending offsets of items, int64."""
    return _REPLY.pack(VERSION, _FOUND, offsets.item(0)) + np.diff(offsets).astype(">u4").tobytes()


def decode_reply(message: bytes) -> np.ndarray | None:
    """Return the offsets of items, int64, ascending, at least one; None: not here.

    Raises:
        ProtocolError: it is not such a reply.
    """
    if message == NOT_HERE:
        return None
    if len(message) < REPLY_HEAD_BYTES or len(message) % 4:
        raise ProtocolError(f"a reply to a local read of {len(message)} bytes")
    version, status, first = _REPLY.unpack_from(message)
    steps = np.frombuffer(message, ">u4", offset=REPLY_HEAD_BYTES)
    if version != VERSION or status != _FOUND or not 0 <= first < _OFFSET_END or (steps < LENGTH_BYTES).any():
        raise ProtocolError(f"a reply to a local read of version {version}, status {status}, offset {first}")
    offsets = np.empty(len(steps) + 1, np.int64)
    offsets[0] = first
    np.cumsum(steps, out=offsets[1:])
    offsets[1:] += first
    return offsets
