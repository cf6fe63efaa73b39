"""The path of single adds: an add that is sent alone or with few others, as from a writer that waits for each add.

It works on numbers, because arrays of one item are slow: `LedgerWriter.append`, `AddSealer.seal_single`,
`v2.decode_single_add`, `v3_single_add`, `Bookie.add_single`, `MemTable.add_single`, `JournalThread.commit`,
`v2.encode_add_reply` and `v2.decode_single_add_reply`. All other requests are served with arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class SingleAdd(NamedTuple):
    """An add whose frame is the only one in a receive buffer, or one of few; it has no flags except that of recovery.

    entry_at, size: where the entry begins in the buffer, and its size in bytes.
    acknowledgement: returns the EOK response, from ledger id and entry id.
    is_recovery: it is accepted although the ledger is fenced.
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
