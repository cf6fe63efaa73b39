"""Coverage: enough bookies have answered that no write set can reach Qa without one of them."""

from __future__ import annotations

from collections.abc import Collection


def has_coverage(known: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Return whether every possible write set has at least (Qw - Qa) + 1 of its slots in `known`.

    A slot is known when its bookie gave a certain answer: an entry whose digest verified, or an explicit NoSuchEntry or
    NoSuchLedger. Time-outs, I/O errors, unknown ledger state and digest failures leave it unknown.

    Source: BookKeeper protocol.md, "Fencing"; the converse reads: fewer than Qa unknown in every write set.

    >>> has_coverage({0, 1}, 3, 3, ack_quorum=2), has_coverage({0}, 3, 3, ack_quorum=2)
    (True, False)
    """
    needed = write_quorum - ack_quorum + 1
    # From write set to write set one slot goes and one comes: an ensemble may have a thousand.
    count = sum(slot in known for slot in range(write_quorum))
    for start in range(ensemble_size):
        if count < needed:
            return False
        count += ((start + write_quorum) % ensemble_size in known) - (start in known)
    return True


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """Return how many explicit negatives prove that an entry was never acknowledged: (Qw - Qa) + 1."""
    return write_quorum - ack_quorum + 1
