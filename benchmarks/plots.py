"""Bars of a benchmark's medians, one panel a case (needs matplotlib: `pip install bkspark[plot]`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

# Draws into files; a screen is not needed.
matplotlib.use("agg")

from matplotlib import pyplot

COLUMNS = 2
PANEL_INCHES = (5.5, 2.6)
OURS, OTHERS = "tab:blue", "tab:gray"


def bars(panels: Mapping[str, tuple[str, Mapping[str, float]]], path: Path, ours: frozenset[str] = frozenset()) -> None:
    """Draw each panel's bars, given its unit and each bar's length by name; `ours` are drawn in colour."""
    rows = -(-len(panels) // COLUMNS)
    size = (PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=size, squeeze=False, layout="constrained")
    for panel in axes.flat[len(panels) :]:
        panel.set_visible(False)
    for panel, (name, (unit, lengths)) in zip(axes.flat, panels.items()):
        drawn = panel.barh(list(lengths), lengths.values(), color=[OURS if n in ours else OTHERS for n in lengths])
        panel.bar_label(drawn, [f"{length:,.0f}" for length in lengths.values()], padding=3)
        panel.set_title(f"{name} ({unit})", loc="left")
        panel.margins(x=0.18)
        panel.invert_yaxis()
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
