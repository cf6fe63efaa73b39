"""Writes families as Prometheus text (version 0.0.4), in the form of Apache's bookies. Pure.

prometheus_client writes counters only as `name_total`, and summaries without quantiles. So it cannot serve the names
that the dashboards of BookKeeper and Pulsar read. The tests read this text with its parser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from bookie_service.metrics.families import QUANTILES, Family, Labels, Operation, Recorded, Stage, Value
from bookie_service.metrics.histograms import Histograms, buckets_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS_US = np.array([1 << bits for bits in range(5, 25)])
"""Bounds of our own histograms of times: from 32 us to 16.8 s."""
_BUCKETS = buckets_of(_BOUNDS_US)
_NOTHING: Recorded = (Histograms(), 0)


class Exposition:
    """Writes families again and again.

    A scrape delays requests, so it must be short. What seldom changes is kept as text: names, labels, the quantiles of
    a window, and all of a histogram that recorded nothing since the last scrape.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Summary | _Histogram] = {}
        """The texts of summaries and histograms, by name and labels."""

    def texts(self, families: Iterable[Family]) -> Iterator[str]:
        """Yield the text of each family: several lines, each with its end. Each name has one `# TYPE` line."""
        for family in families:
            help_text = f"# HELP {family.name} {family.text}\n" if family.text else ""
            lines = [f"{help_text}# TYPE {family.name} {family.kind}\n"]
            for sample in family.samples:
                match sample:
                    case Value():
                        lines.append(_line(family.name, sample))
                    case Operation():
                        lines.append(self._summary(family.name, sample).text())
                    case Stage():
                        lines.append(self._histogram(family.name, sample).text())
            yield "".join(lines)

    def _summary(self, name: str, operation: Operation) -> _Summary:
        own = _pairs(operation.labels)
        kept = self._kept.get((name, own))
        if not isinstance(kept, _Summary) or not kept.is_of(operation):
            kept = self._kept[name, own] = _Summary(name, own, operation)
        return kept

    def _histogram(self, name: str, stage: Stage) -> _Histogram:
        own = _pairs(stage.labels)
        kept = self._kept.get((name, own))
        if not isinstance(kept, _Histogram) or not kept.is_of(stage):
            kept = self._kept[name, own] = _Histogram(name, own, stage)
        return kept


class _Summary:
    """The text of an operation: failed calls first, then successful ones."""

    def __init__(self, name: str, own: str, operation: Operation) -> None:
        self._operation = operation
        after = f", {own}" if own else ""
        self._halves = (
            _Half(name, "false", after, operation.failed or _NOTHING, operation.unit),
            _Half(name, "true", after, operation.succeeded, operation.unit),
        )

    def is_of(self, operation: Operation) -> bool:
        return operation == self._operation

    def text(self) -> str:
        return "".join([half.text() for half in self._halves])


class _Half:
    """The text of the failed, or of the successful, calls of an operation."""

    def __init__(self, name: str, success: str, after: str, recorded: Recorded, unit: float) -> None:
        """`after`: the operation's own labels, which follow the others."""
        self._recorded = recorded
        self._unit = unit
        """One unit of the output, in recorded units."""
        self._heads = [f'{name}{{success="{success}",quantile="{share}"{after}}} ' for share in QUANTILES]
        self._count_head = f'{name}_count{{success="{success}"{after}}} '
        self._sum_head = f'{name}_sum{{success="{success}"{after}}} '
        self._window = -1
        """The number of the window whose quantiles `_quantiles` has."""
        self._quantiles = ""
        """The lines of the quantiles. Replaced by `text` when a window was closed."""

    def text(self) -> str:
        histograms, which = self._recorded
        if histograms.windows != self._window:
            values = histograms.quantiles(which, QUANTILES)
            lines = [f"{head}{_number(value / self._unit)}\n" for head, value in zip(self._heads, values)]
            self._window, self._quantiles = histograms.windows, "".join(lines)
        total = _number(histograms.sum(which) / self._unit)
        return f"{self._quantiles}{self._count_head}{histograms.count(which)}\n{self._sum_head}{total}\n"


class _Histogram:
    """The text of a histogram of our own, in seconds."""

    def __init__(self, name: str, own: str, stage: Stage) -> None:
        self._stage = stage
        before = f"{own}," if own else ""
        bounds = [*(f"{bound / 1e6:.12g}" for bound in _BOUNDS_US), "+Inf"]
        self._heads = [f'{name}_bucket{{{before}le="{bound}"}} ' for bound in bounds]
        """What precedes the number in the line of each bucket. Constant."""
        braces = f"{{{own}}}" if own else ""
        self._sum_head, self._count_head = f"{name}_sum{braces} ", f"{name}_count{braces} "
        self._last = (-1, -1)
        """The count and the sum that `_text` shows."""
        self._text = ""
        """All lines. Replaced by `text` when something was recorded."""

    def is_of(self, stage: Stage) -> bool:
        return stage == self._stage

    def text(self) -> str:
        histograms, which = self._stage.recorded
        count, total = histograms.count(which), histograms.sum(which)
        if (count, total) != self._last:
            below = [*histograms.below(which, _BUCKETS), count]
            lines = [f"{head}{number}\n" for head, number in zip(self._heads, below)]
            lines.append(f"{self._sum_head}{_number(total / 1e6)}\n{self._count_head}{count}\n")
            self._last, self._text = (count, total), "".join(lines)
        return self._text


def _line(name: str, sample: Value) -> str:
    braces = f"{{{_pairs(sample.labels)}}}" if sample.labels else ""
    return f"{name}{braces} {_number(sample.value)}\n"


def _pairs(labels: Labels) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
