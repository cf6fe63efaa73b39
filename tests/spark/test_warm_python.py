"""A Python process of Spark that is forked from a server with the imports done is the one that a start would make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.polling import wait_until
from tests.spark.warm_python import warm_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Python is started as usual there")

FACTS = """
import json, os, signal, sys
facts = {
    "arguments": sys.argv[1:],
    "folder": os.getcwd(),
    "path": [path for path in sys.path[:2]],
    "variables": {name: value for name, value in os.environ.items() if name != "LC_CTYPE"},
    "hash": hash("text"),
    "handlers": [repr(signal.getsignal(number)).split(" at ")[0] for number in sorted(signal.valid_signals())],
    "input": sys.stdin.read(),
    "main": sys.modules["__main__"].__spec__.name,
}
print(json.dumps(facts))
print("an error", file=sys.stderr)
"""
WAITS = """
import os, signal, time
def end(*_):
    os.write(1, b"ended in good order\\n")
    os._exit(0)
pid = os.getpid()
if os.fork() == 0:
    # A daemon's workers may live on: the launcher does not wait for them.
    os.close(1)
    while os.getppid() == pid:
        time.sleep(0.05)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print(pid, flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warm_python(tmp_path_factory.mktemp("warm")) as launcher:
        yield launcher


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the modules of this file are found."""
    (tmp_path / "pyspark_facts.py").write_text(FACTS)
    (tmp_path / "pyspark_waits.py").write_text(WAITS)
    kept = {name: value for name, value in os.environ.items() if name != "LC_CTYPE"}
    return {**kept, "PYTHONHASHSEED": "0", "PYTHONPATH": str(tmp_path), "PYTHON_WORKER_FACTORY_PORT": "1"}


def is_forked(pid: int) -> bool:
    try:
        return b"tests.spark.warm_python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def facts_of(program: str, variables: Mapping[str, str], folder: Path) -> dict[str, Any]:
    command = [program, "-m", "pyspark_facts", "pyspark.daemon", "two words"]
    done = subprocess.run(command, env=variables, cwd=folder, input="some input", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "an error\n")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_process_finds_what_a_started_one_finds(python: str, variables: dict[str, str], tmp_path: Path) -> None:
    assert facts_of(python, variables, tmp_path) == facts_of(sys.executable, variables, tmp_path)


def test_process_with_other_variables_of_the_interpreter_is_refused(python: str, variables: dict[str, str]) -> None:
    command = [python, "-m", "pyspark_facts"]
    done = subprocess.run(command, env={**variables, "PYTHONHASHSEED": "1"}, capture_output=True, text=True)
    assert done.stdout == ""
    assert "an interpreter with" in done.stderr


def test_other_programs_have_a_plain_interpreter(python: str) -> None:
    program = "import sys; print('pyspark' in sys.modules, sys.argv)"
    done = subprocess.run([python, "-c", program, "one"], capture_output=True, text=True, check=True)
    assert done.stdout == "False ['-c', 'one']\n"


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGKILL])
def test_process_ends_with_what_spark_started(python: str, variables: dict[str, str], signal_: signal.Signals) -> None:
    command = [python, "-m", "pyspark_waits"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_forked(pid)
        process.send_signal(signal_)
        said = process.stdout.read()
    assert said == ("ended in good order\n" if signal_ == signal.SIGTERM else "")
    wait_until(lambda: not is_forked(pid), "the process to be gone")


@pytest.mark.spark
def test_workers_of_the_shared_session_are_forked(spark: SparkSession) -> None:
    (pid,) = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getpid()).collect()
    assert is_forked(pid)
