"""`python -m tests.costs` counts what a test uses, and what the processes use that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.costs import Cost, read, tables

TESTS = """
import subprocess, sys

BUSY = "import time\\nwhile time.process_time() < {}: pass"

def test_that_works():
    exec(BUSY.format("begin + 0.3").replace("\\n", "; begin = time.process_time()\\n"))

def test_that_starts_a_process():
    subprocess.run([sys.executable, "-c", BUSY.format(0.3)], check=True)
"""


@pytest.mark.slow
def test_processor_time_of_the_test_and_of_its_processes_is_counted(tmp_path: Path) -> None:
    file, out = tmp_path / "test_some.py", tmp_path / "costs.jsonl"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "tests.costs", "--out", str(out), "-q", "-c", "/dev/null", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    works, starts = read(out)
    assert works.own >= 0.25
    assert works.below < 0.1
    assert starts.below >= 0.25
    assert "together" in done.stdout


def test_tables_have_the_most_costly_first_and_the_earlier_figures_beside_them() -> None:
    now = [Cost("a/test_x.py::test_1", "", 1.0, 0.5, 0.25), Cost("b/test_y.py::test_2", "spark", 9.0, 1, 2)]
    lines = list(tables(now, 1, before=[Cost("a/test_x.py::test_1", "", 2.0, 0.5, 7.5)]))
    folders = lines[2:5]
    assert folders[0].split() == ["1.0", "1.0", "0.8", "1.0", "2.0", "8.0", "a"]
    assert folders[1].split() == ["1.0", "9.0", "3.0", "0.0", "0.0", "0.0", "b"]
    assert folders[2].split()[-1] == "together"
