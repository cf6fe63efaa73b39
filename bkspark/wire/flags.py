"""Flags of requests, and the entry id that requests the last entry: the same for cores, client and bookie.

The numbers are V2's. V3 has fields for the same (`ReadRequest.flag`, `AddRequest.flag`, the header's priority).
"""

from __future__ import annotations

DO_FENCING = 0x0001
"""Flag of a read: fences the ledger, so that ordinary adds are refused from then on."""
RECOVERY_ADD = 0x0002
"""Flag of an add: it is accepted although the ledger is fenced."""
HIGH_PRIORITY = 0x0004
"""Flag of an add: a read-only bookie accepts it while it has room."""

LAST_ENTRY = -1
"""A read of this entry id returns the highest entry that the bookie holds."""
