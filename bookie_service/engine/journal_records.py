"""The journal records of what the engine changes. `formats.journal` has their bytes."""

from __future__ import annotations

from collections.abc import Sequence

from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import RecordKind
from bookie_service.storage.journal.journal import Record


def key_record(keys: Sequence[tuple[int, bytes]]) -> Record:
    """Return the record of (ledger id, master key) of ledgers. It precedes their other records."""
    return Record.of(RecordKind.LEDGER_KEY, len(keys), journal_format.encode_keys(list(keys)))


def fence_record(ledger_ids: Sequence[int]) -> Record:
    """Return the record of the fences of ledgers."""
    return Record.of(RecordKind.FENCE, len(ledger_ids), journal_format.encode_fences(list(ledger_ids)))


def lac_record(ledger_id: int, packet: bytes) -> Record:
    """Return the record of a ledger's explicit LAC."""
    return Record.of(RecordKind.LAC, 1, journal_format.encode_lacs([(ledger_id, packet)]))
