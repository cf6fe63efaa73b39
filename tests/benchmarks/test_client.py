"""The client's benchmark runs and prints its figures."""

from __future__ import annotations

import json

import pytest

from benchmarks.client import main


def test_every_figure_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--entries", "16384", "--singles", "400", "--tasks", "20"])
    figures = json.loads(capsys.readouterr().out)
    assert set(figures) == {
        f"{name}_{figure}" for name in ("append_many", "append", "append_alone") for figure in ("per_s", "client_us")
    }
    assert all(value > 0 for value in figures.values())
