"""The benchmark of scrapes beside adds runs and leaves nothing. No figure is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scrape_cost


@pytest.mark.cluster
def test_a_short_run_prints_both_loads_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ["--rounds", "1", "--seconds", "0.3", "--every", "0.05", "--dir", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["scrape_cost", *short])
    scrape_cost.main()
    full, lone, scrapes = capsys.readouterr().out.splitlines()
    assert full.startswith("full: p50 ")
    assert lone.startswith("lone: p50 ")
    assert "ratio of p99" in full
    assert int(scrapes.split()[0]) >= 2
    assert list(tmp_path.iterdir()) == []
