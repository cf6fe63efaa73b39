"""Journal records about ledgers: their keys, fences and explicit LACs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookie_service.formats import journal as journal_format
from bookie_service.formats.journal import RecordKind
from bookie_service.storage.journal.journal import Record
from bookie_service.storage.ledgers.interface import Ledger


def key_record(keys: Sequence[tuple[int, bytes]]) -> Record:
    """Return the record of the master keys of ledgers."""
    return Record.of(RecordKind.LEDGER_KEY, len(keys), journal_format.encode_keys(keys))


def fence_record(ledger_ids: Sequence[int]) -> Record:
    """Return the record that fences ledgers."""
    return Record.of(RecordKind.FENCE, len(ledger_ids), journal_format.encode_fences(ledger_ids))


def lac_record(ledger_id: int, packet: bytes) -> Record:
    """Return the record of a ledger's explicit LAC, as its writer sent it."""
    return Record.of(RecordKind.LAC, 1, journal_format.encode_lacs([(ledger_id, packet)]))


def first_records(keys: Sequence[tuple[int, bytes]], ledgers: Mapping[int, Ledger]) -> list[Record]:
    """Return the records that precede the first adds of ledgers: their keys, and remembered fences."""
    # A repair brings back ledgers that were dropped here: a tombstone kept their fence.
    fenced = [ledger_id for ledger_id, _ in keys if ledgers[ledger_id].fenced]
    return [key_record(keys), fence_record(fenced)] if fenced else [key_record(keys)]
