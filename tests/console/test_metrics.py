"""Metrics of bookies: the text of Apache's and of ours, rates over time, plots, and which bookie is slow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bkspark_console import history as h
from bkspark_console.history import BookieSample, History, sample_of, seconds_until_full
from bkspark_console.pages.slow import paces
from bkspark_console.plots import FragmentCell, FragmentRow, fragments_drawing, nice, plot
from bkspark_console.prometheus_text import Scrape

APACHES = """\
# TYPE bookkeeper_server_ADD_ENTRY summary
bookkeeper_server_ADD_ENTRY{success="false",quantile="0.99", thread="0",threadPool="P"} NaN
bookkeeper_server_ADD_ENTRY{success="true",quantile="0.99", thread="0",threadPool="P"} 10.708
bookkeeper_server_ADD_ENTRY{success="true",quantile="0.99", thread="1",threadPool="P"} 3.5
bookkeeper_server_ADD_ENTRY_count{success="true", thread="0",threadPool="P"} 658
bookkeeper_server_ADD_ENTRY_count{success="true", thread="1",threadPool="P"} 42
bookie_journal_JOURNAL_SYNC{success="true",quantile="0.99", journalIndex="0"} 2.1
bookie_WRITE_BYTES 1.0E6
this line {is damaged
bookie_READ_BYTES x
"""


def test_series_of_apaches_threads_are_added_up_and_the_worst_quantile_counts() -> None:
    values = sample_of(Scrape(APACHES, h.WANTED)).values
    assert values[h.ADDS] == 700
    assert values[h.ADD_P99] == 10.708
    assert values[h.SYNC_P99] == 2.1
    assert values[h.WRITTEN] == 1e6
    assert math.isnan(values[h.READ_BYTES])
    assert math.isnan(values[h.FREE])


def _sample(adds: float = math.nan, add_p99: float = math.nan, free: float = math.nan) -> BookieSample:
    values = [math.nan] * h.SERIES
    values[h.ADDS], values[h.ADD_P99], values[h.FREE] = adds, add_p99, free
    return BookieSample(values, {"synced": (adds / 100, adds)}, [])


def test_counters_become_rates_and_a_restart_a_gap() -> None:
    history = History()
    for at, adds in ((10.0, 100.0), (20.0, 300.0), (30.0, 50.0), (40.0, 60.0)):
        history.add(at, {"a": _sample(adds)})
    history.add(50.0, {"a": None})
    history.add(60.0, {"a": _sample(1000)})
    assert np.array_equal(history.values("a", h.ADDS)[-6:], [np.nan, 20.0, np.nan, 1.0, np.nan, np.nan], equal_nan=True)
    assert history.now("a", h.ADDS) != history.now("a", h.ADDS), "not a number"
    assert history.total(h.ADDS)[-5] == 20.0
    assert history.stages("a") == [("synced", pytest.approx(10.0))]


def test_memory_is_bounded_and_a_bookie_that_is_gone_is_forgotten() -> None:
    history = History()
    history.add(0.0, {f"b{number}": _sample(add_p99=1.0) for number in range(h.BOOKIES_MAX + 5)})
    assert len(history.bookies) == h.BOOKIES_MAX
    for at in range(1, h.SAMPLES_MAX + 2):
        history.add(float(at), {"b1": _sample(add_p99=1.0)})
    assert history.bookies == ["b1"]
    assert len(history.times) == h.SAMPLES_MAX


def test_space_lasts_as_long_as_its_pace_says() -> None:
    times = np.array([0.0, 1000.0, 2000.0])
    assert seconds_until_full(times, np.array([300.0, 200.0, 100.0])) == pytest.approx(1000.0)
    assert math.isinf(seconds_until_full(times / 10, np.array([300.0, 200.0, 100.0]))), "too short to say"
    assert math.isinf(seconds_until_full(times, np.array([100.0, 100.0, 200.0])))
    assert math.isinf(seconds_until_full(times, np.full(3, np.nan)))


def test_a_bookie_is_slow_beside_its_peers_only() -> None:
    history = History()
    for at in range(5):
        history.add(float(at), {"a": _sample(add_p99=4.0), "b": _sample(add_p99=5.0), "c": _sample(add_p99=60.0)})
    found = paces(history)
    assert [(pace.bookie, pace.verdict) for pace in found] == [
        ("c", "slow"),
        ("b", "as its peers"),
        ("a", "as its peers"),
    ]
    assert found[0].slow_in == ["add p99"]
    alone = History()
    alone.add(0.0, {"a": _sample(add_p99=500.0), "b": _sample()})
    assert [pace.verdict for pace in paces(alone)] == ["as its peers", "unknown"]


def test_a_plot_says_its_values_as_text_and_escapes_names() -> None:
    times = np.array([np.nan, 0.0, 10.0, 20.0, 30.0])
    drawn = plot("Adds", "per second", times, {'<b>"x"': np.array([np.nan, 1.0, np.nan, 3.0, 37.0])})
    assert "<b>" not in drawn.svg
    assert "last 37, highest 37" in drawn.svg
    assert drawn.top == 50.0
    assert drawn.svg.count("<polyline") == 2, "a gap is not bridged"
    assert (drawn.lines[0].lowest, drawn.lines[0].highest) == (1.0, 37.0)
    assert "no values yet" in plot("Adds", "x", np.full(3, np.nan), {}).svg


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.3, 1.0, 999.0, 1e18, math.nan, math.inf])
def test_the_upper_edge_of_a_plot_is_above_its_values(value: float) -> None:
    edge = nice(value)
    assert edge > 0
    assert not value <= 1e300 or edge >= value


def test_fragments_are_drawn_with_their_state_in_words() -> None:
    rows = [FragmentRow(0, 99, [FragmentCell("a", "available"), FragmentCell("<b>", "down")])]
    drawing = fragments_drawing(rows, ["<b>", "a"])
    assert "entries 0 to 99 at &lt;b&gt;, down" in drawing
    assert 'class="cell available"' in drawing
    assert "<b>" not in drawing
