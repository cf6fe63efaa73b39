"""What a mutant is, and the operators that make mutants of one module's source text. Pure.

Each operator makes a defect that people do make: a comparison that is off at its boundary, a constant off by one, `and`
for `or`, a negated condition, a missing guard, a missing call (sync, append, `set.add`), arguments in the wrong order,
another return value, `min` for `max`, an inverted mask, a missing handler, a missing keyword.

What no caller can observe is left alone: log lines, texts of errors, `__repr__`, asserts, annotations, type-checking
imports, and large constants (sizes and counts chosen for speed).
"""

from __future__ import annotations

import ast
import copy
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SMALL_CONSTANT_MAX = 8
"""An off-by-one of a larger constant is a tuning choice more often than a defect."""

_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_OPPOSITES = {
    "min": "max",
    "any": "all",
    "minimum": "maximum",
    "argmin": "argmax",
    "logical_and": "logical_or",
    "floor": "ceil",
    "popleft": "pop",
    "appendleft": "append",
    "find": "rfind",
    "bisect_left": "bisect_right",
    "left": "right",
}
OPPOSITES = _OPPOSITES | {value: key for key, value in _OPPOSITES.items() if key not in ("popleft", "appendleft")}
_LOGS = frozenset({"log", "_log", "logger", "_logger", "logging", "warnings"})
_UNOBSERVED_FUNCTIONS = frozenset({"__repr__", "__str__"})
_EMPTY = {"list": "[]", "dict": "{}", "set": "set()", "tuple": "()", "bytes": "b''", "Sequence": "()", "Iterable": "()"}
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Mutant:
    """One change of one module's source text."""

    module: str
    """Path of the file from the repository's root, with `/`."""
    function: str
    """Qualified name of the innermost function or class, empty at module level."""
    operator: str
    statement: str
    """The first line of the statement that is changed."""
    before: str
    """What is changed, in the form that `ast.unparse` gives it: spaces, line ends and places do not matter."""
    after: str
    number: int
    """Counts mutants of one function that are alike in everything else."""
    line: int
    lines: tuple[int, ...]
    """Lines of which one must be executed for the change to matter."""
    start: int
    end: int
    """Bytes of the source that `replacement` takes the place of."""
    replacement: str

    @property
    def key(self) -> tuple[str, str, str, str, str, str, int]:
        """What stays when lines move."""
        return (self.module, self.function, self.operator, self.statement, self.before, self.after, self.number)

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits of the key."""
        return hashlib.sha256(repr(self.key).encode()).hexdigest()[:16]

    def applied_to(self, source: bytes) -> bytes:
        """Return the changed source; `source` is the text that the mutant was made of."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]

    def compiles(self, source: bytes) -> bool:
        """Say whether the changed source is a module at all; few are not."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            try:
                compile(self.applied_to(source), self.module, "exec", dont_inherit=True)
            except (SyntaxError, SyntaxWarning):
                return False
        return True

    def __str__(self) -> str:
        place = f"{self.module}:{self.line} {self.function or '(module)'}"
        return f"{place}: {self.operator}: {self.before} -> {self.after}"


def mutants_of(module: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text; see `Mutant.compiles`."""
    found: list[Mutant] = []
    seen: Counter[tuple[str, ...]] = Counter()
    for site in _Sites(source).found():
        for operator, before, after, start, end, replacement in _changes(site):
            key = (module, site.function, operator, site.statement_text, before, after)
            found.append(Mutant(*key, seen[key], site.line, site.lines, start, end, replacement))
            seen[key] += 1
    return found


def functions_of(source: bytes) -> dict[str, tuple[int, int]]:
    """Return the first and last line of each function, by its qualified name; one of several of a name is kept."""
    found: dict[str, tuple[int, int]] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if not isinstance(child, ast.ClassDef):
                    first = min([child.lineno, *(it.lineno for it in child.decorator_list)])
                    found[name] = (first, child.end_lineno or child.lineno)
            walk(child, name)

    walk(ast.parse(source), "")
    return found


@dataclass(frozen=True)
class _Site:
    """A node that operators may change, and its place."""

    node: ast.AST
    statement: ast.stmt
    function: str
    returns: str
    """The annotation of what the function returns, as text."""
    sources: _Source

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


def _without_body(statement: ast.stmt) -> ast.stmt:
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


class _Source:
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
            self._first_lines[statement] = ast.unparse(_without_body(statement)).strip().partition("\n")[0]
        return self._first_lines[statement]

    def start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]


