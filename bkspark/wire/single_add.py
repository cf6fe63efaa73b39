"""The path of single entries: an add that travels alone or with few others, as those of a writer with one in flight do.

It is served in numbers, as arrays of one are slow: `LedgerWriter.append`, `AddSealer.seal_single`,
`v2.decode_single_add`, `v3_single_add`, `Bookie.add_single`, `MemTable.add_single`, `JournalThread.commit`,
`v2.encode_add_reply` and `v2.decode_single_add_reply`. Everything else is served in arrays, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class SingleAdd(NamedTuple):
    """An add whose frame fills a receive buffer exactly, or is one of few, without flags except those of recovery.

    entry_at, size: where the entry begins in the buffer, and its bytes.
    acknowledgement: returns the response that it is durable, for its ledger id and entry id.
    is_recovery: a fence does not bar it.
    """

    ledger_id: int
    entry_id: int
    lac: int
    master_key: bytes
    entry_at: int
    size: int
    acknowledgement: Callable[[int, int], bytes]
    is_recovery: bool = False

    def __repr__(self) -> str:
        return f"SingleAdd(ledger_id={self.ledger_id}, entry_id={self.entry_id}, size={self.size})"
