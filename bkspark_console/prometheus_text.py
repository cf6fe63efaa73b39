"""Values in the text of a bookie's `/metrics`, ours or Apache's. PURE.

Apache's names are the same in both. A line that is not understood is left out. Samples of one name are added up, or the
largest one counts, because Apache's bookies have a series for each worker thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One sample of a metric."""

    labels: Mapping[str, str]
    """By name."""
    value: float
    """A finite number."""


class Scrape:
    """The wanted metrics of one scrape, by name."""

    def __init__(self, text: str, wanted: Collection[str]) -> None:
        self._values: dict[str, list[MetricValue]] = {}
        """The wanted samples of each metric. Constant."""
        for line in text.splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name not in wanted:
                continue
            found = _LINE.fullmatch(line.strip())
            if found is None:
                continue
            try:
                value = float(found[3])
            except ValueError:
                continue
            if not math.isfinite(value):
                # NaN: there is nothing to measure. A plot has no place for infinity.
                continue
            labels = dict(_LABEL.findall(found[2] or ""))
            self._values.setdefault(name, []).append(MetricValue(labels, value))

    def of(self, name: str, **labels: str) -> list[MetricValue]:
        """Return the samples of a metric with these labels."""
        return [each for each in self._values.get(name, ()) if all(each.labels.get(k) == v for k, v in labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples; NaN: there are none."""
        values = [each.value for each in self.of(name, **labels)]
        return sum(values) if values else math.nan

    def largest(self, name: str, **labels: str) -> float:
        """Return the largest of a metric's samples; NaN: there are none."""
        return max((each.value for each in self.of(name, **labels)), default=math.nan)
