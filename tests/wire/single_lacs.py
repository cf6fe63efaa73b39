"""Which LACs adds may carry, one add at a time: what arrays of them are compared with."""

from __future__ import annotations

from bkspark.ids import LAST_ENTRY_MAX
from bkspark.wire.lac import is_lac, is_writers_lac


def may_add(entry_id: int, lac: int, *, is_recovery: bool) -> bool:
    """Return whether a bookie can take an add with this LAC.

    Args:
        is_recovery: the add has the recovery flag: it may be a copy that Apache's re-replication sealed.
    """
    return is_writers_lac(entry_id, lac) or (is_recovery and 0 <= entry_id <= LAST_ENTRY_MAX and is_lac(lac))
