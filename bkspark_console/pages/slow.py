"""Slow bookies: each bookie's latencies compared with those of its peers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from bkspark_console.access import view_of
from bkspark_console.history import ADD_P99, QUEUE, READ_P99, SYNC_P99, History
from bkspark_console.pages.overview import slowest
from bkspark_console.plots import plot
from bkspark_console.render import render

RECENT = 30
"""The median of this many samples counts: five minutes."""
RATIO = 3.0
EXCESS_MS = 5.0
"""A bookie is slow if a latency is this many times, and this much, above the median of its peers."""
BOOKIES_SHOWN = 100
MEASURES: Mapping[str, int] = {"add p99": ADD_P99, "read p99": READ_P99, "journal sync p99": SYNC_P99}


@dataclass(frozen=True, slots=True)
class Pace:
    """A bookie's recent latencies in ms, and the ratio of each to the median of its peers; NaN: unknown.

    stages: the mean of each stage of an add in ms, the longest first.
    """

    bookie: str
    values: Mapping[str, float]
    """The latencies, by their names in MEASURES."""
    ratios: Mapping[str, float]
    queue: float
    """Adds that wait for the journal; NaN: unknown."""
    slow_in: Sequence[str]
    """The names of the latencies in which it is slow."""
    stages: Sequence[tuple[str, float]]

    @property
    def verdict(self) -> str:
        """The verdict: slow, as its peers, or unknown."""
        if self.slow_in:
            return "slow"
        return "unknown" if all(map(math.isnan, self.values.values())) else "as its peers"

    @property
    def worst(self) -> float:
        """The largest ratio; 0: none is known."""
        return max((ratio for ratio in self.ratios.values() if not math.isnan(ratio)), default=0.0)


def paces(history: History) -> list[Pace]:
    """Return how each bookie compares with its peers, the slowest first."""
    bookies = history.bookies
    recent = {
        name: {bookie: history.recent(bookie, series, RECENT) for bookie in bookies}
        for name, series in MEASURES.items()
    }
    found = []
    for bookie in bookies:
        values = {name: recent[name][bookie] for name in MEASURES}
        peers = {name: _median(value for other, value in recent[name].items() if other != bookie) for name in MEASURES}
        ratios = {name: _ratio(values[name], peers[name]) for name in MEASURES}
        slow_in = [name for name in MEASURES if ratios[name] >= RATIO and values[name] - peers[name] >= EXCESS_MS]
        stages = sorted(history.stages(bookie), key=lambda stage: -stage[1])
        found.append(Pace(bookie, values, ratios, history.recent(bookie, QUEUE, RECENT), slow_in, stages))
    return sorted(found, key=lambda pace: (pace.verdict != "slow", -pace.worst, pace.bookie))


def _median(values: Iterable[float]) -> float:
    known = np.array([value for value in values if not math.isnan(value)])
    return float(np.median(known)) if len(known) else math.nan


def _ratio(value: float, peers: float) -> float:
    return value / peers if peers > 0 else math.nan


def add_to(app: web.Application) -> None:
    """Add the page."""
    app.router.add_get("/slow", slow)


async def slow(request: web.Request) -> web.Response:
    """All bookies, ordered by how much slower than their peers they are."""
    view = view_of(request)
    history = view.history
    found, plans = paces(history), await view.plans()
    return render(
        request,
        "slow.html",
        title="Slow bookies",
        paces=found[:BOOKIES_SHOWN],
        more=max(0, len(found) - BOOKIES_SHOWN),
        measures=list(MEASURES),
        ratio=RATIO,
        excess_ms=EXCESS_MS,
        kinds={} if plans is None else {each.bookie: each.kind for each in plans.plans},
        plots=[
            plot(name[:1].upper() + name[1:], "ms", history.times, slowest(history, series))
            for name, series in MEASURES.items()
        ],
    )
