"""A V2 add that came alone, as those of a writer with one add in flight do: numbers instead of arrays of one."""

from __future__ import annotations

import struct
from typing import NamedTuple

from bkspark.wire import v2
from bkspark.wire.framing import LENGTH_BYTES

ITEM_AT = v2.ADD_HEAD_BYTES
"""Where in the receive buffer its item begins: the four bytes in front of the entry become its length word."""
_WORD = v2.header_word(v2.ADD)
_HEAD = struct.Struct(">ii20sqqq")
_LENGTH = struct.Struct(">i")


class LoneAdd(NamedTuple):
    """An add without flags, whose frame is all of a receive buffer; `size`: bytes of its item."""

    ledger_id: int
    entry_id: int
    lac: int
    master_key: bytes
    size: int

    def __repr__(self) -> str:
        return f"LoneAdd(ledger_id={self.ledger_id}, entry_id={self.entry_id}, size={self.size})"


def decode_lone_add(buffer: memoryview, end: int, frame_bytes_max: int) -> LoneAdd | None:
    """Return the add that buffer[:end] consists of; None: it is anything else, which is then for `V2Runs` to judge."""
    if end < _HEAD.size:
        return None
    length, word, master_key, ledger_id, entry_id, lac = _HEAD.unpack_from(buffer)
    if word != _WORD or length != end - LENGTH_BYTES or length > frame_bytes_max:
        return None
    return LoneAdd(ledger_id, entry_id, lac, master_key, end - ITEM_AT)


def make_item(buffer: memoryview, add: LoneAdd) -> None:
    """Turn the add into an item in place, which overwrites part of its frame."""
    _LENGTH.pack_into(buffer, ITEM_AT, add.size - LENGTH_BYTES)
