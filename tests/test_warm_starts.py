"""A process that is forked from an interpreter with the imports done is the one that a start would have made."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import warm_starts
from tests.planting import changed
from tests.polling import wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="all processes start as usual there"),
    pytest.mark.slow,
]

FACTS = [sys.executable, "-m", "tests.own_facts", "one", "two words"]


@pytest.fixture(autouse=True)
def known_program() -> Iterator[None]:
    with changed(warm_starts, "_PROGRAMS", lambda old: (*old, "tests.own_facts")):
        yield


def is_warm(pid: int) -> bool:
    """Return whether a process runs that was forked."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return b"tests.warm_starts" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def facts_of(**options: Any) -> tuple[dict[str, Any], bool]:
    """Return (what a process finds of itself, whether it was forked)."""
    # Libraries in C, such as readline, have variables that `os.environ` does not know.
    options = {"env": dict(os.environ), **options}
    process = subprocess.Popen(
        FACTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    forked = is_warm(process.pid)
    said, errors = process.communicate("some input", timeout=60)
    assert (process.returncode, errors) == (7, "an error\na thread\nthe end")
    return json.loads(said), forked


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"process_group": 0, "umask": 0o027},
        {"env": {**os.environ, "BKSPARK_URI": "zk://host/ledgers"}},
        {"env": warm_starts.read_at_the_beginning(os.environ)},
    ],
    ids=["plain", "group and umask", "one variable more", "few variables"],
)
def test_process_finds_what_a_started_one_finds(options: dict[str, Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    resource.setrlimit(resource.RLIMIT_CORE, (min(4096, hard) if hard >= 0 else 4096, hard))
    try:
        found, forked = facts_of(**options)
        with warm_starts.cold():
            expected, started = facts_of(**options)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, before)
    assert (forked, started) == (True, False)
    assert found == expected
    assert found["parent"] == os.getpid()


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"cwd": "/"}, FACTS),
        ({"start_new_session": True}, FACTS),
        ({"env": {**os.environ, "PYTHONHASHSEED": "3"}}, FACTS),
        ({"preexec_fn": os.getpid}, FACTS),
        ({}, [sys.executable, "-O", *FACTS[1:]]),
        ({}, [sys.executable, "-c", "input()"]),
    ],
    ids=["folder", "session", "variable", "function", "option", "text"],
)
def test_what_a_fork_cannot_have_starts_as_usual(options: dict[str, Any], command: list[str]) -> None:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )
    assert not is_warm(process.pid)
    process.communicate()


PARENT = """
import sys
from pathlib import Path
from bkspark.cli.child_process import ChildProcess
from tests import warm_starts

warm_starts._PROGRAMS += ("tests.own_facts",)
warm_starts.install()
child = ChildProcess("child", [sys.executable, "-m", "tests.own_facts", "waits"], Path(sys.argv[1]))
print(child.pid, flush=True)
input()
"""


def test_process_dies_with_the_one_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert is_warm(child_pid)
        parent.kill()
    wait_until(lambda: not is_warm(child_pid), "the child to be gone")
