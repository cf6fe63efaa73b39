"""Overview: whether the cluster is healthy, and its last hour."""

from __future__ import annotations

import numpy as np
from aiohttp import web

from bkspark_console.access import view_of
from bkspark_console.history import (
    ADD_P99,
    ADDS,
    FREE,
    READ_BYTES,
    READS,
    SYNC_P99,
    WRITTEN,
    History,
    seconds_until_full,
)
from bkspark_console.plots import LINES_MAX, Plot, plot
from bkspark_console.render import render

_MIB = 1 / (1 << 20)
REASONS_SHOWN = 50
_RECENT = 30
"""Bookies are ordered by the median of this many samples."""


def add_to(app: web.Application) -> None:
    """Add the page."""
    app.router.add_get("/", overview)


async def overview(request: web.Request) -> web.Response:
    """Health with its reasons, space, and plots of all bookies."""
    view = view_of(request)
    facts, found = await view.health()
    history = view.history
    free = sum(each.free_bytes or 0 for each in facts.bookies)
    total = sum(each.total_bytes or 0 for each in facts.bookies)
    return render(
        request,
        "overview.html",
        title="Overview",
        facts=facts,
        reasons=found[:REASONS_SHOWN],
        more_reasons=max(0, len(found) - REASONS_SHOWN),
        serving=sum(each.serves for each in facts.bookies),
        writable=sum(each.serves and each.state == "available" for each in facts.bookies),
        free=free,
        total=total,
        full_in=seconds_until_full(history.times, history.total(FREE)),
        plots=_plots(history),
        measured=bool(history.bookies) and not np.isnan(history.total(ADDS)).all(),
    )


def _plots(history: History) -> list[Plot]:
    times = history.times
    return [
        plot("Entries", "per second", times, {"added": history.total(ADDS), "read": history.total(READS)}),
        plot(
            "Bytes",
            "MiB per second",
            times,
            {"written": history.total(WRITTEN), "read": history.total(READ_BYTES)},
            scale=_MIB,
        ),
        plot("Add latency, p99", "ms", times, slowest(history, ADD_P99)),
        plot("Journal sync, p99", "ms", times, slowest(history, SYNC_P99)),
    ]


def slowest(history: History, series: int) -> dict[str, np.ndarray]:
    """Return a series of the bookies in which it is highest, at most as many bookies as a plot shows."""
    ordered = sorted(history.bookies, key=lambda bookie: -np.nan_to_num(history.recent(bookie, series, _RECENT)))
    return {bookie: history.values(bookie, series) for bookie in sorted(ordered[:LINES_MAX])}
