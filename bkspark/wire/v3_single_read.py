"""A V3 read that is sent alone, or with few others, decoded with numbers; `v3_reads` specifies its form.

One pattern matches the whole request. Whatever it does not match, `v3_reads` or protobuf's classes decode.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.v3 import FIRST_BYTE
from bkspark.wire.v3_fields import varint
from bkspark.wire.v3_patterns import NUMBER, beginning, header_of, number

_HEADER = header_of(protocol.READ_ENTRY)
_READ = re.compile(
    beginning(_HEADER)
    + rb"\xa2\x06(.)(?:\xa0\x06\x01)?\x08"
    + NUMBER
    + rb"\x10"
    + NUMBER
    + rb"(?:\x1a\x14(.{20}))?(?:\xa0\x06\x01)?",
    re.DOTALL,
)
_FENCE = b"\xa0\x06\x01"
SINGLE_READ_BYTES_MAX = 2 + len(_HEADER) + 19 + 3 + 20 + 2 + 20 + len(_FENCE)
_LENGTH = struct.Struct(">i")


class SingleRead(NamedTuple):
    """A read of one entry. txn_id: as in the request; fencing_key: the master key of one that fences."""

    txn_id: bytes
    ledger_id: int
    entry_id: int
    fencing_key: bytes | None

    def __repr__(self) -> str:
        return f"SingleRead(ledger_id={self.ledger_id}, entry_id={self.entry_id})"


def decode_single_read(frame: bytes) -> SingleRead | None:
    """Return the read that a frame, without its length, is; None: it is anything else, or waits for the LAC."""
    found = _READ.fullmatch(frame)
    if found is None:
        return None
    header_bytes, txn_id, priority, read_bytes, ledger, entry, key = found.groups()
    header_end = found.end(3) if priority is not None else found.end(2)
    fences = frame.startswith(_FENCE, found.end(4)), found.end(7) < len(frame) and key is not None
    if (
        header_bytes[0] != header_end - 2
        or read_bytes[0] != len(frame) - found.end(4)
        or sum(fences) != (key is not None)
        or (key is None and found.end(6) != len(frame))
    ):
        return None
    return SingleRead(txn_id, number(ledger), number(entry), key)


def encode_single_read_response(
    txn_id: bytes, ledger_id: int, entry_id: int, entry: memoryview, max_lac: int | None
) -> bytes:
    """Return the EOK response to the read of an entry; `txn_id` as in the request."""
    head = b"\x08\x00\x10" + varint(ledger_id) + b"\x18" + varint(entry_id) + b"\x22" + varint(len(entry))
    tail = b"" if max_lac is None else b"\x28" + varint(max_lac)
    header = _HEADER + txn_id
    front = b"%c%c%b\x10\x00\xa2\x06%b%b" % (
        FIRST_BYTE,
        len(header),
        header,
        varint(len(head) + len(entry) + len(tail)),
        head,
    )
    return b"".join((_LENGTH.pack(len(front) + len(entry) + len(tail)), front, entry, tail))
