"""Pictures as inline SVG: lines over the last hour, and the fragments of a ledger. PURE.

Classes of the page's style sheet give the colours, so they follow light and dark. Lines are stretched to the width of
the page; the text around them is HTML, and is not stretched.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT = 600, 140
LINES_MAX = 8
"""The most lines of one plot; each has its own colour."""
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line of a plot: its name, the polylines of its known parts, and its lowest, mean, highest and last value."""

    name: str
    colour: int
    """The number of a colour in the style sheet."""
    parts: Sequence[str]
    lowest: float
    mean: float
    highest: float
    last: float


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot. top: the value at its upper edge. span_s: the time that it covers."""

    title: str
    """The heading, and the `unit` of its values."""
    unit: str
    lines: Sequence[PlotLine]
    top: float
    span_s: float

    @property
    def svg(self) -> str:
        """The picture. Its text alternative has the last and the highest value of each line."""
        said = "; ".join(
            f"{line.name}: last {_short(line.last)}, highest {_short(line.highest)}" for line in self.lines
        )
        label = html.escape(f"{self.title}, {self.unit}. {said or 'no values yet'}", quote=True)
        grid = "".join(
            f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y:g}" y2="{y:g}"/>' for y in (0.5, HEIGHT / 2, HEIGHT - 0.5)
        )
        lines = "".join(
            f'<polyline class="{_kind(points)} c{line.colour}" points="{points}"/>'
            for line in self.lines
            for points in line.parts
        )
        return (
            f'<svg class="plot" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'preserveAspectRatio="none">{grid}{lines}</svg>'
        )


def plot(title: str, unit: str, times: np.ndarray, values: Mapping[str, np.ndarray], *, scale: float = 1.0) -> Plot:
    """Return a plot of series over time. `scale` multiplies each value. At most LINES_MAX series are drawn."""
    known = times[~np.isnan(times)]
    first, last = (float(known[0]), float(known[-1])) if len(known) else (0.0, 0.0)
    span_s = max(last - first, 1.0)
    chosen = {name: line * scale for name, line in list(values.items())[:LINES_MAX]}
    highest = max((float(np.nanmax(line)) for line in chosen.values() if not np.isnan(line).all()), default=0.0)
    top = nice(highest)
    lines = []
    for colour, (name, line) in enumerate(chosen.items()):
        present = line[~np.isnan(line)]
        if not len(present):
            lines.append(PlotLine(name, colour, (), math.nan, math.nan, math.nan, math.nan))
            continue
        facts = float(present.min()), float(present.mean()), float(present.max()), float(present[-1])
        lines.append(PlotLine(name, colour, _parts(times, line, first, span_s, top), *facts))
    return Plot(title, unit, lines, top, span_s)


def _parts(times: np.ndarray, line: np.ndarray, first: float, span_s: float, top: float) -> list[str]:
    """Return the points of each run of known values. A single value is given twice."""
    parts: list[list[str]] = [[]]
    for at, value in zip(times.tolist(), line.tolist()):
        if math.isnan(at) or math.isnan(value):
            parts.append([])
            continue
        x = (at - first) / span_s * WIDTH
        y = HEIGHT - 1 - value / top * (HEIGHT - 2)
        parts[-1].append(f"{x:.1f},{y:.1f}")
    return [" ".join(part if len(part) > 1 else part * 2) for part in parts if part]


def _kind(points: str) -> str:
    """Return the class of a polyline. A single value is a dot."""
    first, second = points.split(" ", 2)[:2]
    return "line dot" if first == second else "line"


def nice(value: float) -> float:
    """Return a round number that is above 0 and not below a value.

    >>> nice(37.0), nice(0.0), nice(0.04)
    (50.0, 1.0, 0.05)
    """
    if not 0 < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _NICE if value <= step * power * (1 + 1e-9))


def _short(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:,.4g}"


@dataclass(frozen=True, slots=True)
class FragmentCell:
    """A bookie's part of a fragment. state: serves, readonly, down or unknown."""

    bookie: str
    state: str


@dataclass(frozen=True, slots=True)
class FragmentRow:
    """A fragment: its entries, and a cell for each slot of its ensemble. last_entry -1: unknown so far."""

    first_entry: int
    last_entry: int
    cells: Sequence[FragmentCell]


_ROW, _LEFT = 30, 4


def fragments_drawing(rows: Sequence[FragmentRow], bookies: Sequence[str]) -> str:
    """Return a picture with a row for each bookie. Fragments go from left to right, wider the more entries they have.

    A bar means that the bookie is in the fragment's ensemble. Bars differ in pattern as well as in colour.
    """
    entries = [max(1, row.last_entry - row.first_entry + 1) for row in rows]
    # The square root keeps short fragments visible beside long ones.
    weights = [math.sqrt(count) for count in entries]
    total = sum(weights) or 1.0
    parts = []
    x = 0.0
    for row, weight in zip(rows, weights):
        width = weight / total * WIDTH
        for cell in row.cells:
            y = bookies.index(cell.bookie) * _ROW + _LEFT
            title = html.escape(
                f"entries {row.first_entry} to {'...' if row.last_entry < 0 else row.last_entry} "
                f"at {cell.bookie}, {cell.state}"
            )
            parts.append(
                f'<rect class="cell {html.escape(cell.state, quote=True)}" x="{x + 1:.1f}" y="{y}" '
                f'width="{max(1.0, width - 2):.1f}" height="{_ROW - 8}"><title>{title}</title></rect>'
            )
        x += width
    label = html.escape(f"{len(rows)} fragments over {len(bookies)} bookies; the table below says the same", quote=True)
    return (
        f'<svg class="fragments" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {len(bookies) * _ROW}" '
        f'height="{len(bookies) * _ROW}" preserveAspectRatio="none">{"".join(parts)}</svg>'
    )
