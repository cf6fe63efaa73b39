"""The audit log: one line for each change by an operator, with the operator, the change, and the outcome.

The process also remembers the last `REMEMBERED_MAX` changes for commands that list them. The log has all changes.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from dataclasses import dataclass

from bkspark.log_limit import AUDIT
from bkspark.wall_clock import wall_clock_ms

AUDIT_LOGGER = "bookie_service.audit"
logger = logging.getLogger(AUDIT_LOGGER)

REMEMBERED_MAX = 1000


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A change: its number in this process, its time (ms since 1970), who made it, and what it was."""

    number: int
    at_ms: int
    """When it was made, in ms since 1970."""
    who: str
    change: str


_remembered: deque[AuditRecord] = deque(maxlen=REMEMBERED_MAX)
_numbers = itertools.count(1)


def audit(who: str, change: str, **attributes: object) -> None:
    """Log a change. `who`: `http:ADDRESS`, `control:USER` or `signal`. `attributes`: its parts, for programs."""
    logger.info("audit: %s: %s", who, change, extra={"event": AUDIT, "attributes": {"who": who, **attributes}})
    _remembered.append(AuditRecord(next(_numbers), wall_clock_ms(), who, change))


def remembered(before: int, count_max: int) -> list[AuditRecord]:
    """Return the last changes with a number below `before`, at most `count_max`, the latest first."""
    older = (record for record in reversed(tuple(_remembered)) if record.number < before)
    return list(itertools.islice(older, count_max))
