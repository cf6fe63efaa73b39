"""The list of planted defects fits the code: `python -m tests.spark.planted` plants them and runs their tests."""

from __future__ import annotations

import concurrent.futures
import os
import select
import subprocess
from pathlib import Path

import pytest

from tests.mutation.trees import ROOT
from tests.spark.planted import Defect, Trials, defects, planted_text

DEFECTS = defects()
TREE = {
    "product.py": "LIMIT = 3\n",
    "test_limit.py": "from product import LIMIT\n\ndef test_limit(): assert LIMIT == 3\n",
    "test_nothing.py": "import product\n\ndef test_nothing(): pass\n",
    "test_fails.py": "def test_fails(): assert False\n",
}
"""A product, and tests that notice a change of its limit, pass in any case, and always fail."""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda it: it.bug)
def test_planted_defect_is_one_change_of_a_module_that_still_compiles(defect: Defect) -> None:
    compile(planted_text(defect), defect.module, "exec")
    assert defect.tests
    for test in defect.tests:
        assert (ROOT / test.partition("::")[0]).is_file(), test


def test_no_two_planted_defects_are_the_same() -> None:
    assert len({each.bug for each in DEFECTS}) == len(DEFECTS)
    assert len({(each.module, each.old, each.new) for each in DEFECTS}) == len(DEFECTS)


@pytest.mark.slow
def test_defect_counts_as_noticed_only_if_tests_that_pass_without_it_run_and_fail(tmp_path: Path) -> None:
    for name, text in TREE.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    changed, broken = "LIMIT = 4", "LIMIT = ="
    chosen = [
        Defect("noticed", "product.py", "LIMIT = 3", changed, ("test_limit.py",)),
        Defect("survived", "product.py", "LIMIT = 3", changed, ("test_nothing.py",)),
        Defect("ended early", "product.py", "LIMIT = 3", broken, ("test_limit.py",)),
        Defect("no baseline", "product.py", "LIMIT = 3", changed, ("test_fails.py",)),
    ]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(Trials(tmp_path).outcomes(chosen, pool))
    assert [each.kind for each in found] == [each.bug for each in chosen]
    assert "test_limit.py::test_limit" in found[0].detail
    assert "test_fails.py::test_fails" in found[3].detail


def test_what_slow_tests_started_ends_with_them(tmp_path: Path) -> None:
    """A child of the command keeps a pipe open; it is closed when no process has it any more."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        command = ["sh", "-c", f"exec 9>{pipe}; echo started >&9; sleep 1000 & wait"]
        assert Trials(limit_s=3).run(command, tmp_path, tmp_path / "said") is None
        assert os.read(reader, 100) == b"started\n"
        assert select.select([reader], [], [], 60)[0]
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
