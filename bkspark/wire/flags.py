"""Flags of requests, and the entry id that asks for the last entry: the same for cores, client and bookie.

The numbers are V2's. V3 has fields for the same (`ReadRequest.flag`, `AddRequest.flag`, the header's priority).
"""

from __future__ import annotations

DO_FENCING = 0x0001
"""Of a read: no ordinary add to the ledger is taken any more."""
RECOVERY_ADD = 0x0002
"""Of an add: it is taken although the ledger is fenced."""
HIGH_PRIORITY = 0x0004
"""Of an add: a bookie that is read-only takes it while it has room for that."""

LAST_ENTRY = -1
"""A read of this entry id asks for the highest entry that the bookie holds."""
