"""What the figures of a benchmark are called, what is wanted of each, and how rounds become one result."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One figure. `at_least` and `at_most` are the target; `unless` names a figure that, when met, excuses this one."""

    name: str
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    unless: str | None = None

    def target(self) -> str:
        """Return the target for a person, empty when there is none."""
        if self.at_least is not None:
            return f">= {self.at_least:,}"
        return f"<= {self.at_most:,}" if self.at_most is not None else ""

    def reached_by(self, value: float) -> bool | None:
        """Say whether a value is on the right side of the target; None when there is none."""
        if self.at_least is not None:
            return value >= self.at_least
        return None if self.at_most is None else value <= self.at_most


@dataclass(frozen=True)
class Sizes:
    """How much each section does."""

    rounds: int
    entries: int
    """Adds of 1 KiB a round, and reads."""
    latency_adds: int
    seconds: float
    """Figures of benchmarks that run for a time."""
    ledgers: int
    """Figures of the bookie with many ledgers."""
    connections: int
    """Idle ones of one bookie."""
    rotating_mib: int
    replayed_mib: int
    compacted_mib: int

    def scaled(self, scale: float, rounds: int) -> Sizes:
        """Return sizes multiplied by `scale`, as far as a section still works."""
        return Sizes(
            rounds=rounds,
            entries=max(2048, int(self.entries * scale)),
            latency_adds=max(50, int(self.latency_adds * scale)),
            seconds=max(0.3, self.seconds * scale),
            ledgers=max(100, int(self.ledgers * scale)),
            connections=max(20, int(self.connections * scale)),
            rotating_mib=max(16, int(self.rotating_mib * scale)),
            replayed_mib=max(8, int(self.replayed_mib * scale)),
            compacted_mib=max(16, int(self.compacted_mib * scale)),
        )


FULL = Sizes(
    rounds=5,
    entries=300_000,
    latency_adds=1500,
    seconds=5.0,
    ledgers=100_000,
    connections=10_000,
    rotating_mib=20 * 1024,
    replayed_mib=512,
    compacted_mib=1024,
)


def results_of(figures: Iterable[Figure], rounds: Iterable[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Return per figure its median, the rounds' values, target and whether it is met; figures that were not measured
    are left out. A name that no figure has is an error: it would be printed without a target.
    """
    values: dict[str, list[float]] = {}
    for each in rounds:
        for name, value in each.items():
            values.setdefault(name, []).append(float(value))
    known = {figure.name: figure for figure in figures}
    unknown = values.keys() - known.keys()
    if unknown:
        raise KeyError(f"measured, but no figure: {sorted(unknown)}")
    results = {name: _result(figure, values[name]) for name, figure in known.items() if name in values}
    for name, result in results.items():
        excuse = known[name].unless
        if excuse in results and results[excuse]["met"]:
            result["met"] = True
    return results


def _result(figure: Figure, values: list[float]) -> dict[str, Any]:
    median = statistics.median(values)
    return {
        "median": _rounded(median),
        "unit": figure.unit,
        "target": figure.target() + (f", or {figure.unless}" if figure.unless else ""),
        "met": figure.reached_by(median),
        "rounds": [_rounded(value) for value in values],
    }


def _rounded(value: float) -> float:
    """Return four significant digits or whole numbers, whichever says more."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what `results_of` returned as a Markdown table."""
    lines = ["| Figure | Median | Unit | Target | Met |", "|---|---|---|---|---|"]
    for name, result in results.items():
        met = {True: "yes", False: "NO", None: ""}[result["met"]]
        lines.append(f"| {name} | {result['median']:,} | {result['unit']} | {result['target']} | {met} |")
    return "\n".join(lines)
