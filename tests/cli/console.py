"""The command line in tests: commands run in this process, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from bkspark.cli.__main__ import main


def assert_one_line(output: CaptureResult[str], *names: str) -> None:
    """Assert that only one line of error came, and that it holds every one of `names`."""
    assert output.out == ""
    lines = output.err.splitlines()
    assert len(lines) == 1, output.err
    for name in names:
        assert name in lines[0]


class Console:
    """Runs commands on one cluster, which BKSPARK_URI names."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("BKSPARK_URI", uri)
        monkeypatch.delenv("BKSPARK_PASSWORD", raising=False)
        self._capfd = capfd

    def text(self, *command: object) -> str:
        """Return what a command that works prints on stdout."""
        code = main([str(word) for word in command])
        output = self._capfd.readouterr()
        assert code == 0, output.err
        return output.out

    def json(self, *command: object) -> dict[str, Any]:
        """Return the one object that a command prints with --json."""
        (record,) = self.records(*command)
        return record

    def records(self, *command: object) -> list[dict[str, Any]]:
        """Return the objects that a command prints with --json."""
        return [json.loads(line) for line in self.text(*command, "--json").splitlines()]

    def records_of(self, code: int, *command: object) -> dict[str, Any]:
        """Return the one object that a command prints with --json which ends with this exit code."""
        found: dict[str, Any] = json.loads(self.fails(code, *command, "--json").out)
        return found

    def fails(self, code: int, *command: object) -> CaptureResult[str]:
        """Return the output of a command that ends with this exit code."""
        assert main([str(word) for word in command]) == code
        return self._capfd.readouterr()
