"""A V3 add that is sent alone, decoded with numbers; `v3` specifies its form, `single_add` the path of such adds.

The bytes before the entry are matched by one pattern. Whatever it does not match, protobuf's classes decode. The flag
of a recovery is the add's first field as Apache's clients write it, and its last one as ours do.
"""

from __future__ import annotations

import re
import struct
from functools import partial

from bkspark.wire import bookkeeper_protocol_pb2 as protocol
from bkspark.wire.framing import LENGTH_BYTES
from bkspark.wire.layout import MASTER_KEY_BYTES
from bkspark.wire.single_add import SingleAdd
from bkspark.wire.v3 import FIRST_BYTE
from bkspark.wire.v3_fields import varint
from bkspark.wire.v3_patterns import NUMBER, beginning, header_of, number

_HEADER = header_of(protocol.ADD_ENTRY)
_BEFORE_ENTRY = re.compile(
    beginning(_HEADER)
    + rb"\xaa\x06"
    + NUMBER
    + rb"(\xa0\x06\x01)?\x08"
    + NUMBER
    + rb"\x10"
    + NUMBER
    + rb"\x1a\x14(.{20})\x22"
    + NUMBER,
    re.DOTALL,
)
_BEFORE_ENTRY_BYTES_MAX = 2 + len(_HEADER) + 19 + 11 + 3 + 20 + 2 + MASTER_KEY_BYTES + 10
_RECOVERY = b"\xa0\x06\x01"
_LENGTH = struct.Struct(">i")
_IDS = struct.Struct(">qqq")


def decode_single_add(buffer: memoryview, end: int, frame_bytes_max: int) -> SingleAdd | None:
    """Return the add that buffer[:end] consists of, without flags except recovery; None: it is anything else."""
    if end < LENGTH_BYTES + len(_HEADER):
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length != end - LENGTH_BYTES or length > frame_bytes_max:
        return None
    found = _BEFORE_ENTRY.match(bytes(buffer[LENGTH_BYTES : LENGTH_BYTES + _BEFORE_ENTRY_BYTES_MAX]))
    if found is None:
        return None
    header_bytes, txn_id, priority, add_bytes, flag, ledger, entry, key, size_bytes = found.groups()
    size, entry_at = number(size_bytes), LENGTH_BYTES + found.end()
    header_end = found.end(3) if priority is not None else found.end(2)
    tail = bytes(buffer[entry_at + size : end]) if entry_at + size <= end <= entry_at + size + len(_RECOVERY) else None
    if (
        header_bytes[0] != header_end - 2
        or LENGTH_BYTES + found.end(4) + number(add_bytes) != end
        or tail not in ((b"", _RECOVERY) if flag is None else (b"",))
        or size < _IDS.size
    ):
        return None
    ledger_id, entry_id, lac = _IDS.unpack_from(buffer, entry_at)
    if (ledger_id, entry_id) != (number(ledger), number(entry)):
        return None
    acknowledgement = partial(_encode_response, txn_id)
    return SingleAdd(ledger_id, entry_id, lac, key, entry_at, size, acknowledgement, bool(flag or tail))


def _encode_response(txn_id: bytes, ledger_id: int, entry_id: int) -> bytes:
    """Return the EOK response to an add; `txn_id` as in the request."""
    add = b"\x08\x00\x10" + varint(ledger_id) + b"\x18" + varint(entry_id)
    header = _HEADER + txn_id
    body = bytes((FIRST_BYTE, len(header))) + header + b"\x10\x00\xaa\x06" + bytes((len(add),)) + add
    return _LENGTH.pack(len(body)) + body
