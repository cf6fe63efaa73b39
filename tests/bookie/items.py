"""Stored entries as journals, entry logs and the write cache hold them: `i32 length, entry`."""

from __future__ import annotations

import struct


def item(ledger_id: int, entry_id: int, size: int = 100) -> bytes:
    """Return an entry with `size` bytes after its ids, which depend on the ids alone."""
    entry = struct.pack(">qq", ledger_id, entry_id) + bytes([(ledger_id * 7 + entry_id) % 251]) * size
    return struct.pack(">i", len(entry)) + entry
