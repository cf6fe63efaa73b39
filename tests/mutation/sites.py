"""Where a module may be changed: the nodes of its source text that `operators` make mutants of. Pure.

What no caller can observe is left alone: log lines, texts of errors, `__repr__`, asserts, annotations, type-checking
imports, and large constants (sizes and counts chosen for speed).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_LOGS = frozenset({"log", "_log", "logger", "_logger", "logging", "warnings"})


_UNOBSERVED_FUNCTIONS = frozenset({"__repr__", "__str__"})


@dataclass(frozen=True)
class Site:
    """A node that operators may change, and where it is."""

    node: ast.AST
    statement: ast.stmt
    function: str
    returns: str
    """The annotation of what the function returns, as text."""
    sources: Source

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", self.statement.lineno)

    @property
    def lines(self) -> tuple[int, ...]:
        """The node's own lines; of a statement with a body its head's."""
        node = self.node
        first = self.line
        if isinstance(node, ast.ExceptHandler):
            return (first, *(it.lineno for it in node.body[:1]))
        if isinstance(node, ast.Try):
            return tuple(it.lineno for it in node.finalbody[:1])
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if isinstance(body, list) and body else getattr(node, "end_lineno", first)
        return tuple(range(first, max(first, last) + 1))

    @property
    def statement_text(self) -> str:
        return self.sources.first_line(self.statement)


def without_body(statement: ast.stmt) -> ast.stmt:
    if not hasattr(statement, "body"):
        return statement
    bare = copy.copy(statement)
    bare.body = [ast.Pass()]  # type: ignore[attr-defined]
    for name in ("orelse", "finalbody", "handlers", "decorator_list"):
        if getattr(bare, name, None):
            setattr(bare, name, [])
    if isinstance(bare, (ast.Try, ast.TryStar)):
        bare.finalbody = [ast.Pass()]
    return bare


class Source:
    """Offsets of nodes in a text of bytes."""

    def __init__(self, source: bytes) -> None:
        self.text = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._first_lines: dict[ast.stmt, str] = {}

    def first_line(self, statement: ast.stmt) -> str:
        """Return the first line of a statement, as `ast.unparse` gives it."""
        if statement not in self._first_lines:
            self._first_lines[statement] = ast.unparse(without_body(statement)).strip().partition("\n")[0]
        return self._first_lines[statement]

    def start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]


class Sites:
    """Walks a module and finds the nodes that may be changed."""

    def __init__(self, source: bytes) -> None:
        self._sources = Source(source)
        self._tree = ast.parse(source)

    def found(self) -> Iterator[Site]:
        yield from self._of_body(self._tree.body, "", "")

    def _of_body(self, body: list[ast.stmt], function: str, returns: str) -> Iterator[Site]:
        for index, statement in enumerate(body):
            if not (index == 0 and _is_text(statement)):
                yield from self._of_statement(statement, function, returns)

    def _of_statement(self, statement: ast.stmt, function: str, returns: str) -> Iterator[Site]:
        if _is_unobserved(statement):
            return
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from self._of_definition(statement, function, returns)
            return
        yield Site(statement, statement, function, returns, self._sources)
        for field, value in ast.iter_fields(statement):
            if field in ("body", "orelse", "finalbody") and isinstance(value, list):
                yield from self._of_body(value, function, returns)
            elif field == "handlers":
                for handler in value:
                    yield Site(handler, statement, function, returns, self._sources)
                    if handler.type is not None:
                        yield from self._of_expression(handler.type, statement, function, returns)
                    yield from self._of_body(handler.body, function, returns)
            elif field == "cases":
                for case in value:
                    if case.guard is not None:
                        yield from self._of_expression(case.guard, statement, function, returns)
                    yield from self._of_body(case.body, function, returns)
            elif field != "annotation" and not (isinstance(statement, ast.Raise) and field == "exc"):
                for node in value if isinstance(value, list) else [value]:
                    if isinstance(node, ast.withitem):
                        node = node.context_expr
                    if isinstance(node, ast.expr):
                        yield from self._of_expression(node, statement, function, returns)

    def _of_definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, function: str, returns: str
    ) -> Iterator[Site]:
        if node.name in _UNOBSERVED_FUNCTIONS:
            return
        name = f"{function}.{node.name}" if function else node.name
        if isinstance(node, ast.ClassDef):
            yield from self._of_body(node.body, name, "")
            return
        for default in [*node.args.defaults, *(it for it in node.args.kw_defaults if it is not None)]:
            yield from self._of_expression(default, node, name, "")
        yield from self._of_body(node.body, name, ast.unparse(node.returns) if node.returns else "")

    def _of_expression(self, node: ast.expr, statement: ast.stmt, function: str, returns: str) -> Iterator[Site]:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and (_is_log(node) or _is_error(node))):
            return
        if _is_size(node, statement):
            return
        if not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            yield Site(node, statement, function, returns, self._sources)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    yield from self._of_expression(part, statement, function, returns)
                for condition in child.ifs:
                    yield Site(Filter(child, condition), statement, function, returns, self._sources)
            elif isinstance(child, ast.keyword):
                yield from self._of_expression(child.value, statement, function, returns)
            elif isinstance(child, ast.expr):
                yield from self._of_expression(child, statement, function, returns)


class Filter(ast.AST):
    """The condition of a comprehension."""

    def __init__(self, comprehension: ast.comprehension, condition: ast.expr) -> None:
        super().__init__()
        self.comprehension = comprehension
        self.condition = condition
        self.lineno = condition.lineno
        self.end_lineno = condition.end_lineno


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_log(call: ast.Call) -> bool:
    owner = call.func
    while isinstance(owner, ast.Attribute):
        owner = owner.value
        if isinstance(owner, ast.Attribute) and owner.attr in _LOGS:
            return True
    return isinstance(owner, ast.Name) and owner.id in _LOGS


def _is_error(call: ast.Call) -> bool:
    """Whether a call makes an error: what it says is not looked at, whether it is raised or returned."""
    is_class = isinstance(call.func, ast.Name) and call.func.id[:1].isupper()
    first = call.args[0] if call.args else None
    return is_class and (isinstance(first, ast.JoinedStr) or _is_words(first))


def _is_size(node: ast.expr, statement: ast.stmt) -> bool:
    """Whether this is a constant such as `64 * 1024` or `1 << 20`, by itself or as the default of an argument."""
    is_definition = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef))
    is_product = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.LShift, ast.Pow))
    return (
        is_definition
        and is_product
        and all(isinstance(it, (ast.BinOp, ast.Constant, ast.Mult, ast.LShift, ast.Pow)) for it in ast.walk(node))
    )


def _is_words(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def _is_unobserved(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Assert, ast.Pass, ast.Global, ast.Nonlocal)):
        return True
    if isinstance(statement, ast.Expr):
        value = statement.value
        return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _is_log(value))
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test).endswith("TYPE_CHECKING")
    if isinstance(statement, ast.Assign):
        return any(isinstance(it, ast.Name) and it.id in ("__slots__", "__all__") for it in statement.targets)
    return False
