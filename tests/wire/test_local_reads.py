"""The messages of local reads: golden bytes, and that nothing else is taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from bkspark.errors import ProtocolError
from bkspark.wire.local_reads import (
    ENTRIES_MAX,
    NOT_HERE,
    REPLY_BYTES_MAX,
    LocalRead,
    decode_reply,
    encode_found,
    socket_name,
)

REQUEST = LocalRead("127.0.0.1:3181", bytes([127, 0, 0, 1]), 5, 300, 4096, 5 << 20)
REQUEST_BYTES = bytes.fromhex("00000001 7f000001 0000000000000005 000000000000012c 00001000 00500000")
OFFSETS = np.array([1024, 1090, 5000])
FOUND_BYTES = bytes.fromhex("00000001 00000000 0000000000000400 00000042 00000f46")


def test_messages_are_these_bytes() -> None:
    assert REQUEST.encode() == REQUEST_BYTES + b"127.0.0.1:3181"
    assert encode_found(OFFSETS) == FOUND_BYTES
    assert bytes.fromhex("00000001 00000001") == NOT_HERE
    assert socket_name(3181) == b"\0bkspark-bookie-3181"


def test_messages_come_back() -> None:
    assert LocalRead.decode(REQUEST.encode()) == REQUEST
    assert decode_reply(NOT_HERE) is None
    for offsets in (OFFSETS, OFFSETS[:1], np.arange(ENTRIES_MAX) * 0x1_0001 + (3 << 30)):
        message = encode_found(offsets)
        assert len(message) <= REPLY_BYTES_MAX
        assert decode_reply(message).tolist() == offsets.tolist()


@pytest.mark.parametrize(
    "message",
    [
        *(REQUEST_BYTES[:size] for size in range(len(REQUEST_BYTES))),
        REQUEST_BYTES + b"\xff",
        *(LocalRead("b", bytes(4), *numbers).encode() for numbers in [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 0, 1)]),
        *(LocalRead("b", bytes(4), *numbers).encode() for numbers in [(0, 0, ENTRIES_MAX + 1, 1), (0, 0, 1, 0)]),
        b"\0\0\0\2" + REQUEST_BYTES[4:],
    ],
)
def test_what_is_not_a_request_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        LocalRead.decode(message)


@pytest.mark.parametrize(
    "message",
    [
        *(FOUND_BYTES[:size] for size in range(len(FOUND_BYTES)) if size not in (16, 20)),
        b"\0\0\0\2" + FOUND_BYTES[4:],
        FOUND_BYTES[:4] + b"\0\0\0\2" + FOUND_BYTES[8:],
        FOUND_BYTES[:8] + b"\xff" + FOUND_BYTES[9:],
        FOUND_BYTES + bytes(4),
        FOUND_BYTES + b"\0\0\0\3",
        FOUND_BYTES[:8] + b"\1" + FOUND_BYTES[9:],
    ],
)
def test_what_is_not_a_reply_is_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_reply(message)
