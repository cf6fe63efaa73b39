"""SIGTERM and SIGINT before a bookie, or repair, serves end it at once, without a traceback: in imports, in replay."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bkspark.wire.status import Status
from tests.bookie.child import START_S, BookieChild
from tests.bookie.serving import stored

AT_IMPORT = """
import os, runpy, signal, sys

class AtImport:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, AtImport())
sys.argv = [{program!r}, *{arguments!r}]
runpy.run_module({program!r}, run_name="__main__", alter_sys=True)
"""
AT_EXEC = """
import os, sys
from bkspark.cli.__main__ import main

become = os.execv

def execute(path, command):
    os.kill(os.getpid(), {number})
    become(path, command)

os.execv = execute
sys.exit(main({arguments!r}))
"""
IN_REPLAY = """
import os, runpy, signal, sys, threading
from bookie_service.storage.ledgers import opening

def replay(*_):
    os.kill(os.getpid(), {number})
    threading.Event().wait()

opening.replay_journal = replay
sys.argv = ["bookie_service", *{arguments!r}]
runpy.run_module("bookie_service", run_name="__main__", alter_sys=True)
"""


def ended(program: str) -> tuple[int, str, str]:
    """Run a program to its end; return (exit code, stdout, stderr)."""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=START_S, check=False
    )
    # Lines of the log that report the start are not complaints.
    complaints = [line for line in result.stderr.splitlines(keepends=True) if " INFO " not in line]
    return result.returncode, result.stdout, "".join(complaints)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["bookie_service.process", "numpy", "kazoo.client", "bookie_service.service"])
def test_signal_in_an_import_ends_a_bookie_in_silence(module: str, number: signal.Signals) -> None:
    program = AT_IMPORT.format(program="bookie_service", module=module, number=int(number), arguments=[])
    assert ended(program) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [["bookie"], ["cluster", "autorecovery", "--uri", "zk://127.0.0.1:1/ledgers"]])
def test_signal_while_bkspark_becomes_the_server_waits_for_its_first_lines(
    arguments: list[str], number: signal.Signals
) -> None:
    assert ended(AT_EXEC.format(arguments=arguments, number=int(number))) == (0, "", "")


@pytest.mark.parametrize("command", ["--check", "--collect"])
def test_interrupted_command_says_so_and_is_not_a_success(command: str) -> None:
    number = int(signal.SIGINT)
    program = AT_IMPORT.format(program="bookie_service", module="numpy", number=number, arguments=[command])
    assert ended(program) == (1, "", "bookie: interrupted\n")


@pytest.mark.parametrize(("number", "module"), [(signal.SIGTERM, "numpy"), (signal.SIGINT, "kazoo.client")])
@pytest.mark.parametrize("command", ["autorecovery", "check", "recover"])
def test_signal_in_an_import_ends_repair_without_a_traceback(command: str, module: str, number: signal.Signals) -> None:
    repair = "bookie_service.replication"
    program = AT_IMPORT.format(program=repair, module=module, number=int(number), arguments=[command])
    interrupted = (1, "", "bkspark cluster: interrupted\n")
    assert ended(program) == ((0, "", "") if command == "autorecovery" else interrupted)


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_replay_ends_the_bookie_at_once_and_the_next_start_replays(
    tmp_path: Path, uri: str, number: signal.Signals
) -> None:
    bookie = BookieChild(tmp_path / "bookie", uri)
    with bookie.running() as process, bookie.connect() as peer:
        assert peer.add(5, 0, [b"x"]) == [Status.EOK]
        process.signal(signal.SIGKILL)
        assert process.wait(START_S)
    settings = [part for key, value in bookie.settings.items() for part in ("--set", f"{key}={value}")]
    program = IN_REPLAY.format(number=int(number), arguments=settings)
    assert ended(program) == (0, "", "")
    with bookie.running(), bookie.connect() as peer:
        assert peer.read(5, 0).body == stored(5, 0, b"x")
