"""The benchmark of recorded times pays for their counting, too, and switches recording off. No figure is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.statistics_cost import Measured, add_one_by_one, compare_recording, read_many, read_one_by_one
from tests.bookie.serving import Serving, service_options


def test_each_burst_is_counted_before_its_cost_is_known_if_recording_is_on(tmp_path: Path) -> None:
    """Times are noted first and counted later, many at once: the counting is part of what recording costs."""
    measured = Measured(Serving(service_options(tmp_path)))
    try:
        for burst in (add_one_by_one, read_many, read_one_by_one):
            times = measured.serving.service.times

            def counted() -> int:
                return int(times.adds.count(0) + times.succeeded.count(0))  # noqa: B023

            before = counted()
            measured.record(False)
            assert measured.cost(burst) > 0
            assert counted() == before, burst.__name__
            measured.record(True)
            assert measured.cost(burst) > 0
            assert counted() >= before + 256, burst.__name__
    finally:
        measured.close()


def test_a_short_run_prints_what_each_burst_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measured(Serving(service_options(tmp_path)))
    try:
        compare_recording(measured, 2, [add_one_by_one])
    finally:
        measured.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("add_one_by_one ")
    assert "ratio of the medians" in line
    assert "ratio of the sums" in line
