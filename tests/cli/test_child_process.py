"""Child processes: their lines, their log, their end, and that they do not outlive the parent."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from bkspark.cli.child_process import ChildProcess
from bkspark.errors import RequestTimeout
from tests.polling import wait_until
from tests.processes import is_alive

STOP_S = 60.0


def started(code: str, tmp_path, **options) -> ChildProcess:
    return ChildProcess("the child", [sys.executable, "-c", code], tmp_path / "child.log", **options)


def test_lines_come_one_by_one_and_end_with_the_output(tmp_path):
    child = started("print('one'); print('two')", tmp_path)
    assert list(child.lines()) == ["one", "two"]
    assert child.wait(STOP_S)
    assert child.ending() == "ended with exit code 0"
    child.stop(STOP_S)


def test_waiting_for_a_line_ends_at_the_deadline(tmp_path):
    child = started("import time; time.sleep(60)", tmp_path)
    try:
        with pytest.raises(RequestTimeout, match="the child"):
            next(child.lines(time.monotonic() + 0.1))
    finally:
        child.kill()
    assert child.ending() == "was killed by SIGKILL"


def test_last_log_line_is_of_this_run_only(tmp_path):
    first = started("import sys; sys.exit('first failed')", tmp_path)
    assert first.wait(STOP_S)
    assert first.last_log_line() == "first failed"
    second = started("pass", tmp_path)
    assert second.wait(STOP_S)
    assert second.last_log_line() == ""


def test_stop_kills_a_child_that_ignores_sigterm(tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    child = started(code, tmp_path)
    assert next(child.lines()) == "deaf"
    child.stop(0.1)
    assert child.ending() == "was killed by SIGKILL"


@pytest.mark.parametrize("end", [lambda child: child.stop(STOP_S), lambda child: child.kill()], ids=["stop", "kill"])
def test_what_a_child_started_ends_with_it(tmp_path, end):
    """A Spark job that was interrupted while its JVM started left the JVM running, waiting for ever."""
    code = (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
        "time.sleep(600)"
    )
    child = started(code, tmp_path)
    grandchild = int(next(child.lines()))
    end(child)
    wait_until(lambda: not is_alive(grandchild), "the end of what the child started")


def test_environment_is_added_to_the_parents(tmp_path):
    child = started(
        "import os; print(os.environ['ADDED'], 'PATH' in os.environ)", tmp_path, environment={"ADDED": "yes"}
    )
    assert list(child.lines()) == ["yes True"]
    child.stop(STOP_S)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_child_dies_when_its_parent_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from bkspark.cli.child_process import ChildProcess\n"
        "child = ChildProcess('c', [sys.executable, '-c', 'import time; time.sleep(60)'], Path(sys.argv[1]))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        child_pid = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_until(lambda: not is_alive(child_pid), "the child to end with its parent")
