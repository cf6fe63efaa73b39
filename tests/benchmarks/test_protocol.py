"""The protocol's benchmark runs and prints its figures."""

from __future__ import annotations

import json

import pytest

from benchmarks.protocol import main


def test_listing_streams_any_number_of_ledgers(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json", "--only", "listing", "--listed", "25001"])
    figures = json.loads(capsys.readouterr().out)["listing"]
    assert figures["ledgers"] == 25_001


def test_unknown_name_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "recovery,nothing"])
    assert "nothing: it is one of adds" in capsys.readouterr().err