class _Sites:
    """Walks a module and finds the nodes that may be changed."""

    def __init__(self, source: bytes) -> None:
        self._sources = _Source(source)
        self._tree = ast.parse(source)

    def found(self) -> Iterator[_Site]:
        yield from self._of_body(self._tree.body, "", "")

    def _of_body(self, body: list[ast.stmt], function: str, returns: str) -> Iterator[_Site]:
        for index, statement in enumerate(body):
            if not (index == 0 and _is_text(statement)):
                yield from self._of_statement(statement, function, returns)

    def _of_statement(self, statement: ast.stmt, function: str, returns: str) -> Iterator[_Site]:
        if _is_unobserved(statement):
            return
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from self._of_definition(statement, function, returns)
            return
        yield _Site(statement, statement, function, returns, self._sources)
        for field, value in ast.iter_fields(statement):
            if field in ("body", "orelse", "finalbody") and isinstance(value, list):
                yield from self._of_body(value, function, returns)
            elif field == "handlers":
                for handler in value:
                    yield _Site(handler, statement, function, returns, self._sources)
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
    ) -> Iterator[_Site]:
        if node.name in _UNOBSERVED_FUNCTIONS:
            return
        name = f"{function}.{node.name}" if function else node.name
        if isinstance(node, ast.ClassDef):
            yield from self._of_body(node.body, name, "")
            return
        for default in [*node.args.defaults, *(it for it in node.args.kw_defaults if it is not None)]:
            yield from self._of_expression(default, node, name, "")
        yield from self._of_body(node.body, name, ast.unparse(node.returns) if node.returns else "")

    def _of_expression(self, node: ast.expr, statement: ast.stmt, function: str, returns: str) -> Iterator[_Site]:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and (_is_log(node) or _is_error(node))):
            return
        if _is_size(node, statement):
            return
        if not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            yield _Site(node, statement, function, returns, self._sources)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    yield from self._of_expression(part, statement, function, returns)
                for condition in child.ifs:
                    yield _Site(_Filter(child, condition), statement, function, returns, self._sources)
            elif isinstance(child, ast.keyword):
                yield from self._of_expression(child.value, statement, function, returns)
            elif isinstance(child, ast.expr):
                yield from self._of_expression(child, statement, function, returns)


class _Filter(ast.AST):
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


_Change = tuple[str, str, str, int, int, str]
"""Operator, before, after, first and last byte, and the text that takes their place."""


def _changes(site: _Site) -> Iterator[_Change]:
    node = site.node
    if isinstance(node, ast.stmt):
        yield from _statement_changes(site, node)
    elif isinstance(node, ast.ExceptHandler):
        yield from _handler_changes(site, node)
    elif isinstance(node, _Filter):
        yield _replaced(site, "filter removed", node.condition, "True")
    elif isinstance(node, ast.expr):
        for operator, change in _EXPRESSIONS:
            for new in change(node):
                yield _replaced(site, operator, node, ast.unparse(ast.fix_missing_locations(new)))


def _replaced(site: _Site, operator: str, node: ast.expr | ast.stmt, after: str) -> _Change:
    start, end = site.sources.start(node), site.sources.end(node)
    before = ast.unparse(_without_body(node) if isinstance(node, ast.stmt) else node).strip()
    text = after if isinstance(node, ast.stmt) or after.isidentifier() else f"({after})"
    # As many lines as before: later lines keep their numbers.
    return operator, before.partition("\n")[0], after, start, end, text + "\n" * _line_ends(site, start, end, node)


def _line_ends(site: _Site, start: int, end: int, node: ast.AST) -> int:
    return site.sources.text.count(b"\n", start, end) if isinstance(node, ast.stmt) else 0


