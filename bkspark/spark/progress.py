"""lag: how far a streaming query lags behind its logs, from Spark's progress reports."""

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
    """Entries, and approximate payload bytes, that were confirmed when a trigger began and are in no batch yet."""

    entries: int
    bytes: int


def lag(progress: Any) -> Lag:
    """Return how far a query lags behind, for all its bookkeeper sources together. Entries that were confirmed after
    the trigger are not counted.

    Args:
        progress: `query.lastProgress`, or an element of `recentProgress`, or its JSON text.

    Raises:
        ConfigurationError: none of its sources is a bookkeeper source that has read its log's end.
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
            "after its first trigger, with Spark 4.2 or later"
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
