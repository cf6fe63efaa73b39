"""Processes that drain one bookie together: each reports its work in the plan, and reads what the others report.

    progress["processes"]    {name: {"ledgers", "bytes", "bytes_per_s", "at_ms"}}

A process learns that another one has moved a ledger only when it tries this ledger itself. Until then, its own list of
what is left is too long by what the others report. Decisions only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bkspark.ids import INT64_MAX

PROCESSES = "processes"
"""The name in the progress of a plan."""
PROCESSES_MAX = 32
"""More reports are not read."""
SILENT_S = 15.0
"""A process that has not reported for longer copies nothing. It reports every second."""
KEPT_S = 60.0
"""After this time without a change, a report is removed from the plan."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What one process has done since its start.

    ledgers: how many it has moved. bytes: what these had at the bookie, and what is copied of others; less than before
        if the repair of one failed. bytes_per_s: the rate of the last minute. at_ms: when it reported.
    """

    ledgers: int = 0
    bytes: int = 0
    bytes_per_s: int = 0
    at_ms: int = 0


@dataclass(slots=True)
class _Seen:
    """A process that has reported."""

    report: ProcessReport
    """What it reported last."""
    changed_s: float
    """When its report was first seen as it is."""
    runs: bool = False
    """Whether its report has changed since it was first seen: it may be that of a process that was killed."""


class OtherProcesses:
    """What the other processes that drain a bookie have moved, and how fast they copy."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        """By the names of the processes."""
        self._has_reports = False
        """Whether `update` was called."""
        self._ledgers = 0
        """How many ledgers they have moved that this process still has in its list; for a moment below 0."""
        self._bytes = 0
        """The same for bytes."""

    @property
    def ledgers(self) -> int:
        """How many ledgers they have moved that this process still has in its list."""
        return max(0, self._ledgers)

    @property
    def bytes(self) -> int:
        """How many bytes they have moved of what this process still has in its list."""
        return max(0, self._bytes)

    def update(self, now_s: float, reports: Mapping[str, ProcessReport]) -> None:
        """Take the reports of the others, at a time that never decreases."""
        for name, report in reports.items():
            seen = self._seen.get(name)
            # At the first update nothing is known of what is left, so what they did before does not count.
            before = seen.report if seen else ProcessReport() if self._has_reports else report
            self._ledgers += report.ledgers - before.ledgers
            self._bytes += report.bytes - before.bytes
            if seen is None:
                self._seen[name] = _Seen(report, now_s)
            elif seen.report != report:
                self._seen[name] = _Seen(report, now_s, runs=True)
        self._has_reports = True

    def begin_list(self) -> None:
        """The list of what is left was read again."""
        self._ledgers = self._bytes = 0

    def found_moved(self, size: int) -> None:
        """This process has removed a ledger of `size` bytes from its list, because another one has moved it."""
        self._ledgers -= 1
        self._bytes -= size

    def bytes_per_s(self, now_s: float) -> int:
        """Return the rate of all others that still report."""
        running = (each for each in self._seen.values() if each.runs and now_s - each.changed_s <= SILENT_S)
        return sum(each.report.bytes_per_s for each in running)

    def kept(self, now_s: float) -> dict[str, ProcessReport]:
        """Return the reports that stay in the plan."""
        return {name: each.report for name, each in self._seen.items() if now_s - each.changed_s <= KEPT_S}


def reports_of(progress: Mapping[str, object], own: str) -> dict[str, ProcessReport]:
    """Return the reports in the progress of a plan, except the own one. What is not of its form is left out."""
    stored = progress.get(PROCESSES)
    found: dict[str, ProcessReport] = {}
    for name, facts in stored.items() if isinstance(stored, dict) else ():
        if name == own or not isinstance(facts, dict) or len(found) >= PROCESSES_MAX:
            continue
        values: list[Any] = [facts.get(each.name) for each in dataclasses.fields(ProcessReport)]
        if all(type(value) is int and 0 <= value <= INT64_MAX for value in values):
            found[name] = ProcessReport(*values)
    return found


def as_stored(reports: Mapping[str, ProcessReport]) -> dict[str, object]:
    """Return reports as the progress of a plan has them."""
    return {PROCESSES: {name: dataclasses.asdict(each) for name, each in reports.items()}}
