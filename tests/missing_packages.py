"""Runs a program as if some packages were not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

_WITHOUT = """\
import runpy, sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {missing!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""


def run_without(missing: Sequence[str], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which importing the `missing` packages fails."""
    command = [sys.executable, "-c", _WITHOUT.format(missing=tuple(missing)) + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def run_module_without(
    missing: Sequence[str], module: str, arguments: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments` likewise."""
    program = f"sys.argv = [{module!r}, *{list(arguments)!r}]\n"
    return run_without(missing, f"{program}runpy.run_module({module!r}, run_name='__main__', alter_sys=True)")
