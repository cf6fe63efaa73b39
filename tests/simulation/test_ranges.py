"""Long runs can be ended and resumed, split and added up, and say what one run says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulation import ranges
from tests.simulation.ranges import CHUNKS, main


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHUNKS, "protocol", 10)


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """Return what the command reports, without the time that it took."""
    capsys.readouterr()
    assert main(["protocol", "--processes", "2", "--json", *arguments]) == 0
    printed = capsys.readouterr()
    assert "of" in printed.err or "--sum" in arguments or "done" in arguments
    found = json.loads(printed.out)
    del found["seconds"]
    return found


def test_run_that_was_ended_goes_on_and_says_what_one_run_says(
    tmp_path: Path, small_chunks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = report(capsys, "--seed", "5", "--schedules", "40")
    assert whole["runs"] == 40
    state = tmp_path / "state"
    asked = ("--seed", "5", "--schedules", "40", "--state", str(state))
    assert report(capsys, *asked) == whole
    # As a run leaves it that was ended while it wrote its third chunk.
    lines = state.read_text().splitlines()
    state.write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])
    assert report(capsys, *asked) == whole
    assert len(state.read_text().splitlines()) == 5


def test_parts_that_were_run_apart_add_up_to_the_whole(
    tmp_path: Path, small_chunks: None, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = report(capsys, "--seed", "5", "--schedules", "40")
    parts = [tmp_path / "one", tmp_path / "two"]
    for number, part in enumerate(parts):
        report(capsys, "--seed", str(5 + 20 * number), "--schedules", "20", "--state", str(part))
    assert report(capsys, "--seed", "5", "--sum", *map(str, parts)) == whole


def test_state_of_another_range_is_refused(tmp_path: Path, small_chunks: None) -> None:
    state = tmp_path / "state"
    arguments = ["protocol", "--processes", "1", "--state", str(state), "--schedules", "10"]
    assert main([*arguments, "--seed", "5"]) == 0
    with pytest.raises(SystemExit, match="the state of another run"):
        main([*arguments, "--seed", "6"])


def test_range_with_a_violation_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(seed: int, tally: ranges.Tally) -> None:
        tally.runs += 1
        if seed == 7:
            tally.violations += 1
            tally.failing[seed] = ["C1: something"]

    monkeypatch.setitem(ranges.RUNS, "protocol", run)
    assert main(["protocol", "--processes", "1", "--seed", "5", "--schedules", "10", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failing"] == {"7": ["C1: something"]}
