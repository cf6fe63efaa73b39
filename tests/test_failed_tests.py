"""CI repeats a few failed tests, and only a few."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.failed_tests import CACHE, REPEATED_MAX

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(("failed", "code"), [(0, 1), (1, 0), (REPEATED_MAX, 0), (REPEATED_MAX + 1, 1)])
def test_a_few_failed_tests_are_named_for_another_run(tmp_path: Path, failed: int, code: int) -> None:
    (tmp_path / "test_numbers.py").write_text(
        f"import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_number(n): assert n >= {failed}\n"
    )
    first = subprocess.run([sys.executable, "-m", "pytest", "-q", "--rootdir=."], cwd=tmp_path, capture_output=True)
    assert (first.returncode, (tmp_path / CACHE).exists()) == (1 if failed else 0, bool(failed))
    names = subprocess.run(
        [sys.executable, "-c", "from tests.failed_tests import main; raise SystemExit(main())"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert names.returncode == code
    assert names.stdout.split() == [f"test_numbers.py::test_number[{n}]" for n in range(failed)]
    if failed:
        assert len(json.loads((tmp_path / CACHE).read_text())) == failed


@pytest.mark.slow
def test_failed_test_of_a_group_is_the_only_one_that_runs_once_more(tmp_path: Path) -> None:
    """pytest-xdist names it with its group, which `--last-failed` does not know: then it would run every test."""
    (tmp_path / "test_numbers.py").write_text(
        "import pytest\n@pytest.mark.xdist_group('one group')\n@pytest.mark.parametrize('n', ['a@b', 'c'])\n"
        "def test_number(n): assert n == 'c'\n"
    )
    pytest_command = [sys.executable, "-m", "pytest", "-q", "--rootdir=."]
    subprocess.run([*pytest_command, "-n", "1", "--dist", "loadgroup"], cwd=tmp_path, capture_output=True, check=False)
    subprocess.run(
        [sys.executable, "-m", "tests.failed_tests"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    again = subprocess.run([*pytest_command, "--last-failed"], cwd=tmp_path, capture_output=True, text=True)
    assert again.stdout.splitlines()[-1].startswith("1 failed in")
