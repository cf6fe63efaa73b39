"""A kill, then a power cut in the recovery: a part of what `python -m tests.crash.recoveries` enumerates."""

from __future__ import annotations

import json

import pytest

from tests.crash.parallel import rare_collections
from tests.crash.recoveries import KINDS, Recoveries, main

SHARE = 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_power_cut_in_the_recovery_of_a_killed_bookie_loses_nothing(kind: str) -> None:
    recoveries = Recoveries(SHARE)
    with rare_collections():
        recoveries.run_script(1, kind)
    assert recoveries.counts["kills"] > 150
    assert recoveries.images > 500


def test_every_pair_of_a_kill_and_a_cut_has_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--act", "fence"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["coverage"] == 1.0
    assert report["scripts"] == len(KINDS)
    assert report["violations"] == 0
