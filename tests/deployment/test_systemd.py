"""deploy/systemd: systemd-analyze accepts the units, and their commands are commands of bkspark."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.cli.__main__ import build_parser
from bookie_service.settings.configuration import load

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")


def unit(path: Path) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(path)
    return parsed


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on the PATH: systemd has it")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts(path: Path, tmp_path: Path) -> None:
    assert ANALYZE is not None
    installed = tmp_path / path.name
    # It checks that the program exists, where the unit has it in /opt.
    installed.write_text(path.read_text().replace("/opt/bkspark/bin/bkspark", sys.executable))
    command = [ANALYZE, "verify", "--man=no", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if path.name in line]
    assert done.returncode == 0, done.stderr
    assert said == []


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_of_bkspark_that_notifies(path: Path) -> None:
    service = unit(path)["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/bkspark/bin/bkspark"
    build_parser().parse_args(arguments)
    assert service["Type"] == "notify"
    # A wrong configuration (exit code 2) does not become right by another start.
    assert service["RestartPreventExitStatus"] == "2"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_bookie_and_autorecovery_of_one_host_serve_http_at_different_ports() -> None:
    """Both units read one file. The second one to start ended with exit code 2, after which it is not started again."""
    used: list[int] = []
    for path in UNITS:
        arguments = build_parser().parse_args(shlex.split(unit(path)["Service"]["ExecStart"])[1:])
        http = load(FOLDER / "bookie.conf", arguments.set).http
        assert http.serves_api
        assert http.has_metrics_port
        used += [http.port, http.metrics_port]
    assert sorted(used) == [7999, 8000, 8079, 8080]


def test_a_bookie_has_time_to_replay_and_to_flush() -> None:
    service = unit(FOLDER / "bkspark-bookie.service")["Service"]
    assert service["TimeoutStartSec"] == "infinity"
    assert service["TimeoutStopSec"] == "10min"


def test_directories_of_the_example_are_those_that_the_unit_may_write() -> None:
    configuration = (FOLDER / "bookie.conf").read_text()
    directories = re.findall(r"^(?:journal|ledger)Directories=(.*)$", configuration, re.MULTILINE)
    state = unit(FOLDER / "bkspark-bookie.service")["Service"]["StateDirectory"]
    assert all(directory.startswith(f"/var/lib/{state}/") for directory in directories)
