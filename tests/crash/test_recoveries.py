"""A kill, then a power cut in the recovery: a part of what `python -m tests.crash.recoveries` enumerates."""

from __future__ import annotations

import json

import pytest

from bookie_service.storage.ledgers.storage_class import StorageClass
from tests.crash.parallel import rare_collections
from tests.crash.recoveries import KINDS, Recoveries, main

SHARE = 0.004
"""Planted defects of a start are hunted in the act that they concern, in which a third of all pairs is tried."""


@pytest.mark.long_except(
    StorageClass.SORTED.short_name,
    reason="the replay of the journal is the same in every storage, and a script of each kind runs below",
)
@pytest.mark.parametrize("kind", KINDS)
def test_power_cut_in_the_recovery_of_a_killed_bookie_loses_nothing(kind: str) -> None:
    recoveries = Recoveries(SHARE)
    with rare_collections():
        recoveries.run_script(1, kind)
    assert recoveries.counts["kills"] > 150
    assert recoveries.images > 200


@pytest.mark.long(reason="a share of all pairs is tried above, and a third of them where a planted defect is hunted")
def test_every_pair_of_a_kill_and_a_cut_has_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--act", "fence", "--kind", StorageClass.SORTED.short_name]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["coverage"] == 1.0
    assert report["violations"] == 0


def test_command_runs_a_script_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--act", "fence", "--share", "0.01"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["scripts"] == len(KINDS)
    assert 0 < report["coverage"] < 0.1
    assert report["violations"] == 0
