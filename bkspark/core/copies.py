"""Estimates what some bookies must store of a ledger, from its metadata: fragments exactly, bytes about. Decisions
only.

Each entry counts with the mean size of its ledger. The metadata of an open ledger have no sizes: its bytes count as 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from bkspark.core.metadata import Fragment, LedgerMetadata
from bkspark.core.striping import write_set


@dataclass(frozen=True, slots=True)
class CopyEstimate:
    """The number of fragments that name the bookies, and of entries and bytes that these must store. is_growing: the
    last fragment of an open ledger names one of them."""

    fragments: int
    entries: int
    bytes: int
    is_growing: bool


def settled_fragments(metadata: LedgerMetadata) -> list[tuple[Fragment, int]]:
    """Return the fragments that receive no more entries, each with the entry id after its last."""
    ends = [fragment.first_entry for fragment in metadata.fragments[1:]]
    if metadata.is_closed:
        ends.append(metadata.last_entry + 1)
    return list(zip(metadata.fragments, ends))


def stored_entries(fragment: Fragment, end_entry: int, slot: int, write_quorum: int) -> np.ndarray:
    """Return the ids below `end_entry` that one slot of a fragment stores, ascending, int64.

    >>> stored_entries(Fragment(4, ("a", "b", "c")), 10, 0, 2).tolist()
    [5, 6, 8, 9]
    """
    size = len(fragment.bookies)
    residues = [r for r in range(size) if slot in write_set(r, size, write_quorum)]
    ids = np.arange(fragment.first_entry, max(end_entry, fragment.first_entry))
    return ids if len(residues) == size else ids[np.isin(ids % size, residues)]


def holders(metadata: LedgerMetadata) -> Iterator[tuple[Fragment, list[str]]]:
    """Yield the bookies that store an entry, with its fragment: each set once that some entry has, or may get.

    A short fragment does not have an entry of every residue, so it has fewer sets than slots.

    >>> from bkspark.core.metadata import LedgerState
    >>> closed = LedgerMetadata(3, 2, 2, (Fragment(0, ("a", "b", "c")),), LedgerState.CLOSED, last_entry=0)
    >>> [bookies for _, bookies in holders(closed)]
    [['a', 'b']]
    """
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    found = [
        (fragment, range(fragment.first_entry, min(end_entry, fragment.first_entry + size)))
        for fragment, end_entry in settled_fragments(metadata)
    ]
    if not metadata.is_closed:
        found.append((metadata.last_fragment, range(size)))
    for fragment, entry_ids in found:
        for entry_id in entry_ids:
            yield fragment, [fragment.bookies[slot] for slot in write_set(entry_id, size, quorum)]


def share_of(metadata: LedgerMetadata, bookies: Collection[str]) -> CopyEstimate:
    """Return what these bookies together must store of a ledger."""
    fragments = entries = 0
    for fragment, end_entry in settled_fragments(metadata):
        slots = sum(bookie in bookies for bookie in fragment.bookies)
        if slots:
            fragments += 1
            count = max(0, end_entry - fragment.first_entry)
            entries += count * slots * metadata.write_quorum // metadata.ensemble_size
    is_growing = not metadata.is_closed and any(bookie in bookies for bookie in metadata.last_fragment.bookies)
    total = metadata.last_entry + 1
    size = entries * metadata.length // total if metadata.is_closed and total > 0 else 0
    return CopyEstimate(fragments + is_growing, entries, size, is_growing)


def names(metadata: LedgerMetadata, bookie: str) -> bool:
    """Return whether a fragment of the ledger names a bookie."""
    return any(bookie in fragment.bookies for fragment in metadata.fragments)
