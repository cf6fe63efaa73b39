"""The judge: builds it (Go), runs it on a history, and puts its verdict into words."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "judge"
_BUILD_S = 600.0
_NOT_LINEARIZABLE = 1


class JudgeMissing(Exception):
    """The judge cannot be built on this machine; the text says what to install."""


@dataclass(frozen=True)
class Verdict:
    """The judge's verdict on one history."""

    facts: dict[str, Any]

    @property
    def is_linearizable(self) -> bool:
        return not self.facts["findings"]

    @property
    def word(self) -> str:
        """`linearizable`, `not linearizable`, or `unknown` (time or memory ran out, and nothing was wrong)."""
        verdicts = {found["verdict"] for found in self.facts["findings"]}
        return next((word for word in ("not linearizable", "unknown") if word in verdicts), "linearizable")

    @property
    def operations(self) -> int:
        return sum(self.facts["operations"].values())

    @property
    def reasons(self) -> list[str]:
        return [f"{found['object']}: {found['why']}" for found in self.facts["findings"] if "why" in found]

    def lines(self) -> list[str]:
        """Return the verdict for a person: sizes, then each finding with the operations before it."""
        facts = self.facts
        said = [
            f"{facts['ledgers']} ledgers, {facts['logs']} logs, {facts['readers']} readers; "
            f"{self.operations} operations in {facts['steps']} steps; judged in {facts['seconds']:.1f} s",
            ", ".join(f"{count} {name}" for name, count in facts["operations"].items()),
        ]
        for found in facts["findings"]:
            said.append(f"{found['object']}: {found['verdict']}: {found.get('why', 'no reason is known')}")
            said += [f"      {line}" for line in found.get("before", [])]
            if "operation" in found:
                said.append(f"  ->  {found['operation']}")
        said.append(self.word if self.is_linearizable else self.word.upper())
        return said


def go_needed() -> str:
    """Return the oldest Go that builds the judge, as its go.mod says."""
    found = re.search(r"^go (\S+)$", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def find_go() -> str:
    """Return the path of a `go` command that can build the judge.

    Raises:
        JudgeMissing: there is none, or it is too old.
    """
    path = shutil.which("go")
    if path is None:
        raise JudgeMissing(
            f"no Go on the PATH: install Go {go_needed()} or newer (https://go.dev/dl) to judge histories"
        )
    said = subprocess.run([path, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()
    if _numbers(said) < _numbers(go_needed()):
        raise JudgeMissing(f"{path} is {said or 'not usable'}: install Go {go_needed()} or newer to judge histories")
    return path


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def build(folder: Path) -> Path:
    """Build the judge and return its path. The first build fetches porcupine as go.sum pins it.

    Raises:
        JudgeMissing: no Go, or no porcupine.
        ValueError: the judge itself is wrong.
    """
    program = folder / "judge"
    go = find_go()
    if failure := _failure(go, "mod", "download"):
        raise JudgeMissing(f"porcupine, which the judge needs, cannot be fetched: {failure}")
    if failure := _failure(go, "build", "-mod=readonly", "-o", str(program.absolute()), "."):
        raise ValueError(f"the judge cannot be built: {failure}")
    return program


def _failure(*command: str) -> str:
    """Run a command in the judge's folder; return what it said when it failed."""
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    return done.stderr.strip() if done.returncode else ""


def judge(program: Path, history: Path, *, pictures: Path | None = None, limits: Sequence[str] = ()) -> Verdict:
    """Judge a history; `pictures` is a folder for a page about each object whose history is not linearizable.

    `limits` are options of the judge: `-limit` and `-total` in seconds, `-memory` in MiB.

    Raises:
        ValueError: the file is not a history; says which line.
    """
    options = [] if pictures is None else ["-html", str(pictures)]
    done = subprocess.run([str(program), *options, *limits, str(history)], capture_output=True, text=True, check=False)
    if done.returncode > _NOT_LINEARIZABLE:
        raise ValueError(done.stderr.strip())
    return Verdict(json.loads(done.stdout))
