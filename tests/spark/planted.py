"""Defects planted in the connector and in the log's times, retention and routing, and the tests that notice them.

`python -m tests.spark.planted [TEXT...] [--jobs N]` plants the defects of `planted.toml`, or those whose description
has a text, each in a copy of the tree. It runs the defect's tests there, which must pass in a copy without it, and
prints which defects they did not notice; then the exit code is 1. `python -m tests.mutation` does the same with
generated defects, but runs no test of Spark and does not mutate `bkspark/spark`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.trees import ROOT, copy_tree, environment

TESTS_S = 900


@dataclass(frozen=True, slots=True)
class Defect:
    """In `module`, the text `old`, which it has once, becomes `new`. `tests`: files or tests, as pytest takes them."""

    bug: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


def defects() -> list[Defect]:
    """Return the defects of `planted.toml`, with the tests of the groups that they name."""
    listed = tomllib.loads((Path(__file__).parent / "planted.toml").read_text())
    groups = listed["groups"]
    return [
        Defect(**{**each, "tests": tuple(test for name in each["tests"] for test in groups.get(name, [name]))})
        for each in listed["defect"]
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a planted defect, and what pytest said of it.

    `kind`: "noticed", if a test failed; "survived", if all passed; "ended early", if pytest did not run them, for
    example because a module cannot be imported; "slow", if they did not end within the limit; "no baseline", if they
    do not pass without the defect, so that they say nothing of it.
    """

    defect: Defect
    kind: str
    detail: str


def planted_text(defect: Defect, root: Path = ROOT) -> str:
    """Return the text of the module with the defect.

    Raises:
        ValueError: the module does not have the text to replace exactly once.
    """
    text = (root / defect.module).read_text()
    if text.count(defect.old) != 1:
        raise ValueError(f"{defect.module} has {text.count(defect.old)} times what {defect.bug!r} replaces")
    return text.replace(defect.old, defect.new)


class Trials:
    """Runs tests in copies of the tree `root`, with a defect or without one. Threads may share it."""

    def __init__(self, root: Path = ROOT, limit_s: float = TESTS_S) -> None:
        self._root = root
        self._limit_s = limit_s
        self._started: list[subprocess.Popen[bytes]] = []

    def outcomes(self, chosen: list[Defect], pool: concurrent.futures.Executor) -> Iterator[Outcome]:
        """Yield what becomes of each defect. The tests run without a defect first, once for defects of the same."""
        lists = list(dict.fromkeys(each.tests for each in chosen))
        baselines = dict(zip(lists, pool.map(self._without_defect, lists), strict=True))
        return pool.map(lambda defect: self._outcome(defect, *baselines[defect.tests]), chosen)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def _without_defect(self, tests: tuple[str, ...]) -> tuple[str, str]:
        return self._kind_of(tests, {})

    def _outcome(self, defect: Defect, baseline: str, detail: str) -> Outcome:
        if baseline != "survived":
            return Outcome(defect, "no baseline", detail or baseline)
        return Outcome(defect, *self._kind_of(defect.tests, {defect.module: planted_text(defect, self._root)}))

    def _kind_of(self, tests: tuple[str, ...], changed: dict[str, str]) -> tuple[str, str]:
        """Return the kind of an outcome, and its detail."""
        with tempfile.TemporaryDirectory(prefix="bkspark-planted-") as name:
            tree, said = Path(name, "tree"), Path(name, "said")
            copy_tree(tree, self._root)
            for module, text in changed.items():
                (tree / module).write_text(text)
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
            code = self.run(command, tree, said)
            lines = said.read_text(errors="replace").splitlines()
        if code is None:
            return "slow", f"no end within {self._limit_s} s"
        if code not in (0, 1):
            return "ended early", f"pytest ended with {code}: {lines[-1:]}"
        first = next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "")
        return ("noticed" if code else "survived"), first

    def run(self, command: list[str], tree: Path, said: Path) -> int | None:
        """Return the exit code of a command in a copy; None, if it did not end in time: what it started is killed."""
        with said.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=tree, env=environment(tree), stdout=output, stderr=output, start_new_session=True
            )
        self._started.append(process)
        try:
            return process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.planted")
    parser.add_argument("texts", nargs="*", help="plant the defects whose description has one of these")
    parser.add_argument("--jobs", type=int, default=1, help="defects that are tried at the same time")
    arguments = parser.parse_args()
    chosen = [each for each in defects() if not arguments.texts or any(text in each.bug for text in arguments.texts)]
    missed = 0
    trials = Trials()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            for found in trials.outcomes(chosen, pool):
                missed += found.kind != "noticed"
                print(f"{found.kind:>11}  {found.defect.bug}  {found.detail}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            trials.end()
            raise
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