def _statement_changes(site: _Site, node: ast.stmt) -> Iterator[_Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)):
        yield _replaced(site, "call removed", node, "pass")
    elif isinstance(node, ast.Assign) and all(isinstance(it, (ast.Attribute, ast.Subscript)) for it in node.targets):
        if not site.function.endswith("__init__"):
            yield _replaced(site, "assignment removed", node, "pass")
    elif isinstance(node, (ast.AugAssign, ast.Delete)):
        yield _replaced(site, "update removed", node, "pass")
        if isinstance(node, ast.AugAssign) and (opposite := _ARITHMETIC.get(type(node.op))):
            other = ast.AugAssign(node.target, opposite(), node.value)
            yield _replaced(site, "arithmetic", node, ast.unparse(ast.fix_missing_locations(other)))
    elif isinstance(node, ast.Raise):
        yield _replaced(site, "raise removed", node, "pass")
    elif isinstance(node, ast.Break):
        yield _replaced(site, "break and continue", node, "continue")
        yield _replaced(site, "break removed", node, "pass")
    elif isinstance(node, ast.Continue):
        yield _replaced(site, "break and continue", node, "break")
        yield _replaced(site, "continue removed", node, "pass")
    elif isinstance(node, ast.Return):
        yield from _return_changes(site, node)
    elif isinstance(node, (ast.If, ast.While)):
        yield from _condition_changes(site, node)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        yield from _with_changes(site, node)
    elif isinstance(node, ast.Try) and node.finalbody:
        yield _block_replaced(site, "finally removed", node.finalbody, "finally: ", "pass")


def _block_replaced(site: _Site, operator: str, body: list[ast.stmt], before: str, after: str) -> _Change:
    start, end = site.sources.start(body[0]), site.sources.end(body[-1])
    lines = site.sources.text.count(b"\n", start, end)
    text = "; ".join(ast.unparse(_without_body(it)).strip().partition("\n")[0] for it in body)
    return operator, before + text, after, start, end, after + "\n" * lines


def _return_changes(site: _Site, node: ast.Return) -> Iterator[_Change]:
    value = node.value
    if value is None:
        yield _replaced(site, "return removed", node, "pass")
        return
    text, returns = ast.unparse(value), site.returns
    kind = returns.partition("[")[0].rpartition(".")[2]
    if returns == "bool":
        constants = {"True": "False", "False": "True"}
        yield _replaced(site, "return value", node, f"return {constants.get(text) or _negation(value)}")
    elif returns == "int":
        yield _replaced(site, "return value", node, f"return {text} + 1")
    elif kind in _EMPTY and text != _EMPTY[kind]:
        yield _replaced(site, "return value", node, f"return {_EMPTY[kind]}")
    if returns.endswith("None") and returns != "None" and text != "None":
        yield _replaced(site, "return value", node, "return None")


def _negation(node: ast.expr) -> str:
    return ast.unparse(ast.UnaryOp(ast.Not(), node))


def _condition_changes(site: _Site, node: ast.If | ast.While) -> Iterator[_Change]:
    if isinstance(node.test, ast.Constant):
        return
    if not isinstance(node.test, ast.Compare):
        yield _replaced(site, "condition negated", node.test, _negation(node.test))
    if isinstance(node, ast.While):
        return
    if isinstance(node.body[-1], _LEAVES) and not node.orelse:
        yield _replaced(site, "guard removed", node.test, "False")
    else:
        yield _replaced(site, "condition always true", node.test, "True")
        if not node.orelse:
            yield _replaced(site, "block removed", node.test, "False")


def _with_changes(site: _Site, node: ast.With | ast.AsyncWith) -> Iterator[_Change]:
    if any(item.optional_vars is not None for item in node.items):
        return
    start, body = site.sources.start(node), site.sources.start(node.body[0])
    colon = site.sources.text.rindex(b":", start, body)
    lines = site.sources.text.count(b"\n", start, colon)
    before = ast.unparse(_without_body(node)).partition("\n")[0]
    yield "context removed", before, "if True:", start, colon, "if (True" + "\n" * lines + ")"


def _handler_changes(site: _Site, node: ast.ExceptHandler) -> Iterator[_Change]:
    if not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise) and node.body[0].exc is None):
        head = f"except {ast.unparse(node.type)}: " if node.type else "except: "
        yield _block_replaced(site, "handler removed", node.body, head, "raise")


