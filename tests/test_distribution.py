"""What a run with several processes shows, though its processes report less."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests.conftest import pytest_configure, pytest_xdist_make_scheduler
"""
TESTS = """
import time
import pytest

@pytest.fixture
def slow():
    time.sleep(0.01)
    yield
    time.sleep(0.01)

@pytest.fixture
def broken():
    raise ValueError("no set-up")

@pytest.fixture
def unclean():
    yield
    raise ValueError("no tear-down")

@pytest.fixture
def chatty():
    print("said while it is set up")

@pytest.mark.parametrize("n", range(50))
@pytest.mark.xdist_group("passing")
def test_passes(n): pass

def test_slow(slow): pass
def test_broken(broken): pass
def test_unclean(unclean): pass
def test_said(chatty): assert False

@pytest.mark.skip(reason="not today")
def test_skipped(): pass

@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
FATAL = """
import os
import pytest

@pytest.fixture
def fatal():
    yield
    os._exit(3)

def test_wrong_and_fatal(fatal): assert False, "a wrong result"
def test_passes(): pass
"""


def run(folder: Path, *options: str, tests: str = TESTS) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "--rootdir", str(folder), "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*command, "--numprocesses", "2", "--dist", "loadgroup", str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode in (1, 2), done.stdout + done.stderr  # tests failed; the run ended at the first failure
    return done.stdout


def test_all_outcomes_durations_and_outputs_are_shown(tmp_path: Path) -> None:
    shown = run(tmp_path, "-ra", "--durations=0", "--junitxml", str(tmp_path / "junit.xml"))
    assert "1 failed, 52 passed, 1 skipped, 1 xfailed, 2 errors" in shown
    assert re.search(r"\d+\.\d\ds setup +\S*test_slow", shown)
    assert re.search(r"\d+\.\d\ds teardown +\S*test_slow", shown)
    assert "said while it is set up" in shown
    assert "SKIPPED [1]" in shown
    assert {"no set-up", "no tear-down"} <= set(re.findall(r"no set-up|no tear-down", shown))
    assert (tmp_path / "junit.xml").read_text().count("<testcase") == 56


def test_each_test_is_named_where_names_are_asked_for(tmp_path: Path) -> None:
    shown = run(tmp_path, "-v")
    assert len(re.findall(r"PASSED \S*test_passes\[\d+\]", shown)) == 50


def test_failure_is_shown_although_the_tear_down_ends_the_process(tmp_path: Path) -> None:
    shown = run(tmp_path, tests=FATAL)
    assert "a wrong result" in shown
    assert "crashed while running" in shown


def test_error_of_a_tear_down_ends_a_run_that_ends_at_the_first_error(tmp_path: Path) -> None:
    shown = run(tmp_path, "-x", "-k", "unclean", "--numprocesses", "1")
    assert "no tear-down" in shown
    assert "1 passed, 1 error" in shown
