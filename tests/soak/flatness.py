"""Whether lines are flat, by a stated rule, and a picture of them.

The rule: a straight line is fitted (least squares) to the samples of the second half. What it rises by in that half
must not exceed the bound of the figure: a share of the mean, and never less than a floor. In a soak of two hours that
half is an hour, so the rise is one per hour. Samples of a process that is younger than WARM_S do not count. A role with
few samples left, as of a process that is killed too often, is not judged, and listed so.

Faults end some processes again and again. What such a process holds depends on what it happened to do in its minutes,
so its samples are not independent. The line of a role with PROCESSES_MIN or more processes in the half is fitted to
their means, and twice the standard error of the rise is allowed beside the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

WARM_S = 60.0
SAMPLES_MIN = 20
PROCESSES_MIN = 5
TOO_FEW = "too few samples"
MIB = 1 << 20


@dataclass(frozen=True)
class Figure:
    """One figure of a role, and by how much it may rise in the second half."""

    name: str
    title: str
    floor: float
    share: float = 0.06
    scale: float = 1.0
    mean_max: float | None = None


FIGURES = (
    Figure("rss_bytes", "RSS, MiB", 16 * MIB, scale=MIB),
    Figure("descriptors", "descriptors", 16),
    Figure("threads", "threads", 4),
    Figure("disk_bytes", "disk, MiB", 64 * MIB, share=0.1, scale=MIB),
    Figure("log_lines_per_s", "log lines a second", 1.0, mean_max=10.0),
)
JVM_SHARE = 0.25
"""By how much RSS, descriptors and threads of a JVM may grow: its heap grows up to its limit."""
UNJUDGED = {("zookeeper", "disk_bytes")}
"""ZooKeeper removes old logs and snapshots once an hour."""


@dataclass(frozen=True)
class Line:
    """What became of one figure of one role."""

    role: str
    figure: str
    samples: int
    mean: float
    rise: float
    bound: float
    """With what is allowed for the standard error."""
    verdict: str

    @property
    def is_bad(self) -> bool:
        return self.verdict not in ("flat", TOO_FEW)


def series(samples: Sequence[dict[str, Any]], role: str, name: str, warm_s: float = WARM_S) -> np.ndarray:
    """Return the samples of a figure of a role that count, as rows of (seconds, value, process id)."""
    own = [sample for sample in samples if sample.get("role") == role]
    if name == "log_lines_per_s":
        rates = [
            (after["seconds"], (after["log_lines"] - before["log_lines"]) / (after["seconds"] - before["seconds"]), 0)
            for before, after in pairwise(each for each in own if "log_lines" in each)
            if after["seconds"] > before["seconds"]
        ]
        return np.array(rates, float).reshape(-1, 3)
    rows = [(each["seconds"], each[name], each["pid"]) for each in own if name in each and each["age_s"] >= warm_s]
    return np.array(rows, float).reshape(-1, 3)


def roles(samples: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(sample["role"] for sample in samples if "role" in sample))


def judge(
    samples: Sequence[dict[str, Any]], end_s: float, jvm_roles: Sequence[str] = (), warm_s: float = WARM_S
) -> list[Line]:
    """Judge every figure of every role over the second half of a soak that ended its load at `end_s`."""
    return list(_judged(samples, end_s, jvm_roles, warm_s))


def _judged(samples: Sequence[dict[str, Any]], end_s: float, jvm_roles: Sequence[str], warm_s: float) -> Iterator[Line]:
    for role in roles(samples):
        for figure in FIGURES:
            rows = series(samples, role, figure.name, warm_s)
            rows = rows[(rows[:, 0] >= end_s / 2) & (rows[:, 0] <= end_s)]
            if not len(rows) or (role, figure.name) in UNJUDGED:
                continue
            share = JVM_SHARE if role in jvm_roles and figure.name != "disk_bytes" else figure.share
            yield judge_line(role, figure, rows, end_s / 2, share)


def judge_line(role: str, figure: Figure, rows: np.ndarray, half_s: float, share: float) -> Line:
    """Judge rows of (seconds, value, process id) of a half that is `half_s` long."""
    mean = float(rows[:, 1].mean())
    bound = max(figure.floor, share * mean)
    rise, verdict = 0.0, TOO_FEW
    if len(rows) >= SAMPLES_MIN:
        processes = np.unique(rows[:, 2])
        if len(processes) < PROCESSES_MIN:
            rise = float(np.polyfit(rows[:, 0], rows[:, 1], 1)[0]) * half_s
        else:
            means = np.array([rows[rows[:, 2] == each, :2].mean(axis=0) for each in processes])
            (slope, _), covariance = np.polyfit(means[:, 0], means[:, 1], 1, cov=True)
            rise = float(slope) * half_s
            bound += 2 * float(np.sqrt(covariance[0, 0])) * half_s
        verdict = "flat" if rise <= bound else "RISES"
        if figure.mean_max is not None and mean > figure.mean_max:
            verdict = "TOO MANY"
    return Line(role, figure.name, len(rows), mean, rise, bound, verdict)


def draw(samples: Sequence[dict[str, Any]], path: Path, end_s: float, jvm_roles: Sequence[str] = ()) -> None:
    """Draw every figure over time: what has a JVM on the right, all else on the left. Grey lines are faults, the dashed
    one is the half, the solid one the end of load and faults."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = roles(samples)
    columns = [[name for name in names if name not in jvm_roles], [name for name in names if name in jvm_roles]]
    page, rows = pyplot.subplots(len(FIGURES) + 1, 2, figsize=(20, 20), sharex=True, constrained_layout=True)
    for figure, axes in zip(FIGURES, rows):
        for axis, shown in zip(axes, columns):
            _draw_figure(axis, samples, figure, shown)
    said = [(each["seconds"] / 60, each["load"]) for each in samples if "load" in each]
    minutes = [at for at, _ in said]
    for name in ("acknowledged", "followed", "reread"):
        rows[-1][0].plot(minutes, [facts[name] for _, facts in said], label=f"entries {name}")
    rows[-1][1].plot(minutes, [facts["rows"] for _, facts in said], label="rows of the log")
    for copy in said[-1][1]["copied"] if said else ():
        rows[-1][1].plot(minutes, [facts["copied"][copy] for _, facts in said], label=f"rows in {copy}")
    for axis in rows.flat:
        for sample in samples:
            if "event" in sample:
                axis.axvline(sample["seconds"] / 60, color="0.9", lw=0.5, zorder=0)
        axis.axvline(end_s / 120, color="0.4", lw=0.8, ls="--")
        axis.axvline(end_s / 60, color="0.4", lw=0.8)
        axis.set_ylim(bottom=0)
        axis.set_xlabel("minutes")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="lower right", fontsize=8)
    page.savefig(path, dpi=80)
    pyplot.close(page)


def _draw_figure(axis: Any, samples: Sequence[dict[str, Any]], figure: Figure, shown: Sequence[str]) -> None:
    for role in shown:
        rows = series(samples, role, figure.name, warm_s=0.0)
        if figure.name == "log_lines_per_s":
            rows = _by_minute(rows)
        if len(rows):
            axis.plot(rows[:, 0] / 60, rows[:, 1] / figure.scale, label=role, lw=1)
    axis.set_ylabel(figure.title)


def _by_minute(rows: np.ndarray) -> np.ndarray:
    """Return means of a rate over minutes."""
    if not len(rows):
        return rows
    minutes = rows[:, 0] // 60
    return np.array([(60 * minute + 30, rows[minutes == minute, 1].mean()) for minute in np.unique(minutes)])
