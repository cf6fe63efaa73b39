"""A short campaign on real processes; `python -m tests.chaos` runs longer ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.chaos import gray
from tests.chaos.campaign import run_campaign

pytestmark = pytest.mark.cluster

BUDGET_S = 15.0
"""Seconds of faults; starting, healing and checking take as long again. BKSPARK_BUDGET and BKSPARK_SEED: another
run."""


@pytest.mark.long(reason="each run of .ci/run does this for three minutes")
def test_no_checker_complains_of_real_processes_under_kills_pauses_and_partitions(tmp_path: Path) -> None:
    seed = int(os.environ.get("BKSPARK_SEED") or 5)
    report = run_campaign(tmp_path, seed, float(os.environ.get("BKSPARK_BUDGET") or BUDGET_S))
    assert report.violations == []
    assert report.acknowledged > 0
    assert sum(report.faults.values()) > 5


@pytest.mark.long(
    reason="tests/ledger/test_gray_bookies.py holds its ratios in virtual time; each run of .ci/run does this"
)
def test_gray_command_measures_a_bookie_that_neither_works_nor_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """What the ratios are is for a quiet machine; tests/ledger/test_gray_bookies.py holds them in virtual time."""
    gray.main(["--seconds", "6", "--latency-seconds", "1", "--kind", "cut", "--json"])
    found, reads = map(json.loads, capsys.readouterr().out.splitlines())
    assert reads["reads"] == "tenth"
    assert found["kind"] == "cut"
    assert found["back_s"] is not None
    assert found["followed"] == found["to_follow"] > 0
