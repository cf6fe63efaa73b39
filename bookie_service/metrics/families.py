"""Metrics as a scrape sees them: families of samples, and a registry that yields them. Pure.

Names, kinds and labels are those of Apache's bookies; a family of our own begins with `bkspark_`. A summary has
quantiles of the last closed window, for failed and for successful operations, and counts and sums that never decrease.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bookie_service.metrics.histograms import Histograms

QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
Labels = Mapping[str, str]
NO_LABELS: Labels = {}
Recorded = tuple[Histograms, int]
"""A row of histograms."""
_NOT_IN_NAMES = re.compile("[^a-zA-Z0-9_:]")

MS = 1000.0
"""Apache's times are in milliseconds, and recorded times in microseconds."""
PLAIN = 1.0


@dataclass(frozen=True, slots=True)
class Value:
    """One number, the `value` at the time of the scrape."""

    value: float
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """Times or sizes of an operation: failed and successful ones, each in a row of histograms; None: there are none.

    unit: one unit of Apache's, expressed in the recorded unit.
    """

    succeeded: Recorded
    """Those of successful calls; `failed`: of the others."""
    failed: Recorded | None = None
    labels: Labels = field(default_factory=dict)
    unit: float = MS


@dataclass(frozen=True, slots=True)
class Stage:
    """Times of one stage of requests, shown as a histogram of our own."""

    recorded: Recorded
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name. `kind`: gauge, counter, summary or histogram. `text`: its meaning."""

    name: str
    kind: str
    samples: Sequence[Value | Operation | Stage] = field(default_factory=tuple)
    text: str = ""


def name_of(text: str) -> str:
    """Return a text in the form of a part of a metric's name."""
    return _NOT_IN_NAMES.sub("_", text)


def gauge(name: str, value: float, labels: Labels = NO_LABELS, text: str = "") -> Family:
    """Return a family of one gauge."""
    return Family(name, "gauge", (Value(value, labels),), text)


def counter(name: str, value: float, labels: Labels = NO_LABELS, text: str = "") -> Family:
    """Return a family of one counter."""
    return Family(name, "counter", (Value(value, labels),), text)


class Registry:
    """The sources of a process's metrics."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[Family]]] = []
        """Functions that return families. They are called at each scrape."""
        self._histograms: list[Histograms] = []
        """Histograms whose window `roll` closes."""

    def add(self, source: Callable[[], Iterable[Family]]) -> None:
        """Add a source, which returns its families as they are at the call."""
        self._sources.append(source)

    def histograms(self, count: int = 1) -> Histograms:
        """Return new histograms whose windows are closed by `roll`."""
        made = Histograms(count)
        self.adopt(made)
        return made

    def adopt(self, histograms: Histograms) -> None:
        """Let `roll` close the windows of these histograms, too."""
        self._histograms.append(histograms)

    def roll(self) -> None:
        """Close the windows of all histograms."""
        for histograms in self._histograms:
            histograms.roll()

    def families(self) -> Iterator[Family]:
        """Yield all families. A name comes once if its source yields it once."""
        for source in self._sources:
            yield from source()
