"""The page about errors, made from the code that defines and raises them.

python -m tests.error_docs > docs/errors.md
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from bkspark import errors
from bkspark.errors import BookKeeperError
from tests.sources import nodes_of

PACKAGE = Path(errors.__file__).parent
FACTS = {"ledger_id": "ledger", "entry_id": "entry", "bookie": "bookie"}
APACHE_NAMES = {
    -1: "Read",
    -5: "DigestMatch",
    -6: "NotEnoughBookies",
    -8: "BookieHandleNotAvailable",
    -9: "ZK",
    -10: "LedgerRecovery",
    -11: "LedgerClosed",
    -13: "NoSuchEntry",
    -14: "IncorrectParameter",
    -16: "ProtocolVersion",
    -17: "MetadataVersion",
    -19: "ClientClosed",
    -20: "LedgerExist",
    -22: "DuplicateEntryId",
    -23: "Timeout",
    -24: "Security",
    -25: "NoSuchLedgerExistsOnMetadataServer",
    -101: "LedgerFenced",
    -102: "UnauthorizedAccess",
    -105: "TooManyRequests",
    -107: "MetadataSerialization",
    -999: "UnexpectedCondition",
}
"""Names of Apache's BKException codes."""

_INTRODUCTION = """\
# Errors

Made by `python -m tests.error_docs > docs/errors.md`; a test compares the two.

All errors that `bkspark` raises for a reason outside its own code are subclasses of `bkspark.errors.BookKeeperError`.
An argument of a wrong Python type raises `TypeError`, and a value that no call accepts raises `ValueError` or
`ConfigurationError`. The attribute `code` of an error is the code of Apache's `BKException` for the same situation. The
attributes `ledger_id`, `entry_id` and `bookie` are None if they are not known. Errors can be pickled. The column
*Carries* lists the attributes that are set whenever the error is raised; those in brackets are set only in some cases.
If an error ends a writer, its `entry_id` is the first entry whose outcome is unknown: this entry and all later entries
may or may not be stored.
"""


def error_types() -> list[type[BookKeeperError]]:
    """Return every error of the tree, in the order of the module."""
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BookKeeperError)]


@functools.cache
def facts_given() -> dict[str, list[set[str]]]:
    """Return, by error, which facts each place in bkspark that makes one gives it."""
    names = {kind.__name__ for kind in error_types()}
    found: dict[str, list[set[str]]] = {name: [] for name in names}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "errors.py":
            continue
        for name, call in _raised(path, names):
            found[name].append({keyword.arg for keyword in call.keywords} & set(FACTS))  # type: ignore[arg-type]
    return found


def _raised(path: Path, names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    """Yield (error, call) for every call of an error, or of a local `kind` that is one of several."""
    for function in nodes_of(path):
        if isinstance(function, ast.Call) and isinstance(function.func, ast.Name) and function.func.id in names:
            yield function.func.id, function
        if not isinstance(function, ast.FunctionDef):
            continue
        calls = [it for it in ast.walk(function) if isinstance(it, ast.Call)]
        chosen = [it for it in calls if isinstance(it.func, ast.Name) and it.func.id == "kind"]
        if chosen:
            kinds = {it.id for it in ast.walk(function) if isinstance(it, ast.Name) and it.id in names}
            yield from ((name, call) for name in sorted(kinds - {"BookKeeperError"}) for call in chosen)


def page() -> str:
    """Return the whole page, as Markdown."""
    given = facts_given()
    rows = [_row(kind, given[kind.__name__]) for kind in error_types()]
    head = ["| Error | Code | Carries | What it means | What to do |", "|---|---|---|---|---|"]
    return "\n".join([_INTRODUCTION, *head, *rows]) + "\n"


def _row(kind: type[BookKeeperError], given: list[set[str]]) -> str:
    parent = kind.__mro__[1]
    name = f"`{kind.__name__}`" + (f" ({parent.__name__})" if parent not in (Exception, BookKeeperError) else "")
    facts = [
        name if all(fact in one for one in given) else f"({name})"
        for fact, name in FACTS.items()
        if any(fact in one for one in given)
    ]
    meaning = " ".join((kind.__doc__ or "").split())
    return f"| {name} | {kind.code} {APACHE_NAMES[kind.code]} | {', '.join(facts)} | {meaning} | {kind.remedy} |"


if __name__ == "__main__":
    print(page(), end="")
