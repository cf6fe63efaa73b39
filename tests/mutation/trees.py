"""Copies of the working tree: mutants live in these alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def copy_tree(target: Path, root: Path = ROOT) -> None:
    """Copy what git tracks, and what is new and not ignored, as it is on disk."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    for name in os.fsdecode(listed).split("\0"):
        if name and (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def environment(tree: Path) -> dict[str, str]:
    """Return the variables with which a process imports a copy's modules, and not those of the working tree."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE_"))}
    # Bytecode is kept in the copy: each mutant has a process of its own, which would compile everything again.
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    # Threads that a library starts when it is imported do not survive a fork.
    return {**settings, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
