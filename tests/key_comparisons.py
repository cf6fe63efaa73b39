"""Finds comparisons of keys, passwords and tokens whose time depends on where the first difference is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.sources import nodes_of, python_files

_SECRET = re.compile(r"(^|_)(master_key|fencing_key|stored_key|given_key|password|passwd|secret|token|csrf)$")
_PUBLIC_TOKENS = ("bkspark/log",)
"""Where a token names a change of a log, and everyone may read it."""
_CONSTANT = re.compile(r"[A-Z_]+")


def early_exits(root: Path, packages: tuple[str, ...]) -> Iterator[str]:
    """Yield place and text of each `==`, `!=` or `in` with a secret on one side, and no constant on the other."""
    for path in python_files(root, packages):
        place = path.relative_to(root).as_posix()
        if path.name.endswith("_pb2.py") or place.startswith(_PUBLIC_TOKENS):
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.Compare) and _exits_early(node):
                yield f"{place}:{node.lineno}: {ast.unparse(node)}"


def _exits_early(node: ast.Compare) -> bool:
    if not all(isinstance(operator, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for operator in node.ops):
        return False
    sides = [node.left, *node.comparators]
    return any(map(_is_secret, sides)) and not any(map(_is_constant, sides))


def _is_secret(side: ast.expr) -> bool:
    if isinstance(side, ast.Tuple):
        return any(map(_is_secret, side.elts))
    name = side.attr if isinstance(side, ast.Attribute) else side.id if isinstance(side, ast.Name) else ""
    return _SECRET.search(name) is not None


def _is_constant(side: ast.expr) -> bool:
    return isinstance(side, ast.Constant) or (isinstance(side, ast.Name) and _CONSTANT.fullmatch(side.id) is not None)
