"""Sizes of the product's code, from its source text: lines, files, functions, parameters, classes and imports."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.layering import PACKAGES, violations
from tests.sources import nodes_of, python_files

FILE_LINES_MAX = 600
PARAMETERS_MAX = 6
LARGEST_CLASSES = 5
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sizes(root: Path) -> dict[str, str]:
    """Return what was measured of the packages under `root`: a name and a value for each row of the table."""
    found = {package: _nodes(root / package) for package in PACKAGES if package != "pyspark_bookkeeper"}
    rows = {}
    for package, files in found.items():
        lines = sorted(_line_count(path) for path in files)
        rows[f"{package}: lines"] = f"{sum(lines)} in {len(lines)} files"
        rows[f"{package}: lines of a file"] = _spread(lines)
        large = sum(count > FILE_LINES_MAX for count in lines)
        rows[f"{package}: files above {FILE_LINES_MAX} lines"] = str(large)
        functions = [function for nodes in files.values() for function in _functions(nodes)]
        rows[f"{package}: lines of a function"] = _spread(sorted(map(_length, functions)))
    every = [node for files in found.values() for nodes in files.values() for node in nodes]
    many = sum(_parameters(function) > PARAMETERS_MAX for function in _functions(every))
    rows[f"functions with above {PARAMETERS_MAX} parameters"] = str(many)
    classes = [node for node in every if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in classes if not node.name.startswith("_"))
    rows["public class names used twice"] = str(sum(count > 1 for count in names.values()))
    methods = sorted(((_methods(node), node.name) for node in classes), reverse=True)
    rows["largest classes, methods"] = ", ".join(f"{name} {count}" for count, name in methods[:LARGEST_CLASSES])
    for name in ("LedgerWriter", "WriterCore"):
        rows[f"methods of {name}"] = str(max((count for count, other in methods if other == name), default=0))
    broken = violations(root)
    cycles = sum(line.startswith("import cycle") for line in broken)
    rows["import cycles"] = str(cycles)
    rows["imports against the layers"] = str(len(broken) - cycles)
    return rows


def _nodes(folder: Path) -> dict[Path, tuple[ast.AST, ...]]:
    return {path: nodes_of(path) for path in python_files(folder.parent, [folder.name])}


def _line_count(path: Path) -> int:
    return len(path.read_text().splitlines())


def _functions(nodes: Sequence[ast.AST]) -> Iterator[Function]:
    return (node for node in nodes if isinstance(node, Function))


def methods_of_classes(path: Path) -> dict[str, int]:
    """Return how many methods each class of a file has."""
    return {node.name: _methods(node) for node in nodes_of(path) if isinstance(node, ast.ClassDef)}


def _methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, Function) for each in node.body)


def _length(function: Function) -> int:
    """Return the lines of a function's body, without its docstring."""
    first, last = function.body[0], function.body[-1]
    assert first.end_lineno is not None
    assert last.end_lineno is not None
    begin = first.end_lineno + 1 if ast.get_docstring(function, clean=False) is not None else first.lineno
    return last.end_lineno - begin + 1


def _parameters(function: Function) -> int:
    """Return the number of parameters, `self` included."""
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def _spread(ordered: Sequence[int]) -> str:
    """Return median, 90th percentile and maximum."""
    return f"{ordered[len(ordered) // 2]} / {ordered[len(ordered) * 9 // 10]} / {ordered[-1]}"
