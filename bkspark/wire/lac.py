"""Which LAC (last add confirmed) an entry, an add and an explicit-LAC packet may carry.

A writer seals an entry with the LAC that it knows at that moment, before the entry itself is confirmed: `-1 <= LAC <
entry id`. This holds for durable and relaxed ledgers, for ids that the caller chooses (the LAC moves only over ids
without a gap), and for entries that a recovery writes again (with the LAC at which it began to read).

One peer violates it. Apache's re-replication does not copy bytes: it seals each entry again, with the LAC of its read
handle (LedgerFragmentReplicator, `computeDigestAndPackageForSending(entryId, lh.getLastAddConfirmed(), ...)`). For a
closed ledger that is the last entry. Such copies are genuine data, so refusing them would lose data. Known facts about
them:

* They travel with the recovery flag.
* They are entries of fragments that cannot grow: any fragment of a closed ledger, those before the last fragment of an
  open one. The LAC of an open ledger is never taken from them (`core.metadata.LedgerMetadata.lac_bounds`).
* Their LAC is not above the last entry of the ledger.

LAC and entry id are below ENTRY_ID_MAX, so the id after each of them is an int64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bkspark.ids import LAST_ENTRY_MAX, NO_ENTRY


def is_lac(lac: int) -> bool:
    """Return whether a ledger can have this LAC."""
    return NO_ENTRY <= lac <= LAST_ENTRY_MAX


def is_writers_lac(entry_id: int, lac: int) -> bool:
    """Return whether a writer or a recovery can have sealed this entry with this LAC."""
    return NO_ENTRY <= lac < entry_id <= LAST_ENTRY_MAX


def are_writers_lacs(entry_ids: np.ndarray, lacs: np.ndarray) -> np.ndarray:
    """Return `is_writers_lac` of each pair, bool; both are int64 of any byte order."""
    return (lacs >= NO_ENTRY) & (lacs < entry_ids) & (entry_ids <= LAST_ENTRY_MAX)


def may_add_each(entry_ids: np.ndarray, lacs: np.ndarray, are_recovery: bool | np.ndarray) -> np.ndarray:
    """Return whether a bookie can take an add with this LAC, of each, bool.

    Args:
        are_recovery: the add has the recovery flag: it may be a copy that Apache's re-replication sealed.
    """
    right = are_writers_lacs(entry_ids, lacs)
    if right.all() or not np.any(are_recovery):
        return right
    return right | (are_recovery & _are_copies(entry_ids, lacs, LAST_ENTRY_MAX, LAST_ENTRY_MAX))


@dataclass(frozen=True, slots=True)
class LacBounds:
    """Bounds of the LAC in an entry of one ledger, for its reader.

    copies_to: entries up to this one may be copies of Apache's re-replication. lac_max: the highest LAC in such a copy.
    """

    copies_to: int = NO_ENTRY
    lac_max: int = LAST_ENTRY_MAX

    def admits(self, entry_id: int, lac: int) -> bool:
        """Return whether the entry may carry this LAC."""
        return is_writers_lac(entry_id, lac) or (0 <= entry_id <= self.copies_to and NO_ENTRY <= lac <= self.lac_max)

    def admit_each(self, entry_ids: np.ndarray, lacs: np.ndarray) -> np.ndarray:
        """Return `admits` of each pair, bool."""
        right = are_writers_lacs(entry_ids, lacs)
        if right.all() or self.copies_to == NO_ENTRY:
            return right
        return right | _are_copies(entry_ids, lacs, self.copies_to, self.lac_max)

    def learned(self, entry_id: int, lac: int) -> int:
        """Return the LAC that an admitted entry proves: a copy proves only that it was confirmed itself."""
        return lac if lac < entry_id else min(lac, self.copies_to)


NO_COPIES = LacBounds()
"""Bounds that admit only entries which a writer or a recovery sealed."""
ANY_COPY = LacBounds(LAST_ENTRY_MAX)
"""Bounds that admit any LAC, for tools that read entries without their ledger's metadata."""


def _are_copies(entry_ids: np.ndarray, lacs: np.ndarray, copies_to: int, lac_max: int) -> np.ndarray:
    return (entry_ids >= 0) & (entry_ids <= copies_to) & (lacs >= NO_ENTRY) & (lacs <= lac_max)
