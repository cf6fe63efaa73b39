"""The text of metrics: the form of Apache's bookies, which Prometheus can read."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookie_service.metrics.exposition import Exposition
from bookie_service.metrics.families import PLAIN, Family, Operation, Registry, Stage, Value, counter, gauge
from bookie_service.metrics.histograms import Histograms


def text_of(*families: Family) -> str:
    return "".join(Exposition().texts(families))


def test_summary_has_apaches_form_to_the_letter() -> None:
    """Failed ones first, seven quantiles, then count and sum; own labels after a comma and a space."""
    ok, failed = Histograms(), Histograms()
    ok.record(0, 2100, 4)
    ok.roll()
    text = text_of(
        Family("bookie_journal_JOURNAL_SYNC", "summary", (Operation((ok, 0), (failed, 0), {"journalIndex": "0"}),))
    )
    lines = text.splitlines()
    assert lines[0] == "# TYPE bookie_journal_JOURNAL_SYNC summary"
    assert lines[1] == 'bookie_journal_JOURNAL_SYNC{success="false",quantile="0.5", journalIndex="0"} NaN'
    assert lines[8] == 'bookie_journal_JOURNAL_SYNC_count{success="false", journalIndex="0"} 0'
    shares = [line.split('quantile="')[1].split('"')[0] for line in lines[10:17]]
    assert shares == ["0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"]
    assert lines[17] == 'bookie_journal_JOURNAL_SYNC_count{success="true", journalIndex="0"} 4'
    assert lines[18] == 'bookie_journal_JOURNAL_SYNC_sum{success="true", journalIndex="0"} 8.4'
    assert len(lines) == 19


def test_counter_has_no_total_and_a_value_without_labels_no_braces() -> None:
    assert text_of(counter("bookie_WRITE_BYTES", 7)) == "# TYPE bookie_WRITE_BYTES counter\nbookie_WRITE_BYTES 7\n"
    assert text_of(gauge("x", 1, {"a": "1", "b": "2"})).splitlines()[1] == 'x{a="1",b="2"} 1'


def test_labels_are_escaped() -> None:
    """Apache's are not: a directory with a quote in its name breaks every scrape."""
    text = text_of(gauge("x", 0.5, {"directory": 'a"b\\c\nd'}))
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"directory": 'a"b\\c\nd'}


def test_histogram_is_cumulative_in_seconds() -> None:
    recorded = Histograms()
    for us in (10, 40, 3000, 10_000_000, 60_000_000):
        recorded.record(0, us)
    text = text_of(Family("bkspark_x_seconds", "histogram", (Stage((recorded, 0), {"stage": "synced"}),), "Times."))
    assert text.startswith("# HELP bkspark_x_seconds Times.\n# TYPE bkspark_x_seconds histogram\n")
    (family,) = text_string_to_metric_families(text)
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets["3.2e-05"] == 1
    assert buckets["6.4e-05"] == 2
    assert buckets["0.004096"] == 3
    assert buckets["16.777216"] == 4
    assert buckets["+Inf"] == 5
    assert list(buckets.values()) == sorted(buckets.values())
    (total,) = (s.value for s in family.samples if s.name.endswith("_sum"))
    assert math.isclose(total, 70.00305)


@pytest.mark.parametrize("labels", [{}, {"ledgerDir": "/a{}b,/c"}])
def test_texts_that_are_kept_are_those_of_a_new_exposition(labels: dict[str, str]) -> None:
    """Between two scrapes nothing is recorded, something is, a window is closed, or other histograms take the place."""
    exposition, ok, failed = Exposition(), Histograms(2), Histograms(1)

    def families() -> list[Family]:
        return [
            Family("a", "summary", (Operation((ok, 1), (failed, 0), labels), Operation((ok, 0), None, {"x": "1"}))),
            Family("b_seconds", "histogram", (Stage((ok, 1), labels), Stage((failed, 0), {"x": "1"}))),
        ]

    def check() -> None:
        assert "".join(exposition.texts(families())) == text_of(*families())

    check()
    check()
    ok.record(1, 900, 3)
    check()
    failed.record(0, 70)
    ok.roll()
    check()
    failed.roll()
    ok.roll()
    check()
    ok = Histograms(2)
    ok.record(1, 5)
    check()


def test_sizes_are_not_scaled() -> None:
    sizes = Histograms()
    sizes.record(0, 100, 3)
    sizes.roll()
    text = text_of(Family("x", "summary", (Operation((sizes, 0), None, {}, PLAIN),)))
    assert 'x_sum{success="true"} 300.0' in text
    assert 'x{success="true",quantile="0.5"} 101.5' in text


def test_registry_rolls_every_histogram_and_asks_every_source() -> None:
    registry = Registry()
    made, adopted = registry.histograms(2), Histograms()
    registry.adopt(adopted)
    made.record(1, 9)
    adopted.record(0, 9)
    registry.roll()
    assert made.quantiles(1, [1.0]) == adopted.quantiles(0, [1.0]) == [9]
    registry.add(lambda: [gauge("a", 1)])
    registry.add(lambda: (Family("b", "gauge", (Value(2),)),))
    assert [family.name for family in registry.families()] == ["a", "b"]
