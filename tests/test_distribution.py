"""What a run with several processes shows, though its processes report less."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
CONFTEST = """
from tests.conftest import pytest_configure, pytest_xdist_make_scheduler
"""
RENAMED = """
from tests import conftest
from tests.conftest import pytest_xdist_make_scheduler

def pytest_configure(config):
    for each in config.pluginmanager.get_plugins():
        if type(each).__name__ == "WorkerInteractor":
            type(each).__name__ = "AnotherName"
    conftest.pytest_configure(config)
"""
"""As if xdist had another name for what sends the messages."""
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


GROUPS = """
import os
from pathlib import Path
import pytest

ROOM = Path(__file__).parent

def note(name):
    with (ROOM / "ran").open("a") as ran:
        ran.write(name + "\\n")

@pytest.mark.parametrize("group", [pytest.param(n, marks=pytest.mark.xdist_group(f"g{n}")) for n in range(6)])
@pytest.mark.parametrize("n", range(5))
def test_some(group, n):
    note(f"{group}.{n}")
    if (group, n) == (0, 2) and (ROOM / "crash").exists():
        (ROOM / "crash").unlink()
        os._exit(3)
"""
"""Each test notes its name when it runs. If there is a file `crash`, one in the middle of a group ends its process."""
ALL_OF_GROUPS = {f"{group}.{n}": 1 for group in range(6) for n in range(5)}


def run(folder: Path, *options: str, tests: str = TESTS, conftest: str = CONFTEST, code: int = 1) -> str:
    """Run tests in two processes that report as those of `make test` do, and return what is shown. `code`: pytest's."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    command += ["--numprocesses", "2", "--dist", "loadgroup", *options, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def ran(folder: Path) -> Counter[str]:
    """Return how often each test of `GROUPS` ran."""
    return Counter((folder / "ran").read_text().split())


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
    """xdist hands the test out again, so one process more ends in the same way; then the run ends."""
    shown = run(tmp_path, "--max-worker-restart", "1", tests=FATAL)
    assert "a wrong result" in shown
    assert "crashed while running" in shown
    assert "1 passed" in shown


def test_each_test_of_several_groups_runs_once(tmp_path: Path) -> None:
    assert "30 passed" in run(tmp_path, tests=GROUPS, code=0)
    assert ran(tmp_path) == ALL_OF_GROUPS


def test_group_whose_process_ends_is_finished_by_another_without_repeats(tmp_path: Path) -> None:
    """The test that ended it is tried once more, because it has no result."""
    (tmp_path / "crash").touch()
    shown = run(tmp_path, "--max-worker-restart", "1", tests=GROUPS)
    assert "crashed while running" in shown
    assert "1 failed, 30 passed" in shown
    assert ran(tmp_path) == {**ALL_OF_GROUPS, "0.2": 2}


def test_run_ends_after_as_many_failures_as_are_allowed(tmp_path: Path) -> None:
    failing = GROUPS.replace('note(f"{group}.{n}")', 'note(f"{group}.{n}"); assert False')
    shown = run(tmp_path, "--maxfail", "2", tests=failing, code=2)
    assert "stopping after 2 failures" in shown
    assert set(ran(tmp_path).values()) == {1}
    assert len(ran(tmp_path)) < len(ALL_OF_GROUPS)


def test_all_is_reported_where_xdist_has_another_name_for_what_reports(tmp_path: Path) -> None:
    assert "30 passed" in run(tmp_path, tests=GROUPS, conftest=RENAMED, code=0)


def test_error_of_a_tear_down_ends_a_run_that_ends_at_the_first_error(tmp_path: Path) -> None:
    shown = run(tmp_path, "-x", "-k", "unclean", "--numprocesses", "1", code=2)
    assert "no tear-down" in shown
    assert "1 passed, 1 error" in shown
