"""Which functions of the product create nodes in the metadata store: in its source, and in a run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bkspark.metadata.tree import Create, Operation, Stat
from bkspark.metadata.zookeeper import ZooKeeperTree

ROOT = Path(__file__).parents[2]
PACKAGES = ("bkspark", "bookie_service", "bkspark_console")
STORE = ("bkspark/metadata/tree.py", "bkspark/metadata/memory.py", "bkspark/metadata/zookeeper.py")
"""The store itself."""

Site = tuple[str, str]
"""A file, as named from the top of the repository, and a function of it."""


def in_source() -> set[Site]:
    """Return every function that calls `create` of a tree, or makes a `Create` of a transaction."""
    found: set[Site] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name not in STORE:
                found |= {(name, function) for function in _creating(ast.parse(path.read_text()))}
    return found


def _creating(tree: ast.AST, function: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _creating(node, node.name)
            continue
        if _is_create(node):
            yield function
        yield from _creating(node, function)


def _is_create(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "create":
        owner = node.value
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        return name.lstrip("_").endswith("tree")
    # `Create(...)`, and `map(Create, ...)`; not an annotation.
    called = [node.func, *node.args] if isinstance(node, ast.Call) else []
    return any(isinstance(each, ast.Name) and each.id == "Create" for each in called)


class RecordedTree(ZooKeeperTree):
    """A session that notes which functions created nodes through it, callers included."""

    creating: set[Site]

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.creating = set()

    def _note(self) -> None:
        frame = sys._getframe(2)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT):
                self.creating.add((str(path.relative_to(ROOT)), frame.f_code.co_name))
            frame = frame.f_back  # type: ignore[assignment]

    async def create(self, path: str, data: bytes = b"", **kind: bool) -> tuple[str, Stat]:
        self._note()
        return await super().create(path, data, **kind)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        if any(isinstance(operation, Create) for operation in operations):
            self._note()
        await super().transaction(operations)