def _boundary(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for index, old in enumerate(node.ops):
            if new := _BOUNDARIES.get(type(old)):
                yield ast.Compare(node.left, [*node.ops[:index], new(), *node.ops[index + 1 :]], node.comparators)


def _negated(node: ast.expr) -> Iterator[ast.expr]:
    """`a < b` is turned round here; what is not a comparison where it is a condition."""
    opposite: dict[type[ast.cmpop], type[ast.cmpop]] = {
        ast.Lt: ast.GtE,
        ast.GtE: ast.Lt,
        ast.Gt: ast.LtE,
        ast.LtE: ast.Gt,
    }
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in opposite:
        yield ast.Compare(node.left, [opposite[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)


def _constant(node: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int) and node.value <= SMALL_CONSTANT_MAX:
        yield ast.Constant(node.value + 1)
        if node.value > 0:
            yield ast.Constant(node.value - 1)


def _logic(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other, node.values)
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _arithmetic(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and (other := _ARITHMETIC.get(type(node.op))):
        is_text = any(
            isinstance(it, (ast.JoinedStr, ast.Constant)) and not _is_number(it) for it in (node.left, node.right)
        )
        if not is_text:
            yield ast.BinOp(node.left, other(), node.right)
            if isinstance(node.op, ast.BitAnd):
                yield node.left
                yield node.right
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _opposite_name(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in OPPOSITES:
            yield ast.Call(ast.Name(OPPOSITES[function.id], ast.Load()), node.args, node.keywords)
        elif isinstance(function, ast.Attribute) and function.attr in OPPOSITES:
            other = ast.Attribute(function.value, OPPOSITES[function.attr], ast.Load())
            yield ast.Call(other, node.args, node.keywords)
        for index, keyword in enumerate(node.keywords):
            if keyword.arg == "side" and isinstance(keyword.value, ast.Constant) and keyword.value.value in OPPOSITES:
                side = ast.keyword("side", ast.Constant(OPPOSITES[keyword.value.value]))
                yield ast.Call(node.func, node.args, [*node.keywords[:index], side, *node.keywords[index + 1 :]])
        if isinstance(function, ast.Name) and function.id in ("sorted", "reversed") and not node.keywords:
            yield ast.Call(ast.Name("list", ast.Load()), node.args, [])


def _arguments(node: ast.expr) -> Iterator[ast.expr]:
    """One pair a call: most such mutants die of a type, and would make the score of all look better than it is."""
    if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and node.func.id in ("min", "max")):
        return
    kinds = (ast.Name, ast.Attribute, ast.BinOp)
    for index in range(len(node.args) - 1):
        first, second = node.args[index : index + 2]
        if isinstance(first, kinds) and isinstance(second, kinds) and ast.dump(first) != ast.dump(second):
            yield ast.Call(node.func, [*node.args[:index], second, first, *node.args[index + 2 :]], node.keywords)
            return


def _keywords(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "TypeVar"):
        for index, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield ast.Call(node.func, node.args, [*node.keywords[:index], *node.keywords[index + 1 :]])


def _range(node: ast.expr) -> Iterator[ast.expr]:
    """One less at either end of a range."""
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in ("range", "arange") and 1 <= len(node.args) <= 2 and not isinstance(node.args[0], ast.Starred):
            last = ast.BinOp(node.args[-1], ast.Sub(), ast.Constant(1))
            yield ast.Call(node.func, [*node.args[:-1], last], node.keywords)
            if len(node.args) == 2:
                first = ast.BinOp(node.args[0], ast.Add(), ast.Constant(1))
                yield ast.Call(node.func, [first, node.args[1]], node.keywords)


def _slice(node: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(node, ast.Subscript):
        return
    part = node.slice
    if isinstance(part, ast.Slice) and part.step is None:
        if part.lower is not None:
            yield ast.Subscript(node.value, ast.Slice(None, part.upper), ast.Load())
        if part.upper is not None:
            yield ast.Subscript(node.value, ast.Slice(part.lower, None), ast.Load())
    elif isinstance(part, ast.Constant) and part.value == 0:
        yield ast.Subscript(node.value, ast.UnaryOp(ast.USub(), ast.Constant(1)), ast.Load())


def _exceptions(node: ast.expr) -> Iterator[ast.expr]:
    """One of several exceptions is not caught."""
    if isinstance(node, ast.Tuple) and len(node.elts) > 1:
        names = [
            it.id if isinstance(it, ast.Name) else it.attr if isinstance(it, ast.Attribute) else "" for it in node.elts
        ]
        if all(name[:1].isupper() for name in names):
            for index in range(len(node.elts)):
                yield ast.Tuple([*node.elts[:index], *node.elts[index + 1 :]], ast.Load())


_EXPRESSIONS: tuple[tuple[str, Callable[[ast.expr], Iterator[ast.expr]]], ...] = (
    ("boundary", _boundary),
    ("negated", _negated),
    ("constant", _constant),
    ("logic", _logic),
    ("arithmetic", _arithmetic),
    ("opposite", _opposite_name),
    ("arguments swapped", _arguments),
    ("keyword removed", _keywords),
    ("range", _range),
    ("slice", _slice),
    ("one of several", _exceptions),
)
