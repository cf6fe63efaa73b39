"""The structure keeps what it was given: how many hops requests make, how large the writer's classes are."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.structure.hops import ROOT

pytestmark = pytest.mark.xdist_group("structure")
"""All of them need what one process measured."""

HOPS_MAX = {
    "one append, warm": (90, 24),
    "Spark partition read, 12 entries": (178, 34),
    "first Spark partition read of a worker, 12 entries": (240, 40),
}
"""Calls of product code, and files that they are in: what is reached. The limits that matter are 110 calls in 24 files
for an append, and 240 in 40 for a read."""


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What `python -m tests.structure --json` prints: in a process of its own, where nothing else runs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.structure", "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("trip", HOPS_MAX)
def test_hops_of_a_request_stay_within_their_bounds(measured: dict[str, Any], trip: str) -> None:
    calls_max, files_max = HOPS_MAX[trip]
    hops = measured["hops"][trip]
    assert hops["calls"] <= calls_max, "`python -m tests.structure --trip NAME` shows the calls"
    assert hops["files"] <= files_max


def test_classes_of_the_writer_stay_small(measured: dict[str, Any]) -> None:
    rows = measured["sizes"]
    assert int(rows["methods of LedgerWriter"]) <= 20
    assert int(rows["methods of WriterCore"]) <= 25
    for path in ("bkspark/core/writer.py", "bkspark/ledger/writer.py"):
        assert len((ROOT / path).read_text().splitlines()) <= 600
