"""Every field of a core, and of the writer that drives one, says what it means and who changes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import GROUP, nodes_of, python_files

ROOT = Path(__file__).parent.parent.parent
WRITER = ("writer.py", "writer_run.py", "fanout.py", "window.py", "driver.py", "advanced.py")


def undocumented(nodes: tuple[ast.AST, ...]) -> Iterator[str]:
    """Yield the fields that an `__init__` sets and that no text follows."""
    for found in nodes:
        if isinstance(found, ast.FunctionDef) and found.name == "__init__":
            for line, following in zip(found.body, [*found.body[1:], None], strict=True):
                targets = [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [])
                is_documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                for target in targets:
                    if is_own_field(target) and not is_documented:
                        yield target.attr


def is_own_field(target: ast.AST) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"


@pytest.mark.xdist_group(GROUP)
def test_fields_of_cores_and_of_the_writer_are_documented() -> None:
    files = [*python_files(ROOT, ["bkspark/core"]), *(ROOT / "bkspark" / "ledger" / name for name in WRITER)]
    assert len(files) > 20
    assert {path.name: found for path in files if (found := list(undocumented(nodes_of(path))))} == {}


def test_a_field_without_a_text_is_found() -> None:
    source = 'class A:\n    def __init__(self):\n        self.a = 1\n        """Constant."""\n        self.b: int = 2\n'
    assert list(undocumented(tuple(ast.walk(ast.parse(source))))) == ["b"]
