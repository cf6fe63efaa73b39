"""What a mutant is, and the operators that make mutants of one module's source text. Pure.

Each operator makes a defect that people do make: a comparison that is off at its boundary, a constant off by one, `and`
for `or`, a negated condition, a missing guard, a missing call (sync, append, `set.add`), arguments in the wrong order,
another return value, `min` for `max`, an inverted mask, a missing handler, a missing keyword.

`sites` finds the places where they apply.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.mutation.sites import Filter, Site, Sites, without_body

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
    for site in Sites(source).found():
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


_Change = tuple[str, str, str, int, int, str]
"""Operator, before, after, first and last byte, and the text that takes their place."""


def _changes(site: Site) -> Iterator[_Change]:
    node = site.node
    if isinstance(node, ast.stmt):
        yield from _statement_changes(site, node)
    elif isinstance(node, ast.ExceptHandler):
        yield from _handler_changes(site, node)
    elif isinstance(node, Filter):
        yield _replaced(site, "filter removed", node.condition, "True")
    elif isinstance(node, ast.expr):
        for operator, change in _EXPRESSIONS:
            for new in change(node):
                yield _replaced(site, operator, node, ast.unparse(ast.fix_missing_locations(new)))


def _replaced(site: Site, operator: str, node: ast.expr | ast.stmt, after: str) -> _Change:
    start, end = site.sources.start(node), site.sources.end(node)
    before = ast.unparse(without_body(node) if isinstance(node, ast.stmt) else node).strip()
    text = after if isinstance(node, ast.stmt) or after.isidentifier() else f"({after})"
    # As many lines as before: later lines keep their numbers.
    return operator, before.partition("\n")[0], after, start, end, text + "\n" * _line_ends(site, start, end, node)


def _line_ends(site: Site, start: int, end: int, node: ast.AST) -> int:
    return site.sources.text.count(b"\n", start, end) if isinstance(node, ast.stmt) else 0


def _statement_changes(site: Site, node: ast.stmt) -> Iterator[_Change]:
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


def _block_replaced(site: Site, operator: str, body: list[ast.stmt], before: str, after: str) -> _Change:
    start, end = site.sources.start(body[0]), site.sources.end(body[-1])
    lines = site.sources.text.count(b"\n", start, end)
    text = "; ".join(ast.unparse(without_body(it)).strip().partition("\n")[0] for it in body)
    return operator, before + text, after, start, end, after + "\n" * lines


def _return_changes(site: Site, node: ast.Return) -> Iterator[_Change]:
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


def _condition_changes(site: Site, node: ast.If | ast.While) -> Iterator[_Change]:
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


def _with_changes(site: Site, node: ast.With | ast.AsyncWith) -> Iterator[_Change]:
    if any(item.optional_vars is not None for item in node.items):
        return
    start, body = site.sources.start(node), site.sources.start(node.body[0])
    colon = site.sources.text.rindex(b":", start, body)
    lines = site.sources.text.count(b"\n", start, colon)
    before = ast.unparse(without_body(node)).partition("\n")[0]
    yield "context removed", before, "if True:", start, colon, "if (True" + "\n" * lines + ")"


def _handler_changes(site: Site, node: ast.ExceptHandler) -> Iterator[_Change]:
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
