"""Decides when a group of journal records is synced. Pure: no clock, no queue; the journal's thread calls it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bkspark.options import BYTES_MAX, COUNT_MAX, YEARS_S, bounded, check

MARKER_DELAY_NS = 100_000_000
"""The time without records before a durability marker is written. It costs a sync, so it must not come between adds."""


class FlushReason(enum.Enum):
    BYTES = "enough bytes"
    ENTRIES = "enough entries"
    AGE = "the oldest record waited long enough"
    IDLE = "nothing else is waiting"


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """Limits of a group's age and size.

    With `flush_when_idle` (the default) a group is what arrived during the sync before it. This gives the lowest
    latency, and still large groups under load. Otherwise records wait up to `age_ns_max` for others. `entries_max` 0:
    no limit. `bytes_max` is above Apache's 512 KiB: a sync into new blocks of a file takes about as long for more
    bytes, and records that miss a group wait for another sync (benchmarks/laboratory.md).

    Patient records wait for an ordinary one for `patience_ns`, as long as any group of Apache's bookies waits, and no
    longer than `age_ns_max`. Without `flush_when_idle` they wait as all others.

    After `marker_delay_ns` without records the journal records that its contents are durable
    (`Journal.write_durability_marker`). A journal that does not sync its groups is synced once in that time.
    """

    bytes_max: int = bounded(4 * 1024 * 1024, 1, BYTES_MAX, "bytes")
    entries_max: int = bounded(0, 0, COUNT_MAX)
    age_ns_max: int = bounded(2_000_000, 0, int(YEARS_S) * 1_000_000_000, "ns")
    flush_when_idle: bool = True
    patience_ns: int = bounded(2_000_000, 0, int(YEARS_S) * 1_000_000_000, "ns")
    marker_delay_ns: int = bounded(MARKER_DELAY_NS, 0, int(YEARS_S) * 1_000_000_000, "ns")

    def __post_init__(self) -> None:
        check(self)


def flush_reason(
    limits: FlushLimits, group_bytes: int, group_entries: int, age_ns: int, queue_empty: bool
) -> FlushReason | None:
    """Return why the group must be synced now; None: wait for more records.

    A group may have no bytes: it only requests a sync.
    """
    if group_bytes >= limits.bytes_max:
        return FlushReason.BYTES
    if 0 < limits.entries_max <= group_entries:
        return FlushReason.ENTRIES
    if queue_empty and limits.flush_when_idle:
        return FlushReason.IDLE
    if age_ns >= limits.age_ns_max:
        return FlushReason.AGE
    return None
