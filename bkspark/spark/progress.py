"""How far a streaming query is behind the logs it reads, from what Spark tells of its progress."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bkspark.errors import ConfigurationError

ENTRIES_BEHIND, BYTES_BEHIND = "entries_behind", "bytes_behind"
"""Members that the streaming source adds to the latest offset it reports. Offsets themselves never have them."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Entries, and about how many payload bytes, that were confirmed when a trigger began and are in no batch yet."""

    entries: int
    bytes: int


def lag(progress: Any) -> Lag:
    """Return how far behind a query is, all its bookkeeper sources together; what came after the trigger is not seen.

    Args:
        progress: what `query.lastProgress` gives, or an element of `recentProgress`, or its JSON text.

    Raises:
        ConfigurationError: no source of it is a bookkeeper source that has looked at its log.
    """
    try:
        found = json.loads(progress) if isinstance(progress, str) else progress
    except ValueError:
        found = None
    sources = found.get("sources") if isinstance(found, Mapping) else getattr(found, "sources", ())
    listed = sources if isinstance(sources, Sequence) else ()
    reports = [report for source in listed if (report := _report(source)) is not None]
    if not reports:
        raise ConfigurationError(
            "this progress has no source of format bookkeeper: give query.lastProgress of a query that reads one, "
            "after its first trigger, by Spark 4.2 or later"
        )
    return Lag(sum(each[ENTRIES_BEHIND] for each in reports), sum(each[BYTES_BEHIND] for each in reports))


def _report(source: Any) -> Mapping[str, Any] | None:
    latest = source.get("latestOffset") if isinstance(source, Mapping) else getattr(source, "latestOffset", None)
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:
            return None
    return latest if isinstance(latest, Mapping) and {ENTRIES_BEHIND, BYTES_BEHIND} <= latest.keys() else None
