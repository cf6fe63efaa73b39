"""Relaxed durability at the writer: its options, and the LAC that follows from what bookies have synced. Decisions
only.

An add of such a ledger is acknowledged from the page cache of Qa bookies. The LAC counts only what is synced: each
response of a bookie carries its LastAddSynced, "every add that you sent me up to here is durable", and a response to a
force says the same of everything it has acknowledged. `confirmed_up_to` derives the LAC from these.

docs/relaxed-durability.md has the whole protocol, and the proof for striped ledgers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bkspark.core.striping import write_set
from bkspark.options import DAY_S, bounded, check


@dataclass(frozen=True, slots=True)
class RelaxedDurability:
    """Options of a writer with relaxed durability. What goes beyond Apache's proposal is off by default.

    striped: E > Qw is allowed.
    changes_ensemble: a lost bookie is replaced. Entries are kept until they are synced, and sent again to the new one;
        callers wait when the kept bytes reach `unsynced_bytes_max`.
    force_interval_s: a force is sent when the LAC has not moved for this time although there are later acknowledged
        entries; readers see entries only up to the LAC. 0: only `sync` sends one.

    Raises:
        ConfigurationError: a value is out of bounds.
    """

    striped: bool = False
    changes_ensemble: bool = False
    unsynced_bytes_max: int = bounded(128 * 1024 * 1024, 1, 1 << 40, "bytes")
    force_interval_s: float = bounded(1.0, 0.0, DAY_S, "seconds")

    def __post_init__(self) -> None:
        check(self)


def confirmed_up_to(last_synced: Sequence[int], write_quorum: int, ack_quorum: int) -> int:
    """Return the highest id up to which every entry is synced by Qa bookies of its write set.

    Args:
        last_synced: per slot, all entries up to this one that the slot stores are synced there; -1: no entry is.

    The proposal's rule for E = Qw, max(ascending LastAddSynced[0 .. Qw - Qa]), and for striped ledgers the same for
    each of the E write sets: entries of one write set are synced up to its bound, and the first entry above its own
    bound ends the prefix.

    >>> confirmed_up_to([7, 3, 5], write_quorum=3, ack_quorum=2)
    5
    >>> confirmed_up_to([4, 4, 1], write_quorum=2, ack_quorum=2)
    1
    """
    size = len(last_synced)
    if write_quorum == size:
        return sorted(last_synced)[write_quorum - ack_quorum]
    ends = []
    for residue in range(size):
        bound = sorted(last_synced[slot] for slot in write_set(residue, size, write_quorum))[write_quorum - ack_quorum]
        # The first entry above the bound that this write set stores.
        ends.append(bound + (residue - bound - 1) % size)
    return min(ends)
