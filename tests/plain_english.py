"""User-facing text in plain English: pages, messages, option texts, log lines, help.

    python -m tests.plain_english      prints `file:line: found: say ... instead`; exit code 1 when there is any

What is read: README.md and the other pages; every text of the product's modules that is not a docstring; the docstrings
of bkspark/errors.py, which are the text of docs/errors.md; the head of the Makefile. Code in pages is left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "benchmarks/*.md", "Makefile")
PACKAGES = ("bkspark", "bookie_service", "pyspark_bookkeeper")
SPOKEN_DOCSTRINGS = ("bkspark/errors.py",)
"""Modules whose docstrings users read."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is not to be written, and what to write instead."""

    found: re.Pattern[str]
    instead: str


PATTERNS = (
    Pattern(
        re.compile(r"\bOf\s+(?!course\b)[a-z`'\d]"), "begin with the subject: not 'Of X there is Y', but 'X has Y'"
    ),
    Pattern(re.compile(r"\b[Ww]hoever\b"), "name the subject: 'the client that', 'a process which'"),
    Pattern(re.compile(r"\bWho\s+(?![^.!?|]*\?)[a-z]"), "name the subject: 'a client that', not 'Who'"),
    Pattern(re.compile(r"\bstands?\b(?!\s+for\b(?!\s+(?:all|each|every)\b))"), "say 'is', 'lies' or 'are written'"),
    Pattern(
        re.compile(r"(?<!\blags )(?<!\blag )(?<!\blagging )(?<!\bfall )(?<!\bfalls )(?<!\bfar )\bbehind\b"),
        "say 'after', 'above' or 'beyond'; a reader may lag behind",
    ),
    Pattern(re.compile(r"\bin\s+front\b"), "say 'before' or 'below'"),
    Pattern(re.compile(r"\btold\b"), "say 'reported', 'returned', 'given' or 'known by'"),
    Pattern(
        re.compile(r"(?<![Tt]here )\b(?:is|are|was|were|be|as|has|have|gets?|gives?)\s+none\b(?!\s+of\b)"),
        "say 'no' or 'not one'",
    ),
    Pattern(re.compile(r"\banew\b"), "say 'again'"),
    Pattern(
        re.compile(r"\b(?:[Ss]omebody|[Nn]obody|[Ee]verybody|[Aa]nybody)\b"),
        "name the role: 'no client', 'another process'",
    ),
)

_FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}|\t).*\n|\n)+", re.MULTILINE)
_INLINE = re.compile(r"`[^`\n]+`")


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text and the line of its file on which it begins."""

    line: int
    words: str


def findings(root: Path = ROOT) -> list[str]:
    """Return a line for each pattern that is found in user-facing text below `root`."""
    found = []
    for path, texts in _sources(root):
        for text in texts:
            for pattern in PATTERNS:
                for match in pattern.found.finditer(text.words):
                    line = text.line + text.words.count("\n", 0, match.start())
                    found.append(f"{path.relative_to(root)}:{line}: {' '.join(match[0].split())!r}: {pattern.instead}")
    return found


def _sources(root: Path) -> Iterator[tuple[Path, Iterator[Text]]]:
    for page in PAGES:
        for path in sorted(root.glob(page)):
            yield path, iter([_prose(path)])
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            speaks = path.relative_to(root).as_posix() in SPOKEN_DOCSTRINGS
            yield path, _literals(path, with_docstrings=speaks)


def _prose(page: Path) -> Text:
    """Return a page without its code; lines stay where they are."""
    text = page.read_text()
    if page.name == "Makefile":
        text = re.match(r"(?:#.*\n)*", text)[0]  # type: ignore[index]
    else:
        for code in (_FENCE, _INDENTED):
            text = code.sub(lambda block: "\n" * block[0].count("\n"), text)
    return Text(1, _INLINE.sub(lambda code: "`" * len(code[0]), text))


def _literals(module: Path, *, with_docstrings: bool) -> Iterator[Text]:
    """Yield the texts of several words in a module."""
    tree = ast.parse(module.read_text())
    docstrings = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or " " not in node.value:
            continue
        if with_docstrings or id(node) not in docstrings:
            yield Text(node.lineno, node.value)


def _docstrings(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield texts that stand as a statement of their own: of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def main() -> int:
    found = findings()
    print(*found, sep="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
