"""The path /metrics: what it answers, and what happens while a scrape is rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bkspark.security.roles import Role
from bookie_service.admin.http import routing
from bookie_service.admin.http.messages import HttpRequest, HttpResponse
from bookie_service.admin.http.routing import Routes, add_metrics
from bookie_service.metrics.families import Family, Registry, gauge


async def prepared() -> None:
    """Nothing needs to be prepared."""


async def scraped(registry: Registry) -> HttpResponse:
    routes = Routes()
    add_metrics(routes, registry, prepared)
    return await routes.answer(HttpRequest("GET", "/metrics", {}, role=Role.METRICS))


def test_other_work_is_done_between_the_steps_of_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "STEP_S", -1.0)
    done: list[str] = []

    def families() -> Iterator[Family]:
        for number in range(3):
            done.append("rendered")
            yield gauge(f"g{number}", number)

    async def work() -> None:
        while True:
            done.append("worked")
            await asyncio.sleep(0)

    async def test() -> bytes:
        registry = Registry()
        registry.add(families)
        working = asyncio.ensure_future(work())
        response = await scraped(registry)
        working.cancel()
        return response.body

    text = asyncio.run(test())
    assert text == b"# TYPE g0 gauge\ng0 0\n# TYPE g1 gauge\ng1 1\n# TYPE g2 gauge\ng2 2\n"
    steps = "".join(each[0] for each in done).split("r")
    assert len(steps) == 4
    assert all(steps[1:])


def test_label_that_is_not_utf8_does_not_end_every_scrape() -> None:
    """Python has bytes that are not UTF-8 as halves of pairs of surrogates."""
    registry = Registry()
    registry.add(lambda: [gauge("used", 1, {"directory": "/a\udcff"})])
    assert asyncio.run(scraped(registry)).body == b'# TYPE used gauge\nused{directory="/a\\udcff"} 1\n'
