"""Commits of the streaming sink: random schedules find nothing wrong with them, and notice planted defects."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from tests.simulation.commit_mutants import MUTANTS, Mutant, hunt
from tests.simulation.commits import Schedule, main, run_seeds

SCHEDULES = 3_000
"""Half of the planted defects are noticed within 10 of these schedules, and all but one within 350."""
_PARTS = 4
HUNTED_SCHEDULES = 12_000
"""Schedules that a planted defect may survive. One is noticed by number 4,508 only: its hunt begins shortly before."""


@pytest.mark.long_except("0", reason="a part has twice the schedules that notice all but one planted defect")
@pytest.mark.parametrize("part", range(_PARTS))
def test_readers_see_every_epoch_once_and_whole(part: int) -> None:
    """More schedules by `python -m tests.simulation.commits`."""
    count = SCHEDULES // _PARTS
    tally, failed = run_seeds(1 + part * count, count)
    assert {outcome.seed: outcome.violations for outcome in failed} == {}
    assert tally["schedules"] == count
    assert tally["epochs"] >= count


def test_every_kind_of_fault_strikes() -> None:
    tally, _ = run_seeds(1, 150)
    wanted = {"kill", "lost before", "lost after", "abort", "repeated epoch", "speculative attempt"}
    assert wanted | {"vacuum", "truncation", "two drivers"} <= set(tally)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_planted_defect_is_noticed(mutant: Mutant) -> None:
    assert hunt(mutant, mutant.first_seed, HUNTED_SCHEDULES) is not None, f"{mutant.bug}: nothing noticed it"


def test_there_are_at_least_ten_planted_defects() -> None:
    assert len({mutant.bug for mutant in MUTANTS}) == len(MUTANTS) >= 10


def outcomes_hash(first: int, count: int) -> str:
    """Return the hash of what became of some schedules."""
    digest = hashlib.sha256()
    for seed in range(first, first + count):
        digest.update(repr(Schedule(seed).run()).encode())
    return digest.hexdigest()


def test_same_seed_is_the_same_schedule_in_another_process_with_other_hashes() -> None:
    """C13: tokens are random, and must decide nothing."""
    program = "from tests.simulation.test_commits import outcomes_hash; print(outcomes_hash(1, 40))"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == outcomes_hash(1, 40)


def test_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--budget", "0.2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["seed"], report["violations"]) == (5, 0)
    assert report["schedules"] > 0


def test_replay_shows_one_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "17"]) == 0
    assert "schedules            1" in capsys.readouterr().out
