"""Random schedules of the product's cores: nothing that any checker knows of goes wrong, and every one replays."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest

from tests.simulation.__main__ import main
from tests.simulation.campaign import RELAXED_QUOTAS, run_seeds
from tests.simulation.plan import plan_of, relaxed_plan_of
from tests.simulation.schedule import run_plan

SCHEDULES = 3_000
"""Half of the planted defects are noticed within 10 of these schedules, nine of ten within 650."""
RELAXED_SCHEDULES = 600
_PARTS = 2


FAULTS = {"crash", "lost for ever", "cut", "lost", "repeated", "pause", "kill", "reset", "hold", "clock jump"}
FAULTS |= {"damage", "stall", "session expired", "EIO", "EREADONLY", "ETOOMANYREQUESTS"}
FAULTS |= {f"metadata {how} {when}" for how in ("lost", "expired") for when in ("before", "after")}


@pytest.mark.long_except("0", reason="a part has twice the schedules that notice nine of ten planted defects")
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_checker_complains_of_any_schedule(part: int) -> None:
    tally = run_seeds(1 + part, _PARTS, SCHEDULES // _PARTS, None)
    assert tally.failing == {}
    assert tally.unmet() == []
    assert tally.schedules == SCHEDULES // _PARTS
    assert set(tally.faults) >= FAULTS, "every kind of fault strikes"
    print(json.dumps(tally.report(1 + part, 0)))


def test_writer_ends_after_an_error_and_then_a_refusal_of_one_bookie() -> None:
    """The writer waited for ever for an entry that no bookie was asked to store again."""
    assert run_plan(plan_of(7281044)).violations == []


def test_recovery_ends_whose_writer_fails_between_two_entries() -> None:
    """The simulated client let the writer's error pass, where the real one fails the recovery."""
    assert run_plan(plan_of(7320759)).violations == []


def test_add_may_wait_for_a_reset_that_a_cut_link_loses() -> None:
    """The link lost the news that the bookie had crashed; the checker took the cut for harmless."""
    assert run_plan(plan_of(7370803)).violations == []


def test_bookie_that_refuses_load_beyond_a_slow_link_may_be_left_out():
    """The probes of its refusal took 17 ms each: the owner went on without it after 50 ms, as it may."""
    assert run_plan(plan_of(7619002)).violations == []


def test_no_checker_complains_of_ledgers_with_relaxed_durability() -> None:
    """C11: what a LAC or `sync` said is synced survives the crash of all bookies at once."""
    tally = run_seeds(1, 1, RELAXED_SCHEDULES, None, relaxed_plan_of)
    assert tally.failing == {}
    assert tally.faults["crash"] > RELAXED_SCHEDULES // 2
    assert tally.unmet(RELAXED_QUOTAS) == []


def trace_hash(first: int, count: int) -> str:
    """Return the hash of everything that happened in some schedules."""
    digest = hashlib.sha256()
    for seed in range(first, first + count):
        outcome = run_plan(plan_of(seed), trace=True)
        digest.update(repr((outcome.trace, outcome.ledger.acknowledged, outcome.ledger.closes)).encode())
    return digest.hexdigest()


def test_same_seed_is_the_same_schedule_in_another_process_with_other_hashes() -> None:
    """C13."""
    program = "from tests.simulation.test_campaign import trace_hash; print(trace_hash(1, 100))"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == trace_hash(1, 100)


def test_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--budget", "1", "--processes", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seed"] == 5
    assert report["violations"] == 0
    assert {"seconds", "schedules", "acknowledged", "faults", "quotas"} <= set(report)


def test_replay_shows_the_plan_and_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "17"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("seed 17: quorums=")
    assert "version 0 by owner: OPEN" in shown
