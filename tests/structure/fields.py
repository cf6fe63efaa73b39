"""Which fields of stateful classes lack a line that says what they mean, and which methods only raise.

A field is state when a method other than `__init__` assigns it, or when `__init__` makes an empty container for it. A
string after its assignment documents it, or its name followed by a colon in the docstring of the class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.sources import nodes_of, python_files

MAKING = ("__init__", "__post_init__")
CONTAINERS = ("Counter", "OrderedDict", "bytearray", "defaultdict", "deque", "dict", "list", "set")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def undocumented_fields(root: Path, packages: Sequence[str]) -> list[str]:
    """Return `file:line: Class.field` for each field of state without documentation."""
    return [
        f"{path.relative_to(root)}:{line}: {node.name}.{name}"
        for path in python_files(root, packages)
        if not path.name.endswith("_pb2.py")
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        for name, line in _undocumented(node)
    ]


def raising_methods(root: Path, packages: Sequence[str]) -> list[str]:
    """Return `file:line: Class.method` for each method whose whole body is a `raise`.

    Those that return `NoReturn` are left out: that is what they are for.
    """
    return [
        f"{path.relative_to(root)}:{method.lineno}: {node.name}.{method.name}"
        for path in python_files(root, packages)
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        for method in methods_of(node)
        if all(isinstance(each, ast.Raise) or is_text(each) for each in method.body)
        if any(isinstance(each, ast.Raise) for each in method.body)
        if method.returns is None or ast.unparse(method.returns) != "NoReturn"
    ]


def _undocumented(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    text = ast.get_docstring(node) or ""
    changed = set().union(*(_assigned(function) for function in methods_of(node) if function.name not in MAKING))
    made = [step for function in methods_of(node) if function.name == "__init__" for step in steps_of(function)]
    found: dict[str, int] = {}
    documented: set[str] = set()
    declared = zip(node.body, [*node.body[1:], None])
    names = [(step, fields_of(step[0])) for step in made] + [(step, declared_fields(step[0])) for step in declared]
    for (statement, following), given in names:
        for name in given:
            if is_text(following) or f"{name}:" in text or f"{name}," in text or f"`{name}`" in text:
                documented.add(name)
            elif name in changed or _is_empty_container(statement):
                found.setdefault(name, statement.lineno)
    yield from ((name, line) for name, line in found.items() if name not in documented)


def methods_of(node: ast.ClassDef) -> list[Function]:
    return [each for each in node.body if isinstance(each, Function)]


def _assigned(function: Function) -> set[str]:
    return {name for each in ast.walk(function) if isinstance(each, ast.stmt) for name in fields_of(each)}


def steps_of(function: Function) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Yield each statement of a function with the one after it, those in blocks too."""
    for node in ast.walk(function):
        for block in (getattr(node, "body", []), getattr(node, "orelse", [])):
            if isinstance(block, list):
                yield from zip(block, [*block[1:], None])


def fields_of(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement assigns to `self`."""
    for target in _targets(statement):
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr


def declared_fields(statement: ast.stmt) -> Iterator[str]:
    """Yield the name of a field of a dataclass."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id


def _targets(statement: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        yield statement.target


def is_text(statement: ast.stmt | None) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_empty_container(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    if isinstance(value, (ast.List, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in CONTAINERS
        and not value.args
    )
