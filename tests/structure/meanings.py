"""Which fields of classes have no meaning that a reader finds in the class itself or in the glossary.

A field says what it is by one of these:

* a string after its assignment;
* its name in the docstring of the class or of `__init__`, or in the string after another field. Any mention counts: as
  a word of a sentence, without its unit, in the singular, or by the parameter that it is made of. That the sentence
  explains the field is for its reader to see;
* one of these two in a direct base class;
* the docstring of the class, if it is the only field;
* its type: `_registry: BookieRegistry` needs no line, because the type has its own docstring;
* the glossary, if its name or its singular is in a column "In code", "Fields" or "Name": `ledger_id` is the same
  everywhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.sources import nodes_of, python_files
from tests.structure.fields import Function, declared_fields, fields_of, is_text, methods_of, steps_of

GLOSSARY = "docs/glossary.md"
ELSEWHERE = {
    "ConsoleOptions": "its command's options",
    "LogHead": "the docstring of its module, which describes the stored form",
    "OptionTypes": "the table of docs/spark.md",
    "SourceOptions": "the table of docs/spark.md",
    "WriterLimits": "WriterOptions, whose names and meanings it has",
}
"""Where the fields of these classes are documented instead: a second text would be a copy."""

_UNITS = re.compile(r"_(bytes|ms|ns|s)$")
_WORD = re.compile(r"[A-Za-z_]+")
_NAME = re.compile(r"`([a-z_]+)`")
_COLUMNS_OF_NAMES = ("In code", "Fields", "Name")


@dataclass(frozen=True)
class _Field:
    """A field of a class, as it is first assigned or declared."""

    name: str
    line: int
    has_text: bool
    types: str
    """The source that names its type: an annotation, those of the parameters it is made of, and the value itself."""
    made_of: frozenset[str]
    """The parameters of `__init__` in its value."""


def unexplained_fields(root: Path, packages: Sequence[str], terms: set[str]) -> list[str]:
    """Return `file:line: Class.field` for each field whose meaning is neither in its class nor one of the `terms`."""
    classes = [
        (path.relative_to(root), node)
        for path in python_files(root, packages)
        if not path.name.endswith("_pb2.py")
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef) and node.name not in ELSEWHERE
    ]
    documented = {node.name: _documented(node) for _, node in classes}
    found = []
    for path, node in classes:
        fields = _fields(node)
        known = terms.union(*(documented.get(ast.unparse(base), set()) for base in node.bases))
        if len(fields) == 1 and ast.get_docstring(node):
            continue
        own = _documented(node)
        found += [
            f"{path}:{field.line}: {node.name}.{field.name}"
            for field in fields
            if not (field.name in own or _is_term(field.name, known) or _is_type(field))
        ]
    return found


def glossary_terms(root: Path) -> set[str]:
    """Return the names of code that the glossary explains: those in some columns of its tables."""
    found: set[str] = set()
    head: list[str] = []
    for line in (root / GLOSSARY).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        head = (head or cells) if cells else []
        found.update(*(_NAME.findall(cell) for title, cell in zip(head, cells) if title in _COLUMNS_OF_NAMES))
    return found


def _documented(node: ast.ClassDef) -> set[str]:
    """Return the fields that a text in the class explains or mentions."""
    text = _texts(node)
    return {field.name for field in _fields(node) if field.has_text or _is_in(field, text)}


def _fields(node: ast.ClassDef) -> list[_Field]:
    parameters = {
        each.arg: ast.unparse(each.annotation)
        for function in _inits(node)
        for each in (*function.args.args, *function.args.kwonlyargs)
        if each.annotation is not None
    }
    made = [(step, fields_of(step[0])) for function in _inits(node) for step in steps_of(function)]
    declared = [(step, declared_fields(step[0])) for step in zip(node.body, [*node.body[1:], None])]
    found: dict[str, _Field] = {}
    for (statement, following), names in [*declared, *made]:
        for name in names:
            types = " ".join(_types(statement, parameters))
            before = found.get(name)
            has_text = is_text(following) or (before is not None and before.has_text)
            made_of = frozenset(_names(statement) & parameters.keys())
            line = statement.lineno if before is None else before.line
            found[name] = _Field(name, line, has_text, types, made_of)
    return list(found.values())


def _inits(node: ast.ClassDef) -> list[Function]:
    return [function for function in methods_of(node) if function.name == "__init__"]


def _types(statement: ast.stmt, parameters: dict[str, str]) -> Iterator[str]:
    if isinstance(statement, ast.AnnAssign):
        yield ast.unparse(statement.annotation)
    value = getattr(statement, "value", None)
    if value is not None:
        yield ast.unparse(value)
        yield from (parameters.get(name, "") for name in sorted(_names(statement)))


def _names(statement: ast.stmt) -> set[str]:
    return {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}


def _texts(node: ast.ClassDef) -> str:
    """Return the docstrings of the class and of `__init__`, and the texts of all fields."""
    bodies = [node.body, *(function.body for function in _inits(node))]
    return " ".join(ast.unparse(statement) for body in bodies for statement in body if is_text(statement))


def _is_term(name: str, terms: set[str]) -> bool:
    """Return whether a name, its singular, or what follows its `_` is a term."""
    return bool({name, name.strip("_"), name.strip("_").removesuffix("s")} & terms)


def _is_in(field: _Field, text: str) -> bool:
    bare = field.name.strip("_")
    words = {bare, _UNITS.sub("", bare), bare.removesuffix("s"), *field.made_of}
    return any(re.search(rf"(?<![a-z]){each.replace('_', '[_ ]')}(?![a-z])", text, re.IGNORECASE) for each in words)


def _is_type(field: _Field) -> bool:
    """Return whether a field is named like a class in its type or value: by all its words, or by its last ones."""
    bare = field.name.strip("_")
    for word in _WORD.findall(field.types):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word.strip("_")).lower()
        if word[:1].isupper() or word.startswith("_"):
            singular = bare.removesuffix("s")
            if f"_{snake}_".find(f"_{singular}_") >= 0 or f"_{snake}_".find(f"_{bare}_") >= 0:
                return True
            if f"_{bare}_".find(f"_{snake}_") >= 0 or snake.removesuffix("s") == singular:
                return True
    return False
