"""The benchmark of recorded times pays for their counting, too. No figure is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.statistics_cost import Measured, add_one_by_one, compare, read_many, read_one_by_one
from tests.bookie.serving import Serving, service_options


def test_two_bursts_of_each_kind_are_counted_at_least_once(tmp_path: Path) -> None:
    """Times are noted first and counted later, many at once: short bursts would mostly have no counting at all."""
    serving = Serving(service_options(tmp_path))
    measured = Measured(serving)
    try:
        for burst in (add_one_by_one, read_many, read_one_by_one):
            times = serving.service.times

            def counted() -> int:
                return int(times.adds.count(0) + times.succeeded.count(0))  # noqa: B023

            before = counted()
            assert measured.cost(burst) > 0
            burst(measured)
            assert counted() > before, burst.__name__
    finally:
        measured.close()


def test_a_short_run_prints_what_each_burst_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (replace(service_options(tmp_path / str(on)), statistics=on) for on in (False, True))
    compare(*map(Serving, options), 2, [add_one_by_one])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("add_one_by_one ")
    assert "ratio of the medians" in line
    assert "ratio of the sums" in line
