"""The benchmark of many ledgers creates, lists and audits what it says."""

from __future__ import annotations

import json

import pytest

from benchmarks.many_ledgers import main


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("create", {"ledgers": 30_000, "created": 500}),
        ("list", {"ledgers": 30_000}),
        ("audit", {"ledgers": 30_000, "listed": 90}),
    ],
)
def test_each_part_prints_what_it_did(name: str, found: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    main(["--here", "--only", name, "--ledgers", "30000", "--created", "500"])
    figures = json.loads(capsys.readouterr().out)
    assert figures.items() >= found.items()
    assert figures.keys() >= {"seconds", "processor_s", "grown_mib"}


def test_unknown_name_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "list,nothing"])
    assert "nothing: it is one of create" in capsys.readouterr().err
