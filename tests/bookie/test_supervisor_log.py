"""What the supervisor of `--instances` logs of repeated lines: each that is left out is counted in a summary."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bkspark.log_limit import LogLimiter
from bookie_service.admin import instances
from bookie_service.admin.shutdown import ShutdownSignals

COUNT = 4
LINES = instances.STRAY_LINES_MAX * COUNT
PROGRAM = """
import json, os, pathlib, sys, time
print(json.dumps({"id": sys.argv[-1]}), flush=True)
for number in range(STRAY):
    print("stray", number, flush=True)
deadline = time.monotonic() + 60
while not pathlib.Path(sys.argv[1]).exists() and time.monotonic() < deadline:
    time.sleep(0.01)
"""


def supervised(
    end: Path, clock: Callable[[], float], seen: Callable[[str], None], begun: Callable[[str], None] = lambda line: None
) -> int:
    """Supervise programs that print lines, and end when the file exists.

    Args:
        seen: gets each line of the log.
        begun: gets each line before it is judged whether the log has it.
    """

    class Lines(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            begun(record.getMessage())
            return super().handle(record)

        def emit(self, record: logging.LogRecord) -> None:
            seen(record.getMessage())

    lines, log = Lines(), logging.getLogger("bookie_service.admin.instances")
    limiter = LogLimiter(clock, lines.emit)
    lines.addFilter(limiter)
    log.addHandler(lines)
    program = PROGRAM.replace("STRAY", str(instances.STRAY_LINES_MAX))
    try:
        command = [sys.executable, "-S", "-c", program, str(end)]
        return instances.run(command, COUNT, ShutdownSignals(), limiter, as_json=True)
    finally:
        log.removeHandler(lines)


def counted(lines: list[str]) -> int:
    """Return how many lines about what the programs print are in the log, or in its summaries."""
    summaries = [re.match(r"(\d+) more lines like this one .* printed stray", line) for line in lines]
    return (
        sum(int(found[1]) for found in summaries if found)
        + sum(" printed stray" in line for line in lines)
        - sum(map(bool, summaries))
    )


def test_supervisor_reports_lines_that_were_left_out_when_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were never reported: only the processes of bookies finished their logs."""
    lines: list[str] = []
    end = tmp_path / "end"
    end.touch()
    assert supervised(end, lambda: 0.0, lines.append) == 0
    assert any(line.endswith("stray 4") and "left out" in line for line in lines), lines
    assert counted(lines) == LINES


def test_supervisor_reports_lines_that_were_left_out_while_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "FLUSH_S", 0.01)
    lines: list[str] = []
    end = tmp_path / "end"
    printed = 0

    def begun(line: str) -> None:
        nonlocal printed
        printed += " printed stray" in line

    def clock() -> float:
        """The time changes when all lines were printed."""
        return 0.0 if printed < LINES else 100.0

    def seen(line: str) -> None:
        lines.append(line)
        if "left out" in line:
            end.touch()

    assert supervised(end, clock, seen, begun) == 0
    assert end.exists()
