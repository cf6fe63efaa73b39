"""An add that came alone, as from a writer with one add in flight: numbers instead of arrays of one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from bkspark.wire.framing import LENGTH_BYTES

_LENGTH = struct.Struct(">i")


class SingleAdd(NamedTuple):
    """An add without flags whose frame fills a receive buffer exactly.

    item_at, size: where its item begins, and its bytes: the length word, then the entry (`add_batch`).
    acknowledgement: returns the response "durable" for a ledger id and an entry id.
    """

    ledger_id: int
    entry_id: int
    lac: int
    master_key: bytes
    item_at: int
    size: int
    acknowledgement: Callable[[int, int], bytes]

    def __repr__(self) -> str:
        return f"SingleAdd(ledger_id={self.ledger_id}, entry_id={self.entry_id}, size={self.size})"


def make_item(buffer: memoryview, add: SingleAdd) -> None:
    """Turn the add into an item in place; this overwrites part of its frame."""
    _LENGTH.pack_into(buffer, add.item_at, add.size - LENGTH_BYTES)
