"""The benchmark of a bookie's storage runs, measures every figure it names, and leaves nothing. No figure is judged."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import limits, storage, storage_speed
from benchmarks.figures import FULL, Figure, results_of
from benchmarks.servers import Servers
from bkspark.core.writer_options import WriterOptions

LIKE_ANOTHER = {"latency-three", "interleaved-while-written"}
"""Sections whose code another section runs, too."""


@pytest.mark.cluster
@pytest.mark.long(reason="it runs every section of a benchmark, each with bookies of its own")
def test_every_section_yields_its_figures_and_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sections = [name for name in storage.SECTIONS if name not in LIKE_ANOTHER]
    only = [word for name in sections for word in ("--only", name)]
    storage.main([*only, "--rounds", "1", "--scale", "0.001", "--dir", str(tmp_path), "--table"])
    printed, said = capsys.readouterr()
    result = json.loads(printed)
    assert list(result["section_s"]) == sections
    unmeasured = {figure.name for figure in storage.FIGURES} - set(result["figures"])
    assert {name.partition("_")[0] for name in unmeasured} <= {"latency", "fdatasync", "interleaved"}
    assert all(f"| {name} |" in said for name in result["figures"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
@pytest.mark.long(reason="the benchmark runs by hand, on a disk that has nothing else to do")
def test_a_rate_is_measured_although_no_answer_comes_within_its_time(tmp_path: Path):
    """As on a busy disk. The cost of a compaction is a share of this rate."""
    sizes = replace(FULL.scaled(0.001, 1), seconds=0.0)
    with Servers(tmp_path) as servers:
        (found,) = storage.SECTIONS["compaction"](servers, sizes)
    assert found["compaction_idle_adds_per_s"] > 0


@pytest.mark.cluster
@pytest.mark.long(reason="it waits longer than a writer does")
def test_writing_goes_on_after_a_stall_that_is_longer_than_a_writer_usually_waits(tmp_path: Path):
    stall_s = 1.2 * WriterOptions().add_timeout_s
    with Servers(tmp_path) as servers, servers.bookie() as bookie:
        end = threading.Timer(stall_s, os.kill, (bookie.pid, signal.SIGCONT))
        os.kill(bookie.pid, signal.SIGSTOP)
        end.start()
        try:
            result = storage_speed.write_as_client(servers, 1, window=1, entries=3)
        finally:
            # A bookie that is stopped does not end, and its number may be another process's later.
            end.cancel()
            end.join()
            os.kill(bookie.pid, signal.SIGCONT)
    assert result["entries"] == 3


def test_speed_of_a_disk_is_above_zero_however_slow_it_is(tmp_path: Path):
    measured = limits.measure_disk(tmp_path, group_bytes=1, writers=1, seconds=0.0)
    assert measured["mib_per_s"] > 0
    assert measured["p50_ms"] > 0


def test_a_result_is_the_median_with_its_target():
    figures = [Figure("fast", "1/s", at_least=10), Figure("slow", "s", at_most=2), Figure("plain", "")]
    results = results_of(figures, [{"fast": 9.0, "plain": 1.0}, {"fast": 30.0, "slow": 2.5}, {"fast": 11.0}])
    assert (results["fast"]["median"], results["fast"]["met"], results["fast"]["target"]) == (11.0, True, ">= 10")
    assert (results["slow"]["met"], results["plain"]["met"]) == (False, None)
    assert results["fast"]["rounds"] == [9.0, 30.0, 11.0]


def test_a_target_that_another_one_excuses_is_met_by_either():
    figures = [Figure("a", "", at_least=10, unless="b"), Figure("b", "", at_least=10, unless="a")]
    for values, met in (((11, 1), True), ((1, 11), True), ((1, 1), False)):
        results = results_of(figures, [dict(zip("ab", values))])
        assert [result["met"] for result in results.values()] == [met, met]


def test_a_measured_name_without_a_figure_is_an_error():
    with pytest.raises(KeyError, match="typo"):
        results_of([Figure("a", "")], [{"typo": 1.0}])


def test_every_target_of_the_specification_has_a_figure():
    targets = {figure.name: figure.target() for figure in storage.FIGURES if figure.target()}
    assert targets == {
        "adds_per_s": ">= 180,000",
        "adds_share_of_disk": ">= 0.6",
        "adds_bookie_us": "<= 4",
        "adds_by_client_per_s": ">= 180,000",
        "latency_p50_per_fdatasync": "<= 3",
        "latency_p99_per_fdatasync": "<= 5",
        "latency_three_bookies_p50_ms": "<= 0.8",
        "batch_reads_per_s": ">= 1,000,000",
        "batch_reads_bookie_s_per_gib": "<= 0.5",
        "sorted_share_while_written": ">= 0.7",
        "compaction_cost": "<= 0.3",
        "start_s": "<= 1",
        "rotation_resident_above_caches_mib": "<= 150",
        "restart_many_ledgers_s": "<= 2",
        "replay_mib_per_s": ">= 200",
    }
    assert (FULL.rounds, FULL.ledgers, FULL.rotating_mib) == (5, 100_000, 20 * 1024)
