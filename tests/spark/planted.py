"""Defects planted in the connector and in the log's times, retention and routing, and the tests that notice them.

`python -m tests.spark.planted [TEXT...] [--jobs N]` plants the defects of `planted.toml`, or those whose description
has a text, each in a copy of the tree. It runs the defect's tests, and prints which defects survived; then the exit
code is 1. `python -m tests.mutation` does the same with generated defects, but runs no test of Spark and does not
mutate `bkspark/spark`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
    """What became of a planted defect. `kind`: "noticed", "survived" or "slow", if its tests did not end."""

    defect: Defect
    kind: str
    first_failure: str


def planted_text(defect: Defect) -> str:
    """Return the text of the module with the defect.

    Raises:
        ValueError: the module does not have the text to replace exactly once.
    """
    text = (ROOT / defect.module).read_text()
    if text.count(defect.old) != 1:
        raise ValueError(f"{defect.module} has {text.count(defect.old)} times what {defect.bug!r} replaces")
    return text.replace(defect.old, defect.new)


def _copy(folder: Path) -> None:
    """Copy what git tracks, or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def outcome(defect: Defect) -> Outcome:
    """Plant a defect in a copy of the tree, and run its tests there."""
    with tempfile.TemporaryDirectory(prefix="bkspark-planted-") as name:
        folder = Path(name)
        _copy(folder)
        (folder / defect.module).write_text(planted_text(defect))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *defect.tests]
        environment = {**os.environ, "PYTHONPATH": name}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, timeout=TESTS_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Outcome(defect, "slow", "")
        lines = done.stdout.decode(errors="replace").splitlines()
        first = next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "")
        if done.returncode not in (0, 1):
            return Outcome(defect, "slow", f"pytest ended with {done.returncode}: {lines[-1:]}")
        return Outcome(defect, "noticed" if done.returncode else "survived", first)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.planted")
    parser.add_argument("texts", nargs="*", help="plant the defects whose description has one of these")
    parser.add_argument("--jobs", type=int, default=1, help="defects that are tried at the same time")
    arguments = parser.parse_args()
    chosen = [each for each in defects() if not arguments.texts or any(text in each.bug for text in arguments.texts)]
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(outcome, chosen):
            missed += found.kind != "noticed"
            print(f"{found.kind:>8}  {found.defect.bug}  {found.first_failure}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
