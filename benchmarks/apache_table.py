"""The table of `apache_clients`: the figures of each side, the goals, and whether they are reached."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

APACHE = "A: Apache's client and bookies"
OURS = "B: Apache's client, bkspark's bookies"
OWN = "C: bkspark's client and bookies"
SIDES = (APACHE, OURS, OWN)
Figures = dict[str, float]
Round = Mapping[str, Mapping[str, float]]
"""What one round measured: side -> figure -> value."""


@dataclass(frozen=True)
class Goal:
    """A bound for a side's figure, or for its ratio to another figure of the same round."""

    side: str
    at_least: float | None = None
    at_most: float | None = None
    over: tuple[str, str] | None = None
    """Side and figure to divide by; None: the bound is for the figure itself."""

    def value(self, figure: str, one: Round) -> float | None:
        """Return what the bound is for, None when it was not measured."""
        value = one.get(self.side, {}).get(figure)
        if value is None or self.over is None:
            return value
        beside = one.get(self.over[0], {}).get(self.over[1])
        return value / beside if beside else None

    def holds(self, value: float) -> bool:
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most

    def text(self) -> str:
        """Return the goal for a person."""
        bound = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        if self.over is None:
            return f"{_letter(self.side)} {bound}"
        side, figure = self.over
        return f"{_letter(self.side)} {bound} × {_letter(side) if side != self.side else figure}"


def _letter(side: str) -> str:
    return side.partition(":")[0]


@dataclass(frozen=True)
class Row:
    """One line: a figure of all sides, and what is wanted of it."""

    figure: str
    unit: str
    goals: tuple[Goal, ...] = ()


def _rows() -> tuple[Row, ...]:
    rows = []
    for name, own in (("add", 2.2), ("add 100 B", 4.0)):
        for protocol in ("v2", "v3"):
            figure = f"{name} {protocol}"
            # The smaller entries have a goal for our client alone.
            goals = [Goal(OURS, at_least=1.3, over=(APACHE, figure))] if name == "add" else []
            goals += [Goal(OWN, at_least=own, over=(APACHE, figure))] if protocol == "v2" else []
            rows += [Row(figure, "entries/s", tuple(goals))]
            rows += [Row(f"{name}, processor {protocol}", "µs")]
    for percentile, own in (("p50", 0.3), ("p99", 0.4)):
        v2, v3 = f"single add {percentile} v2", f"single add {percentile} v3"
        rows.append(Row(v2, "ms", (Goal(OWN, at_most=own, over=(APACHE, v2)),)))
        rows.append(Row(v3, "ms", (Goal(OURS, at_most=1.2, over=(OURS, v2)),) if percentile == "p50" else ()))
    rows.append(Row("single add, processor v2", "µs"))
    rows.append(Row("single add, processor v3", "µs", (Goal(OURS, at_most=1000),)))
    for name in ("read", "mixed read"):
        for protocol in ("v2", "v3"):
            read, processor = f"{name} {protocol}", f"{name}, processor {protocol}"
            rows.append(Row(read, "entries/s", (Goal(OURS, at_least=1.2, over=(APACHE, read)),)))
            rows.append(Row(processor, "µs", (Goal(OURS, at_most=8),) if name == "read" else ()))
    rows.append(Row("batch read v2", "entries/s", (Goal(OWN, at_least=2.5, over=(APACHE, "batch read v2")),)))
    rows.append(Row("batch read, processor v2", "µs"))
    for protocol in ("v2", "v3"):
        rows += [Row(f"recovery {protocol}", "ms"), Row(f"recovery, processor {protocol}", "µs")]
    rows.append(Row("resident set of a bookie", "MiB", (Goal(OURS, at_most=300),)))
    return tuple(rows)


ROWS = _rows()


def verdicts(rows: Sequence[Row], rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return, for each row that was measured, the medians of all sides, and each goal with its median and whether it
    holds."""
    found = []
    for row in rows:
        medians = {side: _median([one.get(side, {}).get(row.figure) for one in rounds]) for side in SIDES}
        if all(value is None for value in medians.values()):
            continue
        goals = []
        for goal in row.goals:
            value = _median([goal.value(row.figure, one) for one in rounds])
            if value is not None:
                goals.append({"goal": goal.text(), "value": value, "holds": goal.holds(value)})
        found.append({"figure": row.figure, "unit": row.unit, **medians, "goals": goals})
    return found


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def table(rows: Sequence[Row], rounds: Sequence[Round]) -> str:
    """Return what `verdicts` returns as a Markdown table."""
    lines = [f"| What | {' | '.join(SIDES)} | Goal | Reached |", "|---|---|---|---|---|---|"]
    for row in verdicts(rows, rounds):
        cells = ["" if row[side] is None else _shown(row[side]) for side in SIDES]
        goals = "; ".join(goal["goal"] for goal in row["goals"])
        reached = "; ".join(f"{_shown(goal['value'])} {'yes' if goal['holds'] else '**NO**'}" for goal in row["goals"])
        lines.append(f"| {row['figure']}, {row['unit']} | {' | '.join(cells)} | {goals} | {reached} |")
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
