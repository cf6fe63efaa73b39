"""What really happened during a soak, counted: one in which something never happened proves nothing about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.soak.flatness import TOO_FEW, Line

EVERYTHING_S = 900.0
"""A soak of this length or more fails when something never happened. A shorter one only lists it."""

ALWAYS = ("bookie1", "load")
"""Roles whose process runs from the beginning to the end."""

_COLLECTED = re.compile(r"garbage collection: (\d+) ledgers dropped, (\d+) entry logs removed, (\d+) rewritten")
_FULL = re.compile(r"WARNING directory \S+ is full: ")


def counts(
    struck: Mapping[str, int], flood_bytes: Mapping[str, int], said: Mapping[str, Any], bookies: Mapping[str, int]
) -> dict[str, int]:
    """Count what happened, each thing under the name it has in the report.

    Args:
        struck: faults by kind; a kind that never struck has 0.
        flood_bytes: what bookies took of each kind of flood.
        said: the last line of the load.
        bookies: what `of_bookies` counted.
    """
    return {
        **{f"fault: {kind}": count for kind, count in struck.items()},
        **{f"flood: bytes of {kind}": count for kind, count in flood_bytes.items()},
        **{f"{kind} ledgers: {what}": n for kind, done in said.get("kinds", {}).items() for what, n in done.items()},
        "log: rows appended": said.get("rows", 0),
        **{f"log: rows in {copy}": count for copy, count in said.get("copied", {}).items()},
        "autorecovery: ledgers with new bookies": said.get("repaired", 0),
        **bookies,
    }


def of_bookies(logs: Iterable[Path]) -> dict[str, int]:
    """Count what bookies say in their logs of their garbage collection and disks."""
    found = Counter({"garbage: ledgers dropped": 0, "garbage: entry logs removed": 0, "compaction: entry logs": 0})
    found["disks: found full"] = 0
    for log in logs:
        with log.open(errors="replace") as lines:
            for line in lines:
                if match := _COLLECTED.search(line):
                    dropped, removed, rewritten = map(int, match.groups())
                    found["garbage: ledgers dropped"] += dropped
                    found["garbage: entry logs removed"] += removed
                    found["compaction: entry logs"] += rewritten
                found["disks: found full"] += bool(_FULL.search(line))
    return dict(found)


def judged(lines: Iterable[Line]) -> dict[str, int]:
    """Count the figures of the processes that no fault ends for which there were enough samples."""
    found = dict.fromkeys((f"figures judged: {role}" for role in ALWAYS), 0)
    for line in lines:
        if line.role in ALWAYS and line.verdict != TOO_FEW:
            found[f"figures judged: {line.role}"] += 1
    return found


def never(counted: Mapping[str, int]) -> list[str]:
    """Return what did not happen at all."""
    return [name for name, count in counted.items() if not count]
