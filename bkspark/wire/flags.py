"""Flags of requests, and the entry id that requests the last entry: the same for cores, client and bookie.

The numbers are V2's. V3 has fields for the same (`ReadRequest.flag`, `AddRequest.flag`, the header's priority).
"""

from __future__ import annotations

from dataclasses import dataclass

DO_FENCING = 0x0001
"""Flag of a read: fences the ledger, so that ordinary adds are refused from then on."""
RECOVERY_ADD = 0x0002
"""Flag of an add: it is accepted although the ledger is fenced."""
HIGH_PRIORITY = 0x0004
"""Flag of an add: a read-only bookie accepts it while it has room."""

LAST_ENTRY = -1
"""A read of this entry id returns the highest entry that the bookie holds."""


@dataclass(frozen=True, slots=True)
class AddFlags:
    """How bookies must handle adds.

    `is_recovery`: accept them also on a fenced ledger. `is_urgent`: accept them also on a read-only bookie, while it
    has room. `is_deferred`: acknowledge them before they are durable; V3 only. `bypasses_journal`: in addition,
    bkspark's bookies store them only once, in the entry log; others journal them like any deferred add.
    """

    is_recovery: bool = False
    is_urgent: bool = False
    is_deferred: bool = False
    bypasses_journal: bool = False
