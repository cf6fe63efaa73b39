"""The benchmark of Apache's client: its table, and its options."""

from __future__ import annotations

import pytest

from benchmarks.apache_clients import main
from benchmarks.apache_table import APACHE, OURS, OWN, ROWS, Round, table, verdicts

ROUNDS: list[Round] = [
    {APACHE: {"read v3": 100.0, "single add p50 v2": 3.0}, OURS: {"read v3": 110.0, "single add p50 v3": 1.0}},
    {APACHE: {"read v3": 1000.0}, OURS: {"read v3": 1300.0, "single add p50 v2": 0.9, "single add p50 v3": 1.0}},
    {APACHE: {"read v3": 10.0, "add v2": 5.0}, OURS: {"read v3": 12.5}, OWN: {"add v2": 10.0}},
]


def test_a_ratio_is_taken_within_a_round_and_its_median_is_judged() -> None:
    found = {row["figure"]: row for row in verdicts(ROWS, ROUNDS)}
    assert found["read v3"][APACHE] == 100.0
    assert found["read v3"]["goals"] == [{"goal": "B ≥ 1.2 × A", "value": 1.25, "holds": True}]
    assert found["add v2"]["goals"] == [{"goal": "C ≥ 2.2 × A", "value": 2.0, "holds": False}]
    assert found["single add p50 v3"]["goals"][0]["holds"]
    assert "recovery v2" not in found


def test_the_table_says_which_goals_are_missed() -> None:
    lines = table(ROWS, ROUNDS).splitlines()
    assert "| add v2, entries/s | 5 |  | 10 | C ≥ 2.2 × A | 2 **NO** |" in lines


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "read,nothing"])
    assert "nothing: it is one of add" in capsys.readouterr().err
