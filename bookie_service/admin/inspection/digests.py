"""Determines the digest type of a ledger's entries from the entries themselves, and whether entries match it.

Entry logs have no checksum per record: the digest that the writer sealed an entry with is its checksum. The digest type
is in the ledger's metadata, which are not on disk. But all entries of a ledger have the same type, and an entry does
not match a digest by chance. So the first match determines the type, and from then on an entry that does not match is
damaged. If no entry of a ledger matched (it has no digest, or a MAC with another password), its entries cannot be
verified.
"""

from __future__ import annotations

import numpy as np

from bkspark.wire.digest import DigestType, EntryDigest
from bkspark.wire.lac import ANY_COPY
from bkspark.wire.layout import ENTRY_ID_AT, LAC_AT
from bookie_service.admin.inspection.findings import UNVERIFIED, VERIFIED, WRONG
from bookie_service.storage.io.framed_entries import rows_by_ledger

_TYPES = (DigestType.CRC32C, DigestType.CRC32, DigestType.MAC)
_PROBES_MAX = 8
"""How many entries of a ledger are tried with every type each time the ledger occurs, because some may be damaged."""
_LEDGERS_MAX = 1_000_000
"""How many ledgers' types are remembered. The types of other ledgers are determined again."""


class DigestVerifier:
    """Verifies entries of many ledgers and remembers their digest types."""

    def __init__(self, password: bytes) -> None:
        """`password`: that of ledgers with a MAC."""
        self._digests = [EntryDigest(digest_type, password, ANY_COPY) for digest_type in _TYPES]
        """A digest for each type. Constant."""
        self._known: dict[int, EntryDigest] = {}
        """The digest of each ledger whose type is known. Emptied when it has _LEDGERS_MAX ledgers."""

    def knows(self, ledger_id: int) -> bool:
        """Return whether an entry of this ledger was verified."""
        return ledger_id in self._known

    def verifies(self, entry: bytes | memoryview) -> bool:
        """Return whether these bytes are certainly an entry of some ledger."""
        ledger_id, entry_id = (int.from_bytes(entry[at : at + 8], "big", signed=True) for at in (0, ENTRY_ID_AT))
        bounds = np.zeros(1, np.int64), np.array([len(entry)])
        return any(_matches(each, entry, *bounds, ledger_id, np.array([entry_id])) for each in self._digests)

    def belongs_to(self, ledger_id: int, entry: bytes | memoryview) -> bool:
        """Return whether these bytes, apart from the ledger id in them, are certainly an entry of this ledger."""
        digest = self._known.get(ledger_id)
        if digest is None:
            return False
        restored = ledger_id.to_bytes(8, "big") + bytes(entry[8:])
        entry_ids = np.array([int.from_bytes(restored[ENTRY_ID_AT:LAC_AT], "big", signed=True)])
        return _matches(digest, restored, np.zeros(1, np.int64), np.array([len(restored)]), ledger_id, entry_ids)

    def check(
        self,
        buffer: bytes | memoryview,
        starts: np.ndarray,
        ends: np.ndarray,
        ledger_ids: np.ndarray,
        entry_ids: np.ndarray,
    ) -> np.ndarray:
        """Return the state of each entry buffer[starts[i]:ends[i]], int8. The ids are those that the entries carry."""
        states = np.full(len(starts), UNVERIFIED, np.int8)
        for ledger_id, rows in rows_by_ledger(ledger_ids) if len(starts) else ():
            digest = self._known.get(ledger_id) or self._find_out(
                buffer, starts[rows], ends[rows], ledger_id, entry_ids[rows]
            )
            if digest is not None:
                states[rows] = _judged(digest, buffer, starts[rows], ends[rows], ledger_id, entry_ids[rows])
        return states

    def _find_out(
        self, buffer: bytes | memoryview, starts: np.ndarray, ends: np.ndarray, ledger_id: int, entry_ids: np.ndarray
    ) -> EntryDigest | None:
        for i in range(min(len(starts), _PROBES_MAX)):
            one = slice(i, i + 1)
            for digest in self._digests:
                if _matches(digest, buffer, starts[one], ends[one], ledger_id, entry_ids[one]):
                    if len(self._known) >= _LEDGERS_MAX:
                        self._known.clear()
                    self._known[ledger_id] = digest
                    return digest
        return None


def _matches(
    digest: EntryDigest,
    buffer: bytes | memoryview,
    starts: np.ndarray,
    ends: np.ndarray,
    ledger_id: int,
    entry_ids: np.ndarray,
) -> bool:
    return digest.open_entries(buffer, starts, ends, ledger_id, entry_ids).bad is None


def _judged(
    digest: EntryDigest,
    buffer: bytes | memoryview,
    starts: np.ndarray,
    ends: np.ndarray,
    ledger_id: int,
    entry_ids: np.ndarray,
) -> np.ndarray:
    """Return VERIFIED or WRONG for each entry, int8."""
    states = np.full(len(starts), VERIFIED, np.int8)
    first = 0
    while first < len(starts):
        bad = digest.open_entries(buffer, starts[first:], ends[first:], ledger_id, entry_ids[first:]).bad
        if bad is None:
            break
        states[first + bad[0]] = WRONG
        first += bad[0] + 1
    return states
