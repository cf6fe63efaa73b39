"""The children of a soak that are not servers: the load, Spark's drivers, floods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bkspark.cli.child_process import ChildProcess
from tests.processes import of_session

ROOT = Path(__file__).parents[2]
_END_S = 60.0


class LoadProcess:
    """`tests.soak.load` as a child; a thread takes its lines."""

    def __init__(self, uri: str, folder: Path, copies: Sequence[str], note: Callable[[dict[str, Any]], None]) -> None:
        command = [sys.executable, "-m", "tests.soak.load", uri, str(folder), *copies]
        self.log = folder / "load.log"
        self._finish = folder / "finish"
        self._note = note
        self._child = ChildProcess("load", command, self.log, environment={"PYTHONPATH": str(ROOT)})
        self.said: dict[str, Any] = {}
        """Its last line."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.exit_code is None

    def finish(self, seconds: float) -> bool:
        """Let it finish; return whether it did within the time."""
        self._finish.touch()
        is_over = self._child.wait(seconds)
        self._reader.join(_END_S)
        return is_over and bool(self.said.get("is_finished"))

    def ending(self) -> str:
        return f"{self._child.ending()}; its log ends: {self._child.last_log_line()}"

    def stop(self) -> None:
        self._child.stop(_END_S)

    def _read(self) -> None:
        for line in self._child.lines():
            self.said = json.loads(line)
            self._note(self.said)


class SparkDriver:
    """A driver in a session of its own, with its JVM and Python workers. Killed, it goes on from its checkpoint."""

    def __init__(self, name: str, uri: str, source: str, target: str, folder: Path, mode: str) -> None:
        self.name = name
        self.target = target
        self.folder = folder
        self.log = folder / "driver.log"
        self._command = [sys.executable, "-m", "tests.soak.stream_job", uri, source, target, str(folder), mode]
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_done(self) -> bool:
        """Whether it ended as planned."""
        return self._process is not None and self._process.poll() == 0

    def pids(self) -> list[int]:
        """Return its processes, the driver's own first."""
        if self._process is None or not self.is_running:
            return []
        own = self._process.pid
        return [own, *(pid for pid in of_session(own) if pid != own)]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            )

    def kill(self) -> None:
        """SIGKILL the driver, its JVM and its workers."""
        if self._process is None:
            return
        session = self._process.pid
        for _ in range(2):  # what a process starts while the first round goes on
            for pid in list(of_session(session)):
                _kill(pid)
        self._process.wait()

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-800:] if self.log.exists() else ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has just ended


def flood(kind: str, port: int, seconds: float, log: Path) -> ChildProcess:
    """Start a flood of a bookie."""
    command = [sys.executable, "-m", "tests.soak.floods", kind, str(port), str(seconds)]
    return ChildProcess(f"flood {kind}", command, log, environment={"PYTHONPATH": str(ROOT)})


def command(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run a bkspark command with --json; return its exit code, its objects and what it said on stderr."""
    done = subprocess.run(_bkspark(arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.strip()


def lines(*arguments: str) -> Iterator[dict[str, Any]]:
    """Run a bkspark command with --json; yield its objects as they come."""
    with subprocess.Popen(_bkspark(arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)


def _bkspark(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "bkspark.cli", *arguments, "--json"]
