"""Markers say what a test starts: `-m "not cluster and not spark and not interop"` starts no such process.

The names of tests are short whatever their parameters are.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NO_PROCESSES = "not cluster and not spark and not interop"


@pytest.fixture(scope="module")
def collected() -> list[str]:
    """The tests of some folders that are left without those that start processes."""
    folders = ["tests/metadata", "tests/ledger/test_bookies.py", "tests/log/test_election.py", "tests/test_readme.py"]
    folders.append("tests/bookie/test_long_poll.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", NO_PROCESSES]
    done = subprocess.run([*command, *folders], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_tests_that_ask_for_zookeeper_are_left_out(collected: list[str]) -> None:
    """By name of a fixture, or by a parameter of one."""
    assert collected
    assert [test for test in collected if "[zookeeper" in test or "-zookeeper" in test] == []
    assert [test for test in collected if "at_a_real_zookeeper" in test or "prints_what_its_comment" in test] == []


def test_tests_that_start_nothing_are_left(collected: list[str]) -> None:
    assert [test for test in collected if "[memory" in test]
    assert [test for test in collected if test.startswith("tests/metadata/test_formats.py")]


def test_a_file_that_gives_its_own_fixture_the_name_of_a_costly_one_starts_nothing(collected: list[str]) -> None:
    """`peer` is a connection there, and a JVM with Apache's client in tests/interop."""
    assert "tests/bookie/test_long_poll.py::test_fence_ends_polls" in collected


@pytest.mark.parametrize(
    ("program", "marker"),
    [
        (["java", "-cp", "jars", "org.apache.zookeeper.server.Never"], "cluster"),
        (["pyspark/./bin/spark-submit", "pyspark-shell"], "spark"),
        (["java", "bkspark.interop.Never"], "interop"),
    ],
)
def test_a_test_without_the_marker_cannot_start_the_program(program: list[str], marker: str) -> None:
    with pytest.raises(AssertionError, match=rf"mark it @pytest\.mark\.{marker}$"):
        subprocess.run(program, check=False)


@pytest.mark.parametrize("parameter", ["x" * 1_000_000, b"\xff" * 1_000_000])
def test_a_long_parameter_is_named_by_its_beginning_and_length(
    request: pytest.FixtureRequest, parameter: str | bytes
) -> None:
    """Each process of a run sends the names of all tests, and each message about a test contains its name."""
    assert len(request.node.name) < 300
    assert "...1000000]" in request.node.name
