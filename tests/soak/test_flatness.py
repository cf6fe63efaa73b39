"""The rule by which the lines of a soak are flat, on lines made by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import figures
from tests.soak import sampling
from tests.soak.flatness import MIB, draw, judge
from tests.soak.sampling import LineCount, Role, Samples

END_S = 7200.0
STEP_S = 5.0


def samples_of(
    value: Callable[[float], float], name: str = "rss_bytes", age: Callable[[float], float] | None = None
) -> list[dict[str, Any]]:
    times = [STEP_S * number for number in range(int(END_S / STEP_S) + 1)]
    ages = {at: age(at) if age else at for at in times}
    # A process began so long before.
    return [
        {"seconds": at, "role": "bookie1", "age_s": ages[at], "pid": round(at - ages[at]), name: value(at)}
        for at in times
    ]


def verdict(samples: list[dict[str, Any]], jvm_roles: list[str] | None = None) -> str:
    (line,) = judge(samples, END_S, jvm_roles or [])
    return line.verdict


def test_a_level_line_with_noise_is_flat() -> None:
    assert verdict(samples_of(lambda at: 100 * MIB + 5 * MIB * (at // STEP_S % 3))) == "flat"


def test_a_line_that_grew_in_the_first_half_only_is_flat() -> None:
    assert verdict(samples_of(lambda at: min(at, END_S / 2) / END_S * 400 * MIB)) == "flat"


def test_a_leak_of_a_tenth_in_an_hour_is_not_flat() -> None:
    assert verdict(samples_of(lambda at: 300 * MIB * (1 + 0.1 * at / 3600))) == "RISES"


def test_a_leak_below_the_floor_is_taken_for_noise() -> None:
    assert verdict(samples_of(lambda at: 60 * MIB + 10 * MIB * at / 3600)) == "flat"
    assert verdict(samples_of(lambda at: 60 * MIB + 20 * MIB * at / 3600)) == "RISES"


def test_a_leak_of_descriptors_and_of_threads_is_not_flat() -> None:
    assert verdict(samples_of(lambda at: 40 + 20 * at / 3600, "descriptors")) == "RISES"
    assert verdict(samples_of(lambda at: 22 + 6 * at / 3600, "threads")) == "RISES"


def test_disks_that_garbage_collection_does_not_keep_up_with_are_not_flat() -> None:
    assert verdict(samples_of(lambda at: 200 * MIB + 100 * MIB * at / 3600, "disk_bytes")) == "RISES"


def test_a_heap_may_grow_by_more_than_what_is_ours() -> None:
    samples = samples_of(lambda at: 1000 * MIB * (1 + 0.15 * at / 3600))
    assert verdict(samples) == "RISES"
    assert verdict(samples, ["bookie1"]) == "flat"


def test_what_a_process_takes_while_it_starts_does_not_count() -> None:
    def age(at: float) -> float:
        return at % 600

    samples = samples_of(lambda at: min(age(at), 60) / 60 * 100 * MIB, age=age)
    assert verdict(samples) == "flat"


def test_a_peak_in_one_process_of_many_is_not_a_rise() -> None:
    """A bookie that faults end every few minutes had its flood late in one half and early in the other."""
    samples = samples_of(lambda at: (250 if 6300 < at < 6600 else 80) * MIB, age=lambda at: at % 300)
    assert verdict(samples) == "flat"


def test_a_rise_from_process_to_process_is_not_flat() -> None:
    """As of a file that grows and is loaded at each start."""

    def value(at: float) -> float:
        return (60 + 40 * at / 3600 + 10 * (at // 300 % 3)) * MIB

    assert verdict(samples_of(value, age=lambda at: at % 300)) == "RISES"


def test_a_process_that_is_killed_all_the_time_is_not_judged() -> None:
    assert judge(samples_of(lambda at: at, age=lambda at: at % 50), END_S) == []
    few = samples_of(lambda at: at * MIB, age=lambda at: 100 if at > END_S - 50 else 0)
    assert verdict(few) == "too few samples"


def test_more_than_ten_log_lines_a_second_are_too_many() -> None:
    assert verdict(samples_of(lambda at: 2 * at, "log_lines")) == "flat"
    assert verdict(samples_of(lambda at: 11 * at, "log_lines")) == "TOO MANY"
    assert verdict(samples_of(lambda at: at * at / 3600, "log_lines")) == "RISES"


def test_a_picture_is_drawn_of_samples_events_and_load(tmp_path: Path) -> None:
    load = {"acknowledged": 1, "followed": 1, "reread": 0, "rows": 1, "copied": {"copy": 1}}
    samples = [*samples_of(lambda at: MIB), {"seconds": 9.0, "event": "kill"}, {"seconds": 10.0, "load": load}]
    draw(samples, tmp_path / "soak.png", END_S, ["zookeeper"])
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_samples_are_taken_of_each_process_that_has_a_role(tmp_path: Path) -> None:
    folder, log = tmp_path / "data", tmp_path / "log"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(100_000))
    log.write_text("one\ntwo\n")
    roles = [Role("self", lambda: [os.getpid()], [folder], log), Role("ended", lambda: [1 << 30])]
    samples = Samples(tmp_path / "samples.jsonl", roles, interval_s=3600)
    samples.start()
    samples.note(event="kill", what="nothing")
    samples.stop()  # takes a last sample
    event, own = sampling.load(tmp_path / "samples.jsonl")
    assert event["event"] == "kill"
    assert (own["role"], own["pid"], own["log_lines"], own["processes"]) == ("self", os.getpid(), 2, 1)
    assert own["rss_bytes"] > MIB
    assert own["threads"] >= 1
    assert 100_000 <= own["disk_bytes"] < 200_000


def test_what_ends_the_taking_of_samples_is_kept(tmp_path: Path) -> None:
    def pids() -> list[int]:
        raise AssertionError("no process")

    samples = Samples(tmp_path / "samples.jsonl", [Role("gone", pids)], interval_s=3600)
    samples.start()
    samples.stop()
    assert repr(samples.failure) == "AssertionError('no process')"


def test_lines_of_a_log_are_counted_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    count = LineCount(log)
    assert count.count() == 0
    log.write_text("one\ntwo\nthr")
    assert count.count() == 2
    with log.open("a") as more:
        more.write("ee\n")
    assert count.count() == 3


def test_figures_count_all_running_processes_and_no_ended_one() -> None:
    once, twice = figures([os.getpid()]), figures([os.getpid(), os.getpid(), 1 << 30])
    assert once is not None
    assert twice is not None
    assert (twice.processes, twice.threads) == (2, 2 * once.threads)
    assert figures([1 << 30]) is None


@pytest.mark.parametrize("name", ["rss_bytes", "descriptors", "threads", "disk_bytes"])
def test_every_figure_of_a_sample_is_judged(name: str) -> None:
    (line,) = judge(samples_of(lambda at: 10.0, name), END_S)
    assert (line.role, line.figure, line.verdict) == ("bookie1", name, "flat")
