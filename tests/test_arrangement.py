"""The order of the tests in a run with several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
CONFTEST = """
import pytest
from tests.arrangement import arrange

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    arrange(items, ["spark", "cluster", "slow"])
    print([(item.name, *(mark.args[0] for mark in item.iter_markers("xdist_group"))) for item in items])
"""
FILES = {
    "test_a.py": """
import pytest
def test_cheap(): pass
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.cluster
def test_with_a_cluster_of_its_own(): pass
""",
    "test_b.py": """
import pytest
@pytest.mark.parametrize("n", [0, 1])
def test_cheap(n): pass
@pytest.mark.cluster
@pytest.mark.xdist_group("small cluster")
def test_clustered(): pass
""",
    "test_c.py": """
import pytest
@pytest.mark.cluster
@pytest.mark.xdist_group("large cluster")
@pytest.mark.parametrize("n", [0, 1])
def test_clustered(n): pass
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark(): pass
@pytest.mark.xdist_group("own")
def test_cheap(): pass
""",
    "test_d.py": """
import pytest
@pytest.fixture(scope="module")
def shared(): pass
@pytest.mark.slow
def test_slow(shared, tmp_path_factory): pass
@pytest.mark.slow
def test_slow_too(shared): pass
""",
}


def test_costly_groups_and_set_ups_come_first_then_costly_tests_alone_then_cheap_files_the_largest_first(
    tmp_path: Path,
) -> None:
    for name, text in {"conftest.py": CONFTEST, **FILES}.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "--collect-only"]
    done = subprocess.run([*command, "-q", "-s", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == str(
        [
            ("test_spark", "spark"),
            ("test_clustered[0]", "large cluster"),
            ("test_clustered[1]", "large cluster"),
            ("test_clustered", "small cluster"),
            ("test_slow", "test_d.py"),
            ("test_slow_too", "test_d.py"),
            ("test_with_a_cluster_of_its_own",),
            ("test_slow",),
            ("test_cheap[0]", "test_b.py"),
            ("test_cheap[1]", "test_b.py"),
            ("test_cheap", "own"),
            ("test_cheap", "test_a.py"),
        ]
    ), done.stderr
