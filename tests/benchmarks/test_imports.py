"""Programs that no test runs to their end import each name from the module that defines it (`from ... import` alone).

A name that a module has only because it imports it itself may be another one tomorrow, and the program notices when it
runs, after minutes of measuring. The product is checked by its type checker, which takes no such import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import GROUP, nodes_of, parsed, python_files

ROOT = Path(__file__).parent.parent.parent
SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
PACKAGES = ("bkspark", "bookie_service", "tests", "benchmarks")

pytestmark = pytest.mark.xdist_group(GROUP)


def file_of(module: str) -> Path | None:
    """Return the file of a module of this repository."""
    path = ROOT.joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def of_module(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose names belong to the module, and not to a function, class or comprehension in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, SCOPES):
            yield from of_module(child)


def defined_in(path: Path) -> set[str]:
    """Return the names that a module defines; a package also has those that it imports, which is what it is for."""
    names: set[str] = set()
    for node in of_module(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom) and path.name == "__init__.py":
            names.update(each.asname or each.name for each in node.names)
    return names


def strange_imports(path: Path) -> Iterator[str]:
    """Yield a line for each name that a program imports from a module that does not define it."""
    for node in nodes_of(path):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in PACKAGES:
            continue
        module = node.module or ""
        source = file_of(module)
        known = set() if source is None else defined_in(source)
        for each in node.names:
            if each.name not in known and file_of(f"{module}.{each.name}") is None:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {module} does not define {each.name}"


def test_benchmarks_and_examples_import_names_from_the_modules_that_define_them() -> None:
    files = list(python_files(ROOT, ["benchmarks", "examples"]))
    assert len(files) > 40
    assert [line for path in files for line in strange_imports(path)] == []


def test_only_names_of_the_module_itself_count_as_defined(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\nfrom a import b\nA = [c for c in ()]\nif A:\n    D, (e, f) = A\n"
        "def g():\n    h = 1\nclass I:\n    j = 1\n    def k(self): ...\nwith A as m: n: int = 1\n"
    )
    assert defined_in(program) == {"A", "D", "e", "f", "g", "I", "m", "n"}
