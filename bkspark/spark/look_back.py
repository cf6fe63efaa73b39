"""Reads the entries before a task's first one, the nearest first, in tasks: chunks of a message lie close together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bkspark.entries import EntryBatch
from bkspark.spark.partitions import LedgerRead, ReadPartition
from bkspark.spark.read import scanned

FIRST_ENTRIES = 16
"""Entries that are read first; each further read takes twice as many."""
HELD_BYTES = 32 << 20
"""Approximate number of entries in one read: they are in memory until they were examined in reverse."""


def entries_before(earlier: ReadPartition) -> Iterator[EntryBatch]:
    """Yield the entries of a partition in batches, the last batch first. Entries that are gone are left out."""
    count = FIRST_ENTRIES
    for read in reversed(earlier.reads):
        end = read.end_entry
        while end > read.first_entry:
            first = max(read.first_entry, end - count)
            found = list(_scanned(earlier, replace(read, first_entry=first, end_entry=end)))
            yield from reversed(found)
            entry_bytes = max(1, sum(batch.payload_bytes for batch in found) // (end - first))
            count = max(1, min(2 * count, HELD_BYTES // entry_bytes))
            end = first


def _scanned(earlier: ReadPartition, read: LedgerRead) -> Iterator[EntryBatch]:
    piece = ReadPartition(
        (read,),
        earlier.addresses,
        earlier.password,
        net=earlier.net,
        encryption_key_file=earlier.encryption_key_file,
    )
    return (batch for _, batch in scanned(piece, fail_on_data_loss=False))
