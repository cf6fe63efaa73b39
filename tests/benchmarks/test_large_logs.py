"""The benchmark of large logs runs, on a small one, and prints every figure that it names."""

from __future__ import annotations

import json

import pytest

from benchmarks.large_logs import FIGURES, main

pytestmark = [pytest.mark.cluster, pytest.mark.long(reason="it makes and plans a log of many ledgers several times")]


def test_every_figure_is_measured(capfd: pytest.CaptureFixture[str]) -> None:
    """More ledgers than the driver reads the metadata of, so tasks look up their own."""
    main(["--json", "--ledgers", "2500", "--partition-gib", "0.2"])
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert {figure.name for figure in FIGURES} <= found.keys()
    assert found["plan_partitions"] >= 3
