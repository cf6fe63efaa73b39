"""The source files of the product as syntax trees, for tests of the code: each file is read and parsed once a process.

Tests that need all files belong to the group `GROUP`, so that one of the test runner's processes alone parses them.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path

GROUP = "sources"


def python_files(root: Path, packages: Iterable[str]) -> Iterator[Path]:
    """Yield the Python files of packages under `root`, in order."""
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which the caller must not change."""
    return _tree(path.read_text())


def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, in the order of `ast.walk`: a walk takes longer than most checks."""
    return _nodes(path.read_text())


@functools.cache
def _tree(source: str) -> ast.Module:
    # Each collection of garbage would look at all nodes that there are, and none of them is garbage.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def _nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(source)))
